"""The events of one rank laid out for a track-event trace: spans where they nest, instants, counters, flows.

Chrome's complete events come in any order and may overlap on one thread; a Perfetto track is a stack. Decides which
spans share a track: one that would end outside of the span around it goes to a further track of the same thread.
Events without a usable time are counted, never placed. Bodies wait in a temporary file: memory is about 40 bytes an
event.
"""

from __future__ import annotations

import mmap
import tempfile
import zlib
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from rankclock.errors import DecodeError
from rankclock.traces import protobuf
from rankclock.traces.communication import integer_of, object_of
from rankclock.traces.digest import MAX_RELATIVE_NS
from rankclock.traces.microseconds import ns_of_text
from rankclock.traces.salvage import Event
from rankclock.traces.spans import Ints

__all__ = ["ARGS_IID", "Laid", "Lane", "RankEvents"]

ARGS_IID = 1
"""The interned name of the one annotation that holds an event's arguments as they were."""

_NAME_IID, _CATEGORY_IIDS, _ANNOTATIONS, _LEGACY_EVENT, _COUNTER_VALUE, _DOUBLE_VALUE = 10, 3, 4, 6, 30, 44
_SPAN, _INSTANT, _FLOW, _COUNTER = range(4)
_KINDS = {_INSTANT: "instant", _FLOW: "flow", _COUNTER: "counter"}
_AT_ONCE = 1 << 16
_SHORT = 16
_ARGS_NAME = protobuf.integer(1, ARGS_IID)

_BEGINNINGS, _ENDS, _FLOWS = frozenset("BbS"), frozenset("EeF"), frozenset("stf")
_ASYNCHRONOUS, _INSTANTS = frozenset("benSTpF"), frozenset("iIRnTp")


@dataclass(frozen=True, slots=True)
class Lane:
    """What a track shows: a thread or stream, a counter, or the asynchronous events of one category."""

    process: str
    thread: str
    what: str


class Laid(NamedTuple):
    """One entry of a track. part: which of the lane's tracks. kind: 'begin', 'end', 'instant', 'flow' or 'counter'."""

    at_ns: int
    lane: int
    part: int
    kind: str
    body: bytes


