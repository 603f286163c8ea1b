"""The plan: decision, roles, budgets against the accuracy asked for, and what is refused. Pure and deterministic."""

from __future__ import annotations

from collections.abc import Mapping

from rankclock.cluster.facts import Facts
from rankclock.cluster.measured import MeasuredPath
from rankclock.cluster.model import Cluster, NodeKind, Protocol
from rankclock.planning.budget import reach_of
from rankclock.planning.cloud_roles import cloud_layout
from rankclock.planning.decide import decide, obstacles
from rankclock.planning.model import NodeRole, Plan, Reach, Refusal, Scheme
from rankclock.planning.ntp_roles import Layout, ntp_layout
from rankclock.planning.ptp_roles import ptp_layout
from rankclock.planning.ptp_tree import PtpTree, ptp_tree
from rankclock.planning.references import names
from rankclock.planning.settings import DEFAULT_SETTINGS, Settings
from rankclock.planning.survey import Survey, survey
from rankclock.timebase import format_span_ns

__all__ = ["Plan", "make_plan", "why_not"]


def make_plan(
    cluster: Cluster,
    facts: Mapping[str, Facts] | None = None,
    protocol: Protocol | str | None = None,
    settings: Settings = DEFAULT_SETTINGS,
    paths: tuple[MeasuredPath, ...] = (),
) -> Plan:
    """Plan the cluster's time. `protocol` overrides what the cluster file asks for; `paths`: what was measured between
    the nodes. Refusals are values.
    """
    seen = survey(cluster, facts or {}, settings, paths)
    asked = Protocol(protocol) if protocol is not None else cluster.protocol
    hardware, software = ptp_tree(seen, Scheme.PTP_HARDWARE), ptp_tree(seen, Scheme.PTP_SOFTWARE)
    decision = decide(seen, asked, hardware, software)
    backed = asked is Protocol.HYBRID
    layout = _layout(seen, decision.scheme, hardware, software, ntp_backup=backed)
    pair, bound_ns, typical_ns = _worst_pair(seen, layout.roles)
    accuracy_ns = cluster.require.accuracy_ns
    everybody = all(node.name in layout.roles for node in seen.training)
    reach = reach_of(bound_ns, typical_ns, accuracy_ns) if everybody and layout.roles else Reach.NO
    far = _far_paths(seen)
    if far and reach is Reach.YES:
        reach = Reach.CANNOT_TELL
    refused = [*_missing_nics(seen), *seen.refused_sources, *layout.refused]
    if reach is Reach.NO and everybody and typical_ns is not None:
        refused.append(_out_of_reach(decision.scheme, accuracy_ns, typical_ns))
    return Plan(
        cluster=cluster.name,
        scheme=decision.scheme if layout.roles else None,
        decision=decision,
        roles=layout.roles,
        refused=tuple(refused),
        accuracy_ns=accuracy_ns,
        worst_pair=pair,
        worst_pair_ns=bound_ns,
        worst_pair_typical_ns=typical_ns,
        reach=reach,
        notes=(*layout.notes, *far, *_present_owners(seen)),
        ntp_backup=backed,
    )


def why_not(
    cluster: Cluster,
    protocol: Protocol | str,
    facts: Mapping[str, Facts] | None = None,
    settings: Settings = DEFAULT_SETTINGS,
    paths: tuple[MeasuredPath, ...] = (),
) -> tuple[str, ...]:
    """What stands between this cluster and a protocol, one line each; empty where the questions lead to it.

    Every obstacle is named, not only the first, with what would change it; then what asking for it all the same gives.
    """
    wanted = Protocol(protocol)
    chosen = make_plan(cluster, facts, Protocol.AUTO, settings, paths)
    if wanted is Protocol.AUTO or chosen.protocol == wanted.value:
        return ()
    lines = []
    if wanted is Protocol.NTP:
        lines.append(f"the questions lead to {chosen.protocol}: {chosen.decision.reason}")
    else:
        seen = survey(cluster, facts or {}, settings, paths)
        found = obstacles(seen, ptp_tree(seen, Scheme.PTP_HARDWARE), ptp_tree(seen, Scheme.PTP_SOFTWARE))
        lines += [
            f"{item.question} {item.answer.value}: {reason} (would change: {item.would_change})"
            for item, reason in found
        ]
        if not found:
            lines.append("nothing is in its way: it is never chosen by itself, only asked for")
    asked = make_plan(cluster, facts, wanted, settings, paths)
    if asked.scheme is None:
        return (*lines, f"asked for all the same: {asked.decision.reason.partition('; ')[0]}")
    typical = "unknown" if asked.worst_pair_typical_ns is None else format_span_ns(asked.worst_pair_typical_ns)
    bound = "unknown" if asked.worst_pair_ns is None else format_span_ns(asked.worst_pair_ns)
    last = f"asked for all the same: {asked.scheme.value}, two nodes typically within {typical}, bound {bound}"
    return (*lines, last)


