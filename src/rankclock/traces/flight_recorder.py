"""Dumps of torch's flight recorder, as JSON or pickle: when each rank created each collective, and when it was over.

A pickle is opened for plain containers only; whatever names a class or a function in it is refused, nothing is called.
Entries of gloo have only the time of creation: they order enqueuing and bound nothing, and the digest says so.
"""

from __future__ import annotations

import io
import json
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rankclock.errors import UserError
from rankclock.traces.communication import elements_of, integer_of
from rankclock.traces.digest import TraceDigest, rank_of_name
from rankclock.traces.kinds import Kind, kind_of_name, peers_of_name
from rankclock.traces.source import ByteSource
from rankclock.traces.spans import FLIGHT_SLACK_NS, NO_END, NO_SEQUENCE, UNKNOWN_SIZE, Columns, Span, Token

__all__ = ["UNBOUNDED", "digest_flight", "is_flight", "load_plain_pickle"]

UNBOUNDED = "unbounded: entries with creation times only (gloo's flight recorder) order enqueuing and bound no clock"

MAX_DUMP = 1 << 30
"""A dump of 2,000 entries has about 1 MB; a gigabyte is another kind of file."""

_FIRST_NS = 946_684_800_000_000_000


def is_flight(head: bytes) -> bool:
    """Whether a file that begins so may be a dump: a pickle, or a JSON object that shows a dump's keys early."""
    if head[:1] == b"\x80":
        return True
    return (b'"entries"' in head or b'"comm_lib_version"' in head) and b"traceEvents" not in head


def load_plain_pickle(data: bytes) -> Any:
    """What a pickle of plain containers holds. Raises ValueError, nothing else, and executes nothing."""
    try:
        return _PlainUnpickler(io.BytesIO(data)).load()
    except Exception as error:  # a pickle may fail in any way that its bytes choose
        raise ValueError(f"{type(error).__name__}: {error}") from None


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        raise pickle.UnpicklingError(f"it wants to load {module_name[:40]}.{global_name[:40]}, which a dump never does")


def digest_flight(path: Path, *, rank: int | None = None) -> TraceDigest:
    """Read a dump. Raises UserError where it is none."""
    source = ByteSource(path)
    data = _read(path, source)
    dump = _load(path, data)
    entries = dump.get("entries")
    if not isinstance(entries, list):
        raise UserError(f"{path}: no flight recorder dump: it has no list 'entries'; found keys {sorted(dump)[:8]}")
    if rank is None:
        rank, rank_from = rank_of_name(path.name), "file name"
        rank_from = rank_from if rank is not None else ""
    else:
        rank_from = "user"
    spans, lost = [], 0
    for entry in entries:
        span = _span(entry)
        if span is None:
            lost += 1
        else:
            spans.append(span)
    columns = Columns.of(spans)
    ended = [span.end_ns for span in spans if span.end_ns < NO_END]
    notes = [source.broken] if source.broken else []
    if spans and not ended:
        notes.append(UNBOUNDED)
    return TraceDigest(
        path=path,
        form="flight recorder",
        size=len(data),
        packing=source.packing,
        rank=rank,
        rank_from=rank_from,
        groups=_groups(dump.get("pg_config")),
        read=len(spans),
        lost=lost,
        reasons={"an entry without a usable creation time": lost} if lost else {},
        notes=tuple(notes),
        valid_spans=len(ended),
        first_ns=int(columns.start_ns[0]) if spans else None,
        last_ns=max([*ended, int(columns.start_ns[-1])]) if spans else None,
        collectives=columns,
    )


def _read(path: Path, source: ByteSource) -> bytes:
    pieces, size = [], 0
    for piece in source:
        size += len(piece)
        if size > MAX_DUMP:
            raise UserError(f"{path}: more than {MAX_DUMP} bytes: no flight recorder dump is as large")
        pieces.append(piece)
    return b"".join(pieces)


def _load(path: Path, data: bytes) -> Mapping[str, Any]:
    try:
        value = (
            load_plain_pickle(data)
            if data[:1] == b"\x80"
            else json.loads(data.decode("utf-8", "replace"), strict=False)
        )
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not a whole flight recorder dump ({str(error)[:160]}); dump it again") from None
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise UserError(f"{path}: no flight recorder dump: an object is expected, found {type(value).__name__}")
    return value


def _span(entry: Any) -> Span | None:
    """The span of an entry: from its creation to when the watchdog found it over."""
    if not isinstance(entry, dict) or not isinstance(entry.get("profiling_name"), str):
        return None
    created = _instant(entry.get("time_created_ns"))
    if created is None:
        return None
    completed = _instant(entry.get("time_discovered_completed_ns"))
    name = entry["profiling_name"]
    one_to_one = entry.get("is_p2p") is True
    sequence = integer_of(entry.get("p2p_seq_id" if one_to_one else "collective_seq_id"))
    source, destination = peers_of_name(name) or (-1, -1)
    kind = kind_of_name(name)
    sizes = entry.get("input_sizes")
    size = elements_of(sizes) if sizes else UNKNOWN_SIZE
    token = Token(
        kind=Kind.OTHER if kind is Kind.ALL_TO_ALL else kind,  # an entry does not tell whether all splits are non-zero
        group=_group_name(entry.get("process_group")),
        size=size,
        source=source,
        destination=destination,
    )
    return Span(
        token=token,
        sequence=NO_SEQUENCE if sequence is None else sequence,
        start_ns=created,
        end_ns=NO_END if completed is None or completed < created else completed,
        slack_ns=FLIGHT_SLACK_NS,
        lane=str(integer_of(entry.get("thread_id")) or ""),
    )


def _instant(value: Any) -> int | None:
    """JSON writes 0, pickle None, for what was not recorded."""
    number = integer_of(value)
    return number if number is not None and _FIRST_NS < number < NO_END else None


def _group_name(value: Any) -> str:
    if isinstance(value, (tuple, list)) and value:
        value = value[0]
    return value if isinstance(value, str) else ""


def _groups(config: Any) -> dict[str, tuple[int, ...]]:
    groups = {}
    for name, entry in config.items() if isinstance(config, dict) else ():
        ranks = entry.get("ranks") if isinstance(entry, dict) else None
        numbers = re.findall(r"\d{1,7}", ranks) if isinstance(ranks, str) else []
        if isinstance(name, str) and numbers and "..." not in str(ranks):
            groups[name] = tuple(int(number) for number in numbers)
    return groups
