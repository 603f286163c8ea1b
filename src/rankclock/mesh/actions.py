"""What goes into the prober's state machine and what comes out of it: values only, no I/O.

All instants ending in `raw_ns` are this node's CLOCK_MONOTONIC_RAW; `now_ns` is too.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rankclock.clockmath.relation import Relation
from rankclock.timebase import Offset
from rankclock.timebase.clock_record import ClockLine

__all__ = ["Action", "Address", "ArmTimer", "Arrival", "Departure", "Event", "Measured", "Notice", "Published", "Send"]

Address = tuple[str, int]
"""Numeric host and UDP port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """How a datagram came in: not before one RAW instant (the socket was empty), read at another.

    real_ns: the kernel's REALTIME stamp, None where it gave none.
    """

    not_before_raw_ns: int
    read_raw_ns: int
    real_ns: int | None
    path: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    """How a datagram went out: handed to the kernel at one RAW instant, its stamp (or none) known at another."""

    handed_raw_ns: int
    known_raw_ns: int
    real_ns: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Send these bytes now; tell the machine the departure of `ticket` when it is known.

    path: which of the sockets to send from (modulo their number): routers spread flows over paths by port, and the
    bounds of all paths hold together.
    """

    data: bytes
    to: Address
    ticket: int
    path: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmTimer:
    """Call `handle_timer` at this instant; replaces the timer armed before."""

    at_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One sample: REALTIME here - REALTIME of `peer`; at_real_ns is REALTIME here at offset.at_raw_ns."""

    peer: str
    offset: Offset
    at_real_ns: int | None


class Event(StrEnum):
    """What a person may want to know beside the samples."""

    PEER_LOST = "peer lost"
    PEER_RETURNED = "peer returned"
    PEER_CLOCK_REPLACED = "peer's clock replaced"
    CLOCK_STEPPED = "clock stepped"
    PEER_CLOCK_STEPPED = "peer's clock stepped"
    RATE_CHANGED = "rate changed"
    REFERENCE_CHANGED = "reference changed"
    CONTRADICTED = "peer contradicted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Something happened: `about` names the node, `detail` says what in one clause."""

    event: Event
    about: str
    at_raw_ns: int
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """How this node's clock stands to cluster time, for the ranks that read it.

    at_raw_ns: when this was written. relation: local RAW - cluster time, None where unknown; then `why` says so.
    line: the next line of the history, where there is one. reference: the clock that cluster time runs on; epoch counts
    its changes. confirmed_raw_ns: local RAW when something last came from it, by any way. hops: clocks on the way to
    it. exchanges, user_stamped: what the relation rests on. odd: ways left out because they contradict the others.
    """

    at_raw_ns: int
    relation: Relation | None
    line: ClockLine | None
    reference: str
    epoch: int
    confirmed_raw_ns: int
    why: str = ""
    hops: int = 0
    exchanges: int = 0
    user_stamped: int = 0
    odd: int = 0


Action = Send | ArmTimer | Measured | Notice | Published
