"""Who serves time to whom by NTP: servers with their sources, clients with all servers, one of them preferred.

All clients prefer the same server: ranks that follow one clock agree with each other even while it is off against UTC.
A server falls back to those before it, never the other way: when every source is lost all follow the first. (Servers
that poll each other, chrony's orphan mode, each took the other for their source in the lab and drifted apart.)
Refuses cycles, and clients that no server reaches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rankclock.cluster.model import Node, NodeKind, NtpDaemon
from rankclock.planning.budget import add_up, chrony_hop, unknown_hop
from rankclock.planning.model import ErrorBudget, Hop, NodeRole, NtpServer, Owner, Refusal, Role
from rankclock.planning.references import names
from rankclock.planning.survey import Survey

__all__ = ["NO_STRATUM", "Layout", "choose_servers", "chrony_owned", "ntp_layout", "own_server", "source_hop"]


NO_STRATUM = 16
"""NTP's word for not synchronised (RFC 5905)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Roles by node, and what cannot be."""

    roles: Mapping[str, NodeRole]
    refused: tuple[Refusal, ...] = ()
    notes: tuple[str, ...] = ()


def ntp_layout(survey: Survey) -> Layout:
    """Roles of all planned nodes under NTP, outside of clouds."""
    servers, why = choose_servers(survey)
    upstreams = _upstreams(survey, servers)
    cycle = _cycle(upstreams)
    if cycle:
        reason = f"time would go round in a circle: {' -> '.join(cycle)}"
        return Layout(roles={}, refused=(Refusal(subject="the plan", reason=reason, do="break it at one `upstream:`"),))
    serving = {name for names_of in upstreams.values() for name in names_of if name in survey.cluster.by_name}
    if len(servers) > 1:
        serving |= {node.name for node in servers}  # at least for each other, when every source is lost
    depth = _depths(upstreams)
    roles: dict[str, NodeRole] = {}
    cut_off: dict[tuple[str | None, tuple[str, ...]], list[str]] = {}
    for node in survey.planned:
        listed, missing = _listed_servers(survey, node, upstreams[node.name])
        if missing and not listed:
            cut_off.setdefault((node.rack, tuple(missing)), []).append(node.name)
            continue
        role = chrony_owned(survey, node, listed, serves=node.name in serving, depth=depth[node.name])
        mates = _mates(survey, node, servers, listed)
        local = survey.settings.local_stratum + 2 * servers.index(node) if node in servers and role.clients else None
        roles[node.name] = replace(
            role,
            why=why.get(node.name, role.why),
            mates=mates,
            local_stratum=local if local is not None and local < NO_STRATUM else None,
        )
    budgets = _budgets(survey, roles, servers[0].name if servers else None)
    roles = {name: replace(role, budget=budgets[name]) for name, role in roles.items()}
    if survey.cluster.ntp.daemon is NtpDaemon.NTPSEC:
        roles = {name: _kept_by_ntpd(role) for name, role in roles.items()}
    refused = tuple(_no_path(rack, missing, nodes) for (rack, missing), nodes in cut_off.items())
    return Layout(roles=roles, refused=refused, notes=_notes(survey, servers))


def choose_servers(survey: Survey) -> tuple[tuple[Node, ...], dict[str, str]]:
    """The nodes that serve time, the preferred one first, and why they were chosen."""
    dedicated = [node for node in survey.planned if node.kind is NodeKind.SERVER or survey.refclocks(node)]
    if dedicated:
        dedicated.sort(key=lambda node: (not survey.has_pulse(node), not survey.refclocks(node)))
        return tuple(dedicated), {node.name: _why_server(survey, node) for node in dedicated}
    hosts = [node for node in survey.planned if node.kind is NodeKind.TRAINING] or list(survey.planned)
    first = hosts[:1]
    other_rack = [node for node in hosts[1:] if first and node.rack != first[0].rack]
    second = (other_rack or hosts[1:])[:1]
    apart = ", in another rack than the first" if other_rack else ""
    why = {node.name: "no node has kind: server, so it serves beside training" for node in first}
    why |= {
        node.name: f"no node has kind: server, so it is the second server beside training{apart}" for node in second
    }
    return (*first, *second), why


def _why_server(survey: Survey, node: Node) -> str:
    receivers = survey.refclocks(node)
    return f"receives {names([clock.name for clock in receivers])}" if receivers else "kind: server in the cluster file"


