"""torch.profiler's printed table: not a trace, but pasted as one. Reads its numbers and knows its rounding artefact.

Decides whether a negative self time is there. It is an artefact of rounding nanoseconds to microseconds (PyTorch up to
2.3), never evidence of a clock that went backwards.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["TableRow", "parse_profiler_table"]

_UNITS_US = {"us": 1.0, "ms": 1e3, "s": 1e6}
_COLUMN_GAP = re.compile(r"\s{2,}")
_TIME = re.compile(r"(-?\d+(?:\.\d+)?)(us|ms|s)")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """One operator: its self time on the CPU, in µs, as printed."""

    name: str
    self_us: float


def parse_profiler_table(text: str) -> tuple[TableRow, ...] | None:
    """The rows of a printed table; None where the text is none."""
    rows: list[TableRow] = []
    column = None
    for line in text.splitlines():
        cells = _COLUMN_GAP.split(line.strip())
        if "Self CPU" in cells and "Name" in cells:
            column = cells.index("Self CPU")
        elif column is not None and len(cells) > column and (match := _TIME.fullmatch(cells[column])):
            rows.append(TableRow(name=cells[0], self_us=float(match.group(1)) * _UNITS_US[match.group(2)]))
    return tuple(rows) if column is not None else None
