"""The cluster file: what people write about their machines. Names, racks, NICs, sources, the accuracy they need.

Decides nothing; refuses what it does not know (unknown keys, names used twice, addresses that are none). Entries that
stand for several machines (`gpu[001-032]`) are expanded here: the planner sees single nodes only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from functools import cached_property
from ipaddress import IPv4Interface, IPv6Interface
from typing import Annotated, Any, Literal, LiteralString, NoReturn

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from rankclock.cluster.duration import parse_duration_ns
from rankclock.cluster.expand import EntryError, expand_nodes
from rankclock.errors import DecodeError

__all__ = [
    "Cluster",
    "DelayMechanism",
    "Network",
    "NetworkKind",
    "Nic",
    "NicUse",
    "Node",
    "NodeKind",
    "NtpSettings",
    "Pace",
    "Protocol",
    "PtpSettings",
    "Require",
    "Source",
    "SourceKind",
    "Stamps",
    "Transport",
]

_NAME = r"^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$"
_RANGED_NAME = r"^[a-z0-9\[][a-z0-9.,\[\]-]*$"

Name = Annotated[str, Field(pattern=_NAME)]
"""Host-name letters only: these names go into files, file names and shell lines."""

RangedName = Annotated[Name, WithJsonSchema({"type": "string", "pattern": _RANGED_NAME})]
"""A name that may be a range in the file (and its published schema), and is single once it is read."""


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


class NicUse(StrEnum):
    """What a NIC may be used for. `TIME` is preferred for time, `DATA` never carries it."""

    ANY = "any"
    TIME = "time"
    DATA = "data"


class Stamps(StrEnum):
    """Which time stamps a NIC is *declared* to make, where no facts can be collected (a switch, a plan on paper)."""

    HARDWARE = "hardware"
    SOFTWARE = "software"


class Transport(StrEnum):
    """How PTP messages travel."""

    L2 = "L2"
    UDPV4 = "UDPv4"
    UDPV6 = "UDPv6"


class DelayMechanism(StrEnum):
    """How PTP measures the path: end to end, or between neighbours."""

    E2E = "E2E"
    P2P = "P2P"


class Pace(StrEnum):
    """How often clocks are compared. `FAST` settles and fails over in seconds, for 8 times the packets."""

    NORMAL = "normal"
    FAST = "fast"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Nic(_Strict):
    """One interface of a node. `segment` names the layer-2 broadcast domain that it is in."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,14}$")]
    address: Annotated[IPv4Interface | IPv6Interface, WithJsonSchema({"type": "string"})]
    segment: RangedName
    use: NicUse = NicUse.ANY
    stamps: Stamps | None = None


class Node(_Strict):
    """One machine (or a switch that we configure). `upstream` overrides whom it takes time from, under NTP."""

    name: RangedName
    kind: NodeKind = NodeKind.TRAINING
    rack: RangedName | None = None
    nics: tuple[Nic, ...] = ()
    clock_id: str | None = None
    upstream: tuple[Name, ...] = ()


_HOST = re.compile(r"^(?:[0-9A-Fa-f:.]{2,45}|[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?)$")


def _host(text: str) -> str:
    if not _HOST.match(text):
        raise ValueError("expected an IP address or a host name")
    return text


class Source(_Strict):
    """A reference outside what is planned. `address` for NTP and appliances; `node` where one of the nodes is it.

    `smeared` says whether it spreads leap seconds over hours; None where the owner does not know.
    """

    name: Name
    kind: SourceKind = SourceKind.NTP
    address: Annotated[str, AfterValidator(_host)] | None = None
    node: Name | None = None
    smeared: bool | None = None


class Network(_Strict):
    """The fabric, as far as the choice of protocol depends on it.

    `routed`: IP reaches every segment through routers that are not in the file. PTP is never assumed to.
    """

    kind: NetworkKind = NetworkKind.ETHERNET
    stable: bool = True
    routed: bool = False


class NtpSettings(_Strict):
    """NTP poll intervals as powers of two in seconds; what `pace` says where they are not given."""

    minpoll: Annotated[int, Field(ge=-6, le=24)] | None = None
    maxpoll: Annotated[int, Field(ge=-6, le=24)] | None = None


class PtpSettings(_Strict):
    """PTP domain, transport and message intervals (powers of two in seconds; what `pace` says where not given)."""

    domain: Annotated[int, Field(ge=0, le=127)] = 0
    transport: Transport = Transport.UDPV4
    delay_mechanism: DelayMechanism = DelayMechanism.E2E
    log_announce_interval: Annotated[int, Field(ge=-4, le=4)] | None = None
    log_sync_interval: Annotated[int, Field(ge=-7, le=4)] | None = None
    log_delay_interval: Annotated[int, Field(ge=-7, le=5)] | None = None
    announce_receipt_timeout: Annotated[int, Field(ge=2, le=10)] = 3


