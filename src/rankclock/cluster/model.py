"""The cluster file: what people write about their machines. Names, racks, NICs, sources, the accuracy they need.

Decides nothing; refuses what it does not know (unknown keys, names used twice, addresses that are none).
"""

from __future__ import annotations

from enum import StrEnum
from ipaddress import IPv4Interface, IPv6Interface
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

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

Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$")]
"""Host-name letters only: these names go into files, file names and shell lines."""


class NodeKind(StrEnum):
    """What a node is there for; it decides which roles the planner may give it."""

    TRAINING = "training"
    SERVER = "server"  # may serve time: NTP server, grandmaster
    SWITCH = "switch"  # has a port in each of several segments: boundary clock
    SOURCE = "source"  # is a reference itself and is not configured by us


class Protocol(StrEnum):
    """What the cluster's owner asks for."""

    AUTO = "auto"
    NTP = "ntp"
    PTP = "ptp"


class NetworkKind(StrEnum):
    """The fabric between the nodes."""

    ETHERNET = "ethernet"
    ROCEV2 = "rocev2"
    INFINIBAND = "infiniband"
    CLOUD = "cloud"


class SourceKind(StrEnum):
    """Where the cluster's time comes from."""

    NTP = "ntp"
    GPS = "gps"
    APPLIANCE = "appliance"
    CLOUD_PHC = "cloud-phc"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Nic(_Strict):
    """One interface of a node. `segment` names the layer-2 broadcast domain that it is in."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,15}$")]
    address: IPv4Interface | IPv6Interface
    segment: Name


class Node(_Strict):
    """One machine (or a switch that we configure)."""

    name: Name
    kind: NodeKind = NodeKind.TRAINING
    rack: Name | None = None
    nics: tuple[Nic, ...] = ()
    clock_id: str | None = None


class Source(_Strict):
    """A reference outside what is planned. `address` for NTP and appliances; `node` where one of the nodes is it."""

    name: Name
    kind: SourceKind = SourceKind.NTP
    address: str | None = None
    node: Name | None = None


class Network(_Strict):
    """The fabric, as far as the choice of protocol depends on it."""

    kind: NetworkKind = NetworkKind.ETHERNET
    stable: bool = True


class Require(_Strict):
    """What the owner needs: how far any two nodes may be apart."""

    accuracy_ns: Annotated[int, Field(ge=1, le=10**12)] = 1_000_000


class Cluster(_Strict):
    """A whole cluster file."""

    schema_: Annotated[Literal["rankclock-cluster/1"], Field(alias="schema")]
    name: Name
    protocol: Protocol = Protocol.AUTO
    require: Require = Require()
    network: Network = Network()
    sources: tuple[Source, ...] = ()
    nodes: Annotated[tuple[Node, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _names_are_unique(self) -> Cluster:
        for what, names in (("node", [n.name for n in self.nodes]), ("source", [s.name for s in self.sources])):
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ValueError(f"{what} {twice[0]!r} is named twice")
        return self

    def node(self, name: str) -> Node:
        """The node of that name. Raises KeyError."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise KeyError(name)
