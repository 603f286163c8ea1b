"""Any trace file to digests: Chrome traces and flight recorder dumps, one after another or in several processes.

Decides which reader a file needs, by its content. Refuses two files of one rank (UserError): one must be renamed or
its rank be given, never guessed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from rankclock.errors import HostError, UserError
from rankclock.traces.digest import FileDigest, TraceDigest, digest_file
from rankclock.traces.flight_recorder import digest_flight, is_flight
from rankclock.traces.processes import in_processes
from rankclock.traces.source import ByteSource

__all__ = ["by_rank", "read_files", "read_one"]


def read_one(path: Path, *, rank: int | None = None, busy: bool = False) -> FileDigest:
    """The digest of one file, whatever kind of trace it is. Raises UserError."""
    if path.is_dir():
        raise UserError(f"{path}: is a folder; give the trace files in it, as {path}/*.json")
    head = next(iter(ByteSource(path)), b"")[:4096]
    if is_flight(head):
        return FileDigest(path=path, traces=(digest_flight(path, rank=rank),), notes=())
    return digest_file(path, rank=rank, busy=busy)


def read_files(
    paths: Sequence[Path],
    *,
    ranks: Mapping[Path, int] | None = None,
    busy: bool = False,
    jobs: int | None = None,
    scheduler: str | None = None,
) -> list[FileDigest]:
    """Digests in the order of `paths`. jobs: processes (default: as many as this machine has cores, if it pays).

    scheduler: address of a dask scheduler whose workers see the same paths. Raises UserError, HostError.
    """
    ranks = ranks or {}
    work = [partial(read_one, path, rank=ranks.get(path), busy=busy) for path in paths]
    if scheduler is not None:
        return _on_dask(scheduler, work)
    size = sum(path.stat().st_size for path in paths if path.is_file())
    return in_processes(work, jobs=jobs, size=size)


def _on_dask(address: str, work: list[partial[FileDigest]]) -> list[FileDigest]:
    try:
        from distributed import Client
    except ImportError as error:
        raise HostError("--scheduler needs the package distributed: pip install distributed") from error
    try:
        client = Client(address, timeout="10s")
    except (OSError, ValueError) as error:
        raise HostError(
            f"no dask scheduler answers at {address} ({error}); start one or leave --scheduler out"
        ) from error
    with client:
        return list(client.gather([client.submit(call, pure=False) for call in work]))


def _same(one: TraceDigest, other: TraceDigest) -> bool:
    """Whether two documents of one file are copies of each other, as a file written twice has them."""
    return one.path == other.path and all(
        getattr(one, name) == getattr(other, name)
        for name in ("read", "lost", "first_ns", "last_ns", "phases", "base_ns", "longest_ns")
    )


def by_rank(files: Iterable[FileDigest]) -> dict[int, TraceDigest]:
    """The one trace of each rank. Raises UserError where a rank is unknown or has several."""
    found: dict[int, TraceDigest] = {}
    for file in files:
        if not file.traces:
            why = f" ({'; '.join(file.notes)})" if file.notes else ""
            raise UserError(f"{file.path}: no trace in it{why}; leave the file out, or record it again")
        for trace in file.traces:
            if trace.rank is None:
                raise UserError(
                    f"{file.path}: no rank in distributedInfo or the file's name; say --rank {file.path.name}=N"
                )
            other = found.get(trace.rank)
            if other is not None and _same(other, trace):
                note = f"document {trace.document + 1} repeats document {other.document + 1}: left out"
                found[trace.rank] = replace(other, notes=(*other.notes, note))
            elif other is not None:
                raise UserError(
                    f"{file.path}: rank {trace.rank} again, after {other.path}"
                    f"{' (a second document)' if other.path == file.path else ''}; leave one out, or say --rank FILE=N"
                )
            else:
                found[trace.rank] = trace
    return dict(sorted(found.items()))
