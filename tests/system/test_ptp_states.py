"""What is said of ordinary PTP clocks, with software stamps and with PHCs: phc2sys killed, two grandmasters, none.

A clock that is called synchronised is within its bound of the reference that it names, or it is not called so.
"""

from __future__ import annotations

import signal
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


CONF = "/etc/linuxptp/ptp4l.conf"
PTP4L = ("/usr/sbin/ptp4l", "-f", CONF, "-m", "-q")
PHC2SYS = Service("phc2sys", ("/usr/sbin/phc2sys", "-a", "-r", "-F", "0.00002", "-S", "1", "-R", "8", "-m", "-q"))

MASTER, OTHER_MASTER, CLIENT_ONLY, ORDINARY, CLOCKED, CLOCKED_MASTER = (f"n{i}" for i in range(1, 7))
FAST = (
    "logAnnounceInterval -2\nlogSyncInterval -3\nlogMinDelayReqInterval -3\nstep_threshold 0.001\n"
    "pi_proportional_const 0.7\npi_integral_const 0.015\n"  # by default the servo looks at software stamps for 37 s
)
SETTINGS = {
    MASTER: "time_stamping software\nfree_running 1\npriority1 10\n",
    OTHER_MASTER: "time_stamping software\nfree_running 1\npriority1 20\nmasterOnly 1\n",
    CLIENT_ONLY: "time_stamping software\nslaveOnly 1\n",
    ORDINARY: "time_stamping software\npriority1 200\n",
    CLOCKED: "time_stamping hardware\nslaveOnly 1\ndomainNumber 5\n",
    CLOCKED_MASTER: "time_stamping hardware\nfree_running 1\npriority1 10\ndomainNumber 5\nutc_offset 37\n",
}
"""Two domains on one wire: n1 to n4 stamp in software, n5 and n6 have PHCs."""


class Wire:
    """Running clocks, and the truth of each claim."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.node_of: dict[str, str] = {}

    def start(self, node: str, until: Until) -> None:
        """Starts a node's ptp4l, and learns its identity."""
        self.lab.start_service(node, Service("ptp4l", PTP4L))
        domain = "5" if node in (CLOCKED, CLOCKED_MASTER) else "0"

        def told() -> bool:
            argv = ["pmc", "-u", "-b", "0", "-d", domain, "GET DEFAULT_DATA_SET"]
            for line in self.lab.run(node, argv, timeout_s=10).stdout.splitlines():
                if "clockIdentity" in line:
                    self.node_of[line.split()[-1]] = node
            return node in self.node_of.values()

        until(told, 10, f"{node}'s ptp4l answers", every_s=0.1)

    def state(self, node: str) -> ClockState:
        return state_of(InLab(lab=self.lab, node=node), node)

    def settles(self, node: str, wanted: tuple[SyncState, ...], until: Until, timeout_s: float = 30) -> ClockState:
        """The state once it is one of the wanted; on the way no synchronised claim misses the truth."""
        seen: list[ClockState] = []

        def is_wanted() -> bool:
            seen.append(self.state(node))
            assert self.holds(seen[-1]), seen[-1]
            return seen[-1].state in wanted

        try:
            until(is_wanted, timeout_s, f"{node} {wanted}", every_s=0.05)
        except BaseException:
            print(seen[-1])
            raise
        return seen[-1]

    def holds(self, seen: ClockState) -> bool:
        """Whether a synchronised claim contains the true offset from the clock that it names."""
        if seen.state is not SyncState.SYNCHRONISED or not seen.claimed.known or seen.claimed.at_raw_ns is None:
            return True
        parent = self.node_of.get(seen.claimed.reference.split()[-1].partition("-")[0])
        if parent is None or parent == seen.node:
            return parent is None
        host_ns = self.lab.clock(seen.node).host_at_raw(seen.claimed.at_raw_ns)
        if parent == CLOCKED_MASTER:
            reference_ns = self.lab.phc(parent).at_host(host_ns).real_ns - 37 * NS_PER_S
        else:
            reference_ns = self.lab.clock(parent).at_host(host_ns).real_ns
        return seen.claimed.contains(self.lab.clock(seen.node).at_host(host_ns).real_ns - reference_ns)


