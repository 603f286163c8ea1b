"""How steady a clock is, from a series of its offsets: Allan deviation, time deviation, MTIE. Batch code: numpy.

Figures for reports; none of them carries a bound. A series is evenly spaced: `offsets_ns[i]` at i * spacing_s. Refuses
(ValueError) an interval for which the series is too short.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["allan_deviation", "intervals", "mtie_ns", "time_deviation_ns"]

NS_PER_S = 1e9

Series = Sequence[int] | npt.NDArray[np.int64] | npt.NDArray[np.float64]


def intervals(count: int, *, per_octave: int = 1) -> list[int]:
    """Averaging factors for a series of `count` offsets, in octaves: 1, 2, 4, ... up to a third of it."""
    most = max((count - 1) // 3, 1)
    factors = {round(2 ** (step / per_octave)) for step in range(64 * per_octave) if 2 ** (step / per_octave) <= most}
    return sorted(factors)


def allan_deviation(offsets_ns: Series, *, spacing_s: float, factor: int) -> float:
    """Overlapping Allan deviation at tau = factor * spacing_s, as a fraction (1e-9 is 1 ppb). IEEE 1139-2008.

    sqrt(mean((x[i + 2m] - 2 x[i + m] + x[i])^2) / 2) / tau. A constant frequency offset gives 0, a linear drift of D
    per second gives D * tau / sqrt(2).
    """
    second = _second_differences(offsets_ns, factor)
    tau_ns = factor * spacing_s * NS_PER_S
    return float(np.sqrt(np.mean(second * second) / 2) / tau_ns)


def time_deviation_ns(offsets_ns: Series, *, factor: int) -> float:
    """TDEV at tau = factor spacings, in ns: the modified Allan deviation times tau / sqrt(3). IEEE 1139-2008.

    White noise of the offsets averages out in it as 1 / sqrt(factor).
    """
    second = _second_differences(offsets_ns, factor)
    if len(second) < factor:
        raise ValueError(f"{len(offsets_ns)} offsets are too few for an averaging factor of {factor}")
    sums = np.convolve(second, np.ones(factor), mode="valid") / factor
    return float(np.sqrt(np.mean(sums * sums) / 6))


def mtie_ns(offsets_ns: Series, *, factor: int) -> int:
    """Maximum time interval error: the greatest range of the offsets within any stretch of `factor` spacings, in ns.

    ITU-T G.810. Extremes of growing windows by doubling: n log(factor) steps.
    """
    highest = lowest = np.asarray(offsets_ns)
    window = factor + 1
    if not 1 <= window <= len(highest):
        raise ValueError(f"{len(highest)} offsets are too few for an interval of {factor} spacings")
    size = 1
    while size < window:
        shift = min(size, window - size)
        highest = np.maximum(highest[:-shift], highest[shift:])
        lowest = np.minimum(lowest[:-shift], lowest[shift:])
        size += shift
    return int(np.max(highest - lowest))


def _second_differences(offsets_ns: Series, factor: int) -> npt.NDArray[np.float64]:
    x = np.asarray(offsets_ns)
    if factor < 1 or len(x) < 2 * factor + 1:
        raise ValueError(f"{len(x)} offsets are too few for an averaging factor of {factor}")
    # Whole numbers cancel first: an offset may have 19 digits.
    return np.asarray((x[2 * factor :] - x[factor:-factor]) - (x[factor:-factor] - x[: -2 * factor]), dtype=np.float64)
