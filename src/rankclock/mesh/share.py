"""What a prober publishes to the ranks of its host: a small ring of records in shared memory, one writer, any readers.

A file in /dev/shm (or the temporary folder), mapped by all. Each slot carries its number and a checksum, so that a
reader sees whole records or none, on any processor and without a lock. A reader that comes late finds the newest slots
and learns how many it missed. Once all have mapped it the file's name is removed: a killed job leaves nothing behind.
Refuses a file that is not such a ring.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import secrets
import struct
import tempfile
import zlib
from pathlib import Path
from typing import Self

from rankclock.clockmath.relation import Relation
from rankclock.errors import DecodeError, HostError
from rankclock.mesh.actions import Published
from rankclock.timebase.clock_record import ClockEvent, ClockLine

__all__ = ["ShareReader", "ShareWriter"]

MAGIC = b"rkshare1"
SLOTS = 512
SLOT_BYTES = 384
HEAD_BYTES = 64
FILE_BYTES = HEAD_BYTES + SLOTS * SLOT_BYTES

_HEAD = struct.Struct("<8sQ")
_CHECK = struct.Struct("<IIQ")  # checksum of all behind it, length, number
_BODY = struct.Struct("<q?qqqqdddqqIHHHH?qq?qqqdqB")
_MAX_TEXT = 48
_EVENTS = (None, *ClockEvent)
_NO_LINE = ClockLine(real_ns=0, raw_ns=0, lo_ns=None, hi_ns=None, est_ns=None)


class ShareWriter:
    """The prober's end."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._count = _HEAD.unpack_from(memory)[1]

    @classmethod
    def open(cls, path: Path) -> Self:
        """The ring that `create` made. Raises HostError."""
        memory, file = _map(path, write=True)
        os.close(file)
        return cls(memory)

    def publish(self, record: Published) -> None:
        """Write the next record."""
        number = self._count + 1
        body = _encode(record)
        slot = HEAD_BYTES + (number % SLOTS) * SLOT_BYTES
        check = zlib.crc32(number.to_bytes(8, "little") + body)
        # The old number goes first and the new one comes last: a reader in between sees a checksum that does not fit.
        _CHECK.pack_into(self._memory, slot, 0, 0, 0)
        self._memory[slot + _CHECK.size : slot + _CHECK.size + len(body)] = body
        _CHECK.pack_into(self._memory, slot, check, len(body), number)
        _HEAD.pack_into(self._memory, 0, MAGIC, number)
        self._count = number

    def close(self) -> None:
        """Unmap it; the file stays."""
        self._memory.close()


class ShareReader:
    """A rank's end. missed: how many records were overwritten before they were read."""

    def __init__(self, memory: mmap.mmap, file: int) -> None:
        self._memory, self._file = memory, file
        self._read = 0
        self.missed = 0

    @classmethod
    def open(cls, path: Path) -> Self:
        """The ring that `create` made. Raises HostError."""
        return cls(*_map(path, write=False))

    @staticmethod
    def create() -> Path:
        """A new, empty ring that only this user can read. Raises HostError."""
        folder = Path("/dev/shm")
        if not os.access(folder, os.W_OK):
            folder = Path(tempfile.gettempdir())
        path = folder / f"rankclock-{os.getpid()}-{secrets.token_hex(8)}"
        try:
            with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600), "wb") as file:
                file.write(_HEAD.pack(MAGIC, 0).ljust(FILE_BYTES, b"\0"))
        except OSError as error:
            raise HostError(f"shared memory {path} cannot be made: {error.strerror}") from error
        return path

    def newest(self) -> Published | None:
        """The newest record; does not count as read."""
        count = _HEAD.unpack_from(self._memory)[1]
        for number in range(count, max(count - 3, 0), -1):
            record = self._slot(number)
            if record is not None:
                return record
        return None

    def fresh(self) -> list[Published]:
        """The records since the last call, oldest first."""
        count = _HEAD.unpack_from(self._memory)[1]
        first = max(self._read + 1, count - SLOTS + 2)
        self.missed += first - self._read - 1
        found = []
        for number in range(first, count + 1):
            record = self._slot(number)
            if record is None:
                self.missed += 1  # it was overwritten while we read
            else:
                found.append(record)
        self._read = count
        return found

    @property
    def path(self) -> Path:
        """Where this user's processes can open it, also when its name is gone."""
        return Path(f"/proc/{os.getpid()}/fd/{self._file}")

    def close(self) -> None:
        """Unmap it; safe to call twice."""
        self._memory.close()
        with contextlib.suppress(OSError):
            os.close(self._file)

    def _slot(self, number: int) -> Published | None:
        slot = HEAD_BYTES + (number % SLOTS) * SLOT_BYTES
        data = bytes(self._memory[slot : slot + SLOT_BYTES])
        check, length, found = _CHECK.unpack_from(data)
        body = data[_CHECK.size : _CHECK.size + length]
        if found != number or zlib.crc32(number.to_bytes(8, "little") + body) != check:
            return None
        try:
            return _decode(body)
        except DecodeError:
            return None


