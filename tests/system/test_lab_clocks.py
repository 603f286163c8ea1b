"""What real processes of a node read, set, wait for and stamp, held against the harness's truth."""

from __future__ import annotations

import itertools
import json
import random
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rankclock.lab import Lab, Scenario

pytestmark = pytest.mark.lab

S = 10**9
PYTHON = sys.executable
OFFSET_NS, DRIFT_PPB = -20 * S, 60_000

HOST_CLOCK = """
import ctypes, json, os, socket, struct, sys, threading, time
_libc = ctypes.CDLL("libc.so.6")
def host_ns():  # past the preload: the host's CLOCK_MONOTONIC
    t = (ctypes.c_long * 2)()
    _libc.syscall(228 if os.uname().machine == "x86_64" else 113, 1, t)
    return t[0] * 10**9 + t[1]
"""


@pytest.fixture(scope="module")
def lab(lab_of: Callable[[Scenario], Lab], flat: Callable[..., Scenario]) -> Lab:
    clocks = {
        "n1": {"offset_ns": OFFSET_NS, "drift_ppb": DRIFT_PPB, "phc": {"offset_ns": 37 * S, "drift_ppb": -9000}},
        "n2": {"phc": None},
    }
    return lab_of(flat(2, clocks=clocks))


def told(lab: Lab, node: str, script: str) -> object:
    done = lab.run(node, [PYTHON, "-c", HOST_CLOCK + script], timeout_s=20)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_clock_that_a_process_reads_is_the_nodes_at_that_instant(lab: Lab) -> None:
    rows = told(
        lab,
        "n1",
        """
ids = ["CLOCK_REALTIME", "CLOCK_MONOTONIC", "CLOCK_MONOTONIC_RAW", "CLOCK_BOOTTIME", "CLOCK_TAI"]
rows = []
tv, zone = (ctypes.c_long * 2)(), (ctypes.c_int * 2)()  # a caller that also asks for the time zone
for i in range(200):
    for name in ids:
        a = host_ns(); v = time.clock_gettime_ns(getattr(time, name)); b = host_ns()
        rows.append((name, a, v, b))
    a = host_ns(); v = time.time_ns(); b = host_ns()
    rows.append(("CLOCK_REALTIME", a, v, b))
    a = host_ns(); ctypes.CDLL(None).gettimeofday(tv, zone); b = host_ns()
    rows.append(("microseconds", a, tv[0] * 10**9 + tv[1] * 1000 + 999, b + 1000))
print(json.dumps(rows))
""",
    )
    field = {
        "CLOCK_REALTIME": "real_ns",
        "microseconds": "real_ns",
        "CLOCK_TAI": "real_ns",
        "CLOCK_MONOTONIC_RAW": "raw_ns",
    }
    clock = lab.clock("n1")
    for name, before_ns, value_ns, after_ns in rows:
        what = field.get(name, "mono_ns")
        assert getattr(clock.at_host(before_ns), what) <= value_ns <= getattr(clock.at_host(after_ns), what), name


def test_realtime_starts_where_the_scenario_says(lab: Lab) -> None:
    elapsed_s = (time.monotonic_ns() - lab.started_host_ns) / S
    offset_ns = lab.true_offset_ns("n1", "n2")
    assert abs(offset_ns - OFFSET_NS - elapsed_s * DRIFT_PPB) < DRIFT_PPB * 3, "up to 3 s of start-up"


def test_raw_clocks_of_two_nodes_are_far_apart(lab: Lab) -> None:
    assert abs(lab.clock("n1").read().raw_ns - lab.clock("n2").read().raw_ns) > 1000 * S


def test_waits_last_as_long_as_asked_after_the_clock_was_stepped_and_slewed_away_from_the_hosts(
    lab: Lab, until: Callable[..., None]
) -> None:
    script = """
import queue
sem, lock, event, condition = threading.Semaphore(0), threading.Lock(), threading.Event(), threading.Condition()
lock.acquire()
def condition_wait():
    with condition: condition.wait(0.15)
def busy():  # two running threads hand the interpreter's lock over by a timed wait on a condition variable
    thread = threading.Thread(target=lambda: [time.sleep(0) for _ in range(1000)])
    thread.start(); thread.join(); time.sleep(0.15)
waits = {"sleep": lambda: time.sleep(0.15), "event": lambda: event.wait(0.15),
         "lock": lambda: lock.acquire(timeout=0.15), "semaphore": lambda: sem.acquire(timeout=0.15),
         "condition": condition_wait, "busy": busy,
         "select": lambda: __import__("select").select([], [], [], 0.15)}
took = {}
for name, wait in waits.items():
    a = host_ns(); wait(); took[name] = (host_ns() - a) / 1e9
print(json.dumps(took))
"""
    lab.clock("n2").set_drift_ppb(
        -90_000_000
    )  # 9 % slow: after a good second its MONOTONIC is 100 ms behind the host's
    lab.clock("n2").step_ns(-1000 * S)
    try:
        until(lambda: time.monotonic_ns() - lab.clock("n2").read().mono_ns > 100_000_000, 10, "MONOTONIC is behind")
        took = told(lab, "n2", script)
    finally:
        lab.clock("n2").set_drift_ppb(0)
        lab.clock("n2").step_ns(1000 * S)
    assert isinstance(took, dict)
    for name, seconds in took.items():
        assert 0.13 <= seconds < 5, (name, seconds)  # a deadline taken for the host's has passed, or nearly


