"""What is said of a clock in each state that real daemons get into. The truth is known: a clock that is called
synchronised has a claimed bound that contains its true offset from the reference it names, or it must not be called so.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from rankclock.cluster import Facts, parse_cluster
from rankclock.configs import render
from rankclock.fleet.collect import collect_facts, collect_states, state_of
from rankclock.fleet.transport import InLab
from rankclock.lab import Lab, Scenario
from rankclock.lab.apply import apply
from rankclock.planning import make_plan
from rankclock.timebase import NS_PER_MS, NS_PER_S, ClockState, SyncState

pytestmark = pytest.mark.lab

TAI_MINUS_UTC_NS = 37 * NS_PER_S
Until = Callable[..., None]


@dataclass(frozen=True)
class Service:
    name: str
    argv: tuple[str, ...]


def state(lab: Lab, node: str) -> ClockState:
    return state_of(InLab(lab=lab, node=node), node)


def settles(lab: Lab, node: str, wanted: SyncState, until: Until, timeout_s: float = 20) -> ClockState:
    """The state once it is the wanted one."""
    seen: list[ClockState] = []

    def is_wanted() -> bool:
        seen.append(state(lab, node))
        return seen[-1].state is wanted

    until(is_wanted, timeout_s, f"{node} {wanted}", every_s=0.1)
    return seen[-1]


# ---- chronyd ----

CHRONY = "driftfile /var/lib/chrony/chrony.drift\npidfile /run/chrony/chronyd.pid\nallow\n"
CHRONYD = Service("chronyd", ("/usr/sbin/chronyd", "-d", "-u", "root", "-f", "/etc/chrony/chrony.conf"))


def server(number: int) -> str:
    return f"server 10.77.0.{number} iburst minpoll -2 maxpoll -2 xleave\nmakestep 0.1 3\n"


SERVER, FOLLOWER, ISLAND, ALONE, STOPPED, ORPHAN, OTHER_SERVER, LIED_TO, LIAR = (f"n{i}" for i in range(1, 10))
CONFIGURED = {
    SERVER: "local stratum 1\n",
    FOLLOWER: server(1),
    ISLAND: "local stratum 10\n",
    ALONE: server(200),
    STOPPED: server(1),
    ORPHAN: server(7),
    OTHER_SERVER: "local stratum 1\n",
    LIED_TO: server(9),
    LIAR: "local stratum 1\n",
}


@pytest.fixture(scope="module")
def ntp(
    lab_of: Callable[[Scenario], Lab], flat: Callable[..., Scenario], daemon: Callable[[str], Path], until: Until
) -> Lab:
    daemon("chronyd")
    clocks = {"n2": {"offset_ns": -3 * NS_PER_MS, "drift_ppb": 40_000}, LIAR: {"offset_ns": 3 * NS_PER_S}}
    lab = lab_of(flat(9, clocks=clocks))
    for node, lines in CONFIGURED.items():
        lab.install(node, {"/etc/chrony/chrony.conf": (CHRONY + lines).encode()})
        lab.start_service(node, CHRONYD)
    for node in (FOLLOWER, STOPPED, ORPHAN, LIED_TO):
        settles(lab, node, SyncState.SYNCHRONISED, until)
    return lab


def test_every_claim_of_a_following_chronyd_contains_the_truth(ntp: Lab) -> None:
    for _ in range(30):
        seen = state(ntp, FOLLOWER)
        assert (seen.state, seen.owner, seen.source) == (SyncState.SYNCHRONISED, "chronyd", "10.77.0.1")
        assert seen.claimed.contains(ntp.true_offset_ns(FOLLOWER, SERVER, at_raw_ns=seen.claimed.at_raw_ns))


def test_a_server_with_local_is_an_island_and_its_zeros_are_no_offset(ntp: Lab) -> None:
    seen = state(ntp, ISLAND)
    assert seen.state is SyncState.FREE_RUNNING
    assert not seen.claimed.known
    assert any("local" in reason and "stratum 10" in reason for reason in seen.reasons)


def test_a_client_whose_server_never_answered_is_not_synchronised(ntp: Lab) -> None:
    seen = state(ntp, ALONE)
    assert (seen.state, seen.claimed.known) == (SyncState.UNSYNCHRONISED, False)
    assert any("10.77.0.200 does not answer" in reason for reason in seen.reasons)


def test_a_client_of_a_lying_server_claims_what_only_a_measurement_can_refute(ntp: Lab) -> None:
    seen = state(ntp, LIED_TO)
    assert seen.state is SyncState.SYNCHRONISED
    assert seen.claimed.contains(ntp.true_offset_ns(LIED_TO, LIAR, at_raw_ns=seen.claimed.at_raw_ns))
    assert not seen.claimed.contains(ntp.true_offset_ns(LIED_TO, SERVER, at_raw_ns=seen.claimed.at_raw_ns))


def test_a_client_whose_server_died_is_in_holdover_and_its_bound_grows(ntp: Lab, until: Until) -> None:
    before = state(ntp, ORPHAN).claimed
    ntp.signal_service(OTHER_SERVER, "chronyd", signal.SIGKILL)
    seen = settles(ntp, ORPHAN, SyncState.HOLDOVER, until, timeout_s=30)
    assert any("coasts" in reason or "no update" in reason for reason in seen.reasons)
    assert seen.claimed.contains(ntp.true_offset_ns(ORPHAN, OTHER_SERVER, at_raw_ns=seen.claimed.at_raw_ns))
    assert seen.claimed.age_ns > before.age_ns


def test_a_stopped_chronyd_steers_nothing_a_continued_one_recovers_and_a_killed_one_is_gone(
    ntp: Lab, until: Until
) -> None:
    ntp.signal_service(STOPPED, "chronyd", signal.SIGSTOP)
    began = time.monotonic()
    seen = state(ntp, STOPPED)
    assert time.monotonic() - began < 5, "a hung daemon holds nobody up"
    assert (seen.state, seen.claimed.known) == (SyncState.FREE_RUNNING, False)
    assert any("stopped by a signal" in reason for reason in seen.reasons)
    ntp.signal_service(STOPPED, "chronyd", signal.SIGCONT)
    settles(ntp, STOPPED, SyncState.SYNCHRONISED, until)
    ntp.signal_service(STOPPED, "chronyd", signal.SIGKILL)
    seen = settles(ntp, STOPPED, SyncState.FREE_RUNNING, until)
    assert (seen.owner, seen.claimed.known) == (None, False)


def test_a_step_behind_chronyds_back_is_never_covered_by_a_claim_that_excludes_it_for_long(
    ntp: Lab, until: Until
) -> None:
    """chronyd learns of the step with its next sample; from then on its claim holds the truth again."""
    ntp.clock(FOLLOWER).step_ns(5 * NS_PER_MS)

    def holds() -> bool:
        seen = state(ntp, FOLLOWER)
        return seen.claimed.contains(ntp.true_offset_ns(FOLLOWER, SERVER, at_raw_ns=seen.claimed.at_raw_ns))

    until(holds, 10, "the claim contains the truth again")


def test_two_owners_leave_neither_claim_standing(ntp: Lab, daemon: Callable[[str], Path]) -> None:
    daemon("ptp4l")
    ntp.install(LIAR, {"/etc/linuxptp/ptp4l.conf": b"[global]\ntime_stamping software\nslaveOnly 1\n[eth0]\n"})
    process = ntp.start_service(LIAR, Service("ptp4l", ("/usr/sbin/ptp4l", "-f", "/etc/linuxptp/ptp4l.conf")))
    seen = state(ntp, LIAR)
    assert process.poll() is None, process.log_text()
    assert (seen.state, seen.claimed.known) == (SyncState.UNKNOWN, False)
    assert seen.owner == "chronyd+ptp4l"
    assert any("both steer the clock" in reason for reason in seen.reasons)


# ---- hardware PTP ----

RACK = """\
schema: rankclock-cluster/1
name: states
pace: fast
require: {accuracy: 50us}
sources: [{name: upstream, node: upstream}]
nodes:
  - {name: upstream, kind: source, nics: [{name: eth0, address: 10.90.0.1/24, segment: spine}]}
  - {name: time1, kind: server, nics: [{name: eth0, address: 10.90.0.11/24, segment: spine}]}
  - {name: time2, kind: server, nics: [{name: eth0, address: 10.90.0.12/24, segment: spine}]}
  - name: leaf1
    kind: switch
    nics:
      - {name: eth0, address: 10.90.0.21/24, segment: spine}
      - {name: eth1, address: 10.90.1.1/24, segment: rack1}
