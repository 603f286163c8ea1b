"""Keeps a rotation that sorts checkpoints by mtime from deleting the newest one.

transformers' Trainer removes the checkpoints with the oldest mtimes. Where a clock was set back, or several machines
with different clocks wrote, the newest checkpoint may carry the oldest mtime and is removed right after it was saved.
`restamp`, called before each save, gives the folders mtimes in the order of their steps, none later than what the file
system gives to a file made now. It changes nothing where they are in order already, and touches nothing else.
"""

from __future__ import annotations

import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Restamped", "restamp"]

_STEP_NS = 2_000_000_000
"""Between two neighbours that had to be moved: file systems keep whole seconds (ext3, some NFS), FAT two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restamped:
    """One folder whose mtime was moved, in ns since 1970."""

    path: Path
    from_ns: int
    to_ns: int


def restamp(directory: str | os.PathLike[str], prefix: str = "checkpoint") -> list[Restamped]:
    """Puts the mtimes of `<prefix>-<step>` folders in the order of their steps, before now; gives what it changed.

    Folders keep their mtime where it is in order; the others are moved back, never forward. Raises OSError.
    """
    parent = Path(directory)
    named = re.compile(rf"{re.escape(prefix)}-(\d+)\Z")
    if not parent.is_dir():
        return []
    steps = {
        int(match[1]): entry for entry in parent.iterdir() if (match := named.match(entry.name)) and entry.is_dir()
    }
    if not steps:
        return []
    changed = []
    limit_ns = _file_system_now_ns(parent)
    for step in sorted(steps, reverse=True):
        found_ns = steps[step].stat().st_mtime_ns
        if found_ns >= limit_ns:
            wanted_ns = limit_ns - _STEP_NS
            os.utime(steps[step], ns=(steps[step].stat().st_atime_ns, wanted_ns))
            changed.append(Restamped(path=steps[step], from_ns=found_ns, to_ns=wanted_ns))
            found_ns = wanted_ns
        limit_ns = found_ns
    return changed


def _file_system_now_ns(parent: Path) -> int:
    """The clock that gives mtimes here: on a network file system it is the server's."""
    with tempfile.NamedTemporaryFile(dir=parent, prefix=".rankclock-now-") as file:
        return os.fstat(file.fileno()).st_mtime_ns
