"""One two-way exchange: four stamps to a hard interval of the offset, and to one half-bound in each direction.

Decides what causality alone says: a datagram arrives after it departed. Nothing is assumed of the path's symmetry.
It needs only that a departure stamp is not later than the departure and an arrival stamp not earlier than the arrival.
Refuses, as a value, exchanges that contradict causality. offset = local - peer, both clocks free-running
(CLOCK_MONOTONIC_RAW): on a clock that is stepped or slewed a bound does not age by a drift rate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

__all__ = ["Exchange", "HalfBound", "OffsetInterval", "Rejected", "Stamp", "lower_bound", "upper_bound"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """An instant on one clock: known to lie in [earliest_ns, latest_ns], most likely at estimate_ns.

    Of a departure only `earliest_ns` carries a bound, of an arrival only `latest_ns`.
    """

    earliest_ns: int
    latest_ns: int
    estimate_ns: int

    def __post_init__(self) -> None:
        if not self.earliest_ns <= self.estimate_ns <= self.latest_ns:
            raise ValueError(f"a stamp's estimate lies between its earliest and its latest instant: {self}")

    @classmethod
    def exactly(cls, at_ns: int) -> Self:
        """An instant that was read itself."""
        return cls(earliest_ns=at_ns, latest_ns=at_ns, estimate_ns=at_ns)

    @classmethod
    def between(cls, earliest_ns: int, latest_ns: int) -> Self:
        """An instant of which only this is known; the estimate is the middle."""
        return cls(earliest_ns=earliest_ns, latest_ns=latest_ns, estimate_ns=(earliest_ns + latest_ns) // 2)

    @property
    def width_ns(self) -> int:
        """How far the stamp is from being exact."""
        return self.latest_ns - self.earliest_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfBound:
    """The offset when the local clock read `at_ns` is not below (or not above) `offset_ns`."""

    at_ns: int
    offset_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetInterval:
    """local - peer lies in [lo_ns, hi_ns]; `estimate_ns` is what a symmetric path would mean.

    rtt_ns: the time on the way, there and back. doubt_ns: the widths of the four stamps together.
    """

    lo_ns: int
    hi_ns: int
    estimate_ns: int
    rtt_ns: int
    doubt_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """An exchange that cannot have happened, and why."""

    why: str


def lower_bound(departed: Stamp, reached: Stamp) -> HalfBound:
    """From a datagram that left here (local clock) and reached the peer (peer clock).

    The peer's clock had not passed `reached` when the datagram left, hence local - peer >= departed - reached. Taken at
    the earliest departure the bound is exact there for any rate of the two clocks: no drift enters it.
    """
    return HalfBound(at_ns=departed.earliest_ns, offset_ns=departed.earliest_ns - reached.latest_ns)


def upper_bound(answered: Stamp, returned: Stamp) -> HalfBound:
    """From a datagram that left the peer (peer clock) and returned here (local clock): local - peer <= returned -
    answered, exact at the latest return."""
    return HalfBound(at_ns=returned.latest_ns, offset_ns=returned.latest_ns - answered.earliest_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """The four stamps: `departed` and `returned` on the local clock, `reached` and `answered` on the peer's."""

    departed: Stamp
    reached: Stamp
    answered: Stamp
    returned: Stamp

    def interval(self, *, rate_limit_ppb: int) -> OffsetInterval | Rejected:
        """The hard interval of the offset at any instant of the exchange, or why there is none.

        The two half-bounds hold at two instants; `rate_limit_ppb`, how fast the two clocks may part, brings each to the
        other (nanoseconds for any sane path).
        """
        if self.returned.latest_ns < self.departed.earliest_ns:
            return Rejected(why="it returned before it departed")
        if self.answered.latest_ns < self.reached.earliest_ns:
            return Rejected(why="it was answered before it reached the peer")
        lower = lower_bound(self.departed, self.reached)
        upper = upper_bound(self.answered, self.returned)
        apart_ns = abs(upper.at_ns - lower.at_ns)
        drift_ns = -(-apart_ns * rate_limit_ppb // 1_000_000_000)
        lo_ns, hi_ns = lower.offset_ns - drift_ns, upper.offset_ns + drift_ns
        if lo_ns > hi_ns:
            return Rejected(why=f"it spent {lo_ns - hi_ns} ns less than nothing on the way: a stamp is late or early")
        forward_ns = self.departed.estimate_ns - self.reached.estimate_ns
        backward_ns = self.returned.estimate_ns - self.answered.estimate_ns
        estimate_ns = min(max((forward_ns + backward_ns) // 2, lo_ns), hi_ns)
        return OffsetInterval(
            lo_ns=lo_ns,
            hi_ns=hi_ns,
            estimate_ns=estimate_ns,
            rtt_ns=max(backward_ns - forward_ns, 0),
            doubt_ns=sum(one.width_ns for one in (self.departed, self.reached, self.answered, self.returned)),
        )
