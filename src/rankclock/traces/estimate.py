"""The best guess of each clock's offset and rate from collectives: that they end at about the same time on all ranks.

Statistics, labelled as an assumption wherever it is used: a fixed order of ends is invisible to it. Decides where a
clock's line breaks (a step, a change of rate), so that bounds are never drawn across a break. Robust lines by Huber's
weights for all clocks at once, against the median end of every collective, in turn.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np
import numpy.typing as npt

from rankclock.traces.spans import Ints

__all__ = ["Break", "Ends", "Lines", "find_break", "fit_lines", "rough_offsets", "smallest_seen_ns"]

Floats = npt.NDArray[np.float64]

HUBER_K = 1.345
MAD_TO_SIGMA = 1.4826
ROUNDS = 30
SETTLED_NS = 1.0

JUMP_SIGMAS = 6.0
"""A break is believed beyond this many standard errors of the two medians beside it: none in a million by chance."""

MEDIAN_ERROR = 1.2533
"""Standard error of a median over that of a mean."""

SIDE = 8
"""Collectives looked at on either side of a possible break, at least LEAST_SIDE."""

LEAST_SIDE = 3

SMALLEST_BREAK_NS = 5_000.0
"""Below the slack of the stamps no break is looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """Ends of collectives by clock, sorted by collective; collectives are numbered in order of time.

    end_ns: local time less the clock's rough offset.
    """

    clocks: int
    collectives: int
    clock: Ints
    collective: Ints
    end_ns: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Offset lines per clock, against the reference clock: offset_ns at `at_ns`, gaining rate (ns per ns).

    residual_ns: per entry of the ends, what the lines leave. sigma_ns: per clock, its scatter, robust.
    """

    at_ns: int
    offset_ns: Floats
    rate: Floats
    residual_ns: Floats
    sigma_ns: Floats


def rough_offsets(
    clocks: int, clock: Ints, collective: Ints, end_ns: Ints, *, reference: int
) -> tuple[Ints, list[bool]]:
    """Integer offsets good enough to work with small numbers, and which clocks share collectives with the reference."""
    offsets = [0] * clocks
    known = [index == reference for index in range(clocks)]
    order = np.lexsort((clock, collective))
    clock, collective, end_ns = clock[order], collective[order], end_ns[order]
    count = int(collective[-1]) + 1 if len(collective) else 0
    while True:
        grounded = np.array(known)[clock]
        if not grounded.any():
            break
        # Any known clock's end will do as the collective's: the roughest grain is what is wanted.
        first = np.full(count, -1, dtype=np.int64)
        places = np.flatnonzero(grounded)
        first[collective[places[::-1]]] = places[::-1]
        anchored = first[collective]
        fresh = (anchored >= 0) & ~grounded
        if not fresh.any():
            break
        shift = np.array(offsets, dtype=np.int64)
        differences = end_ns - (end_ns[anchored] - shift[clock[anchored]])
        for index in np.unique(clock[fresh]).tolist():
            offsets[index] = int(np.median(differences[fresh & (clock == index)]))
            known[index] = True
    return np.array(offsets, dtype=np.int64), known


def fit_lines(ends: Ends, *, reference: int) -> Lines:
    """Lines that bring the ends of each collective together, and the reference clock's kept at zero."""
    at_ns = int(np.median(ends.end_ns)) if len(ends.end_ns) else 0
    time = (ends.end_ns - at_ns).astype(np.float64)
    offset, rate = np.zeros(ends.clocks), np.zeros(ends.clocks)
    sigma = np.full(ends.clocks, np.inf)
    residual = np.zeros(len(time))
    for _ in range(ROUNDS):
        before = offset.copy()
        corrected = time - offset[ends.clock] - rate[ends.clock] * time
        residual = time - _group_median(corrected, ends.collective, ends.collectives)
        offset, rate, sigma = _huber_lines(ends, time, residual)
        offset, rate = offset - offset[reference], rate - rate[reference]
        if np.max(np.abs(offset - before), initial=0.0) < SETTLED_NS:
            break
    left = residual - offset[ends.clock] - rate[ends.clock] * time
    return Lines(at_ns=at_ns, offset_ns=offset, rate=rate, residual_ns=left, sigma_ns=sigma)


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """A clock's line ends before its `place`-th collective and another begins. clearness: how far beyond doubt."""

    clock: int
    place: int
    clearness: float


def find_break(ends: Ends, lines: Lines, *, reference: int, wander_per_s: float) -> Break | None:
    """The clearest break of all clocks' lines; the reference's only where it is clearer than any other's."""
    found = []
    for clock in range(ends.clocks):
        mine = np.flatnonzero(ends.clock == clock)
        if len(mine) < 2 * LEAST_SIDE:
            continue
        values = lines.residual_ns[mine]
        jump = _jump(values)
        if jump is None:
            jump = _bend((ends.end_ns[mine] - ends.end_ns[mine[0]]).astype(np.float64), values, wander_per_s)
        if jump is not None:
            found.append(Break(clock=clock, place=jump[0], clearness=jump[1]))
    # Of two clocks, one that jumps and one that does not look alike: time is the reference's by definition.
    return max(found, key=lambda one: one.clearness / (1.2 if one.clock == reference else 1.0), default=None)


