"""chronyd's command protocol, version 6 (what chronyc speaks): requests to bytes, replies to values.

A table of commands: to read one more report is to add its class (`chrony_reports`) and one row. Facts: chrony's
candm.h, and octets captured from chronyd (tests/captured/wire). Replies are verified (version, kind, command, sequence,
status). Refuses a reply of an unknown layout: a field shifted by one is a wrong number.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

from rankclock.errors import DecodeError
from rankclock.wire.chrony_fields import ADDRESS, ChronyAddress, float_from_wire, float_to_wire, refid_text
from rankclock.wire.chrony_reports import (
    LEAP_UNSYNCHRONISED,
    NO_SAMPLE_AGE_S,
    REFID_LOCAL,
    Activity,
    AuthData,
    NtpData,
    NtpDataWithStamps,
    NumberOfSources,
    SelectData,
    ServerStats,
    ServerStats2,
    ServerStats3,
    ServerStats4,
    SourceData,
    SourceMode,
    SourceState,
    SourceStats,
    Tracking,
)
from rankclock.wire.layout import I32, U8, U16, U32, Layout, Record, octets

__all__ = [
    "ACTIVITY",
    "AUTH_DATA",
    "COMMANDS",
    "LEAP_UNSYNCHRONISED",
    "NOT_AUTHORISED",
    "NO_SAMPLE_AGE_S",
    "NO_SUCH_SOURCE",
    "NTP_DATA",
    "N_SOURCES",
    "REFID_LOCAL",
    "SELECT_DATA",
    "SERVER_STATS",
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
    "float_from_wire",
    "float_to_wire",
    "refid_text",
]

PROTOCOL_VERSION = 6
_REQUEST, _REPLY = 1, 2
_OK = 0
NOT_AUTHORISED = 2
NO_SUCH_SOURCE = 4

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


# ---- headers ----

_REQUEST_HEADER = Layout(
    ("version", U8),
    ("kind", U8),
    ("_pad", octets(2)),
    ("command", U16),
    ("attempt", U16),
    ("sequence", U32),
    ("_pad2", octets(8)),
)
_REPLY_HEADER = Layout(
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
_REPLY_WORDS = struct.Struct(">BB2xHHH6xI8x")
"""_REPLY_HEADER again: every reading goes through it several times."""

_SEQUENCE_AT = 8

# ---- commands ----

_NO_ARGUMENTS = Layout()
_INDEX = Layout(("index", I32))
_ADDRESS = Layout(("address", ADDRESS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command: its number, what a request carries, and the reports that may answer, by reply type.

    request_octets: as many as the longest reply has: chronyd refuses a shorter request, so that it cannot amplify an
    attack.
    """

    name: str
    number: int
    arguments: Layout = _NO_ARGUMENTS
    replies: dict[int, type[Record]]
    request_octets: int = field(init=False)
    _head: bytes = field(init=False)

    def __post_init__(self) -> None:
        longest = max(report.layout().size for report in self.replies.values())
        octets_of_it = max(_REPLY_HEADER.size + longest, _REQUEST_HEADER.size + self.arguments.size)
        values = {"version": PROTOCOL_VERSION, "kind": _REQUEST, "command": self.number, "attempt": 0, "sequence": 0}
        object.__setattr__(self, "request_octets", octets_of_it)
        object.__setattr__(self, "_head", _REQUEST_HEADER.write(values))

    def request(self, sequence: int, arguments: dict[str, Any]) -> bytes:
        """The octets of a request, padded as `request_octets` says."""
        head = self._head[:_SEQUENCE_AT] + sequence.to_bytes(4, "big") + self._head[_SEQUENCE_AT + 4 :]
        return (head + self.arguments.write(arguments)).ljust(self.request_octets, b"\0")


N_SOURCES = Command(name="N_SOURCES", number=14, replies={2: NumberOfSources})
SOURCE_DATA = Command(name="SOURCE_DATA", number=15, arguments=_INDEX, replies={3: SourceData})
TRACKING = Command(name="TRACKING", number=33, replies={5: Tracking})
SOURCESTATS = Command(name="SOURCESTATS", number=34, arguments=_INDEX, replies={6: SourceStats})
ACTIVITY = Command(name="ACTIVITY", number=44, replies={12: Activity})
SERVER_STATS = Command(
    name="SERVER_STATS", number=54, replies={14: ServerStats, 22: ServerStats2, 24: ServerStats3, 25: ServerStats4}
)
NTP_DATA = Command(name="NTP_DATA", number=57, arguments=_ADDRESS, replies={16: NtpData, 26: NtpDataWithStamps})
AUTH_DATA = Command(name="AUTH_DATA", number=67, arguments=_ADDRESS, replies={20: AuthData})
SELECT_DATA = Command(name="SELECT_DATA", number=69, arguments=_INDEX, replies={23: SelectData})

COMMANDS = (
    N_SOURCES, SOURCE_DATA, TRACKING, SOURCESTATS, ACTIVITY, SERVER_STATS, NTP_DATA, AUTH_DATA, SELECT_DATA
)  # fmt: skip


def encode_request(command: Command, *, sequence: int, **arguments: Any) -> bytes:
    """The octets of a request, padded as `Command.request_octets` says."""
    return command.request(sequence, arguments)


def decode_reply(command: Command, data: bytes, *, sequence: int) -> Any:
    """The report that answers `command`. Raises CommandRefused where chronyd said no, DecodeError for all else."""
    if len(data) < _REPLY_WORDS.size:
        raise DecodeError(f"chrony reply to {command.name}: expected {_REPLY_WORDS.size} octets, found {len(data)}")
    version, kind, number, reply, status, answered = _REPLY_WORDS.unpack_from(data)
    if (version, kind, number, answered) != (PROTOCOL_VERSION, _REPLY, command.number, sequence):
        found = f"version {version}, kind {kind}, command {number}, sequence {answered}"
        raise DecodeError(f"chrony reply to {command.name}: {found} answer something else")
    if status != _OK:
        raise CommandRefused(command.name, status)
    report = command.replies.get(reply)
    if report is None:
        raise DecodeError(f"chrony reply to {command.name}: type {reply} is unknown (a newer chronyd?)")
    return report.from_wire(data[_REPLY_WORDS.size :])


def decode_request(data: bytes) -> tuple[Command, int, dict[str, Any]]:
    """What a request asks: the command, its sequence, its arguments. Raises DecodeError."""
    header = _REQUEST_HEADER.read(data, "chrony request")
    if (header["version"], header["kind"]) != (PROTOCOL_VERSION, _REQUEST):
        raise DecodeError(f"chrony request: version {header['version']}, kind {header['kind']}")
    for command in COMMANDS:
        if command.number == header["command"]:
            arguments = command.arguments.read(data[_REQUEST_HEADER.size :], f"chrony request {command.name}")
            return command, header["sequence"], arguments
    raise DecodeError(f"chrony request: command {header['command']} is unknown")


def encode_reply(command: Command, report: Record | None, *, sequence: int, status: int = _OK) -> bytes:
    """The octets of a reply (with no report: of a refusal)."""
    reply = next((number for number, kind in command.replies.items() if type(report) is kind), 1)
    header = {"version": PROTOCOL_VERSION, "kind": _REPLY, "command": command.number, "reply": reply}
    head = _REPLY_HEADER.write({**header, "status": status, "sequence": sequence})
    return head if report is None else head + report.to_wire()