def _layout(seen: Survey, scheme: Scheme | None, hardware: PtpTree, software: PtpTree, *, ntp_backup: bool) -> Layout:
    if not seen.planned:
        reason = "no node is left to plan: all are references or containers without CAP_SYS_TIME"
        return Layout(roles={}, refused=(Refusal(subject="the plan", reason=reason, do="list the hosts"),))
    if scheme is None:
        whys = list(hardware.left_out.items())
        shown = "; ".join(f"{name}: {why}" for name, why in whys[:3])
        refusal = Refusal(
            subject="the plan",
            reason=f"PTP was asked for, and no grandmaster reaches anybody with stamps known to be there ({shown})",
            do="collect facts (rankclock probe), declare stamps: on the NICs, or use --protocol ntp",
        )
        return Layout(roles={}, refused=(refusal,))
    if scheme is Scheme.NTP:
        return cloud_layout(seen) if seen.in_cloud else ntp_layout(seen)
    return ptp_layout(seen, hardware if scheme is Scheme.PTP_HARDWARE else software, ntp_backup=ntp_backup)


def _worst_pair(seen: Survey, roles: Mapping[str, NodeRole]) -> tuple[tuple[str, str] | None, int | None, int | None]:
    """The two training nodes that may be farthest apart: bounds add up, typical errors as squares."""
    budgets = [(node.name, roles[node.name].budget) for node in seen.training if node.name in roles]
    if len(budgets) < 2:
        return None, 0 if budgets else None, 0 if budgets else None
    unknown = [name for name, budget in budgets if budget.in_cluster_ns is None]
    if unknown:
        other = next(name for name, _ in budgets if name != unknown[0])
        return (unknown[0], other), None, None
    worst = sorted(budgets, key=lambda item: item[1].in_cluster_ns or 0, reverse=True)[:2]
    typical = [budget.in_cluster_typical_ns or 0 for _, budget in worst]
    bound_ns = sum(budget.in_cluster_ns or 0 for _, budget in worst)
    return (worst[0][0], worst[1][0]), bound_ns, int((typical[0] ** 2 + typical[1] ** 2) ** 0.5)


def _far_paths(seen: Survey) -> tuple[str, ...]:
    """Where a measured path is no LAN: the figures say nothing of it."""
    limit_ns = seen.settings.lan_round_trip_ns
    trips = [(path.round_trip_ns, path) for path in seen.paths if (path.round_trip_ns or 0) > limit_ns]
    if not trips:
        return ()
    longest_ns, path = max(trips, key=lambda item: item[0] or 0)
    return (
        f"{path.local} to {path.peer}: a round trip of {format_span_ns(longest_ns or 0)} was measured: that is no "
        "LAN, and the figures here are those of LANs",
    )


def _present_owners(seen: Survey) -> list[str]:
    """Where more than one program steers the clock today: it is so until the others are masked."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for node in seen.planned:
        value = seen.facts[node.name].get("realtime_owner").value if node.name in seen.facts else None
        owners = value.get("owners") if isinstance(value, Mapping) else None
        if isinstance(owners, list) and len(owners) > 1:
            groups.setdefault(tuple(map(str, owners)), []).append(node.name)
    return [
        f"{names(nodes)}: {' and '.join(owners)} steer the clock against each other now"
        for owners, nodes in groups.items()
    ]


def _missing_nics(seen: Survey) -> list[Refusal]:
    return [
        Refusal(subject=name, reason=nic.why, do="correct the interface's name in the cluster file")
        for name, nics in seen.nics.items()
        for nic in nics
        if nic.missing and seen.cluster.node(name).kind is not NodeKind.SOURCE
    ]


def _out_of_reach(scheme: Scheme | None, accuracy_ns: int, typical_ns: int) -> Refusal:
    reason = (
        f"two nodes within {format_span_ns(accuracy_ns)} are asked for, and {scheme} typically keeps them within "
        f"{format_span_ns(typical_ns)}"
    )
    return Refusal(subject="the accuracy", reason=reason, do="ask for less, or see what would change the decision")
