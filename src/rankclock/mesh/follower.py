"""Follows cluster time on one node and says what its ranks shall read: the timescale and the recorder put together.

Events of the prober's machine in, `Published` and `Notice` out. A record is published when a line of the history is
complete, when the relation to cluster time was concluded anew, and every second. No I/O.
"""

from __future__ import annotations

from collections.abc import Iterable

from rankclock.clockmath.hull import Infeasible
from rankclock.clockmath.realtime import Reading
from rankclock.clockmath.relation import Relation
from rankclock.mesh.actions import Action, Event, Notice, Published
from rankclock.mesh.edge import Edge
from rankclock.mesh.recorder import Recorder
from rankclock.mesh.timescale import Timescale, Way
from rankclock.mesh.window import Solution
from rankclock.timebase.clock_record import ClockEvent, ClockLine
from rankclock.wire.probe import WireBelief

__all__ = ["Follower"]

TELL_NS = 1_000_000_000


class Follower:
    """One node's cluster time, from the prober's events to what its ranks read."""

    def __init__(self, timescale: Timescale) -> None:
        self.timescale = timescale
        self._recorder = Recorder()
        self._begun = False
        self._changed: str | None = None
        self._told_ns = 0
        self._odd: tuple[str, ...] = ()

    def handle_reading(self, reading: Reading, *, stepped: bool) -> list[Action]:
        """The clocks of this node were read."""
        now_ns = reading.raw_after_ns
        actions: list[Action] = []
        if not self._begun:
            self._begun = True
            self.timescale.begin(now_ns)
            actions += self._conclude((), now_ns, "")
        lines = self._recorder.take_reading(reading, stepped=stepped)
        if self.timescale.defines and now_ns - self._told_ns >= TELL_NS:
            actions += self._conclude((), now_ns, "")
        return actions + self._publish(lines, now_ns, always=now_ns - self._told_ns >= TELL_NS)

    def handle_belief(self, peer: str, belief: WireBelief | None, now_ns: int) -> None:
        """A peer's answer said what it believes."""
        self.timescale.hear(peer, belief, now_ns)

    def handle_replaced(self, peer: str) -> None:
        """The peer's clock is another one."""
        self.timescale.forget(peer)

    def handle_sampled(self, edges: Iterable[Edge], now_ns: int) -> list[Action]:
        """An edge was measured, or was silent: conclude anew from all."""
        ways, doubt, silent = [], "", []
        for edge in edges:
            if edge.last_answer_ns is None:
                silent.append(edge.why_silent(now_ns))
            if isinstance(edge.solved, Solution) and edge.last_answer_ns is not None:
                ways.append(_way(edge, edge.solved, edge.last_answer_ns))
            elif isinstance(edge.solved, Infeasible):
                doubt = edge.solved.why
        self.timescale.silent = "; ".join(silent[:2])
        return self._conclude(ways, now_ns, doubt)

    def belief(self, now_ns: int) -> WireBelief | None:
        """What the next datagram tells."""
        return self.timescale.belief(now_ns)

    def finish(self, now_ns: int) -> list[Action]:
        """The end: what the recorder holds back."""
        return self._publish(self._recorder.finish(), now_ns, always=False)

    def _conclude(self, ways: Iterable[Way], now_ns: int, doubt: str) -> list[Action]:
        actions: list[Action] = []
        timescale = self.timescale
        changed = timescale.update(list(ways), now_ns, doubt=doubt)
        if changed is not None:
            self._changed = changed
            detail = f"cluster time runs on {changed}'s clock from now on (epoch {timescale.epoch})"
            actions.append(Notice(event=Event.REFERENCE_CHANGED, about=changed, at_raw_ns=now_ns, detail=detail))
        if timescale.odd_peers != self._odd:
            self._odd = timescale.odd_peers
            if self._odd:
                detail = "what it says of cluster time contradicts what the other peers say: left out"
                about = ", ".join(self._odd)
                actions.append(Notice(event=Event.CONTRADICTED, about=about, at_raw_ns=now_ns, detail=detail))
        return actions + self._publish(self._record(timescale.relation), now_ns, always=True)

    def _record(self, relation: Relation | None) -> list[ClockLine]:
        """Tell the recorder; a new reference is said with the first relation to it."""
        if relation is None:
            return self._recorder.take_relation(None, detail=self.timescale.why)
        changed, self._changed = self._changed, None
        if changed is None:
            return self._recorder.take_relation(relation)
        return self._recorder.take_relation(relation, event=ClockEvent.REFERENCE, detail=changed)

    def _publish(self, lines: list[ClockLine], now_ns: int, *, always: bool) -> list[Action]:
        if not lines and not always:
            return []
        self._told_ns = now_ns
        own: list[ClockLine | None] = [*lines] if lines else [None]
        return [self._published(line, now_ns) for line in own]

    def _published(self, line: ClockLine | None, now_ns: int) -> Published:
        timescale = self.timescale
        confirmed_ns = timescale.confirmed_raw_ns
        return Published(
            at_raw_ns=now_ns,
            relation=timescale.relation,
            line=line,
            reference=timescale.reference,
            epoch=timescale.epoch,
            confirmed_raw_ns=now_ns if confirmed_ns is None else confirmed_ns,
            why=timescale.why or timescale.silent,
            hops=timescale.hops,
            exchanges=timescale.exchanges,
            user_stamped=timescale.user_stamped,
            odd=timescale.odd,
        )


def _way(edge: Edge, solution: Solution, heard_ns: int) -> Way:
    at_ns = solution.bound.at_ns
    relation = Relation.of_edge(solution.bound, at_ns, estimate_ns=solution.estimate_ns, rate_ppb=solution.rate_ppb)
    return Way(
        peer=edge.peer,
        relation=relation,
        heard_raw_ns=heard_ns,
        exchanges=solution.exchanges,
        user_stamped=solution.user_stamped,
    )
