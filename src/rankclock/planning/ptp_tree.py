"""The skeleton of a PTP plan: grandmasters, what they reach, boundary and transparent clocks, who can follow.

One boundary clock joins two segments; the port toward a grandmaster may follow, every other port only serves (unless
two boundary clocks serve one segment). Refuses nothing by itself: what cannot take part is in `left_out`, with the
reason.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

from rankclock.cluster.model import Nic, Node, NodeKind, PtpClock
from rankclock.planning.capability import NicCapability
from rankclock.planning.model import PortSide, PtpPort, Scheme
from rankclock.planning.references import names
from rankclock.planning.survey import Survey
from rankclock.planning.topology import PtpReach, Uplink

__all__ = ["PtpTree", "port_of", "ptp_tree"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PtpTree:
    """The skeleton of a PTP plan under one kind of stamps: what takes part, and what does not and why.

    serving: by a segment's origin (see PtpReach), the clocks that serve it as long as the first grandmaster lives.
    """

    scheme: Scheme
    masters: tuple[tuple[Node, NicCapability], ...]
    reach: PtpReach
    boundaries: Mapping[str, tuple[PtpPort, ...]]
    transparent: Mapping[str, tuple[PtpPort, ...]]
    serving: Mapping[str, tuple[str, ...]]
    ordinary: Mapping[str, NicCapability]
    left_out: Mapping[str, str]

    @property
    def complete(self) -> bool:
        """Whether every planned node takes part."""
        return bool(self.masters) and not self.left_out

    def above(self, name: str, uplink: PtpPort) -> tuple[str, ...]:
        """Whom a clock follows: the boundary clocks that serve its segment, or the grandmasters in it."""
        origin = self.reach.origin.get(uplink.segment, uplink.segment)
        return tuple(other for other in self.serving.get(origin, ()) if other != name)


def ptp_tree(survey: Survey, scheme: Scheme) -> PtpTree:
    """Find the grandmasters, what they reach, and everybody's place."""
    ground = _Ground(
        survey=survey,
        usable={node.name: _usable(survey, node, scheme) for node in survey.planned},
        order={node.name: 0 if node.kind is NodeKind.SWITCH else 1 for node in survey.planned},
    )
    masters = _masters(ground)
    if not masters:
        return PtpTree(
            scheme=scheme,
            masters=(),
            reach=PtpReach(steps={}, uplinks={}, origin={}, through={}),
            boundaries={},
            transparent={},
            serving={},
            ordinary={},
            left_out={node.name: _why_not(survey, node, scheme) for node in survey.planned},
        )
    reach = _reach(ground, masters)
    boundaries = _boundary_ports(ground, masters, reach)
    transparent = {
        name: tuple(_port_to(nic, ground.usable[name], PortSide.UP) for nic in nics)
        for name, nics in ground.transparent().items()
        if all(nic.segment in reach.steps for nic in nics)
    }
    placed = {*(node.name for node, _ in masters), *boundaries, *transparent}
    ordinary, left_out = {}, {}
    for node in survey.planned:
        reached = [nic for nic in ground.usable[node.name] if nic.nic.segment in reach.steps]
        if node.name in placed:
            continue
        if reached:
            ordinary[node.name] = min(reached, key=lambda nic: reach.steps[nic.nic.segment])
        else:
            left_out[node.name] = _why_not(survey, node, scheme)
    return PtpTree(
        scheme=scheme,
        masters=masters,
        reach=reach,
        boundaries=boundaries,
        transparent=transparent,
        serving=_serving(masters, reach, boundaries),
        ordinary=ordinary,
        left_out=left_out,
    )


def port_of(nic: NicCapability, side: PortSide) -> PtpPort:
    """A NIC as a port of a PTP clock."""
    return PtpPort(nic=nic.nic.name, segment=nic.nic.segment, side=side, phc_index=nic.phc_index)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ground:
    """What the skeleton stands on. usable: node to its NICs with stamps of the scheme. order: switches first."""

    survey: Survey
    usable: Mapping[str, tuple[NicCapability, ...]]
    order: Mapping[str, int]

    def clocks(self, *, without: frozenset[str] = frozenset()) -> dict[str, tuple[Nic, ...]]:
        """What may be a boundary clock: ports in two segments or more."""
        return self._joining(PtpClock.BOUNDARY, without)

    def transparent(self) -> dict[str, tuple[Nic, ...]]:
        """Switches that pass messages on between segments."""
        return self._joining(PtpClock.TRANSPARENT, frozenset())

    def _joining(self, kind: PtpClock, without: frozenset[str]) -> dict[str, tuple[Nic, ...]]:
        found = {}
        for node in self.survey.planned:
            own = node.ptp_clock if node.kind is NodeKind.SWITCH else PtpClock.BOUNDARY
            by_segment: dict[str, Nic] = {}
            for nic in self.usable[node.name]:
                by_segment.setdefault(nic.nic.segment, nic.nic)
            if own is kind and len(by_segment) > 1 and node.name not in without:
                found[node.name] = tuple(by_segment.values())
        return found

    def reach_from(self, segment: str, clocks: Mapping[str, tuple[Nic, ...]]) -> PtpReach:
        """What PTP reaches from a segment through these boundary clocks."""
        return self.survey.topology.ptp_reach(segment, clocks, self.order, self.transparent())


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


