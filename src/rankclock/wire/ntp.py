"""The NTP packet (RFC 5905 section 7.3, RFC 7822): header, extension fields, MAC; and its timestamps to ns and back.

Keeps every octet, so that decoding and encoding again gives the same packet. Decides nothing about trust: neither a MAC
nor an extension field is verified here. Refuses control messages (modes 6 and 7): their header is another one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Self

from rankclock.errors import DecodeError
from rankclock.wire.layout import I8, U8, U16, U32, U64, Layout, octets

__all__ = ["HEADER_OCTETS", "ExtensionField", "NtpMode", "NtpPacket", "ntp_from_unix_ns", "unix_ns_from_ntp"]

HEADER_OCTETS = 48
MAX_OCTETS = 2048
"""Larger than any NTP message that fits an Ethernet frame; bounds the work on garbage."""

MAX_V4_MAC_OCTETS = 24
"""RFC 7822 section 7.5.1: what is left over and no longer than this is a MAC, not an extension field."""

MIN_EXTENSION_OCTETS = 16

_ERA_S = 1 << 32
_NTP_TO_UNIX_S = 2_208_988_800  # 1900-01-01 to 1970-01-01
_NS = 1_000_000_000


class NtpMode(IntEnum):
    """RFC 5905 figure 10; control (6) and private (7) have other headers."""

    RESERVED = 0
    SYMMETRIC_ACTIVE = 1
    SYMMETRIC_PASSIVE = 2
    CLIENT = 3
    SERVER = 4
    BROADCAST = 5


def ntp_from_unix_ns(unix_ns: int) -> int:
    """A 64-bit NTP timestamp (its era is lost), rounded to the nearest 2^-32 s: exact again as whole ns."""
    seconds, ns = divmod(unix_ns, _NS)
    # Rounded over the whole value: a fraction that rounds up to one carries into the seconds.
    return (((seconds + _NTP_TO_UNIX_S) << 32) + ((ns << 32) + _NS // 2) // _NS) % (1 << 64)


def unix_ns_from_ntp(timestamp: int, *, near_unix_ns: int) -> int:
    """The instant that a 64-bit NTP timestamp means, in the era that brings it closest to `near_unix_ns`.

    A timestamp of 0 means "not set" in the protocol; the caller looks for that before.
    """
    seconds, fraction = divmod(timestamp, 1 << 32)
    near_s = near_unix_ns // _NS + _NTP_TO_UNIX_S
    era = (near_s - seconds + _ERA_S // 2) // _ERA_S
    return (seconds + era * _ERA_S - _NTP_TO_UNIX_S) * _NS + ((fraction * _NS + (1 << 31)) >> 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtensionField:
    """RFC 7822: a type and a body; the body's padding is part of it."""

    kind: int
    body: bytes


_HEADER = Layout(
    ("first", U8),
    ("stratum", U8),
    ("poll", I8),
    ("precision", I8),
    ("root_delay", U32),
    ("root_dispersion", U32),
    ("reference_id", octets(4)),
    ("reference_timestamp", U64),
    ("origin_timestamp", U64),
    ("receive_timestamp", U64),
    ("transmit_timestamp", U64),
)
_EXTENSION = Layout(("kind", U16), ("length", U16))


@dataclass(frozen=True, slots=True, kw_only=True)
class NtpPacket:
    """One packet, fields named as in RFC 5905. Timestamps are 64-bit NTP timestamps, 0 where not set.

    root_delay, root_dispersion: 16.16 fixed point seconds as on the wire. poll, precision: log2 seconds.
    """

    leap: int
    version: int
    mode: NtpMode
    stratum: int = 0
    poll: int = 0
    precision: int = 0
    root_delay: int = 0
    root_dispersion: int = 0
    reference_id: bytes = bytes(4)
    reference_timestamp: int = 0
    origin_timestamp: int = 0
    receive_timestamp: int = 0
    transmit_timestamp: int = 0
    extensions: tuple[ExtensionField, ...] = ()
    mac: bytes = b""

    @property
    def root_delay_ns(self) -> int:
        """Round trip to the primary source, rounded up: it enters bounds."""
        return -(-self.root_delay * _NS >> 16)

    @property
    def root_dispersion_ns(self) -> int:
        """Error bound of the server's clock by its own account, rounded up."""
        return -(-self.root_dispersion * _NS >> 16)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Raises DecodeError for whatever is not a whole packet of modes 0 to 5, versions 1 to 4."""
        if len(data) > MAX_OCTETS:
            raise DecodeError(f"NTP packet: {len(data)} octets are more than {MAX_OCTETS}")
        fields = _HEADER.read(data, "NTP packet")
        first = fields.pop("first")
        leap, version, mode = first >> 6, first >> 3 & 7, first & 7
        if mode > NtpMode.BROADCAST:
            raise DecodeError(f"NTP packet: mode {mode} is a control message, not a packet")
        if not 1 <= version <= 4:
            raise DecodeError(f"NTP packet: version {version}, expected 1 to 4")
        extensions, mac = _decode_tail(data[HEADER_OCTETS:]) if version == 4 else ((), data[HEADER_OCTETS:])
        return cls(leap=leap, version=version, mode=NtpMode(mode), extensions=extensions, mac=mac, **fields)

    def encode(self) -> bytes:
        """The octets of the packet. Raises ValueError or struct.error where a field does not fit."""
        values = {name: getattr(self, name) for name in _HEADER.names if name != "first"}
        values["first"] = self.leap << 6 | self.version << 3 | self.mode
        parts = [_HEADER.write(values)]
        for field in self.extensions:
            parts.append(_EXTENSION.write({"kind": field.kind, "length": 4 + len(field.body)}) + field.body)
        return b"".join(parts) + self.mac


def _decode_tail(data: bytes) -> tuple[tuple[ExtensionField, ...], bytes]:
    """Extension fields, then what is left and short enough to be a MAC."""
    fields = []
    while len(data) > MAX_V4_MAC_OCTETS:
        header = _EXTENSION.read(data, "NTP extension field")
        length = header["length"]
        if length < MIN_EXTENSION_OCTETS or length % 4 or length > len(data):
            raise DecodeError(f"NTP extension field: length {length} with {len(data)} octets left")
        fields.append(ExtensionField(kind=header["kind"], body=bytes(data[4:length])))
        data = data[length:]
    return tuple(fields), bytes(data)