@pytest.fixture(scope="module")
def wire(
    lab_of: Callable[[Scenario], Lab], flat: Callable[..., Scenario], daemon: Callable[[str], Path], until: Until
) -> Wire:
    for name in ("ptp4l", "phc2sys", "pmc"):
        daemon(name)
    clocks: dict[str, object] = {
        OTHER_MASTER: {"offset_ns": 40 * NS_PER_MS},
        CLIENT_ONLY: {"offset_ns": -3 * NS_PER_MS, "drift_ppb": 20_000},
        ORDINARY: {"offset_ns": 5 * NS_PER_MS, "drift_ppb": -15_000},
        CLOCKED: {"offset_ns": -2 * NS_PER_MS, "drift_ppb": 9_000, "phc": {"offset_ns": NS_PER_MS, "drift_ppb": 7_000}},
        CLOCKED_MASTER: {"phc": {"offset_ns": 37 * NS_PER_S}},
    }
    made = Wire(lab_of(flat(6, clocks=clocks)))
    for node, lines in SETTINGS.items():
        made.lab.install(node, {CONF: f"[global]\n{lines}{FAST}[eth0]\n".encode()})
    for node in (MASTER, CLIENT_ONLY, ORDINARY, CLOCKED_MASTER, CLOCKED):
        made.start(node, until)
    made.lab.start_service(CLOCKED, Service("phc2sys", (*PHC2SYS.argv, "-n", "5")))
    for node in (CLIENT_ONLY, ORDINARY, CLOCKED):
        made.settles(node, (SyncState.SYNCHRONISED,), until, timeout_s=90)
    return made


def test_every_claim_of_following_clocks_contains_the_truth(wire: Wire) -> None:
    for _ in range(15):
        for node, owner in ((CLIENT_ONLY, "ptp4l"), (ORDINARY, "ptp4l"), (CLOCKED, "phc2sys")):
            seen = wire.state(node)
            assert (seen.state, seen.owner) == (SyncState.SYNCHRONISED, owner), seen
            assert wire.holds(seen), seen


def test_a_killed_phc2sys_leaves_the_system_clock_to_nobody(wire: Wire, until: Until) -> None:
    wire.lab.services[CLOCKED, "phc2sys"].kill(signal.SIGKILL)
    seen = wire.settles(CLOCKED, (SyncState.FREE_RUNNING,), until)
    assert seen.owner is None
    assert "no daemon steers the clock" in seen.reasons
    assert any("it steers the PHC" in reason for reason in seen.reasons), seen
    wire.lab.start_service(CLOCKED, Service("phc2sys", (*PHC2SYS.argv, "-n", "5")))
    wire.settles(CLOCKED, (SyncState.SYNCHRONISED,), until)


def test_a_second_grandmaster_changes_nothing_until_it_leads_and_then_every_claim_names_it(
    wire: Wire, until: Until
) -> None:
    before = wire.state(CLIENT_ONLY).claimed.reference
    wire.start(OTHER_MASTER, until)
    deadline = time.monotonic() + 4
    while time.monotonic() < deadline:
        seen = wire.state(CLIENT_ONLY)
        assert wire.holds(seen), seen
        assert seen.claimed.reference == before, "the better one still leads"
    wire.lab.services[MASTER, "ptp4l"].kill(signal.SIGKILL)
    until(
        lambda: wire.state(CLIENT_ONLY).claimed.reference not in (before, ""), 20, "the other one leads", every_s=0.05
    )
    for node in (CLIENT_ONLY, ORDINARY):
        seen = wire.settles(node, (SyncState.SYNCHRONISED,), until)
        assert wire.node_of[seen.claimed.reference.split()[-1].partition("-")[0]] == OTHER_MASTER, seen


def test_without_any_grandmaster_a_client_coasts_and_a_clock_that_may_lead_itself_runs_free(
    wire: Wire, until: Until
) -> None:
    wire.lab.services[OTHER_MASTER, "ptp4l"].kill(signal.SIGKILL)
    lonely = wire.settles(ORDINARY, (SyncState.FREE_RUNNING, SyncState.UNSYNCHRONISED), until)
    assert any("follows nobody" in reason or "grandmaster" in reason for reason in lonely.reasons), lonely
    seen = wire.settles(CLIENT_ONLY, (SyncState.HOLDOVER, SyncState.SYNCHRONISED, SyncState.UNSYNCHRONISED), until)
    if seen.state is SyncState.SYNCHRONISED:  # it follows the ordinary clock that took the lead
        assert wire.node_of[seen.claimed.reference.split()[-1].partition("-")[0]] == ORDINARY, seen
    wire.lab.services[ORDINARY, "ptp4l"].kill(signal.SIGKILL)
    seen = wire.settles(CLIENT_ONLY, (SyncState.HOLDOVER, SyncState.UNSYNCHRONISED), until)
    assert any("lost" in reason or "no grandmaster" in reason for reason in seen.reasons), seen
    wire.lab.services[CLOCKED_MASTER, "ptp4l"].kill(signal.SIGKILL)
    seen = wire.settles(CLOCKED, (SyncState.HOLDOVER, SyncState.UNSYNCHRONISED, SyncState.FREE_RUNNING), until)
    assert seen.reasons