class RankEvents:
    """Takes events, batch by batch; `laid` then gives them, every track's in order. Times are moved by `shift_ns`.

    skip_zero: events at 0 have no time. flow_salt: makes the numbers of flows distinct between ranks.
    """

    def __init__(self, *, shift_ns: int, skip_zero: bool, flow_salt: int = 0) -> None:
        self._shift_ns, self._skip_zero, self._flow_salt = shift_ns, skip_zero, flow_salt
        self.lanes: dict[Lane, int] = {}
        self.process_names: dict[str, str] = {}
        self.thread_names: dict[tuple[str, str], str] = {}
        self.names: dict[str, int] = {}
        self.categories: dict[str, int] = {}
        self.left_out: Counter[str] = Counter()
        """Events that have no place in the output, by reason."""
        self.placed = 0
        self._starts, self._ends, self._lane, self._at = array("q"), array("q"), array("q"), array("q", [0])
        self._kind = array("b")
        self._headings: dict[tuple[str | None, str | None], bytes] = {}
        self._threads: dict[tuple[bytes, bytes], int] = {}
        self._open: dict[tuple[int, str], list[tuple[int, bytes]]] = {}
        self._spool = tempfile.TemporaryFile(prefix="rankclock-")  # noqa: SIM115 (closed with the object)

    @property
    def starts_ns(self) -> Ints:
        """When the events begin."""
        return np.frombuffer(self._starts, dtype=np.int64)

    def add(self, events: Iterable[Event]) -> None:
        """Take in some events, in file order."""
        for event in events:
            if event.ph == "M":
                self._metadata(event)
                continue
            at_ns = self._time_of(event)
            if at_ns is not None:
                self._take(event, at_ns)

    def finish(self) -> None:
        """Take in what has begun and never ended, as instants."""
        for (lane, _), pending in self._open.items():
            for at_ns, body in pending:
                self._place(_INSTANT, lane, at_ns, at_ns, body)
        self._open.clear()

    def _time_of(self, event: Event) -> int | None:
        try:
            at_ns = ns_of_text(bytes(event.ts))
        except DecodeError:
            self.left_out["a time that is no number"] += 1
            return None
        if not -MAX_RELATIVE_NS < at_ns < MAX_RELATIVE_NS or (at_ns == 0 and self._skip_zero):
            self.left_out["a time of 0 among others, or years away"] += 1
            return None
        return at_ns + self._shift_ns

    def _take(self, event: Event, at_ns: int) -> None:
        phase = event.ph
        if phase == "C":
            self._counters(event, _plain(event.pid), at_ns)
            return
        lane = self._lane_of(event)
        if phase == "X":
            try:
                length_ns = ns_of_text(bytes(event.dur))
            except DecodeError:
                length_ns = -1
            whole = 0 <= length_ns < MAX_RELATIVE_NS
            end_ns = at_ns + length_ns if whole else at_ns
            self._place(_SPAN if whole else _INSTANT, lane, at_ns, end_ns, self._body(event))
        elif phase in _BEGINNINGS:
            self._open.setdefault((lane, _pair(event)), []).append((at_ns, self._body(event)))
        elif phase in _ENDS:
            begun = self._open.get((lane, _pair(event)))
            if not begun:
                self.left_out["an end without a beginning"] += 1
                return
            start_ns, body = begun.pop()
            self._place(_SPAN, lane, start_ns, max(at_ns, start_ns), body, events=2)
        elif phase in _FLOWS:
            number = integer_of(_plain(event.id))
            salted = (number if number is not None else zlib.crc32(bytes(event.id))) ^ self._flow_salt
            legacy = protobuf.nested(
                _LEGACY_EVENT, protobuf.integer(2, ord(phase)), protobuf.integer(6, salted & (1 << 63) - 1),
                protobuf.integer(12, 1),
            )  # fmt: skip
            self._place(_FLOW, lane, at_ns, at_ns, self._heading(event) + legacy)
        elif phase in _INSTANTS:
            self._place(_INSTANT, lane, at_ns, at_ns, self._body(event))
        else:
            self.left_out[f"phase {phase[:8]!r}"] += 1

    def _counters(self, event: Event, process: str, at_ns: int) -> None:
        values = {key: value for key, value in object_of(event.args).items() if isinstance(value, int | float)}
        if not values:
            self.left_out["a counter without a number"] += 1
            return
        for count, (key, value) in enumerate(values.items()):
            lane = self._lane_number(Lane(process, f"{event.name or ''} {key}".strip(), "counter"))
            body = (
                protobuf.integer(_COUNTER_VALUE, value)
                if isinstance(value, int) and abs(value) < 1 << 63
                else protobuf.double(_DOUBLE_VALUE, float(value))
            )
            self._place(_COUNTER, lane, at_ns, at_ns, body, events=count == 0)

    def _metadata(self, event: Event) -> None:
        values = object_of(event.args)
        process, name = _plain(event.pid), values.get("name")
        if event.name == "process_name" and isinstance(name, str):
            self.process_names[process] = name
        elif event.name == "process_labels" and isinstance(values.get("labels"), str):
            self.process_names[process] = f"{self.process_names.get(process, '')} ({values['labels']})".strip()
        elif event.name == "thread_name" and isinstance(name, str):
            self.thread_names[process, _plain(event.tid)] = name
        self.placed += 1  # orders of processes and threads come out as they are anyway

    def _body(self, event: Event) -> bytes:
        args = bytes(event.args)
        if len(args) < _SHORT and args.strip() in (b"", b"{}"):
            return self._heading(event)
        return self._heading(event) + protobuf.data(_ANNOTATIONS, _ARGS_NAME + protobuf.data(9, args))

    def _heading(self, event: Event) -> bytes:
        heading = self._headings.get((event.name, event.cat))
        if heading is None:
            name = self.names.setdefault(event.name or "", len(self.names) + 1)
            heading = protobuf.integer(_NAME_IID, name)
            if event.cat:
                category = self.categories.setdefault(event.cat, len(self.categories) + 1)
                heading += protobuf.integer(_CATEGORY_IIDS, category)
            self._headings[event.name, event.cat] = heading
        return heading

    def _lane_of(self, event: Event) -> int:
        if event.ph in _ASYNCHRONOUS:
            return self._lane_number(Lane(_plain(event.pid), event.cat or "", "asynchronous"))
        key = bytes(event.pid), bytes(event.tid)
        lane = self._threads.get(key)
        if lane is None:
            lane = self._threads[key] = self._lane_number(Lane(_plain(event.pid), _plain(event.tid), "thread"))
        return lane

    def _lane_number(self, lane: Lane) -> int:
        return self.lanes.setdefault(lane, len(self.lanes))

    def _place(self, kind: int, lane: int, start_ns: int, end_ns: int, body: bytes, *, events: int = 1) -> None:
        self._starts.append(start_ns)
        self._ends.append(end_ns)
        self._lane.append(lane)
        self._kind.append(kind)
        self._at.append(self._at[-1] + len(body))
        self._spool.write(body)
        self.placed += events

    # ---- out again ----

    def laid(self) -> Iterator[Laid]:
        """Spans of one track after another, then everything else, by time."""
        if not self._starts:
            return
        self._spool.flush()
        kinds = np.frombuffer(self._kind, dtype=np.int8)
        with mmap.mmap(self._spool.fileno(), 0, access=mmap.ACCESS_READ) as bodies:
            apart: dict[tuple[int, int], int] = {}
            yield from self._laid_spans(np.flatnonzero(kinds == _SPAN), bodies, apart)
            others = np.flatnonzero(kinds != _SPAN)
            for index in others[np.argsort(self.starts_ns[others], kind="stable")].tolist():
                at_ns, lane = self._starts[index], self._lane[index]
                part = apart.get((lane, at_ns), 0) if self._kind[index] == _FLOW else 0
                body = bodies[self._at[index] : self._at[index + 1]]
                yield Laid(at_ns, lane, part, _KINDS[self._kind[index]], body)

    def _laid_spans(self, spans: Ints, bodies: Any, apart: dict[tuple[int, int], int]) -> Iterator[Laid]:
        """Each lane's spans, outer before inner. apart: gets (lane, start) of those that are not on the first track."""
        ends, lanes = np.frombuffer(self._ends, dtype=np.int64), np.frombuffer(self._lane, dtype=np.int64)
        order = spans[np.lexsort((-ends[spans], self.starts_ns[spans], lanes[spans]))]
        stacks: list[list[int]] = []
        current = -1
        for first in range(0, len(order), _AT_ONCE):
            for index in order[first : first + _AT_ONCE].tolist():
                lane, start_ns, end_ns = self._lane[index], self._starts[index], self._ends[index]
                if lane != current:
                    yield from _closed(stacks, current)
                    stacks, current = [], lane
                for part, stack in enumerate(stacks):
                    while stack and stack[-1] <= start_ns:
                        yield Laid(stack.pop(), lane, part, "end", b"")
                    if not stack or end_ns <= stack[-1]:
                        break
                else:
                    part, stack = len(stacks), []
                    stacks.append(stack)
                if part:
                    apart[lane, start_ns] = part
                stack.append(end_ns)
                yield Laid(start_ns, lane, part, "begin", bodies[self._at[index] : self._at[index + 1]])
        yield from _closed(stacks, current)


def _closed(stacks: list[list[int]], lane: int) -> Iterator[Laid]:
    for part, stack in enumerate(stacks):
        while stack:
            yield Laid(stack.pop(), lane, part, "end", b"")


def _pair(event: Event) -> str:
    """What a beginning and its end have in common."""
    return "" if event.ph in "BE" else f"{_plain(event.id)} {event.name}"


def _plain(raw: Any) -> str:
    return bytes(raw).decode("utf-8", "replace").strip('"')
