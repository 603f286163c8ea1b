"""One plan carried out on a lab: assess, plan, render, check, apply tier by tier until the clocks are within budget.

The files that the daemons read are those on disk, unedited. A tier starts when every clock above it was *measured*
within its budget for five seconds: never because of a port state, never after a sleep.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankclock.cluster.facts import Facts
from rankclock.configs import RenderedNode, read_rendered, render, write_rendered
from rankclock.demo.timeline import Timeline
from rankclock.demo.watch import Watch
from rankclock.errors import HostError, InternalError
from rankclock.fleet.collect import collect_facts
from rankclock.fleet.transport import InLab
from rankclock.lab import Lab
from rankclock.lab.apply import start_sources
from rankclock.lab.daemons import find_daemon
from rankclock.node.parsers import check_command, check_file
from rankclock.planning import Plan, make_plan
from rankclock.planning.settings import Settings
from rankclock.planning.tree import plan_text
from rankclock.report.record import PlanNode, PlanRecord
from rankclock.timebase import format_span_ns

__all__ = ["Stage"]

SETTLE_LIMIT_S = 45.0
LOOK_EVERY_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A plan and its files, on a running lab that is watched. Made by `prepare`."""

    lab: Lab
    timeline: Timeline
    watch: Watch
    plan: Plan
    nodes: dict[str, RenderedNode]
    identities: dict[str, str]
    """PTP clock identity, as daemons print it, to node name."""

    @classmethod
    def prepare(cls, lab: Lab, timeline: Timeline, watch: Watch, *, protocol: str, out: Path) -> Stage:
        """Collects facts in every node, decides, plans, renders into `out`, and asks the daemons' own parsers.

        Raises HostError where a parser refuses a file or the plan cannot be carried out.
        """
        cluster = lab.scenario.cluster
        names = [node.name for node in cluster.nodes]
        found = collect_facts({name: InLab(lab=lab, node=name) for name in names})
        facts = {name: Facts.from_json(value) for name, value in found.items()}
        timeline.tell(f"assess: facts of {len(facts)} nodes, read inside each node")
        plan = make_plan(cluster, facts, protocol, Settings(clocks_are_virtual=True))
        if not plan.usable:
            reasons = "; ".join(f"{item.subject}: {item.reason}" for item in plan.refused)
            raise HostError(f"the {protocol} plan cannot be carried out here: {reasons or plan.reach.value}")
        timeline.tell(f"plan: {plan.scheme}, because {plan.decision.reason}")
        write_rendered(out, render(plan, cluster, facts), plan)
        nodes = read_rendered(out)
        _ask_parsers(out, nodes, timeline)
        return cls(lab=lab, timeline=timeline, watch=watch, plan=plan, nodes=nodes, identities=_identities(found))

    def budget_ns(self, node: str) -> int:
        """What the plan lets the node be off from the source; the accuracy asked for where it knows no figure."""
        return self.plan.roles[node].budget.total_ns or self.plan.accuracy_ns

    def apply(self, *, leave_stopped: Collection[str] = ()) -> bool:
        """Installs all files and starts the services tier by tier; whether every tier settled in time."""
        start_sources(self.lab)
        for name, node in self.nodes.items():
            self.lab.install(name, {path: text.encode() for path, text in node.files.items()})
        for tier in sorted({service.tier for node in self.nodes.values() for service in node.services}):
            names = [
                name
                for name, node in self.nodes.items()
                if name not in leave_stopped and any(service.tier == tier for service in node.services)
            ]
            self.start(names, tier=tier)
            if not self.settle(names, what=f"tier {tier}"):
                return False
        return True

    def start(self, names: Iterable[str], *, tier: int | None = None) -> None:
        """Starts the services of some nodes (of one tier, or all) as the manifest says."""
        for name in names:
            for service in self.nodes[name].services:
                if tier is None or service.tier == tier:
                    self.lab.start_service(name, service)

    def settle(self, names: Collection[str], *, what: str) -> bool:
        """Waits until the nodes' measured offsets kept within their budgets for five seconds; False if not in time."""
        budgets_ns = {name: self.budget_ns(name) for name in names if name != self.watch.reference}
        began_s = self.timeline.now_s()
        while not self.watch.settled(budgets_ns, after_s=began_s):
            if self.timeline.now_s() - began_s > SETTLE_LIMIT_S:
                late = [name for name, budget in budgets_ns.items() if not self.watch.settled({name: budget})]
                self.timeline.tell(
                    f"{what}: {', '.join(late)} not within budget after {SETTLE_LIMIT_S:g} s", event=True
                )
                return False
            self.watch.look()
            time.sleep(LOOK_EVERY_S)
        took_s = self.timeline.now_s() - began_s
        widest = format_span_ns(max(budgets_ns.values(), default=0))
        self.timeline.tell(
            f"{what}: {', '.join(names)} measured within budget (at most {widest}) for 5 s, after {took_s:.1f} s"
        )
        return True

    def record(self) -> PlanRecord:
        """The plan with how every clock stands now."""
        if self.plan.scheme is None:
            raise InternalError("a plan without a scheme was carried out")
        nodes = tuple(
            PlanNode(
                node=name,
                role=role.role.value,
                upstream=role.upstream,
                owner=role.owner.value,
                tier=role.tier,
                budget_ns=role.budget.total_ns,
            )
            for name, role in self.plan.roles.items()
        )
        return PlanRecord(
            protocol=self.plan.scheme.value,
            tree=plan_text(self.plan),
            decision=tuple(
                f"{item.question} {item.answer.value}: {'; '.join(item.evidence)}"
                for item in self.plan.decision.questions
            ),
            nodes=nodes,
            standings=self.watch.standings(name for name in self.plan.roles if name != self.watch.reference),
            standings_at_s=self.timeline.now_s(),
        )


def _ask_parsers(out: Path, nodes: dict[str, RenderedNode], timeline: Timeline) -> None:
    """`chronyd -p`, ptp4l's parser and phc2sys on what was written."""
    asked = 0
    for name, node in nodes.items():
        verdicts = [
            check_file(out / name / path.lstrip("/"), find_daemon) for path in node.files if path.endswith(".conf")
        ]
        verdicts += [check_command(service.argv, find_daemon) for service in node.services if service.name == "phc2sys"]
        for verdict in verdicts:
            if verdict.accepted is False:
                raise HostError(f"{verdict.program} refuses {verdict.what}: {verdict.said}")
            asked += verdict.accepted is True
    timeline.tell(
        f"render: {sum(len(node.files) for node in nodes.values())} files; the daemons' parsers took all {asked} asked"
    )


def _identities(found: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """A clock identity is a port's hardware address with ff:fe in the middle (IEEE 1588-2019, 7.5.2.2)."""
    identities = {}
    for node, value in found.items():
        for key, fact in value["facts"].items():
            mac = (fact["value"] or {}).get("mac") if key.startswith("nic.") else None
            if mac:
                digits = mac.replace(":", "")
                identities[f"{digits[:6]}.fffe.{digits[6:]}"] = node
    return identities