def test_setting_and_stepping_reach_the_nodes_clock_and_never_the_hosts(lab: Lab) -> None:
    host_before = time.clock_gettime_ns(time.CLOCK_REALTIME) - time.monotonic_ns()
    target_ns = 1_700_000_000 * S
    true_ns = lab.clock("n2").read()
    told(lab, "n2", f"time.clock_settime_ns(time.CLOCK_REALTIME, {target_ns}); print(1)")
    reading = lab.clock("n2").read()
    assert 0 < reading.real_ns - target_ns < 5 * S
    lab.clock("n2").set_real_ns(true_ns.real_ns + reading.host_ns - true_ns.host_ns)
    assert abs(time.clock_gettime_ns(time.CLOCK_REALTIME) - time.monotonic_ns() - host_before) < 1_000_000


STAMPS = """
SO_TIMESTAMPING, FLAGS = 37, (1 << 1) | (1 << 3) | (1 << 4) | (1 << 11) | (1 << 7)
def stamp(ancillary, kind, form):
    for level, what, data in ancillary:
        if level == socket.SOL_SOCKET and what == kind:
            return struct.unpack(form, data[:struct.calcsize(form)])
    raise SystemExit("no stamp came")
def step_own_clock(seconds):
    time.clock_settime_ns(time.CLOCK_REALTIME, time.time_ns() + seconds * 10**9)
rows, kept = [], []
# 37 first, and kept: only there a packet that came before stamping began has no stamp; for the others the kernel then
# takes the time of the reading.
for kind, option, form, unit in ((37, FLAGS, "qqqqqq", 1), (35, 1, "qq", 1), (29, 1, "qq", 1000)):
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); receiver.bind(("10.77.0.1", 0)); kept.append(receiver)
    receiver.setsockopt(socket.SOL_SOCKET, kind, option)
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, FLAGS)
    for warm_up in range(500):  # the kernel begins to stamp some time after it was asked to (a deferred static key)
        sender.sendto(b"x", receiver.getsockname())
        arrived = receiver.recvmsg(16, 512)[1]; sender.recvmsg(16, 512, socket.MSG_ERRQUEUE)
        if any(what == kind for _, what, _ in arrived): break
        time.sleep(0.002)
    for attempt in range(20):
        a = host_ns(); sender.sendto(b"x", receiver.getsockname()); b = host_ns()
        step_own_clock(3)  # between the packet's stamp and its reading
        got = stamp(receiver.recvmsg(16, 512)[1], kind, form)
        rows.append(("receive", kind, a, got[0] * 10**9 + got[1] * unit, b, unit))
        got = stamp(sender.recvmsg(16, 512, socket.MSG_ERRQUEUE)[1], SO_TIMESTAMPING, "qqqqqq")
        rows.append(("transmit", kind, a, got[0] * 10**9 + got[1], b, 1))
        step_own_clock(-3)
print(json.dumps(rows))
"""


def test_kernel_packet_stamps_are_the_nodes_time_at_the_stamp_not_at_the_reading(lab: Lab) -> None:
    rows = told(lab, "n1", STAMPS)
    assert isinstance(rows, list)
    assert len(rows) == 120
    clock = lab.clock("n1")
    for way, kind, before_ns, stamp_ns, after_ns, unit in rows:
        low, high = clock.at_host(before_ns).real_ns, clock.at_host(after_ns).real_ns
        assert low - unit <= stamp_ns <= high, (way, kind, stamp_ns - low)


