"""chronyd's command protocol, version 6 (what chronyc speaks): requests to bytes, replies to values.

A table of commands: to read one more report is to add its class and one row. Facts: chrony's candm.h, and octets
captured from chronyd 4.3 (tests/captured/wire). Replies are verified (version, kind, command, sequence, status).
chrony says how far the clock must still be *corrected*; here everything is local - reference: the sign is turned in
`Tracking.offset_ns` and nowhere else. Refuses a reply of an unknown layout: a field shifted by one is a wrong number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from ipaddress import IPv4Address, IPv6Address
from typing import Annotated, Any

from rankclock.errors import DecodeError
from rankclock.wire.layout import I16, I32, U8, U16, U32, Kind, Layout, Record, octets, read, size_of, write

__all__ = [
    "ACTIVITY",
    "COMMANDS",
    "LEAP_UNSYNCHRONISED",
    "NO_SAMPLE_AGE_S",
    "N_SOURCES",
    "REFID_LOCAL",
    "SOURCESTATS",
    "SOURCE_DATA",
    "TRACKING",
    "Activity",
    "ChronyAddress",
    "Command",
    "CommandRefused",
    "NumberOfSources",
    "SourceData",
    "SourceMode",
    "SourceState",
    "SourceStats",
    "Tracking",
    "decode_reply",
    "decode_request",
    "encode_reply",
    "encode_request",
    "refid_text",
]

PROTOCOL_VERSION = 6
LEAP_UNSYNCHRONISED = 3
REFID_LOCAL = 0x7F7F0101
"""127.127.1.1: chronyd serves its own clock (`local`); zeros in such a reply mean nothing."""

NO_SAMPLE_AGE_S = 0xFFFFFFFF
"""since_sample_s of a source without a sample; its other numbers are zeros that mean nothing."""

_REQUEST, _REPLY = 1, 2
_OK = 0

STATUS_NAMES = {
    1: "failed",
    2: "not authorised",
    3: "invalid",
    4: "no such source",
    5: "duplicate or stale",
    6: "not enabled",
    18: "bad packet version",
    19: "bad packet length",
    21: "invalid name",
}


class CommandRefused(DecodeError):
    """chronyd understood the request and said no. `status`: its code."""

    def __init__(self, command: str, status: int) -> None:
        self.status = status
        super().__init__(f"chronyd refused {command}: {STATUS_NAMES.get(status, 'status')} ({status})")


class SourceState(IntEnum):
    """What chronyd's selection thinks of a source; the character that chronyc prints is in `mark`."""

    SELECTED = 0
    NONSELECTABLE = 1
    FALSETICKER = 2
    JITTERY = 3
    COMBINED = 4  # candm.h calls it UNSELECTED
    SELECTABLE = 5

    @property
    def mark(self) -> str:
        """`*` followed, `+` combined, `-` not combined, `?` unusable, `x` falseticker, `~` too variable."""
        return "*?x~+-"[self]


class SourceMode(IntEnum):
    """What kind of source it is."""

    CLIENT = 0
    PEER = 1
    REFCLOCK = 2


# ---- kinds of fields ----

_COEFFICIENT_BITS = 25
_EXPONENT_BITS = 7


def float_from_wire(word: int) -> float:
    """candm.h Float: signed 7-bit exponent over signed 25-bit coefficient, value = coefficient * 2^(exponent - 25)."""
    exponent, coefficient = word >> _COEFFICIENT_BITS, word & (1 << _COEFFICIENT_BITS) - 1
    if exponent >= 1 << _EXPONENT_BITS - 1:
        exponent -= 1 << _EXPONENT_BITS
    if coefficient >= 1 << _COEFFICIENT_BITS - 1:
        coefficient -= 1 << _COEFFICIENT_BITS
    return math.ldexp(coefficient, exponent - _COEFFICIENT_BITS)


