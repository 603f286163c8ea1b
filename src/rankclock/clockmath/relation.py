"""How one free-running clock stands to another: an interval of offset and one of rate at an instant, carried on.

offset = local - other; here the other is mostly cluster time, and local a CLOCK_MONOTONIC_RAW. Relations are carried to
other instants (bounds grow by the interval of the rate and by a*t^2/2, a the wander), chained over a third clock, and
those of several ways are brought together: what most ways agree on. Refuses, as a value, ways that contradict each
other evenly: then nobody can tell which of them lies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from rankclock.clockmath.hull import HullBound

__all__ = ["Agreement", "Disagreement", "Relation", "agree"]

NS_PER_S = 1e9
PPB = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """When the local clock reads at_ns: local - other lies in [lo_ns, hi_ns], most likely at est_ns.

    Local gains on the other between slowest_ppb and fastest_ppb then, most likely rate_ppb; rates change by at most
    wander_ppb_per_s.
    """

    at_ns: int
    lo_ns: int
    hi_ns: int
    est_ns: int
    slowest_ppb: float
    fastest_ppb: float
    rate_ppb: float
    wander_ppb_per_s: int

    def __post_init__(self) -> None:
        if not self.lo_ns <= self.est_ns <= self.hi_ns:
            raise ValueError(f"an estimate lies inside its bounds: {self}")
        if not self.slowest_ppb <= self.rate_ppb <= self.fastest_ppb:
            raise ValueError(f"a likely rate lies inside its bounds: {self}")

    @classmethod
    def itself(cls, at_ns: int, offset_ns: int, *, rate_ppb: float = 0.0) -> Self:
        """A clock that defines the other: local - offset, by definition, hence without doubt and without wander."""
        return cls(
            at_ns=at_ns,
            lo_ns=offset_ns,
            hi_ns=offset_ns,
            est_ns=offset_ns,
            slowest_ppb=rate_ppb,
            fastest_ppb=rate_ppb,
            rate_ppb=rate_ppb,
            wander_ppb_per_s=0,
        )

    @classmethod
    def of_edge(cls, bound: HullBound, at_ns: int, *, estimate_ns: int, rate_ppb: float) -> Self:
        """From a measured edge (local - peer), at a local instant; the estimate is clamped into the bound."""
        lo_ns, hi_ns = bound.offset_at(at_ns)
        strayed = bound.wander_ppb_per_s * abs(at_ns - bound.at_ns) / NS_PER_S
        slowest, fastest = bound.rate_ppb()
        slowest, fastest = slowest - strayed, fastest + strayed
        return cls(
            at_ns=at_ns,
            lo_ns=lo_ns,
            hi_ns=hi_ns,
            est_ns=min(max(estimate_ns, lo_ns), hi_ns),
            slowest_ppb=slowest,
            fastest_ppb=fastest,
            rate_ppb=min(max(rate_ppb, slowest), fastest),
            wander_ppb_per_s=bound.wander_ppb_per_s,
        )

    @property
    def width_ns(self) -> int:
        """How wide the interval is."""
        return self.hi_ns - self.lo_ns

    def bounds_at(self, local_ns: int) -> tuple[int, int]:
        """(lo, hi) when the local clock reads `local_ns`."""
        after_s = (local_ns - self.at_ns) / NS_PER_S
        wander_ns = self.wander_ppb_per_s * after_s * after_s / 2
        moved = (self.slowest_ppb * after_s, self.fastest_ppb * after_s)
        return self.lo_ns + math.floor(min(moved) - wander_ns), self.hi_ns + math.ceil(max(moved) + wander_ns)

    def estimate_at(self, local_ns: int) -> int:
        """The best guess when the local clock reads `local_ns`: inside the bounds, which grow around it."""
        return self.est_ns + round(self.rate_ppb * (local_ns - self.at_ns) / NS_PER_S)

    def at(self, local_ns: int) -> Self:
        """The same, carried to another instant."""
        lo_ns, hi_ns = self.bounds_at(local_ns)
        strayed = self.wander_ppb_per_s * abs(local_ns - self.at_ns) / NS_PER_S
        return replace(
            self,
            at_ns=local_ns,
            lo_ns=lo_ns,
            hi_ns=hi_ns,
            est_ns=min(max(self.estimate_at(local_ns), lo_ns), hi_ns),
            slowest_ppb=self.slowest_ppb - strayed,
            fastest_ppb=self.fastest_ppb + strayed,
        )

    def then(self, onward: Relation) -> Relation:
        """self (local - peer) and onward (peer - other) give local - other, at self.at_ns.

        The peer's instant is known as well as the edge is: onward is taken over all of it. Of two oscillators, local
        and other, the wander is again the stated one; the way over the peer does not double it.
        """
        earliest, latest = onward.bounds_at(self.at_ns - self.hi_ns), onward.bounds_at(self.at_ns - self.lo_ns)
        peer_ns = self.at_ns - self.est_ns
        strayed = onward.wander_ppb_per_s * abs(peer_ns - onward.at_ns) / NS_PER_S
        lo_ns = self.lo_ns + min(earliest[0], latest[0])
        hi_ns = self.hi_ns + max(earliest[1], latest[1])
        # The peer's second is not the local one: onward's rate counts in local seconds.
        ends = [
            rate + more - rate * more / PPB
            for rate in (self.slowest_ppb, self.fastest_ppb)
            for more in (onward.slowest_ppb - strayed, onward.fastest_ppb + strayed)
        ]
        likely = self.rate_ppb + onward.rate_ppb - self.rate_ppb * onward.rate_ppb / PPB
        return Relation(
            at_ns=self.at_ns,
            lo_ns=lo_ns,
            hi_ns=hi_ns,
            est_ns=min(max(self.est_ns + onward.estimate_at(peer_ns), lo_ns), hi_ns),
            slowest_ppb=min(ends),
            fastest_ppb=max(ends),
            rate_ppb=min(max(likely, min(ends)), max(ends)),
            wander_ppb_per_s=max(self.wander_ppb_per_s, onward.wander_ppb_per_s),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """What most ways agree on. odd: the numbers of those that contradict it."""

    relation: Relation
    odd: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """No majority: as many ways say this as say that. by_ns: how far they are apart."""

    by_ns: int


def agree(ways: Sequence[Relation]) -> Agreement | Disagreement:
    """Several ways to the same clock, at the same local instant; the first ones are trusted first for the estimate.

    Marzullo: the interval that lies in the most ways. All of those hold where the majority tells the truth.
    Raises ValueError without ways.
    """
    if not ways:
        raise ValueError("there is no way to agree on")
    edges = sorted([(way.lo_ns, 0) for way in ways] + [(way.hi_ns, 1) for way in ways])
    best, count, areas = 0, 0, 0
    for index, (_, closing) in enumerate(edges):
        if closing:
            count -= 1
            continue
        count += 1
        closes_here = edges[index + 1][1] == 1
        if count > best:
            best, areas = count, int(closes_here)
        elif count == best and closes_here:
            areas += 1
    if areas > 1 or (2 * best <= len(ways) and best < len(ways)):
        return Disagreement(by_ns=max(way.lo_ns for way in ways) - min(way.hi_ns for way in ways))
    return _together(ways, best)


def _together(ways: Sequence[Relation], best: int) -> Agreement:
    """The intersection of the largest set of ways that have one."""
    start_ns = next(
        way.lo_ns
        for way in sorted(ways, key=lambda one: one.lo_ns)
        if sum(other.lo_ns <= way.lo_ns <= other.hi_ns for other in ways) == best
    )
    inside = [index for index, way in enumerate(ways) if way.lo_ns <= start_ns <= way.hi_ns]
    chosen = [ways[index] for index in inside]
    lo_ns, hi_ns = max(way.lo_ns for way in chosen), min(way.hi_ns for way in chosen)
    slowest = max(way.slowest_ppb for way in chosen)
    fastest = min(way.fastest_ppb for way in chosen)
    first = chosen[0]
    if slowest > fastest:  # offsets agree and rates do not: the widest doubt
        slowest, fastest = min(way.slowest_ppb for way in chosen), max(way.fastest_ppb for way in chosen)
    relation = replace(
        first,
        lo_ns=lo_ns,
        hi_ns=hi_ns,
        est_ns=min(max(first.est_ns, lo_ns), hi_ns),
        slowest_ppb=slowest,
        fastest_ppb=fastest,
        rate_ppb=min(max(first.rate_ppb, slowest), fastest),
        wander_ppb_per_s=max(way.wander_ppb_per_s for way in chosen),
    )
    return Agreement(relation=relation, odd=tuple(index for index in range(len(ways)) if index not in inside))
