"""Offset and rate with hard bounds from many half-bounds over a window.

The lower half-bounds lie under the truth and the upper ones above it, so any line that could be the truth passes
between the two hulls. Each half-bound is first widened by a*t^2/2, t its distance from the instant asked about: crystals
wander, and without the widening the hull excluded the truth in 199 + 47 of 300 simulated minutes (0.42 µs floor, random
walk of frequency 1e-8 per square root of a second). `a` is a stated setting (`WANDER_PPB_PER_S`).
Refuses to answer where no line fits: the clocks changed frequency, or a half-bound lies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from rankclock.clockmath.exchange import HalfBound

__all__ = ["RATE_LIMIT_PPB", "WANDER_PPB_PER_S", "Corner", "HullBound", "Infeasible", "bound_offset"]

WANDER_PPB_PER_S = 30
"""How fast the rate between two oscillators changes at most: 3e-8 per second."""

RATE_LIMIT_PPB = 500_000
"""How fast two unsteered oscillators part at most: 500 ppm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Corner:
    """One extreme line that the half-bounds allow: the offset at the instant of the bound, and the rate there."""

    offset_ns: int
    rate_ppb: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HullBound:
    """Everything that the offset and the rate at RAW instant `at_ns` can be: a convex polygon of `corners`.

    The exact offset is base_ns + corner.offset_ns (corners are kept small so that floats stay exact).
    """

    at_ns: int
    base_ns: int
    corners: tuple[tuple[float, float], ...]
    wander_ppb_per_s: int = WANDER_PPB_PER_S

    def offset_at(self, at_ns: int) -> tuple[int, int]:
        """(lo_ns, hi_ns) of local - peer when the local clock reads `at_ns`: aged by the rates allowed and by wander."""
        raise NotImplementedError

    def rate_ppb(self) -> tuple[float, float]:
        """(lo, hi) of the rate at which local gains on peer."""
        raise NotImplementedError

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        raise NotImplementedError

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """The inverse of `to_json`. Raises DecodeError."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Infeasible:
    """No line passes between the half-bounds: the rate jumped, or a stamp lies."""

    why: str


def bound_offset(
    lower: Sequence[HalfBound],
    upper: Sequence[HalfBound],
    *,
    at_ns: int,
    wander_ppb_per_s: int = WANDER_PPB_PER_S,
    rate_limit_ppb: int = RATE_LIMIT_PPB,
) -> HullBound | Infeasible:
    """What the offset at `at_ns` can be, given everything in the window."""
    raise NotImplementedError
