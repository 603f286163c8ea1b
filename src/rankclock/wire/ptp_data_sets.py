"""The data sets that PTP clocks tell about themselves (IEEE 1588-2008 clause 15.5.3) and those that linuxptp adds.

A table: to read one more data set is to add its class and one row of `DATA_SETS`. Facts: linuxptp's tlv.h and octets
captured from ptp4l 3.1.1 (tests/captured/wire). Offsets are local - master already (positive: local is ahead).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, fields
from enum import IntEnum
from ipaddress import ip_address
from typing import Annotated, Self

from rankclock.errors import DecodeError
from rankclock.wire.layout import I8, I16, I32, I64, U8, U16, Kind, Layout, Record, octets

__all__ = [
    "DATA_SETS",
    "ClockQuality",
    "CurrentDataSet",
    "DataSet",
    "DefaultDataSet",
    "GrandmasterSettings",
    "ParentDataSet",
    "PortDataSet",
    "PortHwclock",
    "PortIdentity",
    "PortProperties",
    "PortServiceStats",
    "PortState",
    "PortStats",
    "TimeProperties",
    "TimeStatus",
    "Timestamping",
    "UnicastMaster",
    "UnicastMasterTable",
    "accuracy_code",
    "clock_accuracy_ns",
    "clock_text",
    "interval_ns",
    "state_name",
]


class PortState(IntEnum):
    """portState, table 8."""

    INITIALIZING = 1
    FAULTY = 2
    DISABLED = 3
    LISTENING = 4
    PRE_MASTER = 5
    MASTER = 6
    PASSIVE = 7
    UNCALIBRATED = 8
    SLAVE = 9


class Timestamping(IntEnum):
    """linuxptp's PORT_PROPERTIES_NP."""

    SOFTWARE = 0
    HARDWARE = 1
    LEGACY_HW = 2
    ONESTEP = 3
    P2P1STEP = 4


_CLOCK_ACCURACY_NS = {
    0x20: 25, 0x21: 100, 0x22: 250, 0x23: 1_000, 0x24: 2_500, 0x25: 10_000, 0x26: 25_000, 0x27: 100_000,
    0x28: 250_000, 0x29: 1_000_000, 0x2A: 2_500_000, 0x2B: 10_000_000, 0x2C: 25_000_000, 0x2D: 100_000_000,
    0x2E: 250_000_000, 0x2F: 1_000_000_000, 0x30: 10_000_000_000,
}  # fmt: skip


def clock_accuracy_ns(code: int) -> int | None:
    """What a grandmaster claims as its accuracy (table 6); None where it claims nothing (0xFE, over 10 s, reserved)."""
    return _CLOCK_ACCURACY_NS.get(code)


def accuracy_code(bound_ns: int) -> int:
    """The code of the smallest accuracy (table 6) that is not below the bound; 0x31, over 10 s, where none is."""
    return next((code for code, ns in _CLOCK_ACCURACY_NS.items() if ns >= bound_ns), 0x31)


# ---- kinds of fields ----

TIME_INTERVAL = I64
"""Kept in units of 2^-16 ns as on the wire: whole ns would lose the round trip. `interval_ns` rounds."""


def interval_ns(scaled: int) -> int:
    """A TimeInterval (2^-16 ns) as whole ns, rounded to the nearest."""
    return (scaled + 0x8000) >> 16


@dataclass(frozen=True, slots=True, kw_only=True)
class PortIdentity:
    """A clock identity (8 octets) and a port number; port 0 is the clock as a whole."""

    clock: bytes
    port: int

    def __str__(self) -> str:
        return f"{clock_text(self.clock)}-{self.port}"


def clock_text(identity: bytes) -> str:
    """A clock identity as pmc prints it: 5254ab.fffe.112233."""
    digits = identity.hex()
    return f"{digits[:6]}.{digits[6:10]}.{digits[10:]}"


def _identity_unpack(data: bytes) -> PortIdentity:
    return PortIdentity(clock=bytes(data[:8]), port=int.from_bytes(data[8:10], "big"))


def _identity_pack(value: PortIdentity) -> bytes:
    if len(value.clock) != 8:
        raise ValueError(f"a clock identity has 8 octets, found {len(value.clock)}")
    return value.clock + value.port.to_bytes(2, "big")


PORT_IDENTITY = Kind(code="10s", unpack=_identity_unpack, pack=_identity_pack)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockQuality:
    """clockClass, clockAccuracy (code), offsetScaledLogVariance."""

    clock_class: int
    accuracy: int
    variance: int


