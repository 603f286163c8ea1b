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
    "Announced",
    "Cluster",
    "DelayMechanism",
    "Firewall",
    "Gps",
    "Network",
    "NetworkKind",
    "Nic",
    "NicUse",
    "Node",
    "NodeKind",
    "NtpDaemon",
    "NtpSettings",
    "Pace",
    "Protocol",
    "Provider",
    "PtpClock",
    "PtpManager",
    "PtpMessages",
    "PtpProfile",
    "PtpSecurity",
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
    """What the cluster's owner asks for. HYBRID: PTP, and chronyd falls back to NTP where PTP falls silent."""

    AUTO = "auto"
    NTP = "ntp"
    PTP = "ptp"
    HYBRID = "hybrid"


class NetworkKind(StrEnum):
    """The fabric between the nodes."""

    ETHERNET = "ethernet"
    ROCEV2 = "rocev2"
    INFINIBAND = "infiniband"
    CLOUD = "cloud"


class Provider(StrEnum):
    """Whose cloud the machines are in; each has a time service of its own."""

    AWS = "aws"
    GCP = "gcp"
    AZURE = "azure"
    ALIBABA = "alibaba"


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


class PtpClock(StrEnum):
    """What a switch does with PTP: follow and serve on, or pass messages on with the time they spent in it."""

    BOUNDARY = "boundary"
    TRANSPARENT = "transparent"


class PtpMessages(StrEnum):
    """Who is meant by PTP messages. HYBRID: clients ask their server alone for the delay, all else is multicast."""

    MULTICAST = "multicast"
    HYBRID = "hybrid"
    UNICAST = "unicast"


class PtpProfile(StrEnum):
    """A profile of the standard: the default of IEEE 1588, or telecom's with full or partial timing support."""

    DEFAULT = "default"
    G8275_1 = "g8275.1"
    G8275_2 = "g8275.2"


class PtpManager(StrEnum):
    """What starts ptp4l, phc2sys and chronyd where NTP stands behind PTP: a unit each, or timemaster."""

    UNITS = "units"
    TIMEMASTER = "timemaster"


class NtpDaemon(StrEnum):
    """The program that keeps NTP time on the nodes."""

    CHRONYD = "chronyd"
    NTPSEC = "ntpsec"


class Firewall(StrEnum):
    """Which firewall the openings are written for."""

    NONE = "none"
    NFTABLES = "nftables"
    UFW = "ufw"
    FIREWALLD = "firewalld"


class Pace(StrEnum):
    """How often clocks are compared. `FAST` settles and fails over in seconds, for 8 times the packets."""

    NORMAL = "normal"
    FAST = "fast"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


_NIC_NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,14}$"
_DEVICE = r"^/dev/[A-Za-z0-9_./-]{1,80}$"
_FILE = r"^/[A-Za-z0-9_][A-Za-z0-9_./+-]{0,200}$"

Device = Annotated[str, Field(pattern=_DEVICE)]
FilePath = Annotated[str, Field(pattern=_FILE)]


class Nic(_Strict):
    """One interface of a node. `segment` names the layer-2 broadcast domain that it is in."""

    name: Annotated[str, Field(pattern=_NIC_NAME)]
    address: Annotated[IPv4Interface | IPv6Interface, WithJsonSchema({"type": "string"})]
    segment: RangedName
    use: NicUse = NicUse.ANY
    stamps: Stamps | None = None


class Node(_Strict):
    """One machine (or a switch that we configure). `upstream` overrides whom it takes time from, under NTP.

    `ptp_clock`: for switches; a transparent one joins its segments for PTP without being a clock in the chain.
    """

    name: RangedName
    kind: NodeKind = NodeKind.TRAINING
    rack: RangedName | None = None
    nics: tuple[Nic, ...] = ()
    clock_id: str | None = None
    upstream: tuple[Name, ...] = ()
    ptp_clock: PtpClock = PtpClock.BOUNDARY