def _map(path: Path, *, write: bool) -> tuple[mmap.mmap, int]:
    """The mapping, and the open file. Raises HostError."""
    file = -1
    try:
        file = os.open(path, (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC)
        memory = mmap.mmap(file, FILE_BYTES, prot=mmap.PROT_READ | (mmap.PROT_WRITE if write else 0))
    except (OSError, ValueError) as error:
        if file >= 0:
            os.close(file)
        raise HostError(f"shared memory {path} cannot be opened: {error}") from error
    if memory[: len(MAGIC)] != MAGIC:
        memory.close()
        os.close(file)
        raise HostError(f"shared memory {path} is not rankclock's: it begins with other bytes")
    return memory, file


def _encode(record: Published) -> bytes:
    way = record.relation
    body = _BODY.pack(
        record.at_raw_ns,
        way is not None,
        *((way.at_ns, way.lo_ns, way.hi_ns, way.est_ns) if way else (0, 0, 0, 0)),
        *((way.slowest_ppb, way.fastest_ppb, way.rate_ppb) if way else (0.0, 0.0, 0.0)),
        way.wander_ppb_per_s if way else 0,
        record.confirmed_raw_ns,
        record.epoch,
        min(record.hops, 0xFFFF),
        min(record.exchanges, 0xFFFF),
        min(record.user_stamped, 0xFFFF),
        min(record.odd, 0xFFFF),
        record.line is not None,
        *_line_fields(record.line or _NO_LINE),
    )
    texts = (record.why, record.reference, record.line.detail if record.line else "")
    # Cut by letters and then by bytes: half a letter would be no text.
    cut = [text.encode()[:_MAX_TEXT].decode(errors="ignore").encode() for text in texts]
    return body + b"".join(bytes([len(text)]) + text for text in cut)


def _line_fields(line: ClockLine) -> tuple[object, ...]:
    return (
        line.real_ns,
        line.raw_ns,
        line.known,
        line.lo_ns or 0,
        line.hi_ns or 0,
        line.est_ns or 0,
        float("nan") if line.rate_ppb is None else line.rate_ppb,
        -1 if line.growth_ppb is None else line.growth_ppb,
        _EVENTS.index(line.event),
    )


def _decode(body: bytes) -> Published:
    try:
        fields = _BODY.unpack_from(body)
        texts, rest = [], body[_BODY.size :]
        for _ in range(3):
            texts.append(rest[1 : 1 + rest[0]].decode())
            rest = rest[1 + rest[0] :]
        at_raw_ns, related, at_ns, lo_ns, hi_ns, est_ns, slowest, fastest, likely, wander = fields[:10]
        confirmed_ns, epoch, hops, exchanges, user_stamped, odd, has_line = fields[10:17]
        relation = None
        if related:
            relation = Relation(
                at_ns=at_ns,
                lo_ns=lo_ns,
                hi_ns=hi_ns,
                est_ns=est_ns,
                slowest_ppb=slowest,
                fastest_ppb=fastest,
                rate_ppb=likely,
                wander_ppb_per_s=wander,
            )
        line = _line(fields[17:], texts[2]) if has_line else None
    except (struct.error, ValueError, IndexError) as error:
        raise DecodeError(f"not a record: {error}") from error
    return Published(
        at_raw_ns=at_raw_ns,
        relation=relation,
        line=line,
        reference=texts[1],
        epoch=epoch,
        confirmed_raw_ns=confirmed_ns,
        why=texts[0],
        hops=hops,
        exchanges=exchanges,
        user_stamped=user_stamped,
        odd=odd,
    )


def _line(fields: tuple[int, ...], detail: str) -> ClockLine:
    real_ns, raw_ns, known, lo_ns, hi_ns, est_ns, rate, growth, event = fields
    return ClockLine(
        real_ns=real_ns,
        raw_ns=raw_ns,
        lo_ns=lo_ns if known else None,
        hi_ns=hi_ns if known else None,
        est_ns=est_ns if known else None,
        rate_ppb=None if math.isnan(rate) else rate,
        event=_EVENTS[event],
        growth_ppb=None if growth < 0 else growth,
        detail=detail,
    )
