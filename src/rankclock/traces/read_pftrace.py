"""Native Perfetto traces (track events) as batches of the same events that Chrome traces give, in one pass.

Accepts packets as any writer orders them: interned or plain names, track descriptors, default and incremental clocks,
compressed packets. Stamps become CLOCK_REALTIME by the clock snapshots before them. Decides what of a damaged file is
whole; counts and places the rest. Where no snapshot leads to CLOCK_REALTIME the times stay relative, and that is said.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from rankclock.errors import DecodeError
from rankclock.traces import protobuf
from rankclock.traces.microseconds import text_of_ns
from rankclock.traces.pftrace_clocks import BOOTTIME, SnapshotClocks
from rankclock.traces.read_chrome import MAX_LOSSES, Batch, Document
from rankclock.traces.salvage import Event, Loss

__all__ = ["RANK_EVENT", "PftraceReader", "is_pftrace"]

RANK_EVENT = "rankclock alignment"
"""The event whose arguments say whose trace a sequence is, and how far its stamps may be off."""

MAX_PACKET = 64 << 20
"""A longer packet is damage: writers flush pages of at most some 100 KB, and frame large ones in pieces."""

MAX_BATCH = 10_000
MAX_DEPTH = 8
"""Of packets in packets and of arguments in arguments."""

_KNOWN = frozenset({1, 2, 3, 6, 8, 10, 11, 12, 13, 33, 36, 41, 42, 43, 44, 50, 51, 58, 59, 60, 87, 89, 98})
_HOUR_NS = 3_600 * 10**9
_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4


def is_pftrace(head: bytes) -> bool:
    """Whether a file that begins so is a stream of trace packets. JSON may begin with a line end, which looks alike."""
    if head[:1] != b"\n":
        return False
    seen: list[int] = []
    try:
        length, at = protobuf.number_at(head, 1)
        for number, _ in protobuf.fields(head[at : at + length]):
            seen.append(number)
        cut = len(head) < at + length
    except DecodeError:
        cut = True
    return bool(seen) and (_KNOWN.issuperset(seen) if cut else bool(_KNOWN.intersection(seen)))


@dataclass(slots=True)
class _Sequence:
    """What one writer's packets refer to: names by number, the default clock and track, clocks that count on."""

    names: dict[tuple[int, int], str] = field(default_factory=dict)
    clock: int = BOOTTIME
    track: int = 0
    counting: dict[int, list[int]] = field(default_factory=dict)
    """Clock to [its reading, ns a unit], of those whose stamps are increments."""


@dataclass(slots=True)
class _Track:
    process: str = ""
    thread: str = ""
    name: str = ""
    parent: int = 0
    stack: list[tuple[Document, int | None, tuple[str, str, bytes]]] = field(default_factory=list)


