"""Offset and rate with hard bounds from many half-bounds over a window.

The lower half-bounds lie under the truth and the upper ones above it, so any line that could be the truth passes
between the two hulls; all such lines are a convex polygon in (offset, rate). Each half-bound is first widened by
a*t^2/2, t its distance from the instant asked about: crystals wander, and without the widening no line fitted or the
truth was missed in 246 of 300 simulated minutes (0.42 µs floor, random walk of frequency of 1e-8 per square root of a
second). `a` is a stated setting. Refuses to answer where no line fits: the rate jumped, or a half-bound lies.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from rankclock.clockmath.exchange import HalfBound
from rankclock.errors import DecodeError

__all__ = ["RATE_LIMIT_PPB", "WANDER_PPB_PER_S", "HullBound", "Infeasible", "bound_offset"]

WANDER_PPB_PER_S = 30
"""How fast the rate between two oscillators changes at most: 3e-8 per second."""

RATE_LIMIT_PPB = 500_000
"""How fast two unsteered oscillators part at most: 500 ppm."""

READING_NS = 1.0
"""Clocks are read in whole nanoseconds, cut off: the difference of two readings is off by less than 1 ns."""

NS_PER_S = 1e9

Point = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class HullBound:
    """Everything that the offset and the rate at local RAW instant `at_ns` can be.

    corners: of the convex polygon, (offset - base_ns in ns, rate in ppb); `base_ns` keeps the floats small and exact.
    """

    at_ns: int
    base_ns: int
    corners: tuple[Point, ...]
    wander_ppb_per_s: int = WANDER_PPB_PER_S

    def __post_init__(self) -> None:
        if not self.corners:
            raise ValueError("a bound has at least one line that fits")
        if not all(math.isfinite(number) for corner in self.corners for number in corner):
            raise ValueError(f"corners are finite: {self.corners}")
        if not all(type(number) is int for number in (self.at_ns, self.base_ns, self.wander_ppb_per_s)):
            raise ValueError(f"instants, offsets and the wander are whole numbers: {self}")

    def offset_at(self, at_ns: int) -> tuple[int, int]:
        """(lo_ns, hi_ns) of local - peer when the local clock reads `at_ns`: aged by rates and wander."""
        after_s = (at_ns - self.at_ns) / NS_PER_S
        wander_ns = self.wander_ppb_per_s * after_s * after_s / 2
        offsets = [offset + rate * after_s for offset, rate in self.corners]
        return self.base_ns + math.floor(min(offsets) - wander_ns), self.base_ns + math.ceil(max(offsets) + wander_ns)

    def rate_ppb(self) -> tuple[float, float]:
        """(lo, hi) of the rate at which local gains on peer, at `at_ns`."""
        rates = [rate for _, rate in self.corners]
        return min(rates), max(rates)

    def to_json(self) -> dict[str, Any]:
        """A JSON object; floats keep all their digits."""
        return {
            "at_ns": self.at_ns,
            "base_ns": self.base_ns,
            "corners": [list(corner) for corner in self.corners],
            "wander_ppb_per_s": self.wander_ppb_per_s,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """The inverse of `to_json`. Raises DecodeError."""
        try:
            return cls(
                at_ns=value["at_ns"],
                base_ns=value["base_ns"],
                corners=tuple((float(offset), float(rate)) for offset, rate in value["corners"]),
                wander_ppb_per_s=value["wander_ppb_per_s"],
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise DecodeError(f"not a bound of offset and rate: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Infeasible:
    """No bound, and why: nothing came back yet, the rate jumped, or a stamp lies."""

    why: str


def bound_offset(
    lower: Sequence[HalfBound],
    upper: Sequence[HalfBound],
    *,
    at_ns: int,
    wander_ppb_per_s: int = WANDER_PPB_PER_S,
    rate_limit_ppb: int = RATE_LIMIT_PPB,
) -> HullBound | Infeasible:
    """What offset and rate at local RAW instant `at_ns` can be, given all half-bounds of a window."""
    if not lower or not upper:
        return Infeasible(why="no datagram " + ("reached the peer" if not lower else "came back"))
    base_ns = upper[-1].offset_ns
    below = _outer(_points(lower, at_ns, base_ns, -wander_ppb_per_s, -READING_NS), side=1)
    above = _outer(_points(upper, at_ns, base_ns, wander_ppb_per_s, READING_NS), side=-1)
    corners = _box(below + above, rate_limit_ppb)
    for after_s, offset_ns in below:
        corners = _clip(corners, after_s, offset_ns, 1.0)
    for after_s, offset_ns in above:
        corners = _clip(corners, after_s, offset_ns, -1.0)
    if not corners:
        return Infeasible(why="no constant rate fits the measurements: the rate jumped, or a stamp is wrong")
    return HullBound(at_ns=at_ns, base_ns=base_ns, corners=tuple(corners), wander_ppb_per_s=wander_ppb_per_s)


def _points(
    bounds: Iterable[HalfBound], at_ns: int, base_ns: int, wander_ppb_per_s: float, slack_ns: float
) -> list[Point]:
    """(seconds from at_ns, offset - base) of each half-bound, moved outward by what may have come in since."""
    points = []
    for bound in bounds:
        after_s = (bound.at_ns - at_ns) / NS_PER_S
        points.append((after_s, bound.offset_ns - base_ns + slack_ns + wander_ppb_per_s * after_s * after_s / 2))
    return sorted(points)


def _outer(points: list[Point], *, side: int) -> list[Point]:
    """The points that a line on one side of all of them can touch: the upper hull (side 1) or the lower one (-1).

    Monotone chain: only these can cut the polygon.
    """
    chain: list[Point] = []
    for x, y in points:
        while len(chain) >= 2:
            (x1, y1), (x2, y2) = chain[-2], chain[-1]
            if side * ((x2 - x1) * (y - y1) - (y2 - y1) * (x - x1)) < 0:
                break
            chain.pop()
        chain.append((x, y))
    return chain


def _box(points: list[Point], rate_limit_ppb: int) -> list[Point]:
    """A polygon that holds every line of an allowed rate that a point could touch."""
    farthest_s = max(abs(x) for x, _ in points)
    size_ns = max(abs(y) for _, y in points) + rate_limit_ppb * farthest_s + 1
    rate = float(rate_limit_ppb)
    return [(-size_ns, -rate), (size_ns, -rate), (size_ns, rate), (-size_ns, rate)]


def _clip(corners: list[Point], after_s: float, offset_ns: float, side: float) -> list[Point]:
    """The part of the polygon whose lines pass above (side 1) or below (-1) the point."""
    kept: list[Point] = []
    inside = [side * (offset + rate * after_s - offset_ns) for offset, rate in corners]
    for index, (here, there) in enumerate(zip(inside, inside[1:] + inside[:1], strict=True)):
        corner = corners[index]
        if here >= 0:
            kept.append(corner)
        if (here >= 0) != (there >= 0):
            following = corners[(index + 1) % len(corners)]
            share = here / (here - there)
            kept.append(
                (corner[0] + share * (following[0] - corner[0]), corner[1] + share * (following[1] - corner[1]))
            )
    return kept
