"""A plan's services come up in a lab tier by tier, and the truth decides when a tier is right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rankclock.errors import UserError
from rankclock.lab import Lab, Scenario
from rankclock.lab.apply import apply

pytestmark = pytest.mark.lab

CONF = "/etc/chrony/chrony.conf"
COMMON = "driftfile /var/lib/chrony/chrony.drift\npidfile /run/chrony/chronyd.pid\nallow\nmakestep 0.0001 3\n"


@dataclass(frozen=True)
class Service:
    name: str
    argv: tuple[str, ...]
    tier: int
    directories: tuple[str, ...] = ("/run/chrony", "/var/lib/chrony")


@dataclass(frozen=True)
class Rendered:
    files: dict[str, str]
    services: tuple[Service, ...] = field(default=())


def client(server: str, tier: int) -> Rendered:
    argv = ("/usr/sbin/chronyd", "-d", "-u", "root", "-f", CONF)
    text = f"{COMMON}server {server} iburst minpoll -2 maxpoll 0 xleave\n"
    return Rendered({CONF: text}, (Service("chronyd", argv, tier),))


PLAN = {"server": client("top", 0), "worker": client("server", 1), "late": client("server", 1)}


@pytest.fixture(scope="module")
def lab(lab_of: Callable[[Scenario], Lab], daemon: Callable[[str], Path]) -> Lab:
    daemon("chronyd")
    nodes = [
        {
            "name": name,
            "kind": kind,
            "nics": [{"name": "eth0", "address": f"10.78.0.{i}/24", "segment": "lan"}],
        }
        for i, (name, kind) in enumerate(
            (("top", "source"), ("server", "server"), ("worker", "training"), ("late", "training")), start=1
        )
    ]
    cluster = {"schema": "rankclock-cluster/1", "name": "tiers", "nodes": nodes}
    clocks = {name: {"offset_ns": 700_000_000, "drift_ppb": 5000} for name in ("server", "worker", "late")}
    return lab_of(Scenario.model_validate({"schema": "rankclock-lab/1", "cluster": cluster, "clocks": clocks}))


def test_tiers_start_one_after_the_other_and_a_node_left_out_is_only_installed(lab: Lab) -> None:
    said: list[str] = []
    tiers = apply(lab, PLAN, accuracy_ns=200_000, settle_s=0.3, leave_stopped=("late",), progress=said.append)
    assert [(tier.tier, tier.nodes, tier.settled) for tier in tiers] == [(0, ("server",), True), (1, ("worker",), True)]
    assert said == ["tier 0: started server", "tier 1: started worker"]
    assert all(tier.worst_ns is not None and tier.worst_ns <= 200_000 for tier in tiers)
    assert lab.running_services("top") == {"chronyd": True}, "the source serves"
    assert lab.running_services("late") == {}
    assert lab.run("late", ["cat", CONF], timeout_s=5).stdout == PLAN["late"].files[CONF]
    assert abs(lab.true_offset_ns("late", "top")) > 600_000_000


def test_tier_that_does_not_get_there_in_time_is_told_and_ends_the_start(lab: Lab) -> None:
    said: list[str] = []
    tiers = apply(lab, PLAN, accuracy_ns=0, settle_s=0.3, timeout_s=0.5, progress=said.append)
    assert [(tier.tier, tier.settled) for tier in tiers] == [(0, False)]
    assert said[-1] == "tier 0: not within 0 ns after 0.5 s: the tiers below are not started"
    assert lab.running_services("worker") == {"chronyd": False}, "stopped for the new start, which did not come so far"


def test_plan_for_another_cluster_is_refused(lab: Lab) -> None:
    with pytest.raises(UserError, match="node 'stranger' that the lab does not have"):
        apply(lab, {"stranger": client("top", 0)}, accuracy_ns=1)