def chrony_owned(survey: Survey, node: Node, listed: tuple[NtpServer, ...], *, serves: bool, depth: int) -> NodeRole:
    """The role of a node whose clock chronyd owns; its budget is filled in by the caller."""
    role = Role.NTP_SERVER if serves else Role.NTP_CLIENT
    why = "serves the clients" if serves else "follows the servers"
    return NodeRole(
        node=node.name,
        role=role,
        upstream=tuple(server.name for server in listed if not server.watched),
        owner=Owner.CHRONYD,
        tier=depth,
        steps=depth + 1,
        budget=ErrorBudget(hops=(), total_ns=None, in_cluster_ns=None, in_cluster_typical_ns=None),
        why=why,
        servers=listed,
        refclocks=survey.refclocks(node),
        clients=survey.topology.networks_reaching(node) if serves else (),
    )


def source_hop(survey: Survey, to: str, *, common: bool) -> Hop:
    """The hop from the sources to a server. Without a figure where there are none, or where they are far away."""
    receivers = survey.refclocks(to)
    if receivers:
        what, why = f"{names([clock.name for clock in receivers])} to {to}", "no figure: no receiver was measured here"
        return unknown_hop(what, common=common, why=why)
    if not survey.sources:
        return unknown_hop(f"UTC to {to}", common=common, why="no source: nobody knows how far it is from UTC")
    sources = names([source.name for source in survey.sources])
    what = f"{sources} to {to} by NTP"
    if survey.sources_on_lan:
        return chrony_hop(what, step=1, pace=survey.cluster.pace, common=common)
    return unknown_hop(
        what, common=common, why="no figure: the path to the source is not in the cluster's own networks"
    )


def _upstreams(survey: Survey, servers: tuple[Node, ...]) -> dict[str, tuple[str, ...]]:
    """Node to the names that it takes time from, preferred first."""
    source_names = tuple(source.name for source in survey.sources)
    server_names = tuple(node.name for node in servers)
    # Over the Internet two servers part by milliseconds, without a source by any amount: the second follows the first.
    chained = not survey.sources_on_lan
    found = {}
    for node in survey.planned:
        if node.upstream:
            found[node.name] = node.upstream
        elif node.name == server_names[0]:
            found[node.name] = source_names
        elif node.name in server_names:
            alone = survey.has_pulse(node) or not chained
            found[node.name] = source_names if alone else (server_names[0], *source_names)
        else:
            found[node.name] = server_names
    return found


def _listed_servers(survey: Survey, node: Node, upstream: tuple[str, ...]) -> tuple[tuple[NtpServer, ...], list[str]]:
    sources = {source.name: source for source in survey.sources}
    listed, missing = [], []
    for name in upstream:
        if name in sources:
            # Sources are preferred to the other server, which is only there for when all of them are gone.
            listed.append(replace(sources[name], prefer=not survey.refclocks(node)))
        elif name in survey.cluster.by_name and name not in survey.excluded:
            address = survey.topology.address_for(survey.cluster.node(name), node)
            if address is None:
                missing.append(name)
            else:
                listed.append(own_server(survey, name, address))
        else:
            missing.append(name)
    if listed and not listed[0].reference:
        listed = [replace(listed[0], prefer=True), *(replace(server, prefer=False) for server in listed[1:])]
    return tuple(listed), missing


def _mates(
    survey: Survey, node: Node, servers: tuple[Node, ...], listed: tuple[NtpServer, ...]
) -> tuple[NtpServer, ...]:
    """The servers before this one, which it follows when all of its own sources are gone."""
    already = {server.name for server in listed}
    mates = []
    for other in servers[: servers.index(node)] if node in servers else ():
        address = survey.topology.address_for(other, node)
        if other.name not in already and address is not None:
            mates.append(own_server(survey, other.name, address))
    return tuple(mates)


def own_server(survey: Survey, name: str, address: str) -> NtpServer:
    """A server of the cluster itself, known as its NTP settings say."""
    ntp = survey.cluster.ntp
    return NtpServer(name=name, address=address, prefer=False, reference=False, nts=ntp.nts, key=ntp.key)


