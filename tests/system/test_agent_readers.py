"""Agents beside a real ntpsec, a chronyd that authenticates by NTS, and daemons that are ill in their own ways."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rankclock.lab import Lab, Scenario
from rankclock.timebase import NS_PER_MS, ClockState, SyncState

pytestmark = pytest.mark.lab

Until = Callable[..., None]


@dataclass(frozen=True)
class Service:
    name: str
    argv: tuple[str, ...]


CHRONYD = Service("chronyd", ("/usr/sbin/chronyd", "-d", "-u", "root", "-f", "/etc/chrony/chrony.conf"))
NTPD = Service("ntpd", ("/usr/sbin/ntpd", "-n", "-N", "-g", "-c", "/etc/ntpsec/ntp.conf"))
CHRONY = "driftfile /var/lib/chrony/chrony.drift\npidfile /run/chrony/chronyd.pid\nallow\n"
SERVER, SECURE, NTPSEC, SLOW = "n1", "n2", "n3", "n4"
CONFIGURED = {
    SERVER: "local stratum 1\nntsserverkey /etc/chrony/key.pem\nntsservercert /etc/chrony/cert.pem\n",
    SECURE: "server 10.77.0.1 iburst minpoll 0 maxpoll 0 nts\nntstrustedcerts /etc/chrony/cert.pem\n",
}
NTP = (
    "driftfile /var/lib/ntpsec/ntp.drift\nrestrict default noquery\nrestrict 127.0.0.1\n"
    "server 10.77.0.1 iburst minpoll 0 maxpoll 0\nserver 10.77.0.200 iburst\n"
)
SLOW_NTPD = """
import socket, time
link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
link.bind(("127.0.0.1", 123))
while True:
    data, asker = link.recvfrom(4096)
    time.sleep(3)  # then an answer that is right but for being late
    link.sendto(bytes((data[0], data[1] | 0x80)) + data[2:10] + bytes((0, 6)) + b"leap=0", asker)
"""
FETCH = """
import json, sys, time, urllib.request
found = []
for path in ("/status", "/metrics"):
    began = time.monotonic()
    with urllib.request.urlopen("http://127.0.0.1:4911" + path, timeout=5) as answer:
        found.append((answer.read().decode(), time.monotonic() - began))
