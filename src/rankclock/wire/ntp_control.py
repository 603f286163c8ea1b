"""NTP control messages (mode 6): what ntpd, classic or ntpsec, tells of itself. Read operations only.

Facts: RFC 9327, and octets captured from ntpsec 1.2.2 (tests/captured/wire). Replies come in fragments, in any order;
`Assembly` joins those of one question. ntpsec 1.2.2 leaves octets of its memory in the filter arrays and behind the
text: names are taken only where they stand as names, and readers ask for the variables they want by name.
ntpd says server minus local, in ms; `SystemVariables.offset_ns` and `PeerVariables.offset_ns` turn that to local minus
reference, and nothing else does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Self

from rankclock.errors import DecodeError
from rankclock.wire.layout import U8, U16, Layout
from rankclock.wire.ntp import unix_ns_from_ntp

__all__ = [
    "LEAP_ALARM",
    "PEER_NAMES",
    "SYSTEM_NAMES",
    "Assembly",
    "ControlMessage",
    "ControlRefused",
    "Opcode",
    "PeerSelection",
    "PeerStatus",
    "PeerVariables",
    "SystemEvent",
    "SystemStatus",
    "SystemVariables",
    "decode_associations",
    "decode_variables",
]

LEAP_ALARM = 3
STRATUM_UNSYNCHRONISED = 16
MAX_ANSWER = 0xFFFF
"""Offsets have 16 bits: no answer is longer."""

_CONTROL_MODE = 6
_VERSION = 4
_RESPONSE, _ERROR, _MORE, _OPCODE = 0x80, 0x40, 0x20, 0x1F

ERROR_NAMES = {
    1: "permission denied",
    2: "bad length or format",
    3: "bad operation",
    4: "no such association",
    5: "no such variable",
    6: "bad value",
    7: "administratively prohibited",
}


class ControlRefused(DecodeError):
    """ntpd understood the question and said no. `code`: RFC 9327 section 3.5."""

    def __init__(self, code: int) -> None:
        self.code = code
        super().__init__(f"ntpd refused: {ERROR_NAMES.get(code, 'error')} ({code})")


class Opcode(IntEnum):
    """The two operations that read state."""

    READ_STATUS = 1
    READ_VARIABLES = 2


# ---- the message ----

_HEADER = Layout(
    ("first", U8),
    ("second", U8),
    ("sequence", U16),
    ("status", U16),
    ("association", U16),
    ("offset", U16),
    ("count", U16),
)
HEADER_OCTETS = _HEADER.size


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlMessage:
    """One datagram: a question, or one fragment of an answer. status: of the system or the peer, or an error code."""

    opcode: int
    sequence: int
    association: int = 0
    status: int = 0
    offset: int = 0
    data: bytes = b""
    response: bool = False
    error: bool = False
    more: bool = False
    leap: int = 0
    version: int = _VERSION

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Octets behind the counted ones (padding, a MAC) are ignored. Raises DecodeError."""
        head = _HEADER.read(data, "NTP control message")
        if head["first"] & 7 != _CONTROL_MODE:
            raise DecodeError(f"NTP control message: mode {head['first'] & 7}, expected {_CONTROL_MODE}")
        body = data[HEADER_OCTETS : HEADER_OCTETS + head["count"]]
        if len(body) < head["count"]:
            raise DecodeError(f"NTP control message: count {head['count']}, found {len(body)} octets")
        if head["offset"] + head["count"] > MAX_ANSWER:
            raise DecodeError(f"NTP control message: {head['count']} octets at offset {head['offset']}")
        second = head["second"]
        return cls(
            opcode=second & _OPCODE,
            sequence=head["sequence"],
            association=head["association"],
            status=head["status"],
            offset=head["offset"],
            data=bytes(body),
            response=bool(second & _RESPONSE),
            error=bool(second & _ERROR),
            more=bool(second & _MORE),
            leap=head["first"] >> 6,
            version=head["first"] >> 3 & 7,
        )

    def encode(self) -> bytes:
        """The octets, padded to whole words. Raises struct.error where a field does not fit."""
        flags = _RESPONSE * self.response | _ERROR * self.error | _MORE * self.more
        values = {"first": self.leap << 6 | self.version << 3 | _CONTROL_MODE, "second": flags | self.opcode}
        own = {name: getattr(self, name) for name in ("sequence", "status", "association", "offset")}
        return _HEADER.write({**values, **own, "count": len(self.data)}) + self.data + bytes(-len(self.data) % 4)


