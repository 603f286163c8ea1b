"""The state of a recovery: which clock every span was stamped by, where clocks' lines break, and the rows that follow.

A clock that was stepped is two clocks, one before and one after. Decides which stamps near a break may still be used:
a span that began before it and ended after it constrains neither side. Cluster time is the reference clock's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from rankclock.traces.bounds_lp import BoundProblem, Side
from rankclock.traces.digest import TraceDigest
from rankclock.traces.estimate import (
    LEAST_SIDE,
    Ends,
    Lines,
    find_break,
    fit_lines,
    group_median,
    rough_offsets,
    smallest_seen_ns,
)
from rankclock.traces.matching import Matches
from rankclock.traces.spans import NO_END, Ints

__all__ = ["Recovering", "Segment"]

MARGIN_NS = 20_000
"""Estimates on both sides of a break are off by some µs: pieces reach so much farther, where they overlap anyway."""

MAX_BREAKS = 16
"""Breaks looked for in all clocks together; a clock that breaks more often is not described by lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A stretch of one clock between breaks, with its line (offset against the reference) and its local times.

    first: whether no break is before it. start_ns, end_ns: its local times, gaps to the
    neighbouring segments included. sure_from_ns, sure_to_ns: between these no break lies.
    """

    clock: int
    first: bool
    rough_ns: int
    at_ns: int = 0
    offset_ns: float = 0.0
    rate: float = 0.0
    start_ns: int = 0
    end_ns: int = 0
    sure_from_ns: int = 0
    sure_to_ns: int = 0

    def estimate_at(self, local_ns: int) -> int:
        """local - reference, by the line."""
        return self.rough_ns + round(self.offset_ns + self.rate * (local_ns - self.rough_ns - self.at_ns))

    def estimates(self, local_ns: Ints) -> Ints:
        """The same for many instants."""
        line: Ints = np.rint(self.offset_ns + self.rate * (local_ns - self.rough_ns - self.at_ns)).astype(np.int64)
        return self.rough_ns + line

    def knots(self) -> list[int]:
        """Local times at which bounds are asked for; between them they are convex, so chords are safe."""
        middle = self.sure_from_ns + (self.sure_to_ns - self.sure_from_ns) // 2
        return sorted({self.start_ns, self.sure_from_ns, middle, self.sure_to_ns, self.end_ns})

    def mark(self, start_ns: int, end_ns: int) -> str:
        """Why a stretch is less sure than the rest, '' where it is not."""
        if end_ns <= self.sure_from_ns or start_ns >= self.sure_to_ns:
            return "the clock was stepped, or its rate changed, somewhere in this stretch"
        return ""


class Recovering:
    """Matches with their clocks. `segments` are what the solver calls clocks; segment 0 is the reference."""

    def __init__(
        self,
        digests: Mapping[int, TraceDigest],
        matches: Matches,
        clock_of: Mapping[int, int],
        clocks: int,
        *,
        wander_per_s: float,
    ) -> None:
        self.digests, self.clock_of = digests, clock_of
        self.dropped: set[int] = set()
        self.unplaced: set[int] = set()
        """Clocks that break in a place that cannot be found, or too often."""
        self._smallest_ns = np.full(clocks, np.inf)
        self._matches, self._wander = matches, wander_per_s
        self._clocks = clocks
        self._clock = np.array([clock_of[rank] for rank in matches.ranks], dtype=np.int64)[matches.rank]
        ended = matches.end_ns != NO_END
        self._when = np.where(ended, matches.end_ns, matches.start_ns)
        symmetric = matches.enters & matches.waits
        self._rough, self.connected = self._rough_offsets(symmetric)
        self._labels = len(matches.collectives)
        # Those tell of a clock against others; what ranks of one clock do among themselves does not.
        self._telling = symmetric & self._spread(matches.collective)
        corrected = self._when - self._rough[self._clock]
        self._base_ns = int(corrected.min()) if len(corrected) else 0
        self._set_order(corrected)
        self._breaks: dict[int, list[float]] = {}
        self.segments: list[Segment] = []
        self._set_segments()

    @property
    def constraining(self) -> int:
        """Collectives of which some span constrains another clock."""
        return len(np.unique(self._label[self._matches.enters & self._spread(self._label)]))

    def _spread(self, label: Ints) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Entries of collectives in which several clocks take part."""
        least, most = np.full(self._labels, self._clocks), np.full(self._labels, -1)
        np.minimum.at(least, label, self._clock)
        np.maximum.at(most, label, self._clock)
        return (least < most)[label]

    def count_of(self, clock: int) -> int:
        """Collectives in which a clock takes part."""
        return len(np.unique(self._label[self._clock == clock]))

    def window(self, clock: int) -> tuple[int, int]:
        """First and last local time in the traces that a clock stamped."""
        mine = [self.digests[rank] for rank, owner in self.clock_of.items() if owner == clock]
        firsts = [digest.first_ns for digest in mine if digest.first_ns is not None]
        lasts = [digest.last_ns for digest in mine if digest.last_ns is not None]
        return (min(firsts), max(lasts)) if firsts and lasts else (0, 0)

    @property
    def steady_clocks(self) -> list[int]:
        """Clocks in which no break was found."""
        return [clock for clock in range(self._clocks) if not self._breaks.get(clock) and clock not in self.unplaced]

    def smallest_step_ns(self, clock: int) -> int | None:
        """The smallest step of a clock that surely would have been seen; None where none of any size would."""
        mine = [self._smallest_ns[index] for index, segment in enumerate(self.segments) if segment.clock == clock]
        seen = [round(smallest) for smallest in mine if np.isfinite(smallest)]
        return max(seen, default=None)

    def steps_of(self, clock: int) -> list[tuple[int, int]]:
        """Breaks of a clock: the local time of the first sure collective behind each, and the estimate's jump there."""
        mine = [segment for segment in self.segments if segment.clock == clock]
        return [
            (later.sure_from_ns, later.estimate_at(later.sure_from_ns) - earlier.estimate_at(later.sure_from_ns))
            for earlier, later in pairwise(mine)
        ]

    def _rough_offsets(self, symmetric: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> tuple[Ints, list[bool]]:
        matches = self._matches
        rough, known = rough_offsets(
            self._clocks, self._clock[symmetric], matches.collective[symmetric], self._when[symmetric], reference=0
        )
        if all(known):
            return rough, known
        # Messages and the like bring the others near enough to number collectives and to keep numbers small.
        wide, connected = rough_offsets(self._clocks, self._clock, matches.collective, self._when, reference=0)
        return np.where(known, rough, wide), connected

    def _set_order(self, corrected: Ints) -> None:
        """Number the collectives in order of time: each at the median of its corrected ends.

        `_seen`: for each entry when its collective was by the other clocks alone: a step of its own does not move it.
        """
        collective = self._matches.collective
        values = (corrected - self._base_ns).astype(np.float64)
        middle = group_median(values, collective, self._labels)
        when = np.zeros(self._labels)
        when[collective] = middle
        labels = np.empty(self._labels, dtype=np.int64)
        labels[np.argsort(when, kind="stable")] = np.arange(self._labels)
        self._label = labels[collective]
        self._seen = middle.copy()
        for clock in range(self._clocks):
            others = self._clock != clock
            found = np.full(self._labels, np.nan)
            found[collective[others]] = group_median(values[others], collective[others], self._labels)
            mine = ~others & ~np.isnan(found[collective])
            self._seen[mine] = found[collective[mine]]

    # Lines and their breaks

    def break_lines(self) -> None:
        """Fit a line to each clock, and two where one does not do, until no break is seen any more."""
        for _ in range(MAX_BREAKS):
            ends, picked = self._ends()
            if not len(ends.clock):
                break
            lines = fit_lines(ends, reference=0)
            self._take_lines(lines)
            self._smallest_ns = smallest_seen_ns(ends, lines)
            # Of two clocks, one that jumps and one that does not look alike: cluster time is the reference's.
            steady = 0 if self._clocks == 2 else None
            found = find_break(ends, lines, steady=steady, wander_per_s=self._wander)
            if found is None:
                break
            before, behind = self._seen[picked[ends.clock == found.clock][found.place - 1 : found.place + 1]].tolist()
            clock = self.segments[found.clock].clock
            known = len(self._breaks.get(clock, ()))
            self._breaks[clock] = sorted([*self._breaks.get(clock, ()), (before + behind) / 2])
            self._set_segments()
            self._refine(clock)
            if len(self._breaks[clock]) <= known:
                self.unplaced.add(clock)
                break
        else:
            self.unplaced.update(self._breaks)
        self._take_lines(fit_lines(self._ends()[0], reference=0))
        self._set_times()

    def _refine(self, clock: int) -> None:
        """Order the collectives anew by the lines beside breaks, and put a clock's breaks where these lines meet."""
        ends, _ = self._ends()
        self._take_lines(fit_lines(ends, reference=0))
        estimates = np.zeros(len(self._when), dtype=np.int64)
        for index, segment in enumerate(self.segments):
            estimates[self._segment == index] = segment.estimates(self._when[self._segment == index])
        self._set_order(self._when - estimates)
        mine = np.flatnonzero((self._clock == clock) & self._telling)
        mine = mine[np.argsort(self._seen[mine], kind="stable")]
        first = next(index for index, segment in enumerate(self.segments) if segment.clock == clock)
        for place, old in enumerate(self._breaks[clock]):
            near = mine[np.isin(self._segment[mine] - first, (place, place + 1))]
            misfit = [
                np.abs(self._when[near] - segment.estimates(self._when[near]) - self._base_ns - self._seen[near])
                for segment in self.segments[first + place : first + place + 2]
            ]
            costs = np.cumsum(misfit[0] - misfit[1])[:-1]
            split = int(np.argmin(costs)) if len(costs) else -1
            moved = float(self._seen[near[split]] + self._seen[near[split + 1]]) / 2 if split >= 0 else old
            self._breaks[clock][place] = moved
        self._breaks[clock].sort()
        self._set_segments()

    def _set_segments(self) -> None:
        """One segment per clock and break; the reference's first one comes first."""
        fresh: list[Segment] = []
        self._segment = np.zeros(len(self._label), dtype=np.int64)
        for clock in range(self._clocks):
            mine = self._clock == clock
            breaks = self._breaks.get(clock, [])
            # Two breaks that met are one; so is one behind which nothing is left.
            sides = np.searchsorted(breaks, self._seen[mine & self._telling])
            breaks = [at for place, at in enumerate(breaks) if (sides == place).any() and (sides > place).any()]
            if clock in self._breaks:
                self._breaks[clock] = breaks
            self._segment[mine] = len(fresh) + np.searchsorted(breaks, self._seen[mine])
            for place in range(len(breaks) + 1):
                fresh.append(Segment(clock=clock, first=not place, rough_ns=int(self._rough[clock])))
        self.segments = fresh

    def _ends(self) -> tuple[Ends, Ints]:
        """The ends of symmetric collectives by segment: one per collective and segment, the middle of its ranks'."""
        entries = np.flatnonzero(self._telling)
        order = entries[np.lexsort((self._when[entries], self._segment[entries], self._label[entries]))]
        keys = self._label[order] * len(self.segments) + self._segment[order]
        firsts = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]]) if len(keys) else np.array([], dtype=np.int64)
        sizes = np.diff(np.r_[firsts, len(keys)])
        picked = order[firsts + (sizes - 1) // 2] if len(firsts) else order
        ends = Ends(
            clocks=len(self.segments),
            collectives=self._labels,
            clock=self._segment[picked],
            collective=self._label[picked],
            end_ns=self._when[picked] - self._rough[self._clock[picked]],
        )
        return ends, picked

    def _take_lines(self, lines: Lines) -> None:
        self.segments = [
            replace(segment, at_ns=lines.at_ns, offset_ns=float(lines.offset_ns[index]), rate=float(lines.rate[index]))
            for index, segment in enumerate(self.segments)
        ]

    def _set_times(self) -> None:
        """Where in local time each segment lies; around a break the old and the new clock overlap or leave a gap."""
        timed = []
        if len(self._smallest_ns) != len(self.segments):
            self._smallest_ns = np.full(len(self.segments), np.inf)
        for index, segment in enumerate(self.segments):
            first, last = self._trusted_window(segment.clock)
            mine = self._when[self._telling & (self._segment == index)]
            following = index + 1 < len(self.segments) and self.segments[index + 1].clock == segment.clock
            # The first stamp behind the break, as the old clock would have shown it, and the other way round.
            start, end = first, last
            margin = MARGIN_NS + (self.smallest_step_ns(segment.clock) or 0)
            sure_from, sure_to = (first if segment.first else int(mine.min())), (int(mine.max()) if following else last)
            if following:
                behind = int(self._when[self._telling & (self._segment == index + 1)].min())
                later = self.segments[index + 1]
                end = max(sure_to, behind - (later.estimate_at(behind) - segment.estimate_at(behind)) + margin)
            if not segment.first:
                before = int(self._when[self._telling & (self._segment == index - 1)].max())
                earlier = self.segments[index - 1]
                start = min(sure_from, before + (segment.estimate_at(before) - earlier.estimate_at(before)) - margin)
            if (first, last) != self.window(segment.clock):
                # Instants beyond are of a clock that is not known, however they look.
                start, end = max(start, first), min(end, last)
            timed.append(replace(segment, start_ns=start, end_ns=end, sure_from_ns=sure_from, sure_to_ns=sure_to))
        self.segments = timed

    def _trusted_window(self, clock: int) -> tuple[int, int]:
        """The clock's window, less what lies from a span on that does not fit, if too few that fit are beyond it."""
        first, last = self.window(clock)
        mine = self._clock == clock
        misfits = [self._when[mine & np.isin(self._label, list(self.dropped))]]
        for rank, spans in self._matches.strayed.items():
            if self.clock_of[rank] == clock:
                misfits.append(self.digests[rank].collectives.end_ns[spans])
        fitting = np.sort(self._when[mine & self._telling & ~np.isin(self._label, list(self.dropped))])
        for misfit in np.concatenate(misfits).tolist():
            place = int(np.searchsorted(fitting, misfit))
            if place > len(fitting) - LEAST_SIDE:
                last = min(last, int(fitting[place - 1]) if place else first)
            elif place < LEAST_SIDE:
                first = max(first, int(fitting[place]))
        return first, max(first, last)

    # Rows

    def leave_out(self, collectives: set[int]) -> None:
        """Collectives that contradict all others: no rows of them, and no trust in what lies beyond them."""
        self.dropped = collectives
        self._set_times()

    def problem(self, *, without_clocks: set[int]) -> BoundProblem:
        """The rows of all spans that constrain, but for those of some clocks and the collectives left out."""
        kept = ~np.isin(self._clock, list(without_clocks)) & ~np.isin(self._label, list(self.dropped))
        kept &= ~self._beside_break()
        starts = kept & self._matches.enters & ~self._begun_before_break()
        ends = kept & self._matches.waits
        slack = self._matches.slack_ns
        return BoundProblem(
            clocks=len(self.segments),
            reference=0,
            starts=self._side(starts, self._matches.start_ns - slack, np.maximum),
            ends=self._side(ends, self._matches.end_ns + np.where(ends, slack, 0), np.minimum),
            collectives=self._labels,
            wander_per_s=self._wander,
        )

    def _beside_break(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Spans of one-sided kinds between the symmetric ones next to a break: of either side."""
        beside = np.zeros(len(self._label), dtype=bool)
        for clock, breaks in self._breaks.items():
            mine = self._clock == clock
            known = np.sort(self._seen[mine & self._telling])
            for at in breaks:
                place = int(np.searchsorted(known, at))
                low = known[place - 1] if place else -np.inf
                high = known[place] if place < len(known) else np.inf
                beside |= mine & ~self._telling & (self._seen > low) & (self._seen < high)
        return beside

    def _begun_before_break(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Spans behind a break that may have begun before it: those whose predecessor on their lane ended before it."""
        straddling = np.zeros(len(self._label), dtype=bool)
        for clock in self._breaks:
            for place, rank in enumerate(self._matches.ranks):
                if self.clock_of[rank] != clock:
                    continue
                mine = np.flatnonzero(self._matches.rank == place)
                if not len(mine):
                    continue
                lane = self.digests[rank].collectives.lane[self._matches.span[mine]]
                order = mine[np.lexsort((self._seen[mine], lane))]
                changed = np.r_[True, np.sort(lane)[1:] != np.sort(lane)[:-1]]
                before = np.r_[-1, self._segment[order][:-1]]
                straddling[order] = (changed | (before != self._segment[order])) & (
                    self._segment[order] != self._segment[order].min()
                )
        return straddling

    def _side(self, which: np.ndarray[tuple[int], np.dtype[np.bool_]], local_ns: Ints, extreme: np.ufunc) -> Side:
        """One stamp per collective and segment: the latest start, the earliest end."""
        entries = np.flatnonzero(which)
        keys = self._label[entries] * len(self.segments) + self._segment[entries]
        order = np.argsort(keys, kind="stable")
        entries, keys = entries[order], keys[order]
        firsts = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]]) if len(keys) else np.array([], dtype=np.int64)
        shifted = local_ns[entries] - self._rough[self._clock[entries]]
        values = extreme.reduceat(shifted, firsts) if len(firsts) else shifted
        return Side(
            collective=keys[firsts] // len(self.segments), clock=keys[firsts] % len(self.segments), local_ns=values
        )
