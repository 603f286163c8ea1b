"""Chrome traces with every stamp in cluster time: one file each, bytes outside of the stamps untouched, or all in one.

Works on the text, in pieces: nothing is parsed but the stamps (and, to merge, process and flow numbers), so that what a
viewer shows besides time is what the profiler wrote. Durations stay: a clock 50 ppm off changes 1 ms by 50 ns. Refuses
(UserError) stamps that the alignment does not cover, lists of events that do not end, and nested "ts".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rankclock.errors import DecodeError, UserError
from rankclock.traces.digest import ALIGNED_KEY, TraceDigest
from rankclock.traces.microseconds import ns_of_text, text_of_ns
from rankclock.traces.processes import in_processes
from rankclock.traces.restamp import METADATA, event_around, restamped
from rankclock.traces.source import ByteSource
from rankclock.traces.timemap import Alignment, RankMap

__all__ = ["common_base_ns", "merged", "rewritten", "what_holds", "write_rewritten"]

PIECE = 1 << 20
OVERLAP = 4096
"""A stamp, a process number and a flow lie within this many bytes of their key."""

_KEY = re.compile(rb'("ts"\s*:\s*)')
_NUMBER = re.compile(rb'"?-?[0-9][0-9.eE+-]*"?')
_BASE = re.compile(rb'("baseTimeNanoseconds"\s*:\s*)-?[0-9]+')
_PROCESS = re.compile(rb'"pid"\s*:\s*(?:-?[0-9]+|"(?:[^"\\]|\\.)*")')
_FLOW = re.compile(rb'"ph"\s*:\s*"[stf]"\s*,\s*"id"\s*:\s*([0-9]+)')
_ESCAPED_STAMP, _ESCAPED_PROCESS = b'\\"ts"', b'\\"pid"'
"""Keys inside of texts: rare, and then the work on bytes is refused."""


def common_base_ns(digests: Mapping[int, TraceDigest]) -> int:
    """The baseTimeNanoseconds of all outputs: the earliest of the inputs', 0 where one has none."""
    bases = [digest.base_ns for digest in digests.values()]
    return 0 if any(base is None for base in bases) else min(base for base in bases if base is not None)


def rewritten(
    digest: TraceDigest, rank_map: RankMap, alignment: Alignment, base_ns: int
) -> Iterator[bytes | bytearray]:
    """The pieces of one trace in cluster time. Raises UserError before the first where it cannot be."""
    begin, end = _events_of(digest, rank_map)
    stamps = _Stamps(digest=digest, rank_map=rank_map, base_ns=base_ns)
    head = json.dumps({ALIGNED_KEY: what_holds(alignment, rank_map)}, ensure_ascii=True).encode()[1:-1]
    first = True
    for where, piece in _regions(digest.path, begin, end):
        if where == "events":
            yield stamps.replaced(piece)
            continue
        text = _BASE.sub(b"\\g<1>%d" % base_ns, piece)
        at = text.index(b"{") + 1 if first and text.lstrip()[:1] == b"{" else 0
        yield text[:at] + (head + b"," if at else b"") + text[at:]
        first = False


def write_rewritten(
    digests: Mapping[int, TraceDigest], alignment: Alignment, folder: Path, *, jobs: int | None = None
) -> None:
    """Every trace in cluster time as rank<R>.json in a folder, in several processes if it pays. Raises UserError."""
    base_ns = common_base_ns(digests)
    work = [
        partial(_write_one, digest, alignment.ranks[rank], alignment, base_ns, folder / f"rank{rank}.json")
        for rank, digest in digests.items()
    ]
    in_processes(work, jobs=jobs, size=sum(digest.size for digest in digests.values()))


def _write_one(digest: TraceDigest, rank_map: RankMap, alignment: Alignment, base_ns: int, path: Path) -> None:
    with path.open("wb") as file:
        file.writelines(rewritten(digest, rank_map, alignment, base_ns))


