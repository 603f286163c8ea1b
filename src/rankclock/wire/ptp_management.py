"""PTP management messages (IEEE 1588-2008 clause 15) as ptp4l's local sockets speak them.

The data sets that they carry are in `ptp_data_sets`. An unknown TLV keeps its octets; an error TLV is a value. Messages
never ask to be forwarded: hops are 0 (pmc's default of 1 sends the question out of the network ports).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Self

from rankclock.errors import DecodeError
from rankclock.wire.layout import I64, U8, U16, U32, Layout, octets
from rankclock.wire.ptp_data_sets import DATA_SETS, PORT_IDENTITY, DataSet, PortIdentity

__all__ = ["ANY_PORT", "Action", "ManagementError", "ManagementMessage", "UnknownTlv"]


class Action(IntEnum):
    """actionField, table 38."""

    GET = 0
    SET = 1
    RESPONSE = 2
    COMMAND = 3
    ACKNOWLEDGE = 4


ERROR_NAMES = {
    1: "response too big",
    2: "no such id",
    3: "wrong length",
    4: "wrong value",
    5: "not settable",
    6: "not supported",
    0xFFFE: "general error",
}

MANAGEMENT_IDS = {kind: number for number, kind in DATA_SETS.items()}
ANY_PORT = PortIdentity(clock=b"\xff" * 8, port=0xFFFF)
"""The target that asks the clock itself and every port of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownTlv:
    """A data set that this table does not have, or an empty one (a GET). Its octets, unread."""

    management_id: int
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagementError:
    """MANAGEMENT_ERROR_STATUS: the clock refused. `display`: what it says beside the code, often nothing."""

    error_id: int
    management_id: int
    display: bytes = b""

    def __str__(self) -> str:
        name = (
            DATA_SETS[self.management_id].__name__ if self.management_id in DATA_SETS else f"{self.management_id:#06x}"
        )
        return f"{name}: {ERROR_NAMES.get(self.error_id, 'error')} ({self.error_id:#06x})"


# ---- the message ----

_MANAGEMENT = 0xD
_TLV_MANAGEMENT, _TLV_ERROR = 1, 2
_LOG_INTERVAL_NONE = 0x7F
_CONTROL_MANAGEMENT = 4

_HEADER = Layout(
    ("first", U8),
    ("version", U8),
    ("length", U16),
    ("domain", U8),
    ("minor_sdo_id", U8),
    ("flags", U16),
    ("correction", I64),
    ("reserved", U32),
    ("source", PORT_IDENTITY),
    ("sequence", U16),
    ("control", U8),
    ("log_interval", U8),
    ("target", PORT_IDENTITY),
    ("starting_hops", U8),
    ("hops", U8),
    ("action", U8),
    ("reserved2", U8),
)
HEADER_OCTETS = _HEADER.size
_TLV_HEAD = Layout(("kind", U16), ("length", U16))
_ERROR_BODY = Layout(("error_id", U16), ("management_id", U16), ("_reserved", octets(4)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagementMessage:
    """One message with its one TLV. `sdo`: transportSpecific / majorSdoId, 0 but for 802.1AS (1)."""

    domain: int
    source: PortIdentity
    sequence: int
    action: int
    tlv: DataSet | UnknownTlv | ManagementError
    target: PortIdentity = ANY_PORT
    sdo: int = 0
    hops: int = 0

    @classmethod
    def get(cls, data_set: type[DataSet], *, domain: int, source: PortIdentity, sequence: int, sdo: int = 0) -> Self:
        """A question for one data set to every port of the clock at the other end of the socket, and to nobody else."""
        tlv = UnknownTlv(management_id=MANAGEMENT_IDS[data_set], data=b"")
        return cls(domain=domain, source=source, sequence=sequence, action=Action.GET, tlv=tlv, sdo=sdo)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Raises DecodeError for whatever is not one whole management message with a TLV."""
        head = _HEADER.read(data, "PTP management message")
        if head["first"] & 0xF != _MANAGEMENT or head["version"] & 0xF != 2:
            raise DecodeError(f"PTP management message: type {head['first'] & 0xF}, version {head['version'] & 0xF}")
        if not HEADER_OCTETS <= head["length"] <= len(data):
            raise DecodeError(f"PTP management message: length {head['length']} in {len(data)} octets")
        return cls(
            domain=head["domain"],
            source=head["source"],
            sequence=head["sequence"],
            action=head["action"] & 0xF,
            tlv=_decode_tlv(bytes(data[HEADER_OCTETS : head["length"]])),
            target=head["target"],
            sdo=head["first"] >> 4,
            hops=head["hops"],
        )

    def encode(self) -> bytes:
        """The octets of the message. Raises ValueError or struct.error where a field does not fit."""
        tlv = _encode_tlv(self.tlv)
        values = {
            "first": self.sdo << 4 | _MANAGEMENT,
            "version": 2,
            "length": HEADER_OCTETS + len(tlv),
            "minor_sdo_id": 0,
            "flags": 0,
            "correction": 0,
            "reserved": 0,
            "control": _CONTROL_MANAGEMENT,
            "log_interval": _LOG_INTERVAL_NONE,
            "starting_hops": self.hops,
            "reserved2": 0,
        }
        own = {name: getattr(self, name) for name in ("domain", "source", "sequence", "target", "hops", "action")}
        return _HEADER.write({**values, **own}) + tlv


def _decode_tlv(data: bytes) -> DataSet | UnknownTlv | ManagementError:
    head = _TLV_HEAD.read(data, "PTP management TLV")
    body = data[4 : 4 + head["length"]]
    if len(body) < head["length"]:
        raise DecodeError(f"PTP management TLV: length {head['length']}, found {len(body)}")
    if head["kind"] == _TLV_ERROR:
        return ManagementError(**_ERROR_BODY.read(body, "PTP error TLV"), display=body[_ERROR_BODY.size :])
    if head["kind"] != _TLV_MANAGEMENT or len(body) < 2:
        raise DecodeError(f"PTP management TLV: type {head['kind']} with {len(body)} octets")
    number, content = int.from_bytes(body[:2], "big"), body[2:]
    known = DATA_SETS.get(number)
    if known is None or not content:
        return UnknownTlv(management_id=number, data=content)
    return known.from_wire(content)


def _encode_tlv(tlv: DataSet | UnknownTlv | ManagementError) -> bytes:
    if isinstance(tlv, ManagementError):
        kind, body = _TLV_ERROR, _ERROR_BODY.write({"error_id": tlv.error_id, "management_id": tlv.management_id})
        body += tlv.display
    elif isinstance(tlv, UnknownTlv):
        kind, body = _TLV_MANAGEMENT, tlv.management_id.to_bytes(2, "big") + tlv.data
    else:
        kind, body = _TLV_MANAGEMENT, MANAGEMENT_IDS[type(tlv)].to_bytes(2, "big") + tlv.to_wire()
    return _TLV_HEAD.write({"kind": kind, "length": len(body)}) + body
