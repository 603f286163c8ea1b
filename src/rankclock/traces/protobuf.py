"""Protobuf's wire format, as far as Perfetto's traces need it: fields to bytes, bytes to fields.

Refuses, with DecodeError, what no encoder writes: field number 0, groups, numbers of more than 64 bits, lengths beyond
the end.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from rankclock.errors import DecodeError

__all__ = [
    "Fields",
    "Stamps",
    "data",
    "double",
    "fields",
    "fixed64",
    "integer",
    "nested",
    "number_at",
    "text",
    "varint",
]

Fields = Iterator[tuple[int, int | bytes]]

_ONE = [bytes([value]) for value in range(128)]
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
MAX_VARINT_BYTES = 10


def varint(value: int) -> bytes:
    """A number of 0 to 2^64 - 1; negative ones as their two's complement of 64 bits, as int64 fields hold them."""
    if 0 <= value < 128:
        return _ONE[value]
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


class Stamps:
    """Varints of numbers that are near each other, as time stamps are: what they share is written once."""

    def __init__(self) -> None:
        self._high: dict[int, bytes] = {}

    def varint(self, value: int) -> bytes:
        """The same as `varint`, for 2^28 and more."""
        low, high = value & 0xFFFFFFF, value >> 28
        shared = self._high.get(high)
        if shared is None:
            if len(self._high) > 1000:
                self._high.clear()
            shared = self._high[high] = varint(high)
        spread = low & 0x7F | low << 1 & 0x7F00 | low << 2 & 0x7F0000 | low << 3 & 0x7F000000 | 0x80808080
        return spread.to_bytes(4, "little") + shared


def integer(field: int, value: int) -> bytes:
    """A varint field: every integer, bool and enum type but the zigzag ones."""
    return varint(field << 3 | _VARINT) + varint(value)


def fixed64(field: int, value: int) -> bytes:
    """A fixed64 field."""
    return varint(field << 3 | _FIXED64) + struct.pack("<Q", value)


def double(field: int, value: float) -> bytes:
    """A double field."""
    return varint(field << 3 | _FIXED64) + struct.pack("<d", value)


def data(field: int, value: bytes) -> bytes:
    """A bytes field."""
    return varint(field << 3 | _LENGTH) + varint(len(value)) + value


def text(field: int, value: str) -> bytes:
    """A string field; what is no text in UTF-8 becomes question marks."""
    return data(field, value.encode("utf-8", "replace"))


def nested(field: int, *parts: bytes) -> bytes:
    """A message field."""
    return data(field, b"".join(parts))


def number_at(buffer: bytes, at: int) -> tuple[int, int]:
    """The varint at a place, and the place behind it. Raises DecodeError."""
    value = shift = 0
    for place in range(at, min(at + MAX_VARINT_BYTES, len(buffer))):
        byte = buffer[place]
        value |= (byte & 127) << shift
        if byte < 128:
            if value >> 64:
                raise DecodeError(f"a number of more than 64 bits at byte {at}")
            return value, place + 1
        shift += 7
    raise DecodeError(f"a number that does not end at byte {at}")


def fields(buffer: bytes) -> Fields:
    """The fields of a message in their order: (number, integer or bytes). Raises DecodeError."""
    at, end = 0, len(buffer)
    while at < end:
        key, at = number_at(buffer, at)
        field, kind = key >> 3, key & 7
        if not field:
            raise DecodeError(f"field 0 at byte {at}")
        if kind == _VARINT:
            value, at = number_at(buffer, at)
            yield field, value
            continue
        if kind == _LENGTH:
            length, at = number_at(buffer, at)
        elif kind in (_FIXED64, _FIXED32):
            length = 8 if kind == _FIXED64 else 4
        else:
            raise DecodeError(f"wire type {kind} at byte {at}")
        if at + length > end:
            raise DecodeError(f"a field of {length} bytes at byte {at}, of which {end - at} are there")
        part = buffer[at : at + length]
        at += length
        yield field, part if kind == _LENGTH else int.from_bytes(part, "little")