class PftraceReader:
    """Iterate over it once for the batches; then `documents`, `losses`, `odd` and `notes` are complete.

    A sequence whose rank rankclock wrote down is a document of its own; all others are one.
    """

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self.size = 0
        self.documents: list[Document] = []
        self.losses: list[Loss] = []
        self.loss_lines: list[int] = []
        self.reasons: Counter[str] = Counter()
        self.odd: Counter[str] = Counter()
        self.notes: list[str] = []
        self._clocks = SnapshotClocks()
        self._sequences: dict[int, _Sequence] = {}
        self._tracks: dict[int, _Track] = {}
        self._own: dict[int, Document] = {}
        self._shared: Document | None = None
        self._ready: dict[int, list[Event]] = {}
        self._untied = 0
        self._lost = 0

    @property
    def read(self) -> int:
        """Events read, of all documents."""
        return sum(document.read for document in self.documents)

    @property
    def lost(self) -> int:
        """Events lost, of all documents."""
        return sum(document.lost for document in self.documents)

    def __iter__(self) -> Iterator[Batch]:
        for offset, packet in self._packets():
            try:
                self._packet(packet, 0)
            except DecodeError as error:
                self._lose(offset, len(packet), str(error) if "without" in str(error) else "a packet that is not whole")
            if sum(map(len, self._ready.values())) >= MAX_BATCH:
                yield from self._batches()
        for track in self._tracks.values():
            for document, start_ns, what in track.stack:
                self._give(document, track, "X", start_ns, what)
        if self._lost:
            # Whose events they were cannot be known of most: they are counted once.
            (self.documents[0] if self.documents else self._rest()).lost += self._lost
        if self._untied:
            self.notes.append(f"{self._untied} stamps of clocks that no snapshot ties to CLOCK_REALTIME")
        yield from self._batches()

    def _batches(self) -> Iterator[Batch]:
        for document in self.documents:
            events = self._ready.pop(document.index, [])
            if events:
                document.read += len(events)
                yield Batch(document=document, events=events)

    # ---- packets ----

    def _packets(self) -> Iterator[tuple[int, bytes]]:
        text, offset = b"", 0
        for piece in self._pieces:
            text, at = text + piece, 0
            self.size += len(piece)
            while (found := _packet_at(text, at)) is not None:
                start, end = found
                if end < 0:
                    self._lose(offset + at, len(text) - at, "bytes that are no packet, and all that follows")
                    self.notes.append(f"cut at byte {offset + at}, where no packet begins")
                    return
                yield offset + at, text[start:end]
                at = end
            text, offset = text[at:], offset + at
        if text:
            self._lose(offset, len(text), "the file ends inside an event")
            self.notes.append(f"the file ends inside a packet: cut at byte {self.size}")

    def _lose(self, offset: int, length: int, why: str) -> None:
        self._lost += 1
        self.reasons[why] += 1
        if len(self.losses) < MAX_LOSSES:
            self.losses.append(Loss(offset=offset, length=length, events=1, why=why))
            self.loss_lines.append(1)

    def _packet(self, packet: bytes, depth: int) -> None:
        parts = dict(protobuf.fields(packet))
        number = _whole(parts.get(10))
        state = self._sequences.get(number)
        if state is None or parts.get(41) or _whole(parts.get(13)) & 1:
            # Clocks outlive it: only names and defaults are to be forgotten.
            state = self._sequences[number] = _Sequence(counting=state.counting if state else {})
        readers: tuple[tuple[int, Callable[[bytes, int, _Sequence], None]], ...] = (
            (59, self._defaults), (12, self._names), (6, self._snapshot), (60, self._described),
        )  # fmt: skip
        for kind, read in readers:
            value = parts.get(kind)
            if isinstance(value, bytes):
                read(value, number, state)
        packed, event = parts.get(50), parts.get(11)
        if isinstance(packed, bytes) and depth < MAX_DEPTH:
            for inner in _unpacked(packed):
                self._packet(inner, depth + 1)
        if isinstance(event, bytes):
            self._event(event, number, state, self._stamp(parts, number, state))

    def _defaults(self, text: bytes, _: int, state: _Sequence) -> None:
        for number, value in protobuf.fields(text):
            if number == 58:
                state.clock = _whole(value)
            elif number == 11 and isinstance(value, bytes):
                state.track = _whole(dict(protobuf.fields(value)).get(11))

    def _names(self, text: bytes, _: int, state: _Sequence) -> None:
        for kind, value in protobuf.fields(text):
            if kind in (1, 2, 3, 29) and isinstance(value, bytes):
                entry = dict(protobuf.fields(value))
                state.names[kind, _whole(entry.get(1))] = _text(entry.get(2))

    def _described(self, text: bytes, _: int, __: _Sequence) -> None:
        parts = dict(protobuf.fields(text))
        track = self._tracks.setdefault(_whole(parts.get(1)), _Track())
        track.parent = _whole(parts.get(5)) or track.parent
        track.name = _text(parts.get(2)) or _text(parts.get(10)) or track.name
        for kind in (3, 4):
            value = parts.get(kind)
            if isinstance(value, bytes):
                inner = dict(protobuf.fields(value))
                track.process = str(_whole(inner.get(1)))
                track.thread = str(_whole(inner.get(2))) if kind == 4 else ""
                track.name = _text(inner.get(5 if kind == 4 else 6)) or track.name

    # ---- clocks ----

    def _snapshot(self, text: bytes, number: int, state: _Sequence) -> None:
        readings = {}
        for kind, value in protobuf.fields(text):
            if kind == 1 and isinstance(value, bytes):
                clock = {key: _whole(one) for key, one in protobuf.fields(value)}
                unit_ns = clock.get(4) or 1
                at_ns = clock.get(2, 0) * unit_ns
                if clock.get(3):
                    state.counting[clock.get(1, 0)] = [at_ns, unit_ns]
                readings[self._clocks.clock(clock.get(1, 0), number)] = at_ns
        self._clocks.take(readings)

    def _stamp(self, parts: dict[int, int | bytes], number: int, state: _Sequence) -> tuple[int, bool]:
        """(ns, whether they count from 1970)."""
        stamp = parts.get(8)
        if not isinstance(stamp, int):
            raise DecodeError("an event without a time stamp")
        clock = _whole(parts.get(58)) or state.clock
        counting = state.counting.get(clock)
        if counting is not None:
            counting[0] += stamp * counting[1]
            stamp = counting[0]
        found = self._clocks.realtime_ns(self._clocks.clock(clock, number), stamp)
        self._untied += found is None
        return (stamp, False) if found is None else (found, True)

    # ---- events ----

    def _rest(self) -> Document:
        if self._shared is None:
            self._shared = Document(index=len(self.documents), events_start=0)
            self.documents.append(self._shared)
        return self._shared

    def _event(self, text: bytes, number: int, state: _Sequence, stamp: tuple[int, bool]) -> None:
        parts: dict[int, Any] = {}
        notes: list[bytes] = []
        for kind, value in protobuf.fields(text):
            if kind == 4 and isinstance(value, bytes):
                notes.append(value)
            parts[kind] = value
        name = _text(parts.get(23)) or state.names.get((2, _whole(parts.get(10))), "")
        category = _text(parts.get(22)) or state.names.get((1, _first(parts.get(3))), "")
        track = self._tracks.setdefault(_whole(parts.get(11)) or state.track, _Track())
        args = _args(notes, state)
        if name == RANK_EVENT and number not in self._own:
            self._own[number] = Document(index=len(self.documents), events_start=0)
            self._own[number].values.update(_object(args))
            self.documents.append(self._own[number])
            return
        document = self._own.get(number) or self._rest()
        at_ns = self._relative_to_base(document, stamp)
        kind = _whole(parts.get(9))
        what = (name, category, args)
        if kind == _BEGIN:
            track.stack.append((document, at_ns, what))
        elif kind == _END:
            if not track.stack:
                raise DecodeError("an end without a beginning")
            document, start_ns, what = track.stack.pop()
            self._give(document, track, "X", start_ns, what, end_ns=at_ns)
        elif kind == _COUNTER:
            number_now = _signed(parts[30]) if 30 in parts else _double(parts.get(44))
            self._give(document, track, "C", at_ns, (track.name, category, json.dumps({"value": number_now}).encode()))
        else:
            legacy = parts.get(6)
            phase = _whole(dict(protobuf.fields(legacy)).get(2)) if isinstance(legacy, bytes) else 0
            self._give(document, track, chr(phase) if 32 < phase < 127 else "i", at_ns, what)

    def _relative_to_base(self, document: Document, stamp: tuple[int, bool]) -> int | None:
        """Doubles of µs since 1970 have steps of 0.25 µs: stamps are handed on relative to an hour near them."""
        at_ns, since_1970 = stamp
        if since_1970 and "baseTimeNanoseconds" not in document.values and not document.read:
            document.values["baseTimeNanoseconds"] = at_ns // _HOUR_NS * _HOUR_NS
        base_ns = document.values.get("baseTimeNanoseconds")
        if (base_ns is not None) != since_1970:
            return None
        return at_ns - (base_ns or 0)

    def _give(
        self,
        document: Document,
        track: _Track,
        phase: str,
        at_ns: int | None,
        what: tuple[str, str, bytes],
        *,
        end_ns: int | None = None,
    ) -> None:
        name, category, args = what
        around = self._tracks.get(track.parent, track)
        length = b"" if at_ns is None or end_ns is None else text_of_ns(end_ns - at_ns)
        event = Event(
            ph=phase,
            cat=category or None,
            name=name,
            ts=msgspec.Raw(b"" if at_ns is None else text_of_ns(at_ns)),
            dur=msgspec.Raw(length),
            pid=msgspec.Raw((track.process or around.process or "0").encode()),
            tid=msgspec.Raw((track.thread or json.dumps(track.name)).encode()),
            args=msgspec.Raw(args),
        )
        self._ready.setdefault(document.index, []).append(event)


