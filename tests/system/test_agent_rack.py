"""Agents on a rack under hardware PTP, through the faults of PHCs and grandmasters: claims and measurements at once.

Slow: a whole plan is put into force. What daemons claim in these states is held to the truth in test_node_states.py;
here is what the agents make of it, and that what they measure themselves holds the truth whatever PTP does.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankclock.cluster import Facts, parse_cluster
from rankclock.configs import render
from rankclock.fleet.collect import collect_facts
from rankclock.fleet.transport import InLab
from rankclock.lab import Lab, Scenario
from rankclock.lab.apply import apply
from rankclock.planning import make_plan
from rankclock.timebase import NS_PER_MS, Offset, SyncState

pytestmark = [pytest.mark.lab, pytest.mark.slow]

Until = Callable[..., None]
FETCH = Path(__file__).with_name("agent_fetch.py")
GPUS = ("gpu1", "gpu2", "gpu3", "gpu4")
WATCHED = ("time1", "time2", "leaf1", *GPUS)
ADDRESSES = {"time1": "10.90.0.11", "time2": "10.90.0.12", "leaf1": "10.90.1.1"} | {
    node: f"10.90.1.{11 + number}" for number, node in enumerate(GPUS)
}
CLUSTER = """\
schema: rankclock-cluster/1
name: watched
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
    f"  - {{name: {node}, nics: [{{name: eth0, address: {ADDRESSES[node]}/24, segment: rack1}}]}}\n" for node in GPUS
)


class Rack:
    """A running plan with an agent on each node, asked inside it."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab

    def statuses(self) -> dict[str, dict[str, Any]]:
        found = {}
        for node in WATCHED:
            asked = json.dumps({"urls": [["http://127.0.0.1:4911/status", ""]], "ca": None})
            done = self.lab.run(node, [sys.executable, str(FETCH)], input=asked, timeout_s=20, clock=False)
            status, text, _ = json.loads(done.stdout)[0]
            if status == 200:
                found[node] = json.loads(text)
        return found

    def metric(self, node: str, name: str) -> float:
        asked = json.dumps({"urls": [["http://127.0.0.1:4911/metrics", ""]], "ca": None})
        done = self.lab.run(node, [sys.executable, str(FETCH)], input=asked, timeout_s=20, clock=False)
        lines = [line for line in json.loads(done.stdout)[0][1].splitlines() if line.startswith(name)]
        return float(lines[0].rsplit(" ", 1)[1]) if lines else 0.0

    def measured_hold(self) -> int:
        """How many measured offsets were looked at; all of them hold the truth."""
        looked = 0
        for node, status in self.statuses().items():
            for peer, value in status["agent"]["peers"].items():
                offset = Offset.from_json(value)
                if offset.known:
                    truth_ns = self.lab.true_offset_ns(node, peer, at_raw_ns=offset.at_raw_ns)
                    assert offset.contains(truth_ns), (node, peer, truth_ns, offset)
                    looked += 1
        return looked

    def states(self) -> dict[str, SyncState]:
        return {node: SyncState(status["state"]) for node, status in self.statuses().items()}


@pytest.fixture(scope="module")
def rack(
    lab_of: Callable[[Scenario], Lab],
    daemon: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
    until: Until,
) -> Rack:
    for name in ("chronyd", "ptp4l", "phc2sys"):
        daemon(name)
    cluster = parse_cluster(CLUSTER, "watched.yaml")
    clocks = {node: {"offset_ns": 1_000_000 * i, "drift_ppb": 3_000 * i} for i, node in enumerate(WATCHED)}
    lab = lab_of(Scenario.of(cluster, clocks=clocks))
    found = collect_facts({node.name: InLab(lab=lab, node=node.name) for node in cluster.nodes})
    facts = {name: Facts.from_json(value) for name, value in found.items()}
    plan = make_plan(cluster, facts, "ptp")
    folder = tmp_path_factory.mktemp("rack")
    tiers = apply(lab, render(plan, cluster, facts), accuracy_ns=plan.accuracy_ns, settle_s=2.0, logs=folder)
    assert all(tier.settled for tier in tiers), tiers
    (folder / "key").write_bytes(b"the agents of a rack share this")
    (folder / "key").chmod(0o600)
    for node in WATCHED:
        here = [peer for peer in WATCHED if peer != node and ADDRESSES[peer][:7] == ADDRESSES[node][:7]]
        listed = ", ".join(f"{peer}: '{ADDRESSES[peer]}:4910'" for peer in here)
        (folder / f"{node}.yaml").write_text(
            f"schema: rankclock-agent/1\nnode: {node}\nread_every: 1s\nlimits: {{cluster: 50us}}\n"
            f"probe: {{bind: '{ADDRESSES[node]}:4910', key_file: {folder}/key, peers: {{{listed}}}}}\n"
        )
        command = [sys.executable, "-m", "rankclock.agent", str(folder / f"{node}.yaml")]
        lab.spawn(node, command, log=folder / f"{node}.log")
    made = Rack(lab)
    until(lambda: set(made.states().values()) == {SyncState.SYNCHRONISED}, 40, "all are synchronised", every_s=0.5)
    return made


def test_agents_see_the_class_and_what_they_measure_holds(rack: Rack) -> None:
    statuses = rack.statuses()
    assert {statuses[node]["agent"]["class"] for node in GPUS} == {"ptp-hardware"}
    assert {statuses[node]["agent"]["utc_limit_ns"] for node in GPUS} == {1_000}
    assert rack.measured_hold() >= 20


def test_frozen_stepped_and_deaf_phcs_are_told_and_measured_offsets_hold_all_along(rack: Rack, until: Until) -> None:
    rack.lab.phc("gpu1").set_frozen(True)
    rack.lab.phc("gpu2").step_ns(5 * NS_PER_MS)
    rack.lab.phc("gpu3").set_lost_tx(True)
    rack.lab.signal_service("gpu4", "phc2sys", signal.SIGSTOP)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        assert rack.measured_hold() > 10
    states = rack.states()
    assert {states[node] for node in ("gpu1", "gpu3", "gpu4")} & {SyncState.SYNCHRONISED} == set()
    rack.lab.phc("gpu1").set_frozen(False)
    rack.lab.phc("gpu3").set_lost_tx(False)
    rack.lab.signal_service("gpu4", "phc2sys", signal.SIGCONT)
    until(lambda: set(rack.states().values()) == {SyncState.SYNCHRONISED}, 60, "all have healed", every_s=0.5)


def test_a_takeover_is_one_changed_grandmaster_at_every_client(rack: Rack, until: Until) -> None:
    changes = "rankclock_ptp_grandmaster_changes_total"
    before = {node: rack.metric(node, changes) for node in GPUS}
    acting = next(
        ptp["identity"]
        for node in ("time1", "time2")
        for ptp in rack.statuses()[node]["agent"]["ptp"]
        if ptp["identity"] == ptp["grandmaster"]
    )
    leaving = next(
        node for node in ("time1", "time2") if rack.statuses()[node]["agent"]["ptp"][0]["identity"] == acting
    )
    rack.lab.signal_service(leaving, "ptp4l", signal.SIGKILL)
    until(lambda: all(rack.metric(node, changes) > before[node] for node in GPUS), 30, "all saw it", every_s=0.5)
    assert rack.measured_hold() > 10