def merged(digests: Mapping[int, TraceDigest], alignment: Alignment, base_ns: int) -> Iterator[bytes]:
    """One Chrome trace of all ranks in cluster time. Processes and flows get numbers of their own, labelled by rank."""
    regions = {rank: _events_of(digest, alignment.ranks[rank]) for rank, digest in digests.items()}
    how = {
        "reference": alignment.reference,
        "method": alignment.method,
        "ranks": [what_holds(alignment, alignment.ranks[rank]) for rank in digests],
    }
    head = {"displayTimeUnit": "ms", "baseTimeNanoseconds": base_ns, ALIGNED_KEY: how}
    yield json.dumps(head, ensure_ascii=True).encode()[:-1] + b', "traceEvents": [\n'
    numbers = _Numbers()
    comma = b""
    for rank, digest in digests.items():
        stamps = _Stamps(digest=digest, rank_map=alignment.ranks[rank], base_ns=base_ns)
        begin, end = regions[rank]
        for where, piece in _regions(digest.path, begin, end):
            if where == "events":
                if _ESCAPED_PROCESS in piece:
                    raise UserError(f'{digest.path}: "pid" in a text: --format rewritten or archive can take it')
                own = numbers.replaced(bytes(stamps.replaced(piece)), rank)
                if comma and own.strip():
                    yield comma
                    comma = b""
                yield own
        comma = b",\n"
    for label in numbers.labels():
        yield b",\n" + json.dumps(label, ensure_ascii=True).encode()
    yield b"\n]}\n"


def what_holds(alignment: Alignment, rank_map: RankMap) -> dict[str, Any]:
    """What a reader needs to judge the stamps."""
    first, last = rank_map.pieces[0].start_ns, rank_map.pieces[-1].end_ns
    return {
        "rank": rank_map.rank,
        "reference": alignment.reference,
        "method": rank_map.method,
        "bound_ns": rank_map.worst_bound_ns(first, last),
        "assumptions": list(rank_map.assumptions),
        "notes": list(rank_map.notes),
    }


def _events_of(digest: TraceDigest, rank_map: RankMap) -> tuple[int, int]:
    if digest.form == "pftrace":
        raise UserError(f"{digest.path}: only Chrome traces are rewritten as text; use --format pftrace")
    if digest.form != "chrome":
        raise UserError(f"{digest.path}: a {digest.form} dump has no events to rewrite: leave it out")
    if not rank_map.known:
        raise UserError(f"{digest.path}: rank {rank_map.rank} has no cluster time: {rank_map.unknown_why}")
    if digest.events_at is None or digest.documents > 1:
        raise UserError(
            f"{digest.path}: the list of events does not end, or there are several: `rankclock trace info` says what "
            "is lost; --format archive takes the file as it is"
        )
    return digest.events_at


def _regions(path: Path, begin: int, end: int) -> Iterator[tuple[str, bytes]]:
    """The unpacked file as ('text'|'events', bytes); events in large pieces that end between two of them."""
    at, size = 0, 0
    held: list[bytes] = []
    for chunk in ByteSource(path):
        for where, part in _cut(chunk, at, begin, end):
            if where == "text":
                if held:
                    yield "events", b"".join(held)
                    held, size = [], 0
                yield where, part
                continue
            held.append(part)
            size += len(part)
            if size >= PIECE:
                # Between two events, and far from a key whose value is still to come.
                whole = b"".join(held)
                cut = whole.rfind(b"}", 0, len(whole) - OVERLAP) + 1
                following = whole.find(b"{", cut)
                if cut and following > 0 and whole[cut:following].strip() == b",":
                    yield "events", whole[:cut]
                    whole = whole[cut:]
                held, size = [whole], len(whole)
        at += len(chunk)
    if held:
        yield "events", b"".join(held)


def _cut(chunk: bytes, at: int, begin: int, end: int) -> Iterable[tuple[str, bytes]]:
    first, last = min(max(begin - at, 0), len(chunk)), min(max(end - at, 0), len(chunk))
    return [
        (where, part)
        for where, part in (("text", chunk[:first]), ("events", chunk[first:last]), ("text", chunk[last:]))
        if part
    ]


