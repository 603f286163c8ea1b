"""The judgement on timesyncd's last exchange, state by state. The exchange of the stepped clock is a real one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rankclock.node.judge_timesyncd import judge_timesyncd, judge_without_bus
from rankclock.node.timesyncd import TimesyncdReading, TimesyncExchange
from rankclock.timebase import NS_PER_MS, NS_PER_S, NS_PER_US, SyncState

CAME_NS = 1_796_137_862 * NS_PER_S
EXCHANGE = TimesyncExchange(
    leap=0,
    stratum=2,
    root_delay_ns=200 * NS_PER_US,
    root_dispersion_ns=300 * NS_PER_US,
    sent_ns=CAME_NS - 1000 * NS_PER_US,
    received_ns=CAME_NS + 2500 * NS_PER_US,
    replied_ns=CAME_NS + 2500 * NS_PER_US,
    came_ns=CAME_NS,
    spike=False,
    packets=3,
)
READING = TimesyncdReading(
    server="10.0.0.1", poll_ns=64 * NS_PER_S, exchange=EXCHANGE, at_raw_ns=77, at_real_ns=CAME_NS + 10 * NS_PER_S
)
STEPPED = replace(  # ntpd's µs: sent, received, replied, came, of a clock 5 s ahead that timesyncd then set back
    EXCHANGE,
    sent_ns=1796137862852838000,
    received_ns=1796137857852903000,
    replied_ns=1796137857852991000,
    came_ns=1796137862853014000,
)


def test_the_bound_is_the_offset_half_the_trip_the_servers_own_and_the_drift_since() -> None:
    claim = judge_timesyncd(READING)
    assert (claim.state, claim.source) == (SyncState.SYNCHRONISED, "10.0.0.1")
    assert claim.offset.estimate_ns == -3 * NS_PER_MS, "the clock is behind: local minus server"
    drift_ns = 10 * 200 * NS_PER_US
    assert claim.offset.hi_ns == 3 * NS_PER_MS + 500 * NS_PER_US + 100 * NS_PER_US + 300 * NS_PER_US + drift_ns + 2000
    assert claim.offset.lo_ns == -claim.offset.hi_ns
    assert any("no bound" in reason for reason in claim.reasons)


def test_the_age_of_an_exchange_before_a_step_back_is_counted_on_the_clock_before_it() -> None:
    """4 s after the step the clock shows less than when the answer came: the age is not negative and not 0."""
    reading = replace(READING, exchange=STEPPED, at_real_ns=STEPPED.replied_ns + 4 * NS_PER_S)
    claim = judge_timesyncd(reading)
    assert claim.offset.age_ns == pytest.approx(4 * NS_PER_S, abs=NS_PER_MS)
    assert claim.offset.contains(0)
    assert claim.offset.estimate_ns == pytest.approx(5 * NS_PER_S, abs=NS_PER_MS)


@pytest.mark.parametrize("exchange", [None, replace(EXCHANGE, leap=3), replace(EXCHANGE, stratum=0)])
def test_no_answer_and_a_server_that_is_not_synchronised_are_no_offset(exchange: TimesyncExchange | None) -> None:
    claim = judge_timesyncd(replace(READING, exchange=exchange))
    assert (claim.state, claim.offset.known) == (SyncState.UNSYNCHRONISED, False)


def test_an_old_exchange_is_holdover_with_a_bound_that_has_grown() -> None:
    claim = judge_timesyncd(replace(READING, at_real_ns=CAME_NS + 200 * NS_PER_S))
    assert claim.state is SyncState.HOLDOVER
    assert claim.offset.hi_ns is not None
    assert claim.offset.hi_ns > 40 * NS_PER_MS


def test_a_spike_is_said() -> None:
    assert any(
        "spike" in reason
        for reason in judge_timesyncd(replace(READING, exchange=replace(EXCHANGE, spike=True))).reasons
    )


def test_without_the_bus_there_is_never_an_offset() -> None:
    never, once = (judge_without_bus("no bus", at_ns, now_ns=CAME_NS) for at_ns in (None, CAME_NS - NS_PER_S))
    assert (never.state, never.offset.known) == (SyncState.UNSYNCHRONISED, False)
    assert (once.state, once.offset.known) == (SyncState.UNKNOWN, False)
    assert "1.00 s ago" in once.reasons[0]
