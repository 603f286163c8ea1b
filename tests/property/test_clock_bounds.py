"""Bounds contain the truth: the track of REALTIME over RAW and the hull over a window, against simulated clocks."""

from __future__ import annotations

import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankclock.clockmath.exchange import HalfBound, Stamp
from rankclock.clockmath.hull import HullBound, Infeasible, bound_offset
from rankclock.clockmath.realtime import Reading, RealtimeTrack
from rankclock.errors import DecodeError
from rankclock.simulate.clocks import Oscillator, VirtualRealtime

S = 1_000_000_000
SECONDS = 6
seeds = st.integers(0, 2**32)


def disciplined(chance: random.Random) -> tuple[Oscillator, VirtualRealtime]:
    """A wandering crystal and a REALTIME that is stepped and slewed every 0.2 to 0.7 s, up to the kernel's limits."""
    crystal = Oscillator.wandering(
        chance, starts_at_ns=chance.randrange(10**12, 10**15), rate_ppb=chance.uniform(-1e5, 1e5), for_s=SECONDS + 1
    )
    realtime = VirtualRealtime(crystal, real_ns=1_700_000_000 * S, rate_ppb=chance.randrange(-100_000, 100_000))
    at_ns = 0
    while at_ns < SECONDS * S:
        at_ns += chance.randrange(S // 5, 7 * S // 10)
        sign = chance.choice((-1, 1))
        match chance.randrange(3):
            case 0:
                realtime.change(at_ns, step_ns=sign * int(10 ** chance.uniform(1, 9.5)))
            case 1:
                realtime.change(at_ns, rate_ppb=sign * int(10 ** chance.uniform(3, 7.9)))
            case _:
                realtime.change(at_ns, rate_ppb=chance.randrange(-100_000, 100_000))
    return crystal, realtime


def read_at_random(
    chance: random.Random, crystal: Oscillator, realtime: VirtualRealtime
) -> tuple[RealtimeTrack, list[int]]:
    """Readings about every 0.1 s, some in bursts, as a prober takes them."""
    times, at_ns = [], 1_000
    while at_ns < SECONDS * S:
        for _ in range(chance.choice((1, 1, 1, 8))):
            times.append(at_ns)
            at_ns += chance.randrange(3_000, 300_000)
        at_ns += chance.randrange(60_000_000, 110_000_000)
    track = RealtimeTrack(keep=1_000)
    for at_ns in times:
        one, two = chance.randrange(50, 250), chance.randrange(50, 250)
        track.add(
            Reading(
                raw_before_ns=crystal.raw_at(at_ns),
                real_ns=realtime.real_at(at_ns + one),
                raw_after_ns=crystal.raw_at(at_ns + one + two),
            )
        )
    return track, times


@settings(max_examples=40, deadline=None)
@given(seeds)
def test_the_lead_and_the_place_of_a_stamp_hold_the_truth_through_steps_and_slews(seed: int) -> None:
    chance = random.Random(seed)
    crystal, realtime = disciplined(chance)
    track, times = read_at_random(chance, crystal, realtime)
    placed = 0
    for _ in range(60):
        index = chance.randrange(1, len(times))
        true_ns = chance.randrange(times[index - 1], times[index])
        raw_ns, real_ns = crystal.raw_at(true_ns), realtime.real_at(true_ns)
        lead = track.lead(Stamp.between(raw_ns - chance.randrange(3_000), raw_ns + chance.randrange(3_000)))
        if lead is not None:
            assert lead.lo_ns <= real_ns - raw_ns <= lead.hi_ns
            assert lead.lo_ns <= lead.estimate_ns <= lead.hi_ns
        window = Stamp.between(crystal.raw_at(times[index - 1]), crystal.raw_at(times[index]))
        stamp = track.raw_of(real_ns, window=window)
        if isinstance(stamp, Stamp):
            placed += 1
            assert stamp.earliest_ns <= raw_ns <= stamp.latest_ns
    assert placed > 30


@settings(max_examples=25, deadline=None)
@given(seeds)
def test_without_steps_and_slews_a_stamp_is_placed_within_a_microsecond(seed: int) -> None:
    chance = random.Random(seed)
    crystal = Oscillator(starts_at_ns=10**14, rate_ppb=chance.uniform(-1e5, 1e5))
    realtime = VirtualRealtime(crystal, real_ns=1_700_000_000 * S, rate_ppb=chance.randrange(-60_000, 60_000))
    track, times = read_at_random(chance, crystal, realtime)
    for _ in range(30):
        index = chance.randrange(12, len(times))
        true_ns = max(times[index] - chance.randrange(1, 50_000), times[index - 2] + 500)
        raw_ns = crystal.raw_at(true_ns)
        window = Stamp.between(crystal.raw_at(times[index - 2]), crystal.raw_at(times[index]))
        stamp = track.raw_of(realtime.real_at(true_ns), window=window)
        assert isinstance(stamp, Stamp)
        assert stamp.earliest_ns <= raw_ns <= stamp.latest_ns
        assert stamp.width_ns < 1_000


def half_bounds(
    chance: random.Random, local: Oscillator, peer: Oscillator, *, seconds: int, floor_ns: int, queue_ns: int
) -> tuple[list[HalfBound], list[HalfBound]]:
    """One of each a second: what exchanges with a fixed delay and a random queue would give."""
    lower, upper = [], []
    for second in range(seconds):
        true_ns = second * S + chance.randrange(S)
        there, back = (floor_ns + int(chance.random() ** 2 * queue_ns) for _ in range(2))
        departed = local.raw_at(true_ns)
        lower.append(HalfBound(at_ns=departed, offset_ns=departed - peer.raw_at(true_ns + there)))
        returned = local.raw_at(true_ns + 20_000 + back)
        upper.append(HalfBound(at_ns=returned, offset_ns=returned - peer.raw_at(true_ns + 20_000)))
    return lower, upper


def crystals(chance: random.Random, seconds: int) -> tuple[Oscillator, Oscillator]:
    made = [
        Oscillator.wandering(
            chance, starts_at_ns=chance.randrange(10**12, 10**15), rate_ppb=chance.uniform(-1e5, 1e5), for_s=seconds + 2
        )
        for _ in range(2)
    ]
    return made[0], made[1]


@settings(max_examples=60, deadline=None)
@given(seeds)
def test_the_hull_over_a_minute_of_wandering_crystals_holds_the_truth_wherever_it_is_asked(seed: int) -> None:
    chance = random.Random(seed)
    local, peer = crystals(chance, 70)
    lower, upper = half_bounds(
        chance, local, peer, seconds=60, floor_ns=420, queue_ns=chance.choice((100, 5_000, 200_000))
    )
    for true_ns in (60 * S, chance.randrange(60 * S), 65 * S):
        at_ns = local.raw_at(true_ns)
        bound = bound_offset(lower, upper, at_ns=at_ns)
        assert isinstance(bound, HullBound)
        lo, hi = bound.offset_at(at_ns)
        assert lo <= at_ns - peer.raw_at(true_ns) <= hi
        later_ns = local.raw_at(true_ns + 3 * S)
        lo, hi = bound.offset_at(later_ns)
        assert lo <= later_ns - peer.raw_at(true_ns + 3 * S) <= hi


def test_without_the_widening_for_wander_the_hull_fails_in_most_minutes() -> None:
    failed = 0
    for seed in range(60):
        chance = random.Random(seed)
        local, peer = crystals(chance, 70)
        lower, upper = half_bounds(chance, local, peer, seconds=60, floor_ns=420, queue_ns=50)
        at_ns = local.raw_at(60 * S)
        bound = bound_offset(lower, upper, at_ns=at_ns, wander_ppb_per_s=0)
        if isinstance(bound, Infeasible):
            failed += 1
        else:
            lo, hi = bound.offset_at(at_ns)
            failed += not lo <= at_ns - peer.raw_at(60 * S) <= hi
    assert failed > 30


def test_the_hull_is_narrower_than_its_best_exchange_aged_and_knows_the_rate_to_a_ppm() -> None:
    widths = []
    for seed in range(40):
        chance = random.Random(seed)
        local, peer = crystals(chance, 40)
        lower, upper = half_bounds(chance, local, peer, seconds=30, floor_ns=5_000, queue_ns=20_000)
        at_ns = local.raw_at(30 * S)
        bound = bound_offset(lower, upper, at_ns=at_ns)
        assert isinstance(bound, HullBound)
        lo, hi = bound.offset_at(at_ns)
        # Without the hull one would have the best exchange, aged by the 500 ppm that two crystals may part by.
        assert hi - lo < min(
            above.offset_ns - below.offset_ns + (at_ns - below.at_ns + at_ns - above.at_ns) * 500_000 // S
            for below, above in zip(lower, upper, strict=True)
        )
        widths.append(hi - lo)
        slowest, fastest = bound.rate_ppb()
        assert fastest - slowest < 5_000
    # The round trip alone is 10 µs, the queues add up to 40 µs.
    assert statistics.median(widths) < 17_000


def test_a_jump_of_the_rate_leaves_no_line() -> None:
    local, peer = Oscillator(starts_at_ns=0, rate_ppb=0), Oscillator(starts_at_ns=5 * S, rate_ppb=0)
    peer.set_rate(20 * S, 60_000)
    lower, upper = half_bounds(random.Random(1), local, peer, seconds=30, floor_ns=500, queue_ns=100)
    found = bound_offset(lower, upper, at_ns=30 * S)
    assert isinstance(found, Infeasible)
    assert "rate jumped" in found.why


def test_one_way_only_bounds_nothing_and_says_which_way_is_missing() -> None:
    one = [HalfBound(at_ns=0, offset_ns=0)]
    nothing_back = bound_offset(one, [], at_ns=0)
    nothing_there = bound_offset([], one, at_ns=0)
    assert isinstance(nothing_back, Infeasible)
    assert isinstance(nothing_there, Infeasible)
    assert "came back" in nothing_back.why
    assert "reached" in nothing_there.why


@given(
    st.integers(-(2**60), 2**60),
    st.integers(-(2**60), 2**60),
    st.lists(st.tuples(st.floats(-1e9, 1e9), st.floats(-5e5, 5e5)), min_size=1, max_size=8),
)
def test_a_bound_survives_json(at_ns: int, base_ns: int, corners: list[tuple[float, float]]) -> None:
    bound = HullBound(at_ns=at_ns, base_ns=base_ns, corners=tuple(corners))
    assert HullBound.from_json(bound.to_json()) == bound


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"at_ns": 1, "base_ns": 1, "corners": [], "wander_ppb_per_s": 30},
        {"at_ns": 1.5, "base_ns": 1, "corners": [[0, 0]], "wander_ppb_per_s": 30},
        {"at_ns": 1, "base_ns": 1, "corners": [[0, float("nan")]], "wander_ppb_per_s": 30},
        {"at_ns": 1, "base_ns": 1, "corners": [[0]], "wander_ppb_per_s": 30},
        {"at_ns": 1, "base_ns": True, "corners": [[0, 0]], "wander_ppb_per_s": 30},
    ],
)
def test_what_is_no_bound_raises_decode_error(wrong: dict[str, object]) -> None:
    with pytest.raises(DecodeError):
        HullBound.from_json(wrong)
