"""Who serves time to whom by PTP: grandmasters, boundary clocks, ordinary clocks, and who is left to NTP.

The grandmasters' clocks are owned by chronyd and fed into their PHCs (an appliance's are its own); equal priority1 lets
a grandmaster that degrades its class lose to the other, priority2 orders equals. With NTP behind PTP chronyd owns the
ordinary clocks too: it takes PTP's time as long as ptp4l follows, and asks the grandmasters by NTP otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rankclock.cluster.model import Node, NodeKind, NtpDaemon, PtpMessages
from rankclock.planning.budget import add_up, chrony_hop, phc2sys_hop, ptp_hop, unknown_hop
from rankclock.planning.capability import NicCapability
from rankclock.planning.model import (
    Hop,
    NodeRole,
    NtpServer,
    Owner,
    PortSide,
    PtpPort,
    RefClock,
    RefClockKind,
    Refusal,
    Role,
    Scheme,
)
from rankclock.planning.ntp_roles import NO_STRATUM, Layout, chrony_owned, own_server, source_hop
from rankclock.planning.ptp_tree import PtpTree, port_of
from rankclock.planning.references import names
from rankclock.planning.survey import Survey
from rankclock.timebase import format_span_ns

__all__ = ["ptp_layout"]


def ptp_layout(survey: Survey, tree: PtpTree, *, ntp_backup: bool = False) -> Layout:
    """Roles of all planned nodes; nodes that PTP leaves out follow the grandmasters' chronyd where IP reaches them."""
    roles: dict[str, NodeRole] = {}
    for number, (node, nic) in enumerate(tree.masters):
        if node.name in survey.references.grandmasters:
            roles[node.name] = _appliance_role(survey, node, nic)
        else:
            roles[node.name] = _master_role(survey, tree, node, nic, number)
    for name, ports in tree.boundaries.items():
        roles[name] = _follower_role(survey, tree, name, ports)
    for name, nic in tree.ordinary.items():
        role = _follower_role(survey, tree, name, (port_of(nic, PortSide.UP),))
        roles[name] = _backed_by_ntp(survey, tree, role) if ntp_backup else role
    cut_off: dict[tuple[str | None, str], list[str]] = {}
    for name, why in (*tree.left_out.items(), *((name, "") for name in tree.transparent)):
        node = survey.cluster.node(name)
        left = _left_to_ntp(survey, tree, node, why)
        if left is None:
            cut_off.setdefault((node.rack, why or "passes PTP on"), []).append(name)
        else:
            roles[name] = left
    _serve_by_ntp(survey, tree, roles)
    refused = [_no_path(rack, why, nodes) for (rack, why), nodes in cut_off.items()]
    order = [*survey.references.grandmasters, *(node.name for node in survey.planned)]
    return Layout(
        roles={name: roles[name] for name in order if name in roles},
        refused=tuple(refused),
        notes=_notes(survey, tree, roles),
    )


def _serve_by_ntp(survey: Survey, tree: PtpTree, roles: dict[str, NodeRole]) -> None:
    """Grandmasters that somebody asks by NTP serve it."""
    asked = {server.name for role in roles.values() for server in (*role.servers, *role.mates)}
    for number, (node, _) in enumerate(tree.masters):
        role = roles[node.name]
        if role.owner is Owner.CHRONYD and node.name in asked:
            networks = survey.topology.networks_reaching(node)
            local = survey.settings.local_stratum + 2 * number
            roles[node.name] = replace(role, clients=networks, local_stratum=local if local < NO_STRATUM else None)


def _appliance_role(survey: Survey, node: Node, nic: NicCapability) -> NodeRole:
    announced = survey.references.grandmasters[node.name]
    return NodeRole(
        node=node.name,
        role=Role.SOURCE,
        upstream=(),
        owner=Owner.NOBODY,
        tier=0,
        budget=add_up([]),
        why=nic.why,
        priority1=announced.priority1,
    )