def test_adjtimex_of_a_node_steers_it_and_reads_back(lab: Lab) -> None:
    script = """
class T(ctypes.Structure):
    _fields_ = [("modes", ctypes.c_uint), ("offset", ctypes.c_long), ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long), ("esterror", ctypes.c_long), ("status", ctypes.c_int),
        ("constant", ctypes.c_long), ("precision", ctypes.c_long), ("tolerance", ctypes.c_long),
        ("sec", ctypes.c_long), ("usec", ctypes.c_long), ("tick", ctypes.c_long),
        ("pps", ctypes.c_long * 8), ("tai", ctypes.c_int), ("pad", ctypes.c_int * 11)]
c = ctypes.CDLL(None)
t = T(modes=0x2 | 0x4000 | 0x10 | 0x4 | 0x80, freq=100 << 16, tick=10010, status=0, maxerror=77, constant=37)
state = c.adjtimex(ctypes.byref(t))
r = T(); again = c.adjtimex(ctypes.byref(r))
tai = time.clock_gettime_ns(time.CLOCK_TAI) - time.time_ns()
back = T(modes=0x2 | 0x4000 | 0x10, freq=0, tick=10000, status=0x40); c.adjtimex(ctypes.byref(back))
print(json.dumps([state, again, r.freq, r.tick, r.status, r.maxerror, r.tai, round(tai / 1e9)]))
"""
    assert told(lab, "n1", script) == [0, 0, 100 << 16, 10010, 0, 77, 37, 37]
    ntp = lab.clock("n1").ntp()
    assert (ntp.freq, ntp.tick, ntp.tai_s) == (0, 10000, 37)
    rates = [segment.mono_q48 for segment in lab.clock("n1").segments()]
    assert any(abs(rate / 2**48 - (1.0011 * (1 + DRIFT_PPB / 1e9) - 1)) < 1e-12 for rate in rates)


def test_phc_of_a_node_is_found_opened_and_read_by_the_kernel_interfaces(lab: Lab) -> None:
    script = """
import fcntl
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
info = bytearray(struct.pack("I", 0x41) + bytes(40))
address = (ctypes.c_char * 44).from_buffer(info)
fcntl.ioctl(s, 0x8946, struct.pack("16sP16x", b"eth0", ctypes.addressof(address)))
flags, index = struct.unpack("Ii", info[4:12])
fd = os.open("/dev/ptp0", os.O_RDWR)
capabilities = bytearray(80); fcntl.ioctl(fd, 0x80503d01, capabilities)
rows = []
for _ in range(50):
    a = host_ns(); v = time.clock_gettime_ns((~fd << 3) | 3); b = host_ns()
    rows.append((a, v, b))
extended = bytearray(1216); extended[:4] = struct.pack("I", 5); fcntl.ioctl(fd, 0xc4c03d09, extended)
samples = [struct.unpack_from("qI4xqI4xqI4x", extended, 16 + 48 * i) for i in range(5)]
max_adj = struct.unpack("i", capabilities[:4])[0]
print(json.dumps([flags & 0x45, index, max_adj, os.listdir("/sys/class/ptp"), rows, samples]))
"""
    flags, index, max_adj, listed, rows, samples = told(lab, "n1", script)  # type: ignore[misc]
    assert (flags, index, max_adj, listed) == (0x45, 0, 62_499_999, ["ptp0"])
    phc = lab.phc("n1")
    for before_ns, value_ns, after_ns in rows:
        assert phc.at_host(before_ns).real_ns <= value_ns <= phc.at_host(after_ns).real_ns
    for s1, n1, s2, n2, s3, n3 in samples:
        before_ns, phc_ns, after_ns = s1 * S + n1, s2 * S + n2, s3 * S + n3
        assert before_ns <= after_ns < before_ns + 100_000
        now_ns = time.monotonic_ns()
        apart_ns = phc.at_host(now_ns).real_ns - lab.clock("n1").at_host(now_ns).real_ns
        assert abs(phc_ns - before_ns - apart_ns) < 5_000_000, "69 ppm over the time since"


def test_frozen_phc_stands_still_and_a_thawed_one_goes_on(lab: Lab) -> None:
    phc = lab.phc("n1")
    phc.set_frozen(True)
    first, second = phc.read(), phc.at_host(time.monotonic_ns() + S)
    assert first.real_ns == second.real_ns
    assert second.raw_ns > first.raw_ns
    phc.set_frozen(False)
    assert phc.read().real_ns > first.real_ns


def test_node_without_a_phc_says_so(lab: Lab) -> None:
    script = 'print(json.dumps([os.path.exists("/dev/ptp0"), os.listdir("/sys/class/ptp")]))'
    assert told(lab, "n2", script) == [False, []]


HAMMER = """
c = ctypes.CDLL(None); t = (ctypes.c_byte * 208)()
print("started", flush=True)
i = 0
while True:
    i += 1
    ctypes.memset(t, 0, 208); t[0] = 2; t[16] = i & 127
    c.adjtimex(t)
"""


