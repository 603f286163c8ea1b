"""D-Bus messages, as far as asking a daemon for its properties goes: method calls out, replies in. Little-endian out.

Facts: the D-Bus specification, "Message Protocol". Calls carry strings only. Replies are read by their signature, any
type but file descriptors; depth and size are bounded as the specification bounds them.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Self

from rankclock.errors import DecodeError

__all__ = ["FIXED_OCTETS", "DbusMessage", "MessageKind", "encode_call", "message_octets"]

FIXED_OCTETS = 16
MAX_OCTETS = 1 << 20
"""The specification allows 2^27; the properties that are read here take a few hundred."""

_MAX_DEPTH = 32
_PATH, _INTERFACE, _MEMBER, _ERROR_NAME, _REPLY_SERIAL, _DESTINATION, _SIGNATURE = 1, 2, 3, 4, 5, 6, 8
_NO_AUTO_START = 2
_ALIGNMENT = {"y": 1, "b": 4, "n": 2, "q": 2, "i": 4, "u": 4, "x": 8, "t": 8, "d": 8, "s": 4, "o": 4, "g": 1, "v": 1}
_ALIGNMENT |= {"a": 4, "(": 8, "{": 8}
_NUMBERS = {"y": "B", "n": "h", "q": "H", "i": "i", "u": "I", "x": "q", "t": "Q", "d": "d"}
_ENDS = {"(": ")", "{": "}"}


class MessageKind:
    """The types of messages."""

    CALL, RETURN, ERROR, SIGNAL = 1, 2, 3, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class DbusMessage:
    """One message. reply_to: the serial of the call that it answers, 0 for none. error: its name, '' for none."""

    kind: int
    reply_to: int
    error: str
    body: tuple[Any, ...]

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """One whole message. Raises DecodeError."""
        total = message_octets(data)
        if len(data) < total:
            raise DecodeError(f"D-Bus message: {len(data)} of {total} octets")
        order = "<" if data[:1] == b"l" else ">"
        reader = _Reader(data[:total], order, 12)
        fields: dict[int, Any] = dict(reader.value("a(yv)", 0))
        reader.align(8)
        signature = fields.get(_SIGNATURE, "")
        if not isinstance(signature, str):
            raise DecodeError("D-Bus message: its signature is none")
        error, reply_to = fields.get(_ERROR_NAME, ""), fields.get(_REPLY_SERIAL, 0)
        if not isinstance(error, str) or not isinstance(reply_to, int):
            raise DecodeError("D-Bus message: a header field of the wrong type")
        return cls(kind=data[1], reply_to=reply_to, error=error, body=tuple(reader.all_of(signature)))


def message_octets(data: bytes) -> int:
    """How long the message is that begins here; at least `FIXED_OCTETS` must be there. Raises DecodeError."""
    if len(data) < FIXED_OCTETS or data[:1] not in (b"l", b"B") or data[3] != 1:
        raise DecodeError("D-Bus message: not the beginning of one")
    body, _, fields = struct.unpack_from(("<" if data[:1] == b"l" else ">") + "III", data, 4)
    total: int = FIXED_OCTETS + (fields + 7 & ~7) + body
    if total > MAX_OCTETS:
        raise DecodeError(f"D-Bus message: {total} octets are more than {MAX_OCTETS}")
    return total


def encode_call(serial: int, destination: str, path: str, interface: str, member: str, *arguments: str) -> bytes:
    """A method call with strings; it starts no daemon that does not run."""
    header = b""
    named = [(_PATH, "o", path), (_DESTINATION, "s", destination), (_INTERFACE, "s", interface), (_MEMBER, "s", member)]
    if arguments:
        named.append((_SIGNATURE, "g", "s" * len(arguments)))
    for number, kind, text in named:
        header += bytes(-len(header) % 8) + bytes((number, 1)) + kind.encode() + b"\0"
        header += _signature(text) if kind == "g" else _string(text, len(header))
    body = b""
    for argument in arguments:
        body += bytes(-len(body) % 4) + _string(argument, 0)
    head = struct.pack("<BBBBIII", ord("l"), MessageKind.CALL, _NO_AUTO_START, 1, len(body), serial, len(header))
    return head + header + bytes(-len(header) % 8) + body


def _string(text: str, at: int) -> bytes:
    data = text.encode()
    return bytes(-at % 4) + struct.pack("<I", len(data)) + data + b"\0"


def _signature(text: str) -> bytes:
    return bytes((len(text),)) + text.encode() + b"\0"


class _Reader:
    """Values by signature from one message."""

    def __init__(self, data: bytes, order: str, at: int) -> None:
        self.data = data
        self.order = order
        self.at = at

    def align(self, size: int) -> None:
        self.at += -self.at % size

    def take(self, size: int) -> bytes:
        if size > len(self.data) - self.at:
            raise DecodeError(f"D-Bus message: {size} octets at {self.at} of {len(self.data)}")
        self.at += size
        return self.data[self.at - size : self.at]

    def all_of(self, signature: str, depth: int = 0) -> list[Any]:
        """The values of a sequence of complete types."""
        values = []
        while signature:
            first, signature = _first_type(signature)
            values.append(self.value(first, depth))
        return values

    def value(self, kind: str, depth: int) -> Any:
        """One complete type."""
        if depth > _MAX_DEPTH:
            raise DecodeError("D-Bus message: nested too deep")
        code = kind[0]
        self.align(_ALIGNMENT[code])
        if code in _NUMBERS:
            form = self.order + _NUMBERS[code]
            return struct.unpack(form, self.take(struct.calcsize(form)))[0]
        if code == "b":
            return self.value("u", depth) != 0
        if code in "sog":
            text = self.take(self.value("y" if code == "g" else "u", depth))
            self.take(1)
            return text.decode("utf-8", "replace")
        if code == "v":
            inner, rest = _first_type(self.value("g", depth))
            if rest:
                raise DecodeError(f"D-Bus message: a variant of {inner}{rest}")
            return self.value(inner, depth + 1)
        if code == "a":
            return self._array(kind[1:], depth)
        return tuple(self.all_of(kind[1:-1], depth + 1))

    def _array(self, kind: str, depth: int) -> Any:
        size = self.value("u", depth)
        self.align(_ALIGNMENT[kind[0]])
        end = self.at + size
        if end > len(self.data):
            raise DecodeError(f"D-Bus message: an array of {size} octets at {self.at} of {len(self.data)}")
        if kind == "y":
            return self.take(size)
        values = []
        while self.at < end:
            before = self.at
            values.append(self.value(kind, depth + 1))
            if self.at == before:
                raise DecodeError("D-Bus message: an array of nothing")
        return values


def _first_type(signature: str) -> tuple[str, str]:
    """The first complete type of a signature, and the rest."""
    at = 0
    while at < len(signature) and signature[at] == "a":
        at += 1
    if at >= len(signature) or at > _MAX_DEPTH or signature[at] not in _ALIGNMENT:
        raise DecodeError(f"D-Bus signature: {signature[:40]!r}")
    if signature[at] not in _ENDS:
        return signature[: at + 1], signature[at + 1 :]
    depth = 0
    for place in range(at, len(signature)):
        depth += (signature[place] in "({") - (signature[place] in ")}")
        if depth == 0:
            if signature[place] != _ENDS[signature[at]] or place == at + 1:
                break
            return signature[: place + 1], signature[place + 1 :]
    raise DecodeError(f"D-Bus signature: {signature[:40]!r}")