def float_to_wire(value: float) -> int:
    """The nearest Float; too small becomes 0, too large the largest. NaN has no form: ValueError."""
    if math.isnan(value):
        raise ValueError("chrony's Float has no NaN")
    limit, top = (1 << _COEFFICIENT_BITS - 1) - 1, (1 << _EXPONENT_BITS - 1) - 1
    if math.isinf(value) or abs(value) >= math.ldexp(limit, top - _COEFFICIENT_BITS):
        exponent, coefficient = top, int(math.copysign(limit, value))
    else:
        exponent = math.frexp(value)[1] + 1  # |coefficient| stays below 2^24
        exponent = max(exponent, -(1 << _EXPONENT_BITS - 1))
        coefficient = round(math.ldexp(value, _COEFFICIENT_BITS - exponent))
        if abs(coefficient) > limit:
            exponent, coefficient = exponent + 1, coefficient // 2
    return (exponent % (1 << _EXPONENT_BITS)) << _COEFFICIENT_BITS | coefficient % (1 << _COEFFICIENT_BITS)


FLOAT = Kind(
    size=4,
    unpack=lambda data: float_from_wire(int.from_bytes(data, "big")),
    pack=lambda value: float_to_wire(value).to_bytes(4, "big"),
)

_NO_HIGH_SECONDS = 0x7FFFFFFF
"""tv_sec_high of a chronyd whose time_t has 32 bits."""


def _timespec_unpack(data: bytes) -> int:
    high, low, ns = (int.from_bytes(data[i : i + 4], "big") for i in (0, 4, 8))
    if high == _NO_HIGH_SECONDS:
        high = 0
    elif high >= 1 << 31:
        high -= 1 << 32
    if ns >= 1_000_000_000:
        raise DecodeError(f"chrony timespec: {ns} ns are a second or more")
    return ((high << 32) + low) * 1_000_000_000 + ns


def _timespec_pack(unix_ns: int) -> bytes:
    seconds, ns = divmod(unix_ns, 1_000_000_000)
    return (seconds % (1 << 64)).to_bytes(8, "big") + ns.to_bytes(4, "big")


TIMESPEC = Kind(size=12, unpack=_timespec_unpack, pack=_timespec_pack)

_FAMILY_V4, _FAMILY_V6, _FAMILY_ID = 1, 2, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ChronyAddress:
    """An address as chronyd gives it. `family`: 0 none, 1 IPv4 (of a reference clock: its reference id), 2 IPv6,
    3 the number of a name that is not resolved yet. `packed`: the 16 octets of the union.
    """

    family: int
    packed: bytes

    @property
    def text(self) -> str:
        """As a person writes it; '' where there is none."""
        if self.family == _FAMILY_V4:
            return str(IPv4Address(self.packed[:4]))
        if self.family == _FAMILY_V6:
            return str(IPv6Address(self.packed))
        if self.family == _FAMILY_ID:
            return f"ID#{int.from_bytes(self.packed[:4], 'big'):010d}"
        return ""


def _address_unpack(data: bytes) -> ChronyAddress:
    return ChronyAddress(packed=bytes(data[:16]), family=int.from_bytes(data[16:18], "big"))


ADDRESS = Kind(
    size=20,
    unpack=_address_unpack,
    pack=lambda value: value.packed + value.family.to_bytes(2, "big") + bytes(2),
)


def refid_text(refid: int) -> str:
    """A reference id as letters where it is up to four printable ones (a reference clock), else as hex digits."""
    letters = refid.to_bytes(4, "big").rstrip(b"\0")
    if letters and all(0x20 < octet < 0x7F for octet in letters):
        return letters.decode("ascii")
    return f"{refid:08X}"


