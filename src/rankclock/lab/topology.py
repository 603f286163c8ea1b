"""From a scenario to what the lab's first process does: bridges, cables, addresses, routes, clocks, as plain data.

Pure: the same scenario gives the same data. Every segment is a bridge, every interface a veth pair into it; nodes of
kind `switch` forward IP, and every node gets routes by which it reaches every other.
"""

from __future__ import annotations

import hashlib
import uuid
from collections import deque
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network
from typing import Any

from rankclock.cluster.model import Cluster, Nic, Node, NodeKind
from rankclock.lab.clock import drift_q48
from rankclock.lab.scenario import ClockSpec, LinkSettings, Scenario

__all__ = ["Port", "ports_of", "settings_of", "spec_of", "ways_of"]

RAW_APART_NS = 1000 * 10**9
"""Nodes' CLOCK_MONOTONIC_RAW are this far apart, as on machines booted at different times: mixing two up shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """One interface's way into its segment: `port` on the bridge; with a cable, `inner` and `outer` are its ends."""

    node: str
    nic: str
    port: str
    bridge: str
    mac: str
    cable: bool
    inner: str
    outer: str


def ports_of(scenario: Scenario) -> tuple[Port, ...]:
    """All ports, in the order of the cluster file; names and MAC addresses follow from it."""
    bridges = _bridges(scenario.cluster)
    cabled = {(link.node, link.nic) for link in scenario.links}
    cabled |= {(event.node, event.nic) for event in scenario.events if event.action == "link" and event.set}
    ports = []
    for n, node in enumerate(scenario.cluster.nodes):
        for k, nic in enumerate(node.nics):
            at = f"{n}.{k}"
            ports.append(
                Port(
                    node=node.name,
                    nic=nic.name,
                    port=f"p{at}",
                    bridge=bridges[nic.segment],
                    mac=f"02:00:00:{n >> 8:02x}:{n & 255:02x}:{k:02x}",
                    cable=(node.name, nic.name) in cabled,
                    inner=f"i{at}",
                    outer=f"o{at}",
                )
            )
    return tuple(ports)


def spec_of(scenario: Scenario, *, tied: bool, die_with_parent: bool) -> dict[str, Any]:
    """Everything that the lab's first process needs, as one JSON object."""
    cluster = scenario.cluster
    ports = ports_of(scenario)
    routes = _Routes(cluster)
    hosts = _hosts(cluster)
    return {
        "tied": tied,
        "die_with_parent": die_with_parent,
        "cables": [end for port in ports if port.cable for end in (port.inner, port.outer)],
        "ways": [value for port in ports if port.cable for value in ways_of(_settings(scenario, port))],
        "ip": [*_bridge_lines(cluster), *(line for port in ports for line in _port_lines(port))],
        "nodes": [
            {
                "name": node.name,
                "hosts": hosts,
                "boot_id": _identity(cluster, node, "boot"),
                "machine_id": _identity(cluster, node, "machine").replace("-", ""),
                "clock": _clock(scenario.clocks_of(node.name), index, 1),
                "phc": _clock(scenario.clocks_of(node.name).phc, index, 2),
                "ip": [*_address_lines(node), *routes.lines(node)],
                "sysctl": _sysctl(node),
            }
            for index, node in enumerate(cluster.nodes)
        ],
    }


def ways_of(settings: LinkSettings) -> list[int]:
    """The cable's settings for both directions (cable.c, struct way): out of the node, then into it."""
    way = []
    for sign in (1, -1):
        delay_ns = settings.delay_ns + sign * settings.asymmetry_ns // 2
        way += [delay_ns, settings.jitter_ns, round(settings.loss * 1_000_000), 0]
    return way


def settings_of(ways: list[int]) -> LinkSettings:
    """The inverse of `ways_of`."""
    out_ns, jitter_ns, loss_ppm, _, in_ns, *_ = ways
    return LinkSettings(
        delay_ns=(out_ns + in_ns) // 2, asymmetry_ns=out_ns - in_ns, jitter_ns=jitter_ns, loss=loss_ppm / 1_000_000
    )


def _settings(scenario: Scenario, port: Port) -> LinkSettings:
    for link in scenario.links:
        if (link.node, link.nic) == (port.node, port.nic):
            return link
    return LinkSettings()


def _bridges(cluster: Cluster) -> dict[str, str]:
    segments = dict.fromkeys(nic.segment for node in cluster.nodes for nic in node.nics)
    return {segment: f"br{index}" for index, segment in enumerate(segments)}