_HOST = re.compile(r"^(?:[0-9A-Fa-f:.]{2,45}|[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?)$")


def _host(text: str) -> str:
    if not _HOST.match(text):
        raise ValueError("expected an IP address or a host name")
    return text


class Gps(_Strict):
    """A receiver at a node: serial line, and its pulse into the kernel (`pps`) or into a NIC's clock (`pps_into`).

    `nmea_delay_s`: by how much a sentence comes after its second; measure it. `pin`: the NIC's pin of the pulse.
    """

    device: Device = "/dev/ttyS0"
    baud: Annotated[int, Field(ge=300, le=4_000_000)] = 9600
    pps: Device | None = "/dev/pps0"
    pps_into: Annotated[str, Field(pattern=_NIC_NAME)] | None = None
    pin: Annotated[int, Field(ge=0, le=31)] = 0
    nmea_delay_s: Annotated[float, Field(gt=0, lt=1)] = 0.2


class Announced(_Strict):
    """What an appliance announces by PTP, by its settings: its place in the election, and its class while locked."""

    priority1: Annotated[int, Field(ge=0, le=255)] = 128
    clock_class: Annotated[int, Field(ge=0, le=255)] = 6
    clock_accuracy: Annotated[int, Field(ge=0x17, le=0xFE)] = 0x21


class Source(_Strict):
    """A reference outside what is planned. `address` for NTP and appliances; `node` where one of the nodes is it.

    `smeared` says whether it spreads leap seconds over hours; None where the owner does not know. `ptp`: the appliance
    is a grandmaster too. `gps`: the receiver at `node`. `device`: a cloud's clock. `nts`, `key`: how it is known.
    """

    name: Name
    kind: SourceKind = SourceKind.NTP
    address: Annotated[str, AfterValidator(_host)] | None = None
    node: Name | None = None
    smeared: bool | None = None
    nts: bool = False
    key: Annotated[int, Field(ge=1, le=2**32 - 1)] | None = None
    ptp: Announced | None = None
    gps: Gps = Gps()
    device: Device | None = None


class Network(_Strict):
    """The fabric, as far as the choice of protocol depends on it.

    `routed`: IP reaches every segment through routers that are not in the file. PTP is never assumed to.
    """

    kind: NetworkKind = NetworkKind.ETHERNET
    stable: bool = True
    routed: bool = False
    provider: Provider | None = None


class NtpSettings(_Strict):
    """NTP inside the cluster: the daemon, poll intervals as powers of two in seconds (`pace` says where not given).

    `nts`: clients know their servers by certificates; `key`: by this key of the key file. One of them, or neither.
    """

    daemon: NtpDaemon = NtpDaemon.CHRONYD
    minpoll: Annotated[int, Field(ge=-6, le=24)] | None = None
    maxpoll: Annotated[int, Field(ge=-6, le=24)] | None = None
    nts: bool = False
    key: Annotated[int, Field(ge=1, le=2**32 - 1)] | None = None


class PtpSecurity(_Strict):
    """Authentication of PTP messages (linuxptp 4.3): the file of associations, which of them, and which of its keys."""

    sa_file: FilePath = "/etc/linuxptp/ptp.sa"
    spp: Annotated[int, Field(ge=0, le=255)]
    key: Annotated[int, Field(ge=1, le=2**32 - 1)]


