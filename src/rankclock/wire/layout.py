"""Fixed-width records as tables: a layout names each field and its kind; one reader and one writer serve them all.

Refuses to read past the end of what it was given: that is a DecodeError, as everything a decoder cannot take.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, Self, cast, get_type_hints

from rankclock.errors import DecodeError

__all__ = [
    "I8",
    "I16",
    "I32",
    "I64",
    "U8",
    "U16",
    "U32",
    "U64",
    "Kind",
    "Layout",
    "Record",
    "octets",
    "read",
    "size_of",
    "write",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """How one field stands on the wire: its size, and the way there and back."""

    size: int
    unpack: Callable[[bytes], Any]
    pack: Callable[[Any], bytes]


Layout = tuple[tuple[str, Kind], ...]
"""Fields in wire order. A name that begins with '_' is padding: written as zero, not read."""


def _integer(code: str, order: str = ">") -> Kind:
    form = struct.Struct(order + code)
    return Kind(size=form.size, unpack=lambda data: form.unpack(data)[0], pack=form.pack)


U8, U16, U32, U64 = (_integer(code) for code in "BHIQ")
I8, I16, I32, I64 = (_integer(code) for code in "bhiq")


def octets(size: int) -> Kind:
    """Bytes kept as they are."""

    def pack(value: bytes) -> bytes:
        if len(value) != size:
            raise ValueError(f"{size} octets expected, found {len(value)}")
        return bytes(value)

    return Kind(size=size, unpack=bytes, pack=pack)


def size_of(layout: Layout) -> int:
    """The octets that a record takes."""
    return sum(kind.size for _, kind in layout)


def read(layout: Layout, data: bytes, what: str) -> dict[str, Any]:
    """The fields of a record at the start of `data`; octets behind it are the caller's. Raises DecodeError."""
    wanted = size_of(layout)
    if len(data) < wanted:
        raise DecodeError(f"{what}: expected {wanted} octets, found {len(data)}")
    values, position = {}, 0
    for name, kind in layout:
        if not name.startswith("_"):
            values[name] = kind.unpack(data[position : position + kind.size])
        position += kind.size
    return values


def write(layout: Layout, values: Mapping[str, Any]) -> bytes:
    """The inverse of `read`. Raises KeyError, ValueError or struct.error where a value does not fit."""
    return b"".join(bytes(kind.size) if name.startswith("_") else kind.pack(values[name]) for name, kind in layout)


class Record:
    """Base of dataclasses whose fields stand on the wire in their order: `stratum: Annotated[int, U16]`."""

    __slots__ = ()

    @classmethod
    def layout(cls) -> Layout:
        """Fields in wire order."""
        return _layout_of(cast(Any, cls))  # mypy takes a class for unhashable here

    @classmethod
    def from_wire(cls, data: bytes) -> Self:
        """Octets behind the record are ignored. Raises DecodeError where there are too few."""
        return cls(**read(cls.layout(), data, cls.__name__))

    def to_wire(self) -> bytes:
        """The octets of the record. Raises ValueError or struct.error where a value does not fit."""
        return write(self.layout(), {name: getattr(self, name) for name, _ in self.layout()})


@lru_cache(maxsize=64)
def _layout_of(record: Any) -> Layout:
    hints = get_type_hints(record, include_extras=True)
    return tuple((item.name, hints[item.name].__metadata__[0]) for item in fields(record))
