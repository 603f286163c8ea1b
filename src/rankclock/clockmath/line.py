"""A robust straight line through estimates of an offset: the best guess, to be clamped into a hard bound.

Decides nothing about truth: the line is statistics, its error is not bounded by it. Points far in time weigh less,
because rates wander: a point `t` seconds away may be off by a*t^2/2. Points far from the line weigh less (Huber).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Line", "fit_line"]

HUBER_K = 1.345
"""Residuals beyond this many scales weigh by their inverse: 95 % efficiency on Gaussian noise (Huber 1981)."""

MAD_TO_SIGMA = 1.4826
MAX_ROUNDS = 8
MIN_POINTS = 3
MIN_SPAN_NS = 10_000_000
"""Over 10 ms, 100 ns of noise are 10 ppm: less than two crystals may differ by."""
NS_PER_S = 1e9

Point = tuple[float, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """offset_ns at `at_ns`, gaining `rate_ppb`.

    scale_ns: how far the points scatter around it (robust standard deviation).
    """

    at_ns: int
    offset_ns: int
    rate_ppb: float
    scale_ns: float

    def offset_at(self, at_ns: int) -> int:
        """The line's value at another instant."""
        return self.offset_ns + round(self.rate_ppb * (at_ns - self.at_ns) / NS_PER_S)


def fit_line(
    points: Sequence[tuple[int, int]], *, at_ns: int, rate_ppb: float, noise_ns: float, wander_ppb_per_s: float
) -> Line | None:
    """The line through `points` ((at_ns, offset_ns), in order of time), best near `at_ns`; None without points.

    rate_ppb: the rate to take where the points lie too close together to say anything of it. noise_ns: what a single
    point may be off by on a quiet path; it sets from where on wander outweighs noise.
    """
    if not points:
        return None
    newest_ns, base_ns = points[-1]
    if len(points) < MIN_POINTS or newest_ns - points[0][0] < MIN_SPAN_NS:
        return Line(at_ns=newest_ns, offset_ns=base_ns, rate_ppb=rate_ppb, scale_ns=noise_ns)
    weighted: list[Point] = []
    for when_ns, offset_ns in points:
        after_s = (when_ns - at_ns) / NS_PER_S
        strayed = wander_ppb_per_s * after_s * after_s / 2 / max(noise_ns, 1.0)
        weighted.append((after_s, float(offset_ns - base_ns), 1 / (1 + strayed * strayed)))
    offset, rate, scale = _huber(weighted)
    return Line(at_ns=at_ns, offset_ns=base_ns + round(offset), rate_ppb=rate, scale_ns=scale)


def _huber(points: list[Point]) -> tuple[float, float, float]:
    """(offset at x = 0, rate, scale) by iteratively reweighted least squares."""
    trust = [1.0] * len(points)
    offset, rate, scale = 0.0, 0.0, 0.0
    for _ in range(MAX_ROUNDS):
        before = offset, rate
        offset, rate = _least_squares(points, trust)
        residuals = [abs(y - offset - rate * x) for x, y, _ in points]
        scale = MAD_TO_SIGMA * _weighted_median(residuals, [weight for _, _, weight in points])
        limit = max(HUBER_K * scale, 1.0)
        trust = [1.0 if residual <= limit else limit / residual for residual in residuals]
        if abs(offset - before[0]) < 0.1 and abs(rate - before[1]) < 0.01:
            break
    return offset, rate, scale


def _least_squares(points: list[Point], trust: list[float]) -> tuple[float, float]:
    weights = [weight * share for (_, _, weight), share in zip(points, trust, strict=True)]
    total = sum(weights)
    mean_x = sum(weight * x for weight, (x, _, _) in zip(weights, points, strict=True)) / total
    mean_y = sum(weight * y for weight, (_, y, _) in zip(weights, points, strict=True)) / total
    over = sum(weight * (x - mean_x) * (y - mean_y) for weight, (x, y, _) in zip(weights, points, strict=True))
    under = sum(weight * (x - mean_x) ** 2 for weight, (x, _, _) in zip(weights, points, strict=True))
    rate = over / under if under > 0 else 0.0
    return mean_y - rate * mean_x, rate


def _weighted_median(values: list[float], weights: list[float]) -> float:
    """The value at which half of the weight is reached."""
    half = sum(weights) / 2
    reached = 0.0
    for value, weight in sorted(zip(values, weights, strict=True)):
        reached += weight
        if reached >= half:
            return value
    return 0.0
