"""The nouns: Cluster, Node, Nic, Facts. Pure."""

from rankclock.cluster.model import (
    Cluster,
    Network,
    NetworkKind,
    Nic,
    Node,
    NodeKind,
    Protocol,
    Require,
    Source,
    SourceKind,
)

__all__ = [
    "Cluster",
    "Network",
    "NetworkKind",
    "Nic",
    "Node",
    "NodeKind",
    "Protocol",
    "Require",
    "Source",
    "SourceKind",
]
