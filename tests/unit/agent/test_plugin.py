"""`rankclock check`: |offset| with its bound, in both directions, three values; codes and data as plugins have them."""

from __future__ import annotations

import re

import pytest

from rankclock.agent.plugin import Level, judge
from rankclock.timebase import NS_PER_MS, ClockState, Offset, SyncState

UNKNOWN = Offset.unknown("no peers", reference="none", method="none")


def state(claimed: Offset, sync: SyncState = SyncState.SYNCHRONISED, measured: Offset = UNKNOWN) -> ClockState:
    return ClockState(
        node="n1", state=sync, owner="chronyd", source="t", claimed=claimed, measured=measured, reasons=("because",)
    )


def ms(estimate: float, bound: float) -> Offset:
    return Offset.around(int(estimate * NS_PER_MS), int(bound * NS_PER_MS), reference="r", method="m")


@pytest.mark.parametrize(
    ("offset", "level"),
    [
        (ms(0.5, 0.4), Level.OK),
        (ms(-0.5, 0.4), Level.OK),
        (ms(-2, 0.5), Level.CRITICAL),  # what `> 0.001` misses
        (ms(2, 0.5), Level.CRITICAL),
        (ms(0.0, 25), Level.UNKNOWN),  # over the Internet: the estimate is perfect and says nothing
        (ms(-1.2, 0.5), Level.UNKNOWN),
        (UNKNOWN, Level.UNKNOWN),
    ],
)
def test_an_offset_is_judged_with_its_bound_in_both_directions(offset: Offset, level: Level) -> None:
    assert judge(state(offset), critical_ns=NS_PER_MS).level is level


@pytest.mark.parametrize(
    ("sync", "level"),
    [
        (SyncState.SYNCHRONISED, Level.OK),
        (SyncState.HOLDOVER, Level.WARNING),
        (SyncState.FREE_RUNNING, Level.CRITICAL),
        (SyncState.UNSYNCHRONISED, Level.CRITICAL),
        (SyncState.UNKNOWN, Level.UNKNOWN),
    ],
)
def test_a_state_speaks_whatever_the_offset_says(sync: SyncState, level: Level) -> None:
    assert judge(state(ms(0, 0.1), sync), critical_ns=NS_PER_MS).level is level


def test_what_is_certainly_wrong_comes_before_what_is_not_known() -> None:
    assert judge(state(ms(0, 25), measured=ms(3, 0.1)), critical_ns=NS_PER_MS).level is Level.CRITICAL


def test_claim_and_measurement_have_limits_of_their_own() -> None:
    seen = state(ms(0.5, 0.1), measured=ms(0, 0.01))
    assert judge(seen, critical_ns=NS_PER_MS // 10, claimed_critical_ns=NS_PER_MS).level is Level.OK
    assert judge(seen, critical_ns=NS_PER_MS // 10).level is Level.CRITICAL


def test_warnings_are_for_few_sources_and_near_misses() -> None:
    assert judge(state(ms(0, 0.1)), critical_ns=NS_PER_MS, sources=(1, 3)).level is Level.WARNING
    assert judge(state(ms(0, 0.1)), critical_ns=NS_PER_MS, warning_ns=NS_PER_MS // 20).level is Level.WARNING
    assert judge(state(ms(0, 0.1)), critical_ns=NS_PER_MS, sources=(3, 3)).level is Level.OK


def test_a_look_of_long_ago_is_unknown() -> None:
    assert judge(state(ms(0, 0.1)), critical_ns=NS_PER_MS, read_age_ns=10**12).level is Level.UNKNOWN


def test_the_performance_data_have_the_guidelines_form() -> None:
    told = judge(state(ms(-0.5, 0.1), measured=ms(0, 0.2)), critical_ns=NS_PER_MS, warning_ns=NS_PER_MS // 2)
    assert told.performance.startswith("claimed_offset=-0.000500000s;-0.0005:0.0005;-0.001:0.001 ")
    for part in told.performance.split(" "):
        assert re.fullmatch(r"[a-z_]+=-?\d+\.\d+s(;[-0-9.e]+:[-0-9.e]+;[-0-9.e]+:[-0-9.e]+)?", part), part
    assert "\n" not in told.line