def test_process_killed_at_any_point_of_an_adjustment_never_hangs_another(lab: Lab) -> None:
    chance = random.Random(20)
    for _ in range(20):
        hammers = [lab.spawn("n2", [PYTHON, "-c", HOST_CLOCK + HAMMER]) for _ in range(2)]
        deadline = time.monotonic() + 10
        while any("started" not in hammer.log_text() for hammer in hammers) and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(chance.random() * 0.01)
        hammers[0].kill()
        hammers[0].wait(5)
        adjustments = lab.clock("n2").ntp().adjustments
        deadline = time.monotonic() + 5
        while lab.clock("n2").ntp().adjustments <= adjustments + 10:
            assert time.monotonic() < deadline, "the other process hangs"
            time.sleep(0.001)
        lab.clock("n2").step_ns(0)  # the harness is not locked out either
        hammers[1].kill()
        hammers[1].wait(5)
    segments = list(lab.clock("n2").segments())[-1000:]
    assert all(a.mono_ns(b.host0_ns) == b.mono0_ns for a, b in itertools.pairwise(segments))


LOCK_AND_STAY = """
import mmap
fd = os.open("/run/rankclock-lab/clock", os.O_RDWR)
state = mmap.mmap(fd, 0)
lock = ctypes.addressof(ctypes.c_char.from_buffer(state)) + 512
assert ctypes.CDLL(None).pthread_mutex_lock(ctypes.c_void_p(lock)) == 0
print("locked", flush=True)
time.sleep(60)
"""


def test_lock_of_a_process_that_was_killed_while_it_held_it_is_free_again(lab: Lab, until: Callable[..., None]) -> None:
    holder = lab.spawn("n2", [PYTHON, "-c", HOST_CLOCK + LOCK_AND_STAY])
    until(lambda: "locked" in holder.log_text(), 5, "the lock is taken")
    waiting = threading.Thread(target=lab.clock("n2").step_ns, args=(5,), daemon=True)
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive(), "a lock that is held keeps others out"
    holder.kill()
    waiting.join(5)
    assert not waiting.is_alive()


def test_process_told_to_use_a_clock_that_is_not_there_ends_instead_of_running_on_the_hosts_time(lab: Lab) -> None:
    done = lab.run("n1", ["/bin/date"], timeout_s=5, env={"RANKCLOCK_VCLOCK": "/nowhere"})
    assert done.returncode == 127
    assert "no virtual clock at /nowhere" in done.stderr


@pytest.mark.skipif(not Path("/usr/bin/setpriv").exists(), reason="needs setpriv")
def test_only_root_of_a_node_may_set_its_clock(lab: Lab) -> None:
    script = "import time\ntry: time.clock_settime(time.CLOCK_REALTIME, 5)\nexcept PermissionError: print('refused')"
    identity = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    done = lab.run("n1", [*identity, "/usr/bin/python3", "-c", script], timeout_s=10)
    if "Operation not permitted" in done.stderr or "Invalid argument" in done.stderr:
        pytest.skip("this lab has only one user (it was started without root)")
    assert done.stdout == "refused\n", done.stderr


@pytest.mark.skipif(not shutil.which("ethtool", path="/usr/sbin:/sbin:/usr/bin"), reason="needs ethtool")
def test_ethtool_says_what_the_nodes_interfaces_say(lab: Lab) -> None:
    said = lab.run("n1", ["ethtool", "-T", "eth0"], timeout_s=5).stdout
    assert "hardware-raw-clock" in said
    assert "PTP Hardware Clock: 0" in said
    assert "PTP Hardware Clock: none" in lab.run("n2", ["ethtool", "-T", "eth0"], timeout_s=5).stdout


TIMERS = """
import ctypes, json, os, select
libc = ctypes.CDLL(None, use_errno=True)  # by the global symbols: a library by name would go past the preloaded one
class Spec(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in ("every_s", "every_ns", "at_s", "at_ns")]
fired = {}
for clock in (0, 1):  # CLOCK_REALTIME, CLOCK_MONOTONIC
    for name, spec in (("long past", Spec(0, 0, 0, 1)), ("never", Spec(0, 0, 2**63 - 1, 0))):
        timer = libc.timerfd_create(clock, os.O_NONBLOCK)
        assert libc.timerfd_settime(timer, 1, ctypes.byref(spec), None) == 0, os.strerror(ctypes.get_errno())
        fired[f"{name} {clock}"] = bool(select.select([timer], [], [], 0.2)[0])
print(json.dumps(fired))
"""


def test_a_timer_set_to_the_long_past_fires_at_once_and_one_for_never_does_not(lab: Lab) -> None:
    """As systemd's programs set them: an instant before the host's boot is no disarming 0, and never is no overflow."""
    done = lab.run("n1", [PYTHON, "-c", TIMERS], timeout_s=10)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"long past 0": True, "never 0": False, "long past 1": True, "never 1": False}