def _bridge_lines(cluster: Cluster) -> list[str]:
    lines = []
    for bridge in _bridges(cluster).values():
        # Snooping would drop multicast that nobody has joined, PTP's first messages among it; 0x4000 lets the
        # peer-delay address 01:80:C2:00:00:0E through, which a bridge must otherwise keep to itself (802.1D 7.12.6).
        lines.append(f"link add {bridge} type bridge mcast_snooping 0 group_fwd_mask 0x4000")
        # Promiscuous: then it forwards clones. The frame itself still belongs to the sender's socket, and the veth on
        # the far side of the bridge would stamp it a second time: two transmit stamps of one packet, 2 µs apart.
        lines.append(f"link set {bridge} promisc on up")
    return lines


def _port_lines(port: Port) -> list[str]:
    end = port.inner if port.cable else port.port
    lines = [f"link add {end} type veth peer name {port.nic} address {port.mac} netns @{port.node}"]
    if port.cable:
        lines += [f"link add {port.outer} type veth peer name {port.port}", f"link set {port.outer} up"]
        lines.append(f"link set {port.inner} up")
    lines.append(f"link set {port.port} master {port.bridge} up")
    return lines


def _address_lines(node: Node) -> list[str]:
    lines = ["link set lo up"]
    for nic in node.nics:
        nodad = " nodad" if nic.address.version == 6 else ""
        lines += [f"addr add {nic.address} dev {nic.name}{nodad}", f"link set {nic.name} up"]
    return lines


def _sysctl(node: Node) -> list[tuple[str, str]]:
    forward = "1" if node.kind is NodeKind.SWITCH else "0"
    values = [("net/ipv4/ip_forward", forward), ("net/ipv4/conf/all/rp_filter", "0")]
    values.append(("net/ipv4/ping_group_range", "0 0"))
    if any(nic.address.version == 6 for nic in node.nics):
        values.append(("net/ipv6/conf/all/forwarding", forward))
    else:  # without it every interface sends neighbour and router solicitations, which wake idle nodes
        values += [("net/ipv6/conf/all/disable_ipv6", "1"), ("net/ipv6/conf/default/disable_ipv6", "1")]
    return values


def _identity(cluster: Cluster, node: Node, what: str) -> str:
    digest = hashlib.sha256(f"{cluster.name}/{node.name}/{what}".encode()).digest()
    return str(uuid.UUID(bytes=digest[:16], version=4))


def _clock(spec: ClockSpec | None, index: int, which: int) -> dict[str, int] | None:
    if spec is None:
        return None
    ahead_ns = (2 * index + which) * RAW_APART_NS
    return {"offset_ns": spec.offset_ns, "drift_q48": drift_q48(spec.drift_ppb), "raw_ahead_ns": ahead_ns}


def _hosts(cluster: Cluster) -> str:
    lines = ["127.0.0.1 localhost", "::1 localhost"]
    for node in cluster.nodes:
        if node.nics:
            lines.append(f"{node.nics[0].address.ip} {node.name}")
    return "\n".join(lines) + "\n"


class _Routes:
    """Shortest ways between segments over the nodes that forward."""

    def __init__(self, cluster: Cluster) -> None:
        self.networks: dict[str, set[IPv4Network | IPv6Network]] = {}
        for node in cluster.nodes:
            for nic in node.nics:
                self.networks.setdefault(nic.segment, set()).add(nic.address.network)
        self.forwarders = [node for node in cluster.nodes if node.kind is NodeKind.SWITCH]

    def lines(self, node: Node) -> list[str]:
        """`ip route` lines of one node."""
        lines = []
        for segment, hops in self._ways(node).items():
            for network in sorted(self.networks[segment], key=str):
                for hop in hops:
                    if hop.address.version == network.version:
                        lines.append(f"route add {network} via {hop.address.ip}")
                        break
        return lines

    def _ways(self, node: Node) -> dict[str, tuple[Nic, ...]]:
        """Each segment that the node is not in -> the first hop towards it (its interfaces in our segment)."""
        ways: dict[str, tuple[Nic, ...]] = {nic.segment: () for nic in node.nics}
        queue = deque(ways)
        while queue:
            here = queue.popleft()
            for forwarder in self.forwarders:
                entry = tuple(nic for nic in forwarder.nics if nic.segment == here)
                if not entry or forwarder.name == node.name:
                    continue
                for nic in forwarder.nics:
                    if nic.segment not in ways:
                        ways[nic.segment] = ways[here] or entry
                        queue.append(nic.segment)
        return {segment: hops for segment, hops in ways.items() if hops}
