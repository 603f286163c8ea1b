"""The nouns: Cluster, Node, Nic, Facts. Pure, but for `load`, which reads the files that people write."""

from rankclock.cluster.facts import Fact, Facts, NicFacts, PhcFacts
from rankclock.cluster.hostlist import expand, fold
from rankclock.cluster.load import load_cluster, load_facts, parse_cluster
from rankclock.cluster.model import (
    Cluster,
    DelayMechanism,
    Network,
    NetworkKind,
    Nic,
    NicUse,
    Node,
    NodeKind,
    NtpSettings,
    Pace,
    Protocol,
    PtpSettings,
    Require,
    Source,
    SourceKind,
    Stamps,
    Transport,
)

__all__ = [
    "Cluster",
    "DelayMechanism",
    "Fact",
    "Facts",
    "Network",
    "NetworkKind",
    "Nic",
    "NicFacts",
    "NicUse",
    "Node",
    "NodeKind",
    "NtpSettings",
    "Pace",
    "PhcFacts",
    "Protocol",
    "PtpSettings",
    "Require",
    "Source",
    "SourceKind",
    "Stamps",
    "Transport",
    "expand",
    "fold",
    "load_cluster",
    "load_facts",
    "parse_cluster",
]
