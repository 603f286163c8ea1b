"""Steadiness and changes of simulated clocks against what was put in."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankclock.clockmath.changes import ChangeKind, find_changes
from rankclock.clockmath.line import fit_line
from rankclock.clockmath.stability import allan_deviation, intervals, mtie_ns, time_deviation_ns

S = 1_000_000_000
OFFSETS = st.lists(st.integers(-(10**18), 10**18), min_size=3, max_size=60)


@given(OFFSETS, st.data())
def test_mtie_is_the_greatest_range_within_any_stretch(offsets: list[int], data: st.DataObject) -> None:
    factor = data.draw(st.integers(1, len(offsets) - 1))
    expected = max(
        max(offsets[i : i + factor + 1]) - min(offsets[i : i + factor + 1]) for i in range(len(offsets) - factor)
    )
    assert mtie_ns(offsets, factor=factor) == expected


@given(st.integers(-(10**18), 10**18), st.integers(-(10**6), 10**6), st.integers(0, 10**5), st.integers(1, 20))
def test_a_constant_rate_is_steady_and_a_drift_shows_as_the_standard_says(
    start_ns: int, rate: int, drift: int, factor: int
) -> None:
    # Per spacing of one second: rate ns/s, drift 2 * drift ns/s^2.
    offsets = [start_ns + rate * i + drift * i * i for i in range(60)]
    expected = 2 * drift * factor / math.sqrt(2) / 1e9
    assert allan_deviation(offsets, spacing_s=1.0, factor=factor) == pytest.approx(expected, rel=1e-9)


def test_white_frequency_noise_averages_as_the_square_root_of_time() -> None:
    chance = random.Random(5)
    offsets = [0]
    for _ in range(20_000):
        offsets.append(offsets[-1] + round(chance.gauss(0, 1_000)))
    for factor in (1, 4, 16, 64):
        assert allan_deviation(offsets, spacing_s=1.0, factor=factor) == pytest.approx(1e-6 / factor**0.5, rel=0.15)


def test_white_noise_of_the_stamps_averages_out_of_the_time_deviation() -> None:
    chance = random.Random(6)
    offsets = [round(chance.gauss(0, 10_000)) for _ in range(20_000)]
    for factor in (1, 4, 16):
        assert time_deviation_ns(offsets, factor=factor) == pytest.approx(10_000 / factor**0.5, rel=0.15)


def test_a_series_that_is_too_short_is_refused() -> None:
    for call in (
        lambda: allan_deviation([1, 2], spacing_s=1.0, factor=1),
        lambda: time_deviation_ns([1, 2, 3], factor=2),
        lambda: mtie_ns([1, 2], factor=2),
    ):
        with pytest.raises(ValueError, match="too few"):
            call()
    assert intervals(100) == [1, 2, 4, 8, 16, 32]


def series(
    seed: int, noise_ns: float, *, step: tuple[int, int] = (0, 0), turn: tuple[int, int] = (0, 0), outliers: int = 0
) -> tuple[list[int], list[int]]:
    """A clock 40 ppm fast, asked once a second for two minutes; (index, by) of a step in ns and a turn in ppb."""
    chance = random.Random(seed)
    times, offsets = [], []
    for i in range(120):
        at_ns = i * S + chance.randrange(S // 10)
        since_turn_s = max(at_ns - turn[0] * S, 0) / S
        truth = 40_000 * at_ns / S + turn[1] * since_turn_s + (step[1] if i >= step[0] else 0)
        times.append(10**15 + at_ns)
        offsets.append(-(10**18) + round(truth + chance.gauss(0, noise_ns)))
    for _ in range(outliers):
        offsets[chance.randrange(len(offsets))] += chance.choice([-1, 1]) * round(40 * noise_ns)
    return times, offsets


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.floats(20, 5_000), st.integers(0, 3))
def test_a_clock_that_did_not_change_is_not_said_to(seed: int, noise_ns: float, outliers: int) -> None:
    assert find_changes(*series(seed, noise_ns, outliers=outliers)) == []


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.floats(20, 2_000), st.integers(20, 100), st.sampled_from([-1, 1]), st.floats(12, 1e6))
def test_a_step_is_found_where_it_was_and_as_large(
    seed: int, noise_ns: float, index: int, side: int, sigmas: float
) -> None:
    by_ns = round(side * sigmas * noise_ns)
    (found,) = find_changes(*series(seed, noise_ns, step=(index, by_ns)))
    assert found.kind is ChangeKind.STEP
    assert abs((found.at_ns - 10**15) / S - index) < 2
    assert abs(found.by - by_ns) < 3 * noise_ns


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(30, 90), st.sampled_from([-1, 1]), st.integers(500, 500_000))
def test_a_change_of_rate_is_found_near_where_it_was_and_as_large(seed: int, at_s: int, side: int, by: int) -> None:
    found = find_changes(*series(seed, 100.0, turn=(at_s, side * by)))
    turns = [one for one in found if one.kind is ChangeKind.RATE]
    assert turns
    strongest = max(turns, key=lambda one: one.sigmas)
    assert abs((strongest.at_ns - 10**15) / S - at_s) < 12
    assert strongest.by == pytest.approx(side * by, rel=0.25)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.floats(20, 1_000), st.integers(0, 8))
def test_the_robust_line_finds_rate_and_offset_in_spite_of_outliers(seed: int, noise_ns: float, outliers: int) -> None:
    times, offsets = series(seed, noise_ns, outliers=outliers)
    points = list(zip(times, offsets, strict=True))
    line = fit_line(points, at_ns=times[-1], rate_ppb=0.0, noise_ns=noise_ns, wander_ppb_per_s=0.0)
    assert line is not None
    gained = 40_000 * (times[-1] - 10**15) / S
    assert abs(line.offset_ns + 10**18 - gained) < 1.5 * noise_ns
    assert abs(line.rate_ppb - 40_000) < 0.02 * noise_ns
