"""Which spans of different ranks are the same collective.

By group and sequence number where the traces carry them. Otherwise the k-th of its kind and size in the one group that
there is, with the shift and the holes that fit the instants best; where two shifts fit about equally well it says so
and pairs nothing. Decides what is a mismatch: kinds or sizes that no collective can have together. Mismatches are
left out and counted, never forced.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rankclock.traces.digest import TraceDigest
from rankclock.traces.kinds import GATHERING, SPREADING, SYMMETRIC, Kind
from rankclock.traces.position import Stream, pair_by_position
from rankclock.traces.spans import NO_END, NO_SEQUENCE, UNKNOWN_SIZE, Ints, Token

__all__ = ["Collective", "Matches", "match"]

Flags = npt.NDArray[np.bool_]

_UNEVEN = frozenset({Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.GATHER, Kind.SCATTER, Kind.ALL_TO_ALL})
"""Kinds whose ranks may contribute different sizes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One collective: what it is, and who should have taken part (None where the trace does not say).

    root: a rank, -1 where unknown. by_position: paired without a sequence number.
    """

    kind: Kind
    group: str
    size: int
    sequence: int
    members: tuple[int, ...] | None
    root: int = -1
    by_position: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Matches:
    """Spans that belong together. Entry e is span `span[e]` of rank `ranks[rank[e]]` in `collectives[collective[e]]`.

    Entries are sorted by collective; instants are each rank's own. enters: somebody waits for this span's start.
    waits: this span cannot end before those have started. left_out: reason to number of spans.
    problems: what a person should know of. assumptions: what the pairing rests on. strayed: by rank, spans left out
    because they lie elsewhere than the others predict: behind them the rank's clock may be another.
    """

    ranks: tuple[int, ...]
    collectives: tuple[Collective, ...]
    collective: Ints
    rank: Ints
    span: Ints
    start_ns: Ints
    end_ns: Ints
    slack_ns: Ints
    enters: Flags
    waits: Flags
    left_out: Mapping[str, int]
    problems: tuple[str, ...]
    assumptions: tuple[str, ...]
    strayed: Mapping[int, Ints]

    def parts(self) -> Iterator[tuple[Collective, slice]]:
        """Each collective with the slice of its entries."""
        bounds = np.searchsorted(self.collective, np.arange(len(self.collectives) + 1))
        for index, collective in enumerate(self.collectives):
            yield collective, slice(int(bounds[index]), int(bounds[index + 1]))


class _Key(NamedTuple):
    """What makes spans one collective where sequence numbers are there. pair: (source, destination) of a message."""

    group: str
    members: tuple[int, ...] | None
    pair: tuple[int, int] | None
    sequence: int
    ordinal: int


class Entry(NamedTuple):
    """A span, by the rank and its place in that rank's columns."""

    rank: int
    span: int


Found = list[tuple[Collective, list[Entry]]]


@dataclass(slots=True)
class _Beside:
    """What comes with the pairs; see `Matches`."""

    left_out: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    assumptions: list[str] = field(default_factory=list)
    strayed: dict[int, list[int]] = field(default_factory=dict)


def match(digests: Mapping[int, TraceDigest], *, broadcast_root: int | None = None) -> Matches:
    """Pair the collectives of all ranks. broadcast_root: an assumption on who sends, as a place within the group."""
    beside = _Beside()
    found = _with_sequence(digests, beside)
    found += _without_sequence(digests, beside)
    if any(collective.by_position for collective, _ in found):
        beside.assumptions.append("spans without sequence numbers are paired by kind, size and order")
    if broadcast_root is not None:
        beside.assumptions.append(f"the root of broadcasts and the like is at place {broadcast_root} of the group")
        found = [(_rooted(collective, broadcast_root), entries) for collective, entries in found]
    return _columns(digests, found, beside)


