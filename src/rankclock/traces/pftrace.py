"""All ranks in one native Perfetto trace: every event on its rank's own clock, and snapshots that tie it to the others.

No stamp is changed: clock snapshots say what cluster time each rank's clock reads how, and the trace processor does the
rest. It takes the last snapshot before a stamp and no slope, so snapshots follow each other as closely as the drift
asks for. Each rank has a track that says reference, method and bound. Refuses (UserError) clocks that read an instant
twice (a step back), stamps that the alignment does not cover, and dumps without events.
Source of the format: Perfetto's protos, trace_packet.proto, track_event.proto, clock_snapshot.proto.
"""

from __future__ import annotations

import heapq
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from rankclock.errors import UserError
from rankclock.traces import protobuf
from rankclock.traces.digest import ALIGNED_KEY, TraceDigest, reader_of
from rankclock.traces.pftrace_clocks import RANK_CLOCK, REALTIME
from rankclock.traces.pftrace_events import ARGS_IID, Lane, RankEvents
from rankclock.traces.read_pftrace import RANK_EVENT
from rankclock.traces.rewrite import what_holds
from rankclock.traces.source import ByteSource
from rankclock.traces.timemap import Alignment, Piece, RankMap

__all__ = ["pftrace"]

FINEST_NS = 20
"""A closer step would show nothing: profilers write whole nanoseconds, and are off by more."""

MOST_SNAPSHOTS = 100_000
"""Of one rank: 4 MB of them."""

_PACKET = 1
_TIMESTAMP, _SEQUENCE, _FLAGS, _SNAPSHOT, _EVENT, _INTERNED, _DEFAULTS, _DESCRIPTOR = 8, 10, 13, 6, 11, 12, 59, 60
_CLEARED, _NEEDED = 1, 2
_LARGE = 1 << 28
_TYPES = {"begin": 1, "end": 2, "instant": 3, "counter": 4}


def pftrace(
    digests: Mapping[int, TraceDigest], alignment: Alignment, left_out: Counter[str] | None = None
) -> Iterator[bytes]:
    """The trace, piece by piece. Raises UserError before the first where a clock forbids it, else when it gets there.

    left_out: gets the number of events that have no place in it, by reason.
    """
    steps = {rank: _snapshot_step_ns(digest, alignment.ranks[rank]) for rank, digest in digests.items()}
    numbers = {rank: number + 1 for number, rank in enumerate(digests)}
    snapshots = [_snapshots(digests[rank], alignment.ranks[rank], steps[rank]) for rank in digests]
    tied = [[(cluster, numbers[rank], local) for local, cluster in found]
            for rank, found in zip(digests, snapshots, strict=True)]  # fmt: skip
    # In the order of cluster time: a snapshot in which the trace's own clock goes back is refused by the processor.
    for cluster_ns, number, local_ns in heapq.merge(*tied):
        clocks = [(RANK_CLOCK, local_ns), (REALTIME, cluster_ns)]
        parts = [protobuf.nested(1, protobuf.integer(1, clock), protobuf.integer(2, at)) for clock, at in clocks]
        yield _packet(number, protobuf.nested(_SNAPSHOT, *parts, protobuf.integer(2, REALTIME)))
    tracks = _Numbers()
    for rank, digest in digests.items():
        events = _events(digest, numbers[rank])
        if left_out is not None:
            left_out.update(events.left_out)
        yield from _rank(digest, alignment, events, (numbers[rank], steps[rank]), tracks)


def _packet(sequence: int, *parts: bytes) -> bytes:
    return protobuf.nested(_PACKET, protobuf.integer(_SEQUENCE, sequence), *parts)


# ---- clocks ----


def _checked(digest: TraceDigest, found: RankMap) -> None:
    if digest.form not in ("chrome", "pftrace"):
        raise UserError(f"{digest.path}: a {digest.form} dump has no events to write: leave it out")
    if not found.known or digest.first_ns is None:
        why = found.unknown_why or "no event in it has a time"
        raise UserError(f"{digest.path}: rank {found.rank} has no cluster time: {why}")


