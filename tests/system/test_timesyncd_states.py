"""What is said of a clock in each state that a real systemd-timesyncd gets into, over a real bus and without one."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from rankclock.fleet.collect import state_of
from rankclock.fleet.transport import InLab
from rankclock.lab import Lab, Scenario
from rankclock.timebase import NS_PER_MS, NS_PER_S, ClockState, SyncState

pytestmark = pytest.mark.lab

Until = Callable[..., None]


@dataclass(frozen=True)
class Service:
    name: str
    argv: tuple[str, ...]


CHRONY = b"driftfile /var/lib/chrony/chrony.drift\npidfile /run/chrony/chronyd.pid\nallow\nlocal stratum 1\n"
CHRONYD = Service("chronyd", ("/usr/sbin/chronyd", "-d", "-u", "root", "-f", "/etc/chrony/chrony.conf"))
BUS = Service("dbus-daemon", ("dbus-daemon", "--config-file=/etc/bus.conf", "--nofork", "--nopidfile"))
BUS_CONF = b"""<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>system</type><listen>unix:path=/run/dbus/system_bus_socket</listen><auth>EXTERNAL</auth>
<policy context="default"><allow user="*"/><allow own="*"/><allow send_destination="*"/><allow receive_sender="*"/>
</policy></busconfig>
"""
FOLDERS = ["/run/dbus", "/run/systemd/timesync", "/var/lib/systemd/timesync"]
SERVER, FOLLOWER, STEPPED, ALONE, BUSLESS, STOPPED = (f"n{i}" for i in range(1, 7))
CLOCKS = {
    FOLLOWER: {"offset_ns": -3 * NS_PER_MS, "drift_ppb": 40_000},
    STEPPED: {"offset_ns": 5 * NS_PER_S, "drift_ppb": -30_000},
    BUSLESS: {"offset_ns": NS_PER_MS},
}


def start_timesyncd(lab: Lab, node: str, program: Path, server: str, *, bus: bool) -> None:
    """It drops to a user of its own and keeps CAP_SYS_TIME, which no process of a lab has: here that user is root, in a
    user namespace of its own, where the capability is worth nothing beyond the lab's clock.
    """
    passwd = Path("/etc/passwd").read_text(encoding="utf-8")
    lines = [line for line in passwd.splitlines() if not line.startswith("systemd-timesync:")]
    lines.append("systemd-timesync:x:0:0::/:/usr/sbin/nologin")
    conf = f"[Time]\nNTP={server}\nFallbackNTP=\nPollIntervalMinSec=16\nPollIntervalMaxSec=16\n"
    lab.install(node, {"/etc/passwd": "\n".join(lines).encode() + b"\n"})
    lab.install(node, {"/etc/systemd/timesyncd.conf": conf.encode(), "/etc/bus.conf": BUS_CONF})
    lab.run(node, ["mkdir", "-p", *FOLDERS], timeout_s=5)
    if bus:
        lab.start_service(node, BUS)
        lab.run(node, ["sh", "-c", "until [ -S /run/dbus/system_bus_socket ]; do sleep 0.02; done"], timeout_s=5)
    shared = program.parents[2] / "usr/lib/x86_64-linux-gnu/systemd"  # where `make setup` unpacks what it shares
    path = os.pathsep.join(filter(None, (str(shared), os.environ.get("LD_LIBRARY_PATH", ""))))
    lab.spawn(
        node,
        ["unshare", "-r", str(program)],
        env={"LD_LIBRARY_PATH": path},
        service="systemd-timesyncd",
    )


def state(lab: Lab, node: str) -> ClockState:
    return state_of(InLab(lab=lab, node=node), node)


def settles(lab: Lab, node: str, wanted: SyncState, until: Until) -> ClockState:
    seen: list[ClockState] = []

    def is_wanted() -> bool:
        seen.append(state(lab, node))
        return seen[-1].state is wanted

    until(is_wanted, 20, f"{node} {wanted}", every_s=0.1)
    return seen[-1]


def holds(lab: Lab, seen: ClockState) -> bool:
    return seen.claimed.contains(lab.true_offset_ns(seen.node, SERVER, at_raw_ns=seen.claimed.at_raw_ns))


@pytest.fixture(scope="module")
def ntp(lab_of: Callable[[Scenario], Lab], flat: Callable[..., Scenario], daemon: Callable[[str], Path]) -> Lab:
    daemon("chronyd")
    daemon("dbus-daemon")
    program = daemon("systemd-timesyncd")
    lab = lab_of(flat(6, clocks=CLOCKS))
    lab.install(SERVER, {"/etc/chrony/chrony.conf": CHRONY})
    lab.start_service(SERVER, CHRONYD)
    for node, server in (
        (FOLLOWER, "10.77.0.1"),
        (STEPPED, "10.77.0.1"),
        (ALONE, "10.77.0.200"),
        (STOPPED, "10.77.0.1"),
    ):
        start_timesyncd(lab, node, program, server, bus=True)
    start_timesyncd(lab, BUSLESS, program, "10.77.0.1", bus=False)
    return lab


def test_every_claim_of_a_following_timesyncd_contains_the_truth_and_says_that_nobody_checks_it(
    ntp: Lab, until: Until
) -> None:
    settles(ntp, FOLLOWER, SyncState.SYNCHRONISED, until)
    for _ in range(20):
        seen = state(ntp, FOLLOWER)
        assert (seen.state, seen.owner, seen.source) == (SyncState.SYNCHRONISED, "systemd-timesyncd", "10.77.0.1")
        assert holds(ntp, seen)
        assert any("publishes no bound" in reason for reason in seen.reasons)
        time.sleep(0.05)


def test_the_sign_is_local_minus_server(ntp: Lab, until: Until) -> None:
    """The first exchange found the follower 3 ms behind."""
    seen = settles(ntp, FOLLOWER, SyncState.SYNCHRONISED, until)
    assert seen.claimed.estimate_ns is not None
    assert seen.claimed.estimate_ns < 0 or ntp.true_offset_ns(FOLLOWER, SERVER) > -2 * NS_PER_MS


def test_a_clock_that_timesyncd_stepped_is_within_its_bound(ntp: Lab, until: Until) -> None:
    seen = settles(ntp, STEPPED, SyncState.SYNCHRONISED, until)
    assert abs(ntp.true_offset_ns(STEPPED, SERVER)) < NS_PER_S
    assert holds(ntp, seen)
    assert seen.claimed.age_ns < 30 * NS_PER_S


def test_without_an_answer_it_is_not_synchronised(ntp: Lab) -> None:
    seen = state(ntp, ALONE)
    assert (seen.state, seen.owner, seen.claimed.known) == (SyncState.UNSYNCHRONISED, "systemd-timesyncd", False)
    assert any("10.77.0.200" in reason for reason in seen.reasons)


def test_without_a_bus_the_file_tells_that_it_set_the_clock_but_not_how_well(ntp: Lab, until: Until) -> None:
    until(lambda: "by the file" in " ".join(state(ntp, BUSLESS).reasons), 20, "the file", every_s=0.1)
    seen = state(ntp, BUSLESS)
    assert (seen.state, seen.claimed.known) == (SyncState.UNKNOWN, False)
    assert any("bus does not answer" in reason for reason in seen.reasons)


def test_a_stopped_timesyncd_holds_nobody_up(ntp: Lab, until: Until) -> None:
    settles(ntp, STOPPED, SyncState.SYNCHRONISED, until)
    ntp.signal_service(STOPPED, "systemd-timesyncd", signal.SIGSTOP)
    seen = state(ntp, STOPPED)
    assert (seen.state, seen.claimed.known) == (SyncState.FREE_RUNNING, False)
    ask = "import time\nfrom rankclock.node.timesyncd import read_timesyncd\nb = time.monotonic()\n"
    ask += "try: read_timesyncd(timeout_s=0.4)\nexcept Exception as e: print(time.monotonic() - b, e)\n"
    took, _, said = ntp.run(STOPPED, [sys.executable, "-c", ask], timeout_s=10).stdout.partition(" ")
    assert float(took) < 1
    assert "does not answer on the bus within 0.4 s" in said
    ntp.signal_service(STOPPED, "systemd-timesyncd", signal.SIGCONT)
    settles(ntp, STOPPED, SyncState.SYNCHRONISED, until)
