"""Who serves time to whom by PTP: grandmasters, boundary clocks, ordinary clocks, and who is left to NTP.

The grandmasters' clocks are owned by chronyd and fed into their PHCs; equal priority1 lets a grandmaster that degrades
its class lose to the other, priority2 orders equals. One boundary clock joins two segments; the port toward a
grandmaster may follow, every other port only serves (unless two boundary clocks serve one segment).
Refuses nothing by itself: what cannot take part is in `left_out`, with the reason.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

from rankclock.cluster.model import Nic, Node, NodeKind
from rankclock.planning.budget import add_up, chrony_hop, phc2sys_hop, ptp_hop
from rankclock.planning.capability import NicCapability
from rankclock.planning.model import Hop, NodeRole, NtpServer, Owner, PortSide, PtpPort, Refusal, Role, Scheme
from rankclock.planning.ntp_roles import NO_STRATUM, Layout, chrony_owned, source_hop
from rankclock.planning.survey import Survey, names
from rankclock.planning.topology import Uplink
from rankclock.timebase import format_span_ns

__all__ = ["PtpTree", "ptp_layout", "ptp_tree"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PtpTree:
    """The skeleton of a PTP plan under one kind of stamps: what takes part, and what does not and why."""

    scheme: Scheme
    masters: tuple[tuple[Node, NicCapability], ...]
    steps: Mapping[str, int]
    boundaries: Mapping[str, tuple[PtpPort, ...]]
    uplinks: Mapping[str, Uplink]
    serving: Mapping[str, tuple[str, ...]]
    ordinary: Mapping[str, NicCapability]
    left_out: Mapping[str, str]

    @property
    def complete(self) -> bool:
        """Whether every planned node takes part."""
        return bool(self.masters) and not self.left_out


def ptp_tree(survey: Survey, scheme: Scheme) -> PtpTree:
    """Find the grandmasters, what they reach, and everybody's place."""
    usable = {node.name: _usable(survey, node, scheme) for node in survey.planned}
    masters = _masters(survey, usable)
    if not masters:
        left_out = {node.name: _why_not(survey, node, scheme) for node in survey.planned}
        return PtpTree(
            scheme=scheme, masters=(), steps={}, boundaries={}, uplinks={}, serving={}, ordinary={}, left_out=left_out
        )
    steps, uplinks = _reach(survey, usable, masters)
    master_names = {node.name for node, _ in masters}
    boundaries = _boundary_ports(survey, usable, masters, steps, uplinks)
    ordinary, left_out = {}, {}
    for node in survey.planned:
        if node.name in master_names or node.name in boundaries:
            continue
        reached = [nic for nic in usable[node.name] if nic.nic.segment in steps]
        if reached:
            ordinary[node.name] = min(reached, key=lambda nic: steps[nic.nic.segment])
        else:
            left_out[node.name] = _why_not(survey, node, scheme)
    return PtpTree(
        scheme=scheme,
        masters=masters,
        steps=steps,
        boundaries=boundaries,
        uplinks=uplinks,
        serving=_serving(masters, steps, boundaries, uplinks),
        ordinary=ordinary,
        left_out=left_out,
    )


def ptp_layout(survey: Survey, tree: PtpTree) -> Layout:
    """Roles of all planned nodes; nodes that PTP leaves out follow the grandmasters' chronyd where IP reaches them."""
    roles: dict[str, NodeRole] = {}
    for number, (node, nic) in enumerate(tree.masters):
        roles[node.name] = _master_role(survey, tree, node, nic, number)
    for name, ports in tree.boundaries.items():
        roles[name] = _follower_role(survey, tree, name, ports, tree.uplinks[name].steps)
    for name, nic in tree.ordinary.items():
        port = _port(nic, PortSide.UP)
        roles[name] = _follower_role(survey, tree, name, (port,), tree.steps[nic.nic.segment] + 1)
    cut_off: dict[tuple[str | None, str], list[str]] = {}
    for name, why in tree.left_out.items():
        node = survey.cluster.node(name)
        role = _left_to_ntp(survey, tree, node, why)
        if role is None:
            cut_off.setdefault((node.rack, why), []).append(name)
        else:
            roles[name] = role
    asked = {server.name for role in roles.values() for server in (*role.servers, *role.mates)}
    for number, (node, _) in enumerate(tree.masters):
        if node.name in asked or any(role.role is Role.NTP_CLIENT for role in roles.values()):
            networks = survey.topology.networks_reaching(node)
            local = survey.settings.local_stratum + 2 * number
            roles[node.name] = replace(
                roles[node.name], clients=networks, local_stratum=local if local < NO_STRATUM else None
            )
    refused = [_no_path(rack, why, nodes) for (rack, why), nodes in cut_off.items()]
    in_order = {node.name: roles[node.name] for node in survey.planned if node.name in roles}
    return Layout(roles=in_order, refused=tuple(refused), notes=_notes(survey, tree, roles))