def _with_sequence(digests: Mapping[int, TraceDigest], beside: _Beside) -> Found:
    by_key: dict[_Key, list[tuple[Entry, Token]]] = defaultdict(list)
    for rank, digest in digests.items():
        columns = digest.collectives
        seen: Counter[tuple[str, bool, tuple[int, int] | None, int]] = Counter()
        for span in np.flatnonzero(columns.sequence != NO_SEQUENCE).tolist():
            token = columns.tokens[columns.token[span]]
            pair = (token.source, token.destination) if token.kind in (Kind.SEND, Kind.RECV) else None
            if pair is not None and -1 in pair:
                beside.left_out["messages whose sender or receiver is not recorded"] += 1
                continue
            sequence = int(columns.sequence[span])
            place = (token.group, token.kind is Kind.RECV, pair, sequence)
            key = _Key(token.group, digest.groups.get(token.group), pair, sequence, seen[place])
            seen[place] += 1
            by_key[key].append((Entry(rank, span), token))
    found: Found = []
    mismatches = []
    for key, parts in by_key.items():
        why = _mismatch(parts) if key.pair is None else None
        if why is not None:
            mismatches.append(f"number {key.sequence} of group {key.group!r}: {why}")
            beside.left_out["spans whose kinds or sizes do not fit together"] += len(parts)
        elif len(parts) < 2:
            beside.left_out["spans that no other trace has"] += 1
        else:
            token = parts[0][1]
            kind = token.kind if key.pair is None else Kind.SEND
            collective = Collective(
                kind=kind, group=key.group, size=token.size, sequence=key.sequence, members=key.members
            )
            found.append((collective, [entry for entry, _ in parts]))
    if mismatches:
        beside.problems.append(f"{len(mismatches)} collectives differ between ranks; the first is {mismatches[0]}")
    return found


def _mismatch(parts: Sequence[tuple[Entry, Token]]) -> str | None:
    """Why these spans cannot be one collective, None where they can."""
    (first, token), *others = parts
    for entry, other in others:
        uneven = token.kind in _UNEVEN or UNKNOWN_SIZE in (token.size, other.size)
        if other.kind is not token.kind or (other.size != token.size and not uneven):
            return (
                f"rank {first.rank} has {token.kind.value} of {token.size}, "
                f"rank {entry.rank} has {other.kind.value} of {other.size}"
            )
    return None


def _without_sequence(digests: Mapping[int, TraceDigest], beside: _Beside) -> Found:
    """Only where one group holds all of them: spans of unknown groups cannot be told apart by their order."""
    streams: dict[int, Stream] = {}
    for rank, digest in digests.items():
        columns = digest.collectives
        loose = np.flatnonzero(columns.sequence == NO_SEQUENCE)
        usable = [kind not in (Kind.SEND, Kind.RECV, Kind.OTHER) for kind in (token.kind for token in columns.tokens)]
        kept = loose[np.array([usable[index] for index in columns.token[loose]], dtype=bool)]
        if len(kept) < len(loose):
            beside.left_out["messages and other spans that carry nothing to pair them by"] += len(loose) - len(kept)
        if len(kept):
            streams[rank] = Stream(
                spans=kept,
                tokens=[columns.tokens[index] for index in columns.token[kept]],
                start_ns=columns.start_ns[kept],
                end_ns=columns.end_ns[kept],
                step=_steps(digest, columns.start_ns[kept]),
            )
    if len(streams) < 2:
        beside.left_out["spans that no other trace has"] += sum(len(stream.spans) for stream in streams.values())
        return []
    if any(len(digests[rank].groups) > 1 for rank in streams):
        beside.left_out["spans whose group is not recorded, in a job of several groups"] += sum(
            len(stream.spans) for stream in streams.values()
        )
        beside.problems.append(
            "spans without group and sequence number (gloo) in a job of several groups cannot be paired; "
            "record with record_shapes and one group, or take a flight recorder dump"
        )
        return []
    name, members = next(iter(digests[next(iter(streams))].groups.items()), ("", None))
    paired, unpaired = pair_by_position(streams)
    beside.left_out.update(unpaired.spans)
    beside.problems.extend(unpaired.problems)
    beside.assumptions.extend(unpaired.assumptions)
    beside.strayed.update(unpaired.strayed)
    found: Found = []
    for place, (token, entries) in enumerate(paired):
        collective = Collective(
            kind=token.kind, group=name, size=token.size, sequence=place, members=members, by_position=True
        )
        found.append((collective, [Entry(rank, span) for rank, span in entries]))
    return found


