"""Plans of further kinds, rendered and unedited, with the real daemons: NTP behind PTP, transparent switches, unicast,
certificates. The truth is known; every node stays within what was planned for it.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rankclock.cluster import Facts, parse_cluster
from rankclock.configs import RenderedNode, render
from rankclock.lab import Lab, Scenario
from rankclock.lab.apply import apply
from rankclock.planning import Owner, Plan, Role, Scheme, make_plan
from rankclock.timebase import NS_PER_S

pytestmark = [pytest.mark.lab, pytest.mark.slow]

Until = Callable[..., None]

CLUSTER = """\
schema: rankclock-cluster/1
name: kinds
pace: fast
require: {accuracy: 200us}
network: {routed: true}
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
  - {name: gpu1, nics: [{name: eth0, address: 10.90.1.11/24, segment: rack1}]}
"""
CLOCKS = {
    "time1": {"offset_ns": 350_000, "drift_ppb": -4_200, "phc": {"offset_ns": 41_000_000, "drift_ppb": 11_000}},
    "time2": {"offset_ns": -90_000, "drift_ppb": 7_000, "phc": {"offset_ns": 3_000_000, "drift_ppb": -11_000}},
    "leaf1": {"offset_ns": -18_000_000, "drift_ppb": 15_300, "phc": {"offset_ns": -350_000_000, "drift_ppb": -23_000}},
    "gpu1": {"offset_ns": -2 * NS_PER_S, "drift_ppb": 21_000, "phc": {"offset_ns": 72_000_000, "drift_ppb": -9_100}},
}


def runs_as_root(node: RenderedNode) -> RenderedNode:
    """Nobody in a lab may hand CAP_SYS_TIME to another user: the chronyd that timemaster starts stays root."""
    old, new = "[chronyd]\npath /usr/sbin/chronyd\n", "[chronyd]\npath /usr/sbin/chronyd\noptions -u root\n"
    return replace(node, files={path: text.replace(old, new) for path, text in node.files.items()})


@pytest.fixture
def running(
    lab_of: Callable[[Scenario], Lab], daemon: Callable[[str], Path], tmp_path: Path
) -> Callable[..., tuple[Lab, Plan, dict[str, RenderedNode]]]:
    """A lab in which a plan's own files run: `changes` of the cluster file, `before` happens before the start."""

    def start(
        protocol: str,
        *changes: tuple[str, str],
        before: Callable[[Lab], None] = lambda _: None,
        clocks: dict[str, Any] = CLOCKS,
    ) -> tuple[Lab, Plan, dict[str, RenderedNode]]:
        text = CLUSTER
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        for name in ("chronyd", "chronyc", "ptp4l", "phc2sys", "pmc"):
            daemon(name)
        lab = lab_of(Scenario.of(parse_cluster(text, "kinds.yaml"), clocks=clocks))
        facts = {}
        for node in lab.scenario.cluster.nodes:
            code = f"import json, rankclock.node.facts as f; print(json.dumps(f.collect_facts({node.name!r})))"
            done = lab.run(node.name, [sys.executable, "-c", code], timeout_s=30)
            facts[node.name] = Facts.from_json(json.loads(done.stdout))
        plan = make_plan(lab.scenario.cluster, facts, protocol)
        nodes = render(plan, lab.scenario.cluster, facts)
        nodes = {name: runs_as_root(node) for name, node in nodes.items()}
        before(lab)
        tiers = apply(lab, nodes, accuracy_ns=plan.accuracy_ns, settle_s=2.0, logs=tmp_path)
        assert all(tier.settled for tier in tiers), tiers
        return lab, plan, nodes

    return start


def source(lab: Lab, node: str) -> str:
    """What chronyd follows there: an address, or a reference clock's name."""
    fields = lab.run(node, ["chronyc", "-c", "-n", "tracking"], timeout_s=10).stdout.split(",")
    return fields[1] if len(fields) > 1 else ""


def said(lab: Lab, node: str, data_set: str) -> dict[str, str]:
    done = lab.run(node, ["pmc", "-u", "-b", "0", f"GET {data_set}"], timeout_s=10)
    return dict(line.split(None, 1) for line in done.stdout.splitlines() if line.startswith("\t\t"))


def within(lab: Lab, plan: Plan, node: str) -> bool:
    """Whether a node's clock is as near to the source as planned."""
    return abs(lab.true_offset_ns(node, "upstream")) <= (plan.roles[node].budget.total_ns or 0)


@pytest.mark.parametrize("manager", ["units", "timemaster"])
def test_with_ntp_behind_ptp_a_node_falls_back_by_itself_and_comes_back(
    running: Callable[..., tuple[Lab, Plan, dict[str, RenderedNode]]],
    until: Until,
    manager: str,
    daemon: Callable[[str], Path],
) -> None:
    daemon("timemaster")
    lab, plan, nodes = running("hybrid", ("pace: fast\n", f"pace: fast\nptp: {{manager: {manager}}}\n"))
    assert plan.roles["gpu1"].owner is Owner.CHRONYD
    until(lambda: source(lab, "gpu1").startswith("PTP"), 30, "PTP is followed", every_s=0.3)
    until(lambda: within(lab, plan, "gpu1"), 30, "gpu1 is within its planned error")
    ptp4l = next(service for service in nodes["leaf1"].services if service.name == "ptp4l")
    lab.services["leaf1", "ptp4l"].kill(signal.SIGKILL)
    servers = {server.address for server in plan.roles["gpu1"].servers}
    until(lambda: source(lab, "gpu1") in servers, 60, "NTP is followed when PTP falls silent", every_s=0.3)
    lab.clock("gpu1").set_drift_ppb(60_000)  # alone it would be off by the planned error within a second
    until(lambda: abs(lab.true_offset_ns("gpu1", "upstream")) < plan.accuracy_ns, 60, "NTP keeps gpu1")
    lab.start_service("leaf1", ptp4l)
    until(lambda: source(lab, "gpu1").startswith("PTP"), 60, "PTP is followed again", every_s=0.3)
    until(lambda: within(lab, plan, "gpu1"), 60, "gpu1 is within its planned error again")