def _usable(survey: Survey, node: Node, scheme: Scheme) -> tuple[NicCapability, ...]:
    hardware = scheme is Scheme.PTP_HARDWARE
    return tuple(nic for nic in survey.nics[node.name] if (nic.hardware if hardware else nic.software) is True)


def _why_not(survey: Survey, node: Node, scheme: Scheme) -> str:
    nics = survey.nics[node.name]
    if not nics:
        return "no NIC of it is in the cluster file"
    if _usable(survey, node, scheme):
        segments = names(sorted({nic.nic.segment for nic in nics}))
        return f"no boundary clock joins its segment {segments} to the grandmaster's"
    return "; ".join(nic.why for nic in nics)


def _masters(survey: Survey, usable: Mapping[str, tuple[NicCapability, ...]]) -> tuple[tuple[Node, NicCapability], ...]:
    """Grandmaster candidates with the NIC that each serves through; all in segments that reach each other."""
    hosts = [node for node in survey.planned if node.kind is NodeKind.SERVER]
    if not hosts:
        hosts = _stand_ins(survey, usable)
    # A grandmaster serves through one NIC: it joins no segments, whatever else it is plugged into.
    clocks = _clocks(survey, usable, without=frozenset(node.name for node in hosts))
    choices = [(node, nic) for node in hosts for nic in usable[node.name]]
    if not choices:
        return ()
    order = _order(survey)
    reach = {nic.nic.segment: survey.topology.ptp_reach(nic.nic.segment, clocks, order)[0] for _, nic in choices}

    def served(segment: str) -> int:
        return len({node.name for reached in reach[segment] for node, _ in survey.topology.members[reached]})

    best = max(choices, key=lambda choice: served(choice[1].nic.segment))
    together = reach[best[1].nic.segment]
    masters: dict[str, tuple[Node, NicCapability]] = {}
    for node, nic in sorted(choices, key=lambda choice: choice[1].nic.segment != best[1].nic.segment):
        if nic.nic.segment in together and node.name not in masters:
            masters[node.name] = (node, nic)
    return tuple(sorted(masters.values(), key=lambda master: (together[master[1].nic.segment], hosts.index(master[0]))))


def _stand_ins(survey: Survey, usable: Mapping[str, tuple[NicCapability, ...]]) -> list[Node]:
    """Without a node of kind server: two training nodes, in different racks where there are."""
    hosts = [node for node in survey.planned if node.kind is NodeKind.TRAINING and usable[node.name]]
    second = [node for node in hosts[1:] if node.rack != hosts[0].rack] or hosts[1:]
    return hosts[:1] + second[:1]


def _clocks(
    survey: Survey, usable: Mapping[str, tuple[NicCapability, ...]], *, without: frozenset[str]
) -> dict[str, tuple[Nic, ...]]:
    """What may be a boundary clock: ports in two segments or more."""
    found = {}
    for node in survey.planned:
        by_segment: dict[str, Nic] = {}
        for nic in usable[node.name]:
            by_segment.setdefault(nic.nic.segment, nic.nic)
        if len(by_segment) > 1 and node.name not in without:
            found[node.name] = tuple(by_segment.values())
    return found


def _order(survey: Survey) -> dict[str, int]:
    return {node.name: 0 if node.kind is NodeKind.SWITCH else 1 for node in survey.planned}


def _reach(
    survey: Survey,
    usable: Mapping[str, tuple[NicCapability, ...]],
    masters: tuple[tuple[Node, NicCapability], ...],
) -> tuple[dict[str, int], dict[str, Uplink]]:
    """Steps by segment and the uplinks of boundary clocks; hosts join segments only where no switch does."""
    master_names = frozenset(node.name for node, _ in masters)
    start = masters[0][1].nic.segment
    clocks = _clocks(survey, usable, without=master_names)
    kinds = {node.name: node.kind for node in survey.planned}
    switches = {name: nics for name, nics in clocks.items() if kinds[name] is NodeKind.SWITCH}
    steps, uplinks = survey.topology.ptp_reach(start, switches, _order(survey))
    all_steps, all_uplinks = survey.topology.ptp_reach(start, clocks, _order(survey))
    if all_steps.keys() <= steps.keys():
        return steps, uplinks
    return all_steps, _needed(all_uplinks, clocks, all_steps, kinds)


