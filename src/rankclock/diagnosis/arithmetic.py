"""Numbers that give a fault away: powers of two, TAI minus UTC, Unix time as an offset, ramps, pinned frequencies.

Each function answers one question about numbers and knows nothing of daemons.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from rankclock.timebase import NS_PER_S, TAI_MINUS_UTC_2017_S

__all__ = ["Ramp", "Wrap", "epoch_date", "fit_ramp", "is_pinned", "nearest_wrap", "tai_steps"]

PLAUSIBLE_PPM = 500
"""The kernel's PLL and ntpd allow no more (MAXFREQ); quartz oscillators are within 100 ppm, bad ones within 200."""

_FIRST_DATE_S = 946_684_800
_LAST_DATE_S = 2_840_140_800
"""2000-01-01 and 2060-01-01: an offset as large as one of these dates is a date, not a drift."""
YEAR_S = 31_556_952


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrap:
    """An offset that is a counter's roll-over: times * 2^power + residual, in ns. power 0: a whole second lost."""

    power: int
    times: int
    residual_ns: int


def nearest_wrap(offset_ns: int, tolerance_ns: int) -> Wrap | None:
    """The roll-over of a counter of 30 to 48 bits (or some of 32 bits) that an offset is within the tolerance. None:
    none.

    2^30 ns is 1.07 s, 2^32 ns 4.29 s, 2^33 ns 8.59 s, 2^40 ns 18 min; below, drifts and steps of that size are
    ordinary.
    """
    size = abs(offset_ns)
    if size < 1 << 29:
        return None
    best: Wrap | None = None
    power = size.bit_length() - 1
    options = [(exponent, 1) for exponent in (power, power + 1) if 30 <= exponent <= 48]
    times = round(size / (1 << 32))
    if 2 <= times <= 16:
        options.append((32, times))
    for exponent, factor in options:
        residual = size - factor * (1 << exponent)
        if abs(residual) <= tolerance_ns and (best is None or abs(residual) < abs(best.residual_ns)):
            best = Wrap(power=exponent, times=factor, residual_ns=residual)
    return best


def tai_steps(offset_s: float, tolerance_s: float) -> int | None:
    """How many times TAI - UTC (37 s) an offset is: 1, -1, 2, -2; None where it is none of them."""
    for times in (1, -1, 2, -2):
        if abs(offset_s - times * TAI_MINUS_UTC_2017_S) <= tolerance_s:
            return times
    return None


def epoch_date(offset_ns: int) -> datetime | None:
    """The date that an offset is when read as Unix time: one of the two clocks stands at 1970. None: it is no date."""
    seconds = abs(offset_ns) // NS_PER_S
    if not _FIRST_DATE_S <= seconds < _LAST_DATE_S:
        return None
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ramp:
    """A straight line through (seconds, seconds).

    Slope in ppm with its standard error, and how much of the change it explains.
    """

    slope_ppm: float
    error_ppm: float
    explained: float
    span_s: float
    change_s: float


def fit_ramp(points: Sequence[tuple[float, float]]) -> Ramp | None:
    """Least squares through (time in s, offset in s). None for fewer than three points or no time between them."""
    count = len(points)
    if count < 3:
        return None
    t0, y0 = points[0]
    ts = [t - t0 for t, _ in points]
    ys = [y - y0 for _, y in points]
    mean_t, mean_y = sum(ts) / count, sum(ys) / count
    var_t = sum((t - mean_t) ** 2 for t in ts)
    if var_t <= 0:
        return None
    cov = sum((t - mean_t) * (y - mean_y) for t, y in zip(ts, ys, strict=True))
    slope = cov / var_t
    left = sum((y - mean_y - slope * (t - mean_t)) ** 2 for t, y in zip(ts, ys, strict=True))
    whole = sum((y - mean_y) ** 2 for y in ys)
    return Ramp(
        slope_ppm=slope * 1e6,
        error_ppm=(left / max(1, count - 2) / var_t) ** 0.5 * 1e6,
        explained=1 - left / whole if whole > 0 else 1.0,
        span_s=max(ts) - min(ts),
        change_s=slope * (max(ts) - min(ts)),
    )


def is_pinned(freqs_ppb: Sequence[int]) -> int | None:
    """The limit at which a frequency stands still.

    The same large value at least three times at the end. None: it moves.
    """
    if len(freqs_ppb) < 3:
        return None
    last = freqs_ppb[-1]
    same = 0
    for freq in reversed(freqs_ppb):
        if freq != last:
            break
        same += 1
    return last if same >= 3 and abs(last) >= 100_000 else None