def _masters(ground: _Ground) -> tuple[tuple[Node, NicCapability], ...]:
    """Grandmaster candidates with the NIC that each serves through; all in segments that reach each other.

    Appliances first, then receivers, then the others: that is how their classes order them.
    """
    survey = ground.survey
    appliances = [survey.cluster.node(name) for name in survey.references.grandmasters]
    hosts = [node for node in survey.planned if node.kind is NodeKind.SERVER or survey.refclocks(node)]
    if not hosts and not appliances:
        hosts = _stand_ins(ground)
    choices = [(node, _served_by(survey, node)) for node in appliances]
    choices += [(node, nic) for node in hosts for nic in ground.usable[node.name]]
    if not choices:
        return ()
    # A grandmaster serves through one NIC: it joins no segments, whatever else it is plugged into.
    clocks = ground.clocks(without=frozenset(node.name for node in hosts))
    reach = {nic.nic.segment: ground.reach_from(nic.nic.segment, clocks).steps for _, nic in choices}

    def served(segment: str) -> int:
        return len({node.name for reached in reach[segment] for node, _ in survey.topology.members[reached]})

    best = max(choices, key=lambda choice: served(choice[1].nic.segment))
    together = reach[best[1].nic.segment]
    masters: dict[str, tuple[Node, NicCapability]] = {}
    for node, nic in sorted(choices, key=lambda choice: choice[1].nic.segment != best[1].nic.segment):
        if nic.nic.segment in together and node.name not in masters:
            masters[node.name] = (node, nic)

    def rank(master: tuple[Node, NicCapability]) -> tuple[int, int, int]:
        node, nic = master
        quality = 0 if node in appliances else 1 if survey.has_pulse(node) else 2
        return quality, together[nic.nic.segment], [*appliances, *hosts].index(node)

    return tuple(sorted(masters.values(), key=rank))


def _served_by(survey: Survey, appliance: Node) -> NicCapability:
    """The port of an appliance: its stamps are its own business."""
    nic = appliance.nics[0]
    announced = survey.references.grandmasters[appliance.name]
    why = f"an appliance that announces clockClass {announced.clock_class} while it is locked"
    return NicCapability(nic=nic, hardware=True, software=True, ethernet=True, why=why)


def _stand_ins(ground: _Ground) -> list[Node]:
    """Without a node of kind server: two training nodes, in different racks where there are."""
    planned = ground.survey.planned
    hosts = [node for node in planned if node.kind is NodeKind.TRAINING and ground.usable[node.name]]
    second = [node for node in hosts[1:] if node.rack != hosts[0].rack] or hosts[1:]
    return hosts[:1] + second[:1]


def _reach(ground: _Ground, masters: tuple[tuple[Node, NicCapability], ...]) -> PtpReach:
    """Steps by segment and the uplinks of boundary clocks; hosts join segments only where no switch does."""
    start = masters[0][1].nic.segment
    clocks = ground.clocks(without=frozenset(node.name for node, _ in masters))
    kinds = {node.name: node.kind for node in ground.survey.planned}
    switches = {name: nics for name, nics in clocks.items() if kinds[name] is NodeKind.SWITCH}
    by_switches = ground.reach_from(start, switches)
    by_all = ground.reach_from(start, clocks)
    if by_all.steps.keys() <= by_switches.steps.keys():
        return by_switches
    return replace(by_all, uplinks=_needed(by_all.uplinks, clocks, by_all.steps, kinds))


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
    ground: _Ground, masters: tuple[tuple[Node, NicCapability], ...], reach: PtpReach
) -> dict[str, tuple[PtpPort, ...]]:
    clocks = {name: nics for name, nics in ground.clocks().items() if name in reach.uplinks}
    # A port that leads to any grandmaster must be able to follow it after a takeover.
    toward: dict[str, set[str]] = defaultdict(set)
    for segment in {nic.nic.segment for _, nic in masters}:
        for name, uplink in ground.reach_from(segment, clocks).uplinks.items():
            toward[name].add(uplink.nic)
    origin = reach.origin
    down = Counter(
        origin.get(nic.segment, nic.segment)
        for name, nics in clocks.items()
        for nic in nics
        if nic.name not in toward[name]
    )
    return {
        name: tuple(
            _port_to(
                nic,
                ground.usable[name],
                PortSide.UP
                if nic.name in toward[name] or down[origin.get(nic.segment, nic.segment)] > 1
                else PortSide.DOWN,
            )
            for nic in sorted(clocks[name], key=lambda nic: (nic.name != reach.uplinks[name].nic, nic.name))
            if nic.segment in reach.steps
        )
        for name in reach.uplinks
    }


def _port_to(nic: Nic, usable: tuple[NicCapability, ...], side: PortSide) -> PtpPort:
    return port_of(next(item for item in usable if item.nic == nic), side)


def _serving(
    masters: tuple[tuple[Node, NicCapability], ...], reach: PtpReach, boundaries: Mapping[str, tuple[PtpPort, ...]]
) -> dict[str, tuple[str, ...]]:
    serving: dict[str, list[str]] = defaultdict(list)
    for node, nic in masters:
        if reach.steps[nic.nic.segment] == 0:
            serving[reach.origin[nic.nic.segment]].append(node.name)
    for name, ports in boundaries.items():
        for port in ports[1:]:
            if reach.steps[port.segment] == reach.uplinks[name].steps:
                serving[reach.origin[port.segment]].append(name)
    return {segment: tuple(found) for segment, found in serving.items()}