def _needed(
    uplinks: Mapping[str, Uplink],
    clocks: Mapping[str, tuple[Nic, ...]],
    steps: Mapping[str, int],
    kinds: Mapping[str, NodeKind],
) -> dict[str, Uplink]:
    """Switches, and hosts that are the first to serve some segment; other hosts stay ordinary clocks."""
    served_by: dict[str, str] = {}
    for name, uplink in sorted(
        uplinks.items(), key=lambda item: (item[1].steps, kinds[item[0]] is not NodeKind.SWITCH)
    ):
        for nic in clocks[name]:
            if steps[nic.segment] == uplink.steps:
                served_by.setdefault(nic.segment, name)
    useful = set(served_by.values())
    return {name: item for name, item in uplinks.items() if kinds[name] is NodeKind.SWITCH or name in useful}


def _boundary_ports(
    survey: Survey,
    usable: Mapping[str, tuple[NicCapability, ...]],
    masters: tuple[tuple[Node, NicCapability], ...],
    steps: Mapping[str, int],
    uplinks: Mapping[str, Uplink],
) -> dict[str, tuple[PtpPort, ...]]:
    by_name = {name: {nic.nic.name: nic for nic in usable[name]} for name in uplinks}
    clocks = {name: nics for name, nics in _clocks(survey, usable, without=frozenset()).items() if name in uplinks}
    # A port that leads to any grandmaster must be able to follow it after a takeover.
    toward: dict[str, set[str]] = defaultdict(set)
    for segment in {nic.nic.segment for _, nic in masters}:
        for name, uplink in survey.topology.ptp_reach(segment, clocks, _order(survey))[1].items():
            toward[name].add(uplink.nic)
    down = Counter(nic.segment for name, nics in clocks.items() for nic in nics if nic.name not in toward[name])
    return {
        name: tuple(
            _port(
                by_name[name][nic.name],
                PortSide.UP if nic.name in toward[name] or down[nic.segment] > 1 else PortSide.DOWN,
            )
            for nic in sorted(clocks[name], key=lambda nic: (nic.name != uplinks[name].nic, nic.name))
            if nic.segment in steps
        )
        for name in uplinks
    }


def _port(nic: NicCapability, side: PortSide) -> PtpPort:
    return PtpPort(nic=nic.nic.name, segment=nic.nic.segment, side=side, phc_index=nic.phc_index)


def _master_role(survey: Survey, tree: PtpTree, node: Node, nic: NicCapability, number: int) -> NodeRole:
    first = tree.masters[0][0]
    servers = tuple(replace(source, prefer=True) for source in survey.sources)
    feed = source_hop(survey, node.name, common=number == 0)
    budget = add_up([feed])
    address = survey.topology.address_for(first, node) if number else None
    fallback = NtpServer(name=first.name, address=address, prefer=False, reference=False) if address else None
    follows_first = fallback is not None and not survey.sources_on_lan
    if fallback is not None and follows_first:
        # Without a source near by the second would drift away from the first, and a takeover shift every clock.
        servers = (replace(fallback, prefer=True), *(replace(source, prefer=False) for source in survey.sources))
        what = f"{first.name} to {node.name} by NTP"
        hop = chrony_hop(what, step=2, pace=survey.cluster.pace, common=False)
        budget = add_up([source_hop(survey, first.name, common=True), hop])
    elif number:
        # Both follow the sources: each may be off by a hop of its own.
        bound, typical = feed.bound_ns, feed.typical_ns
        budget = replace(
            budget,
            in_cluster_ns=None if bound is None else 2 * bound,
            in_cluster_typical_ns=None if typical is None else 2 * typical,
        )
    stand_in = "no node has kind: server; " if node.kind is not NodeKind.SERVER else ""
    place = "first by priority2" if number == 0 else f"takes over when {first.name} is gone"
    return replace(
        chrony_owned(survey, node, servers, serves=False, depth=int(follows_first)),
        role=Role.GRANDMASTER if number == 0 else Role.BACKUP_GRANDMASTER,
        why=f"{stand_in}{nic.why}; {place}",
        steps=0,
        budget=budget,
        mates=(fallback,) if fallback is not None and not follows_first else (),
        ports=(_port(nic, PortSide.UP),),
        stamps=tree.scheme,
        priority1=survey.settings.gm_priority1,
        priority2=10 * (number + 1),
    )


def _last_master_tier(survey: Survey, tree: PtpTree) -> int:
    """A second grandmaster that follows the first starts after it, and everybody else after both."""
    return 1 if len(tree.masters) > 1 and not survey.sources_on_lan else 0


