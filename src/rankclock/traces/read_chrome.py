"""Chrome traces (Kineto, VizTracer, NCCL's profiler plugin, ...) as batches of events, in one pass over the bytes.

Accepts an object with `traceEvents`, a bare list of events, several documents in one file. Memory is a few megabytes
whatever the file's size. Decides what of a damaged file is whole; counts and places what is not. Refuses nothing that
has at least one event; says what was found where there is none.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from rankclock.traces.salvage import Event, Loss, Salvaged, salvage

__all__ = ["Batch", "ChromeReader", "Document"]

MAX_VALUE = 16 << 20
"""Bytes of one top-level value beside the events that are looked through; a larger one is taken as damage."""

MAX_KEPT = 4 << 20
"""Bytes of one top-level value that are kept: our own clock record of a day fits; stack frames need not be kept."""

PHASE_WITHIN = 4096
"""Bytes within which an event shows its phase: what looks like an event without it is metadata."""

MAX_LOSSES = 100
"""Losses listed one by one; all are counted."""

_BATCH = re.compile(rb"\}\s*,\s*\{")
_SPACE = re.compile(rb"[\s\0]*")
_SEPARATORS = re.compile(rb"[\s,\0]*")
_PHASE = re.compile(rb'"ph"\s*:')
_ANY_EVENT = re.compile(rb'[,\[{]\s*(\{\s*"(?:ph|name|cat|pid|tid|ts|args|id|dur|s|bp)"\s*:)')
_BOM = b"\xef\xbb\xbf"

_events = msgspec.json.Decoder(list[Event])
_header = json.JSONDecoder(strict=False)


@dataclass(slots=True, kw_only=True)
class Document:
    """One JSON document of a file: its top-level values and where its events lie (bytes of the unpacked file)."""

    index: int
    values: dict[str, Any] = field(default_factory=dict)
    bare: bool = False
    """The document is a list of events, without an object around it."""
    start: int = 0
    events_start: int | None = None
    events_end: int | None = None
    """Where the list's closing bracket stands; None where it does not."""
    read: int = 0
    lost: int = 0

    @property
    def ended(self) -> bool:
        """Whether the closing bracket of the event list was found."""
        return self.events_end is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Some events of one document, in file order."""

    document: Document
    events: list[Event]


class ChromeReader:
    """Iterate over it once for the batches; then `documents`, `losses`, `odd` and `notes` are complete."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._text = b""
        self._cursor = 0
        self._offset = 0
        """Byte of the file at which `_text` begins."""
        self._lines = 0
        """Line ends in the file before `_text`."""
        self._final = False
        self.documents: list[Document] = []
        self.losses: list[Loss] = []
        self.loss_lines: list[int] = []
        self.reasons: Counter[str] = Counter()
        """Events lost, by reason."""
        self.odd: Counter[str] = Counter()
        """Events read although strict parsers refuse them, by reason."""
        self.notes: list[str] = []
        """What else is unusual: a list that does not end, bytes behind the last document."""

    @property
    def read(self) -> int:
        """Events read, of all documents."""
        return sum(document.read for document in self.documents)

    @property
    def lost(self) -> int:
        """Events lost, of all documents."""
        return sum(document.lost for document in self.documents)

    @property
    def size(self) -> int:
        """Bytes seen so far, unpacked."""
        return self._offset + len(self._text)

    def __iter__(self) -> Iterator[Batch]:
        while (document := self._open()) is not None:
            more = document.bare or self._keys(document)
            while more:
                document.events_start, document.events_end = self._offset + self._cursor, None
                yield from self._read_events(document)
                more = document.ended and not document.bare and self._keys(document)

    # Documents and their top-level values

    def _open(self) -> Document | None:
        """Step to the next document; None at the end of the file."""
        while True:
            self._cursor = self._skip(_SPACE)
            if self._cursor < len(self._text) or not self._more():
                break
        if self._text.startswith(_BOM, self._cursor):
            self._cursor += len(_BOM)
            return self._open()
        rest = self._text[self._cursor : self._cursor + 1]
        if not rest:
            return None
        document = Document(index=len(self.documents), start=self._offset + self._cursor)
        if rest in (b"{", b"["):
            self._cursor += 1
            document.bare = rest == b"["
            self.documents.append(document)
            return document
        start = self._offset + self._cursor
        if self._find_event(document):
            self.notes.append(f"{self._offset + self._cursor - start} bytes at byte {start} are no JSON document")
            document.bare = True
            self.documents.append(document)
            return document
        self.notes.append(f"bytes {start} to {self.size} are no JSON document")
        return None

    def _keys(self, document: Document) -> bool:
        """Read top-level values up to the next event list (True) or to the document's end (False)."""
        while True:
            self._cursor = self._skip(_SEPARATORS)
            if self._cursor >= len(self._text):
                if self._more():
                    continue
                self.notes.append("the file ends inside the document: cut, or still being written")
                return False
            if self._text[self._cursor : self._cursor + 1] == b"}":
                self._cursor += 1
                return False
            key_at = self._offset + self._cursor
            key = self._value() if self._byte() == b'"' else _BROKEN
            if isinstance(key, str) and self._byte() == b":":
                self._cursor += 1
                if key == "traceEvents" and self._byte() == b"[":
                    self._cursor += 1
                    return True
                value = self._value(keep=True)
                if value is not _BROKEN:
                    if value is not _TOO_LARGE:
                        document.values[key] = value
                    continue
            where = self._offset + self._cursor
            self.notes.append(f"the document's top level is damaged at byte {where}")
            self._cursor = max(key_at - self._offset, 0)
            return self._find_event(document)

    def _byte(self) -> bytes:
        """The next byte that is no white space, not consumed; b'' at the end."""
        while True:
            self._cursor = self._skip(_SPACE)
            if self._cursor < len(self._text) or not self._more():
                return self._text[self._cursor : self._cursor + 1]

    def _value(self, *, keep: bool = False) -> Any:
        """The JSON value at the cursor, consumed; `_BROKEN` if there is none, `_TOO_LARGE` if it is not kept."""
        self._byte()
        window = 1 << 12
        while True:
            string = self._text[self._cursor : self._cursor + window].decode("latin-1")
            try:
                value, end = _header.raw_decode(string)
            except (ValueError, RecursionError):
                value, end = _BROKEN, len(string)
            # A number that ends with the window may go on behind it.
            if value is not _BROKEN and (end < len(string) or self._final):
                self._cursor += end
                if keep and end > MAX_KEPT:
                    return _TOO_LARGE
                # Read as latin-1, so that positions are bytes; what is kept must be read as the UTF-8 that it is.
                meant = string[:end] if string.isascii() else string[:end].encode("latin-1").decode("utf-8", "replace")
                return value if string.isascii() else _header.decode(meant.strip())
            if window < len(self._text) - self._cursor:
                window *= 8
            elif window > MAX_VALUE or not self._more():
                return value
            else:
                window = max(window, len(self._text) - self._cursor)

    def _find_event(self, document: Document) -> bool:
        """Step to the next thing that looks like an event, wherever it is; events passed by are lost."""
        start, passed = self._offset + self._cursor, 0
        while True:
            # One byte back: the bracket before the first event may be the byte that was just looked at.
            for match in _ANY_EVENT.finditer(self._text, max(self._cursor - 1, 0)):
                if _PHASE.search(self._text, match.end(), match.end() + PHASE_WITHIN):
                    passed += len(_PHASE.findall(self._text, self._cursor, match.start(1)))
                    self._cursor = match.start(1)
                    self._passed_by(document, start, passed)
                    return True
            onward = max(self._cursor, len(self._text) - 2 * PHASE_WITHIN)
            passed += len(_PHASE.findall(self._text, self._cursor, onward))
            self._cursor = onward
            if not self._more():
                passed += len(_PHASE.findall(self._text, self._cursor))
                self._cursor = len(self._text)
                self._passed_by(document, start, passed)
                return False

    def _passed_by(self, document: Document, start: int, events: int) -> None:
        if events:
            length = self._offset + self._cursor - start
            loss = Loss(offset=start, length=length, events=events, why="outside of a list of events")
            self._take_losses(document, Salvaged(losses=[loss]))

    # Events

    def _read_events(self, document: Document) -> Iterator[Batch]:
        while True:
            self._cursor = self._skip(_SEPARATORS)
            cut = self._boundary()
            if cut is None and self._more():
                continue
            if cut is not None:
                try:
                    events = _events.decode(b"[" + self._text[self._cursor : cut] + b"]")
                except (msgspec.DecodeError, RecursionError):
                    pass
                else:
                    self._cursor = cut
                    yield self._batch(document, events)
                    continue
            final = self._final
            stretch = self._text[self._cursor :] if final else self._text[self._cursor : cut]
            out = salvage(stretch, self._offset + self._cursor, final=final)
            self._take_losses(document, out)
            self._cursor += out.used
            if out.events:
                yield self._batch(document, out.events)
            if out.list_ended:
                document.events_end = self._offset + self._cursor - 1
                return
            if final:
                if not document.bare or out.losses:
                    self.notes.append(f"the list of events does not end: the file was cut at byte {self.size}")
                return
            if out.used < len(stretch):
                self._more()

    def _batch(self, document: Document, events: list[Event]) -> Batch:
        phaseless = sum(1 for event in events if not event.ph)
        if phaseless:
            events = [event for event in events if event.ph]
            document.lost += phaseless
            self.reasons["an object without a phase (ph)"] += phaseless
        document.read += len(events)
        return Batch(document=document, events=events)

    def _take_losses(self, document: Document, out: Salvaged) -> None:
        self.odd.update(out.odd)
        for loss in out.losses:
            document.lost += loss.events
            self.reasons[loss.why] += loss.events
            if len(self.losses) < MAX_LOSSES:
                self.losses.append(loss)
                self.loss_lines.append(1 + self._lines + self._text.count(b"\n", 0, max(loss.offset - self._offset, 0)))

    def _boundary(self) -> int | None:
        """The end of the last object in the text that another object follows; None if there is none."""
        window = 1 << 16
        while True:
            start = max(self._cursor, len(self._text) - window)
            last = None
            for match in _BATCH.finditer(self._text, start):
                last = match
            if last is not None:
                return last.start() + 1
            if start == self._cursor:
                return None
            window *= 16

    # Bytes

    def _skip(self, pattern: re.Pattern[bytes]) -> int:
        match = pattern.match(self._text, self._cursor)
        return match.end() if match else self._cursor

    def _more(self) -> bool:
        """Take in the next piece of the file, dropping what lies before the cursor; False at the end."""
        piece = next(self._pieces, None)
        if piece is None:
            self._final = True
            return False
        self._lines += self._text.count(b"\n", 0, self._cursor)
        self._offset += self._cursor
        self._text = self._text[self._cursor :] + piece
        self._cursor = 0
        return True


_BROKEN = object()
_TOO_LARGE = object()
