"""Four stamps give a hard interval, or a reason."""

from __future__ import annotations

import pytest

from rankclock.clockmath.exchange import Exchange, OffsetInterval, Rejected, Stamp, lower_bound, upper_bound


def exchange(departed: int, reached: int, answered: int, returned: int) -> Exchange:
    return Exchange(
        departed=Stamp.exactly(departed),
        reached=Stamp.exactly(reached),
        answered=Stamp.exactly(answered),
        returned=Stamp.exactly(returned),
    )


def test_the_interval_is_as_wide_as_the_round_trip_and_centred_for_a_symmetric_path() -> None:
    # The local clock is 1000 ahead; 30 each way, 100 at the peer.
    found = exchange(5000, 4030, 4130, 5160).interval(rate_limit_ppb=0)
    assert isinstance(found, OffsetInterval)
    assert (found.lo_ns, found.hi_ns, found.estimate_ns, found.rtt_ns, found.doubt_ns) == (970, 1030, 1000, 60, 0)


def test_all_asymmetry_moves_the_estimate_by_half_of_it_and_leaves_the_truth_at_an_end() -> None:
    found = exchange(5000, 4000, 4100, 5160).interval(rate_limit_ppb=0)
    assert isinstance(found, OffsetInterval)
    assert (found.lo_ns, found.hi_ns, found.estimate_ns) == (1000, 1060, 1030)


def test_a_departure_counts_at_its_earliest_and_an_arrival_at_its_latest() -> None:
    departed, reached = Stamp.between(100, 110), Stamp.between(90, 97)
    assert lower_bound(departed, reached).offset_ns == 100 - 97
    assert lower_bound(departed, reached).at_ns == 100
    answered, returned = Stamp.between(200, 205), Stamp.between(210, 230)
    assert upper_bound(answered, returned).offset_ns == 230 - 200
    assert upper_bound(answered, returned).at_ns == 230


def test_the_drift_between_the_two_half_bounds_widens_the_interval_of_a_slow_answer() -> None:
    slow = exchange(0, 10, 1_000_000_010, 1_000_000_020)
    still, drifting = slow.interval(rate_limit_ppb=0), slow.interval(rate_limit_ppb=100_000)
    assert isinstance(still, OffsetInterval)
    assert isinstance(drifting, OffsetInterval)
    assert (drifting.lo_ns, drifting.hi_ns) == (still.lo_ns - 100_001, still.hi_ns + 100_001)


@pytest.mark.parametrize(
    ("stamps", "why"),
    [
        ((5000, 4030, 4130, 4999), "returned before it departed"),
        ((5000, 4030, 4029, 5160), "answered before it reached"),
        ((5000, 4030, 4130, 5090), "less than nothing on the way"),
    ],
)
def test_what_contradicts_causality_is_rejected_with_the_reason(stamps: tuple[int, int, int, int], why: str) -> None:
    found = exchange(*stamps).interval(rate_limit_ppb=0)
    assert isinstance(found, Rejected)
    assert why in found.why


def test_a_stamp_refuses_an_estimate_outside_its_interval() -> None:
    with pytest.raises(ValueError, match="between its earliest and its latest"):
        Stamp(earliest_ns=5, latest_ns=9, estimate_ns=10)
