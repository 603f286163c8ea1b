"""Rendered files, unedited, with the real daemons: they reach the planned tree, on UTC, and survive the grandmaster."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rankclock.cluster import Cluster, Facts, parse_cluster
from rankclock.configs import RenderedNode, render
from rankclock.lab import Lab, Scenario
from rankclock.lab.apply import apply
from rankclock.planning import Plan, Role, Scheme, make_plan

pytestmark = pytest.mark.lab

NS_PER_S = 1_000_000_000
TAI_MINUS_UTC_NS = 37 * NS_PER_S

SMALL = """\
schema: rankclock-cluster/1
name: small
pace: fast
require: {accuracy: 50us}
nodes:
  - {name: time1, kind: server, nics: [{name: eth0, address: 10.90.0.11/24, segment: spine}]}
  - name: leaf1
    kind: switch
    nics:
      - {name: eth0, address: 10.90.0.21/24, segment: spine}
      - {name: eth1, address: 10.90.1.1/24, segment: rack1}
  - {name: gpu1, nics: [{name: eth0, address: 10.90.1.11/24, segment: rack1}]}
"""

PAIR = SMALL.replace(
    "nodes:\n",
    "sources: [{name: upstream, node: upstream}]\n"
    "nodes:\n  - {name: upstream, kind: source, nics: [{name: eth0, address: 10.90.0.1/24, segment: spine}]}\n",
).replace(
    "  - name: leaf1",
    "  - {name: time2, kind: server, nics: [{name: eth0, address: 10.90.0.12/24, segment: spine}]}\n  - name: leaf1",
)

CLOCKS = {
    "time1": {"offset_ns": 350_000, "drift_ppb": -4_200, "phc": {"offset_ns": 41_000_000, "drift_ppb": 11_000}},
    "leaf1": {"offset_ns": -18_000_000, "drift_ppb": 15_300, "phc": {"offset_ns": -350_000_000, "drift_ppb": -23_000}},
    "gpu1": {"offset_ns": -20 * NS_PER_S, "drift_ppb": 60_000, "phc": {"offset_ns": 72_000_000, "drift_ppb": -9_100}},
}


def probed(lab: Lab, cluster: Cluster) -> dict[str, Facts]:
    """The facts that each node's own probe collects."""
    found = {}
    for node in cluster.nodes:
        code = f"import json, rankclock.node.facts as f; print(json.dumps(f.collect_facts({node.name!r})))"
        done = lab.run(node.name, [sys.executable, "-c", code], timeout_s=30)
        found[node.name] = Facts.from_json(json.loads(done.stdout))
    return found


def planned(lab: Lab, protocol: str) -> tuple[Plan, dict[str, RenderedNode]]:
    cluster = lab.scenario.cluster
    facts = probed(lab, cluster)
    plan = make_plan(cluster, facts, protocol)
    return plan, render(plan, cluster, facts)


def start(lab: Lab, nodes: dict[str, RenderedNode], logs: Path, after_tier: Callable[[set[str]], None]) -> None:
    """Tier by tier, with `after_tier` between (it gets the nodes that have started)."""
    for name, node in nodes.items():
        lab.install(name, {path: text.encode() for path, text in node.files.items()})
    for tier in sorted({service.tier for node in nodes.values() for service in node.services}):
        started = set()
        for name, node in nodes.items():
            for service in node.services:
                if service.tier == tier:
                    lab.start_service(name, service, log=logs / f"{name}-{service.name}.log")
                    started.add(name)
        after_tier(started)


def said(lab: Lab, node: str, data_set: str) -> dict[str, str]:
    done = lab.run(node, ["pmc", "-u", "-b", "0", f"GET {data_set}"], timeout_s=10)
    return dict(line.split(None, 1) for line in done.stdout.splitlines() if line.startswith("\t\t"))


@pytest.fixture
def small(
    lab_of: Callable[[Scenario], Lab], daemon: Callable[[str], Path]
) -> tuple[Lab, Plan, dict[str, RenderedNode]]:
    """A lab of SMALL and its rendered hardware PTP plan, nothing started."""
    for name in ("chronyd", "ptp4l", "phc2sys", "pmc"):
        daemon(name)
    lab = lab_of(Scenario.of(parse_cluster(SMALL, "small.yaml"), clocks=CLOCKS))
    plan, nodes = planned(lab, "ptp")
    assert plan.scheme is Scheme.PTP_HARDWARE
    return lab, plan, nodes


def test_hardware_ptp_brings_a_client_two_clocks_down_onto_the_grandmasters_utc(
    small: tuple[Lab, Plan, dict[str, RenderedNode]], until: Callable[..., None], tmp_path: Path
) -> None:
    lab, plan, nodes = small

    def settled(names: set[str]) -> None:
        def within() -> bool:
            budgets = {name: plan.roles[name].budget.in_cluster_ns or 0 for name in names}
            return all(abs(lab.true_offset_ns(name, "time1")) <= budget_ns for name, budget_ns in budgets.items())

        until(within, 30, f"{names} within their budgets of the grandmaster's time")

    start(lab, nodes, tmp_path, settled)
    assert said(lab, "gpu1", "CURRENT_DATA_SET")["stepsRemoved"] == "2"
    master = said(lab, "time1", "DEFAULT_DATA_SET")["clockIdentity"]
    assert said(lab, "gpu1", "PARENT_DATA_SET")["grandmasterIdentity"] == master
    phc_lead_ns = lab.phc("time1").read().real_ns - lab.clock("time1").read().real_ns
    assert abs(phc_lead_ns - TAI_MINUS_UTC_NS) < NS_PER_S // 10, "the PHC keeps TAI, the system clock UTC"


