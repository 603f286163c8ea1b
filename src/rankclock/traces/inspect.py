"""What one trace file is and how much of it can be used: the answer of `rankclock trace info`.

Decides the verdict: `ok`, `ok with warning`, `recoverable` (odd text, nothing lost), `usable with loss` (events without
a time, a cut file), `input-error` (events that are no whole JSON), `artefact` (a printed table's rounding), `no trace`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rankclock.errors import ExitCode
from rankclock.timebase import format_span_ns
from rankclock.traces.digest import FileDigest, TraceDigest
from rankclock.traces.kinds import SYMMETRIC
from rankclock.traces.profiler_table import TableRow, parse_profiler_table
from rankclock.traces.read import read_one
from rankclock.traces.source import ByteSource

__all__ = ["Finding", "inspect_file", "iso_of_ns"]

SECONDS_NS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The answer for one file. values: numbers read, each with its unit in the name. messages: one clause each."""

    path: Path
    verdict: str
    messages: tuple[str, ...]
    values: dict[str, Any]

    @property
    def exit_code(self) -> ExitCode:
        """Fine, damaged, or nothing to be told of."""
        if self.verdict in ("ok", "ok with warning", "recoverable", "artefact"):
            return ExitCode.OK
        return ExitCode.BAD_INPUT if self.verdict == "no trace" else ExitCode.CHECK_FAILED

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {
            "file": str(self.path),
            "verdict": self.verdict,
            "messages": list(self.messages),
            "values": self.values,
        }


def inspect_file(path: Path, *, rank: int | None = None) -> list[Finding]:
    """One finding per document of the file. Raises UserError where it cannot be read."""
    file = read_one(path, rank=rank)
    if not file.traces:
        return [_no_trace(path, file)]
    return [_finding(trace) for trace in file.traces]


def iso_of_ns(time_ns: int) -> str:
    """UTC with as many decimals as the instant has, three at least: '2024-02-23T21:09:36.381804Z'."""
    whole, rest = divmod(time_ns, SECONDS_NS)
    fraction = f"{rest:09d}"
    for digits in (3, 6):
        if not int(fraction[digits:]):
            fraction = fraction[:digits]
            break
    return f"{datetime.fromtimestamp(whole, UTC):%Y-%m-%dT%H:%M:%S}.{fraction}Z"


def _no_trace(path: Path, file: FileDigest) -> Finding:
    head = next(iter(ByteSource(path)), b"")
    rows = parse_profiler_table(head.decode("utf-8", "replace"))
    if rows is not None:
        return _table(path, rows)
    notes = file.notes or ("no event in it: a Chrome trace has a list traceEvents",)
    return Finding(path=path, verdict="no trace", messages=notes, values={"read": 0, "lost": 0})


def _table(path: Path, rows: Iterable[TableRow]) -> Finding:
    negative = [row for row in rows if row.self_us < 0]
    messages = [
        f"{row.name}: self time {row.self_us} µs is below zero because parent and child were rounded to whole µs "
        "(PyTorch up to 2.3): an artefact, no clock ran backwards"
        for row in negative
    ]
    return Finding(
        path=path,
        verdict="artefact" if negative else "no trace",
        messages=(*messages, "a printed profiler table has no instants: export the trace to see it on a timeline"),
        values={"self_us": negative[0].self_us} if negative else {},
    )


def _finding(trace: TraceDigest) -> Finding:
    problems, warnings = _problems(trace), _warnings(trace)
    if trace.lost and not all("ends inside" in why for why in trace.reasons):
        verdict = "input-error"
    elif (
        trace.lost
        or trace.zero_time
        or trace.no_time
        or any("cut" in note or "end early" in note for note in trace.notes)
    ):
        verdict = "usable with loss"
    elif trace.odd or trace.notes or trace.no_duration:
        verdict = "recoverable"
    else:
        verdict = "ok with warning" if warnings else "ok"
    return Finding(path=trace.path, verdict=verdict, messages=(*problems, *warnings), values=_values(trace))


