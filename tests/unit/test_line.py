"""The robust line: exact on exact data, unmoved by outliers, takes a rate it cannot know."""

from __future__ import annotations

import random

import pytest

from rankclock.clockmath.line import fit_line

S = 1_000_000_000


def test_no_points_no_line() -> None:
    assert fit_line([], at_ns=0, rate_ppb=0, noise_ns=100, wander_ppb_per_s=5) is None


def test_points_too_close_together_give_the_newest_carried_on_at_the_rate_that_is_known_otherwise() -> None:
    points = [(0, 100), (1_000, 120), (2_000, 90)]
    line = fit_line(points, at_ns=2_000, rate_ppb=50_000, noise_ns=100, wander_ppb_per_s=5)
    assert line is not None
    assert (line.offset_at(2_000 + S), line.rate_ppb) == (90 + 50_000, 50_000)


def test_a_straight_line_is_found_exactly_even_far_from_zero() -> None:
    points = [(10**15 + i * S, -(10**15) + 37_000 * i) for i in range(30)]
    line = fit_line(points, at_ns=10**15 + 29 * S, rate_ppb=0, noise_ns=100, wander_ppb_per_s=5)
    assert line is not None
    assert abs(line.offset_at(10**15 + 29 * S) - (-(10**15) + 37_000 * 29)) <= 1
    assert line.rate_ppb == pytest.approx(37_000, abs=0.01)


def test_a_tenth_of_wild_points_moves_it_by_less_than_the_noise() -> None:
    chance = random.Random(7)
    points = [(i * S, 500 * i + round(chance.gauss(0, 50))) for i in range(40)]
    for index in (3, 11, 26, 38):
        points[index] = (index * S, 500 * index + 100_000)
    line = fit_line(points, at_ns=39 * S, rate_ppb=0, noise_ns=300, wander_ppb_per_s=5)
    assert line is not None
    assert abs(line.offset_at(39 * S) - 500 * 39) < 100


def test_old_points_yield_to_new_ones_where_the_rate_wanders() -> None:
    bent = [(i * S, 0) for i in range(30)] + [((30 + i) * S, 1_000 * i) for i in range(30)]
    line = fit_line(bent, at_ns=59 * S, rate_ppb=0, noise_ns=100, wander_ppb_per_s=30)
    assert line is not None
    assert abs(line.offset_at(59 * S) - 29_000) < 200