def test_a_transparent_switch_passes_the_grandmasters_time_on_and_counts_no_step(
    running: Callable[..., tuple[Lab, Plan, dict[str, RenderedNode]]], until: Until
) -> None:
    lab, plan, _ = running("ptp", ("kind: switch\n", "kind: switch\n    ptp_clock: transparent\n"))
    assert plan.roles["leaf1"].role is Role.TRANSPARENT_CLOCK
    master = said(lab, "time1", "DEFAULT_DATA_SET")["clockIdentity"]
    assert said(lab, "gpu1", "PARENT_DATA_SET")["parentPortIdentity"].startswith(master), "no clock stands between"
    assert said(lab, "gpu1", "CURRENT_DATA_SET")["stepsRemoved"] == "1"
    until(lambda: within(lab, plan, "gpu1"), 60, "gpu1 is within its planned error")


def test_unicast_clients_find_their_clocks_by_address_and_the_backup_takes_over(
    running: Callable[..., tuple[Lab, Plan, dict[str, RenderedNode]]], until: Until
) -> None:
    lab, plan, _ = running("ptp", ("pace: fast\n", "pace: fast\nptp: {messages: unicast}\n"))
    identities = {name: said(lab, name, "DEFAULT_DATA_SET")["clockIdentity"] for name in ("time1", "time2")}
    assert said(lab, "gpu1", "PARENT_DATA_SET")["grandmasterIdentity"] == identities["time1"]
    assert said(lab, "gpu1", "CURRENT_DATA_SET")["stepsRemoved"] == "2"
    until(lambda: within(lab, plan, "gpu1"), 60, "gpu1 is within its planned error")
    lab.services["time1", "ptp4l"].kill(signal.SIGKILL)
    until(
        lambda: said(lab, "gpu1", "PARENT_DATA_SET").get("grandmasterIdentity") == identities["time2"],
        30,
        "the backup leads",
        every_s=0.3,
    )


def test_software_ptp_reaches_the_planned_tree_and_its_backup_takes_over(
    running: Callable[..., tuple[Lab, Plan, dict[str, RenderedNode]]], until: Until
) -> None:
    without = {node: {**clock, "phc": None} for node, clock in CLOCKS.items()}
    without["upstream"] = {"phc": None}
    lab, plan, nodes = running("ptp", clocks=without)
    assert plan.scheme is Scheme.PTP_SOFTWARE
    assert not any(service.name == "phc2sys" for node in nodes.values() for service in node.services)
    identities = {name: said(lab, name, "DEFAULT_DATA_SET")["clockIdentity"] for name in ("time1", "time2")}
    assert said(lab, "gpu1", "PARENT_DATA_SET")["grandmasterIdentity"] == identities["time1"]
    assert said(lab, "gpu1", "CURRENT_DATA_SET")["stepsRemoved"] == "2"
    until(lambda: within(lab, plan, "gpu1"), 60, "gpu1 is within its planned error")
    lab.services["time1", "ptp4l"].kill(signal.SIGKILL)
    until(
        lambda: said(lab, "gpu1", "PARENT_DATA_SET").get("grandmasterIdentity") == identities["time2"],
        30,
        "the backup leads",
        every_s=0.3,
    )


def certificates(folder: Path) -> dict[str, bytes]:
    """A small authority and a certificate of both servers, by the paths that the plan names."""
    extension = folder / "san.cnf"
    extension.write_text("subjectAltName=IP:10.90.0.11,IP:10.90.0.12\n")
    commands = (
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ca.key -out ca.pem -days 2 -subj /CN=lab",
        "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout server.key -out server.csr -subj /CN=time",
        "x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -out server.pem -extfile san.cnf",
    )
    for command in commands:
        subprocess.run(["openssl", *command.split()], cwd=folder, check=True, capture_output=True)
    return {f"/etc/chrony/nts/{name}": (folder / name).read_bytes() for name in ("ca.pem", "server.pem", "server.key")}


def test_clients_know_their_servers_by_certificates_and_outlive_one_of_them(
    running: Callable[..., tuple[Lab, Plan, dict[str, RenderedNode]]], until: Until, tmp_path: Path
) -> None:
    files = certificates(tmp_path)

    def install(lab: Lab) -> None:
        for node in ("time1", "time2", "leaf1", "gpu1"):
            lab.install(node, files)

    lab, plan, _ = running("ntp", ("pace: fast\n", "pace: fast\nntp: {nts: true}\n"), before=install)
    authenticated = lab.run("gpu1", ["chronyc", "-c", "-n", "authdata"], timeout_s=10).stdout.splitlines()
    assert [line.split(",")[1] for line in authenticated] == ["NTS", "NTS"]
    until(lambda: within(lab, plan, "gpu1"), 60, "gpu1 is within its planned error")
    assert source(lab, "gpu1") == "10.90.0.11"
    lab.services["time1", "chronyd"].kill(signal.SIGKILL)
    until(lambda: source(lab, "gpu1") == "10.90.0.12", 60, "the second server is followed", every_s=0.5)
    until(lambda: within(lab, plan, "gpu1"), 60, "gpu1 is within its planned error again")
