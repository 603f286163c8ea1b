"""What a daemon's own words amount to: a state, a source, an offset with its bound or unknown, and why."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from rankclock.timebase import Offset, SyncState

__all__ = ["Claim"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """state, source, offset, reasons: as in `ClockState`, of one clock as one daemon tells it."""

    state: SyncState
    source: str
    offset: Offset
    reasons: tuple[str, ...]

    @classmethod
    def without_offset(
        cls, state: SyncState, *reasons: str, method: str, source: str = "", reference: str = "none"
    ) -> Self:
        """A state in which the daemon's numbers mean nothing; the first reason says why."""
        offset = Offset.unknown(reasons[0], reference=reference, method=method)
        return cls(state=state, source=source, offset=offset, reasons=reasons)

    def because(self, *reasons: str, state: SyncState | None = None) -> Self:
        """The same with more reasons, and another state where one is given."""
        return replace(self, reasons=(*self.reasons, *reasons), state=state or self.state)
