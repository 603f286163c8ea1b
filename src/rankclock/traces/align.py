"""Traces onto cluster time by recorded clocks: the records in the traces themselves, or in files beside them.

Decides which record speaks of a trace (its rank, its time), and how a step of the clock inside the profiled window
widens the doubt: the profiler fits one line through the clock at both ends of its window, and bends all stamps between.
A trace that is in cluster time already keeps its stamps, with the bound that it states: never corrected twice. Refuses
to extrapolate: what no record is near to stays unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from rankclock.clockmath.history import ClockHistory, Run
from rankclock.errors import DecodeError, UserError
from rankclock.timebase import format_span_ns
from rankclock.timebase.clock_record import ClockLine, ClockRecord
from rankclock.traces.digest import TraceDigest
from rankclock.traces.timemap import Alignment, Piece, RankMap
from rankclock.wire.clock_record import FILE_NAME, decode_file, decode_object

__all__ = ["METHOD", "align", "find_records", "read_records"]

METHOD = "aligned by recorded clocks"
ASSUMPTION = "the profiler's stamps are the rank's CLOCK_REALTIME, fitted by one line over its window"

SMEARED_FROM_NS = 1_000
"""A clock that strays less from a line over the window changes nothing that a profiler can show."""

EDGE_NS = 1
MAX_FILE_BYTES = 256 << 20

Knot = tuple[int, tuple[int, int, int]]


def read_records(paths: Iterable[Path]) -> list[ClockRecord]:
    """All records of some rankclock-clock*.jsonl files. Raises UserError with file:line."""
    records: list[ClockRecord] = []
    for path in paths:
        try:
            if path.stat().st_size > MAX_FILE_BYTES:
                raise UserError(f"{path}: a clock record has at most {MAX_FILE_BYTES >> 20} MiB")
            records += decode_file(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise UserError(f"{path}: {error.strerror}; give the folder or file of the clock records") from error
        except (DecodeError, UnicodeDecodeError) as error:
            raise UserError(f"{path}: not a clock record: {error}") from error
    return records


def find_records(traces: Iterable[Path]) -> list[Path]:
    """rankclock-clock*.jsonl beside the traces and in the folder above them."""
    folders = {folder for path in traces for folder in (path.resolve().parent, path.resolve().parent.parent)}
    stem = FILE_NAME.partition(".")[0]
    return sorted(path for folder in folders for path in folder.glob(f"{stem}*.jsonl"))


def align(digests: Mapping[int, TraceDigest], records: Sequence[ClockRecord] = ()) -> Alignment:
    """The map of every rank. A record inside a trace goes before `records`. Raises UserError where one is damaged."""
    own = {rank: digest for rank, digest in digests.items() if digest.aligned is None}
    chosen = {rank: _record_of(digest, records) for rank, digest in own.items()}
    jobs = Counter(record.header.job for record in chosen.values() if record is not None)
    job, _ = jobs.most_common(1)[0] if jobs else ("", 0)
    problems = []
    if len(jobs) > 1:
        problems.append(f"records of {len(jobs)} jobs: only those of {job!r} share one cluster time")
    reference = next((one.header.reference for one in chosen.values() if one is not None and one.header.job == job), "")
    reference = reference or next((name for name in map(_stated_reference, digests.values()) if name), "")
    maps = {
        rank: _rank_map(rank, digest, chosen[rank], job) if rank in chosen else _kept(rank, digest, reference)
        for rank, digest in digests.items()
    }
    for rank, found in maps.items():
        problems += [f"rank {rank}: {found.unknown_why}"] if found.unknown_why else []
        problems += [f"rank {rank}: {note}" for note in found.notes]
    return Alignment(reference=reference, method=METHOD, ranks=maps, problems=tuple(problems))


def _record_of(digest: TraceDigest, records: Sequence[ClockRecord]) -> ClockRecord | None:
    """The record of this trace's rank that is nearest to its time; the one inside the trace if it knows anything."""
    if digest.clock_record is not None:
        try:
            inside = decode_object(digest.clock_record)
        except DecodeError as error:
            raise UserError(f"{digest.path}: the clock record in it is damaged: {error}") from error
        if any(line.known for line in inside.lines):
            return inside
    mine = [one for one in records if one.header.rank == digest.rank and any(line.known for line in one.lines)]
    if not mine or digest.first_ns is None:
        return mine[-1] if mine else None
    first_ns, last_ns = digest.first_ns, digest.last_ns or digest.first_ns

    def missing_ns(record: ClockRecord) -> int:
        reals = [line.real_ns for line in record.lines]
        return max(min(reals) - first_ns, 0) + max(last_ns - max(reals), 0)

    return min(mine, key=missing_ns)


def _rank_map(rank: int, digest: TraceDigest, record: ClockRecord | None, job: str) -> RankMap:
    nothing = RankMap(rank=rank, host=digest.host or "", pieces=(), method=METHOD)
    if record is None:
        why = "no clock record in the trace or beside it: `rankclock trace recover` needs none"
        return replace(nothing, unknown_why=why)
    if record.header.job != job:
        return replace(nothing, unknown_why=f"its clock record is of another job ({record.header.job!r})")
    if not digest.realtime or digest.first_ns is None or digest.last_ns is None:
        return replace(nothing, unknown_why="its stamps do not count from 1970: a clock record says nothing of them")
    history = ClockHistory.of(record)
    first_ns, last_ns = digest.window_ns or (digest.first_ns, digest.last_ns)
    first_ns, last_ns = min(first_ns, digest.first_ns), max(last_ns, digest.last_ns)
    smeared_ns, why_smeared = _smear(record.lines, first_ns, last_ns)
    pieces = _pieces(history, first_ns, last_ns, smeared_ns, why_smeared)
    if not pieces:
        return replace(
            nothing, unknown_why=history.offset_at_real(first_ns).unknown_why or "no record is near its time"
        )
    return replace(nothing, pieces=pieces, assumptions=(ASSUMPTION,), notes=(why_smeared,) if why_smeared else ())