def _packet_at(text: bytes, at: int) -> tuple[int, int] | None:
    """(start, end) of the packet framed at a place; None where more bytes are needed; end -1 where there is none."""
    if at >= len(text):
        return None
    if text[at] != 0x0A:
        return at, -1
    try:
        length, start = protobuf.number_at(text, at + 1)
    except DecodeError:
        return None if len(text) - at <= protobuf.MAX_VARINT_BYTES else (at, -1)
    if length > MAX_PACKET:
        return at, -1
    return (start, start + length) if start + length <= len(text) else None


def _unpacked(packed: bytes) -> Iterator[bytes]:
    try:
        text = zlib.decompressobj().decompress(packed, MAX_PACKET)
    except zlib.error as error:
        raise DecodeError(f"compressed packets: {error}") from error
    for number, value in protobuf.fields(text):
        if number == 1 and isinstance(value, bytes):
            yield value


def _args(notes: list[bytes], state: _Sequence) -> bytes:
    """Debug annotations as the JSON of an event's arguments; a single one that holds such JSON as it is."""
    found: dict[str, Any] = {}
    for note in notes:
        parts = dict(protobuf.fields(note))
        name = _text(parts.get(10)) or state.names.get((3, _whole(parts.get(1))), "")
        legacy = parts.get(9)
        if isinstance(legacy, bytes) and name == "args" and len(notes) == 1:
            return legacy
        found[name] = _value(parts, state, 0)
    return json.dumps(found).encode() if found else b""


def _value(parts: dict[int, int | bytes], state: _Sequence, depth: int) -> Any:
    simple: dict[int, Callable[[Any], Any]] = {
        2: bool, 3: _whole, 4: _signed, 5: _double, 6: _text, 7: _whole, 9: _object,
        17: lambda value: state.names.get((29, _whole(value)), ""),
    }  # fmt: skip
    for kind, value in parts.items():
        if kind in simple:
            return simple[kind](value)
        if kind == 11 and isinstance(value, bytes) and depth < MAX_DEPTH:
            inner = dict(protobuf.fields(value))
            name = _text(inner.get(10)) or state.names.get((3, _whole(inner.get(1))), "")
            return {name: _value(inner, state, depth + 1)}
    return None


def _object(text: Any) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(text) if isinstance(text, bytes) else None
    except (msgspec.DecodeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _signed(value: Any) -> int:
    number = _whole(value)
    return number - (1 << 64) if number >> 63 else number


def _double(value: Any) -> float:
    number: float = struct.unpack("<d", struct.pack("<Q", _whole(value)))[0]
    return number


def _first(value: Any) -> int:
    """The first of repeated numbers, packed or not."""
    return protobuf.number_at(value, 0)[0] if isinstance(value, bytes) and value else _whole(value)


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""
