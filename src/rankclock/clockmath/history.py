"""Past stamps of one clock brought to cluster time: bounds grown from the records on both sides, and intersected.

A line says where the offset lay at one instant, and that its rate stays within rate_ppb ± growth_ppb until the next.
So between two lines the truth lies in the cone of the one and in the cone of the other. Where the record is parted (the
clock was stepped, the reference changed, lines are missing) a stamp may belong to either side: the answer covers both,
as after a backward step, when CLOCK_REALTIME read the same value twice. Refuses, as an unknown offset, stamps that no
record is near to, and values that a forward step jumped over.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from rankclock.clockmath.realtime import KERNEL_RATE_LIMIT_PPB
from rankclock.timebase import DEFAULT_DRIFT_BOUND_PPB, NS_PER_S, Offset
from rankclock.timebase.clock_record import ClockEvent, ClockHeader, ClockLine, ClockRecord

__all__ = ["REACH_NS", "ClockHistory", "Piece", "Run", "offset_at"]

METHOD = "clock record"
REACH_NS = 60 * NS_PER_S
"""How far outside of its lines a record is carried on: lines come every second, a minute without one says nothing."""


PPB = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A stretch of CLOCK_REALTIME over which the estimate is a straight line.

    start_ns, end_ns: of CLOCK_REALTIME. The offset is est_start_ns at the one and est_end_ns at the other; its bounds
    anywhere on the stretch are those of `ClockHistory.offset_at_real`.
    """

    start_ns: int
    end_ns: int
    est_start_ns: int
    est_end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Lines that nothing parts, and their reach. at: (lo, hi, estimate, distance) at a stamp, None where unknown.

    Between two neighbouring lines, and outside of all, lo is convex and hi concave.
    """

    start_ns: int
    end_ns: int
    lines: tuple[ClockLine, ...]
    at: Callable[[int], tuple[int, int, int, int] | None]


class _Stretch:
    """Lines with nothing between them that parts them. CLOCK_REALTIME runs forward through them."""

    def __init__(self, first: ClockLine, growth_ppb: int) -> None:
        self.lines = [first]
        self.real = [first.real_ns]
        self.growth_ppb = growth_ppb
        self.before_ns = self.after_ns = REACH_NS
        self.bend_before_ppb = self.bend_after_ppb = 0.0

    def add(self, line: ClockLine) -> None:
        self.lines.append(line)
        self.real.append(line.real_ns)

    def covers(self, real_ns: int) -> bool:
        return self.real[0] - self.before_ns <= real_ns <= self.real[-1] + self.after_ns

    def distance_ns(self, real_ns: int) -> int:
        """How far outside of the lines; 0 between them."""
        return max(self.real[0] - real_ns, real_ns - self.real[-1], 0)

    def at(self, real_ns: int) -> tuple[int, int, int, int] | None:
        """(lo, hi, estimate, distance to the nearest line); None where the nearest line knows nothing."""
        right = bisect_right(self.real, real_ns)
        left = right - 1
        near = [self.lines[index] for index in (left, right) if 0 <= index < len(self.lines)]
        # The rate that the earlier line states holds until the next; before the first line its own does.
        stated = near[0]
        cones = [self._cone(line, stated, real_ns) for line in near]
        known = [cone for cone in cones if cone is not None]
        if not known or (len(known) < len(cones) and not near[0].known):
            return None
        lo_ns, hi_ns = max(cone[0] for cone in known), min(cone[1] for cone in known)
        if lo_ns > hi_ns:  # the two contradict each other: a rate was outside of what its line stated
            lo_ns, hi_ns = min(cone[0] for cone in known), max(cone[1] for cone in known)
        if len(known) == 2:
            one, two = near
            assert one.est_ns is not None
            assert two.est_ns is not None
            share = (real_ns - one.real_ns) / max(two.real_ns - one.real_ns, 1)
            guess_ns = one.est_ns + round((two.est_ns - one.est_ns) * share)
        else:
            guess_ns = known[0][2]
        distance_ns = min(abs(real_ns - line.real_ns) for line in near)
        return lo_ns, hi_ns, min(max(guess_ns, lo_ns), hi_ns), distance_ns

    def _cone(self, line: ClockLine, stated: ClockLine, real_ns: int) -> tuple[int, int, int] | None:
        """(lo, hi, estimate) that a line allows at another instant."""
        if line.lo_ns is None or line.hi_ns is None or line.est_ns is None:
            return None
        since_ns = real_ns - line.real_ns
        growth_ppb = self.growth_ppb if stated.growth_ppb is None else stated.growth_ppb
        if stated.rate_ppb is None:
            growth_ppb = max(growth_ppb, DEFAULT_DRIFT_BOUND_PPB)
        if real_ns < self.real[0]:
            growth_ppb += math.ceil(self.bend_before_ppb)
        elif real_ns > self.real[-1]:
            growth_ppb += math.ceil(self.bend_after_ppb)
        moved = (stated.rate_ppb or 0.0) * since_ns / PPB
        grown = growth_ppb * abs(since_ns) / PPB
        lo_ns, hi_ns = line.lo_ns + math.floor(moved - grown), line.hi_ns + math.ceil(moved + grown)
        return lo_ns, hi_ns, min(max(line.est_ns + round(moved), lo_ns), hi_ns)


class ClockHistory:
    """What a clock record says of any past reading of the local CLOCK_REALTIME. `add` takes further lines in."""

    def __init__(self, header: ClockHeader, lines: Iterable[ClockLine] = ()) -> None:
        self.header = header
        self._stretches: list[_Stretch] = []
        self._last: ClockLine | None = None
        self._count = 0
        self.reference = header.reference
        for line in lines:
            self.add(line)

    @classmethod
    def of(cls, record: ClockRecord) -> ClockHistory:
        """From a decoded record."""
        return cls(record.header, record.lines)

    def __len__(self) -> int:
        return self._count

    @property
    def lines(self) -> tuple[ClockLine, ...]:
        """All lines, oldest first."""
        return tuple(line for stretch in self._stretches for line in stretch.lines)

    @property
    def last(self) -> ClockLine | None:
        """The newest line."""
        return self._last

    def latest_rates(self) -> list[float]:
        """Those of the last two lines: the last one alone may have been bent by what came behind it. 0 where there is
        none before."""
        lines = self._stretches[-1].lines[-2:] if self._stretches else []
        return [line.rate_ppb or 0.0 for line in lines] + [0.0] * (2 - len(lines))

    def record(self) -> ClockRecord:
        """Header and lines, for a trace's metadata."""
        return ClockRecord(header=self.header, lines=self.lines)

    def add(self, line: ClockLine) -> None:
        """The next line. Raises ValueError where it is older than the last one."""
        last = self._last
        if last is not None and line.raw_ns < last.raw_ns:
            raise ValueError(f"lines come in order of time: {line.raw_ns} after {last.raw_ns}")
        if line.event is ClockEvent.REFERENCE and line.detail:
            self.reference = line.detail
        # A line that reads earlier than the one before, or that begins to know, parts as well, whoever wrote it.
        parts = line.event is not None and line.event.parts
        if last is None or parts or line.real_ns < last.real_ns or line.known != last.known:
            self._part(line)
        else:
            self._stretches[-1].add(line)
        self._last = line
        self._count += 1

    def forget_before(self, raw_ns: int) -> None:
        """Drop whole stretches and lines that are older; the newest line always stays."""
        while len(self._stretches) > 1 and self._stretches[0].lines[-1].raw_ns < raw_ns:
            self._count -= len(self._stretches.pop(0).lines)
        first = self._stretches[0] if self._stretches else None
        if first is not None:
            old = sum(1 for line in first.lines[:-1] if line.raw_ns < raw_ns)
            del first.lines[:old], first.real[:old]
            self._count -= old

    def offset_at_real(self, real_ns: int) -> Offset:
        """Local CLOCK_REALTIME - cluster time at the instant when the local clock read `real_ns`."""
        candidates = [stretch for stretch in self._stretches if stretch.covers(real_ns)]
        found = [(stretch, stretch.at(real_ns)) for stretch in candidates]
        known = [(stretch, at) for stretch, at in found if at is not None]
        if not known:
            return Offset.unknown(self._why(real_ns, candidates), reference=self.reference, method=METHOD)
        # Between two stretches a stamp may belong to one that knows nothing: then nothing bounds it.
        if len(known) < len(found) and min(stretch.distance_ns(real_ns) for stretch, _ in known) > 0:
            return Offset.unknown("the clock was lost about then", reference=self.reference, method=METHOD)
        lo_ns, hi_ns = min(at[0] for _, at in known), max(at[1] for _, at in known)
        _, likely = min(known, key=lambda item: (item[0].distance_ns(real_ns), -item[0].real[-1]))
        assumed = ["between two records the rate stays within what they state"]
        if all(stretch.distance_ns(real_ns) > 0 for stretch, _ in known):
            assumed.append("outside of its records the clock went on as next to them")
        if len(known) > 1:
            assumed.append("the clock was stepped or its reference changed about then: the bound covers both sides")
        return Offset(
            lo_ns=lo_ns,
            hi_ns=hi_ns,
            estimate_ns=likely[2],
            reference=self.reference,
            method=METHOD,
            assumptions=tuple(assumed),
            age_ns=likely[3],
        )

    def to_cluster_ns(self, real_ns: int) -> int | None:
        """Cluster time, best guess, when the local CLOCK_REALTIME read `real_ns`; None where that is unknown."""
        offset = self.offset_at_real(real_ns)
        return None if offset.estimate_ns is None else real_ns - offset.estimate_ns

    def runs(self) -> tuple[Run, ...]:
        """Its stretches with their reach; a stamp that several of them hold may belong to any."""
        return tuple(
            Run(
                start_ns=stretch.real[0] - stretch.before_ns,
                end_ns=stretch.real[-1] + stretch.after_ns,
                lines=tuple(stretch.lines),
                at=stretch.at,
            )
            for stretch in self._stretches
        )

    def pieces(self) -> tuple[Piece, ...]:
        """The estimate as straight lines, in order of time; two may cover the same values after a backward step."""
        return tuple(self._pieces())

    def _pieces(self) -> Iterator[Piece]:
        for stretch in self._stretches:
            for one, two in zip(stretch.lines, stretch.lines[1:], strict=False):
                if one.est_ns is not None and two.est_ns is not None and two.real_ns > one.real_ns:
                    yield Piece(
                        start_ns=one.real_ns, end_ns=two.real_ns, est_start_ns=one.est_ns, est_end_ns=two.est_ns
                    )

    def _part(self, line: ClockLine) -> None:
        stretch = _Stretch(line, self.header.growth_ppb)
        if self._stretches and self._last is not None:
            # Neither side lasted longer than the time between the two lines, whatever rate REALTIME had meanwhile.
            between_ns = line.raw_ns - self._last.raw_ns
            reach_ns = min(between_ns + between_ns * KERNEL_RATE_LIMIT_PPB // PPB + 1, REACH_NS)
            self._stretches[-1].after_ns = stretch.before_ns = reach_ns
            self._may_bend(self._stretches[-1], stretch)
        self._stretches.append(stretch)

    @staticmethod
    def _may_bend(before: _Stretch, after: _Stretch) -> None:
        """Who sets a clock often slews it at once: between two stretches its rate may have been either side's, or as
        far beyond."""
        one, two = before.lines[-1].rate_ppb, after.lines[0].rate_ppb
        bend = KERNEL_RATE_LIMIT_PPB if one is None or two is None else 2 * abs(one - two)
        before.bend_after_ppb = after.bend_before_ppb = bend

    def _why(self, real_ns: int, candidates: list[_Stretch]) -> str:
        if not self._stretches:
            return "nothing has been recorded yet"
        if candidates:
            return "the clock was lost about then"
        first, last = self._stretches[0], self._stretches[-1]
        if real_ns < first.real[0] - first.before_ns:
            return "it was read before the record begins"
        if real_ns > last.real[-1] + last.after_ns:
            return "it was read after the record ends"
        return "CLOCK_REALTIME never read it (it was stepped over), or nothing was recorded near it"


def offset_at(history: ClockHistory, live: ClockLine, real_ns: int) -> Offset:
    """`ClockHistory.offset_at_real` for stamps that may be newer than its last line: `live` is a reading taken now.

    Since that line the clock may have been slewed anew or set, and nobody looked: what that can hide widens the bound.
    """
    last = history.last
    if live.est_ns is None:
        return history.offset_at_real(real_ns)
    if last is None:
        return ClockHistory(history.header, [live]).offset_at_real(real_ns)
    passed_ns = live.raw_ns - last.raw_ns
    gained_ns = live.real_ns - last.real_ns - passed_ns
    if real_ns <= last.real_ns + min(gained_ns, 0):
        return history.offset_at_real(real_ns)
    header = replace(history.header, reference=history.reference)
    if last.est_ns is None:
        recent = ClockHistory(header, [last, live])
    elif passed_ns <= 0 or abs(gained_ns) > passed_ns * KERNEL_RATE_LIMIT_PPB // PPB + 1:
        recent = ClockHistory(header, [last, replace(live, event=ClockEvent.STEP)])
    else:
        apart_ns = live.real_ns - last.real_ns
        chord = (live.est_ns - last.est_ns) * PPB / max(apart_ns, 1)
        rates = [chord, *history.latest_rates()]
        hidden_ns = math.ceil(2 * (max(rates) - min(rates)) * apart_ns / PPB)
        recent = ClockHistory(
            header, [_widened(replace(line, rate_ppb=chord, event=None), hidden_ns) for line in (last, live)]
        )
    newer = recent.offset_at_real(real_ns)
    return newer if real_ns > last.real_ns else _either(history.offset_at_real(real_ns), newer)


def _either(one: Offset, two: Offset) -> Offset:
    """The stamp may be of either time."""
    if one.lo_ns is None or one.hi_ns is None or two.lo_ns is None or two.hi_ns is None:
        return one if two.known else two
    return replace(two, lo_ns=min(one.lo_ns, two.lo_ns), hi_ns=max(one.hi_ns, two.hi_ns))


def _widened(line: ClockLine, by_ns: int) -> ClockLine:
    assert line.lo_ns is not None
    assert line.hi_ns is not None
    return replace(line, lo_ns=line.lo_ns - by_ns, hi_ns=line.hi_ns + by_ns)
