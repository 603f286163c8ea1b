"""RankClock where the kernel's clock has been given a rate by a daemon: cluster time takes it over, once."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import pytest

from rankclock.lab import Lab, Scenario
from rankclock.timebase import Offset

pytestmark = pytest.mark.lab

SET_FREQUENCY = """
import ctypes, sys
class Timex(ctypes.Structure):
    _fields_ = [("modes", ctypes.c_uint), *[(name, ctypes.c_long) for name in ("offset", "freq")],
                ("rest", ctypes.c_long * 40)]
timex = Timex(modes=2, freq=round(float(sys.argv[1]) * 65536))
sys.exit(ctypes.CDLL(None).adjtimex(ctypes.byref(timex)) < 0)
"""

CLAIM = """
import ctypes, sys
class Timex(ctypes.Structure):
    _fields_ = [("modes", ctypes.c_uint), *[(name, ctypes.c_long) for name in "offset freq maxerror esterror".split()],
                ("status", ctypes.c_int), ("rest", ctypes.c_long * 40)]
timex = Timex(modes=4 | 16, maxerror=int(sys.argv[1]), status=int(sys.argv[2]))
sys.exit(ctypes.CDLL(None).adjtimex(ctypes.byref(timex)) < 0)
"""

UTC = """
import json
from rankclock import RankClock
with RankClock.start() as clock:
    assert clock.wait(20.0), clock.why_unknown
    print(json.dumps([clock.utc().to_json(), clock.world_size]))
"""

RANK = """
import json, time
from rankclock import RankClock
with RankClock.start(rank=0, world_size=1) as clock:
    assert clock.wait(20.0), clock.why_unknown
    first = clock.offset().estimate_ns
    time.sleep(3.0)
    print(json.dumps([first, clock.offset().estimate_ns, clock.drift_ppb]))
"""


def test_cluster_time_begins_with_the_rate_that_a_daemon_gave_the_clock(
    lab_of: Callable[[Scenario], Lab], flat: Callable[..., Scenario]
) -> None:
    lab = lab_of(flat(1, clocks={"n1": {"offset_ns": 0, "drift_ppb": -40_000}}))
    assert lab.run("n1", [sys.executable, "-c", SET_FREQUENCY, "40"], timeout_s=10).returncode == 0
    done = lab.run("n1", [sys.executable, "-c", RANK], timeout_s=40)
    assert done.returncode == 0, done.stderr
    first_ns, later_ns, drift_ppb = json.loads(done.stdout)
    # Free-running it would have lost 120 µs on CLOCK_REALTIME in these three seconds.
    assert abs(later_ns - first_ns) < 2_000
    assert drift_ppb[0] == drift_ppb[2] == pytest.approx(-40_000, abs=10)


def test_utc_is_another_thing_and_known_only_as_well_as_the_daemon_claims(
    lab_of: Callable[[Scenario], Lab], flat: Callable[..., Scenario]
) -> None:
    lab = lab_of(flat(1))
    told = []
    for maxerror_us, status in (("1500", "0"), ("1500", "64"), ("0", "0")):
        assert lab.run("n1", [sys.executable, "-c", CLAIM, maxerror_us, status], timeout_s=10).returncode == 0
        done = lab.run("n1", [sys.executable, "-c", UTC], timeout_s=40)
        assert done.returncode == 0, done.stderr
        offset, world_size = json.loads(done.stdout)
        assert world_size == 1, "a process that nobody launched is a job of its own"
        told.append(Offset.from_json(offset))
    known, unsynchronised, silent = told
    assert known.bound_ns is not None
    assert 1_500_000 <= known.bound_ns < 1_700_000
    assert unsynchronised.unknown_why == "nobody on this host claims to know UTC"
    assert silent.unknown_why == "its daemon states no error"
