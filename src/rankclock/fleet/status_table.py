"""The one status table: what each node's daemon claims, what was measured, and in a lab the truth. Pure.

Claims and measurements stand side by side, never merged. A measured bound that does not contain the truth is said
in words. Worst first: a missed truth, then clocks nobody vouches for, then by how far off a clock may be.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rankclock.timebase import ClockState, Offset, SyncState, format_offset_ns, format_span_ns

__all__ = ["COLUMNS", "MISSES_TRUTH", "StatusRow", "cells", "offset_text", "row_json", "worst_first"]

MISSES_TRUTH = "MISSES TRUTH"
COLUMNS = ("node", "role", "owner", "source", "state", "claimed", "measured", "truth")

_SEVERITY = (
    SyncState.UNKNOWN,
    SyncState.UNSYNCHRONISED,
    SyncState.FREE_RUNNING,
    SyncState.HOLDOVER,
    SyncState.SYNCHRONISED,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusRow:
    """One node. role: as planned, '' where no plan is known. truth_ns: what the measured offset really was at its
    instant, None outside a lab.
    """

    state: ClockState
    role: str = ""
    truth_ns: int | None = None

    @property
    def misses_truth(self) -> bool:
        """Whether our own measurement is wrong: its interval does not hold the truth."""
        return self.truth_ns is not None and not self.state.measured.contains(self.truth_ns)

    @property
    def claim_misses_truth(self) -> bool:
        """Whether the daemon's claim does not hold the truth. Only meaningful where both speak of one reference."""
        return self.truth_ns is not None and not self.state.claimed.contains(self.truth_ns)

    def far_ns(self) -> int:
        """How far off this clock may be, by the measurement where there is one, else by the claim; 0 where unknown."""
        for offset in (self.state.measured, self.state.claimed):
            if offset.lo_ns is not None and offset.hi_ns is not None:
                return max(abs(offset.lo_ns), abs(offset.hi_ns))
        return 0


def worst_first(rows: Iterable[StatusRow]) -> list[StatusRow]:
    """The rows in the order in which somebody should look at them."""
    return sorted(
        rows, key=lambda row: (not row.misses_truth, _SEVERITY.index(row.state.state), -row.far_ns(), row.state.node)
    )


def offset_text(offset: Offset) -> str:
    """'+1.20 µs ± 30.0 µs, 2.10 s old'; 'unknown' where it is."""
    if offset.estimate_ns is None or offset.bound_ns is None:
        return "unknown"
    text = f"{format_offset_ns(offset.estimate_ns)} ± {format_span_ns(offset.bound_ns)}"
    return f"{text}, {format_span_ns(offset.age_ns)} old" if offset.age_ns else text


def cells(row: StatusRow) -> tuple[str, ...]:
    """The texts of a row, in the order of `COLUMNS`."""
    state = row.state
    measured = offset_text(state.measured)
    if row.misses_truth:
        measured = f"{measured} {MISSES_TRUTH}"
    truth = "" if row.truth_ns is None else format_offset_ns(row.truth_ns)
    return (
        state.node,
        row.role,
        state.owner or "nobody",
        state.source or "-",
        state.state.value,
        offset_text(state.claimed),
        measured,
        truth,
    )


def row_json(row: StatusRow) -> dict[str, Any]:
    """The clock state with what the row adds."""
    return {
        **row.state.to_json(),
        "role": row.role or None,
        "truth_ns": row.truth_ns,
        "misses_truth": row.misses_truth if row.truth_ns is not None else None,
    }