@pytest.mark.slow
def test_clocks_that_all_start_at_once_heal_without_help(
    small: tuple[Lab, Plan, dict[str, RenderedNode]], until: Callable[..., None], tmp_path: Path
) -> None:
    lab, plan, nodes = small
    start(lab, nodes, tmp_path, lambda _: None)
    budget_ns = plan.roles["gpu1"].budget.in_cluster_ns or 0
    since = [time.monotonic()]

    def stays_within() -> bool:
        if abs(lab.true_offset_ns("gpu1", "time1")) > budget_ns:
            since[0] = time.monotonic()
        return time.monotonic() - since[0] > 5

    until(stays_within, 120, "gpu1 has been on the grandmaster's time for 5 s")


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["ntp", "ptp"])
def test_the_planned_tree_is_reached_within_its_budgets_and_a_dead_server_is_replaced(
    protocol: str,
    lab_of: Callable[[Scenario], Lab],
    daemon: Callable[[str], Path],
    until: Callable[..., None],
    tmp_path: Path,
) -> None:
    for name in ("chronyd", "chronyc", "ptp4l", "phc2sys", "pmc"):
        daemon(name)
    lab = lab_of(Scenario.of(parse_cluster(PAIR, "pair.yaml"), clocks=CLOCKS))
    plan, nodes = planned(lab, protocol)
    tiers = apply(lab, nodes, accuracy_ns=plan.accuracy_ns, settle_s=2.0, logs=tmp_path)
    assert all(tier.settled for tier in tiers), tiers

    unowned = frozenset({"time1"} if protocol == "ntp" else ())  # its chronyd is the one that is killed

    def within_budget(without: frozenset[str] = frozenset()) -> bool:
        return all(
            abs(lab.true_offset_ns(name, "upstream")) <= (role.budget.total_ns or 0)
            for name, role in plan.roles.items()
            if name not in without
        )

    until(within_budget, 30, "every node is within its planned error")
    if protocol == "ntp":
        follows_by_ntp(lab, plan, until)
    else:
        follows_by_ptp(lab, plan, until)
    until(lambda: within_budget(unowned), 30, "every node that has its daemon is within its planned error again")


@pytest.mark.slow
def test_servers_and_clients_stay_together_when_the_source_is_gone(
    lab_of: Callable[[Scenario], Lab], daemon: Callable[[str], Path], until: Callable[..., None], tmp_path: Path
) -> None:
    for name in ("chronyd", "chronyc"):
        daemon(name)
    lab = lab_of(Scenario.of(parse_cluster(PAIR, "pair.yaml"), clocks=CLOCKS))
    plan, nodes = planned(lab, "ntp")
    apply(lab, nodes, accuracy_ns=plan.accuracy_ns, settle_s=2.0, logs=tmp_path)
    lab.services["upstream", "chronyd"].kill(signal.SIGKILL)
    lab.clock("time1").set_drift_ppb(-1_200)
    lab.clock("time2").set_drift_ppb(3_000)  # left alone, the two would part by 4 µs each second

    def source() -> str:
        return lab.run("time2", ["chronyc", "-c", "tracking"], timeout_s=10).stdout.split(",")[1]

    until(lambda: source() == plan.roles["time2"].mates[0].address, 60, "time2 follows time1", every_s=0.5)
    from_now_s = time.monotonic()

    def together_for_long() -> bool:
        for name in ("time2", "leaf1", "gpu1"):
            assert abs(lab.true_offset_ns(name, "time1")) < 100_000, name
        return time.monotonic() - from_now_s > 30

    until(together_for_long, 40, "half a minute")


def follows_by_ntp(lab: Lab, plan: Plan, until: Callable[..., None]) -> None:
    def source() -> str:
        return lab.run("gpu1", ["chronyc", "-c", "tracking"], timeout_s=10).stdout.split(",")[1]

    addresses = {server.name: server.address for server in plan.roles["gpu1"].servers}
    assert source() == addresses["time1"], "all follow the preferred server"
    lab.services["time1", "chronyd"].kill(signal.SIGKILL)
    # chrony gives a server up after 8 polls without an answer; they come every 1 to 4 s.
    until(lambda: source() == addresses["time2"], 60, "gpu1 follows the second server", every_s=0.5)


def follows_by_ptp(lab: Lab, plan: Plan, until: Callable[..., None]) -> None:
    identities = {name: said(lab, name, "DEFAULT_DATA_SET")["clockIdentity"] for name in ("time1", "time2")}
    assert {name for name, role in plan.roles.items() if role.role is Role.BACKUP_GRANDMASTER} == {"time2"}
    assert said(lab, "time2", "PORT_DATA_SET")["portState"] == "UNCALIBRATED", "the backup follows and does not steer"

    def grandmaster() -> str:
        return said(lab, "gpu1", "PARENT_DATA_SET")["grandmasterIdentity"]

    assert grandmaster() == identities["time1"]
    lab.services["time1", "ptp4l"].kill(signal.SIGKILL)
    until(lambda: grandmaster() == identities["time2"], 10, "time2 is the grandmaster", every_s=0.2)
