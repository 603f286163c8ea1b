"""The state of one node's clock: what its daemon claims and what was measured, side by side, never merged."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from rankclock.timebase.offset import Offset

__all__ = ["ClockState", "SyncState"]


class SyncState(StrEnum):
    """How a clock stands to its reference. `UNKNOWN` is a state: a clock that nobody could read is not fine."""

    SYNCHRONISED = "synchronised"
    HOLDOVER = "holdover"
    FREE_RUNNING = "free-running"
    UNSYNCHRONISED = "unsynchronised"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockState:
    """One node's clock.

    owner: the process that steers CLOCK_REALTIME ('chronyd', 'phc2sys', ...), None where nobody does, '?' where it
    could not be seen. source: who the daemon follows (an address, a grandmaster identity), '' where nobody.
    claimed: what the daemon says of itself. measured: what was measured between nodes.
    reasons: why the state is what it is, one clause each.
    """

    node: str
    state: SyncState
    owner: str | None
    source: str
    claimed: Offset
    measured: Offset
    reasons: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """A JSON object, schema 'rankclock-status/1'."""
        return {
            "schema": "rankclock-status/1",
            "node": self.node,
            "state": self.state.value,
            "owner": self.owner,
            "source": self.source,
            "claimed": self.claimed.to_json(),
            "measured": self.measured.to_json(),
            "reasons": list(self.reasons),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """The inverse of `to_json`. Raises KeyError, ValueError or TypeError where the object is not one."""
        return cls(
            node=value["node"],
            state=SyncState(value["state"]),
            owner=value["owner"],
            source=value["source"],
            claimed=Offset.from_json(value["claimed"]),
            measured=Offset.from_json(value["measured"]),
            reasons=tuple(value["reasons"]),
        )
