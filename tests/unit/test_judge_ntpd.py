"""The judgement on ntpd's variables, state by state, from readings that differ in what matters only."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rankclock.node.judge_ntpd import judge_ntpd
from rankclock.node.ntpd import NtpdPeer, NtpdReading
from rankclock.timebase import NS_PER_MS, NS_PER_S, SyncState
from rankclock.wire.ntp_control import PeerStatus, PeerVariables, SystemEvent, SystemStatus, SystemVariables

NOW_NS = 1_796_000_000 * NS_PER_S
PEER = PeerVariables.of(
    {
        "srcadr": "10.0.0.1",
        "stratum": "1",
        "hpoll": "6",
        "reach": "0xff",
        "delay": "0.2",
        "offset": "-0.5",
        "dispersion": "1.0",
        "rootdelay": "0.0",
        "rootdisp": "0.1",
    }
)
FOLLOWED = NtpdPeer(association=7, status=PeerStatus.of(0x961A), variables=PEER)
SYSTEM = SystemVariables(
    leap=0,
    stratum=2,
    root_delay_ns=200_000,
    root_dispersion_ns=1_500_000,
    refid="10.0.0.1",
    reference_time_ns=NOW_NS - 100 * NS_PER_S,
    clock_ns=NOW_NS,
    peer=7,
    offset_ns=500_000,
    frequency_ppm=-12.5,
    clock_jitter_ns=1000,
    time_constant=6,
    version="ntpd 4.2.8p15",
    kernel_flags=("pll", "nano"),
)
READING = NtpdReading(
    status=SystemStatus.of(0x0615),
    system=SYSTEM,
    peers=(FOLLOWED,),
    endpoint=("127.0.0.1", 123),
    before_raw_ns=1000,
    after_raw_ns=2000,
    at_real_ns=NOW_NS,
)


def system(**changes: Any) -> NtpdReading:
    return replace(READING, system=replace(SYSTEM, **changes))


def test_a_following_ntpd_has_a_bound_of_offset_and_half_the_root_delay_and_the_dispersion() -> None:
    claim = judge_ntpd(READING)
    assert (claim.state, claim.source) == (SyncState.SYNCHRONISED, "10.0.0.1")
    assert claim.offset.estimate_ns == 500_000
    assert claim.offset.hi_ns == 500_000 + 100_000 + 1_500_000 + 1000
    assert claim.offset.lo_ns == -claim.offset.hi_ns
    assert (claim.offset.age_ns, claim.offset.at_raw_ns) == (100 * NS_PER_S, 1500)


@pytest.mark.parametrize(
    "reading",
    [
        system(leap=3),
        system(stratum=16),
        replace(READING, status=SystemStatus.of(0xC016)),
        replace(READING, status=SystemStatus.of(0x0610 | SystemEvent.FREQUENCY_MODE)),
        replace(READING, status=SystemStatus.of(0x0610 | SystemEvent.SPIKE)),
        system(frequency_ppm=0.0),
    ],
)
def test_an_alarm_a_frequency_measurement_and_a_spike_leave_no_offset(reading: NtpdReading) -> None:
    claim = judge_ntpd(reading)
    assert (claim.state, claim.offset.known) == (SyncState.UNSYNCHRONISED, False)


@pytest.mark.parametrize("refid", ["LOCL", ".LOCL.", "LCL", ".LCL.", "LOCAL(0)", "127.127.1.0"])
def test_the_local_clock_is_free_running_by_whatever_name(refid: str) -> None:
    claim = judge_ntpd(replace(system(refid=refid), peers=()))
    assert (claim.state, claim.offset.known) == (SyncState.FREE_RUNNING, False)


def test_the_local_clock_is_known_by_its_address_too() -> None:
    local = replace(FOLLOWED, variables=replace(PEER, address="127.127.1.0"))
    assert judge_ntpd(replace(system(refid="?"), peers=(local,))).state is SyncState.FREE_RUNNING


def test_a_receiver_as_reference_clock_is_no_local_clock_but_its_own_error_is_not_in_the_bound() -> None:
    receiver = replace(FOLLOWED, variables=replace(PEER, address="127.127.10.0"))
    claim = judge_ntpd(replace(system(refid="GPS"), peers=(receiver,)))
    assert claim.state is SyncState.SYNCHRONISED
    assert any("not in ntpd's bound" in reason for reason in claim.reasons)


def test_a_loopback_reference_without_a_server_is_orphan_mode() -> None:
    assert judge_ntpd(replace(system(refid="127.0.0.1"), peers=())).state is SyncState.FREE_RUNNING


@pytest.mark.parametrize(
    "reading",
    [
        replace(READING, peers=(replace(FOLLOWED, status=PeerStatus.of(0x9014)),)),
        replace(READING, peers=(replace(FOLLOWED, variables=replace(PEER, reach=0)),)),
        system(reference_time_ns=NOW_NS - 2000 * NS_PER_S),
        system(reference_time_ns=None),
    ],
)
def test_without_a_followed_server_an_answer_or_a_fresh_update_it_coasts(reading: NtpdReading) -> None:
    claim = judge_ntpd(reading)
    assert (claim.state, claim.offset.known) == (SyncState.HOLDOVER, True)


def test_an_update_may_be_as_late_as_the_clock_filter_is_long() -> None:
    assert judge_ntpd(system(reference_time_ns=NOW_NS - 8 * 64 * NS_PER_S)).state is SyncState.SYNCHRONISED


def test_a_server_seen_far_from_the_offset_that_ntpd_keeps_withdraws_the_claim_and_widens_the_bound() -> None:
    away = replace(FOLLOWED, variables=replace(PEER, offset_ns=300 * NS_PER_MS))
    claim = judge_ntpd(replace(READING, peers=(away,)))
    assert claim.state is SyncState.UNSYNCHRONISED
    assert claim.offset.contains(300 * NS_PER_MS)


@pytest.mark.parametrize("name", ["offset_ns", "root_delay_ns", "root_dispersion_ns"])
def test_a_number_that_was_not_given_is_no_zero(name: str) -> None:
    claim = judge_ntpd(system(**{name: None}))
    assert (claim.state, claim.offset.known) == (SyncState.UNKNOWN, False)


def test_servers_that_could_not_be_listed_leave_the_system_variables_standing() -> None:
    claim = judge_ntpd(replace(READING, peers=None))
    assert (claim.state, claim.source) == (SyncState.SYNCHRONISED, "10.0.0.1")


def test_a_kernel_that_says_unsynchronised_is_said() -> None:
    claim = judge_ntpd(system(kernel_flags=("pll", "unsync")))
    assert any("kernel" in reason for reason in claim.reasons)
