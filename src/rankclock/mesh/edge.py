"""The asking half of a prober, for one peer: open probes, what its replies say, and the offset that follows.

Decides which replies count (each probe is answered once; stamps of earlier replies come with later ones), when a peer
is lost or another clock stands in its place, and how the relation of the two RAW clocks and each side's REALTIME
readings combine to an offset of the two REALTIMEs. Gives an unknown offset, with the reason, where one is missing.
"""

from __future__ import annotations

from collections import OrderedDict, deque

from rankclock.clockmath.exchange import Stamp
from rankclock.clockmath.hull import Infeasible
from rankclock.clockmath.realtime import ASSUMPTION, Reading, RealtimeTrack, Step
from rankclock.mesh.actions import Address
from rankclock.mesh.burst import Burst, Probe
from rankclock.mesh.report import EdgeReport
from rankclock.mesh.settings import ProbeSettings
from rankclock.mesh.window import EdgeWindow, Solution
from rankclock.timebase import Offset
from rankclock.wire.probe import Datagram, Record, WireStamp, tag_of

__all__ = ["Edge"]

METHOD = "two-way probes"

BURST_NS = 10_000_000
"""The replies to one burst come in within this time."""


class Edge:
    """What is known of one peer. All instants are local RAW unless their name says otherwise.

    solved: what the last sample concluded of the two RAW clocks.
    """

    def __init__(self, *, peer: str, address: Address, settings: ProbeSettings) -> None:
        self.peer = peer
        self.address = address
        self.tag = tag_of(peer)
        self.clock: int | None = None
        self.sent = 0
        self.answered = 0
        self.silent_bursts = 0
        self.lost = False
        self.window = EdgeWindow(settings)
        self.solved: Solution | Infeasible | None = None
        self.unsent: deque[int] = deque()
        self._settings = settings
        self._open: OrderedDict[int, tuple[Probe, Burst]] = OrderedDict()
        self._peer_track = RealtimeTrack(keep=64)
        self._heard = True
        self._heard_since_sample = False
        self._last_answer_ns: int | None = None

    def begin_burst(self, first_sequence: int, now_ns: int) -> list[int]:
        """Open the probes of a new burst and the one that collects; their sequence numbers, in the order of sending."""
        self.silent_bursts = 0 if self._heard else self.silent_bursts + 1
        self._heard = False
        probes = [Probe(sequence=first_sequence + index) for index in range(self._settings.probes)]
        burst = self.window.begin(probes, now_ns)
        for probe in probes:
            self._open[probe.sequence] = (probe, burst)
        while len(self._open) > self._settings.open_probes:
            self._open.popitem(last=False)
        self.sent += len(probes)
        return [probe.sequence for probe in probes]

    def departed(self, sequence: int, stamp: Stamp, *, kernel: bool) -> None:
        """A probe left."""
        if sequence in self._open:
            probe, burst = self._open[sequence]
            probe.departed = stamp
            probe.user_stamped |= not kernel
            burst.changed = True

    def departed_after_ns(self, sequence: int) -> int | None:
        """The earliest instant at which the probe that a reply names left; None for an unknown or answered probe."""
        if sequence not in self._open:
            return None
        probe, burst = self._open[sequence]
        if probe.returned is not None:
            return None
        return burst.began_ns if probe.departed is None else probe.departed.earliest_ns

    def replied(self, reply: Datagram, arrival: Stamp, *, kernel: bool, now_ns: int) -> Step | None:
        """Take a reply in, that `departed_after_ns` has accepted; says whether the peer's REALTIME was stepped."""
        self.answered += 1
        self._heard = self._heard_since_sample = True
        self._last_answer_ns = now_ns
        self.clock = reply.clock
        probe, burst = self._open[reply.sequence]
        probe.returned = arrival
        probe.user_stamped |= not kernel
        burst.changed = True
        for record in reply.records:
            self._take_record(record)
        reading = Reading(raw_before_ns=reply.raw_before_ns, real_ns=reply.real_ns, raw_after_ns=reply.raw_after_ns)
        return self._peer_track.add(reading)

    def forget(self) -> None:
        """The peer's clock is another one: nothing measured before says anything about it."""
        self.window.clear()
        self.solved = None
        self._open.clear()
        self._peer_track = RealtimeTrack(keep=64)

    def sample(self, track: RealtimeTrack, now_ns: int) -> Offset:
        """The offset at an instant of the last burst, or why it is unknown."""
        heard, self._heard_since_sample = self._heard_since_sample, False
        if not heard:
            return self._unknown(self.why_silent(now_ns))
        self.solved = self._solve()
        return self._offset(self.solved, track, now_ns)

    @property
    def last_answer_ns(self) -> int | None:
        """When the peer last answered."""
        return self._last_answer_ns

    def report(self, track: RealtimeTrack, now_ns: int) -> EdgeReport:
        """Everything known, for combining with other nodes' reports."""
        solution = Infeasible(why=self.why_silent(now_ns)) if self.lost else self._solve()
        solved = solution if isinstance(solution, Solution) else None
        return EdgeReport(
            peer=self.peer,
            peer_clock_id="" if self.clock is None else f"{self.clock:016x}",
            offset=self._offset(solution, track, now_ns),
            raw=solved.bound if solved else None,
            raw_estimate_ns=solved.estimate_ns if solved else None,
            raw_rate_ppb=solved.rate_ppb if solved else None,
            min_rtt_ns=solved.least_rtt_ns if solved else None,
            sent=self.sent,
            answered=self.answered,
        )

    def _take_record(self, record: Record) -> None:
        if record.sequence not in self._open:
            return
        probe, burst = self._open[record.sequence]
        if probe.reached is None:
            probe.reached = _stamp(record.arrival)
            probe.user_stamped |= not record.arrival.kernel
            burst.changed = True
        if probe.answered is None and record.departure is not None:
            probe.answered = _stamp(record.departure)
            probe.user_stamped |= not record.departure.kernel
            burst.changed = True

    def _solve(self) -> Solution | Infeasible:
        """The relation of the two RAW clocks about when the last reply came in."""
        if self._last_answer_ns is None:
            return Infeasible(why=self.why_silent(0))
        return self.window.solve(self._last_answer_ns)

    def _offset(self, solution: Solution | Infeasible, track: RealtimeTrack, now_ns: int) -> Offset:
        """REALTIME here - REALTIME there = own lead - peer's lead + (RAW here - RAW there), all at the instant here
        when the peer read its clocks: there its lead is known best."""
        if isinstance(solution, Infeasible):
            return self._unknown(solution.why)
        reading = self._reading_to_use(solution)
        if reading is None:
            return self._unknown(f"{self.peer} has not told its REALTIME often enough yet")
        peer_ns = (reading.raw_before_ns + reading.raw_after_ns) // 2
        at_ns = peer_ns + solution.estimate_at(peer_ns + solution.estimate_ns)
        lo_ns, hi_ns = solution.bound.offset_at(at_ns)
        peer_lead = self._peer_track.lead(Stamp.between(at_ns - hi_ns, at_ns - lo_ns))
        own_lead = track.lead(Stamp.exactly(at_ns))
        if peer_lead is None or own_lead is None:
            return self._unknown(("the peer's" if peer_lead is None else "this node's") + " REALTIME was not read then")
        low_ns = own_lead.lo_ns - peer_lead.hi_ns + lo_ns
        high_ns = own_lead.hi_ns - peer_lead.lo_ns + hi_ns
        estimate_ns = own_lead.estimate_ns - peer_lead.estimate_ns + solution.estimate_at(at_ns)
        stamps = "kernel stamps" if not solution.user_stamped else "user stamps"
        if 0 < solution.user_stamped < solution.exchanges:
            stamps = f"kernel stamps, {solution.user_stamped} with user stamps"
        return Offset(
            lo_ns=low_ns,
            hi_ns=high_ns,
            estimate_ns=min(max(estimate_ns, low_ns), high_ns),
            reference=self.peer,
            method=f"{METHOD}, {stamps}, hull over {solution.exchanges} exchanges",
            assumptions=self._assumptions(),
            at_raw_ns=at_ns,
            age_ns=max(now_ns - at_ns, 0),
        )

    def _reading_to_use(self, solution: Solution) -> Reading | None:
        """The peer's reading, of its newest burst, whose neighbours lie closest around it and yet farther off than the
        doubt of the RAW relation: a lead is bounded only between two readings, and well only between two near ones."""
        readings = self._peer_track.readings
        lo_ns, hi_ns = solution.bound.offset_at(solution.bound.at_ns)
        best: tuple[int, Reading] | None = None
        newest_ns = None
        for reading in reversed(readings):
            after = next((r for r in readings if r.raw_before_ns >= reading.raw_after_ns + hi_ns - lo_ns), None)
            if after is None:
                continue
            newest_ns = reading.raw_after_ns if newest_ns is None else newest_ns
            if newest_ns - reading.raw_before_ns > BURST_NS:
                break
            before = [r for r in readings if r.raw_after_ns <= reading.raw_before_ns - (hi_ns - lo_ns)]
            since_ns = before[-1].raw_before_ns if before else reading.raw_before_ns - BURST_NS
            span_ns = after.raw_after_ns - since_ns
            if best is None or span_ns < best[0]:
                best = span_ns, reading
        return None if best is None else best[1]

    def _assumptions(self) -> tuple[str, ...]:
        return (
            "no departure stamp is late and no arrival stamp early",
            ASSUMPTION,
            f"the two oscillators part by less than {self._settings.rate_limit_ppb // 1000} ppm",
            f"their rate changes by less than {self._settings.wander_ppb_per_s} ppb per second",
        )

    def _unknown(self, why: str) -> Offset:
        return Offset.unknown(why, reference=self.peer, method=METHOD)

    def why_silent(self, now_ns: int) -> str:
        """Why there is nothing new of this peer."""
        if self._last_answer_ns is None:
            return f"{self.peer} has not answered any of {self.sent} probes"
        silent_s = (now_ns - self._last_answer_ns) / 1e9
        return f"{self.peer} has not answered for {silent_s:.1f} s"


def _stamp(told: WireStamp) -> Stamp:
    earliest_ns = told.earliest_ns
    return Stamp(
        earliest_ns=earliest_ns,
        latest_ns=earliest_ns + told.width_ns,
        estimate_ns=earliest_ns + told.estimate_after_ns,
    )
