"""A plan and a decision as text for people: the tree from the source down, neighbours of one kind folded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TypeVar

from rankclock.cluster.hostlist import fold
from rankclock.planning.model import Answer, Decision, NodeRole, Plan, Role
from rankclock.timebase import format_span_ns

__all__ = ["decision_text", "plan_text", "span"]

T = TypeVar("T")


def plan_text(plan: Plan) -> str:
    """The plan as a tree, with the worst pair, what is refused and what to know."""
    lines = [_headline(plan)]
    lines += _tree_lines(plan)
    lines += [f"refused: {item.subject}: {item.reason}; {item.do}" for item in plan.refused]
    lines += [f"note: {note}" for note in plan.notes]
    return "\n".join(lines) + "\n"


def decision_text(decision: Decision) -> str:
    """Every question with its answer, evidence, threshold, and what would change it."""
    lines = []
    for number, item in enumerate(decision.questions, start=1):
        lines.append(f"{number}. {item.question} {item.answer.value.upper()} -> {item.leads_to}")
        details = [f"because {text}" for text in item.evidence]
        if item.threshold:
            details.append(f"threshold {item.threshold}")
        details.append(f"would change: {item.would_change}")
        lines += [f"   {'└─' if last else '├─'} {text}" for text, last in _with_last(details)]
    chosen = decision.scheme.value if decision.scheme else "nothing"
    lines.append(f"choice: {chosen}, because {decision.reason}")
    lines.append(
        "expected between two nodes (typical, bound):" if decision.expectations else "no figures for this network"
    )
    for row in decision.expectations:
        typical, bound = format_span_ns(row.typical_ns), format_span_ns(row.bound_ns)
        here = {Answer.YES: "", Answer.NO: ", not possible here", Answer.UNKNOWN: ", not known to be possible here"}
        lines.append(f"   {row.scheme.value:<13} {typical:>8} {bound:>8}{here[row.possible]} ({row.source})")
    return "\n".join(lines) + "\n"


def span(span_ns: int | None) -> str:
    """A span, or `unknown`."""
    return "unknown" if span_ns is None else format_span_ns(span_ns)


def _headline(plan: Plan) -> str:
    asked = format_span_ns(plan.accuracy_ns)
    if plan.scheme is None:
        return f"{plan.cluster}: no plan"
    by = "asked for" if plan.decision.chosen_by == "owner" else "chosen by the questions"
    worst = f"{plan.worst_pair[0]} and {plan.worst_pair[1]}" if plan.worst_pair else "one node"
    return (
        f"{plan.cluster}: {plan.scheme.value} ({by}); {asked} between any two nodes reached: {plan.reach.value} "
        f"({worst}: typical {span(plan.worst_pair_typical_ns)}, bound {span(plan.worst_pair_ns)})"
    )


def _tree_lines(plan: Plan) -> Iterator[str]:
    children: dict[str, list[NodeRole]] = defaultdict(list)
    roots: list[str] = []
    for role in plan.roles.values():
        parent = role.upstream[0] if role.upstream else ""
        children[parent].append(role)
        if parent and parent not in plan.roles and parent not in roots:
            roots.append(parent)
    for root in roots:
        yield f"{root}  source"
        yield from _below(children, root, "")
    for role in children[""]:
        yield _line([role])
        yield from _below(children, role.node, "")


def _below(children: dict[str, list[NodeRole]], parent: str, indent: str) -> Iterator[str]:
    groups: dict[object, list[NodeRole]] = {}
    for role in children.get(parent, ()):
        alone = children.get(role.node) or role.role in (Role.GRANDMASTER, Role.BACKUP_GRANDMASTER, Role.NTP_SERVER)
        key = role.node if alone else (role.role, role.owner, role.tier, role.upstream, role.budget.total_ns)
        groups.setdefault(key, []).append(role)
    for group, last in _with_last(list(groups.values())):
        yield f"{indent}{'└─ ' if last else '├─ '}{_line(group)}"
        if len(group) == 1:
            yield from _below(children, group[0].node, indent + ("   " if last else "│  "))


def _line(group: list[NodeRole]) -> str:
    role = group[0]
    parts = [role.role.value.replace("-", " ") + ("s" if len(group) > 1 else "")]
    if role.priority1 is not None:
        behind = "" if role.priority2 is None else f"/{role.priority2}"
        parts.append(f"priority {role.priority1}{behind}")
    parts.append(f"tier {role.tier}, clock owned by {role.owner.value}")
    if len(role.upstream) > 1:
        parts.append(f"also follows {fold(role.upstream[1:])}")
    inside, total = role.budget.in_cluster_ns, role.budget.total_ns
    place = "top of the cluster" if inside == 0 else f"within {span(inside)} of the cluster"
    parts.append(f"{place}, {span(total)} of the source")
    return f"{fold([item.node for item in group])}  {', '.join(parts)}"


def _with_last(items: list[T]) -> Iterator[tuple[T, bool]]:
    for number, item in enumerate(items, start=1):
        yield item, number == len(items)
