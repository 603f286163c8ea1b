"""The prober as a state machine without I/O: it asks its peers and answers them.

Events go in (`handle_*`, with the instant `now_ns` on this node's CLOCK_MONOTONIC_RAW), actions come out as values.
The same machine runs over a socket (`mesh.driver`) and in virtual time (`simulate.probing`).

Order of events that the driver owes: a `Reading` of the clocks before the timer and after every receive or send, so
that each kernel stamp lies between two readings.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence

from rankclock.clockmath.exchange import Stamp
from rankclock.clockmath.realtime import Reading, RealtimeTrack
from rankclock.errors import DecodeError
from rankclock.mesh.actions import Action, Address, ArmTimer, Arrival, Departure, Event, Measured, Notice, Send
from rankclock.mesh.edge import Edge
from rankclock.mesh.follower import Follower
from rankclock.mesh.report import NodeReport
from rankclock.mesh.responder import Responder, Served
from rankclock.mesh.settings import ProbeSettings
from rankclock.timebase import Offset
from rankclock.wire.probe import (
    Datagram,
    Kind,
    NotAuthenticError,
    Record,
    decode_datagram,
    encode_datagram,
    tag_of,
)

__all__ = ["ProbeMachine"]

STAGGER_NS = 3_000_000
"""First bursts to different peers leave this far apart: a host's own bursts must not queue behind one another."""

REPORTED_READINGS = 64
READINGS_APART_NS = 20_000_000
"""A report carries the narrowest reading of every 20 ms, the newest 64: a few seconds' worth, not one burst's."""


