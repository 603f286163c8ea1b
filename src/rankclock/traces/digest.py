"""One pass over one trace file: who recorded it, on which clock, what was read and lost, its collectives and steps.

Decides which events have a usable time: an event at 0 among events days later has none, and no computation sees it.
Refuses to invent a rank: where neither the trace nor the file's name says one, it is unknown.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rankclock.errors import DecodeError
from rankclock.traces.communication import elements_of, integer_of, kernel_span, lane_of, object_of
from rankclock.traces.kinds import Kind, kind_of_kernel, kind_of_name
from rankclock.traces.microseconds import ns_of_text
from rankclock.traces.nccl_plugin import PluginCollectives
from rankclock.traces.read_chrome import Batch, ChromeReader, Document
from rankclock.traces.read_pftrace import PftraceReader, is_pftrace
from rankclock.traces.salvage import Event, Loss
from rankclock.traces.source import ByteSource
from rankclock.traces.spans import (
    GPU_SLACK_NS,
    HOST_SLACK_NS,
    NO_SEQUENCE,
    UNKNOWN_SIZE,
    Columns,
    Ints,
    Span,
    Token,
)
from rankclock.wire.clock_record import METADATA_KEY

__all__ = ["CLOCK_KEY", "FileDigest", "TraceDigest", "digest_file", "rank_of_name", "reader_of"]

CLOCK_KEY = METADATA_KEY
"""Top-level key under which a profiler trace carries its rank's clock record."""

ALIGNED_KEY = "rankclock_alignment"
"""Top-level key under which a trace that was aligned says how."""

FAR_NS = 3_600 * 1_000_000_000
"""An event at 0 whose trace begins more than an hour later had no time (Kineto writes 0 for 'unknown')."""

MAX_RELATIVE_NS = 2**61
"""73 years from the base: farther away an event has no usable time, and sums stay within an int64."""

Floats = npt.NDArray[np.float64]

FIRST_EPOCH_NS = 946_684_800 * 1_000_000_000
"""2000-01-01: a trace without a base whose times are later counts from 1970, an earlier one from an unknown start."""

_RANK_IN_NAME = re.compile(r"(?:^|[^a-z0-9])(?:rank|worker)[-_=]?(\d{1,6})(?![0-9])|[._-]r(\d{1,6})(?=[._-])", re.I)
_KERNEL = ("kernel", "Kernel")
_TELLING = ("nccl", "gloo:", "c10d::", "record_param_comms", "ProfilerStep#")
"""How the names begin of the spans that are looked at one by one."""
_STEP = re.compile(r"ProfilerStep#(\d+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceDigest:
    """What one document of one file holds. Instants are ns; `base_ns` is already in them.

    form: 'chrome', 'pftrace', 'flight recorder'. rank: None where unknown; rank_from: who says it, '' if nobody.
    realtime: instants count from 1970 on the rank's CLOCK_REALTIME; otherwise from an unknown start.
    first_ns, last_ns: the earliest start and the latest end with a usable time. window_ns: what the profiler says that
    it recorded. zero_time: events at 0, by phase. no_time: events whose ts is no number; no_duration: complete events
    whose duration is negative or no number. enqueued: spans that only enqueue. steps: (number, start, end).
    busy_ns: (n, 2) merged stretches in which this rank computed, for telling exposed waiting; None if not asked for.
    clock_record, aligned: what the trace carries of ours. events_at: the bytes of the unpacked file between which the
    event list lies; None where it does not end.
    """

    path: Path
    form: str = "chrome"
    document: int = 0
    documents: int = 1
    size: int
    packing: str = "plain"
    rank: int | None
    rank_from: str
    world_size: int | None = None
    host: str | None = None
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    base_ns: int | None = None
    realtime: bool = True
    display_unit: str | None = None
    phases: Mapping[str, int] = field(default_factory=dict)
    read: int
    lost: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)
    odd: Mapping[str, int] = field(default_factory=dict)
    losses: tuple[tuple[int, Loss], ...] = ()
    notes: tuple[str, ...] = ()
    valid_spans: int = 0
    zero_time: Mapping[str, int] = field(default_factory=dict)
    no_time: int = 0
    no_duration: int = 0
    first_ns: int | None = None
    last_ns: int | None = None
    window_ns: tuple[int, int] | None = None
    longest_ns: int = 0
    collectives: Columns
    enqueued: int = 0
    steps: tuple[tuple[int, int, int], ...] = ()
    busy_ns: Ints | None = None
    clock_record: Any = None
    aligned: Any = None
    events_at: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDigest:
    """The documents of one file; none where it holds no trace, with the reasons in `notes`."""

    path: Path
    traces: tuple[TraceDigest, ...]
    notes: tuple[str, ...]