def _roles(digests: Mapping[int, TraceDigest], found: Found) -> tuple[Flags, Flags]:
    """Per entry, whether others wait for its start and whether its end waits for others: what really holds by kind."""
    enters, waits = [], []
    for collective, entries in found:
        kind, root = collective.kind, collective.root
        for entry in entries:
            columns = digests[entry.rank].collectives
            sends = columns.tokens[columns.token[entry.span]].kind is Kind.SEND
            everyone, known = kind in SYMMETRIC or kind is Kind.ALL_TO_ALL, root >= 0
            is_root = entry.rank == root
            enters.append(
                everyone
                or (kind is Kind.SEND and sends)
                or (known and (kind in GATHERING or (kind in SPREADING and is_root)))
            )
            waits.append(
                everyone
                or (kind is Kind.SEND and not sends)
                or (known and (kind in SPREADING or (kind in GATHERING and is_root)))
            )
    return np.array(enters, dtype=bool), np.array(waits, dtype=bool)


def _steps(digest: TraceDigest, start_ns: Ints) -> Ints:
    """The number of the profiler step that each instant lies in, -1 outside of all."""
    if not digest.steps:
        return np.full(len(start_ns), -1, dtype=np.int64)
    numbers, begins, ends = (np.array(column, dtype=np.int64) for column in zip(*digest.steps, strict=True))
    order = np.argsort(begins, kind="stable")
    place = np.searchsorted(begins[order], start_ns, side="right") - 1
    inside = (place >= 0) & (start_ns < ends[order][np.maximum(place, 0)])
    return np.where(inside, numbers[order][np.maximum(place, 0)], -1)


def _rooted(collective: Collective, place: int) -> Collective:
    members = collective.members
    if collective.kind not in SPREADING | GATHERING or members is None or place >= len(members):
        return collective
    return replace(collective, root=members[place])


def _columns(
    digests: Mapping[int, TraceDigest],
    found: Found,
    beside: _Beside,
) -> Matches:
    ranks = tuple(digests)
    place = {rank: index for index, rank in enumerate(ranks)}
    found.sort(key=lambda item: int(digests[item[1][0].rank].collectives.start_ns[item[1][0].span]))
    entries = [entry for _, group in found for entry in group]
    spans = np.array([entry.span for entry in entries], dtype=np.int64)
    rank = np.array([place[entry.rank] for entry in entries], dtype=np.int64)
    instants = {name: np.zeros(len(entries), dtype=np.int64) for name in ("start_ns", "end_ns", "slack_ns")}
    for number, index in place.items():
        mine = rank == index
        for name, values in instants.items():
            values[mine] = getattr(digests[number].collectives, name)[spans[mine]]
    enters, waits = _roles(digests, found)
    return Matches(
        ranks=ranks,
        collectives=tuple(collective for collective, _ in found),
        collective=np.repeat(np.arange(len(found)), [len(group) for _, group in found]).astype(np.int64),
        rank=rank,
        span=spans,
        **instants,
        enters=enters,
        waits=waits & (instants["end_ns"] != NO_END),
        left_out={why: number for why, number in beside.left_out.items() if number},
        problems=tuple(beside.problems),
        assumptions=tuple(beside.assumptions),
        strayed={rank: np.array(spans, dtype=np.int64) for rank, spans in beside.strayed.items() if spans},
    )