def _cycle(upstreams: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The first circle found, empty where there is none. No recursion: chains may be as long as the cluster."""
    done: set[str] = set()
    for start in upstreams:
        path, stack = [start], [iter(upstreams[start])]
        on_path = {start}
        while stack and start not in done:
            name = next(stack[-1], None)
            if name is None:
                stack.pop()
                left = path.pop()
                on_path.discard(left)
                done.add(left)
            elif name in on_path:
                return (*path[path.index(name) :], name)
            elif name in upstreams and name not in done:
                path.append(name)
                on_path.add(name)
                stack.append(iter(upstreams[name]))
    return ()


def _depths(upstreams: Mapping[str, tuple[str, ...]]) -> dict[str, int]:
    """How many planned nodes stand above each node on its longest way up. The graph has no circle."""
    depth: dict[str, int] = {}
    for start in upstreams:
        stack = [start]
        while stack:
            above = [name for name in upstreams[stack[-1]] if name in upstreams]
            waiting = [name for name in above if name not in depth]
            if waiting:
                stack.extend(waiting)
            else:
                depth[stack.pop()] = max((depth[name] + 1 for name in above), default=0)
    return depth


def _budgets(survey: Survey, roles: Mapping[str, NodeRole], top: str | None) -> dict[str, ErrorBudget]:
    """Each node's budget along the servers that it prefers, shortest chains first."""
    pace = survey.cluster.pace
    found: dict[str, ErrorBudget] = {}
    for role in sorted(roles.values(), key=lambda item: item.tier):
        first = role.servers[0] if role.servers else None
        if first is None or first.reference:
            budget = add_up([source_hop(survey, role.node, common=role.node == top)])
            found[role.node] = budget if role.node == top or top not in found else _apart(budget, found[top])
        elif first.name in found:
            above = found[first.name]
            what = f"{first.name} to {role.node} by NTP"
            if _networks_known(survey, first.name, role.node):
                hop = chrony_hop(what, step=len(above.hops) + 1, pace=pace, common=False)
            else:
                hop = unknown_hop(what, common=False, why="no figure: the file does not tell the network between them")
            found[role.node] = add_up([*above.hops, hop])
        else:
            found[role.node] = add_up([unknown_hop(f"to {role.node}", common=False, why="its server has no role")])
    return found


def _networks_known(survey: Survey, *nodes: str) -> bool:
    return all(survey.cluster.node(name).nics for name in nodes)


def _apart(budget: ErrorBudget, top: ErrorBudget) -> ErrorBudget:
    """The budget of a second server: against the first it may be off by what both are off against the source."""
    known = budget.total_ns is not None and top.total_ns is not None
    typical = [hop.typical_ns for hop in (*budget.hops, *top.hops)]
    return replace(
        budget,
        in_cluster_ns=(budget.total_ns or 0) + (top.total_ns or 0) if known else None,
        in_cluster_typical_ns=sum(value for value in typical if value) if known else None,
    )


def _kept_by_ntpd(role: NodeRole) -> NodeRole:
    why = "no figure: ntpd was not measured here"
    hops = [unknown_hop(hop.what, common=hop.common, why=why) for hop in role.budget.hops]
    return replace(role, owner=Owner.NTPD, budget=add_up(hops))


def _no_path(rack: str | None, missing: tuple[str, ...], nodes: list[str]) -> Refusal:
    have = "has" if len(nodes) == 1 else "have"
    reason = f"{names(nodes)} {have} no path to {names(list(missing))}: no node of kind switch joins their segments"
    subject = rack if rack is not None else names(nodes)
    return Refusal(subject=subject, reason=reason, do="add the switch to the file, or say network.routed: true")


def _notes(survey: Survey, servers: tuple[Node, ...]) -> tuple[str, ...]:
    notes = []
    count, wanted = survey.references.count, survey.settings.min_sources
    if not count:
        notes.append("no source: the nodes agree with each other, and nobody knows how far they are from UTC")
    elif count < wanted:
        notes.append(f"{count} source{'s' * (count != 1)}: with fewer than {wanted} a wrong one cannot be outvoted")
    without = [node.name for node in survey.planned if not node.nics]
    if without:
        notes.append(
            f"{names(without)}: no NICs in the file: reached by name, everybody may ask, no figures for the way"
        )
    if len(servers) == 1 and len(survey.planned) > 1:
        notes.append(f"one server: when {servers[0].name} is gone the others drift apart")
    if len(servers) > 1 and len({node.rack for node in servers}) == 1 and servers[0].rack is not None:
        notes.append(f"all servers stand in rack {servers[0].rack}: it takes the cluster's time along when it goes")
    if any(source.smeared is True for source in survey.sources):
        notes.append("the sources spread leap seconds over hours: no leap second list is configured")
    return tuple(notes)
