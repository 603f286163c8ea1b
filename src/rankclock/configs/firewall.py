"""Openings in a node's firewall for what the plan runs there, for nftables, ufw or firewalld.

Time is served to the cluster's own networks only. PTP over Ethernet (L2) passes no IP firewall and gets no rule.
Commands for chronyd and ptp4l stay on the machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_network
from xml.sax.saxutils import quoteattr

from rankclock.cluster.model import Cluster, Firewall, Transport
from rankclock.configs.options import ConfigLine
from rankclock.planning.model import NodeRole

__all__ = ["PROBE_PORT", "firewall_files"]

PROBE_PORT = 4910
"""Where rankclock's probers answer, unless a job says otherwise."""

_NFTABLES = "/etc/nftables.d/rankclock.nft"
_UFW = "/etc/ufw/applications.d/rankclock"
_FIREWALLD = "/etc/firewalld/services/rankclock-{}.xml"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opening:
    """A service that others reach on this node. sources: networks that may; none: everybody in reach of the NICs."""

    name: str
    what: str
    ports: tuple[tuple[str, int], ...]
    sources: tuple[str, ...] = ()


def firewall_files(role: NodeRole, cluster: Cluster) -> dict[str, tuple[ConfigLine, ...]]:
    """Files by path for the firewall that the cluster file names; empty without one."""
    openings = _openings(role, cluster)
    if cluster.firewall is Firewall.NFTABLES:
        return {_NFTABLES: _nftables(openings)}
    if cluster.firewall is Firewall.UFW:
        return {_UFW: tuple(line for item in openings for line in _ufw(item))}
    if cluster.firewall is Firewall.FIREWALLD:
        return {_FIREWALLD.format(item.name): _firewalld(item) for item in openings}
    return {}


def _openings(role: NodeRole, cluster: Cluster) -> list[_Opening]:
    found = []
    if role.clients:
        found.append(_Opening(name="ntp", what="NTP", ports=(("udp", 123),), sources=role.clients))
    if role.clients and cluster.ntp.nts:
        found.append(_Opening(name="nts", what="NTS key exchange", ports=(("tcp", 4460),), sources=role.clients))
    if role.ports and cluster.ptp.transport is not Transport.L2:
        found.append(_Opening(name="ptp", what="PTP event and general messages", ports=(("udp", 319), ("udp", 320))))
    networks = tuple(str(nic.address.network) for nic in cluster.node(role.node).nics)
    ports = (("udp", PROBE_PORT),)
    found.append(_Opening(name="probe", what="rankclock's probes", ports=ports, sources=networks))
    return found


def _nftables(openings: list[_Opening]) -> tuple[ConfigLine, ...]:
    lines = [
        ConfigLine(
            text="table inet filter {",
            why='the distribution\'s table and chain: end /etc/nftables.conf with include "/etc/nftables.d/*.nft"; '
            "with a policy of drop it opens, behind a rule that drops all it comes too late",
        ),
        ConfigLine(text="  chain input {"),
        ConfigLine(text="    type filter hook input priority filter;"),
    ]
    for item in openings:
        for protocol, ports in _by_protocol(item).items():
            rule = f"{protocol} dport {{ {', '.join(map(str, ports))} }} accept"
            families = _by_family(item.sources)
            for family, networks in families.items() if families else (("", ()),):
                front = f"{family} saddr {{ {', '.join(networks)} }} " if networks else ""
                lines.append(ConfigLine(text=f"    {front}{rule}", why=item.what))
    return (*lines, ConfigLine(text="  }"), ConfigLine(text="}"))


def _by_protocol(item: _Opening) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for protocol, port in item.ports:
        found.setdefault(protocol, []).append(port)
    return found


def _by_family(networks: tuple[str, ...]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for network in networks:
        found.setdefault("ip" if ip_network(network).version == 4 else "ip6", []).append(network)
    return found


def _ufw(item: _Opening) -> list[ConfigLine]:
    ports = "|".join(f"{','.join(map(str, ports))}/{protocol}" for protocol, ports in _by_protocol(item).items())
    allowed = [f"ufw allow from {network} to any app rankclock-{item.name}" for network in item.sources]
    todo = "; ".join(allowed) or f"ufw allow rankclock-{item.name}"
    return [
        ConfigLine(text=f"[rankclock-{item.name}]"),
        ConfigLine(text=f"title={item.what}"),
        ConfigLine(text=f"description={item.what} (rankclock)"),
        ConfigLine(text=f"ports={ports}", why=f"a profile opens nothing by itself: {todo}"),
        ConfigLine(text=""),
    ]


def _firewalld(item: _Opening) -> tuple[ConfigLine, ...]:
    ports = [
        ConfigLine(text=f"  <port protocol={quoteattr(protocol)} port={quoteattr(str(port))}/>")
        for protocol, port in item.ports
    ]
    where = f" in the zone of {', '.join(item.sources)}" if item.sources else ""
    why = f"a service opens nothing by itself: firewall-cmd --permanent --add-service=rankclock-{item.name}{where}"
    return (
        ConfigLine(text="<service>", why=why),
        ConfigLine(text=f"  <short>rankclock {item.name}</short>"),
        ConfigLine(text=f"  <description>{item.what}</description>"),
        *ports,
        ConfigLine(text="</service>"),
    )
