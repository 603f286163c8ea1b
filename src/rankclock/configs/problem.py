"""What lint says of one line: the value that all readers of configurations return."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Problem"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One line of a file. rejected: the daemon does not start with it; else it takes it and means something else."""

    line: int
    rejected: bool
    what: str
    do: str
