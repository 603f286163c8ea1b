"""The answering half of a prober: remembers the last requests of each requester and tells when its replies left.

Decides who is answered: whoever has the key, asks for this node, does not repeat itself and does not ask too often.
Everything else is counted and dropped. A reply has the size of its request.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from rankclock.clockmath.exchange import Stamp
from rankclock.mesh.settings import ProbeSettings
from rankclock.wire.probe import MAX_RECORDS, MAX_WIDTH_NS, Datagram, Record, WireStamp

__all__ = ["Responder", "Served"]

REPLAY_WINDOW = 64
"""Requests may overtake one another by this many; older ones are taken for replays."""

NS_PER_S = 1_000_000_000


@dataclass(slots=True, kw_only=True)
class Served:
    """One request that was answered: when it arrived, and when its reply left as soon as that is known."""

    sequence: int
    arrival: Stamp
    kernel_arrival: bool
    departure: Stamp | None = None
    kernel_departure: bool = False
    _record: Record | None = None

    def record(self) -> Record:
        """As it goes on the wire, in up to nine replies."""
        if self._record is None or (self._record.departure is None) != (self.departure is None):
            departure = self.departure
            self._record = Record(
                sequence=self.sequence,
                arrival=_told(self.arrival, kernel=self.kernel_arrival, bound_is_latest=True),
                departure=None if departure is None else _told(departure, kernel=self.kernel_departure),
            )
        return self._record


@dataclass(slots=True, kw_only=True)
class _Session:
    highest: int = -1
    seen: int = 0
    served: deque[Served] = field(default_factory=lambda: deque(maxlen=MAX_RECORDS))

    def is_new(self, sequence: int) -> bool:
        """Whether this request was never seen; remembers it."""
        ahead = sequence - self.highest
        if ahead > 0:
            kept = self.seen << ahead if ahead < REPLAY_WINDOW else 0
            self.seen = (kept | 1) & ((1 << REPLAY_WINDOW) - 1)
            self.highest = sequence
            return True
        bit = 1 << -ahead
        if -ahead >= REPLAY_WINDOW or self.seen & bit:
            return False
        self.seen |= bit
        return True


@dataclass(slots=True, kw_only=True)
class _Bucket:
    tokens: float
    filled_ns: int

    def take(self, now_ns: int, settings: ProbeSettings) -> bool:
        gained = max(now_ns - self.filled_ns, 0) * settings.requests_per_s / NS_PER_S
        self.tokens = min(self.tokens + gained, settings.request_burst)
        self.filled_ns = now_ns
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True


class Responder:
    """State per requester, bounded in number: the one that was silent longest is forgotten."""

    def __init__(self, settings: ProbeSettings) -> None:
        self._settings = settings
        self._sessions: OrderedDict[tuple[int, int], _Session] = OrderedDict()
        self._buckets: OrderedDict[int, _Bucket] = OrderedDict()

    def serve(
        self, request: Datagram, arrived: Callable[[], tuple[Stamp, bool]], now_ns: int
    ) -> tuple[Served, tuple[Record, ...]] | str:
        """What to answer: the new entry, and the records to send. A str says why the request is dropped.

        `arrived` gives the arrival's stamp and whether it is the kernel's; it is asked only where the request deserves
        the work.
        """
        full = _Bucket(tokens=self._settings.request_burst, filled_ns=now_ns)
        bucket = self._buckets.setdefault(request.sender, full)
        self._buckets.move_to_end(request.sender)
        if not bucket.take(now_ns, self._settings):
            return "asked too often"
        known = (request.sender, request.session)
        session = self._sessions.setdefault(known, _Session())
        self._sessions.move_to_end(known)
        self._forget_oldest()
        if not session.is_new(request.sequence):
            return "replayed request"
        arrival, kernel = arrived()
        served = Served(sequence=request.sequence, arrival=arrival, kernel_arrival=kernel)
        session.served.append(served)
        return served, tuple(earlier.record() for earlier in session.served)

    def _forget_oldest(self) -> None:
        while len(self._sessions) > self._settings.sessions:
            self._sessions.popitem(last=False)
        while len(self._buckets) > self._settings.sessions:
            self._buckets.popitem(last=False)


def _told(stamp: Stamp, *, kernel: bool, bound_is_latest: bool = False) -> WireStamp:
    """A stamp as it goes on the wire: one that is too wide is cut on the side that carries no bound."""
    earliest_ns = max(stamp.earliest_ns, stamp.latest_ns - MAX_WIDTH_NS) if bound_is_latest else stamp.earliest_ns
    width_ns = min(stamp.latest_ns - earliest_ns, MAX_WIDTH_NS)
    return WireStamp(
        earliest_ns=earliest_ns,
        width_ns=width_ns,
        estimate_after_ns=min(max(stamp.estimate_ns - earliest_ns, 0), width_ns),
        kernel=kernel,
    )
