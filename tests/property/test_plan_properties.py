"""Any cluster gives a plan or refusals, never a fault; what is planned and rendered keeps its promises."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rankclock.cluster import Cluster, Facts
from rankclock.configs import manifest_of, render
from rankclock.planning import Owner, Plan, PortSide, Role, decision_text, make_plan, plan_text

SEGMENTS = ("spine", "r1", "r2")

stamps = st.sampled_from(["hardware", "hardware", "hardware", "software", None])
uses = st.sampled_from(["any", "any", "any", "time", "data"])
nics = st.lists(st.tuples(st.sampled_from(SEGMENTS), stamps, uses), min_size=1, max_size=3)
node = st.tuples(
    st.sampled_from(["training", "training", "server", "switch", "source"]), st.sampled_from([None, "a", "b"]), nics
)
nic_facts = st.fixed_dictionaries(
    {
        key: st.sampled_from([True, True, False, None])
        for key in ("tx_hardware", "rx_hardware", "raw_hardware", "tx_software")
    }
    | {"phc_index": st.sampled_from([-1, 0, 1, None]), "link_type": st.sampled_from(["ethernet", "infiniband", None])}
)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[Cluster, dict[str, Facts]]:
    described = draw(st.lists(node, min_size=1, max_size=8))
    names = [f"n{number}" for number in range(len(described))]
    nodes: list[dict[str, Any]] = []
    for number, (kind, rack, ports) in enumerate(described):
        listed = [
            {
                "name": f"eth{port}",
                "address": f"10.{SEGMENTS.index(segment)}.{number}.{port + 1}/16",
                "segment": segment,
                "stamps": declared,
                "use": use,
            }
            for port, (segment, declared, use) in enumerate(ports)
        ]
        upstream = draw(st.lists(st.sampled_from(names), max_size=2)) if draw(st.integers(0, 5)) == 0 else []
        nodes.append({"name": names[number], "kind": kind, "rack": rack, "nics": listed, "upstream": upstream})
    sources = draw(st.lists(st.sampled_from(["10.0.99.1", "10.0.0.1", "ntp.example.org"]), max_size=2, unique=True))
    cluster = Cluster.model_validate(
        {
            "schema": "rankclock-cluster/1",
            "name": "any",
            "protocol": draw(st.sampled_from(["auto", "ntp", "ptp", "ptp"])),
            "pace": draw(st.sampled_from(["normal", "fast"])),
            "require": {"accuracy_ns": draw(st.sampled_from([100, 5_000, 50_000, 10_000_000]))},
            "sources": [{"name": f"s{number}", "address": address} for number, address in enumerate(sources)],
            "nodes": nodes,
        }
    )
    seen = {}
    some = st.lists(st.sampled_from(cluster.nodes), max_size=2, unique_by=lambda node: node.name)
    for item in draw(some):
        values: dict[str, Any] = {f"nic.{nic.name}": draw(nic_facts) for nic in item.nics}
        wrapped = {key: {"value": value, "why": None, "source": "any"} for key, value in values.items()}
        seen[item.name] = Facts.from_json(
            {"schema": "rankclock-facts/1", "node": item.name, "collected_at_ns": 0, "facts": wrapped}
        )
    return cluster, seen


@given(clusters())
@settings(max_examples=150, deadline=None)
def test_every_cluster_gets_a_plan_or_refusals_and_what_is_planned_holds(
    given_: tuple[Cluster, dict[str, Facts]],
) -> None:
    cluster, facts = given_
    plan = make_plan(cluster, facts)
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    assert plan_text(plan) and decision_text(plan.decision)
    if not plan.usable:
        assert plan.refused or plan.reach.value == "no"
    for role in plan.roles.values():
        assert role.budget.total_ns is None or role.budget.total_ns >= (role.budget.hops[0].bound_ns or 0)
        above = [plan.roles[name] for name in role.upstream if name in plan.roles]
        assert all(upper.tier < role.tier for upper in above), "whom a node follows starts before it"
    assert_ptp_holds(plan)
    nodes = render(plan, cluster, facts)
    assert manifest_of(nodes, plan).to_bytes() == manifest_of(render(plan, cluster, facts), plan).to_bytes()
    for name, node in nodes.items():
        daemons = {service.name for service in node.services}
        assert (plan.roles[name].owner is Owner.CHRONYD) == ("chronyd" in daemons)
        assert all(path.startswith("/etc/") for path in node.files)


def assert_ptp_holds(plan: Plan) -> None:
    ports = [(role, port) for role in plan.roles.values() for port in role.ports]
    serving_only = Counter(port.segment for _, port in ports if port.side is PortSide.DOWN)
    assert all(count == 1 for count in serving_only.values()), "two masters that ignore each other in one segment"
    for role in plan.roles.values():
        if role.role is Role.BOUNDARY_CLOCK:
            assert len({port.segment for port in role.ports}) == len(role.ports) >= 2
            assert any(port.side is PortSide.UP for port in role.ports)
        if role.role is Role.ORDINARY_CLOCK:
            served = {port.segment for other, port in ports if other.role is not Role.ORDINARY_CLOCK}
            assert role.ports[0].segment in served, "an ordinary clock hears nobody"
            assert role.upstream
