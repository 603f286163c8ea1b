"""Which segment reaches which: for IP through switches, for PTP through boundary clocks, counted from the grandmaster.

Only what the cluster file says counts. PTP multicast is never assumed to pass a router.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address

from rankclock.cluster.model import Cluster, Nic, Node, NodeKind

__all__ = ["EVERYWHERE", "PtpReach", "Topology", "Uplink"]


EVERYWHERE = ("0.0.0.0/0", "::/0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Uplink:
    """How a boundary clock is reached from a grandmaster's segment: through which NIC, and how many clocks down."""

    node: str
    nic: str
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PtpReach:
    """What PTP reaches from one segment. steps: boundary clocks on the way to each segment. uplinks: of each of those.

    origin: the segment in which the clocks stand that serve this one; another one only behind transparent clocks, which
    `through` names on the way.
    """

    steps: dict[str, int]
    uplinks: dict[str, Uplink]
    origin: dict[str, str]
    through: dict[str, tuple[str, ...]]


class Topology:
    """The segments of a cluster and what joins them."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.members: dict[str, list[tuple[Node, Nic]]] = defaultdict(list)
        for node in cluster.nodes:
            for nic in node.nics:
                self.members[nic.segment].append((node, nic))
        self._networks = {nic.address.network for nodes in self.members.values() for _, nic in nodes}
        self._groups = self._joined_by_switches()

    def _joined_by_switches(self) -> dict[str, int]:
        """Segment to the number of its group: segments of one group reach each other by IP."""
        parent = {segment: segment for segment in self.members}

        def root(segment: str) -> str:
            while parent[segment] != segment:
                parent[segment] = parent[parent[segment]]
                segment = parent[segment]
            return segment

        for node in self.cluster.nodes:
            if node.kind is NodeKind.SWITCH:
                for nic in node.nics[1:]:
                    parent[root(nic.segment)] = root(node.nics[0].segment)
        numbers: dict[str, int] = {}
        return {segment: numbers.setdefault(root(segment), len(numbers)) for segment in self.members}

    def address_for(self, server: Node, client: Node) -> str | None:
        """The address at which `client` reaches `server`, None where no path is in the file.

        The one in a segment that they share, otherwise the first that IP reaches. Nodes without NICs are reached
        by name: of their network nothing is known.
        """
        if not server.nics:
            return server.name
        if not client.nics:
            return str(server.nics[0].address.ip)
        own = {nic.segment for nic in client.nics}
        groups = {self._groups[segment] for segment in own}
        shared = [nic for nic in server.nics if nic.segment in own]
        reached = [nic for nic in server.nics if self.cluster.network.routed or self._groups[nic.segment] in groups]
        for nic in (*shared, *reached):
            return str(nic.address.ip)
        return None

    def on_lan(self, address: str) -> bool:
        """Whether an address lies in a network of the cluster's own segments."""
        try:
            ip = ip_address(address)
        except ValueError:
            return False
        return any(ip in network for network in self._networks)

    def networks_reaching(self, server: Node) -> tuple[str, ...]:
        """The networks whose nodes may ask a server: those that reach it by IP, in order.

        Everything where the file does not tell the networks of the server or of some node: nobody is shut out by guess.
        """
        if not server.nics or any(not node.nics for node in self.cluster.nodes):
            return EVERYWHERE
        groups = {self._groups[nic.segment] for nic in server.nics}
        found = {
            nic.address.network
            for segment, nodes in self.members.items()
            if self.cluster.network.routed or self._groups[segment] in groups
            for _, nic in nodes
        }
        return tuple(str(network) for network in sorted(found, key=lambda net: (net.version, net)))

    def ptp_reach(
        self,
        start: str,
        clocks: Mapping[str, Iterable[Nic]],
        order: Mapping[str, int],
        transparent: Mapping[str, Iterable[Nic]],
    ) -> PtpReach:
        """What PTP reaches from segment `start`, by the fewest boundary clocks.

        clocks: node to the NICs through which it may be a boundary clock; transparent: likewise, for those that pass
        messages on. order: among equals the lower is taken first.
        """
        ports = {name: tuple(nics) for name, nics in clocks.items()}
        by_segment: dict[str, list[str]] = defaultdict(list)
        for name, nics in sorted(ports.items(), key=lambda item: (order[item[0]], item[0])):
            for nic in nics:
                by_segment[nic.segment].append(name)
        joins: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for name, passing in transparent.items():
            segments = [nic.segment for nic in passing]
            for segment in segments:
                joins[segment] += [(name, other) for other in segments if other != segment]
        found = PtpReach(steps={start: 0}, uplinks={}, origin={start: start}, through={start: ()})
        queue = deque([start])
        while queue:
            segment = queue.popleft()
            for name, other in joins[segment]:
                if other not in found.steps:
                    found.steps[other], found.origin[other] = found.steps[segment], found.origin[segment]
                    found.through[other] = (*found.through[segment], name)
                    queue.appendleft(other)
            for name in by_segment[segment]:
                if name in found.uplinks:
                    continue
                nic = next(nic for nic in ports[name] if nic.segment == segment)
                found.uplinks[name] = Uplink(node=name, nic=nic.name, steps=found.steps[segment] + 1)
                for port in ports[name]:
                    if port.segment not in found.steps:
                        found.steps[port.segment] = found.steps[segment] + 1
                        found.origin[port.segment], found.through[port.segment] = port.segment, ()
                        queue.append(port.segment)
        return found
