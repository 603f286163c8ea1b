"""What one node measured of its peers: plain values that travel between ranks as JSON.

Two relations per peer. `raw`: the two free-running clocks (CLOCK_MONOTONIC_RAW) against each other, with rate, which
can be brought to any instant near. `offset`: CLOCK_REALTIME here minus CLOCK_REALTIME there at one instant. The node's
own `readings` tie its RAW to its REALTIME, so that reports of many nodes combine at one common instant
(`rankclock.mesh.matrix.pairwise`). Refuses, with DecodeError, whatever is not such a report.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from rankclock.clockmath.hull import HullBound
from rankclock.clockmath.realtime import Reading
from rankclock.errors import DecodeError
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

    def to_json(self) -> dict[str, Any]:
        """A JSON object with every field."""
        return {
            "peer": self.peer,
            "peer_clock_id": self.peer_clock_id,
            "offset": self.offset.to_json(),
            "raw": None if self.raw is None else self.raw.to_json(),
            "raw_estimate_ns": self.raw_estimate_ns,
            "raw_rate_ppb": self.raw_rate_ppb,
            "min_rtt_ns": self.min_rtt_ns,
            "sent": self.sent,
            "answered": self.answered,
        }

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """The inverse of `to_json`. Raises DecodeError, nothing else, for any input."""
        raw = _field(value, "raw", dict, type(None))
        rate = _field(value, "raw_rate_ppb", float, int, type(None))
        try:
            offset = Offset.from_json(_field(value, "offset", dict))
        except (TypeError, ValueError) as error:
            raise DecodeError(f"not an offset: {error}") from error
        return cls(
            peer=_field(value, "peer", str),
            peer_clock_id=_field(value, "peer_clock_id", str),
            offset=offset,
            raw=None if raw is None else HullBound.from_json(raw),
            raw_estimate_ns=_field(value, "raw_estimate_ns", int, type(None)),
            raw_rate_ppb=None if rate is None else float(rate),
            min_rtt_ns=_field(value, "min_rtt_ns", int, type(None)),
            sent=_field(value, "sent", int),
            answered=_field(value, "answered", int),
        )


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
        return {
            "schema": SCHEMA,
            "node": self.node,
            "clock_id": self.clock_id,
            "stamps": self.stamps,
            "made_at_raw_ns": self.made_at_raw_ns,
            "readings": [[one.raw_before_ns, one.real_ns, one.raw_after_ns] for one in self.readings],
            "edges": [edge.to_json() for edge in self.edges],
            "counters": dict(self.counters),
        }

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """The inverse of `to_json`. Raises DecodeError, nothing else, for any input."""
        schema = _field(value, "schema", str)
        if schema != SCHEMA:
            raise DecodeError(f"a report of schema {SCHEMA} is expected, found {schema!r}")
        counters = _field(value, "counters", dict)
        if not all(isinstance(name, str) and type(count) is int for name, count in counters.items()):
            raise DecodeError(f"counters are names with whole numbers, found {counters!r}")
        return cls(
            node=_field(value, "node", str),
            clock_id=_field(value, "clock_id", str),
            stamps=_field(value, "stamps", str),
            made_at_raw_ns=_field(value, "made_at_raw_ns", int),
            readings=tuple(_reading(item) for item in _field(value, "readings", list)),
            edges=tuple(EdgeReport.from_json(item) for item in _field(value, "edges", list)),
            counters=counters,
        )


def _reading(value: Any) -> Reading:
    if not isinstance(value, list) or len(value) != 3 or not all(type(item) is int for item in value):
        raise DecodeError(f"a reading is [RAW, REALTIME, RAW] in ns, found {value!r}")
    if value[0] > value[2]:
        raise DecodeError(f"RAW ran backwards within a reading: {value!r}")
    return Reading(raw_before_ns=value[0], real_ns=value[1], raw_after_ns=value[2])


def _field(value: Any, name: str, *kinds: type) -> Any:
    """A field of one of the given types; bool is no number."""
    if not isinstance(value, dict) or name not in value:
        raise DecodeError(f"an object with a field {name!r} is expected, found {str(value)[:80]!r}")
    item = value[name]
    if type(item) not in kinds:
        raise DecodeError(
            f"field {name!r} has type {type(item).__name__}, expected {' or '.join(k.__name__ for k in kinds)}"
        )
    return item