# ---- reports ----


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracking(Record):
    """What chronyd thinks of the system clock. Read `leap` and `refid` first: while not synchronised, root_delay_s and
    root_dispersion_s are the constant 1.0; in `local` mode everything is 0 (monitoring facts 1 and 2).

    current_correction_s: chrony's sign (what must still be added to the clock); use `offset_ns`.
    ref_time_ns: the last update, made earlier by up to 1 s on purpose (chrony's fuzz_ref_time).
    """

    refid: Annotated[int, U32]
    address: Annotated[ChronyAddress, ADDRESS]
    stratum: Annotated[int, U16]
    leap: Annotated[int, U16]
    ref_time_ns: Annotated[int, TIMESPEC]
    current_correction_s: Annotated[float, FLOAT]
    last_offset_s: Annotated[float, FLOAT]
    rms_offset_s: Annotated[float, FLOAT]
    freq_ppm: Annotated[float, FLOAT]
    resid_freq_ppm: Annotated[float, FLOAT]
    skew_ppm: Annotated[float, FLOAT]
    root_delay_s: Annotated[float, FLOAT]
    root_dispersion_s: Annotated[float, FLOAT]
    last_update_interval_s: Annotated[float, FLOAT]

    @property
    def offset_ns(self) -> int:
        """The system clock minus the time that chronyd estimates: positive is ahead ("fast" in chronyc)."""
        return -_ns(self.current_correction_s)

    @property
    def root_distance_ns(self) -> int:
        """root dispersion + root delay / 2, rounded up: chrony's worst case beside the offset."""
        return math.ceil((self.root_dispersion_s + self.root_delay_s / 2) * 1e9)


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberOfSources(Record):
    """How many indices SOURCE_DATA takes."""

    count: Annotated[int, U32]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceData(Record):
    """One line of `chronyc sources`. The three measurements are local - source, as chronyc prints them."""

    address: Annotated[ChronyAddress, ADDRESS]
    poll: Annotated[int, I16]
    stratum: Annotated[int, U16]
    state: Annotated[int, U16]
    mode: Annotated[int, U16]
    flags: Annotated[int, U16]
    reach: Annotated[int, U16]
    since_sample_s: Annotated[int, U32]
    orig_latest_s: Annotated[float, FLOAT]
    latest_s: Annotated[float, FLOAT]
    latest_err_s: Annotated[float, FLOAT]

    @property
    def has_sample(self) -> bool:
        """Whether the measurements mean anything."""
        return self.since_sample_s != NO_SAMPLE_AGE_S

    @property
    def name(self) -> str:
        """The address; of a reference clock its reference id."""
        if self.mode == SourceMode.REFCLOCK:
            return refid_text(int.from_bytes(self.address.packed[:4], "big"))
        return self.address.text

    @property
    def mark(self) -> str:
        """chronyc's character for the state; '!' for a state of a later version."""
        return SourceState(self.state).mark if self.state <= max(SourceState) else "!"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStats(Record):
    """One line of `chronyc sourcestats`."""

    refid: Annotated[int, U32]
    address: Annotated[ChronyAddress, ADDRESS]
    samples: Annotated[int, U32]
    runs: Annotated[int, U32]
    span_s: Annotated[int, U32]
    stddev_s: Annotated[float, FLOAT]
    freq_ppm: Annotated[float, FLOAT]
    skew_ppm: Annotated[float, FLOAT]
    est_offset_s: Annotated[float, FLOAT]
    est_offset_err_s: Annotated[float, FLOAT]


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity(Record):
    """How many sources are online, offline, in a burst, or not resolved."""

    online: Annotated[int, U32]
    offline: Annotated[int, U32]
    burst_online: Annotated[int, U32]
    burst_offline: Annotated[int, U32]
    unresolved: Annotated[int, U32]


# ---- commands ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command: its number, what a request carries, and the reports that may answer, by reply type."""

    name: str
    number: int
    arguments: Layout = ()
    replies: dict[int, type[Record]]

    @property
    def request_octets(self) -> int:
        """As long as the longest reply: chronyd refuses a shorter request, so that it cannot amplify an attack."""
        longest = max(size_of(report.layout()) for report in self.replies.values())
        return max(REPLY_HEADER_OCTETS + longest, REQUEST_HEADER_OCTETS + size_of(self.arguments))


