"""Logs of many ranks as one stream in cluster time, with a mark where the order cannot be known.

Lines of one file keep their order. Between ranks a line stands where the middle of its interval lies; it is marked
where its interval meets that of another rank's line before it. Ranks whose clock is unknown stand by their own clock,
marked apart. Refuses to guess a rank.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rankclock.clockmath.history import ClockHistory
from rankclock.errors import UserError
from rankclock.timebase.clock_record import ClockRecord
from rankclock.traces.digest import rank_of_name
from rankclock.traces.log_lines import LineTime, Zone, local_rank_of_line, rank_of_line, time_of_line
from rankclock.traces.source import ByteSource

__all__ = ["LogCounts", "MergedLine", "merge_logs"]

MAX_LINE = 1 << 20
"""A longer line is cut for its stamp only; its text goes through whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedLine:
    """One entry: a stamped line and those without a stamp behind it. unsure: its place among other ranks' is a guess.

    clock_known: the interval is in cluster time; otherwise by the rank's own clock.
    """

    rank: int | None
    lo_ns: int
    hi_ns: int
    clock_known: bool
    unsure: bool
    text: str


@dataclass(slots=True)
class LogCounts:
    """What went through: lines, entries, entries that are unsure or of unknown clocks, lines before any stamp."""

    lines: int = 0
    entries: int = 0
    unsure: int = 0
    unknown_clock: int = 0
    unstamped: int = 0
    unknown_ranks: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Entry:
    order_ns: int
    rank: int | None
    time: LineTime
    known: bool
    text: str

    def __lt__(self, other: _Entry) -> bool:
        return self.order_ns < other.order_ns


def merge_logs(
    paths: Sequence[Path],
    records: Sequence[ClockRecord],
    *,
    ranks: Mapping[Path, int],
    zone: Zone,
    counts: LogCounts,
) -> Iterator[MergedLine]:
    """The entries of all files in order.

    ranks: of files; of a file with [default0]: in front of its lines, the rank of that one. Raises UserError where a
    file cannot be read, its rank is unknown, or the records are of several jobs: those share no cluster time.
    """
    histories: dict[int, list[ClockHistory]] = {}
    records = [record for record in records if any(line.known for line in record.lines)]
    jobs = Counter(record.header.job for record in records)
    if len(jobs) > 1:
        raise UserError(
            f"clock records of {len(jobs)} jobs ({', '.join(sorted(jobs))}): give those of one with --clock"
        )
    for record in records:
        if record.header.rank is not None:
            histories.setdefault(record.header.rank, []).append(ClockHistory.of(record))
    streams = [_entries(path, ranks.get(path, rank_of_name(path.name)), histories, zone, counts) for path in paths]
    reached: dict[int | None, int] = {}
    for entry in heapq.merge(*streams):
        counts.entries += 1
        before_ns = max((hi_ns for rank, hi_ns in reached.items() if rank != entry.rank), default=None)
        unsure = not entry.known or (before_ns is not None and entry.time.lo_ns < before_ns)
        reached[entry.rank] = max(reached.get(entry.rank, entry.time.hi_ns), entry.time.hi_ns)
        counts.unsure += unsure
        yield MergedLine(
            rank=entry.rank,
            lo_ns=entry.time.lo_ns,
            hi_ns=entry.time.hi_ns,
            clock_known=entry.known,
            unsure=unsure,
            text=entry.text,
        )


def _entries(
    path: Path,
    file_rank: int | None,
    histories: Mapping[int, list[ClockHistory]],
    zone: Zone,
    counts: LogCounts,
) -> Iterator[_Entry]:
    """Stamped lines with what follows them; the order never goes back within a file."""
    order_ns = -(1 << 63)
    current: tuple[int | None, LineTime, bool] | None = None
    text: list[str] = []
    for line in _lines(path):
        counts.lines += 1
        stamp = time_of_line(line, zone)
        if stamp is None:
            if current is None:
                counts.unstamped += 1
            text.append(line)
            continue
        if current is not None:
            yield _Entry(order_ns, *current, "\n".join(text))
            text = []
        rank = _rank(path, line, file_rank)
        if rank is None and not stamp.cluster:
            raise UserError(f"{path}: no rank in the file's name or its lines; say --rank {path.name}=N")
        time, known = (stamp, True) if stamp.cluster else _in_cluster_time(stamp, histories.get(rank or 0, []))
        if not known:
            counts.unknown_clock += 1
            counts.unknown_ranks.add(rank or 0)
        order_ns = max(order_ns, (time.lo_ns + time.hi_ns) // 2)
        current = rank, time, known
        text.append(line)
    if current is not None:
        yield _Entry(order_ns, *current, "\n".join(text))
    elif text:
        raise UserError(f"{path}: no line has a time stamp; log with %(asctime)s, or NCCL_DEBUG_TIMESTAMP_LEVELS")


def _rank(path: Path, line: str, file_rank: int | None) -> int | None:
    """What the line says goes before the file's rank. A local rank counts from the file's: the first of its node."""
    said = rank_of_line(line)
    if said is not None:
        return said
    local = local_rank_of_line(line)
    if local is None:
        return file_rank
    if file_rank is None:
        raise UserError(
            f"{path}: [default{local}] is a rank within a node; say --rank {path.name}=N, N being the rank of the "
            "node's [default0]"
        )
    return file_rank + local


def _in_cluster_time(stamp: LineTime, histories: Iterable[ClockHistory]) -> tuple[LineTime, bool]:
    for history in histories:
        first, last = history.offset_at_real(stamp.lo_ns), history.offset_at_real(stamp.hi_ns)
        if first.lo_ns is None or first.hi_ns is None or last.lo_ns is None or last.hi_ns is None:
            continue
        lo_ns = stamp.lo_ns - max(first.hi_ns, last.hi_ns)
        return LineTime(lo_ns=lo_ns, hi_ns=stamp.hi_ns - min(first.lo_ns, last.lo_ns), cluster=True), True
    return stamp, False


def _lines(path: Path) -> Iterator[str]:
    rest = b""
    for piece in ByteSource(path):
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line.decode("utf-8", "replace").rstrip("\r")
    if rest:
        yield rest.decode("utf-8", "replace").rstrip("\r")
