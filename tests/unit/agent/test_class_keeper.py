"""What a grandmaster announces: never more than chronyd follows, worse at once, better only after a while."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankclock.agent.class_keeper import ClassKeeper, ClassSettings, Verdict
from rankclock.timebase import NS_PER_S, NS_PER_US
from rankclock.wire.chrony import ChronyAddress, SourceData, SourceMode, SourceState, Tracking
from rankclock.wire.ptp_data_sets import LEAP61, PTP_TIMESCALE, TIME_TRACEABLE, UTC_OFFSET_VALID, clock_accuracy_ns

SETTINGS = ClassSettings(steady_ns=10 * NS_PER_S, holdover_bound_ns=50 * NS_PER_US)


def tracking(*, dispersion_s: float = 2e-6, leap: int = 0, offset_s: float = 0.0) -> Tracking:
    return Tracking(
        refid=0, address=ChronyAddress(family=0, packed=bytes(16)), stratum=1, leap=leap, ref_time_ns=0,
        current_correction_s=offset_s, last_offset_s=0.0, rms_offset_s=0.0, freq_ppm=0.0, resid_freq_ppm=0.0,
        skew_ppm=0.0, root_delay_s=0.0, root_dispersion_s=dispersion_s, last_update_interval_s=4.0,
    )  # fmt: skip


def source(
    refid: bytes = b"PPS0",
    *,
    mode: SourceMode = SourceMode.REFCLOCK,
    state: SourceState = SourceState.SELECTED,
    age_s: int = 1,
) -> SourceData:
    return SourceData(
        address=ChronyAddress(family=1, packed=refid + bytes(12)), poll=2, stratum=0, state=state, mode=mode, flags=0,
        reach=255, since_sample_s=age_s, orig_latest_s=0.0, latest_s=0.0, latest_err_s=1e-7,
    )  # fmt: skip


class Looking:
    """A keeper that looks once a second."""

    def __init__(self, *, hardware: bool = True) -> None:
        self.keeper, self.hardware, self.now_ns = ClassKeeper(SETTINGS), hardware, 0

    def look(self, seconds: int = 1, *sources: SourceData, **of_tracking: float) -> Verdict:
        for _ in range(seconds):
            self.now_ns += NS_PER_S
            verdict = self.keeper.handle_reading(
                tracking(**of_tracking), sources, hardware=self.hardware, now_ns=self.now_ns
            )
        return verdict


def test_class_6_comes_after_a_steady_while_and_goes_at_once() -> None:
    looking = Looking()
    assert looking.look(10, source()).clock_class == 248
    locked = looking.look(2, source())
    assert locked.clock_class == 6
    assert locked.settings.time_source == 0x20
    assert locked.settings.flags & TIME_TRACEABLE
    assert locked.settings.flags & UTC_OFFSET_VALID
    assert looking.look(1, source(age_s=60)).clock_class == 7, "selected still, and not seen for 15 polls"
    assert looking.look(1, dispersion_s=60e-6).clock_class == 248, "its bound has grown above the limit"
    assert looking.look(1, dispersion_s=2e-6).clock_class == 248, "no way back to 7 without a lock"


def test_a_pulse_that_flaps_never_gets_class_6() -> None:
    looking = Looking()
    for _ in range(20):
        assert looking.look(8, source()).clock_class == 248
        assert looking.look(1).clock_class == 248


@pytest.mark.parametrize(
    "sources",
    [
        (),
        (source(b"NME0"),),
        (source(state=SourceState.FALSETICKER), source(b"\x0a\0\0\1", mode=SourceMode.CLIENT)),
        (source(state=SourceState.NONSELECTABLE),),
    ],
)
def test_what_is_no_followed_pulse_is_never_class_6(sources: tuple[SourceData, ...]) -> None:
    assert Looking().look(60, *sources).clock_class == 248


def test_a_clock_that_is_not_synchronised_or_local_is_never_class_6() -> None:
    assert Looking().look(60, source(), leap=3).clock_class == 248
    assert Looking().look(60, source(), dispersion_s=0.0).clock_class == 248, "chronyd's zeros in local mode"


def test_falling_back_to_ntp_says_ntp() -> None:
    looking = Looking()
    looking.look(20, source())
    verdict = looking.look(1, source(b"\x0a\0\0\1", mode=SourceMode.CLIENT), dispersion_s=900e-6)
    assert (verdict.clock_class, verdict.settings.time_source) == (248, 0x50)
    assert not verdict.settings.flags & TIME_TRACEABLE


def test_silence_of_chronyd_takes_every_claim_back() -> None:
    looking = Looking()
    looking.look(20, source())
    verdict = looking.keeper.handle_silence("chronyd does not answer", hardware=True)
    assert (verdict.clock_class, verdict.settings.quality.accuracy) == (248, 0xFE)
    assert looking.look(1, source()).clock_class == 248


def test_software_stamps_never_claim_the_ptp_time_scale() -> None:
    verdict = Looking(hardware=False).look(20, source())
    assert verdict.clock_class == 6
    assert not verdict.settings.flags & (PTP_TIMESCALE | UTC_OFFSET_VALID)


def test_a_leap_second_to_come_is_announced() -> None:
    assert Looking().look(20, source(), leap=1).settings.flags & LEAP61


@given(
    dispersion_s=st.floats(1e-9, 100.0),
    offset_s=st.floats(-5.0, 5.0),
    seconds=st.integers(1, 30),
)
def test_the_accuracy_is_never_better_than_chronyds_bound(dispersion_s: float, offset_s: float, seconds: int) -> None:
    verdict = Looking().look(seconds, source(), dispersion_s=dispersion_s, offset_s=offset_s)
    claimed_ns = clock_accuracy_ns(verdict.settings.quality.accuracy)
    assert claimed_ns is None or claimed_ns >= (abs(offset_s) + dispersion_s) * 1e9