def _master_role(survey: Survey, tree: PtpTree, node: Node, nic: NicCapability, number: int) -> NodeRole:
    first = tree.masters[0][0]
    servers = tuple(replace(source, prefer=not survey.refclocks(node)) for source in survey.sources)
    feed = source_hop(survey, node.name, common=number == 0)
    budget = add_up([feed])
    address = survey.topology.address_for(first, node) if number else None
    asked = {server.address for server in servers}
    fallback = own_server(survey, first.name, address) if address and address not in asked else None
    follows_first = fallback is not None and _follows_the_first(survey, node)
    if fallback is not None and follows_first:
        # Without a source near by the second would drift away from the first, and a takeover shift every clock.
        servers = (replace(fallback, prefer=True), *(replace(source, prefer=False) for source in survey.sources))
        what = f"{first.name} to {node.name} by NTP"
        hop = chrony_hop(what, step=2, pace=survey.cluster.pace, common=False)
        budget = add_up([source_hop(survey, first.name, common=True), hop])
    elif number and first.name not in survey.references.grandmasters:
        # Both follow the sources: each may be off by a hop of its own.
        bound, typical = feed.bound_ns, feed.typical_ns
        budget = replace(
            budget,
            in_cluster_ns=None if bound is None else 2 * bound,
            in_cluster_typical_ns=None if typical is None else 2 * typical,
        )
    stand_in = "no node has kind: server; " if node.kind is not NodeKind.SERVER else ""
    place = "first by priority2" if number == 0 else f"takes over when {first.name} is gone"
    announced = [item.priority1 for item in survey.references.grandmasters.values()]
    return replace(
        chrony_owned(survey, node, servers, serves=False, depth=int(follows_first)),
        role=Role.GRANDMASTER if number == 0 else Role.BACKUP_GRANDMASTER,
        why=f"{stand_in}{nic.why}; {place}",
        steps=0,
        budget=budget,
        mates=(fallback,) if fallback is not None and not follows_first else (),
        ports=(port_of(nic, PortSide.UP),),
        stamps=tree.scheme,
        # Equal for all, so that the class decides first: an appliance that lost its satellites loses to a better one.
        priority1=max(announced, default=survey.settings.gm_priority1),
        priority2=10 * (number + 1),
    )


def _follows_the_first(survey: Survey, node: Node) -> bool:
    return not survey.sources_on_lan and not survey.has_pulse(node)


def _last_master_tier(survey: Survey, tree: PtpTree) -> int:
    """A second grandmaster that follows the first starts after it, and everybody else after both."""
    return int(any(_follows_the_first(survey, node) for node, _ in tree.masters[1:] if node in survey.planned))


def _follower_role(survey: Survey, tree: PtpTree, name: str, ports: tuple[PtpPort, ...]) -> NodeRole:
    boundary = name in tree.boundaries
    hardware = tree.scheme is Scheme.PTP_HARDWARE
    above = tree.above(name, ports[0])
    served = names(sorted({port.segment for port in ports[1:]})) if boundary else ""
    nic = next(nic for nic in survey.nics[name] if nic.nic.name == ports[0].nic)
    steps = tree.reach.steps[ports[0].segment] + 1
    return NodeRole(
        node=name,
        role=Role.BOUNDARY_CLOCK if boundary else Role.ORDINARY_CLOCK,
        upstream=above,
        owner=Owner.PHC2SYS if hardware else Owner.PTP4L,
        tier=_last_master_tier(survey, tree) + 1 + steps,
        steps=steps,
        budget=add_up(_ptp_hops(survey, tree, name, ports[0].segment, above)),
        why=f"has ports in {ports[0].segment} and {served}" if boundary else nic.why,
        ports=tuple(_asking(survey, tree, name, port) for port in ports),
        stamps=tree.scheme,
        priority1=survey.settings.boundary_priority1 if boundary else None,
        priority2=128 if boundary else None,
    )


def _asking(survey: Survey, tree: PtpTree, name: str, port: PtpPort) -> PtpPort:
    """Under unicast a port that may follow lists the addresses of the clocks that serve its segment."""
    if survey.cluster.ptp.messages is not PtpMessages.UNICAST or port.side is not PortSide.UP:
        return port
    origin = tree.reach.origin.get(port.segment, port.segment)
    above = [survey.cluster.node(other) for other in tree.above(name, port)]
    addresses = [str(nic.address.ip) for node in above for nic in node.nics if nic.segment in (port.segment, origin)]
    return replace(port, asks=tuple(addresses))


def _backed_by_ntp(survey: Survey, tree: PtpTree, role: NodeRole) -> NodeRole:
    """An ordinary clock whose chronyd takes PTP's time, and the grandmasters' by NTP where there is none."""
    servers = _masters_by_ntp(survey, tree, survey.cluster.node(role.node))
    if not servers:
        return replace(role, why=f"{role.why}; no NTP behind it: IP reaches no grandmaster")
    clock = RefClock(name="PTP", kind=RefClockKind.PTP, device=role.ports[0].nic, bound_ns=role.budget.total_ns)
    servers = tuple(replace(server, prefer=False) for server in servers)
    return replace(role, owner=Owner.CHRONYD, refclocks=(clock,), servers=servers)


