"""The best guess of each clock's offset and rate from collectives: that they end at about the same time on all ranks.

Statistics, labelled as an assumption wherever it is used: a fixed order of ends is invisible to it. Decides where a
clock's line breaks (a step, a change of rate), so that bounds are never drawn across a break. Robust lines by Huber's
weights for all clocks at once, against the median end of every collective, in turn.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rankclock.traces.spans import Ints

__all__ = [
    "LEAST_SIDE",
    "Break",
    "Ends",
    "Lines",
    "find_break",
    "fit_lines",
    "group_median",
    "rough_offsets",
    "smallest_seen_ns",
]

Floats = npt.NDArray[np.float64]

HUBER_K = 1.345
MAD_TO_SIGMA = 1.4826
ROUNDS = 30
MAX_RATE = 0.2
"""No two clocks part faster; without a limit stamps that contradict each other drive the lines away."""
SETTLED_NS = 1.0

JUMP_SIGMAS = 8.0
"""A break is believed beyond this many standard errors: the ends' spread has an exponential tail, not a normal one."""

SURE = 1.5
"""At the limit itself half of the steps are seen, at 1.5 times the limit (4 standard errors farther) all."""

MEDIAN_ERROR = 1.2533
"""Standard error of a median over that of a mean; robust fits are no worse."""

WINDOW = 32
"""Collectives looked at on either side of a possible break, at least LEAST_SIDE."""

SIDE = 8
"""Every so many collectives a break is looked for, and behind the LIKELY largest increments; then between these."""

LIKELY = 24
BESIDE = 2

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
    for _ in range(ROUNDS if len(time) else 0):
        before = offset.copy()
        corrected = time - offset[ends.clock] - rate[ends.clock] * time
        residual = time - group_median(corrected, ends.collective, ends.collectives)
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


def find_break(ends: Ends, lines: Lines, *, steady: int | None, wander_per_s: float) -> Break | None:
    """The clearest break of all clocks' lines, but for the clock that is steady by definition."""
    found = []
    for clock in range(ends.clocks):
        if clock == steady:
            continue
        mine = np.flatnonzero(ends.clock == clock)
        if len(mine) < 2 * LEAST_SIDE:
            continue
        values = lines.residual_ns[mine]
        time = (ends.end_ns[mine] - ends.end_ns[mine[0]]).astype(np.float64)
        jump = _jump(time, values)
        if jump is None:
            jump = _bend(time, values, wander_per_s)
        if jump is not None:
            found.append(Break(clock=clock, place=jump[0], clearness=jump[1]))
    return max(found, key=lambda one: one.clearness, default=None)


def smallest_seen_ns(ends: Ends, lines: Lines) -> Floats:
    """Per clock, the smallest step surely seen wherever LEAST_SIDE ends lie beside it; infinite with too few."""
    smallest = np.full(ends.clocks, np.inf)
    for clock in range(ends.clocks):
        mine = np.flatnonzero(ends.clock == clock)
        if len(mine) < 2 * LEAST_SIDE:
            continue
        time, values = (ends.end_ns[mine] - ends.end_ns[mine[0]]).astype(np.float64), lines.residual_ns[mine]
        places = (LEAST_SIDE, len(mine) // 2, len(mine) - LEAST_SIDE)
        error = max(_step_at(time, values, place, max(_scatter(values), 1.0))[1] for place in places)
        smallest[clock] = max(SMALLEST_BREAK_NS, SURE * JUMP_SIGMAS * MEDIAN_ERROR * error)
    return smallest


def _scatter(values: Floats) -> float:
    """Standard deviation by successive differences, which neither a slope nor a break disturbs."""
    differences = np.abs(np.diff(values))
    return float(MAD_TO_SIGMA * np.median(differences) / np.sqrt(2)) if len(differences) else 0.0


def _jump(time: Floats, values: Floats) -> tuple[int, float] | None:
    """The place of the clearest jump and how clear it is, None where none is."""
    if len(values) < 2 * LEAST_SIDE:
        return None
    sigma = max(_scatter(values), 1.0)
    values = _without_outliers(values, sigma)
    increments = np.abs(np.diff(values) - np.median(np.diff(values)))
    likely = set((np.argsort(-increments)[:LIKELY] + 1).tolist()) | set(range(LEAST_SIDE, len(values), SIDE))
    best, clearest = None, 1.0
    for place in sorted(likely):
        if not LEAST_SIDE <= place <= len(values) - LEAST_SIDE:
            continue
        size, error, _ = _step_at(time, values, place, sigma)
        clearness = abs(size) / max(JUMP_SIGMAS * MEDIAN_ERROR * error, SMALLEST_BREAK_NS)
        if clearness > clearest:
            best, clearest = place, clearness
    if best is None:
        return None
    near = range(max(LEAST_SIDE, best - SIDE), min(len(values) - LEAST_SIDE, best + SIDE) + 1)
    return min(near, key=lambda place: _step_at(time, values, place, sigma, around=best)[2]), clearest


def _without_outliers(values: Floats, sigma: float) -> Floats:
    """Values that lie far from their neighbours' median drawn to it: one is no step."""
    edged = np.pad(values, BESIDE, mode="reflect")
    middle = np.median(np.lib.stride_tricks.sliding_window_view(edged, 2 * BESIDE + 1), axis=1)
    return np.clip(values, middle - JUMP_SIGMAS * sigma, middle + JUMP_SIGMAS * sigma)


def _step_at(
    time: Floats, values: Floats, place: int, sigma: float, *, around: int | None = None
) -> tuple[float, float, float]:
    """A line with a step before `place`, fitted to the values near it: size of the step, its error, what is left.

    around: whose neighbourhood to take, where several places are compared.
    """
    middle = place if around is None else around
    first, last = max(0, middle - WINDOW), min(len(values), middle + WINDOW)
    at = (time[first:last] - time[first]) / max(time[last - 1] - time[first], 1.0)
    design = np.column_stack([np.ones(last - first), at, np.arange(first, last) >= place])
    trust = np.ones(last - first)
    for _ in range(3):
        solution = np.linalg.lstsq(design * trust[:, None], values[first:last] * trust, rcond=None)[0]
        left = np.abs(values[first:last] - design @ solution)
        trust = np.sqrt(np.minimum(1.0, HUBER_K * sigma / np.maximum(left, 1e-9)))
    error = sigma * float(np.sqrt(np.linalg.pinv(design.T @ design)[2, 2]))
    return float(solution[2]), error, float(left.sum())


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


def group_median(values: Floats, group: Ints, groups: int) -> Floats:
    """The median of each group, for every entry of it; `group` is sorted."""
    if len(values) == 0:
        return values
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
        rate = np.clip(np.where(sloped, over / np.where(under > 0, under, 1.0), 0.0), -MAX_RATE, MAX_RATE)
        offset = mean_value - rate * mean_time
        left = np.abs(values - offset[clock] - rate[clock] * time)
        order = np.argsort(clock, kind="stable")
        sigma = np.zeros(clocks)
        sigma[np.unique(clock)] = MAD_TO_SIGMA * _medians_by_clock(left[order], clock[order], clocks)
        limit = np.maximum(HUBER_K * sigma[clock], 1.0)
        trust = np.where(left <= limit, 1.0, limit / np.maximum(left, 1e-12))
    return offset, rate, sigma


def _medians_by_clock(values: Floats, clock: Ints, clocks: int) -> Floats:
    medians = group_median(values, clock, clocks)
    firsts = np.flatnonzero(np.r_[True, clock[1:] != clock[:-1]])
    return medians[firsts]