class Require(_Strict):
    """What the owner needs: how far any two nodes may be apart. `accuracy: 50us` and `accuracy_ns: 50000` are one."""

    model_config = ConfigDict(
        json_schema_extra={"properties": {"accuracy": {"type": "string", "examples": ["50us", "1ms"]}}}
    )

    accuracy_ns: Annotated[int, Field(ge=1, le=10**12)] = 1_000_000

    @model_validator(mode="before")
    @classmethod
    def _accuracy_is_a_duration(cls, value: Any) -> Any:
        if not isinstance(value, dict) or "accuracy" not in value:
            return value
        if "accuracy_ns" in value:
            _refuse(("accuracy_ns",), "the accuracy is given twice; expected accuracy or accuracy_ns, not both")
        try:
            accuracy_ns = parse_duration_ns(str(value["accuracy"]))
        except DecodeError as error:
            _refuse(("accuracy",), str(error))
        if not 1 <= accuracy_ns <= 10**12:
            _refuse(("accuracy",), f"{value['accuracy']} is outside 1ns to 1000s")
        return {**{key: item for key, item in value.items() if key != "accuracy"}, "accuracy_ns": accuracy_ns}


class Cluster(_Strict):
    """A whole cluster file."""

    schema_: Annotated[Literal["rankclock-cluster/1"], Field(alias="schema")]
    name: Name
    protocol: Protocol = Protocol.AUTO
    require: Require = Require()
    network: Network = Network()
    pace: Pace = Pace.NORMAL
    ntp: NtpSettings = NtpSettings()
    ptp: PtpSettings = PtpSettings()
    sources: tuple[Source, ...] = ()
    nodes: Annotated[tuple[Node, ...], Field(min_length=1)]

    @model_validator(mode="before")
    @classmethod
    def _entries_become_nodes(cls, value: Any) -> Any:
        if isinstance(value, dict) and isinstance(value.get("nodes"), list):
            try:
                return {**value, "nodes": [node for _, node in expand_nodes(value["nodes"])]}
            except EntryError as error:
                _refuse(("nodes", *error.path), str(error), kind="rankclock_entry")
        return value

    @model_validator(mode="after")
    def _names_and_addresses_are_unique(self) -> Cluster:
        _unique((("nodes", index, "name"), f"node {node.name!r}", node.name) for index, node in enumerate(self.nodes))
        _unique((("sources", index, "name"), f"source {s.name!r}", s.name) for index, s in enumerate(self.sources))
        for index, node in enumerate(self.nodes):
            _unique(
                (("nodes", index, "nics", port, "name"), f"NIC {nic.name!r} of {node.name}", nic.name)
                for port, nic in enumerate(node.nics)
            )
        _unique(
            (("nodes", index, "nics", port, "address"), f"address {nic.address.ip}", nic.address.ip)
            for index, node in enumerate(self.nodes)
            for port, nic in enumerate(node.nics)
        )
        return self

    @model_validator(mode="after")
    def _sources_and_upstreams_exist(self) -> Cluster:
        for index, source in enumerate(self.sources):
            if source.node is not None and source.node not in self.by_name:
                _refuse(("sources", index, "node"), f"source {source.name!r} names the unknown node {source.node!r}")
            if source.kind in (SourceKind.NTP, SourceKind.APPLIANCE) and source.node is None and source.address is None:
                _refuse(("sources", index), f"source {source.name!r} needs an address or a node")
            if source.node is not None and source.address is not None and self.by_name[source.node].nics:
                own = [str(nic.address.ip) for nic in self.by_name[source.node].nics]
                if source.address not in own:
                    message = f"source {source.name!r} is node {source.node!r}, which has no address {source.address}"
                    _refuse(("sources", index, "address"), message)
        known = self.by_name.keys() | {source.name for source in self.sources}
        for index, node in enumerate(self.nodes):
            for number, name in enumerate(node.upstream):
                if name not in known:
                    message = f"node {node.name!r} has the unknown upstream {name!r}"
                    _refuse(("nodes", index, "upstream", number), message)
        return self

    @cached_property
    def by_name(self) -> dict[str, Node]:
        """Every node by its name."""
        return {node.name: node for node in self.nodes}

    def node(self, name: str) -> Node:
        """The node of that name. Raises KeyError."""
        return self.by_name[name]


def _unique(items: Iterable[tuple[tuple[str | int, ...], str, object]]) -> None:
    seen: set[object] = set()
    for path, what, value in items:
        if value in seen:
            _refuse(path, f"{what} is given twice")
        seen.add(value)


def _refuse(path: tuple[str | int, ...], message: str, *, kind: LiteralString = "rankclock") -> NoReturn:
    """A fault that pydantic cannot place by itself: `path` leads to it from the model that found it."""
    raise PydanticCustomError(kind, "{message}", {"message": message, "path": path})