def _snapshot_step_ns(digest: TraceDigest, found: RankMap) -> int:
    """By how much the offset may move from one snapshot to the next: little against the bound, and not too many."""
    _checked(digest, found)
    first, last = found.pieces[0].start_ns, found.pieces[-1].end_ns
    moved_ns = sum(abs(piece.at_end[1] - piece.at_start[1]) for piece in found.pieces)
    return max(FINEST_NS, (found.worst_bound_ns(first, last) or 0) // 8, moved_ns // MOST_SNAPSHOTS)


def _snapshots(digest: TraceDigest, found: RankMap, step_ns: int) -> list[tuple[int, int]]:
    """(local, cluster) instants; from each to the next the offset is taken as constant, half a step off at most."""
    points = [point for piece in found.pieces for point in _of_piece(piece, step_ns)]
    overlap = any(after.start_ns < before.end_ns for before, after in pairwise(found.pieces))
    if overlap or any(after[1] < before[1] for before, after in pairwise(points)):
        raise UserError(
            f"{digest.path}: its clock was set back in the traced time: clock snapshots cannot say that; "
            "use --format rewritten or merged"
        )
    if points[0][0] < 0 or points[0][1] < 0:
        raise UserError(f"{digest.path}: times before 1970 cannot stand in clock snapshots; use --format rewritten")
    # Two snapshots at one instant: the later one is meant.
    return list(dict(points).items())


def _of_piece(piece: Piece, step_ns: int) -> list[tuple[int, int]]:
    parts = max(-(-abs(piece.at_end[1] - piece.at_start[1]) // step_ns), 1)
    edges = [piece.start_ns + (piece.end_ns - piece.start_ns) * part // parts for part in range(parts + 1)]
    return [(begin, begin - piece.offset_at((begin + end) // 2)[1])
            for begin, end in pairwise(edges)]  # fmt: skip


# ---- events ----


class _Numbers:
    """Process, thread and track numbers of several ranks, made distinct."""

    def __init__(self) -> None:
        self._next = 0

    def fresh(self) -> int:
        """A number that nothing else has."""
        self._next += 1
        return self._next


def _events(digest: TraceDigest, sequence: int) -> RankEvents:
    shift_ns, skip_zero = digest.base_ns or 0, bool(digest.zero_time)
    events = RankEvents(shift_ns=shift_ns, skip_zero=skip_zero, flow_salt=sequence << 40)
    for batch in reader_of(ByteSource(digest.path)):
        if batch.document.index == digest.document:
            events.add(batch.events)
    events.finish()
    return events


def _rank(
    digest: TraceDigest, alignment: Alignment, events: RankEvents, how: tuple[int, int], numbers: _Numbers
) -> Iterator[bytes]:
    sequence, _ = how
    found = alignment.ranks[digest.rank if digest.rank is not None else -1]
    starts_ns = events.starts_ns
    outside = int(np.count_nonzero(~found.to_cluster(starts_ns).known)) if len(starts_ns) else 0
    if outside:
        raise UserError(f"{digest.path}: {outside} events lie outside of the time that the clock is known for")
    yield _packet(
        sequence,
        protobuf.integer(_FLAGS, _CLEARED),
        protobuf.nested(_DEFAULTS, protobuf.integer(58, RANK_CLOCK)),
        protobuf.nested(_INTERNED, *_interned(events)),
    )
    processes = {process: numbers.fresh() for process in dict.fromkeys(lane.process for lane in events.lanes)}
    for process, number in processes.items():
        name = " ".join(filter(None, (events.process_names.get(process, ""), f"({process})")))
        body = (protobuf.integer(1, number), protobuf.text(6, f"rank {found.rank}: {name}"))
        yield _described(sequence, protobuf.integer(1, _uuid(number)), protobuf.nested(3, *body))
    yield from _said(digest, alignment, found, how, numbers.fresh())
    yield from _packets(events, sequence, processes, numbers)


def _packets(events: RankEvents, sequence: int, processes: Mapping[str, int], numbers: _Numbers) -> Iterator[bytes]:
    """Every entry as a packet, each track described before its first."""
    tracks: dict[tuple[int, int], bytes] = {}
    lanes, stamps = list(events.lanes), protobuf.Stamps()
    head = protobuf.integer(_SEQUENCE, sequence) + protobuf.integer(_FLAGS, _NEEDED)
    kinds = {kind: protobuf.integer(9, number) for kind, number in _TYPES.items()}
    stamped = protobuf.integer(_TIMESTAMP, 0)[:-1]
    for one in events.laid():
        track = tracks.get((one.lane, one.part))
        if track is None:
            uuid = _uuid(numbers.fresh())
            lane = lanes[one.lane]
            numbered = processes[lane.process], numbers.fresh()
            yield _described(sequence, _track(uuid, lane, one.part, events, numbered))
            track = tracks[one.lane, one.part] = protobuf.integer(11, uuid)
        event = protobuf.data(_EVENT, kinds.get(one.kind, b"") + track + one.body)
        stamp = stamps.varint(one.at_ns) if one.at_ns >= _LARGE else protobuf.varint(one.at_ns)
        yield protobuf.data(_PACKET, stamped + stamp + head + event)


def _uuid(number: int) -> int:
    """Track 0 is the processor's own."""
    return number + (1 << 32)


def _described(sequence: int, *parts: bytes) -> bytes:
    return _packet(sequence, protobuf.nested(_DESCRIPTOR, *parts))


def _interned(events: RankEvents) -> Iterator[bytes]:
    for field, known in ((1, events.categories), (2, events.names)):
        for name, number in known.items():
            yield protobuf.nested(field, protobuf.integer(1, number), protobuf.text(2, name))
    yield protobuf.nested(3, protobuf.integer(1, ARGS_IID), protobuf.text(2, "args"))


def _track(uuid: int, lane: Lane, part: int, events: RankEvents, numbered: tuple[int, int]) -> bytes:
    """A track's description. numbered: the numbers of its process and for its thread."""
    number, fresh = numbered
    further = f" ({part + 1})" if part else ""
    if lane.what == "thread":
        name = events.thread_names.get((lane.process, lane.thread), "")
        name = (name if lane.thread in name else f"{name} {lane.thread}".strip()) + further
        body = (protobuf.integer(1, number), protobuf.integer(2, fresh), protobuf.text(5, name))
        kind = protobuf.nested(4, *body)
    else:
        kind = protobuf.text(2, (lane.thread or lane.what) + further)
        kind += protobuf.data(8, b"") if lane.what == "counter" else b""
    return protobuf.integer(1, uuid) + protobuf.integer(5, _uuid(number)) + kind


def _said(
    digest: TraceDigest, alignment: Alignment, found: RankMap, how: tuple[int, int], number: int
) -> Iterator[bytes]:
    """A track with whose clock this is, by what method and how far off it may be, and where it is less sure."""
    sequence, step_ns = how
    holds = what_holds(alignment, found)
    if holds["bound_ns"] is not None:
        holds["bound_ns"] += step_ns // 2 + 1
    values: dict[str, Any] = {ALIGNED_KEY: holds, "distributedInfo": {"rank": found.rank}}
    if digest.world_size is not None:
        values["distributedInfo"]["world_size"] = digest.world_size
    values["distributedInfo"]["pg_config"] = [
        {"pg_name": name, "ranks": list(ranks)} for name, ranks in digest.groups.items()
    ]
    if digest.host:
        values["host_name"] = digest.host
    uuid = _uuid(number)
    yield _described(sequence, protobuf.integer(1, uuid), protobuf.text(2, f"rank {found.rank}: cluster clock"))
    args = protobuf.nested(4, protobuf.text(10, "args"), protobuf.data(9, json.dumps(values).encode()))
    stamped = [(found.pieces[0].start_ns, 3, RANK_EVENT, args)]
    for piece in found.pieces:
        if piece.marked:
            stamped += [(piece.start_ns, 1, f"less sure: {piece.marked}", b""), (piece.end_ns, 2, "", b"")]
    for at_ns, kind, name, more in stamped:
        event = protobuf.integer(9, kind) + protobuf.integer(11, uuid) + (protobuf.text(23, name) if name else b"")
        yield _packet(
            sequence, protobuf.integer(_TIMESTAMP, at_ns), protobuf.integer(_FLAGS, _NEEDED),
            protobuf.data(_EVENT, event + more),
        )  # fmt: skip
