"""`rankclock logs`: logs of many ranks in one order."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankclock.cli.output import err
from rankclock.cli.trace import Json, Records, rank_options, record_files
from rankclock.errors import ExitCode, UserError

if TYPE_CHECKING:
    from rankclock.traces.merge_logs import LogCounts, MergedLine

__all__ = ["app"]

app = typer.Typer(help="Logs of many ranks in one order, by cluster time.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Logs of many ranks in one order, by cluster time."""


@app.command()
def merge(
    files: Annotated[list[Path], typer.Argument(help="Logs of torchrun, NCCL, Python; plain, gzip or zstd.")],
    *,
    records: Records = None,
    ranks: Annotated[
        list[str] | None, typer.Option("--rank", help="FILE=N where the name and lines do not say.")
    ] = None,
    zone: Annotated[str, typer.Option("--zone", help="Of stamps that name none: UTC or +08:00.")] = "UTC",
    year: Annotated[int | None, typer.Option("--year", help="Of stamps without one; by default this year.")] = None,
    as_json: Json = False,
) -> int:
    """Merge logs into one stream: cluster time, bound, rank, line. ~ marks a line whose place is a guess.

    Exit 0 where every rank's clock is known, 4 where one is not: its lines stand by its own clock, marked ?.

    Example: rankclock logs merge run/logs/rank*.log --clock run/
    """
    from rankclock.traces.align import find_records, read_records
    from rankclock.traces.log_lines import Zone
    from rankclock.traces.merge_logs import LogCounts, merge_logs

    counts = LogCounts()
    read = read_records(record_files(records) if records else find_records(files))
    how = Zone(offset_s=_zone_s(zone), year=year or datetime.now(UTC).year)
    lines = merge_logs(files, read, ranks=rank_options(ranks, files), zone=how, counts=counts)
    if as_json:
        _write_json(lines, counts)
    else:
        _write_text(lines)
    unknown = f"; clocks unknown: ranks {sorted(counts.unknown_ranks)}" if counts.unknown_ranks else ""
    said = f"{counts.lines} lines, {counts.entries} stamped, {counts.unsure} in an order that is a guess{unknown}"
    err().print(said + (f"; {counts.unstamped} before the first stamp" if counts.unstamped else ""), markup=False)
    return ExitCode.CANNOT_TELL if counts.unknown_ranks else ExitCode.OK


def _write_text(lines: Iterable[MergedLine]) -> None:
    from rankclock.timebase import format_span_ns
    from rankclock.training.log_stamps import utc_text

    for line in lines:
        middle_ns, bound_ns = (line.lo_ns + line.hi_ns) // 2, (line.hi_ns - line.lo_ns + 1) // 2
        mark = "?" if not line.clock_known else "~" if line.unsure else " "
        head = f"{utc_text(middle_ns)} ±{format_span_ns(bound_ns):<8} {mark} rank{line.rank}"
        sys.stdout.write(f"{head} | {line.text}\n")


def _write_json(lines: Iterable[MergedLine], counts: LogCounts) -> None:
    """One object, written entry by entry: logs of a day need not fit into memory."""
    sys.stdout.write('{"schema": "rankclock-logs/1", "entries": [')
    for number, line in enumerate(lines):
        sys.stdout.write(("," if number else "") + "\n" + json.dumps(asdict(line), ensure_ascii=False))
    sys.stdout.write(f'\n], "lines": {counts.lines}, "unsure": {counts.unsure}}}\n')


def _zone_s(text: str) -> int:
    if text.upper() in ("UTC", "Z"):
        return 0
    match = re.fullmatch(r"([+-])(\d\d):?(\d\d)", text)
    if match is None or int(match[2]) > 14 or int(match[3]) > 59:
        raise UserError(f"--zone {text}: expected UTC or an offset as +08:00")
    return (-1 if match[1] == "-" else 1) * (int(match[2]) * 3600 + int(match[3]) * 60)
