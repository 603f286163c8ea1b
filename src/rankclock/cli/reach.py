"""The ways to the nodes that a command names: a cluster file's by ssh, a running lab's inside it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rankclock.errors import UserError

if TYPE_CHECKING:
    from rankclock.fleet.transport import Transport

__all__ = ["transports_of"]


def transports_of(cluster_file: Path | None, lab_name: str | None) -> dict[str, Transport]:
    """By node, in the file's order; sources are not asked by ssh. Raises UserError, HostError."""
    from rankclock.cluster import NodeKind, load_cluster
    from rankclock.fleet.transport import InLab, Ssh

    if cluster_file is not None and lab_name is not None:
        raise UserError("give a cluster file or --lab, not both")
    if lab_name is not None:
        from rankclock.lab import Lab

        lab = Lab.attach(lab_name)
        return {node.name: InLab(lab=lab, node=node.name) for node in lab.scenario.cluster.nodes}
    if cluster_file is None:
        raise UserError("give a cluster file or --lab")
    nodes = load_cluster(cluster_file).nodes
    return {node.name: Ssh(host=node.name) for node in nodes if node.kind is not NodeKind.SOURCE}
