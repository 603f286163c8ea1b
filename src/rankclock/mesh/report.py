"""What one node measured of its peers: plain values that travel between ranks as JSON.

Two relations per peer. `raw`: the two free-running clocks (CLOCK_MONOTONIC_RAW) against each other, with rate, which can
be brought to any instant near. `offset`: CLOCK_REALTIME here minus CLOCK_REALTIME there at one instant. The node's own
`readings` tie its RAW to its REALTIME, so that reports of many nodes can be combined at one common instant
(`rankclock.mesh.matrix.pairwise`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from rankclock.clockmath.hull import HullBound
from rankclock.clockmath.realtime import Reading
from rankclock.timebase import Offset

__all__ = ["EdgeReport", "NodeReport"]

SCHEMA = "rankclock-edges/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeReport:
    """One peer as one node sees it.

    peer_clock_id: identity of the peer's clock ('' until it answered); equal ids are one clock.
    offset: REALTIME here - REALTIME there at RAW instant offset.at_raw_ns, or unknown with the reason.
    raw: RAW here - RAW there, a polygon of offset and rate; None where nothing was measured.
    raw_estimate_ns: best guess of RAW here - RAW there at raw.at_ns; raw_rate_ppb: of its rate.
    """

    peer: str
    peer_clock_id: str
    offset: Offset
    raw: HullBound | None
    raw_estimate_ns: int | None
    raw_rate_ppb: float | None
    min_rtt_ns: int | None
    sent: int
    answered: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """What one prober knows when it is asked. `counters`: datagrams dropped, by reason; steps seen."""

    node: str
    clock_id: str
    stamps: str
    made_at_raw_ns: int
    readings: tuple[Reading, ...]
    edges: tuple[EdgeReport, ...]
    counters: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        """A JSON object, schema 'rankclock-edges/1'."""
        raise NotImplementedError

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """The inverse of `to_json`. Raises DecodeError, nothing else, for any input."""
        raise NotImplementedError
