"""Everything known before anything is decided: the cluster, its facts, what its NICs can do, its paths and sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rankclock.cluster.facts import Facts
from rankclock.cluster.measured import MeasuredPath
from rankclock.cluster.model import Cluster, NetworkKind, Node, NodeKind
from rankclock.planning.capability import NicCapability, capabilities, cloud_of, excluded_nodes
from rankclock.planning.model import NtpServer, RefClock, Refusal
from rankclock.planning.references import References, names, references
from rankclock.planning.settings import Settings
from rankclock.planning.topology import Topology

__all__ = ["Survey", "survey"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What the decision and the roles are made from.

    planned: the nodes that get a role from us: not references, not containers. training: those of them whose accuracy
    is asked for (all where none trains). sources_on_lan: every source is in one of the cluster's own networks.
    paths: measured between nodes.
    """

    cluster: Cluster
    facts: Mapping[str, Facts]
    settings: Settings
    topology: Topology
    nics: Mapping[str, tuple[NicCapability, ...]]
    excluded: Mapping[str, str]
    cloud: str | None
    cloud_evidence: tuple[str, ...]
    references: References
    refused_sources: tuple[Refusal, ...]
    planned: tuple[Node, ...]
    training: tuple[Node, ...]
    sources_on_lan: bool
    paths: tuple[MeasuredPath, ...] = ()

    @property
    def sources(self) -> tuple[NtpServer, ...]:
        """The sources that are asked by NTP."""
        return self.references.servers

    def refclocks(self, node: Node | str) -> tuple[RefClock, ...]:
        """The receivers at a node."""
        return self.references.at_nodes.get(node if isinstance(node, str) else node.name, ())

    def has_pulse(self, node: Node | str) -> bool:
        """Whether a receiver's pulse comes in at a node: sentences alone are good to tenths of a second."""
        return any(clock.pps is not None or clock.nic is not None for clock in self.refclocks(node))

    @property
    def in_cloud(self) -> bool:
        """Whether the machines are a cloud provider's."""
        return self.cluster.network.kind is NetworkKind.CLOUD or self.cloud is not None


def survey(
    cluster: Cluster, facts: Mapping[str, Facts], settings: Settings, paths: tuple[MeasuredPath, ...] = ()
) -> Survey:
    """Look at everything once."""
    excluded = excluded_nodes(cluster, facts, settings)
    cloud, said_by = cloud_of(facts)
    found = references(cluster, excluded)
    refused = found.refused
    evidence = (f"facts of {names(said_by)} name {cloud}",) if cloud else ()
    if cluster.network.kind is NetworkKind.CLOUD:
        evidence = ("the cluster file says network.kind: cloud", *evidence)
    if cluster.network.provider is not None:
        cloud, evidence = cluster.network.provider, (f"network.provider: {cluster.network.provider}", *evidence)
    in_cloud = cluster.network.kind is NetworkKind.CLOUD or cloud is not None
    if found.cloud is not None and not in_cloud:
        reason = "kind cloud-phc is a cloud's clock, and these machines are no cloud's"
        refused = (*refused, Refusal(subject=f"source {found.cloud.name}", reason=reason, do="say network.kind: cloud"))
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
        references=found,
        refused_sources=refused,
        planned=planned,
        training=tuple(node for node in planned if node.kind is NodeKind.TRAINING) or planned,
        sources_on_lan=bool(found.servers) and all(topology.on_lan(source.address) for source in found.servers),
        paths=paths,
    )
