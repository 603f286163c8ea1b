"""CLOCK_REALTIME followed through RAW: steps are seen, stamps placed or refused."""

from __future__ import annotations

import pytest

from rankclock.clockmath.exchange import Stamp
from rankclock.clockmath.realtime import Reading, RealtimeTrack, Untranslated

MS = 1_000_000


def reading(raw_ns: int, lead_ns: int, width_ns: int = 200) -> Reading:
    half = width_ns // 2
    return Reading(raw_before_ns=raw_ns - half, real_ns=raw_ns + lead_ns, raw_after_ns=raw_ns + half)


def steady(lead_ns: int = 1_000_000, every_ns: int = 100 * MS, count: int = 20) -> RealtimeTrack:
    return RealtimeTrack(reading(i * every_ns, lead_ns) for i in range(1, count + 1))


def test_a_steady_lead_is_known_between_readings_to_about_a_readings_width() -> None:
    lead = steady().lead(Stamp.exactly(1050 * MS))
    assert lead is not None
    assert lead.lo_ns <= 1_000_000 <= lead.hi_ns
    assert lead.hi_ns - lead.lo_ns < 1_000
    assert abs(lead.estimate_ns - 1_000_000) <= 1


def test_nothing_is_said_outside_the_readings() -> None:
    assert steady().lead(Stamp.exactly(50 * MS)) is None
    assert steady().lead(Stamp.exactly(2001 * MS)) is None


def test_a_stamp_is_placed_within_a_readings_width() -> None:
    placed = steady().raw_of(1050 * MS + 1_000_000, window=Stamp.between(1001 * MS, 1099 * MS))
    assert isinstance(placed, Stamp)
    assert placed.earliest_ns <= 1050 * MS <= placed.latest_ns
    assert placed.width_ns < 1_000


def test_a_stamp_that_the_clock_cannot_have_read_in_its_window_is_refused() -> None:
    placed = steady().raw_of(1150 * MS + 1_000_000, window=Stamp.between(1001 * MS, 1099 * MS))
    assert isinstance(placed, Untranslated)
    assert "another clock" in placed.why


def test_a_stamp_needs_readings_on_both_sides() -> None:
    placed = steady().raw_of(2050 * MS, window=Stamp.between(2001 * MS, 2099 * MS))
    assert isinstance(placed, Untranslated)
    assert "none after it" in placed.why


@pytest.mark.parametrize("by_ns", [-3_000_000_000, 20 * MS, -20 * MS])
def test_a_step_that_no_slew_explains_is_seen_with_its_size_and_refuses_stamps_near_it(by_ns: int) -> None:
    track = steady()
    step = track.add(reading(2100 * MS, 1_000_000 + by_ns))
    assert step is not None
    assert step.lo_ns <= by_ns <= step.hi_ns
    assert step.hi_ns - step.lo_ns < 1_000
    assert track.stepped_within(2000 * MS, 2100 * MS)
    placed = track.raw_of(2050 * MS + 1_000_000, window=Stamp.between(2001 * MS, 2099 * MS))
    assert isinstance(placed, Untranslated)
    assert "stepped" in placed.why


def test_inside_a_gap_with_a_step_the_lead_is_either_side_of_it() -> None:
    track = steady()
    track.add(reading(2100 * MS, 1_000_000 - 3_000_000_000))
    for i in range(22, 30):
        track.add(reading(i * 100 * MS, 1_000_000 - 3_000_000_000))
    lead = track.lead(Stamp.exactly(2050 * MS))
    assert lead is not None
    assert lead.lo_ns <= 1_000_000 - 3_000_000_000
    assert lead.hi_ns >= 1_000_000
    after = track.lead(Stamp.exactly(2250 * MS))
    assert after is not None
    assert after.lo_ns <= 1_000_000 - 3_000_000_000 <= after.hi_ns
    assert after.hi_ns - after.lo_ns < 2_000


def test_the_fastest_slew_of_the_kernel_is_no_step() -> None:
    track = steady()
    assert track.add(reading(2100 * MS, 1_000_000 + 8_300_000)) is None


def test_readings_that_were_overtaken_are_not_taken() -> None:
    track = steady()
    before = track.readings
    assert track.add(reading(500 * MS, 7)) is None
    assert track.readings == before


def test_memory_is_bounded() -> None:
    track = RealtimeTrack((reading(i * MS, 5) for i in range(1, 1000)), keep=50)
    assert len(track.readings) <= 100
    assert track.newest == reading(999 * MS, 5)
