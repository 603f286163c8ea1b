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
from rankclock.traces.estimate import Ends, Lines, find_break, fit_lines, rough_offsets, smallest_seen_ns
from rankclock.traces.matching import Matches
from rankclock.traces.spans import NO_END, Ints

__all__ = ["Recovering", "Segment"]

MAX_BREAKS = 16
"""Breaks looked for in all clocks together; a clock that breaks more often is not described by lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A stretch of one clock between breaks, with its line (offset against the reference) and its local times.

    from_label: the first collective (in order of time) that it stamps. start_ns, end_ns: its local times, gaps to the
    neighbouring segments included. sure_from_ns, sure_to_ns: between these no break lies.
    """

    clock: int
    from_label: int
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
        self.smallest_step_ns = 0
        self._matches, self._wander = matches, wander_per_s
        self._clocks = clocks
        self._clock = np.array([clock_of[rank] for rank in matches.ranks], dtype=np.int64)[matches.rank]
        ended = matches.end_ns != NO_END
        self._when = np.where(ended, matches.end_ns, matches.start_ns)
        symmetric = matches.enters & matches.waits
        self._rough, self.connected = self._rough_offsets(symmetric)
        self._label, self._labels = self._in_order_of_time()
        self._symmetric = symmetric
        self._breaks: dict[int, list[int]] = {}
        self.segments: list[Segment] = []
        self._set_segments()

    @property
    def constraining(self) -> int:
        """Collectives of which some span constrains another clock."""
        return len(np.unique(self._label[self._matches.enters & self._spread()]))

    def _spread(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Entries of collectives in which several clocks take part."""
        least, most = np.full(self._labels, self._clocks), np.full(self._labels, -1)
        np.minimum.at(least, self._label, self._clock)
        np.maximum.at(most, self._label, self._clock)
        return (least < most)[self._label]

    def count_of(self, clock: int) -> int:
        """Collectives in which a clock takes part."""
        return len(np.unique(self._label[self._clock == clock]))

    def window(self, clock: int) -> tuple[int, int]:
        """First and last local time in the traces that a clock stamped."""
        mine = [self.digests[rank] for rank, owner in self.clock_of.items() if owner == clock]
        firsts = [digest.first_ns for digest in mine if digest.first_ns is not None]
        lasts = [digest.last_ns for digest in mine if digest.last_ns is not None]
        return (min(firsts), max(lasts)) if firsts and lasts else (0, 0)

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

    def _in_order_of_time(self) -> tuple[Ints, int]:
        """Each entry's collective, renumbered by the middle of its (roughly corrected) ends."""
        count = len(self._matches.collectives)
        corrected = self._when - self._rough[self._clock]
        base = int(corrected.min()) if len(corrected) else 0
        total = np.bincount(self._matches.collective, (corrected - base).astype(np.float64), count)
        number = np.maximum(np.bincount(self._matches.collective, minlength=count), 1)
        labels = np.empty(count, dtype=np.int64)
        labels[np.argsort(total / number, kind="stable")] = np.arange(count)
        return labels[self._matches.collective], count

    # Lines and their breaks

    def break_lines(self) -> None:
        """Fit a line to each clock, and two where one does not do, until no break is seen any more."""
        for _ in range(MAX_BREAKS):
            ends, order = self._ends()
            if not len(ends.clock):
                return
            lines = fit_lines(ends, reference=0)
            self._take_lines(lines)
            found = find_break(ends, lines, reference=0, wander_per_s=self._wander)
            if found is None:
                self.smallest_step_ns = round(smallest_seen_ns(lines))
                break
            mine = order[ends.clock == found.clock]
            self._breaks.setdefault(self.segments[found.clock].clock, []).append(int(self._label[mine[found.place]]))
            self._set_segments()
        self._set_times()

    def _set_segments(self) -> None:
        """One segment per clock and break; the reference's first one comes first."""
        fresh = []
        for clock in range(self._clocks):
            for label in (0, *sorted(self._breaks.get(clock, ()))):
                fresh.append(Segment(clock=clock, from_label=label, rough_ns=int(self._rough[clock])))
        self.segments = fresh
        self._segment = np.empty(len(self._label), dtype=np.int64)
        for index, segment in enumerate(fresh):
            self._segment[(self._clock == segment.clock) & (self._label >= segment.from_label)] = index

    def _ends(self) -> tuple[Ends, Ints]:
        """The ends of symmetric collectives by segment: one per collective and segment, the middle of its ranks'."""
        entries = np.flatnonzero(self._symmetric)
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
        for index, segment in enumerate(self.segments):
            first, last = self.window(segment.clock)
            mine = self._when[self._segment == index]
            following = index + 1 < len(self.segments) and self.segments[index + 1].clock == segment.clock
            begins = segment.from_label == 0
            # The first stamp behind the break, as the old clock would have shown it, and the other way round.
            start, end = first, last
            sure_from, sure_to = (first if begins else int(mine.min())), (int(mine.max()) if following else last)
            if following:
                behind = int(self._when[self._segment == index + 1].min())
                later = self.segments[index + 1]
                end = max(sure_to, behind - (later.estimate_at(behind) - segment.estimate_at(behind)))
            if not begins:
                before = int(self._when[self._segment == index - 1].max())
                earlier = self.segments[index - 1]
                start = min(sure_from, before + (segment.estimate_at(before) - earlier.estimate_at(before)))
            timed.append(replace(segment, start_ns=start, end_ns=end, sure_from_ns=sure_from, sure_to_ns=sure_to))
        self.segments = timed

    # Rows

    def problem(self, *, without_clocks: set[int], without_collectives: set[int]) -> BoundProblem:
        """The rows of all spans that constrain, but for those of some clocks and collectives."""
        kept = ~np.isin(self._clock, list(without_clocks)) & ~np.isin(self._label, list(without_collectives))
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

    def _begun_before_break(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Spans behind a break that may have begun before it: those whose predecessor on their lane ended before it."""
        straddling = np.zeros(len(self._label), dtype=bool)
        for clock in self._breaks:
            for place, rank in enumerate(self._matches.ranks):
                if self.clock_of[rank] != clock:
                    continue
                mine = np.flatnonzero(self._matches.rank == place)
                lane = self.digests[rank].collectives.lane[self._matches.span[mine]]
                order = mine[np.lexsort((self._label[mine], lane))]
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
