"""Everything known before anything is decided: the cluster, its facts, what its NICs can do, its paths and sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rankclock.cluster.facts import Facts
from rankclock.cluster.hostlist import fold
from rankclock.cluster.model import Cluster, NetworkKind, Node, NodeKind, Source, SourceKind
from rankclock.planning.capability import NicCapability, capabilities, cloud_of, excluded_nodes
from rankclock.planning.model import NtpServer, Refusal
from rankclock.planning.settings import Settings
from rankclock.planning.topology import Topology

__all__ = ["CLOUD_NTP", "SMEARED_HOSTS", "Survey", "names", "survey"]

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
    "aws": ("169.254.169.123",),
    "gcp": ("metadata.google.internal",),
    "alibaba": tuple(f"ntp{number}.cloud.aliyuncs.com" for number in (7, 8, 9)),
}
"""What each provider offers its own machines by NTP."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What the decision and the roles are made from.

    planned: the nodes that get a role from us: not references, not containers. training: those of them whose accuracy
    is asked for (all where none trains). sources_on_lan: every source is in one of the cluster's own networks.
    """

    cluster: Cluster
    facts: Mapping[str, Facts]
    settings: Settings
    topology: Topology
    nics: Mapping[str, tuple[NicCapability, ...]]
    excluded: Mapping[str, str]
    cloud: str | None
    cloud_evidence: tuple[str, ...]
    sources: tuple[NtpServer, ...]
    refused_sources: tuple[Refusal, ...]
    planned: tuple[Node, ...]
    training: tuple[Node, ...]
    sources_on_lan: bool

    @property
    def in_cloud(self) -> bool:
        """Whether the machines are a cloud provider's."""
        return self.cluster.network.kind is NetworkKind.CLOUD or self.cloud is not None


def survey(cluster: Cluster, facts: Mapping[str, Facts], settings: Settings) -> Survey:
    """Look at everything once."""
    excluded = excluded_nodes(cluster, facts, settings)
    cloud, said_by = cloud_of(facts)
    sources, refused = _sources(cluster, excluded)
    evidence = (f"facts of {names(said_by)} name {cloud}",) if cloud else ()
    if cluster.network.kind is NetworkKind.CLOUD:
        evidence = ("the cluster file says network.kind: cloud", *evidence)
    topology = Topology(cluster)
    planned = tuple(node for node in cluster.nodes if node.kind is not NodeKind.SOURCE and node.name not in excluded)
    return Survey(
        cluster=cluster,
        facts=facts,
        settings=settings,
        topology=topology,
        nics=capabilities(cluster, facts),
        excluded=excluded,
        cloud=cloud,
        cloud_evidence=evidence,
        sources=sources,
        refused_sources=refused,
        planned=planned,
        training=tuple(node for node in planned if node.kind is NodeKind.TRAINING) or planned,
        sources_on_lan=bool(sources) and all(topology.on_lan(source.address) for source in sources),
    )


def names(nodes: tuple[str, ...] | list[str]) -> str:
    """Node names for people: folded, and cut where there are very many kinds of them."""
    text = fold(nodes)
    return text if len(text) <= 120 else f"{text[:110]}... ({len(nodes)})"


def _sources(cluster: Cluster, excluded: Mapping[str, str]) -> tuple[tuple[NtpServer, ...], tuple[Refusal, ...]]:
    by_address = {str(nic.address.ip): node for node in cluster.nodes for nic in node.nics}
    good, refused = [], []
    for source in cluster.sources:
        node = cluster.by_name.get(source.node or "") or by_address.get(source.address or "")
        address = source.address or (str(node.nics[0].address.ip) if node and node.nics else source.node or "")
        refusal = _source_refusal(source, node, excluded)
        if refusal:
            refused.append(refusal)
            continue
        smeared = True if source.smeared is None and address.lower() in SMEARED_HOSTS else source.smeared
        good.append(NtpServer(name=source.name, address=address, prefer=False, reference=True, smeared=smeared))
    smeared_names = [source.name for source in good if source.smeared is True]
    other = [source.name for source in good if source.smeared is False]
    if smeared_names and other:
        reason = (
            f"{names(smeared_names)} spread leap seconds over hours, {names(other)} do not: up to 1 s apart on that day"
        )
        refused.append(Refusal(subject="sources", reason=reason, do="keep one kind of source"))
    return tuple(good), tuple(refused)


def _source_refusal(source: Source, node: Node | None, excluded: Mapping[str, str]) -> Refusal | None:
    subject = f"source {source.name}"
    if source.kind in (SourceKind.GPS, SourceKind.CLOUD_PHC):
        reason = f"kind {source.kind} is not configured by this version"
        return Refusal(subject=subject, reason=reason, do="let an NTP server or appliance read it and name that one")
    if node is not None and node.kind is not NodeKind.SOURCE:
        reason = f"it is node {node.name} of this plan: that node would get its time from itself, a cycle"
        return Refusal(subject=subject, reason=reason, do=f"name a reference outside, or give {node.name} kind: source")
    if node is not None and node.name in excluded:
        return Refusal(subject=subject, reason=excluded[node.name], do="name its host")
    return None