def _ptp_hops(survey: Survey, tree: PtpTree, name: str, segment: str, above: tuple[str, ...]) -> list[Hop]:
    """Source to grandmaster, into its PHC, clock by clock down, and out of the last PHC."""
    top = tree.masters[0][0].name
    hardware = tree.scheme is Scheme.PTP_HARDWARE
    hops = _top_hops(survey, top, hardware=hardware)
    emulated = any(nic.emulated for nic in survey.nics[name])
    way, segments = [top], [segment]
    here = above
    while here and here[0] not in way and here[0] in tree.reach.uplinks:
        way.insert(1, here[0])
        uplink = tree.boundaries[here[0]][0]
        segments.insert(0, uplink.segment)
        here = tree.above(here[0], uplink)
    step = 0
    for upper, lower, between in zip(way, [*way[1:], name], segments, strict=True):
        passing = tree.reach.through.get(between, ())
        whats = [f"{upper} to {lower} by PTP", *(f"passed on by {switch}, at most as a clock" for switch in passing)]
        for what in whats:
            step += 1
            hops.append(ptp_hop(what, step=step, scheme=tree.scheme, emulated=emulated))
    if hardware:
        hops.append(phc2sys_hop(f"PHC to system clock of {name}", common=False))
    return hops


def _top_hops(survey: Survey, top: str, *, hardware: bool) -> list[Hop]:
    if top in survey.references.grandmasters:
        return [unknown_hop(f"UTC to {top}", common=True, why="no figure: no appliance was measured here")]
    hops = [source_hop(survey, top, common=True)]
    if hardware:
        hops.append(phc2sys_hop(f"system clock to PHC of {top}", common=True))
    return hops


def _masters_by_ntp(survey: Survey, tree: PtpTree, node: Node) -> tuple[NtpServer, ...]:
    """The grandmasters as NTP servers, the first preferred; an appliance as the source that it is."""
    sources = {server.address: server for server in survey.sources}
    listed = []
    for number, (master, _) in enumerate(tree.masters):
        address = survey.topology.address_for(master, node)
        if address is not None:
            server = sources.get(address, own_server(survey, master.name, address))
            listed.append(replace(server, prefer=number == 0))
    return tuple(listed)


def _left_to_ntp(survey: Survey, tree: PtpTree, node: Node, why: str) -> NodeRole | None:
    """A node without PTP, and a transparent switch, follow the grandmasters by NTP; None where IP reaches none."""
    listed = _masters_by_ntp(survey, tree, node)
    if not listed:
        return None
    top = tree.masters[0][0].name
    hops = [_top_hops(survey, top, hardware=False)[0]]
    if tree.scheme is Scheme.PTP_HARDWARE and top not in survey.references.grandmasters:
        # The others follow the grandmaster's PHC, this one its system clock.
        hops.append(phc2sys_hop(f"PHC to system clock of {top}", common=False))
    what = f"{listed[0].name} to {node.name} by NTP"
    hops.append(chrony_hop(what, step=2, pace=survey.cluster.pace, common=False))
    role = chrony_owned(survey, node, listed, serves=False, depth=_last_master_tier(survey, tree) + 1)
    if node.name in tree.transparent:
        return replace(
            role,
            role=Role.TRANSPARENT_CLOCK,
            why="passes PTP on between its segments",
            budget=add_up(hops),
            ports=tree.transparent[node.name],
            stamps=tree.scheme,
        )
    return replace(role, why=f"no PTP: {why}", budget=add_up(hops))


def _no_path(rack: str | None, why: str, nodes: list[str]) -> Refusal:
    reason = f"{names(nodes)}: {why}; and IP reaches no grandmaster from there"
    subject = rack if rack is not None else names(nodes)
    return Refusal(subject=subject, reason=reason, do="add the switch that joins the segments to the cluster file")


def _notes(survey: Survey, tree: PtpTree, roles: Mapping[str, NodeRole]) -> tuple[str, ...]:
    notes = []
    first = roles[tree.masters[0][0].name]
    if len(tree.masters) == 1:
        notes.append(
            f"one grandmaster: when {first.node} is gone the racks keep together only by their boundary clocks"
        )
    else:
        second = roles[tree.masters[1][0].name]
        apart_ns = second.budget.in_cluster_ns
        by = "an unknown amount" if apart_ns is None else f"up to {format_span_ns(apart_ns)}"
        notes.append(f"a takeover by {second.node} may shift all clocks together by {by}")
    for name, announced in survey.references.grandmasters.items():
        if name in roles:
            notes.append(
                f"{name} is expected to announce clockClass {announced.clock_class} and clockAccuracy "
                f"{announced.clock_accuracy:#04x} while it is locked: see pmc 'GET PARENT_DATA_SET' on any node"
            )
    if not survey.references.count:
        notes.append("no source: the nodes agree with each other, and nobody knows how far they are from UTC")
    if survey.cluster.ntp.daemon is NtpDaemon.NTPSEC:
        notes.append("ntp.daemon: ntpsec is for plans by NTP; beside PTP chronyd keeps the clocks that NTP keeps")
    unknown = [name for name, ports in tree.boundaries.items() if any(port.phc_index is None for port in ports)]
    if unknown and tree.scheme is Scheme.PTP_HARDWARE:
        notes.append(
            f"{names(unknown)}: taken to have one PHC for all ports; ptp4l refuses to start where that is wrong"
        )
    return tuple(notes)