@dataclass(slots=True, kw_only=True)
class _Stamps:
    """Brings the stamps of one trace into cluster time."""

    digest: TraceDigest
    rank_map: RankMap
    base_ns: int

    def replaced(self, piece: bytes) -> bytes | bytearray:
        """The piece with its stamps in cluster time; those that are 0 or no time stay as they are."""
        own_base_ns = self.digest.base_ns or 0
        found = restamped(piece, self.rank_map, own_base_ns=own_base_ns, base_ns=self.base_ns)
        return self.one_by_one(piece) if found is None else found

    def one_by_one(self, piece: bytes) -> bytes:
        """The same, stamp by stamp: for what is unusual, and to say what is wrong."""
        parts = _KEY.split(piece)  # before, key, behind, key, behind, ...
        behind = parts[2::2]
        if _ESCAPED_STAMP in piece:
            raise UserError(f'{self.digest.path}: "ts" in a text: --format archive takes the file as it is')
        if len(behind) > piece.count(b'"ph"'):
            raise UserError(f'{self.digest.path}: "ts" inside of arguments: --format archive takes the file as it is')
        if not behind:
            return piece
        own_base_ns = self.digest.base_ns or 0
        texts = [_number_of(part) for part in behind]
        local_ns = np.array([_local_ns(text, own_base_ns) for text in texts], dtype=np.int64)
        timed = local_ns != _NO_TIME
        mapped = self.rank_map.to_cluster(local_ns)
        outside = np.flatnonzero(timed & ~mapped.known).tolist()
        if not all(METADATA.search(event_around(parts[2 * index], parts[2 * index + 2])) for index in outside):
            count = f"{len(outside)} events lie"
            raise UserError(f"{self.digest.path}: {count} outside of the time that the clock is known for")
        timed &= mapped.known  # names of processes and threads have stamps that mean nothing
        stamps = (mapped.cluster_ns - self.base_ns).tolist()
        parts[2::2] = [
            text_of_ns(stamp_ns) + part[len(text) :] if has_time else part
            for part, text, stamp_ns, has_time in zip(behind, texts, stamps, timed.tolist(), strict=True)
        ]
        return b"".join(parts)


def _number_of(part: bytes) -> bytes:
    """The number that a text begins with; empty where it begins with none."""
    end = part.find(b",")
    if 0 < end < 32 and b"}" not in part[:end]:
        return part[:end].rstrip()
    found = _NUMBER.match(part)
    return b"" if found is None else found[0]


_NO_TIME = np.iinfo(np.int64).min


def _local_ns(text: bytes, base_ns: int) -> int:
    try:
        time_ns = ns_of_text(text)
    except DecodeError:
        return int(_NO_TIME)
    return time_ns + base_ns if time_ns else int(_NO_TIME)


@dataclass(slots=True)
class _Numbers:
    """Process and flow numbers of several ranks, made distinct; processes densely: viewers take 32 bits."""

    processes: dict[tuple[int, bytes], bytes] = field(default_factory=dict)
    flows: dict[tuple[int, bytes], bytes] = field(default_factory=dict)

    def replaced(self, piece: bytes, rank: int) -> bytes:
        """The piece with this rank's numbers."""
        for whole in set(_PROCESS.findall(piece)):
            key, _, old = whole.partition(b":")
            new = self._number(self.processes, rank, old.strip())
            # Written with a space before the colon, as no profiler does: what was replaced is not found again.
            for end in b",}\n ":
                piece = piece.replace(b"%b%c" % (whole, end), b"%b : %b%c" % (key.strip(), new, end))
        return _FLOW.sub(lambda match: match[0][: -len(match[1])] + self._number(self.flows, rank, match[1]), piece)

    def labels(self) -> Iterator[dict[str, Any]]:
        """Events that name every process's rank, and put the processes in the order of ranks."""
        for (rank, old), new in self.processes.items():
            yield {
                "ph": "M",
                "name": "process_labels",
                "pid": int(new),
                "args": {"labels": f"rank {rank}, {old.decode()}"},
            }
            yield {"ph": "M", "name": "process_sort_index", "pid": int(new), "args": {"sort_index": int(new)}}

    @staticmethod
    def _number(known: dict[tuple[int, bytes], bytes], rank: int, old: bytes) -> bytes:
        return known.setdefault((rank, old), b"%d" % (len(known) + 1))