""" + "".join(
    f"  - {{name: gpu{i}, nics: [{{name: eth0, address: 10.90.1.{10 + i}/24, segment: rack1}}]}}\n" for i in range(1, 7)
)
GPUS = tuple(f"gpu{i}" for i in range(1, 7))


class Rack:
    """A running hardware PTP plan, and the truth of each claim in it."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.node_of: dict[str, str] = {}
        for node in ("time1", "time2", "leaf1"):
            done = lab.run(node, ["pmc", "-u", "-b", "0", "GET DEFAULT_DATA_SET"], timeout_s=10)
            fields = dict(line.split(None, 1) for line in done.stdout.splitlines() if line.startswith("\t\t"))
            self.node_of[fields["clockIdentity"]] = node

    def states(self) -> list[ClockState]:
        nodes = ("time1", "time2", "leaf1", *GPUS)
        return list(collect_states({node: InLab(lab=self.lab, node=node) for node in nodes}).values())

    def holds(self, seen: ClockState) -> bool:
        """Whether the claim contains the true offset from the clock that it names as its reference."""
        if not seen.claimed.known or seen.owner != "phc2sys":
            return True
        assert seen.claimed.at_raw_ns is not None
        parent = self.node_of[seen.claimed.reference.split()[-1].partition("-")[0]]
        host_ns = self.lab.clock(seen.node).host_at_raw(seen.claimed.at_raw_ns)
        of_parent_ns = self.lab.phc(parent).at_host(host_ns).real_ns - TAI_MINUS_UTC_NS
        return seen.claimed.contains(self.lab.clock(seen.node).at_host(host_ns).real_ns - of_parent_ns)


