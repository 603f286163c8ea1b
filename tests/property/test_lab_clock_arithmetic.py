"""The virtual clock: what the C library computes, what the harness computes, and what Linux would do."""

from __future__ import annotations

import ctypes
import itertools
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankclock.errors import HostError
from rankclock.lab.build import library_path
from rankclock.lab.clock import VirtualClock, drift_q48, load_library

ADJ_OFFSET, ADJ_FREQUENCY, ADJ_STATUS, ADJ_TIMECONST = 0x1, 0x2, 0x10, 0x20
ADJ_SETOFFSET, ADJ_NANO, ADJ_TICK, ADJ_SINGLESHOT = 0x100, 0x2000, 0x4000, 0x8001
STA_PLL, STA_UNSYNC, STA_NANO = 0x1, 0x40, 0x2000
S = 10**9


class Timex(ctypes.Structure):
    """struct timex of 64-bit Linux."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("constant", ctypes.c_long),
        ("precision", ctypes.c_long),
        ("tolerance", ctypes.c_long),
        ("sec", ctypes.c_long),
        ("usec", ctypes.c_long),
        ("tick", ctypes.c_long),
        ("pps", ctypes.c_long * 8),
        ("tai", ctypes.c_int),
        ("pad", ctypes.c_int * 11),
    )


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    try:
        return load_library(library_path())
    except HostError as error:
        pytest.skip(str(error))


@contextmanager
def new_clock(library: ctypes.CDLL, *, drift_ppb: float = 0, ahead_ns: int = 0) -> Iterator[VirtualClock]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        path = Path(folder) / "clock"
        now_ns = time.monotonic_ns()
        arguments = (now_ns, time.time_ns() + ahead_ns, now_ns, now_ns + 77 * S, drift_q48(drift_ppb), 0)
        assert library.vc_create(str(path).encode(), *arguments) == 0
        fd = os.open(path, os.O_RDWR)
        clock = VirtualClock(fd, library_path(), name="test")
        os.close(fd)
        yield clock
        clock.close()


def adjust(library: ctypes.CDLL, clock: VirtualClock, **fields: int) -> tuple[int, Timex]:
    timex = Timex(**fields)
    library.vc_adjtimex.argtypes = [ctypes.c_void_p, ctypes.POINTER(Timex)]
    return library.vc_adjtimex(clock.address, ctypes.byref(timex)), timex


changes = st.lists(
    st.one_of(
        st.tuples(st.just("step"), st.integers(-(10**11), 10**11)),
        st.tuples(st.just("set"), st.integers(0, 4 * 10**18)),
        st.tuples(st.just("drift"), st.floats(-500_000, 500_000)),
        st.tuples(st.just("freq"), st.integers(-(500 << 16), 500 << 16)),
        st.tuples(st.just("tick"), st.integers(9000, 11000)),
        st.tuples(st.just("adjtime"), st.integers(-(10**6), 10**6)),
        st.tuples(st.just("pll"), st.integers(-(10**8), 10**8)),
        st.tuples(st.just("frozen"), st.integers(0, 1)),
    ),
    max_size=12,
)


def change(library: ctypes.CDLL, clock: VirtualClock, what: str, value: float) -> None:
    if what == "step":
        clock.step_ns(int(value))
    elif what == "set":
        clock.set_real_ns(int(value))
    elif what == "drift":
        clock.set_drift_ppb(value)
    elif what == "frozen":
        clock.set_frozen(bool(value))
    elif what == "freq":
        adjust(library, clock, modes=ADJ_FREQUENCY, freq=int(value))
    elif what == "tick":
        adjust(library, clock, modes=ADJ_TICK, tick=int(value))
    elif what == "adjtime":
        adjust(library, clock, modes=ADJ_SINGLESHOT, offset=int(value))
    else:
        modes = ADJ_STATUS | ADJ_NANO | ADJ_TIMECONST | ADJ_OFFSET
        adjust(library, clock, modes=modes, status=STA_PLL, constant=3, offset=int(value))


@settings(max_examples=60, deadline=None)
@given(changes=changes, drift_ppb=st.floats(-200_000, 200_000), data=st.data())
def test_harness_and_library_read_the_same_nanosecond_at_any_instant_past_or_planned(
    library: ctypes.CDLL, changes: list[tuple[str, float]], drift_ppb: float, data: st.DataObject
) -> None:
    with new_clock(library, drift_ppb=drift_ppb) as clock:
        start_ns = time.monotonic_ns()
        for what, value in changes:
            change(library, clock, what, value)
        edges = [segment.host0_ns for segment in clock.segments()]
        instants = data.draw(st.lists(st.integers(-(10**9), 10**11), min_size=5, max_size=20))
        out = (ctypes.c_int64 * 3)()
        library.vc_read.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64 * 3]
        for host_ns in [start_ns + i for i in instants] + [edge + d for edge in edges for d in (-1, 0, 1)]:
            library.vc_read(clock.address, host_ns, out)
            reading = clock.at_host(host_ns)
            assert (reading.real_ns, reading.mono_ns, reading.raw_ns) == tuple(out)


@settings(max_examples=40, deadline=None)
@given(changes=changes, drift_ppb=st.floats(-200_000, 200_000))
def test_raw_and_monotonic_never_jump_and_raw_turns_back_into_the_host_instant(
    library: ctypes.CDLL, changes: list[tuple[str, float]], drift_ppb: float
) -> None:
    with new_clock(library, drift_ppb=drift_ppb) as clock:
        for what, value in changes:
            change(library, clock, what, value)
        segments = list(clock.segments())
        for before, after in itertools.pairwise(segments):
            assert before.raw_ns(after.host0_ns) == after.raw0_ns
            assert before.mono_ns(after.host0_ns) == after.mono0_ns
        for segment in segments:
            for host_ns in (segment.host0_ns, segment.host0_ns + 12_345_678):
                raw_ns = clock.at_host(host_ns).raw_ns
                found_ns = clock.host_at_raw(raw_ns)
                assert clock.at_host(found_ns).raw_ns >= raw_ns > clock.at_host(found_ns - 1).raw_ns
                assert clock.realtime_at_raw(raw_ns) == clock.at_host(found_ns).real_ns


def test_rate_is_what_oscillator_tick_and_frequency_make_of_it(library: ctypes.CDLL) -> None:
    with new_clock(library, drift_ppb=60_000) as clock:
        adjust(library, clock, modes=ADJ_TICK | ADJ_FREQUENCY, tick=10001, freq=-(37 << 16))
        now_ns = time.monotonic_ns()
        gained_ns = clock.at_host(now_ns + S).mono_ns - clock.at_host(now_ns).mono_ns - S
        exact = ((1 + 60e-6) * (1 + 100e-6 - 37e-6) - 1) * 1e9
        assert abs(gained_ns - exact) <= 1
        raw_gained_ns = clock.at_host(now_ns + S).raw_ns - clock.at_host(now_ns).raw_ns - S
        assert abs(raw_gained_ns - 60_000) <= 1


def test_step_moves_realtime_alone_and_past_instants_keep_what_they_read(library: ctypes.CDLL) -> None:
    with new_clock(library, drift_ppb=-12_000) as clock:
        before = clock.read()
        clock.step_ns(-20 * S)
        after = clock.read()
        assert clock.at_host(before.host_ns) == before
        assert after.real_ns - before.real_ns + 20 * S == after.mono_ns - before.mono_ns
        assert 0 < after.mono_ns - before.mono_ns < S


def test_adjtime_slews_at_500_ppm_and_stops_exactly(library: ctypes.CDLL) -> None:
    with new_clock(library, drift_ppb=80_000) as clock:
        state, timex = adjust(library, clock, modes=ADJ_SINGLESHOT, offset=1000)
        begin_ns = clock.segment_at(time.monotonic_ns()).host0_ns
        free = clock.at_host(begin_ns).real_ns

        def gained_ns(after_s: float) -> float:
            elapsed_ns = int(after_s * S)
            return clock.at_host(begin_ns + elapsed_ns).real_ns - free - elapsed_ns * (1 + 80e-6)

        assert abs(gained_ns(1) - 500_000 * (1 + 80e-6)) < 3
        assert abs(gained_ns(2.01) - 1_000_000) < 3
        assert abs(gained_ns(100) - 1_000_000) < 3
        assert state == 5, "an unsynchronised clock says TIME_ERROR"
        assert timex.offset == 0, "nothing was left of an earlier adjtime"


def test_kernel_pll_gives_the_offset_away_exponentially_and_a_new_change_keeps_the_rest(library: ctypes.CDLL) -> None:
    with new_clock(library) as clock:
        modes = ADJ_STATUS | ADJ_NANO | ADJ_TIMECONST | ADJ_OFFSET
        adjust(library, clock, modes=modes, status=STA_PLL, constant=2, offset=1_000_000)
        begin = clock.segment_at(time.monotonic_ns())
        for seconds in (1, 2, 5, 20, 60):
            gained_ns = (
                clock.at_host(begin.host0_ns + seconds * S).real_ns - begin.real_ns(begin.host0_ns) - seconds * S
            )
            assert abs(gained_ns - 1_000_000 * (1 - (1 - 1 / 16) ** seconds)) < 10, seconds
        clock.set_drift_ppb(0)
        left_ns = clock.segment_at(time.monotonic_ns()).left_q16 / 65536
        assert 990_000 < left_ns <= 1_000_000
        end_ns = clock.at_host(begin.host0_ns + 400 * S).real_ns - begin.real_ns(begin.host0_ns) - 400 * S
        assert abs(end_ns - 1_000_000) < 10


def test_stepping_makes_the_clock_unsynchronised_as_linux_does(library: ctypes.CDLL) -> None:
    with new_clock(library) as clock:
        adjust(library, clock, modes=ADJ_STATUS | 0x4 | ADJ_NANO, status=0, maxerror=10)
        assert adjust(library, clock)[0] == 0
        before = clock.read()
        state, timex = adjust(library, clock, modes=ADJ_SETOFFSET | ADJ_NANO, sec=-3, usec=250_000_000)
        assert (state, timex.status & STA_UNSYNC, timex.maxerror) == (5, STA_UNSYNC, 16_000_000)
        now = clock.read()
        assert now.real_ns - before.real_ns - (now.mono_ns - before.mono_ns) == -2_750_000_000
        assert timex.sec * S + timex.usec <= now.real_ns


@pytest.mark.parametrize("fields", [{"modes": ADJ_TICK, "tick": 8999}, {"modes": ADJ_SETOFFSET, "usec": 1_000_000}])
def test_what_linux_refuses_is_refused_and_changes_nothing(library: ctypes.CDLL, fields: dict[str, int]) -> None:
    with new_clock(library) as clock:
        assert adjust(library, clock, **fields)[0] == -1
        assert len(list(clock.segments())) == 1


def test_instants_before_the_kept_history_are_refused_not_guessed(library: ctypes.CDLL) -> None:
    with new_clock(library) as clock:
        first = clock.read()
        library.vc_step.argtypes = [ctypes.c_void_p, ctypes.c_int64]
        for _ in range(33_000):
            library.vc_step(clock.address, 1)
        with pytest.raises(HostError, match="before the history"):
            clock.at_host(first.host_ns)
        with pytest.raises(HostError, match="before the history"):
            clock.host_at_raw(first.raw_ns)
        assert clock.read().real_ns > first.real_ns
