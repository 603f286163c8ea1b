"""Where a series of offsets was set (a step) or began to run at another rate, and by how much. Statistics, no bounds.

A stretch is parted where two lines fit it so much better than one that scatter cannot be the reason: the strongest
change first, then both sides again. Where the two lines miss each other at the parting the clock was stepped, else its
rate changed. Single outliers are left out first. Refuses to call a change what the scatter can explain: `sigmas` says
how sure one must be. Batch code: numpy, one pass over the points for each change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

__all__ = ["Change", "ChangeKind", "find_changes"]

SIDE = 8
"""Points on each side of a change, at least: fewer say nothing of a slope."""

SIGMAS = 7.0
"""Twice the squared logarithm of hundreds of instants tried is 4 sigmas: what scatter does by chance stays below 6."""

OUTLIER_SIGMAS = 6.0
MAD_TO_SIGMA = 1.4826
NS_PER_S = 1e9
FLOOR_NS = 1.0

Array = npt.NDArray[np.float64]


class ChangeKind(StrEnum):
    """What happened to the clock."""

    STEP = "step"
    RATE = "rate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """at_ns: the first point after it. by: ns for a step, ppb for a rate. sigmas: how far above the scatter."""

    kind: ChangeKind
    at_ns: int
    by: float
    sigmas: float


def find_changes(
    at_ns: Sequence[int], offsets_ns: Sequence[int], *, sigmas: float = SIGMAS, noise_ns: float | None = None
) -> list[Change]:
    """All changes of a series in order of time, in order of time. noise_ns: how far a single point is off as a rule;
    taken from the series where not given. Raises ValueError where times do not rise."""
    if len(at_ns) != len(offsets_ns):
        raise ValueError(f"{len(at_ns)} instants and {len(offsets_ns)} offsets: one each is expected")
    if len(at_ns) < 2 * SIDE:
        return []
    x = np.array([one - at_ns[0] for one in at_ns], dtype=np.float64) / NS_PER_S
    y = np.array([one - offsets_ns[0] for one in offsets_ns], dtype=np.float64)
    if not (np.diff(x) > 0).all():
        raise ValueError("the instants of a series rise")
    apart = _apart(x, y)
    scatter = max(noise_ns if noise_ns is not None else MAD_TO_SIGMA * float(np.median(np.abs(apart))), FLOOR_NS)
    kept = np.abs(apart) < OUTLIER_SIGMAS * scatter
    numbers = np.flatnonzero(kept)
    found = _search(_Series(x[kept], y[kept], scatter, sigmas), 0, len(numbers))
    return [
        Change(kind=kind, at_ns=at_ns[int(numbers[index])], by=by, sigmas=strength)
        for index, kind, by, strength in sorted(found, key=lambda item: item[0])
    ]


_Found = tuple[int, ChangeKind, float, float]


@dataclass(frozen=True, slots=True)
class _Series:
    x: Array
    y: Array
    scatter: float
    sigmas: float


def _search(series: _Series, start: int, end: int) -> list[_Found]:
    """The strongest change between two points, and those on both sides of it."""
    if end - start < 2 * SIDE:
        return []
    x, y = series.x[start:end], series.y[start:end]
    whole = _residuals(x, y)
    before, after = whole, _residuals(x[::-1], y[::-1])[::-1]
    # What is left over with two lines that part before point i, for every i that leaves enough on both sides.
    splits = np.arange(SIDE, len(x) - SIDE + 1)
    left_over = before[splits - 1] + after[splits]
    best = int(splits[int(np.argmin(left_over))])
    gain = (whole[-1] - float(left_over.min())) / series.scatter**2
    if gain < series.sigmas**2:
        return []
    middle = (x[best - 1] + x[best]) / 2
    one, two = _line(x[:best] - middle, y[:best]), _line(x[best:] - middle, y[best:])
    gap, turn = two[0] - one[0], two[1] - one[1]
    sure = series.sigmas * series.scatter
    # Lines that cross within two points of the parting are one line that turned.
    turned = abs(turn) >= sure * float(np.hypot(one[3], two[3])) and abs(gap) <= 2.5 * abs(turn) * (
        x[best] - x[best - 1]
    )
    stepped = not turned and abs(gap) >= sure * float(np.hypot(one[2], two[2]))
    kind, by = (ChangeKind.STEP, gap) if stepped else (ChangeKind.RATE, turn)
    here = start + best
    return [
        *_search(series, start, here),
        (here, kind, by, float(np.sqrt(gain))),
        *_search(series, here, end),
    ]


def _residuals(x: Array, y: Array) -> Array:
    """Sum of squares that the best line through points 0..i leaves over, for every i."""
    # Around the straight line through all points: the sums below would cancel badly otherwise.
    offset, slope, *_ = _line(x - x[0], y)
    x, y = x - x[0], y - offset - slope * (x - x[0])
    count = np.arange(1, len(x) + 1)
    sum_x, sum_y = np.cumsum(x), np.cumsum(y)
    under = np.cumsum(x * x) - sum_x**2 / count
    over = np.cumsum(x * y) - sum_x * sum_y / count
    total = np.cumsum(y * y) - sum_y**2 / count
    explained = np.divide(over**2, under, out=np.zeros_like(x), where=np.abs(under) > 0)
    return np.maximum(total - explained, 0.0)


def _line(x: Array, y: Array) -> tuple[float, float, float, float]:
    """(offset at 0, slope, and the standard errors of both for a scatter of 1)."""
    mean_x, mean_y = float(x.mean()), float(y.mean())
    spread = float(((x - mean_x) ** 2).sum())
    slope = float(((x - mean_x) * (y - mean_y)).sum()) / spread
    return mean_y - slope * mean_x, slope, float(np.sqrt(1 / len(x) + mean_x**2 / spread)), float(np.sqrt(1 / spread))


def _apart(x: Array, y: Array) -> Array:
    """How far each point is from the line through its neighbours (the first and the last: from that through the two
    nearest), in units of one point's scatter."""
    left = np.concatenate(([1], np.arange(len(x) - 2), [len(x) - 3]))
    right = np.concatenate(([2], np.arange(2, len(x)), [len(x) - 2]))
    share = (x - x[left]) / (x[right] - x[left])
    expected = y[left] + share * (y[right] - y[left])
    return np.asarray((y - expected) / np.sqrt(1 + share**2 + (1 - share) ** 2))