def _problems(trace: TraceDigest) -> list[str]:
    messages = list(trace.notes)
    for line, loss in trace.losses[:5]:
        messages.append(f"line {line}, byte {loss.offset}: {_count(loss.events, 'event')} lost ({loss.why})")
    if len(trace.losses) > 5:
        messages.append(f"{trace.lost} events lost in all, {trace.read} read")
    messages += [f"{_count(number, 'event')} read although not valid: {why}" for why, number in trace.odd.items()]
    if trace.zero_time:
        zero = sum(trace.zero_time.values())
        messages.append(f"{_count(zero, 'event')} at time 0 have no time: left out of every computation of times")
    if trace.no_time:
        messages.append(f"{_count(trace.no_time, 'event')} with a time that is no number or years away: left out")
    if trace.no_duration:
        messages.append(
            f"{_count(trace.no_duration, 'span')} with a negative or unreadable duration: their ends are unknown"
        )
    return messages


def _warnings(trace: TraceDigest) -> list[str]:
    warnings = []
    if trace.rank is None:
        warnings.append("rank unknown: neither distributedInfo nor the file's name has it; say --rank FILE=N")
    if trace.form == "chrome" and trace.base_ns is None:
        where = "µs since 1970" if trace.realtime else "µs since an unknown start"
        warnings.append(f"no baseTimeNanoseconds: ts is taken as {where}")
    if trace.display_unit == "ns" and trace.longest_ns >= SECONDS_NS:
        warnings.append(
            f"displayTimeUnit ns changes how viewers print, not ts and dur, which are µs: the longest span is "
            f"{format_span_ns(trace.longest_ns)}; if it is 1000 times too long, the writer meant ns"
        )
    return warnings


def _values(trace: TraceDigest) -> dict[str, Any]:
    first_ns, last_ns = trace.first_ns, trace.last_ns
    values: dict[str, Any] = {
        "form": trace.form,
        "document": trace.document + 1,
        "documents": trace.documents,
        "rank": trace.rank,
        "rank_from": trace.rank_from or None,
        "world_size": trace.world_size,
        "host": trace.host,
        "packing": trace.packing,
        "size_bytes": trace.size,
        "read": trace.read,
        "lost": trace.lost,
        "lost_by_reason": dict(trace.reasons),
        "odd_by_reason": dict(trace.odd),
        "valid_X": trace.valid_spans,
        "zero_ts_X": trace.zero_time.get("X", 0),
        "zero_ts_flow": sum(trace.zero_time.get(phase, 0) for phase in "stf"),
        "no_time": trace.no_time,
        "no_duration": trace.no_duration,
        "base_ns": trace.base_ns,
        "start_utc": iso_of_ns(first_ns) if first_ns is not None and trace.realtime and first_ns >= 0 else None,
        "start_ns": first_ns,
        "span_us": None if first_ns is None or last_ns is None else (last_ns - first_ns) / 1000,
        "longest_us": trace.longest_ns / 1000,
        "steps": [number for number, _, _ in trace.steps],
        "collectives": _collectives(trace),
        "enqueue_only": trace.enqueued,
        "clock_record": trace.clock_record is not None,
        "aligned": trace.aligned is not None,
    }
    return values


def _collectives(trace: TraceDigest) -> list[dict[str, Any]]:
    columns = trace.collectives
    rows = []
    for index, token in enumerate(columns.tokens):
        of_token = columns.token == index
        rows.append(
            {
                "kind": token.kind.value,
                "group": token.group or None,
                "size": token.size if token.size >= 0 else None,
                "count": int(of_token.sum()),
                "with_sequence": int((columns.sequence[of_token] >= 0).sum()),
                "symmetric": token.kind in SYMMETRIC,
            }
        )
    return rows


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