def digest_file(path: Path, *, rank: int | None = None, busy: bool = False) -> FileDigest:
    """Read a Chrome or Perfetto trace. rank: the user's word. busy: collect when it computed. Raises UserError."""
    source = ByteSource(path)
    reader = reader_of(source)
    collectors: dict[int, _Collector] = {}
    for batch in reader:
        collector = collectors.get(batch.document.index)
        if collector is None:
            collector = collectors[batch.document.index] = _Collector(busy=busy)
        collector.add(batch)
    notes = [*reader.notes, *([source.broken] if source.broken else [])]
    context = _Context(path=path, source=source, reader=reader, rank=rank, notes=tuple(notes))
    with_events = [document for document in reader.documents if document.events_start is not None]
    if with_events and not reader.read and not reader.lost:
        notes.append("the list of events is empty")
    traces = tuple(
        collectors.get(document.index, _Collector(busy=False)).finish(document, context)
        for document in with_events
        if document.read or document.lost
    )
    return FileDigest(path=path, traces=traces, notes=tuple(notes))


def reader_of(source: ByteSource) -> ChromeReader | PftraceReader:
    """The reader of events that a file needs, by how it begins."""
    pieces = iter(source)
    first = next(pieces, b"")
    kind = PftraceReader if is_pftrace(first) else ChromeReader
    return kind(chain([first], pieces))


def rank_of_name(name: str) -> int | None:
    """The rank that a file's name states ('rank3.json', 't.r3.json.gz'), None where it states none."""
    found = {int(number) for match in _RANK_IN_NAME.finditer(name) for number in match.groups() if number}
    return found.pop() if len(found) == 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Context:
    path: Path
    source: ByteSource
    reader: ChromeReader | PftraceReader
    rank: int | None
    notes: tuple[str, ...]


@dataclass(slots=True)
class _Extent:
    """The earliest and the latest instant, exact, kept apart from events at 0."""

    first_ns: int | None = None
    last_ns: int | None = None

    def take(self, start_ns: int, end_ns: int) -> None:
        self.first_ns = start_ns if self.first_ns is None else min(self.first_ns, start_ns)
        self.last_ns = end_ns if self.last_ns is None else max(self.last_ns, end_ns)


