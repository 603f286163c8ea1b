"""What the cluster's time comes from: NTP servers, receivers at nodes, appliances that speak PTP, clouds' clocks.

Refuses sources that are nodes of the plan themselves, and smeared beside unsmeared ones: up to a second apart on the
day of a leap second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rankclock.cluster.facts import Facts
from rankclock.cluster.hostlist import fold
from rankclock.cluster.model import Announced, Cluster, Node, NodeKind, Provider, Source, SourceKind
from rankclock.planning.model import NtpServer, RefClock, RefClockKind, Refusal

__all__ = ["CLOUD_NTP", "References", "cloud_clock", "names", "references", "smears"]

SMEARED_HOSTS = (
    "169.254.169.123",
    "fd00:ec2::123",
    "time.aws.com",
    "metadata.google.internal",
    "time.google.com",
    "time1.google.com",
    "time2.google.com",
    "time3.google.com",
    "time4.google.com",
    "time.facebook.com",
)
"""Public servers that spread a leap second over hours, by their operators' word. Everything else is not known."""

CLOUD_NTP = {
    Provider.AWS: ("169.254.169.123",),
    Provider.GCP: ("metadata.google.internal",),
    Provider.ALIBABA: tuple(f"ntp{number}.cloud.aliyuncs.com" for number in (7, 8, 9)),
}
"""What each provider offers its own machines by NTP."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudClock:
    """The clock that a provider gives its machines. mark: its kind in the facts. apart_ns: from its host's clock."""

    device: str
    mark: str
    apart_ns: int


_CLOUD_CLOCKS = {
    Provider.AWS: CloudClock(device="/dev/ptp_ena", mark="ena", apart_ns=5_000),
    Provider.GCP: CloudClock(device="/dev/ptp_kvm", mark="ptp_kvm", apart_ns=1_000_000),
    Provider.AZURE: CloudClock(device="/dev/ptp_hyperv", mark="hyperv", apart_ns=100_000),
}
"""Stable names (udev links by the clock's name): the numbers of /dev/ptpN change from boot to boot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class References:
    """Every source, sorted by how it is read. at_nodes: receivers by node. grandmasters: appliances that speak PTP.

    cloud: the source that asks for the provider's own clock, None where there is none.
    """

    servers: tuple[NtpServer, ...]
    at_nodes: Mapping[str, tuple[RefClock, ...]]
    grandmasters: Mapping[str, Announced]
    cloud: Source | None
    refused: tuple[Refusal, ...]

    @property
    def count(self) -> int:
        """How many independent ones there are."""
        return len(self.servers) + len(self.at_nodes)


def references(cluster: Cluster, excluded: Mapping[str, str]) -> References:
    """Sort the sources of the cluster file; what cannot be is refused with its reason."""
    by_address = {str(nic.address.ip): node for node in cluster.nodes for nic in node.nics}
    servers: list[NtpServer] = []
    refused: list[Refusal] = []
    at_nodes: dict[str, tuple[RefClock, ...]] = {}
    grandmasters: dict[str, Announced] = {}
    cloud = None
    for source in cluster.sources:
        node = cluster.by_name.get(source.node or "") or by_address.get(source.address or "")
        refusal = _refusal(source, node, excluded)
        if refusal:
            refused.append(refusal)
        elif source.kind is SourceKind.GPS and node is not None:
            at_nodes[node.name] = (*at_nodes.get(node.name, ()), _receiver(source))
        elif source.kind is SourceKind.CLOUD_PHC:
            cloud = source
        else:
            servers.append(_server(source, node))
            if source.ptp is not None and node is not None:
                grandmasters[node.name] = source.ptp
    mixed = _mixed(servers)
    return References(
        servers=tuple(servers),
        at_nodes=at_nodes,
        grandmasters=grandmasters,
        cloud=cloud,
        refused=(*refused, *((mixed,) if mixed else ())),
    )


def cloud_clock(provider: str | None, asked: Source | None, facts: Facts | None) -> RefClock | None:
    """The provider's clock at one machine, where the file asks for it or the facts show it; None without one."""
    known = _CLOUD_CLOCKS.get(Provider(provider)) if provider in list(Provider) else None
    shown = known is not None and facts is not None and facts.has_phc_of(known.mark)
    if asked is None and not shown:
        return None
    device = asked.device if asked is not None and asked.device is not None else known.device if known else None
    if device is None:
        return None
    name = asked.name if asked is not None else f"{provider} clock"
    return RefClock(
        name=name, kind=RefClockKind.PHC, device=device, bound_ns=known.apart_ns if known is not None else None
    )


def smears(address: str) -> bool:
    """Whether the operator of that server says that it spreads leap seconds over hours."""
    return address.lower() in SMEARED_HOSTS


def names(nodes: tuple[str, ...] | list[str]) -> str:
    """Node names for people: folded, and cut where there are very many kinds of them."""
    text = fold(nodes)
    return text if len(text) <= 120 else f"{text[:110]}... ({len(nodes)})"


def _receiver(source: Source) -> RefClock:
    gps = source.gps
    return RefClock(
        name=source.name,
        kind=RefClockKind.GPS if gps.pps_into is None else RefClockKind.GPS_NIC,
        device=gps.device,
        pps=gps.pps if gps.pps_into is None else None,
        nic=gps.pps_into,
        pin=gps.pin,
        baud=gps.baud,
        delay_s=gps.nmea_delay_s,
    )


def _server(source: Source, node: Node | None) -> NtpServer:
    address = source.address or (str(node.nics[0].address.ip) if node and node.nics else source.node or "")
    smeared = True if source.smeared is None and smears(address) else source.smeared
    return NtpServer(
        name=source.name,
        address=address,
        prefer=False,
        reference=True,
        smeared=smeared,
        nts=source.nts,
        key=source.key,
    )


def _mixed(servers: list[NtpServer]) -> Refusal | None:
    smeared = [source.name for source in servers if source.smeared is True]
    other = [source.name for source in servers if source.smeared is False]
    if not smeared or not other:
        return None
    reason = f"{names(smeared)} spread leap seconds over hours, {names(other)} do not: up to 1 s apart on that day"
    return Refusal(subject="sources", reason=reason, do="keep one kind of source")


def _refusal(source: Source, node: Node | None, excluded: Mapping[str, str]) -> Refusal | None:
    subject = f"source {source.name}"
    if node is not None and node.name in excluded:
        return Refusal(subject=subject, reason=excluded[node.name], do="name its host")
    if source.kind is SourceKind.GPS:
        if node is not None and node.kind in (NodeKind.SOURCE, NodeKind.SWITCH):
            reason = f"its receiver is at {node.name}, of kind {node.kind}, which we do not configure"
            return Refusal(subject=subject, reason=reason, do=f"kind: server for {node.name}, or kind: appliance here")
        return None
    if node is not None and node.kind is not NodeKind.SOURCE:
        reason = f"it is node {node.name} of this plan: that node would get its time from itself, a cycle"
        return Refusal(subject=subject, reason=reason, do=f"name a reference outside, or give {node.name} kind: source")
    return None
