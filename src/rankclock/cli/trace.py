"""`rankclock trace`: profiler traces of many ranks on one timeline, with the doubt attached."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankclock.cli.output import err, out, print_json
from rankclock.errors import ExitCode, HostError, UserError

if TYPE_CHECKING:
    from rankclock.traces.digest import TraceDigest
    from rankclock.traces.timemap import Alignment

__all__ = ["Json", "Records", "app", "rank_options", "record_files"]

app = typer.Typer(help="Profiler traces of all ranks on one timeline, with the doubt attached.", no_args_is_help=True)

Files = Annotated[list[Path], typer.Argument(help="Traces: Chrome JSON (plain, gzip, zstd), flight recorder dumps.")]
Ranks = Annotated[list[str] | None, typer.Option("--rank", help="FILE=N where neither the trace nor its name says it.")]
Records = Annotated[
    list[Path] | None,
    typer.Option("--clock", help="Folder or file of rankclock-clock*.jsonl; also found in the traces and beside them."),
]
Scheduler = Annotated[
    str | None, typer.Option("--scheduler", help="Address of a dask scheduler that does the reading.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="Where to write; nothing is written without.")]
Format = Annotated[
    str,
    typer.Option(
        "--format",
        help="archive (a .zip or .tar for Perfetto, traces as they are), rewritten (a folder), merged (one trace), "
        "pftrace (one native Perfetto trace with clock snapshots).",
    ),
]


@app.command()
def info(files: Files, *, ranks: Ranks = None, as_json: Json = False) -> int:
    """Say what each trace is, how much of it could be read, and what was lost, where.

    Exit 0 where all can be used whole, 1 where something is lost or damaged, 2 where a file is no trace.

    Example: rankclock trace info run/traces/*.json.gz
    """
    from rankclock.traces.inspect import inspect_file

    given = rank_options(ranks, files)
    found = [finding for path in files for finding in inspect_file(path, rank=given.get(path))]
    if as_json:
        print_json({"schema": "rankclock-trace-info/1", "files": [one.to_json() for one in found]})
    else:
        for one in found:
            rank = one.values.get("rank")
            head = f"{one.path}: {one.verdict}" + ("" if rank is None else f", rank {rank}")
            count = f"; {one.values['read']:,} events read, {one.values['lost']:,} lost" if "read" in one.values else ""
            out().print(head + count, markup=False)
            for message in one.messages:
                out().print(f"  {message}", markup=False)
    return max((one.exit_code for one in found), default=ExitCode.OK)


@app.command()
def align(
    files: Files,
    *,
    output: Output = None,
    form: Format = "archive",
    records: Records = None,
    ranks: Ranks = None,
    scheduler: Scheduler = None,
    as_json: Json = False,
) -> int:
    """Bring traces onto cluster time by the clock records in them or beside them; every rank with its bound.

    Exit 0 where every rank is aligned, 4 where a rank's clock is unknown.

    Example: rankclock trace align run/traces/*.json --clock run/ -o aligned.zip
    """
    digests = _read(files, ranks, scheduler)
    return _finish(digests, _aligned(digests, files, records), output, form, as_json, extra={})


@app.command()
def recover(
    files: Files,
    *,
    output: Output = None,
    form: Format = "archive",
    ranks: Ranks = None,
    apart: Annotated[
        bool, typer.Option("--one-clock-a-rank", help="Ranks with the same host name do not share a clock.")
    ] = False,
    root: Annotated[int | None, typer.Option("--broadcast-root", help="The rank that broadcasts come from.")] = None,
    scheduler: Scheduler = None,
    as_json: Json = False,
) -> int:
    """Recover the ranks' clock offsets from the collectives in their traces, where no clock was recorded; with bounds.

    Exit 0 where every rank is bounded, 1 where ranks contradict the others, 4 where a rank stays unbounded.

    Example: rankclock trace recover run/traces/*.json -o merged.json --format merged
    """
    from rankclock.traces.recover import recover as recover_clocks

    digests = _read(files, ranks, scheduler)
    found = recover_clocks(digests, one_clock_per_host=not apart, broadcast_root=root)
    clocks = [
        {
            "clock": clock.name,
            "ranks": list(clock.ranks),
            "offset": clock.offset.to_json(),
            "rate_ppb": clock.rate_ppb,
            "collectives": clock.collectives,
            "steps": [list(step) for step in clock.steps],
        }
        for clock in found.clocks
    ]
    extra = {
        "clocks": clocks,
        "inconsistent": {str(rank): why for rank, why in found.inconsistent.items()},
        "used_collectives": found.used,
        "left_out": dict(found.left_out),
        "assumptions": list(found.assumptions),
    }
    code = _finish(digests, found.alignment, output, form, as_json, extra=extra)
    if not as_json:
        out().print(f"{found.used} collectives used; left out: {dict(found.left_out) or 'none'}", markup=False)
        for text in found.assumptions:
            out().print(f"assumed: {text}", markup=False)
    return ExitCode.CHECK_FAILED if found.inconsistent else code


@app.command()
def stragglers(
    files: Files,
    *,
    records: Records = None,
    ranks: Ranks = None,
    prometheus: Annotated[bool, typer.Option("--prometheus", help="Print Prometheus text.")] = False,
    page: Annotated[
        Path | None, typer.Option("--page", help="Also write a page with pictures (HTML, offline).")
    ] = None,
    as_json: Json = False,
) -> int:
    """Say which rank everybody waits for in the collectives, and what that costs; nobody where the clocks forbid it.

    Clocks are those of the records; without any they are recovered from the collectives. Exit 1 where a rank is
    named, 0 where none is, 4 where nothing can be told.

    Example: rankclock trace stragglers run/traces/*.json
    """
    from rankclock.traces.stragglers import find_stragglers

    digests = _read(files, ranks, None)
    report = find_stragglers(digests, _clocks(digests, files, records))
    if page is not None:
        from rankclock.traces.stragglers_page import write_page

        write_page(page, report)
    if as_json:
        print_json(report.to_json())
    elif prometheus:
        out().print(report.prometheus(), end="", markup=False)
    else:
        out().print(f"clocks: {report.method}; reference {report.reference}", markup=False)
        for line in report.lines():
            out().print(line, markup=False)
    return report.exit_code


@app.command()
def check(
    files: Files,
    *,
    records: Records = None,
    ranks: Ranks = None,
    as_json: Json = False,
) -> int:
    """Test that nobody leaves a collective before all have entered it, on the timeline that the records give.

    Only kinds of collectives that promise it are tested. Exit 0 where it holds everywhere, 1 where it surely does not,
    4 where the bounds do not let one tell.

    Example: rankclock trace check run/traces/*.json --clock run/
    """
    from rankclock.traces.happens_before import check_order

    digests = _read(files, ranks, None)
    order = check_order(digests, _aligned(digests, files, records))
    if as_json:
        print_json(order.to_json())
    else:
        for line in order.lines():
            out().print(line, markup=False)
    return order.exit_code


# ---- shared ----


def _read(files: list[Path], ranks: list[str] | None, scheduler: str | None) -> dict[int, TraceDigest]:
    from rankclock.traces.read import by_rank, read_files

    return by_rank(read_files(files, ranks=rank_options(ranks, files), scheduler=scheduler))


def _aligned(digests: dict[int, TraceDigest], files: list[Path], records: list[Path] | None) -> Alignment:
    from rankclock.traces.align import align as align_traces
    from rankclock.traces.align import find_records, read_records

    return align_traces(digests, read_records(record_files(records) if records else find_records(files)))


def _clocks(digests: dict[int, TraceDigest], files: list[Path], records: list[Path] | None) -> Alignment:
    """By the records where every rank has one; recovered where no rank has."""
    from rankclock.traces.recover import recover as recover_clocks

    aligned = _aligned(digests, files, records)
    known = [one.known for one in aligned.ranks.values()]
    return aligned if any(known) else recover_clocks(digests).alignment


def rank_options(given: list[str] | None, files: list[Path]) -> dict[Path, int]:
    """`--rank FILE=N` options. Raises UserError."""
    found: dict[Path, int] = {}
    for text in given or []:
        name, _, number = text.rpartition("=")
        named = [path for path in files if name in (str(path), path.name)]
        if not number.isdecimal() or len(named) != 1:
            raise UserError(f"--rank {text}: expected FILE=N with one of the files given and a number from 0")
        found[named[0]] = int(number)
    return found


def record_files(places: Iterable[Path]) -> list[Path]:
    """`--clock` options: files, and those in folders. Raises UserError."""
    found: list[Path] = []
    for place in places:
        inside = sorted(place.glob("rankclock-clock*.jsonl")) if place.is_dir() else [place]
        if not inside:
            raise UserError(f"{place}: no rankclock-clock*.jsonl in this folder")
        found += inside
    return found


def _finish(
    digests: Mapping[int, TraceDigest],
    alignment: Alignment,
    output: Path | None,
    form: str,
    as_json: bool,
    *,
    extra: dict[str, Any],
) -> int:
    written = _write(digests, alignment, output, form) if output is not None else None
    if as_json:
        print_json({**alignment.to_json(), **extra, "written": written})
    else:
        _show(digests, alignment)
        if written is not None:
            err().print(f"written: {written}", markup=False)
    return ExitCode.OK if all(one.known for one in alignment.ranks.values()) else ExitCode.CANNOT_TELL


def _show(digests: Mapping[int, TraceDigest], alignment: Alignment) -> None:
    from rich.table import Table

    from rankclock.timebase import format_offset_ns, format_span_ns

    out().print(f"{alignment.method}; reference {alignment.reference}", markup=False)
    table = Table()
    for column in ("rank", "host", "offset in the middle", "bound, worst", "marked"):
        table.add_column(column)
    for rank, found in alignment.ranks.items():
        digest = digests[rank]
        first_ns, last_ns = digest.first_ns, digest.last_ns
        at = found.offset_at((first_ns + last_ns) // 2) if first_ns is not None and last_ns is not None else None
        if at is None or first_ns is None or last_ns is None:
            table.add_row(str(rank), found.host, "unknown", "", found.unknown_why)
            continue
        worst_ns = found.worst_bound_ns(first_ns, last_ns)
        bound = "unknown for a part" if worst_ns is None else f"±{format_span_ns(worst_ns)}"
        marked = "; ".join(sorted({piece.marked for piece in found.pieces if piece.marked}))
        table.add_row(str(rank), found.host, format_offset_ns(at[1]), bound, marked)
    out().print(table)
    for problem in alignment.problems:
        out().print(problem, markup=False)


def _write(digests: Mapping[int, TraceDigest], alignment: Alignment, output: Path, form: str) -> str:
    from rankclock.traces.archive import write_archive
    from rankclock.traces.rewrite import common_base_ns, merged, write_rewritten

    if form == "archive":
        with _published(output) as part:
            names = {rank: f"rank{rank}.json" for rank in digests}
            write_archive(part, digests, alignment, names, tar=output.suffix == ".tar")
    elif form == "merged":
        with _published(output) as part:
            _dump(merged(digests, alignment, common_base_ns(digests)), part, packed=output.suffix == ".gz")
    elif form == "pftrace":
        from rankclock.traces.pftrace import pftrace

        left_out: Counter[str] = Counter()
        with _published(output) as part:
            _dump(pftrace(digests, alignment, left_out), part, packed=output.suffix == ".gz")
        for why, number in left_out.items():
            err().print(f"left out: {number} with {why}", markup=False)
    elif form == "rewritten":
        if output.exists() and (not output.is_dir() or any(output.iterdir())):
            raise UserError(f"{output}: expected a folder that is new or empty, to write {len(digests)} traces into")
        with _published(output) as part:
            part.unlink()
            part.mkdir()
            write_rewritten(digests, alignment, part)
    else:
        raise UserError(f"--format {form}: expected archive, rewritten, merged or pftrace")
    return str(output)


def _dump(pieces: Iterable[bytes | bytearray], path: Path, *, packed: bool) -> None:
    import gzip

    with gzip.open(path, "wb", compresslevel=6) if packed else path.open("wb") as file:
        for piece in pieces:
            file.write(piece)


@contextmanager
def _published(output: Path) -> Iterator[Path]:
    """A temporary name beside the output, renamed to it at the end; nothing is left where something fails."""
    import shutil

    try:
        handle, name = tempfile.mkstemp(dir=output.resolve().parent, prefix=f".{output.name}.")
    except OSError as error:
        raise HostError(f"{output}: cannot write there: {error.strerror}") from error
    os.close(handle)
    part = Path(name)
    try:
        yield part
        if output.is_dir() and part.is_dir():
            output.rmdir()
        part.chmod(0o755 if part.is_dir() else 0o644)
        part.rename(output)
    except OSError as error:
        raise HostError(f"{output}: not written: {error.strerror}") from error
    finally:
        if part.is_dir():
            shutil.rmtree(part)
        part.unlink(missing_ok=True)