@dataclass(slots=True)
class _Collector:
    """Takes the events of one document, batch by batch. All instants are relative to the document's base."""

    busy: bool
    phases: Counter[str] = field(default_factory=Counter)
    extent: _Extent = field(default_factory=_Extent)
    zero: Counter[str] = field(default_factory=Counter)
    zero_spans: int = 0
    zero_reach_ns: int = 0
    timed_spans: int = 0
    no_time: int = 0
    no_duration: int = 0
    longest_ns: int = 0
    enqueued: int = 0
    spans: list[Span] = field(default_factory=list)
    orphans: list[tuple[int, str]] = field(default_factory=list)
    """Kernels without a sequence of their own: index in `spans` and the External id of the call that launched them."""
    calls: dict[str, dict[str, Any]] = field(default_factory=dict)
    steps: list[tuple[int, int, int]] = field(default_factory=list)
    window: tuple[int, int] | None = None
    plugin: PluginCollectives = field(default_factory=PluginCollectives)
    gpu_busy: list[tuple[float, float]] = field(default_factory=list)
    threads: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def add(self, batch: Batch) -> None:
        phases = Counter(event.ph for event in batch.events)
        self.phases.update(phases)
        timed = [event for event in batch.events if event.ph != "M"]
        if phases["b"] or phases["e"]:
            taken = [self.plugin.take(event) for event in timed if event.ph in ("b", "e")]
            self.spans += [span for span in taken if span is not None]
        if timed and not self._add_usual(timed):
            for event in timed:
                self._add_any(event)

    def _add_usual(self, timed: list[Event]) -> bool:
        """The whole batch at once, where every time in it is a usual number; otherwise nothing is done.

        Doubles only choose which events need looking at (2 ns apart they are told from each other exactly).
        """
        spans = [event for event in timed if event.ph == "X"]
        try:
            instants = np.array([float(event.ts) for event in timed if event.ph != "X"])
            starts = np.array([float(event.ts) for event in spans])
            lengths = np.array([float(event.dur) for event in spans])
        except (ValueError, TypeError):
            return False
        ends = starts + lengths
        for values in (instants, starts, ends):
            if len(values) and not (np.abs(values).max() < MAX_RELATIVE_NS / 1000 and np.all(values)):
                return False
        if len(lengths) and lengths.min() < 0:
            return False
        others = [event for event in timed if event.ph != "X"] if len(instants) else []
        for index in _near_ends(instants, instants):
            at_ns = ns_of_text(bytes(others[index].ts))
            self.extent.take(at_ns, at_ns)
        for index in _near_ends(starts, ends):
            start_ns = ns_of_text(bytes(spans[index].ts))
            self.extent.take(start_ns, start_ns + ns_of_text(bytes(spans[index].dur)))
        self.timed_spans += len(spans)
        if len(lengths):
            self.longest_ns = max(self.longest_ns, round(lengths.max() * 1000))
        if self.busy:
            self._computing(spans, starts, ends)
        for event in spans:
            if (event.name or "").startswith(_TELLING) or event.cat == "Trace":
                start_ns = ns_of_text(bytes(event.ts))
                self._telling(event, start_ns, start_ns + ns_of_text(bytes(event.dur)))
        return True

    def _add_any(self, event: Event) -> None:
        try:
            start_ns = ns_of_text(bytes(event.ts))
        except DecodeError:
            self.no_time += 1
            return
        if not -MAX_RELATIVE_NS < start_ns < MAX_RELATIVE_NS:
            self.no_time += 1
            return
        if start_ns == 0:
            self.zero[event.ph] += 1
        if event.ph != "X":
            if start_ns:
                self.extent.take(start_ns, start_ns)
            return
        try:
            length_ns = ns_of_text(bytes(event.dur))
        except DecodeError:
            length_ns = -1
        if not 0 <= length_ns < MAX_RELATIVE_NS:
            self.no_duration += 1
            if start_ns:
                self.extent.take(start_ns, start_ns)
        elif start_ns == 0:
            self.zero_spans += 1
            self.zero_reach_ns = max(self.zero_reach_ns, length_ns)
        else:
            end_ns = start_ns + length_ns
            self.timed_spans += 1
            self.extent.take(start_ns, end_ns)
            self.longest_ns = max(self.longest_ns, length_ns)
            if self.busy:
                self._computing([event], np.array([start_ns / 1000]), np.array([end_ns / 1000]))
            if (event.name or "").startswith(_TELLING) or event.cat == "Trace":
                self._telling(event, start_ns, end_ns)

    def _computing(self, spans: list[Event], starts: Floats, ends: Floats) -> None:
        """Take in when kernels and operators ran, but for communication."""
        for index, event in enumerate(spans):
            if event.cat in _KERNEL:
                if not (event.name or "").startswith("nccl"):
                    self.gpu_busy.append((starts[index], ends[index]))
            elif event.cat == "cpu_op" and not (event.name or "").startswith(_TELLING):
                self.threads.setdefault(lane_of(event), []).append((starts[index], ends[index]))

    def _telling(self, event: Event, start_ns: int, end_ns: int) -> None:
        name, category = event.name or "", event.cat or ""
        if category in _KERNEL:
            self._kernel(event, name, start_ns, end_ns)
        elif category == "cpu_op":
            self._enqueuing(event, name)
        elif name.startswith("gloo:") and category != "gpu_user_annotation":
            self._gloo(event, name, start_ns, end_ns)
        elif category == "user_annotation" and (step := _STEP.match(name)):
            self.steps.append((int(step.group(1)), start_ns, end_ns))
        elif category == "Trace":
            self.window = (start_ns, end_ns)

    def _kernel(self, event: Event, name: str, start_ns: int, end_ns: int) -> None:
        kind = kind_of_kernel(name)
        if kind is None:
            return
        args = object_of(event.args)
        span = kernel_span(kind, args, start_ns, end_ns, lane_of(event))
        if span is None:
            return
        if span.sequence == NO_SEQUENCE and "External id" in args:
            self.orphans.append((len(self.spans), str(args["External id"])))
        self.spans.append(span)

    def _enqueuing(self, event: Event, name: str) -> None:
        self.enqueued += 1
        if name == "record_param_comms":
            args = object_of(event.args)
            if "External id" in args:
                self.calls[str(args["External id"])] = args

    def _gloo(self, event: Event, name: str, start_ns: int, end_ns: int) -> None:
        kind = kind_of_name(name)
        size = elements_of(object_of(event.args).get("Input Dims")) if event.args else UNKNOWN_SIZE
        token = Token(kind=kind, group="", size=size)
        if size != 0 or kind is Kind.BARRIER:
            self.spans.append(Span(token, NO_SEQUENCE, start_ns, end_ns, HOST_SLACK_NS, lane_of(event)))

    def finish(self, document: Document, context: _Context) -> TraceDigest:
        """The digest, once the document's top-level values are all known."""
        values, reader = document.values, context.reader
        base_ns = _base_ns(values)
        info = values.get("distributedInfo")
        info = info if isinstance(info, dict) else {}
        rank, rank_from = _rank(info, context)
        first_ns, last_ns = self.extent.first_ns, self.extent.last_ns
        zero = Counter(self.zero)
        if zero and (first_ns is None or first_ns < FAR_NS) and not (first_ns is None and base_ns):
            # The trace counts from near 0 itself: an event at 0 is as good as the others.
            first_ns, last_ns = 0, max(last_ns or 0, self.zero_reach_ns)
            self.timed_spans += self.zero_spans
            zero.clear()
        shift_ns = base_ns or 0
        self._sequences_of_calls()
        return TraceDigest(
            path=context.path,
            form="chrome" if isinstance(reader, ChromeReader) else "pftrace",
            document=document.index,
            documents=len(reader.documents),
            size=reader.size,
            packing=context.source.packing,
            rank=rank,
            rank_from=rank_from,
            world_size=integer_of(info.get("world_size")),
            host=values.get("host_name") if isinstance(values.get("host_name"), str) else None,
            groups=_groups(info),
            base_ns=base_ns,
            realtime=base_ns is not None or (first_ns or 0) >= FIRST_EPOCH_NS,
            display_unit=values.get("displayTimeUnit") if isinstance(values.get("displayTimeUnit"), str) else None,
            phases=dict(self.phases),
            read=document.read,
            lost=document.lost,
            reasons=dict(reader.reasons),
            odd=dict(reader.odd),
            losses=tuple(zip(reader.loss_lines, reader.losses, strict=True)),
            notes=context.notes,
            valid_spans=self.timed_spans,
            zero_time=dict(zero),
            no_time=self.no_time,
            no_duration=self.no_duration,
            first_ns=None if first_ns is None else first_ns + shift_ns,
            last_ns=None if last_ns is None else last_ns + shift_ns,
            window_ns=None if self.window is None else (self.window[0] + shift_ns, self.window[1] + shift_ns),
            longest_ns=self.longest_ns,
            collectives=Columns.of(self.spans, shift_ns=shift_ns),
            enqueued=self.enqueued + self.plugin.enqueued_only,
            steps=tuple(sorted((number, start + shift_ns, end + shift_ns) for number, start, end in self.steps)),
            busy_ns=self._busy(shift_ns) if self.busy else None,
            clock_record=values.get(CLOCK_KEY),
            aligned=values.get(ALIGNED_KEY),
            events_at=_events_at(document),
        )

    def _sequences_of_calls(self) -> None:
        """Kernels that carry no sequence take it from the call that launched them, where the trace has that."""
        for index, external in self.orphans:
            args = self.calls.get(external)
            if args is not None:
                span = self.spans[index]
                merged = kernel_span(span.token.kind, args, span.start_ns, span.end_ns, span.lane)
                if merged is not None:
                    self.spans[index] = merged

    def _busy(self, shift_ns: int) -> Ints:
        pairs = list(self.gpu_busy)
        if not any(span.slack_ns == GPU_SLACK_NS for span in self.spans):
            # gloo's own threads copy and add while they communicate: that is not the rank's computing.
            lanes = {span.lane for span in self.spans}
            for lane, stretches in self.threads.items():
                if lane not in lanes:
                    pairs.extend(stretches)
        whole = np.rint(np.array(pairs, dtype=np.float64).reshape(-1, 2) * 1000).astype(np.int64)
        return _merged(whole) + shift_ns


