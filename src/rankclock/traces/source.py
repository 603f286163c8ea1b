"""The bytes of a trace file, unpacked, piece by piece: plain, gzip, zstd, told apart by their first bytes.

Decides how far a packed file can be unpacked; what lies behind a break is lost and said so. Refuses files that are not
there or may not be read (UserError), and zstd where the library is missing (HostError).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from rankclock.errors import HostError, UserError

__all__ = ["CHUNK", "ByteSource", "packing_of"]

CHUNK = 1 << 20
"""Bytes handed out at once: small against any file worth streaming, large against the cost of a call."""

_PACKED_CHUNK = 1 << 14
"""Packed bytes unpacked at once: deflate makes at most 1032 times as many of them."""

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


class ByteSource:
    """An open trace file. Iterate over it once; afterwards `broken` says where unpacking ended early, if it did."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.packing = packing_of(path)
        self.broken: str | None = None

    def __iter__(self) -> Iterator[bytes]:
        with _open(self.path) as file:
            if self.packing == "plain":
                yield from iter(lambda: file.read(CHUNK), b"")
            elif self.packing == "gzip":
                yield from self._unpack(file, lambda: zlib.decompressobj(wbits=31), zlib.error, "gzip")
            else:
                zstandard = _zstandard()
                fresh = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj
                yield from self._unpack(file, fresh, zstandard.ZstdError, "zstd")

    def _unpack(self, file: BinaryIO, fresh: Callable[[], Any], error: type[Exception], name: str) -> Iterator[bytes]:
        """Both formats allow several members behind each other; a member that ends early is a cut file."""
        member, at, unpacked, inside = fresh(), 0, 0, False
        pending: list[bytes] = []
        size = 0
        while packed := file.read(_PACKED_CHUNK):
            at += len(packed)
            while packed:
                saved = member.copy() if name == "gzip" else None
                try:
                    data = member.decompress(packed)
                except error as why:
                    data = _up_to_the_break(saved, packed) if saved is not None else b""
                    self.broken = f"{name} data break between packed bytes {at - len(packed)} and {at} ({why})"
                inside = True
                pending.append(data)
                size += len(data)
                unpacked += len(data)
                if self.broken:
                    break
                packed = member.unused_data
                if member.eof:
                    member, inside = fresh(), False
                    packed = packed.lstrip(b"\0")  # tape and pipe writers pad the last member with zeros
            if size >= CHUNK or self.broken:
                yield b"".join(pending)
                pending, size = [], 0
            if self.broken:
                return
        if pending:
            yield b"".join(pending)
        if inside:
            self.broken = f"{name} data end early at packed byte {at}, after {unpacked} unpacked bytes"


def _up_to_the_break(member: Any, packed: bytes) -> bytes:
    """What can be unpacked before the byte that a decompressor stumbles over: it keeps nothing of a failed call."""
    pieces = []
    try:
        for index in range(len(packed)):
            pieces.append(member.decompress(packed[index : index + 1]))
    except zlib.error:
        pass
    return b"".join(pieces)


def packing_of(path: Path) -> str:
    """'plain', 'gzip' or 'zstd', by the first bytes. Raises UserError where the file cannot be read."""
    with _open(path) as file:
        head = file.read(4)
    if head.startswith(_GZIP):
        return "gzip"
    return "zstd" if head == _ZSTD else "plain"


def _open(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); give the path of a trace file") from error


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise HostError("reading .zst traces needs the package zstandard: pip install zstandard") from error
    return zstandard