@dataclass(slots=True, kw_only=True)
class Assembly:
    """The fragments of the answer to one question; `add` gives the whole once no octet is missing."""

    question: ControlMessage
    status: int = 0
    _parts: dict[int, bytes] = field(default_factory=dict)
    _end: int | None = None

    def add(self, message: ControlMessage) -> bytes | None:
        """The answer, None while more is to come or the message answers another question.

        Raises ControlRefused, and DecodeError where two fragments contradict each other.
        """
        mine = (self.question.opcode, self.question.sequence, self.question.association)
        if not message.response or (message.opcode, message.sequence, message.association) != mine:
            return None
        if message.error:
            raise ControlRefused(message.status >> 8)
        if self._parts.setdefault(message.offset, message.data) != message.data:
            raise DecodeError(f"NTP control message: two fragments at offset {message.offset}")
        self.status = message.status
        if not message.more:
            end = message.offset + len(message.data)
            if self._end not in (None, end):
                raise DecodeError(f"NTP control message: the answer ends at {self._end} and at {end}")
            self._end = end
        return self._whole()

    def _whole(self) -> bytes | None:
        if self._end is None:
            return None
        answer = b""
        for offset, part in sorted(self._parts.items()):
            if offset < len(answer) or offset + len(part) > self._end:
                raise DecodeError(f"NTP control message: a fragment at offset {offset} overlaps")
            if offset > len(answer):
                return None
            answer += part
        return answer if len(answer) == self._end else None


# ---- status words ----


class SystemEvent(IntEnum):
    """The last event of the system status word, of those that matter to its clock."""

    FREQUENCY_NOT_SET = 1
    FREQUENCY_SET = 2
    SPIKE = 3
    FREQUENCY_MODE = 4
    CLOCK_SYNC = 5
    RESTART = 6
    PANIC_STOP = 7
    NO_SYSTEM_PEER = 8
    CLOCK_STEP = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemStatus:
    """RFC 9327 section 3.1."""

    leap: int
    source: int
    events: int
    event: int

    @classmethod
    def of(cls, word: int) -> Self:
        """Any 16 bits are one."""
        return cls(leap=word >> 14 & 3, source=word >> 8 & 0x3F, events=word >> 4 & 0xF, event=word & 0xF)


class PeerSelection(IntEnum):
    """What the selection thinks of a peer; ntpq prints the mark."""

    REJECTED = 0
    FALSETICKER = 1
    EXCESS = 2
    OUTLIER = 3
    CANDIDATE = 4
    BACKUP = 5
    SYSTEM_PEER = 6
    PPS_PEER = 7

    @property
    def mark(self) -> str:
        """ntpq's tally character."""
        return " x.-+#*o"[self]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerStatus:
    """RFC 9327 section 3.2."""

    configured: bool
    authenticable: bool
    authentic: bool
    reachable: bool
    broadcast: bool
    selection: PeerSelection
    events: int
    event: int

    @classmethod
    def of(cls, word: int) -> Self:
        """Any 16 bits are one."""
        configured, authenticable, authentic, reachable, broadcast = (
            bool(word >> bit & 1) for bit in range(15, 10, -1)
        )
        return cls(
            configured=configured,
            authenticable=authenticable,
            authentic=authentic,
            reachable=reachable,
            broadcast=broadcast,
            selection=PeerSelection(word >> 8 & 7),
            events=word >> 4 & 0xF,
            event=word & 0xF,
        )

    @property
    def followed(self) -> bool:
        """Whether this is what the clock is steered by."""
        return self.selection in (PeerSelection.SYSTEM_PEER, PeerSelection.PPS_PEER)


def decode_associations(data: bytes) -> tuple[tuple[int, PeerStatus], ...]:
    """The answer to READ_STATUS of association 0: identities and their status. Raises DecodeError."""
    if len(data) % 4:
        raise DecodeError(f"NTP associations: {len(data)} octets are no whole pairs")
    words = [int.from_bytes(data[at : at + 2], "big") for at in range(0, len(data), 2)]
    return tuple((number, PeerStatus.of(word)) for number, word in zip(words[::2], words[1::2], strict=True))


# ---- variables ----

_VARIABLE = re.compile(r'(?:^|,)\s*(?P<name>[A-Za-z_]\w*)=(?P<value>"[^"]*"|[^,"]*)')


def decode_variables(data: bytes) -> dict[str, str]:
    """`name=value, name="value"` pairs, quotes taken off; the first of a name counts. What is neither is skipped."""
    found: dict[str, str] = {}
    for match in _VARIABLE.finditer(data.decode("latin-1")):
        found.setdefault(match["name"], match["value"].strip().strip('"'))
    return found


