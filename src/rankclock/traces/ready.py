"""Each rank's trace brought onto cluster time where it is recorded, so that merging is packing an archive.

    with ClockedProfile(clock, schedule=..., on_trace_ready=ClusterTimeTraces("run/traces")) as profile: ...

The trace is written as the profiler made it (rank3.0.local.json); another process, of low priority, writes it in
cluster time (rank3.0.json) and then removes the first, unless that is to be kept. Where the clock is unknown the local
one stays, and the log says why. Training never waits for it and never fails because of it. Needs no torch.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Protocol

from rankclock.errors import RankclockError
from rankclock.traces.align import align
from rankclock.traces.read import by_rank, read_one
from rankclock.traces.rewrite import rewritten

__all__ = ["ClusterTimeTraces", "bring_onto_cluster_time"]

LOG = logging.getLogger("rankclock")

NICER_BY = 10


class _Profile(Protocol):
    def export_chrome_trace(self, path: str) -> Any: ...


class ClusterTimeTraces:
    """A handler for `on_trace_ready`. folder: where traces go; names count the windows of this process.

    keep_original: the trace as the profiler made it stays beside the other. rank: by default what the launcher says.
    """

    def __init__(self, folder: str | Path, *, keep_original: bool = False, rank: int | None = None) -> None:
        said = os.environ.get("RANK", "")
        self._rank = rank if rank is not None else int(said) if said.isdecimal() else 0
        self._folder = Path(folder)
        self._keep = keep_original
        self._windows = 0
        self._running: list[tuple[Path, subprocess.Popen[str]]] = []

    def __call__(self, profile: _Profile) -> None:
        """Export the window that has ended and start bringing it onto cluster time. Never raises."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            name = self._free_name()
            local = self._folder / f"{name}.local.json"
            profile.export_chrome_trace(str(local))
            argv = [
                sys.executable,
                "-m",
                "rankclock.traces.ready",
                str(local),
                str(self._folder / f"{name}.json"),
                str(self._rank),
            ]
            child = subprocess.Popen(
                [*argv, "keep" if self._keep else "remove"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            self._running.append((local, child))
            self._collect(0)
        except Exception as error:
            LOG.warning("rankclock: a trace is not brought onto cluster time: %s: %s", type(error).__name__, error)

    def _free_name(self) -> str:
        """The next window's name. A restarted worker does not write over what was recorded before."""
        while True:
            name = f"rank{self._rank}.{self._windows}"
            self._windows += 1
            if not any((self._folder / f"{name}{end}").exists() for end in (".json", ".local.json")):
                return name

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for what is being written, each at most that long; whether all of it has ended."""
        self._collect(timeout_s)
        return not self._running

    def _collect(self, timeout_s: float | None) -> None:
        going_on = []
        for local, child in self._running:
            try:
                _, said = child.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                going_on.append((local, child))
                continue
            if child.returncode:
                LOG.warning("rankclock: %s stays in local time: %s", local, said.strip().rpartition("\n")[2])
        self._running = going_on


def bring_onto_cluster_time(local: Path, out: Path, *, rank: int, keep: bool) -> None:
    """Write `local` to `out` by the clock record in it; then remove `local` unless it is kept.

    Raises RankclockError where it cannot be: then `out` does not appear and `local` stays.
    """
    digests = by_rank([read_one(local, rank=rank)])
    alignment = align(digests)
    digest = digests[rank]
    pieces = rewritten(digest, alignment.ranks[rank], alignment, digest.base_ns or 0)
    handle, name = tempfile.mkstemp(dir=out.parent, prefix=f".{out.name}.")
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            for piece in pieces:
                file.write(piece)
        part.chmod(0o644)
        part.rename(out)
    finally:
        part.unlink(missing_ok=True)
    if not keep:
        local.unlink()


def main(arguments: list[str]) -> int:
    """`python -m rankclock.traces.ready LOCAL OUT RANK keep|remove`, as the handler starts it."""
    os.nice(NICER_BY)
    local, out, rank, what = arguments
    try:
        bring_onto_cluster_time(Path(local), Path(out), rank=int(rank), keep=what == "keep")
    except (RankclockError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