print(json.dumps(found))
"""


class Agents:
    def __init__(self, lab: Lab) -> None:
        self.lab = lab

    def start(self, node: str, folder: Path) -> None:
        path = folder / f"{node}.yaml"
        path.write_text(f"schema: rankclock-agent/1\nnode: {node}\nread_every: 500ms\n")
        self.lab.spawn(node, [sys.executable, "-m", "rankclock.agent", str(path)], log=folder / f"{node}.log")

    def ask(self, node: str) -> tuple[dict[str, Any], dict[str, float]]:
        """(status, metrics); both pages come at once, whatever the daemons do."""
        done = self.lab.run(node, [sys.executable, "-c", FETCH], timeout_s=15)
        if done.returncode != 0:
            return {}, {}
        (status, took), (text, took_more) = json.loads(done.stdout)
        assert max(took, took_more) < 1
        lines = [line.rsplit(" ", 1) for line in text.splitlines() if line and line[0] != "#"]
        return json.loads(status), {
            re.sub(r'node="n\d+",?|,node="n\d+"|\{\}', "", name).replace("{}", ""): float(value)
            for name, value in lines
        }

    def state(self, node: str) -> ClockState:
        return ClockState.from_json(self.ask(node)[0])

    def metrics(self, node: str) -> dict[str, float]:
        return self.ask(node)[1]

    def settles(self, node: str, wanted: SyncState, until: Until) -> ClockState:
        until(lambda: self.ask(node)[0].get("state") == wanted.value, 30, f"{node} {wanted}", every_s=0.2)
        return self.state(node)

    def holds(self, node: str, seen: ClockState) -> bool:
        return seen.claimed.contains(self.lab.true_offset_ns(node, SERVER, at_raw_ns=seen.claimed.at_raw_ns))


@pytest.fixture(scope="module")
def agents(
    lab_of: Callable[[Scenario], Lab],
    flat: Callable[..., Scenario],
    daemon: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Agents:
    daemon("chronyd")
    daemon("ntpd")
    folder = tmp_path_factory.mktemp("readers")
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 -subj /CN=10.77.0.1"
    names = ["-addext", "subjectAltName=IP:10.77.0.1", "-keyout", str(folder / "key"), "-out", str(folder / "cert")]
    subprocess.run([*command.split(), *names], check=True, capture_output=True)
    clocks = {SECURE: {"offset_ns": -2 * NS_PER_MS}, NTPSEC: {"offset_ns": 3 * NS_PER_MS, "drift_ppb": 15_000}}
    lab = lab_of(flat(4, clocks=clocks))
    for node, text in CONFIGURED.items():
        lab.run(node, ["mkdir", "-p", "-m", "750", "/run/chrony"], timeout_s=5)
        lab.install(node, {"/etc/chrony/chrony.conf": (CHRONY + text).encode()})
        lab.install(node, {f"/etc/chrony/{name}.pem": (folder / name).read_bytes() for name in ("key", "cert")})
        lab.start_service(node, CHRONYD)
    lab.install(NTPSEC, {"/etc/ntpsec/ntp.conf": NTP.encode(), "/var/lib/ntpsec/ntp.drift": b"-12.000\n"})
    lab.start_service(NTPSEC, NTPD)
    slow = folder / "ntpd"
    slow.write_text(f"#!{sys.executable}\n{SLOW_NTPD}")
    slow.chmod(0o755)
    lab.spawn(SLOW, [str(slow)], log=folder / "slow.log")
    found = Agents(lab)
    for node in (SERVER, SECURE, NTPSEC, SLOW):
        found.start(node, folder)
    return found


def test_ntpsec_through_an_agent_claims_what_holds_the_truth_and_shows_servers(agents: Agents, until: Until) -> None:
    seen = agents.settles(NTPSEC, SyncState.SYNCHRONISED, until)
    for _ in range(5):
        seen = agents.state(NTPSEC)
        assert (seen.state, seen.owner, seen.source) == (SyncState.SYNCHRONISED, "ntpd", "10.77.0.1")
        assert agents.holds(NTPSEC, seen)
    found = agents.metrics(NTPSEC)
    assert found['rankclock_sources{state="selected"}'] == 1
    assert found["rankclock_sources_usable"] == 1
    assert found['rankclock_source_offset_seconds{source="10.77.0.1"}'] == pytest.approx(3e-3, abs=4e-3)
    assert 'rankclock_source_offset_seconds{source="10.77.0.200"}' not in found, "it never answered: no zero"
    assert found['rankclock_source_reach_ratio{source="10.77.0.200"}'] == 0


def test_nts_and_who_stamps_are_shown_of_a_chronyd_that_root_may_ask(agents: Agents, until: Until) -> None:
    agents.settles(SECURE, SyncState.SYNCHRONISED, until)
    authenticated = 'rankclock_source_authenticated{source="10.77.0.1"}'
    until(lambda: agents.metrics(SECURE).get(authenticated) == 1, 15, "the details", every_s=0.3)
    found = agents.metrics(SECURE)
    assert found['rankclock_source_nts_cookies{source="10.77.0.1"}'] == 8
    assert found['rankclock_source_stamps_info{receive="kernel",source="10.77.0.1",transmit="kernel"}'] == 1
    served = 'rankclock_server_requests_total{kind="ntp"}'
    until(lambda: agents.metrics(SERVER).get(served, 0) > 5, 15, "the server's counters", every_s=0.3)
    assert agents.metrics(SERVER)['rankclock_server_requests_total{kind="nts_keys"}'] >= 1


def test_a_removed_socket_leaves_the_state_and_takes_only_what_it_alone_told(agents: Agents, until: Until) -> None:
    agents.settles(SECURE, SyncState.SYNCHRONISED, until)
    agents.lab.run(SECURE, ["rm", "/run/chrony/chronyd.sock"], timeout_s=5)
    authenticated = 'rankclock_source_authenticated{source="10.77.0.1"}'
    until(lambda: authenticated not in agents.metrics(SECURE), 15, "no details", every_s=0.3)
    seen, found = agents.state(SECURE), agents.metrics(SECURE)
    assert seen.state is SyncState.SYNCHRONISED
    assert agents.holds(SECURE, seen)
    assert not any(name.startswith(("rankclock_source_nts", "rankclock_server_")) for name in found)
    assert found['rankclock_reader_up{reader="details"}'] == 1
    assert any("not allowed over UDP" in why for why in agents.ask(SECURE)[0]["agent"]["not_told"])


def test_a_daemon_that_answers_too_late_is_unknown_and_the_pages_stay_quick(agents: Agents, until: Until) -> None:
    seen = agents.settles(SLOW, SyncState.UNKNOWN, until)
    assert (seen.owner, seen.claimed.known) == ("ntpd", False)
    began = time.monotonic()
    while time.monotonic() - began < 4:  # over the late answer to an earlier question
        status, found = agents.ask(SLOW)
        assert status["state"] == "unknown"
        assert found['rankclock_clock_state{state="synchronised"}'] == 0
        assert not any(name.startswith("rankclock_sources{") for name in found)


def test_a_stopped_ntpd_is_free_running_and_a_restarted_one_is_followed_again(agents: Agents, until: Until) -> None:
    agents.lab.signal_service(NTPSEC, "ntpd", signal.SIGSTOP)
    seen = agents.settles(NTPSEC, SyncState.FREE_RUNNING, until)
    assert not seen.claimed.known
    agents.lab.signal_service(NTPSEC, "ntpd", signal.SIGCONT)
    seen = agents.settles(NTPSEC, SyncState.SYNCHRONISED, until)
    assert agents.holds(NTPSEC, seen)
