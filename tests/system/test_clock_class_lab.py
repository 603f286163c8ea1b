"""A grandmaster with a receiver, real daemons: its class follows its pulse, and survives a restart of ptp4l."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import rankclock
from rankclock.cluster import parse_cluster
from rankclock.lab import Lab, Scenario

pytestmark = pytest.mark.lab

PAIR = """\
schema: rankclock-cluster/1
name: pair
nodes:
  - {name: time1, nics: [{name: eth0, address: 10.90.0.11/24, segment: lan}]}
  - {name: gpu1, nics: [{name: eth0, address: 10.90.0.21/24, segment: lan}]}
"""
CHRONY = """\
refclock SOCK /run/chrony.pulse.sock refid PPS0 poll 0 filter 1
makestep 1 3
"""
PTP4L = """\
[global]
time_stamping software
free_running {free}
slaveOnly {free_not}
logAnnounceInterval -2
logSyncInterval -3
[eth0]
"""
PULSES = """
import socket, struct, time
link = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
while True:
    now = time.time_ns()
    link.sendto(struct.pack("=qqdiiii", now // 10**9, now % 10**9 // 1000, 0.0, 0, 0, 0, 0x534F434B),
                "/run/chrony.pulse.sock")
    time.sleep(0.25)
"""


@dataclass(frozen=True)
class Service:
    name: str
    argv: tuple[str, ...]


def announced(lab: Lab) -> tuple[int, int, int]:
    """Class, accuracy and time source that the client hears."""
    found = {}
    for data_set in ("PARENT_DATA_SET", "TIME_PROPERTIES_DATA_SET"):
        done = lab.run("gpu1", ["pmc", "-u", "-b", "0", f"GET {data_set}"], timeout_s=10)
        found |= dict(line.split(None, 1) for line in done.stdout.splitlines() if line.startswith("\t\t"))
    keys = ("gm.ClockClass", "gm.ClockAccuracy", "timeSource")
    return tuple(int(found.get(key, "-1"), 0) for key in keys)  # type: ignore[return-value]


def test_the_class_follows_the_pulse_and_is_told_again_after_a_restart(
    lab_of: Callable[[Scenario], Lab], daemon: Callable[[str], Path], until: Callable[..., None]
) -> None:
    for name in ("chronyd", "ptp4l", "pmc"):
        daemon(name)
    lab = lab_of(Scenario.of(parse_cluster(PAIR, "pair.yaml")))
    lab.install("time1", {"/etc/chrony/chrony.conf": CHRONY.encode()})
    for node, free in (("time1", 1), ("gpu1", 0)):
        text = PTP4L.format(free=free, free_not=1 - free)
        lab.install(node, {"/etc/linuxptp/ptp4l.conf": text.encode()})
    argv = ("/usr/sbin/ptp4l", "-f", "/etc/linuxptp/ptp4l.conf", "-m", "-q")
    lab.run("time1", ["mkdir", "-p", "/run/chrony", "/var/lib/chrony"], timeout_s=5)
    lab.start_service("time1", Service("chronyd", ("/usr/sbin/chronyd", "-d", "-u", "root")))
    for node in ("time1", "gpu1"):
        lab.start_service(node, Service("ptp4l", argv))
    until(lambda: announced(lab)[0] == 248, 20, "the client hears the grandmaster", every_s=0.2)

    code = (
        "from rankclock.agent.class_keeper import ClassSettings; from rankclock.agent.clock_class import *; "
        "from rankclock.node.grandmaster import *; import sys; keep_clock_class(Grandmaster(read_write_socket(), "
        "domain=0), ClassSettings(steady_ns=2*10**9, holdover_bound_ns=10**9), lambda line: print(line, flush=True))"
    )
    source = f"PYTHONPATH={Path(rankclock.__file__).parents[1]}"
    lab.start_service("time1", Service("keeper", ("/usr/bin/env", source, sys.executable, "-c", code)))
    lab.start_service("time1", Service("pulses", (sys.executable, "-c", PULSES)))
    until(lambda: announced(lab)[0] == 6, 30, "class 6 while the pulse is followed", every_s=0.2)
    assert announced(lab)[2] == 0x20, "GNSS"

    lab.services["time1", "ptp4l"].kill(signal.SIGKILL)
    lab.start_service("time1", Service("ptp4l", argv))
    until(lambda: announced(lab)[0] == 6, 30, "told again after the restart", every_s=0.2)

    lab.services["time1", "pulses"].kill(signal.SIGKILL)
    until(lambda: announced(lab)[0] == 7, 30, "holdover when the pulse is gone", every_s=0.2)
    lab.services["time1", "chronyd"].kill(signal.SIGKILL)
    until(lambda: announced(lab)[0] == 248, 30, "nothing claimed without chronyd", every_s=0.2)

    done = lab.run(
        "time1", [sys.executable, "-m", "rankclock", "agent", "clock-class", "--once", "--json"], timeout_s=30
    )
    said = json.loads(done.stdout)
    assert (said["announced"], said["clock_class"]) == (True, 248)
    lab.services["time1", "ptp4l"].kill(signal.SIGKILL)
    done = lab.run("time1", [sys.executable, "-m", "rankclock", "agent", "clock-class", "--once"], timeout_s=30)
    assert done.returncode == 4
    assert "Traceback" not in done.stderr