class ProbeMachine:
    """One node's prober: the asking half (an `Edge` a peer) and the answering half (`Responder`).

    kernel_stamps: whether the kernel stamps here. Where it does not, a burst's probes leave one by one, each after the
    answer to the one before: stamped by the process, a burst sent at once would only measure how it is worked off.
    follower: follows cluster time, where the node takes part in one.
    """

    def __init__(
        self,
        *,
        node: str,
        clock_id: str,
        key: bytes,
        session: int,
        kernel_stamps: bool,
        settings: ProbeSettings | None = None,
        follower: Follower | None = None,
    ) -> None:
        self.node = node
        self.clock_id = clock_id
        self.counters: dict[str, int] = {}
        self._kernel_stamps = kernel_stamps
        self._settings = settings or ProbeSettings()
        self._follower = follower
        self._key = key
        self._session = self._draw = session
        self._tag = tag_of(node)
        self._clock = int(clock_id, 16)
        self._track = RealtimeTrack()
        self._edges: dict[int, Edge] = {}
        self._bursts_at: dict[int, list[int]] = {}
        self._samples_at: dict[int, int] = {}
        self._next_at: dict[int, int] = {}
        self._responder = Responder(self._settings)
        self._awaited: OrderedDict[int, tuple[Edge, int] | Served] = OrderedDict()
        self._ticket = 0
        self._sequence = 0

    # ---- events ----

    def handle_peers(self, peers: Mapping[str, Address], now_ns: int) -> list[Action]:
        """These are the peers to ask from now on; those known already keep what was measured."""
        wanted = {tag_of(name): (name, address) for name, address in peers.items() if name != self.node}
        for tag in [tag for tag in self._edges if tag not in wanted]:
            del self._edges[tag], self._bursts_at[tag]
            self._samples_at.pop(tag, None)
            self._next_at.pop(tag, None)
        for index, (tag, (name, address)) in enumerate(wanted.items()):
            if tag in self._edges:
                self._edges[tag].address = address
                continue
            self._edges[tag] = Edge(peer=name, address=address, settings=self._settings)
            first_ns = now_ns + STAGGER_NS * index
            self._bursts_at[tag] = [first_ns + after_ns for after_ns in self._settings.start_ns]
        return [self._next_timer(now_ns)]

    def handle_reading(self, reading: Reading) -> list[Action]:
        """The clocks of this node were read."""
        step = self._track.add(reading)
        actions: list[Action] = []
        if self._follower is not None:
            actions += self._follower.handle_reading(reading, stepped=step is not None)
        if step is None:
            return actions
        self._count("own clock stepped")
        detail = f"CLOCK_REALTIME was set by {step.lo_ns} to {step.hi_ns} ns"
        return [
            *actions,
            Notice(event=Event.CLOCK_STEPPED, about=self.node, at_raw_ns=step.before_raw_ns, detail=detail),
        ]

    def handle_timer(self, now_ns: int) -> list[Action]:
        """The armed instant has come: send what is due, sample what is due, arm the next."""
        actions: list[Action] = []
        for tag, at_ns in list(self._samples_at.items()):
            if at_ns <= now_ns:
                del self._samples_at[tag]
                actions += self._sample(self._edges[tag], now_ns)
        for tag, at_ns in list(self._next_at.items()):
            if at_ns <= now_ns:
                actions += self._send_next(tag, now_ns)
        due = [tag for tag, bursts in self._bursts_at.items() if bursts[0] <= now_ns]
        for tag in due:
            bursts = self._bursts_at[tag]
            bursts.pop(0)
            if not bursts:
                # The clock may have jumped over many periods (a suspended machine): never catch up in a flood.
                bursts.append(now_ns + self._settings.period_ns + self._jitter())
            actions += self._burst(tag, now_ns)
            self._samples_at[tag] = now_ns + self._settings.reply_wait_ns
            # One burst a timer: the datagrams of two bursts would queue behind one another.
            break
        actions.append(self._next_timer(now_ns))
        return actions

    def handle_departure(self, ticket: int, departure: Departure) -> None:
        """A datagram left; its kernel stamp is in, or will not come."""
        awaited = self._awaited.pop(ticket, None)
        if awaited is None:
            return
        stamp, kernel = self._departure_stamp(departure)
        if isinstance(awaited, Served):
            awaited.departure, awaited.kernel_departure = stamp, kernel
        else:
            edge, sequence = awaited
            edge.departed(sequence, stamp, kernel=kernel)

    def handle_unsent(self, ticket: int) -> None:
        """The kernel did not take a datagram: it is lost before it left."""
        self._awaited.pop(ticket, None)
        self._count("could not be sent")

    def handle_datagram(self, data: bytes, source: Address, arrival: Arrival, now_ns: int) -> list[Action]:
        """A datagram came in."""
        try:
            datagram = decode_datagram(data, self._key)
        except NotAuthenticError:
            return self._count("not authentic")
        except DecodeError:
            return self._count("garbage")
        if datagram.target != self._tag:
            return self._count("for another node")
        if datagram.kind is Kind.REQUEST:
            return self._answer(datagram, source, arrival, now_ns)
        return self._learn(datagram, arrival, now_ns)

    def handle_end(self, now_ns: int) -> list[Action]:
        """The process ends: what is held back is told."""
        return [] if self._follower is None else self._follower.finish(now_ns)

    def report(self, now_ns: int, *, stamps: str) -> NodeReport:
        """Everything known now."""
        counters = dict(self.counters)
        for name, of_edge in (
            ("refused exchange", "refused"),
            ("odd burst", "odd_bursts"),
            ("rate change", "rate_changes"),
        ):
            if total := sum(getattr(edge.window, of_edge) for edge in self._edges.values()):
                counters[name] = total
        return NodeReport(
            node=self.node,
            clock_id=self.clock_id,
            stamps=stamps,
            made_at_raw_ns=now_ns,
            readings=_thinned(self._track.readings),
            edges=tuple(edge.report(self._track, now_ns) for edge in self._edges.values()),
            counters=counters,
        )

    # ---- asking ----

    def _burst(self, tag: int, now_ns: int) -> list[Action]:
        edge = self._edges[tag]
        was_silent = edge.silent_bursts
        edge.unsent = deque(edge.begin_burst(self._sequence, now_ns))
        actions = self._send_next(tag, now_ns)
        while self._kernel_stamps and len(edge.unsent) > 1:
            actions += self._send_next(tag, now_ns)
        if self._kernel_stamps:
            self._next_at[tag] = now_ns + self._settings.collect_ns
        self._sequence = (self._sequence + self._settings.probes) % 2**32
        if edge.silent_bursts == self._settings.lost_after and was_silent < edge.silent_bursts:
            edge.lost = True
            detail = f"no answer to {edge.silent_bursts} bursts"
            actions.append(Notice(event=Event.PEER_LOST, about=edge.peer, at_raw_ns=now_ns, detail=detail))
        return actions

    def _send_next(self, tag: int, now_ns: int) -> list[Action]:
        """The next probe of the burst; where they leave one by one, the one after it leaves in a while at any rate."""
        edge = self._edges[tag]
        self._next_at.pop(tag, None)
        if not edge.unsent:
            return []
        sequence = edge.unsent.popleft()
        if edge.unsent and not self._kernel_stamps:
            self._next_at[tag] = now_ns + self._settings.paced_ns
        data = self._encode(Kind.REQUEST, sequence, self._session, edge.tag)
        path = (self._settings.probes - 1 - len(edge.unsent)) // 2
        return [Send(data=data, to=edge.address, ticket=self._await((edge, sequence)), path=path)]

    def _learn(self, reply: Datagram, arrival: Arrival, now_ns: int) -> list[Action]:
        edge = self._edges.get(reply.sender)
        if edge is None or reply.session != self._session:
            return self._count("reply to nobody's question")
        departed_ns = edge.departed_after_ns(reply.sequence)
        if departed_ns is None:
            return self._count("late or repeated reply")
        actions: list[Action] = []
        if edge.clock is not None and edge.clock != reply.clock:
            edge.forget()
            if self._follower is not None:
                self._follower.handle_replaced(edge.peer)
            detail = f"its clock is now {reply.clock:016x}"
            edge.clock = reply.clock
            return [Notice(event=Event.PEER_CLOCK_REPLACED, about=edge.peer, at_raw_ns=now_ns, detail=detail)]
        if edge.lost:
            edge.lost = False
            actions.append(Notice(event=Event.PEER_RETURNED, about=edge.peer, at_raw_ns=now_ns, detail="it answers"))
        stamp, kernel = self._arrival_stamp(arrival, departed_ns)
        step = edge.replied(reply, stamp, kernel=kernel, now_ns=now_ns)
        if self._follower is not None:
            self._follower.handle_belief(edge.peer, reply.belief, now_ns)
        if step is not None:
            detail = f"its CLOCK_REALTIME was set by {step.lo_ns} to {step.hi_ns} ns"
            actions.append(Notice(event=Event.PEER_CLOCK_STEPPED, about=edge.peer, at_raw_ns=now_ns, detail=detail))
        if not self._kernel_stamps and reply.sender in self._next_at:
            actions += [*self._send_next(reply.sender, now_ns), self._next_timer(now_ns)]
        return actions

    def _sample(self, edge: Edge, now_ns: int) -> list[Action]:
        changes = edge.window.rate_changes
        offset = edge.sample(self._track, now_ns)
        actions: list[Action] = [Measured(peer=edge.peer, offset=offset, at_real_ns=self._real_at(offset))]
        if edge.window.rate_changes > changes:
            detail = "its rate against this node's clock jumped; what was measured before is forgotten"
            actions.append(Notice(event=Event.RATE_CHANGED, about=edge.peer, at_raw_ns=now_ns, detail=detail))
        if self._follower is not None:
            actions += self._follower.handle_sampled(self._edges.values(), now_ns)
        return actions

    # ---- answering ----

    def _answer(self, request: Datagram, source: Address, arrival: Arrival, now_ns: int) -> list[Action]:
        result = self._responder.serve(request, lambda: self._arrival_stamp(arrival, arrival.not_before_raw_ns), now_ns)
        if isinstance(result, str):
            return self._count(result)
        served, records = result
        data = self._encode(Kind.REPLY, request.sequence, request.session, request.sender, records)
        return [Send(data=data, to=source, ticket=self._await(served), path=arrival.path)]

    # ---- shared ----

    def _encode(self, kind: Kind, sequence: int, session: int, target: int, records: tuple[Record, ...] = ()) -> bytes:
        reading = self._track.newest
        if reading is None:
            raise RuntimeError("the driver reads the clocks before anything is sent")
        datagram = Datagram(
            kind=kind,
            session=session,
            sequence=sequence,
            sender=self._tag,
            target=target,
            clock=self._clock,
            raw_before_ns=reading.raw_before_ns,
            real_ns=reading.real_ns,
            raw_after_ns=reading.raw_after_ns,
            records=records,
            belief=None if self._follower is None else self._follower.belief(reading.raw_after_ns),
        )
        return encode_datagram(datagram, self._key)

    def _arrival_stamp(self, arrival: Arrival, not_before_ns: int) -> tuple[Stamp, bool]:
        """The arrival on the RAW clock and whether the kernel stamped it; else it was certainly in when it was read."""
        read_ns = arrival.read_raw_ns
        if arrival.real_ns is not None:
            window = Stamp.between(min(not_before_ns, read_ns), read_ns)
            placed = self._track.raw_of(arrival.real_ns, window=window)
            if isinstance(placed, Stamp):
                return placed, True
            self._count("arrival stamp not placed")
        return Stamp.exactly(read_ns), False

    def _departure_stamp(self, departure: Departure) -> tuple[Stamp, bool]:
        """The departure on the RAW clock and whether the kernel stamped it; else it left after it was handed."""
        handed_ns = departure.handed_raw_ns
        if departure.real_ns is not None:
            window = Stamp.between(handed_ns, departure.known_raw_ns)
            placed = self._track.raw_of(departure.real_ns, window=window)
            if isinstance(placed, Stamp):
                return placed, True
            self._count("departure stamp not placed")
        return Stamp.exactly(handed_ns), False

    def _await(self, who: tuple[Edge, int] | Served) -> int:
        self._ticket += 1
        self._awaited[self._ticket] = who
        while len(self._awaited) > 16 * self._settings.open_probes:
            self._awaited.popitem(last=False)
        return self._ticket

    def _real_at(self, offset: Offset) -> int | None:
        if offset.at_raw_ns is None:
            return None
        lead = self._track.lead(Stamp.exactly(offset.at_raw_ns))
        return None if lead is None else offset.at_raw_ns + lead.estimate_ns

    def _next_timer(self, now_ns: int) -> ArmTimer:
        soonest = [bursts[0] for bursts in self._bursts_at.values()] + [
            *self._samples_at.values(),
            *self._next_at.values(),
        ]
        return ArmTimer(at_ns=min([*soonest, now_ns + self._settings.reading_period_ns]))

    def _jitter(self) -> int:
        """A part of the settings' jitter, drawn from the session, which is chance already (Knuth's MMIX generator)."""
        self._draw = (self._draw * 6_364_136_223_846_793_005 + 1_442_695_040_888_963_407) % 2**64
        return self._settings.jitter_ns * (self._draw >> 32) >> 32

    def _count(self, what: str) -> list[Action]:
        self.counters[what] = self.counters.get(what, 0) + 1
        return []


def _thinned(readings: Sequence[Reading]) -> tuple[Reading, ...]:
    """The narrowest reading of each stretch of READINGS_APART_NS, the newest REPORTED_READINGS, oldest first."""
    kept: list[Reading] = []
    for reading in reversed(readings):
        if kept and kept[-1].raw_before_ns // READINGS_APART_NS == reading.raw_before_ns // READINGS_APART_NS:
            if reading.width_ns < kept[-1].width_ns:
                kept[-1] = reading
        elif len(kept) < REPORTED_READINGS:
            kept.append(reading)
        else:
            break
    return tuple(reversed(kept))