def _follower_role(survey: Survey, tree: PtpTree, name: str, ports: tuple[PtpPort, ...], steps: int) -> NodeRole:
    boundary = name in tree.boundaries
    hardware = tree.scheme is Scheme.PTP_HARDWARE
    above = _above(tree, name, ports[0])
    served = names(sorted({port.segment for port in ports[1:]})) if boundary else ""
    nic = next(nic for nic in survey.nics[name] if nic.nic.name == ports[0].nic)
    return NodeRole(
        node=name,
        role=Role.BOUNDARY_CLOCK if boundary else Role.ORDINARY_CLOCK,
        upstream=above,
        owner=Owner.PHC2SYS if hardware else Owner.PTP4L,
        tier=_last_master_tier(survey, tree) + 1 + steps,
        steps=steps,
        budget=add_up(_ptp_hops(survey, tree, name, above, steps)),
        why=f"has ports in {ports[0].segment} and {served}" if boundary else nic.why,
        ports=ports,
        stamps=tree.scheme,
        priority1=survey.settings.boundary_priority1 if boundary else None,
        priority2=128 if boundary else None,
    )


def _above(tree: PtpTree, name: str, uplink: PtpPort) -> tuple[str, ...]:
    """Whom a clock follows: the boundary clocks that serve its segment, or the grandmasters in it."""
    return tuple(other for other in tree.serving.get(uplink.segment, ()) if other != name)


def _serving(
    masters: tuple[tuple[Node, NicCapability], ...],
    steps: Mapping[str, int],
    boundaries: Mapping[str, tuple[PtpPort, ...]],
    uplinks: Mapping[str, Uplink],
) -> dict[str, tuple[str, ...]]:
    """Segment to the clocks that serve it, as long as the first grandmaster lives."""
    serving: dict[str, list[str]] = defaultdict(list)
    for node, nic in masters:
        if steps[nic.nic.segment] == 0:
            serving[nic.nic.segment].append(node.name)
    for name, ports in boundaries.items():
        for port in ports[1:]:
            if steps[port.segment] == uplinks[name].steps:
                serving[port.segment].append(name)
    return {segment: tuple(found) for segment, found in serving.items()}


def _ptp_hops(survey: Survey, tree: PtpTree, name: str, above: tuple[str, ...], steps: int) -> list[Hop]:
    """Source to grandmaster, into its PHC, clock by clock down, and out of the last PHC."""
    top = tree.masters[0][0].name
    hardware = tree.scheme is Scheme.PTP_HARDWARE
    hops: list[Hop] = [source_hop(survey, top, common=True)]
    if hardware:
        hops.append(phc2sys_hop(f"system clock to PHC of {top}", common=True))
    emulated = any(nic.emulated for nic in survey.nics[name])
    way = [top]
    here = above
    while here and here[0] not in way and here[0] in tree.uplinks:
        way.insert(1, here[0])
        here = _above(tree, here[0], tree.boundaries[here[0]][0])
    for step, (upper, lower) in enumerate(zip(way, [*way[1:], name], strict=True), start=1):
        what = f"{upper} to {lower} by PTP"
        hops.append(ptp_hop(what, step=step, scheme=tree.scheme, emulated=emulated))
    if hardware:
        hops.append(phc2sys_hop(f"PHC to system clock of {name}", common=False))
    return hops


def _left_to_ntp(survey: Survey, tree: PtpTree, node: Node, why: str) -> NodeRole | None:
    """A node without PTP follows the grandmasters' chronyd; None where IP does not reach them either."""
    listed = []
    for number, (master, _) in enumerate(tree.masters):
        address = survey.topology.address_for(master, node)
        if address is not None:
            listed.append(NtpServer(name=master.name, address=address, prefer=number == 0, reference=False))
    if not listed:
        return None
    top = tree.masters[0][0].name
    hops = [source_hop(survey, top, common=True)]
    if tree.scheme is Scheme.PTP_HARDWARE:
        # The others follow the grandmaster's PHC, this one its system clock.
        hops.append(phc2sys_hop(f"PHC to system clock of {top}", common=False))
    what = f"{listed[0].name} to {node.name} by NTP"
    hops.append(chrony_hop(what, step=2, pace=survey.cluster.pace, common=False))
    role = chrony_owned(survey, node, tuple(listed), serves=False, depth=_last_master_tier(survey, tree) + 1)
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
    if not survey.sources:
        notes.append("no source: the nodes agree with each other, and nobody knows how far they are from UTC")
    unknown = [name for name, ports in tree.boundaries.items() if any(port.phc_index is None for port in ports)]
    if unknown and tree.scheme is Scheme.PTP_HARDWARE:
        notes.append(
            f"{names(unknown)}: taken to have one PHC for all ports; ptp4l refuses to start where that is wrong"
        )
    return tuple(notes)