def _near_ends(starts: Floats, ends: Floats) -> Ints:
    """Indices of the values within 2 ns of the earliest start or the latest end: one of them is the exact one."""
    if not len(starts):
        return np.array([], dtype=np.int64)
    return np.flatnonzero((starts <= starts.min() + 0.002) | (ends >= ends.max() - 0.002))


def _merged(pairs: Ints) -> Ints:
    """The union of half-open stretches, sorted, as few as possible."""
    if not len(pairs):
        return pairs
    pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
    reach = np.maximum.accumulate(pairs[:, 1])
    begins = np.flatnonzero(np.r_[True, pairs[1:, 0] > reach[:-1]])
    return np.column_stack([pairs[begins, 0], reach[np.r_[begins[1:] - 1, len(pairs) - 1]]])


def _rank(info: Mapping[str, Any], context: _Context) -> tuple[int | None, str]:
    if context.rank is not None:
        return context.rank, "user"
    rank = integer_of(info.get("rank"))
    if rank is not None and rank >= 0:
        return rank, "distributedInfo"
    rank = rank_of_name(context.path.name)
    return (rank, "file name") if rank is not None else (None, "")


def _base_ns(values: Mapping[str, Any]) -> int | None:
    """Kineto and Proton write it at the top, VizTracer among its metadata."""
    viztracer = values.get("viztracer_metadata")
    for holder in (values, viztracer if isinstance(viztracer, dict) else {}):
        base_ns = integer_of(holder.get("baseTimeNanoseconds"))
        if base_ns is not None and abs(base_ns) < MAX_RELATIVE_NS:
            return base_ns
    return None


def _groups(info: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    groups = {}
    entries = info.get("pg_config")
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict) and isinstance(entry.get("ranks"), list):
            ranks = [integer_of(rank) for rank in entry["ranks"]]
            groups[str(entry.get("pg_name", ""))] = tuple(rank for rank in ranks if rank is not None)
    return groups


def _events_at(document: Document) -> tuple[int, int] | None:
    if document.events_start is None or document.events_end is None:
        return None
    return document.events_start, document.events_end