@pytest.fixture(scope="module")
def rack(
    lab_of: Callable[[Scenario], Lab], daemon: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Rack:
    for name in ("chronyd", "ptp4l", "phc2sys", "pmc"):
        daemon(name)
    cluster = parse_cluster(RACK, "states.yaml")
    clocks = {
        node: {"offset_ns": 1_000_000 * number, "drift_ppb": 3_000 * number, "phc": {"drift_ppb": -2_000 * number}}
        for number, node in enumerate(("time1", "time2", "leaf1", *GPUS))
    }
    lab = lab_of(Scenario.of(cluster, clocks=clocks))
    names = [node.name for node in cluster.nodes]
    found = collect_facts({name: InLab(lab=lab, node=name) for name in names})
    facts = {name: Facts.from_json(value) for name, value in found.items()}
    plan = make_plan(cluster, facts, "ptp")
    tiers = apply(
        lab,
        render(plan, cluster, facts),
        accuracy_ns=plan.accuracy_ns,
        settle_s=2.0,
        logs=tmp_path_factory.mktemp("rack"),
    )
    assert all(tier.settled for tier in tiers), tiers
    return Rack(lab)


def test_every_claim_of_a_settled_plan_contains_the_truth(rack: Rack) -> None:
    for _ in range(5):
        seen = {one.node: one for one in rack.states()}
        assert {(one.state, one.claimed.known) for one in seen.values()} == {(SyncState.SYNCHRONISED, True)}
        assert {node: one.owner for node, one in seen.items() if node in GPUS} == dict.fromkeys(GPUS, "phc2sys")
        assert [one.node for one in seen.values() if not rack.holds(one)] == []
    assert any("grandmaster" in reason for reason in seen["time1"].reasons)
    assert any("2 hop(s)" in reason for reason in seen["gpu1"].reasons)


def test_a_stopped_phc2sys_steers_nothing_though_the_comparison_with_the_phc_stands(rack: Rack, until: Until) -> None:
    rack.lab.signal_service("gpu1", "phc2sys", signal.SIGSTOP)
    seen = settles(rack.lab, "gpu1", SyncState.FREE_RUNNING, until)
    assert any("phc2sys" in reason and "stopped by a signal" in reason for reason in seen.reasons)
    assert rack.holds(seen)
    rack.lab.signal_service("gpu1", "phc2sys", signal.SIGCONT)
    settles(rack.lab, "gpu1", SyncState.SYNCHRONISED, until)


def test_a_stopped_ptp4l_leaves_the_phc_to_itself(rack: Rack, until: Until) -> None:
    rack.lab.signal_service("gpu2", "ptp4l", signal.SIGSTOP)
    seen = settles(rack.lab, "gpu2", SyncState.FREE_RUNNING, until)
    assert not seen.claimed.known
    rack.lab.signal_service("gpu2", "ptp4l", signal.SIGCONT)
    settles(rack.lab, "gpu2", SyncState.SYNCHRONISED, until, timeout_s=30)


def test_while_a_phc_is_stepped_frozen_or_deaf_no_clock_is_called_synchronised_with_a_bound_that_misses(
    rack: Rack, until: Until
) -> None:
    """Three faults on three nodes at once, looked at often until each is called by its name or has healed."""
    rack.lab.phc("gpu3").set_frozen(True)
    rack.lab.phc("gpu4").step_ns(5 * NS_PER_MS)
    rack.lab.phc("gpu5").set_lost_tx(True)
    states: dict[str, set[SyncState]] = {node: set() for node in GPUS}
    deadline = time.monotonic() + 12
    while time.monotonic() < deadline:
        for seen in rack.states():
            assert rack.holds(seen) or seen.state is not SyncState.SYNCHRONISED, seen
            if seen.node in states:
                states[seen.node].add(seen.state)
    assert state(rack.lab, "gpu3").state is SyncState.UNSYNCHRONISED
    assert state(rack.lab, "gpu5").state is not SyncState.SYNCHRONISED
    rack.lab.phc("gpu3").set_frozen(False)
    rack.lab.phc("gpu5").set_lost_tx(False)
    for node in ("gpu3", "gpu4", "gpu5"):
        settles(rack.lab, node, SyncState.SYNCHRONISED, until, timeout_s=40)


def test_a_clock_in_another_domain_hears_no_grandmaster(rack: Rack, until: Until) -> None:
    lab, node = rack.lab, "gpu6"
    conf = "/etc/linuxptp/ptp4l.conf"
    text = lab.run(node, ["cat", conf], timeout_s=5).stdout
    assert "domainNumber" in text
    lab.stop_service(node, "ptp4l")
    lab.stop_service(node, "phc2sys")
    argv = ("/usr/sbin/ptp4l", "-f", conf, "--domainNumber=77")
    process = lab.start_service(node, Service("ptp4l", argv))
    until(lambda: "INITIALIZING to LISTENING" in process.log_text(), 5, "ptp4l listens")
    lab.start_service(node, Service("phc2sys", ("/usr/sbin/phc2sys", "-s", "eth0", "-O", "-37", "-n", "77")))
    seen = state(lab, node)
    assert seen.state in (SyncState.UNSYNCHRONISED, SyncState.HOLDOVER)
    assert not seen.claimed.known
    assert any("no grandmaster heard" in reason or "is lost" in reason for reason in seen.reasons)


def test_through_a_takeover_and_the_loss_of_every_grandmaster_no_synchronised_claim_misses_the_truth(
    rack: Rack, until: Until
) -> None:
    def look_for(seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for seen in rack.states():
                assert rack.holds(seen) or seen.state is not SyncState.SYNCHRONISED, seen

    rack.lab.signal_service("time1", "ptp4l", signal.SIGKILL)
    look_for(8)
    assert any("grandmaster" in reason for reason in state(rack.lab, "time2").reasons)
    rack.lab.signal_service("time2", "ptp4l", signal.SIGKILL)
    rack.lab.signal_service("leaf1", "ptp4l", signal.SIGKILL)
    look_for(6)
    for node in ("leaf1", *GPUS[:5]):
        seen = state(rack.lab, node)
        assert seen.state in (SyncState.HOLDOVER, SyncState.FREE_RUNNING), seen
        assert not seen.claimed.known or seen.state is SyncState.HOLDOVER