_INDEX: Layout = (("index", I32),)

N_SOURCES = Command(name="N_SOURCES", number=14, replies={2: NumberOfSources})
SOURCE_DATA = Command(name="SOURCE_DATA", number=15, arguments=_INDEX, replies={3: SourceData})
TRACKING = Command(name="TRACKING", number=33, replies={5: Tracking})
SOURCESTATS = Command(name="SOURCESTATS", number=34, arguments=_INDEX, replies={6: SourceStats})
ACTIVITY = Command(name="ACTIVITY", number=44, replies={12: Activity})

COMMANDS = (N_SOURCES, SOURCE_DATA, TRACKING, SOURCESTATS, ACTIVITY)

_REQUEST_HEADER: Layout = (
    ("version", U8),
    ("kind", U8),
    ("_pad", octets(2)),
    ("command", U16),
    ("attempt", U16),
    ("sequence", U32),
    ("_pad2", octets(8)),
)
_REPLY_HEADER: Layout = (
    ("version", U8),
    ("kind", U8),
    ("_pad", octets(2)),
    ("command", U16),
    ("reply", U16),
    ("status", U16),
    ("_pad2", octets(6)),
    ("sequence", U32),
    ("_pad3", octets(8)),
)
REQUEST_HEADER_OCTETS = size_of(_REQUEST_HEADER)
REPLY_HEADER_OCTETS = size_of(_REPLY_HEADER)


def encode_request(command: Command, *, sequence: int, attempt: int = 0, **arguments: int) -> bytes:
    """The octets of a request, padded as `Command.request_octets` says."""
    header = {"version": PROTOCOL_VERSION, "kind": _REQUEST, "command": command.number}
    head = write(_REQUEST_HEADER, {**header, "attempt": attempt, "sequence": sequence})
    return (head + write(command.arguments, arguments)).ljust(command.request_octets, b"\0")


def decode_reply(command: Command, data: bytes, *, sequence: int) -> Any:
    """The report that answers `command`. Raises CommandRefused where chronyd said no, DecodeError for all else."""
    header = read(_REPLY_HEADER, data, f"chrony reply to {command.name}")
    expected = {"version": PROTOCOL_VERSION, "kind": _REPLY, "command": command.number, "sequence": sequence}
    for name, value in expected.items():
        if header[name] != value:
            raise DecodeError(f"chrony reply to {command.name}: {name} is {header[name]}, expected {value}")
    if header["status"] != _OK:
        raise CommandRefused(command.name, header["status"])
    report = command.replies.get(header["reply"])
    if report is None:
        raise DecodeError(f"chrony reply to {command.name}: type {header['reply']} is unknown (a newer chronyd?)")
    return report.from_wire(data[REPLY_HEADER_OCTETS:])


def decode_request(data: bytes) -> tuple[Command, int, dict[str, int]]:
    """What a request asks: the command, its sequence, its arguments. Raises DecodeError."""
    header = read(_REQUEST_HEADER, data, "chrony request")
    if (header["version"], header["kind"]) != (PROTOCOL_VERSION, _REQUEST):
        raise DecodeError(f"chrony request: version {header['version']}, kind {header['kind']}")
    for command in COMMANDS:
        if command.number == header["command"]:
            arguments = read(command.arguments, data[REQUEST_HEADER_OCTETS:], f"chrony request {command.name}")
            return command, header["sequence"], arguments
    raise DecodeError(f"chrony request: command {header['command']} is unknown")


def encode_reply(command: Command, report: Record | None, *, sequence: int, status: int = _OK) -> bytes:
    """The octets of a reply (with no report: of a refusal)."""
    reply = next((number for number, kind in command.replies.items() if isinstance(report, kind)), 1)
    header = {"version": PROTOCOL_VERSION, "kind": _REPLY, "command": command.number, "reply": reply}
    head = write(_REPLY_HEADER, {**header, "status": status, "sequence": sequence})
    return head if report is None else head + report.to_wire()