# ---- traces in cluster time ----


def _stated_reference(digest: TraceDigest) -> str:
    """Whose clock a trace in cluster time says that it runs on; '' where it says nothing."""
    said = digest.aligned.get("reference") if isinstance(digest.aligned, dict) else None
    return said if isinstance(said, str) else ""


def _kept(rank: int, digest: TraceDigest, reference: str) -> RankMap:
    """The map of a trace that was rewritten: no offset, the bound that it states."""
    said = digest.aligned if isinstance(digest.aligned, dict) else {}
    nothing = RankMap(rank=rank, host=digest.host or "", pieces=(), method=METHOD)
    bound_ns = said.get("bound_ns")
    if not isinstance(bound_ns, int) or bound_ns < 0 or not digest.realtime or digest.first_ns is None:
        return replace(nothing, unknown_why="it is in cluster time already, but states no bound: take the original")
    if _stated_reference(digest) != reference:
        why = f"it is in cluster time already, of another reference ({_stated_reference(digest)!r}): take the original"
        return replace(nothing, unknown_why=why)
    around = (-bound_ns, 0, bound_ns)
    last_ns = max(digest.last_ns or digest.first_ns, digest.first_ns)
    piece = Piece(start_ns=digest.first_ns, end_ns=last_ns, at_start=around, at_end=around)
    return replace(nothing, pieces=(piece,), assumptions=("the trace is in cluster time, as it says",))


# ---- the profiler's own line ----


def _smear(lines: Sequence[ClockLine], first_ns: int, last_ns: int) -> tuple[int, str]:
    """How far stamps of the window may lie from the clock, and why: CLOCK_REALTIME against a line through its ends.

    The lead (REALTIME - RAW) that a profiler takes for a straight line is seen at the record's lines. Where it jumps
    between two of them, the jump may lie anywhere in between.
    """
    inside = [index for index, line in enumerate(lines) if first_ns <= line.real_ns <= last_ns]
    if not inside:
        around = [index for index, line in enumerate(lines) if line.real_ns < first_ns][-1:]
        inside = around or [0]
    near = lines[max(inside[0] - 1, 0) : inside[-1] + 2]
    leads = [(line.raw_ns, line.real_ns - line.raw_ns) for line in near]
    if len(leads) < 3:
        return 0, ""
    (raw0, lead0), (raw1, lead1) = leads[0], leads[-1]
    strays = [lead - lead0 - (lead1 - lead0) * (raw - raw0) // max(raw1 - raw0, 1) for raw, lead in leads]
    jump = max(abs(after - before) for before, after in pairwise(strays))
    smeared_ns = max(map(abs, strays)) + jump
    if smeared_ns < SMEARED_FROM_NS:
        return 0, ""
    what = f"CLOCK_REALTIME left a straight line by up to {format_span_ns(smeared_ns)} in the profiled window"
    return smeared_ns, f"{what}: the profiler smears that over all its stamps"


# ---- pieces with bounds that hold ----


def _pieces(history: ClockHistory, first_ns: int, last_ns: int, wider_ns: int, marked: str) -> tuple[Piece, ...]:
    found: list[Piece] = []
    runs = history.runs()
    for run in runs:
        knots = [line.real_ns for line in run.lines]
        start_ns, end_ns = max(run.start_ns, first_ns), min(run.end_ns, last_ns)
        inner = [knot for knot in knots if start_ns < knot < end_ns]
        for begin_ns, finish_ns in zip([start_ns, *inner], [*inner, end_ns], strict=True):
            outside = begin_ns < knots[0] or finish_ns > knots[-1]
            if begin_ns > finish_ns or (outside and not _known_alone(history, begin_ns, finish_ns)):
                continue
            piece = _piece(run, begin_ns, finish_ns)
            if piece is not None:
                found.append(_widened(piece, wider_ns, marked))
    return tuple(sorted(found, key=lambda piece: (piece.start_ns, piece.end_ns)))


def _known_alone(history: ClockHistory, begin_ns: int, finish_ns: int) -> bool:
    """Outside of a run's lines its word holds only where no neighbour that knows nothing may be meant."""
    return history.offset_at_real(begin_ns).known and history.offset_at_real(finish_ns).known


def _piece(run: Run, begin_ns: int, finish_ns: int) -> Piece | None:
    """A straight piece whose bounds hold everywhere on it.

    hi is concave in between: its excess over the chord is at most twice that in the middle. lo mirrors it.
    """
    middle_ns = (begin_ns + finish_ns) // 2
    at = [run.at(begin_ns), run.at(middle_ns), run.at(finish_ns)]
    if at[0] is None or at[1] is None or at[2] is None:
        return None
    (lo0, hi0, est0, _), (lo, hi, _, _), (lo1, hi1, est1, _) = at[0], at[1], at[2]
    above = 2 * max(hi - (hi0 + hi1) // 2, 0) + 2 * EDGE_NS
    below = 2 * max((lo0 + lo1) // 2 - lo, 0) + 2 * EDGE_NS
    return Piece(
        start_ns=begin_ns,
        end_ns=finish_ns,
        at_start=(lo0 - below, est0, hi0 + above),
        at_end=(lo1 - below, est1, hi1 + above),
    )


def _widened(piece: Piece, by_ns: int, marked: str) -> Piece:
    def wider(at: tuple[int, int, int]) -> tuple[int, int, int]:
        return at[0] - by_ns, at[1], at[2] + by_ns

    return replace(piece, at_start=wider(piece.at_start), at_end=wider(piece.at_end), marked=marked)
