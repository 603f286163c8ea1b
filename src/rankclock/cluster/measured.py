"""What was measured of the paths between nodes: round trips and loss, as `preflight` and `verify` write them (--json).

Parses; decides nothing. A path that nobody measured is not there: it is unknown, not good.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Self

from rankclock.errors import DecodeError

__all__ = ["MeasuredPath", "worst_loss"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPath:
    """One way from a prober to its peer. round_trip_ns: the least one seen, stamps in the kernel; None: no answer."""

    local: str
    peer: str
    sent: int
    answered: int
    round_trip_ns: int | None

    @property
    def lost(self) -> int:
        """Probes without an answer."""
        return max(self.sent - self.answered, 0)

    def to_json(self) -> dict[str, Any]:
        """A JSON object with every field."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """The inverse of `to_json`. Raises DecodeError for anything else."""
        if not isinstance(value, dict):
            raise DecodeError(f"a path is an object, found {value!r:.60}")
        numbers = [value.get(name) for name in ("sent", "answered", "round_trip_ns")]
        names = (value.get("local"), value.get("peer"))
        if not all(isinstance(name, str) and name for name in names):
            raise DecodeError(f"a path has a local and a peer, found {names!r:.60}")
        sent, answered, trip_ns = numbers
        if type(sent) is not int or type(answered) is not int or min(sent, answered) < 0:
            raise DecodeError(f"a path has sent and answered in whole numbers, found {value!r:.90}")
        if trip_ns is not None and type(trip_ns) is not int:
            raise DecodeError(f"a path has a round_trip_ns in whole numbers or null, found {value!r:.90}")
        return cls(local=value["local"], peer=value["peer"], sent=sent, answered=answered, round_trip_ns=trip_ns)


def worst_loss(paths: Iterable[MeasuredPath]) -> tuple[MeasuredPath, float] | None:
    """The path that lost most of what it sent, and how much (0 to 1); None where nothing was sent."""
    shares = [(path, path.lost / path.sent) for path in paths if path.sent]
    return max(shares, key=lambda item: item[1], default=None)
