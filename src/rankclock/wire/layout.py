"""Fixed-width records as tables: a layout names each field and its kind; one reader and one writer serve them all.

A layout is compiled once into one format of `struct`: agents read daemons every second, on machines that compute.
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
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """How one field stands on the wire: its code for `struct` (big-endian) and, where what that gives is not yet the
    value, the way there and back.
    """

    code: str
    unpack: Callable[[Any], Any] | None = None
    pack: Callable[[Any], Any] | None = None

    @property
    def size(self) -> int:
        """Octets on the wire."""
        return struct.calcsize(">" + self.code)


U8, U16, U32, U64 = (Kind(code=code) for code in "BHIQ")
I8, I16, I32, I64 = (Kind(code=code) for code in "bhiq")


def octets(size: int) -> Kind:
    """Bytes kept as they are."""

    def pack(value: bytes) -> bytes:
        if len(value) != size:
            raise ValueError(f"{size} octets expected, found {len(value)}")
        return bytes(value)

    return Kind(code=f"{size}s", pack=pack)


class Layout:
    """Fields in wire order. A name that begins with '_' is padding: written as zero, not read."""

    __slots__ = ("_form", "_names", "_packers", "_unpackers", "size")

    def __init__(self, *named: tuple[str, Kind]) -> None:
        self._form = struct.Struct(
            ">" + "".join(f"{kind.size}x" if name.startswith("_") else kind.code for name, kind in named)
        )
        shown = [(name, kind) for name, kind in named if not name.startswith("_")]
        self._names = tuple(name for name, _ in shown)
        self._unpackers = tuple((at, kind.unpack) for at, (_, kind) in enumerate(shown) if kind.unpack)
        self._packers = tuple((at, kind.pack) for at, (_, kind) in enumerate(shown) if kind.pack)
        self.size: int = self._form.size

    @property
    def names(self) -> tuple[str, ...]:
        """The fields that are not padding."""
        return self._names

    def read(self, data: bytes, what: str) -> dict[str, Any]:
        """The fields of a record at the start of `data`; octets behind it are the caller's. Raises DecodeError."""
        if len(data) < self.size:
            raise DecodeError(f"{what}: expected {self.size} octets, found {len(data)}")
        values = list(self._form.unpack_from(data))
        for at, unpack in self._unpackers:
            values[at] = unpack(values[at])
        return dict(zip(self._names, values, strict=True))

    def write(self, values: Mapping[str, Any]) -> bytes:
        """The inverse of `read`. Raises KeyError, ValueError or struct.error where a value does not fit."""
        raw = [values[name] for name in self._names]
        for at, pack in self._packers:
            raw[at] = pack(raw[at])
        return self._form.pack(*raw)


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
        return cls(**cls.layout().read(data, cls.__name__))

    def to_wire(self) -> bytes:
        """The octets of the record. Raises ValueError or struct.error where a value does not fit."""
        layout = self.layout()
        return layout.write({name: getattr(self, name) for name in layout.names})


@lru_cache(maxsize=64)
def _layout_of(record: Any) -> Layout:
    hints = get_type_hints(record, include_extras=True)
    return Layout(*((item.name, hints[item.name].__metadata__[0]) for item in fields(record)))