def smallest_seen_ns(lines: Lines) -> float:
    """The smallest step that would have been seen in the least steady clock, near the window's ends."""
    steady = lines.sigma_ns[np.isfinite(lines.sigma_ns)]
    widest = float(steady.max()) if len(steady) else 0.0
    return max(JUMP_SIGMAS * MEDIAN_ERROR * widest * sqrt(2 / LEAST_SIDE), SMALLEST_BREAK_NS)


def _scatter(values: Floats) -> float:
    """Standard deviation by successive differences, which neither a slope nor a break disturbs."""
    differences = np.abs(np.diff(values))
    return float(MAD_TO_SIGMA * np.median(differences) / np.sqrt(2)) if len(differences) else 0.0


def _jump(values: Floats) -> tuple[int, float] | None:
    """The place of the clearest jump and how clear it is, None where none is."""
    sigma = max(_scatter(values), 1.0)
    best, clearest = None, 1.0
    for place in range(LEAST_SIDE, len(values) - LEAST_SIDE + 1):
        side = min(SIDE, place, len(values) - place)
        size = abs(float(np.median(values[place : place + side]) - np.median(values[place - side : place])))
        needed = max(JUMP_SIGMAS * MEDIAN_ERROR * sigma * np.sqrt(2 / side), SMALLEST_BREAK_NS)
        if size / needed > clearest:
            best, clearest = place, size / needed
    return None if best is None else (best, clearest)


def _bend(time: Floats, values: Floats, wander_per_s: float) -> tuple[int, float] | None:
    """The place from where on another line fits, where one line leaves more than noise and wander explain."""
    if len(values) < 4 * LEAST_SIDE:
        return None
    sigma = max(_scatter(values), 1.0)
    span_s = time[-1] / 1e9
    bins = np.array_split(values, 4)
    needed = max(JUMP_SIGMAS * MEDIAN_ERROR * sigma / np.sqrt(len(bins[-1])), SMALLEST_BREAK_NS)
    needed += wander_per_s * 1e9 * span_s**2 / 8
    strayed = max(abs(float(np.median(part))) for part in bins)
    if strayed <= needed:
        return None
    costs = {
        place: _line_cost(time[:place], values[:place]) + _line_cost(time[place:], values[place:])
        for place in range(2 * LEAST_SIDE, len(values) - 2 * LEAST_SIDE + 1)
    }
    return min(costs, key=lambda place: costs[place]), strayed / needed


def _line_cost(time: Floats, values: Floats) -> float:
    slope, start = np.polyfit(time - time[0], values, 1)
    return float(np.abs(values - start - slope * (time - time[0])).sum())


def _group_median(values: Floats, group: Ints, groups: int) -> Floats:
    """The median of each group, for every entry of it; `group` is sorted."""
    order = np.lexsort((values, group))
    ordered = values[order]
    counts = np.bincount(group, minlength=groups)
    starts = np.r_[0, np.cumsum(counts)[:-1]]
    filled = counts > 0
    low = ordered[np.minimum(starts + np.maximum(counts - 1, 0) // 2, len(ordered) - 1)]
    high = ordered[np.minimum(starts + counts // 2, len(ordered) - 1)]
    medians = np.where(filled, (low + high) / 2, 0.0)
    return medians[group]


def _huber_lines(ends: Ends, time: Floats, values: Floats) -> tuple[Floats, Floats, Floats]:
    """(offset at time 0, rate, scatter) of each clock's values, by iteratively reweighted least squares."""
    clock, clocks = ends.clock, ends.clocks
    trust = np.ones(len(values))
    offset, rate = np.zeros(clocks), np.zeros(clocks)
    sigma = np.full(clocks, np.inf)
    for _ in range(8):
        total = np.bincount(clock, trust, clocks)
        used = np.maximum(total, 1e-12)
        mean_time = np.bincount(clock, trust * time, clocks) / used
        mean_value = np.bincount(clock, trust * values, clocks) / used
        apart = time - mean_time[clock]
        under = np.bincount(clock, trust * apart**2, clocks)
        over = np.bincount(clock, trust * apart * (values - mean_value[clock]), clocks)
        sloped = (under > 0) & (np.bincount(clock, minlength=clocks) >= LEAST_SIDE)
        rate = np.where(sloped, over / np.where(under > 0, under, 1.0), 0.0)
        offset = mean_value - rate * mean_time
        left = np.abs(values - offset[clock] - rate[clock] * time)
        order = np.argsort(clock, kind="stable")
        sigma = np.zeros(clocks)
        sigma[np.unique(clock)] = MAD_TO_SIGMA * _medians_by_clock(left[order], clock[order], clocks)
        limit = np.maximum(HUBER_K * sigma[clock], 1.0)
        trust = np.where(left <= limit, 1.0, limit / np.maximum(left, 1e-12))
    return offset, rate, sigma


def _medians_by_clock(values: Floats, clock: Ints, clocks: int) -> Floats:
    medians = _group_median(values, clock, clocks)
    firsts = np.flatnonzero(np.r_[True, clock[1:] != clock[:-1]])
    return medians[firsts]