SYSTEM_NAMES = (
    "leap", "stratum", "precision", "rootdelay", "rootdisp", "refid", "reftime", "tc", "peer", "offset", "frequency",
    "sys_jitter", "clk_jitter", "clock", "version", "koffset", "kstflags",
)  # fmt: skip
PEER_NAMES = (
    "srcadr", "srcport", "leap", "stratum", "hpoll", "rootdelay", "rootdisp", "refid", "reach", "delay", "offset",
    "jitter", "dispersion", "flash",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemVariables:
    """ntpd's system variables; times in ns, on ntpd's own clock. None: it did not say, or not as a number.

    offset_ns: local minus reference *at the last update*; what has been slewed away since is in nobody's variables.
    root_dispersion_ns: grown by ntpd itself by 15 ppm since the update. peer: the association followed, 0 for none.
    reference_time_ns: of the last update; None where there has been none.
    """

    leap: int | None
    stratum: int | None
    root_delay_ns: int | None
    root_dispersion_ns: int | None
    refid: str
    reference_time_ns: int | None
    clock_ns: int | None
    peer: int | None
    offset_ns: int | None
    frequency_ppm: float | None
    clock_jitter_ns: int | None
    time_constant: int | None
    version: str
    kernel_flags: tuple[str, ...] | None

    @classmethod
    def of(cls, values: Mapping[str, str], *, near_unix_ns: int) -> Self:
        """near_unix_ns: any instant within 68 years, for the era of NTP's timestamps."""
        flags = values.get("kstflags")
        return cls(
            leap=_whole(values, "leap"),
            stratum=_whole(values, "stratum"),
            root_delay_ns=_ns(values, "rootdelay"),
            root_dispersion_ns=_ns(values, "rootdisp"),
            refid=values.get("refid", ""),
            reference_time_ns=_instant(values, "reftime", near_unix_ns),
            clock_ns=_instant(values, "clock", near_unix_ns),
            peer=_whole(values, "peer"),
            offset_ns=_turned(_ns(values, "offset")),
            frequency_ppm=_number(values, "frequency"),
            clock_jitter_ns=_ns(values, "clk_jitter"),
            time_constant=_whole(values, "tc"),
            version=values.get("version", ""),
            kernel_flags=None if flags is None else tuple(re.split(r"[\s,|]+", flags.strip())) if flags else (),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerVariables:
    """One association; times in ns. None: it did not say, or not as a number. offset_ns: local minus this peer, of the
    sample that ntpd's filter took, which may be some polls old.
    """

    address: str
    leap: int | None
    stratum: int | None
    poll: int | None
    reach: int | None
    refid: str
    root_delay_ns: int | None
    root_dispersion_ns: int | None
    delay_ns: int | None
    offset_ns: int | None
    jitter_ns: int | None
    dispersion_ns: int | None
    flash: int | None

    @classmethod
    def of(cls, values: Mapping[str, str]) -> Self:
        """From the variables as they stood."""
        return cls(
            address=values.get("srcadr", ""),
            leap=_whole(values, "leap"),
            stratum=_whole(values, "stratum"),
            poll=_whole(values, "hpoll"),
            reach=_whole(values, "reach"),
            refid=values.get("refid", ""),
            root_delay_ns=_ns(values, "rootdelay"),
            root_dispersion_ns=_ns(values, "rootdisp"),
            delay_ns=_ns(values, "delay"),
            offset_ns=_turned(_ns(values, "offset")),
            jitter_ns=_ns(values, "jitter"),
            dispersion_ns=_ns(values, "dispersion"),
            flash=_whole(values, "flash"),
        )


_WHOLE = re.compile(r"-?\d{1,10}|0[xX][0-9a-fA-F]{1,8}")
_NUMBER = re.compile(r"[+-]?(?:\d{1,15}(?:\.\d{0,15})?|\.\d{1,15})(?:[eE][+-]?\d{1,2})?")
_TIMESTAMP = re.compile(r"0[xX]([0-9a-fA-F]{8})\.([0-9a-fA-F]{8})")
_NS_PER_MS = 1_000_000


def _whole(values: Mapping[str, str], name: str) -> int | None:
    text = values.get(name, "")
    if not _WHOLE.fullmatch(text):
        return None
    return int(text, 16 if text[:2].lower() == "0x" else 10)


def _number(values: Mapping[str, str], name: str) -> float | None:
    text = values.get(name, "")
    return float(text) if _NUMBER.fullmatch(text) else None


def _ns(values: Mapping[str, str], name: str) -> int | None:
    """A time in ms, as ntpd gives all of these."""
    number = _number(values, name)
    return None if number is None else round(number * _NS_PER_MS)


def _turned(server_minus_local_ns: int | None) -> int | None:
    return None if server_minus_local_ns is None else -server_minus_local_ns


def _instant(values: Mapping[str, str], name: str, near_unix_ns: int) -> int | None:
    match = _TIMESTAMP.fullmatch(values.get(name, ""))
    if match is None:
        return None
    timestamp = int(match[1] + match[2], 16)
    return unix_ns_from_ntp(timestamp, near_unix_ns=near_unix_ns) if timestamp else None