class PtpSettings(_Strict):
    """PTP profile, domain, transport and message intervals (powers of two in seconds; `pace` says where not given)."""

    profile: PtpProfile = PtpProfile.DEFAULT
    domain: Annotated[int, Field(ge=0, le=127)] = 0
    transport: Transport = Transport.UDPV4
    delay_mechanism: DelayMechanism = DelayMechanism.E2E
    messages: PtpMessages = PtpMessages.MULTICAST
    manager: PtpManager = PtpManager.UNITS
    log_announce_interval: Annotated[int, Field(ge=-4, le=4)] | None = None
    log_sync_interval: Annotated[int, Field(ge=-7, le=4)] | None = None
    log_delay_interval: Annotated[int, Field(ge=-7, le=5)] | None = None
    announce_receipt_timeout: Annotated[int, Field(ge=2, le=10)] = 3
    security: PtpSecurity | None = None

    @model_validator(mode="before")
    @classmethod
    def _a_profile_brings_its_own(cls, value: Any) -> Any:
        """What the profile says holds where the file says nothing; what it forbids is refused."""
        if not isinstance(value, dict) or value.get("profile") not in _PROFILES:
            return value
        fixed = _PROFILES[PtpProfile(value["profile"])]
        for key in ("transport", "delay_mechanism", "messages"):
            if key in value and value[key] != fixed[key]:
                _refuse((key,), f"profile {value['profile']} has {key} {fixed[key]}, found {value[key]!r:.40}")
        return {**fixed, **value}

    @model_validator(mode="after")
    def _unicast_is_over_ip(self) -> PtpSettings:
        if self.messages is not PtpMessages.MULTICAST and self.transport is Transport.L2:
            _refuse(("messages",), f"messages: {self.messages} needs transport UDPv4 or UDPv6, found L2")
        if self.messages is not PtpMessages.MULTICAST and self.delay_mechanism is DelayMechanism.P2P:
            _refuse(("messages",), f"messages: {self.messages} is for delay_mechanism E2E, found P2P")
        return self


_PROFILES: dict[str, dict[str, Any]] = {
    PtpProfile.G8275_1: {
        "domain": 24, "transport": "L2", "delay_mechanism": "E2E", "messages": "multicast",
        "log_announce_interval": -3, "log_sync_interval": -4, "log_delay_interval": -4,
    },
    PtpProfile.G8275_2: {
        "domain": 44, "transport": "UDPv4", "delay_mechanism": "E2E", "messages": "unicast",
        "log_announce_interval": 0, "log_sync_interval": -4, "log_delay_interval": -4,
    },
}  # fmt: skip
"""ITU-T G.8275.1 (full timing support) and G.8275.2 (partial): what each fixes, or sets where nothing else is said."""


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
    firewall: Firewall = Firewall.NONE
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
        if self.ntp.nts and self.ntp.key is not None:
            _refuse(("ntp", "key"), "servers are known by nts or by a key: expected one of them, found both")
        for index, source in enumerate(self.sources):
            self._source_makes_sense(index, source)
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

    def _source_makes_sense(self, index: int, source: Source) -> None:
        at = ("sources", index)
        if source.kind is SourceKind.GPS and source.node is None:
            _refuse(at, f"source {source.name!r} of kind gps needs the node that its receiver is at")
        if source.kind is SourceKind.GPS and source.address is not None:
            _refuse((*at, "address"), f"source {source.name!r} of kind gps is read at its node: expected no address")
        if source.kind is SourceKind.GPS and source.gps.pps_into is not None and source.node in self.by_name:
            nics = [nic.name for nic in self.by_name[source.node].nics]
            if source.gps.pps_into not in nics:
                message = f"node {source.node!r} has no NIC {source.gps.pps_into!r}: expected one of {', '.join(nics)}"
                _refuse((*at, "gps", "pps_into"), message)
        if source.ptp is not None and (source.kind is not SourceKind.APPLIANCE or source.node is None):
            _refuse((*at, "ptp"), f"source {source.name!r}: ptp is for kind appliance with the node that it is")
        if source.ptp is not None and source.node in self.by_name:
            node = self.by_name[source.node]
            if node.kind is not NodeKind.SOURCE or not node.nics:
                message = f"node {node.name!r} of an appliance needs kind: source and the NIC that it serves by"
                _refuse((*at, "node"), message)
        if source.nts and source.key is not None:
            _refuse((*at, "key"), f"source {source.name!r} is known by nts or by a key: found both")

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
