"""Runs the prober's state machine on real sockets: reads clocks, waits, sends, hands stamps over. No policy.

Keeps the machine's order of events: every kernel stamp that it hands over lies between two readings of the clocks.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rankclock.mesh.actions import Action, ArmTimer, Arrival, Departure, Measured, Notice, Published, Send
from rankclock.mesh.clocks import read_clocks, read_raw_ns
from rankclock.mesh.machine import ProbeMachine
from rankclock.mesh.stamps import Received, StampedSocket

__all__ = ["Driver"]

MAC_BYTES = 16
"""The end of a datagram, its authentication code, names it among those whose stamp is awaited."""

STAMP_WAIT_NS = 50_000_000
"""A departure stamp that has not come after 50 ms will not come."""

ARRIVAL_SLACK_NS = 10_000_000
"""A datagram is stamped before it is queued: it may have been stamped this long before the socket was found empty."""

DATAGRAMS_A_TURN = 64


@dataclass(frozen=True, slots=True)
class _Sent:
    ticket: int
    handed_raw_ns: int


class Driver:
    """One machine on its sockets, the first of which is the one that peers know. `turn` handles what comes first."""

    def __init__(
        self,
        machine: ProbeMachine,
        sockets: Sequence[StampedSocket],
        *,
        on_measured: Callable[[Measured], None],
        on_notice: Callable[[Notice], None],
        on_published: Callable[[Published], None] = lambda _: None,
    ) -> None:
        self._machine = machine
        self._sockets = sockets
        self._on_measured = on_measured
        self._on_notice = on_notice
        self._on_published = on_published
        self._timer_ns = 0
        self._sent: dict[bytes, _Sent] = {}
        self._read()
        self._began_ns = read_raw_ns()
        self._empty_ns = [self._began_ns] * len(sockets)
        self._poll = select.poll()
        for socket in sockets:
            self._poll.register(socket.fileno(), select.POLLIN)

    def watch(self, fd: int) -> None:
        """Let `turn` return as soon as this file descriptor can be read."""
        self._poll.register(fd, select.POLLIN)

    def turn(self) -> set[int]:
        """Wait for a datagram, a watched descriptor or the timer, and handle it; the watched ones that are ready."""
        wait_ns = max(self._timer_ns - read_raw_ns(), 0)
        ready = {fd for fd, _ in self._poll.poll(-(-wait_ns // 1_000_000))}
        for path, socket in enumerate(self._sockets):
            if socket.fileno() in ready:
                ready.discard(socket.fileno())
                self._receive(path)
        if read_raw_ns() >= self._timer_ns:
            self._expire()
            self._read()
            self.perform(self._machine.handle_timer(read_raw_ns()))
        return ready

    def perform(self, actions: list[Action]) -> None:
        """Carry out actions in their order; datagrams leave back to back."""
        sent = False
        for action in actions:
            match action:
                case Send():
                    handed_ns = self._sockets[action.path % len(self._sockets)].send(action.data, action.to)
                    if handed_ns is None:
                        self._machine.handle_unsent(action.ticket)
                    else:
                        self._sent[action.data[-MAC_BYTES:]] = _Sent(action.ticket, handed_ns)
                        sent = True
                case ArmTimer():
                    self._timer_ns = action.at_ns
                case Measured():
                    self._on_measured(action)
                case Notice():
                    self._on_notice(action)
                case Published():
                    self._on_published(action)
        if sent:
            self._departures()

    def _receive(self, path: int) -> None:
        """Read all that waits at a socket, handle it, and send all replies back to back.

        Read first: without kernel stamps, reading is what stamps. Sent together: a reply that leaves alone takes 1 to
        2 µs longer on its way than requests that leave in a row, which would pass for an offset of half of that.
        """
        self._departures()
        not_before_ns = max(self._empty_ns[path] - ARRIVAL_SLACK_NS, self._began_ns)
        waiting: list[Received] = []
        while len(waiting) < DATAGRAMS_A_TURN:
            received = self._sockets[path].receive()
            if received is None:
                self._empty_ns[path] = read_raw_ns()
                break
            waiting.append(received)
        actions: list[Action] = []
        for received in waiting:
            self._read()
            arrival = Arrival(
                not_before_raw_ns=not_before_ns,
                read_raw_ns=received.read_raw_ns,
                real_ns=received.real_ns,
                path=path,
            )
            now_ns = read_raw_ns()
            actions += self._machine.handle_datagram(received.data, received.source, arrival, now_ns)
        self.perform(actions)

    def _departures(self) -> None:
        """Hand over the stamps that have come in; without kernel stamps, all at once."""
        if not self._sockets[0].kernel:
            self._expire(all_of_them=True)
            return
        stamped = [departed for socket in self._sockets for departed in socket.departures()]
        if not stamped:
            return
        known_ns = read_raw_ns()
        self._read()
        for data, real_ns in stamped:
            sent = self._sent.pop(data[-MAC_BYTES:], None)
            if sent is not None:
                departure = Departure(handed_raw_ns=sent.handed_raw_ns, known_raw_ns=known_ns, real_ns=real_ns)
                self._machine.handle_departure(sent.ticket, departure)

    def _expire(self, *, all_of_them: bool = False) -> None:
        """Give up on stamps that have not come: the machine falls back to when the kernel was handed the datagram."""
        now_ns = read_raw_ns()
        late = [mac for mac, sent in self._sent.items() if all_of_them or now_ns - sent.handed_raw_ns > STAMP_WAIT_NS]
        for mac in late:
            sent = self._sent.pop(mac)
            departure = Departure(handed_raw_ns=sent.handed_raw_ns, known_raw_ns=now_ns, real_ns=None)
            self._machine.handle_departure(sent.ticket, departure)

    def _read(self) -> None:
        # Nothing is sent because of a reading: what it leads to is told and published.
        self.perform(self._machine.handle_reading(read_clocks()))