QUALITY = Kind(
    code="4s",
    unpack=lambda data: ClockQuality(clock_class=data[0], accuracy=data[1], variance=int.from_bytes(data[2:4], "big")),
    pack=lambda value: bytes((value.clock_class, value.accuracy)) + value.variance.to_bytes(2, "big"),
)

CLOCK_ID = octets(8)


# ---- data sets of the standard ----

TWO_STEP, SLAVE_ONLY = 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultDataSet(Record):
    """What this clock is by its configuration."""

    flags: Annotated[int, U8]
    reserved: Annotated[int, U8]
    number_ports: Annotated[int, U16]
    priority1: Annotated[int, U8]
    quality: Annotated[ClockQuality, QUALITY]
    priority2: Annotated[int, U8]
    clock_identity: Annotated[bytes, CLOCK_ID]
    domain: Annotated[int, U8]
    reserved2: Annotated[int, U8]

    @property
    def slave_only(self) -> bool:
        """Configured never to serve time."""
        return bool(self.flags & SLAVE_ONLY)


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentDataSet(Record):
    """Steps to the grandmaster; offset and delay to the *parent* (one hop), in 2^-16 ns. Zeros: nothing computed."""

    steps_removed: Annotated[int, U16]
    offset_scaled: Annotated[int, TIME_INTERVAL]
    mean_path_delay_scaled: Annotated[int, TIME_INTERVAL]

    @property
    def offset_ns(self) -> int:
        """local - parent."""
        return interval_ns(self.offset_scaled)

    @property
    def mean_path_delay_ns(self) -> int:
        """One-way delay to the parent, as filtered; rounded up: it enters bounds."""
        return -(-self.mean_path_delay_scaled >> 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParentDataSet(Record):
    """Who this clock follows, and the grandmaster at the root."""

    parent_port: Annotated[PortIdentity, PORT_IDENTITY]
    parent_stats: Annotated[int, U8]
    reserved: Annotated[int, U8]
    observed_variance: Annotated[int, U16]
    observed_phase_change_rate: Annotated[int, I32]
    gm_priority1: Annotated[int, U8]
    gm_quality: Annotated[ClockQuality, QUALITY]
    gm_priority2: Annotated[int, U8]
    gm_identity: Annotated[bytes, CLOCK_ID]


LEAP61, LEAP59, UTC_OFFSET_VALID, PTP_TIMESCALE, TIME_TRACEABLE, FREQUENCY_TRACEABLE = (1 << bit for bit in range(6))


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeProperties(Record):
    """What the grandmaster says of its timescale."""

    current_utc_offset_s: Annotated[int, I16]
    flags: Annotated[int, U8]
    time_source: Annotated[int, U8]

    @property
    def ptp_timescale(self) -> bool:
        """PTP time is TAI; otherwise arbitrary (software stamps: the grandmaster's UTC)."""
        return bool(self.flags & PTP_TIMESCALE)

    @property
    def utc_offset_valid(self) -> bool:
        """The grandmaster vouches for its UTC offset."""
        return bool(self.flags & UTC_OFFSET_VALID)

    @property
    def time_traceable(self) -> bool:
        """The grandmaster says that its time is traceable to a primary reference."""
        return bool(self.flags & TIME_TRACEABLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PortDataSet(Record):
    """One port. linuxptp reports its GRAND_MASTER state as MASTER."""

    port_identity: Annotated[PortIdentity, PORT_IDENTITY]
    port_state: Annotated[int, U8]
    log_min_delay_req_interval: Annotated[int, I8]
    peer_mean_path_delay_scaled: Annotated[int, TIME_INTERVAL]
    log_announce_interval: Annotated[int, I8]
    announce_receipt_timeout: Annotated[int, U8]
    log_sync_interval: Annotated[int, I8]
    delay_mechanism: Annotated[int, U8]
    log_min_pdelay_req_interval: Annotated[int, I8]
    version_number: Annotated[int, U8]

    @property
    def state_name(self) -> str:
        """As pmc prints it; a number of a later version as 'state N'."""
        return state_name(self.port_state)


def state_name(number: int) -> str:
    """The name of a port state."""
    return PortState(number).name if 1 <= number <= PortState.SLAVE else f"state {number}"


# ---- data sets of linuxptp ----


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeStatus(Record):
    """TIME_STATUS_NP. After a grandmaster is lost every field but `ingress_time_ns` keeps its last value for ever.

    master_offset_ns: local - master at the last Sync. ingress_time_ns: when that came, on the clock that stamps
    (the PHC, or CLOCK_REALTIME with software stamps); 0: no Sync since the grandmaster changed or the clock stepped.
    """

    master_offset_ns: Annotated[int, I64]
    ingress_time_ns: Annotated[int, I64]
    cumulative_scaled_rate_offset: Annotated[int, I32]
    scaled_last_gm_phase_change: Annotated[int, I32]
    gm_time_base_indicator: Annotated[int, U16]
    last_gm_phase_change: Annotated[bytes, octets(12)]
    gm_present: Annotated[int, I32]
    gm_identity: Annotated[bytes, CLOCK_ID]


@dataclass(frozen=True, slots=True, kw_only=True)
class GrandmasterSettings(Record):
    """GRANDMASTER_SETTINGS_NP: what this clock would announce as grandmaster."""

    quality: Annotated[ClockQuality, QUALITY]
    utc_offset_s: Annotated[int, I16]
    flags: Annotated[int, U8]
    time_source: Annotated[int, U8]


@dataclass(frozen=True, slots=True, kw_only=True)
class PortProperties:
    """PORT_PROPERTIES_NP, answered on the read-write socket only. `timestamping`: see `Timestamping`."""

    port_identity: PortIdentity
    port_state: int
    timestamping: int
    interface: str

    _HEAD = Layout(("port_identity", PORT_IDENTITY), ("port_state", U8), ("timestamping", U8), ("length", U8))

    @classmethod
    def from_wire(cls, data: bytes) -> Self:
        """Raises DecodeError."""
        head = cls._HEAD.read(data, "PortProperties")
        length, start = head.pop("length"), cls._HEAD.size
        text = data[start : start + length]
        if len(text) < length:
            raise DecodeError(f"PortProperties: name of {length} octets, found {len(text)}")
        return cls(interface=text.decode("utf-8", "replace"), **head)

    def to_wire(self) -> bytes:
        """The octets of the data set, padded to even length as linuxptp does."""
        text = self.interface.encode()
        values = {"port_identity": self.port_identity, "port_state": self.port_state, "timestamping": self.timestamping}
        data = self._HEAD.write({**values, "length": len(text)}) + text
        return data + bytes(len(data) % 2)


MESSAGE_TYPES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class PortStats:
    """PORT_STATS_NP: messages received and sent, by message type (index 0 Sync, 1 Delay_Req, ..., 0xD Management).

    Little-endian since linuxptp 4.0; before that in the byte order of its machine, which on the machines that train is
    little-endian too.
    """

    port_identity: PortIdentity
    received: tuple[int, ...]
    sent: tuple[int, ...]

    _SIZE = PORT_IDENTITY.size + 2 * MESSAGE_TYPES * 8

    @classmethod
    def from_wire(cls, data: bytes) -> Self:
        """Raises DecodeError."""
        if len(data) < cls._SIZE:
            raise DecodeError(f"PortStats: expected {cls._SIZE} octets, found {len(data)}")
        numbers = [int.from_bytes(data[i : i + 8], "little") for i in range(PORT_IDENTITY.size, cls._SIZE, 8)]
        identity = _identity_unpack(data)
        received, sent = tuple(numbers[:MESSAGE_TYPES]), tuple(numbers[MESSAGE_TYPES:])
        return cls(port_identity=identity, received=received, sent=sent)

    def to_wire(self) -> bytes:
        """The octets of the data set."""
        numbers = b"".join(number.to_bytes(8, "little") for number in (*self.received, *self.sent))
        return _identity_pack(self.port_identity) + numbers


_SERVICE = struct.Struct("<10Q")


@dataclass(frozen=True, slots=True, kw_only=True)
class PortServiceStats:
    """PORT_SERVICE_STATS_NP (linuxptp 4.0 on): how often a port waited in vain, or got a pair that does not match."""

    port_identity: PortIdentity
    announce_timeout: int
    sync_timeout: int
    delay_timeout: int
    unicast_service_timeout: int
    unicast_request_timeout: int
    master_announce_timeout: int
    master_sync_timeout: int
    qualification_timeout: int
    sync_mismatch: int
    followup_mismatch: int

    @classmethod
    def from_wire(cls, data: bytes) -> Self:
        """Raises DecodeError."""
        wanted = PORT_IDENTITY.size + _SERVICE.size
        if len(data) < wanted:
            raise DecodeError(f"PortServiceStats: expected {wanted} octets, found {len(data)}")
        numbers = _SERVICE.unpack_from(data, PORT_IDENTITY.size)
        return cls(port_identity=_identity_unpack(data), **dict(zip(_SERVICE_NAMES, numbers, strict=True)))

    def to_wire(self) -> bytes:
        """The octets of the data set."""
        return _identity_pack(self.port_identity) + _SERVICE.pack(*(getattr(self, name) for name in _SERVICE_NAMES))


_SERVICE_NAMES = tuple(item.name for item in fields(PortServiceStats))[1:]

IPV4, IPV6 = 1, 2
_UNICAST_STATES = ("WAIT", "HAVE_ANN", "NEED_SYDY", "HAVE_SYDY")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnicastMaster:
    """One entry of a unicast master table. protocol: networkProtocol, table 3. port_state: see `state_name`."""

    port_identity: PortIdentity
    quality: ClockQuality
    selected: bool
    port_state: int
    priority1: int
    priority2: int
    protocol: int
    address: bytes

    @property
    def state_name(self) -> str:
        """As pmc prints it: WAIT for an answer, HAVE_ANN its announces, NEED_SYDY, HAVE_SYDY its syncs and delays."""
        return _UNICAST_STATES[self.port_state] if self.port_state < len(_UNICAST_STATES) else "?"

    @property
    def address_text(self) -> str:
        """As a person writes it; octets of an unknown protocol in hex."""
        if (self.protocol, len(self.address)) in ((IPV4, 4), (IPV6, 16)):
            return str(ip_address(self.address))
        return self.address.hex(":")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnicastMasterTable:
    """UNICAST_MASTER_TABLE_NP (linuxptp 4.0 on): whom a client port asks for time, and which of them it follows. Which
    port stands in the message's source.
    """

    masters: tuple[UnicastMaster, ...]

    @classmethod
    def from_wire(cls, data: bytes) -> Self:
        """Raises DecodeError."""
        count, rest = _TABLE_HEAD.read(data, "UnicastMasterTable")["count"], data[_TABLE_HEAD.size :]
        masters = []
        for _ in range(count):
            entry = _TABLE_ENTRY.read(rest, "UnicastMaster")
            length = entry.pop("length")
            address, rest = rest[_TABLE_ENTRY.size :][:length], rest[_TABLE_ENTRY.size + length :]
            if len(address) < length:
                raise DecodeError(f"UnicastMaster: address of {length} octets, found {len(address)}")
            entry["selected"] = entry["selected"] != 0
            masters.append(UnicastMaster(address=bytes(address), **entry))
        return cls(masters=tuple(masters))

    def to_wire(self) -> bytes:
        """The octets of the data set, padded to even length as linuxptp does."""
        data = _TABLE_HEAD.write({"count": len(self.masters)})
        for one in self.masters:
            values = {name: getattr(one, name) for name in _TABLE_ENTRY.names if name != "length"}
            data += _TABLE_ENTRY.write({**values, "length": len(one.address)}) + one.address
        return data + bytes(len(data) % 2)


_TABLE_HEAD = Layout(("count", U16))
_TABLE_ENTRY = Layout(
    ("port_identity", PORT_IDENTITY),
    ("quality", QUALITY),
    ("selected", U8),
    ("port_state", U8),
    ("priority1", U8),
    ("priority2", U8),
    ("protocol", U16),
    ("length", U16),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PortHwclock(Record):
    """PORT_HWCLOCK_NP (linuxptp 4.0 on; read-write socket only). phc_index: -1 where the port has none."""

    port_identity: Annotated[PortIdentity, PORT_IDENTITY]
    phc_index: Annotated[int, I32]
    flags: Annotated[int, U8]
    reserved: Annotated[int, U8]

    @property
    def virtual_clock(self) -> bool:
        """Whether the PHC is a virtual clock on another one."""
        return bool(self.flags & 1)


DataSet = (
    DefaultDataSet
    | CurrentDataSet
    | ParentDataSet
    | TimeProperties
    | PortDataSet
    | TimeStatus
    | GrandmasterSettings
    | PortProperties
    | PortStats
    | PortServiceStats
    | UnicastMasterTable
    | PortHwclock
)

DATA_SETS: dict[int, type[DataSet]] = {
    0x2000: DefaultDataSet,
    0x2001: CurrentDataSet,
    0x2002: ParentDataSet,
    0x2003: TimeProperties,
    0x2004: PortDataSet,
    0xC000: TimeStatus,
    0xC001: GrandmasterSettings,
    0xC004: PortProperties,
    0xC005: PortStats,
    0xC007: PortServiceStats,
    0xC008: UnicastMasterTable,
    0xC009: PortHwclock,
}
