"""The prober's state machine in virtual time: many hosts, impaired paths, and the truth beside every sample.

Runs `mesh.machine.ProbeMachine`, the very code that runs on a socket, and keeps its driver's order of events. A host's
processor is modelled as far as it matters to stamps: waking up, reading clocks and sending take time, one after one.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from rankclock.clockmath.realtime import Reading
from rankclock.clockmath.relation import Relation
from rankclock.mesh.actions import (
    Action,
    Address,
    ArmTimer,
    Arrival,
    Departure,
    Measured,
    Notice,
    Published,
    Send,
)
from rankclock.mesh.follower import Follower
from rankclock.mesh.machine import ProbeMachine
from rankclock.mesh.settings import ProbeSettings
from rankclock.mesh.timescale import Role, Timescale
from rankclock.simulate.clocks import Oscillator, VirtualRealtime

__all__ = ["Path", "Sample", "SimulatedHost", "Simulation", "Told"]

KEY = b"simulated hosts share this key"
NS_PER_S = 1_000_000_000

WAKE_NS = (3_000, 40_000)
CLOCK_READ_NS = (70, 200)
RECEIVE_NS = (2_000, 6_000)
SEND_NS = (5_000, 12_000)


@dataclass(slots=True, kw_only=True)
class Path:
    """One direction between two hosts. delay_ns and a queue of up to queue_ns; losses and doublings by chance.

    by_port_ns: what a flow's own path adds, by the number of the socket that it leaves from (as routers spread flows).
    tamper: sees each datagram and gives what arrives instead (or None), for hostile paths.
    """

    delay_ns: int = 5_000
    queue_ns: int = 300
    busy_share: float = 0.0
    busy_queue_ns: int = 200_000
    loss: float = 0.0
    doubled: float = 0.0
    by_port_ns: tuple[int, ...] = (0,)
    tamper: Callable[[bytes], bytes | None] | None = None

    def arrivals(self, chance: random.Random, port: int) -> list[int]:
        """How long after its departure each copy of a datagram arrives."""
        delay_ns = self.delay_ns + self.by_port_ns[port % len(self.by_port_ns)]
        copies = 0 if chance.random() < self.loss else 2 if chance.random() < self.doubled else 1
        queue_ns = self.busy_queue_ns if chance.random() < self.busy_share else self.queue_ns
        return [delay_ns + int(chance.random() ** 2 * queue_ns) for _ in range(copies)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What a host measured, and what was true at that instant (None where nothing was measured)."""

    host: str
    measured: Measured
    true_ns: int
    truth_ns: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a host published to its ranks, and when."""

    host: str
    record: Published
    true_ns: int


@dataclass(slots=True, kw_only=True)
class SimulatedHost:
    """A machine, its clocks, and the datagrams that wait for it."""

    name: str
    crystal: Oscillator
    realtime: VirtualRealtime
    machine: ProbeMachine
    kernel_stamps: bool = True
    awake_at: int = 0
    timer_ns: int | None = None
    inbox: deque[tuple[int, int, bytes, Address]] = field(default_factory=deque)
    empty_raw_ns: int = 0
    began_raw_ns: int = 0
    sent: int = 0
    follower: Follower | None = None
    dead: bool = False


class Simulation:
    """Hosts on a network. All chance comes from one seed."""

    def __init__(self, seed: int, *, settings: ProbeSettings | None = None) -> None:
        self.chance = random.Random(seed)
        self.hosts: dict[str, SimulatedHost] = {}
        self.samples: list[Sample] = []
        self.notices: list[Notice] = []
        self.told: list[Told] = []
        self.now_ns = 0
        self._defined: dict[tuple[int, str], tuple[SimulatedHost, Relation]] = {}
        self._settings = settings or ProbeSettings()
        self._paths: dict[tuple[str, str], Path] = {}
        self._events: list[tuple[int, int, Callable[[int], None]]] = []
        self._order = itertools.count()

    def add_host(
        self,
        name: str,
        crystal: Oscillator,
        realtime: VirtualRealtime,
        *,
        kernel_stamps: bool = True,
        key: bytes = KEY,
        role: Role | None = None,
    ) -> SimulatedHost:
        """A host with its clocks; it answers from now on. One of the same name is replaced, as by a restart.

        role: it follows cluster time; the reference's anchor is set here where the role has none.
        """
        follower = None
        if role is not None:
            if role.reference == name and role.anchor_ns is None:
                anchor_ns = crystal.raw_at(self.now_ns) - realtime.real_at(self.now_ns)
                role = replace(role, anchor_ns=anchor_ns)
            follower = Follower(Timescale(name, role, period_ns=self._settings.period_ns))
        machine = ProbeMachine(
            node=name,
            clock_id=f"{self.chance.getrandbits(64):016x}",
            key=key,
            session=self.chance.getrandbits(64),
            kernel_stamps=kernel_stamps,
            settings=self._settings,
            follower=follower,
        )
        host = SimulatedHost(
            name=name,
            crystal=crystal,
            realtime=realtime,
            machine=machine,
            kernel_stamps=kernel_stamps,
            follower=follower,
        )
        host.empty_raw_ns = host.began_raw_ns = crystal.raw_at(self._read_clocks(host, self.now_ns))
        self.hosts[name] = host
        return host

    def connect(self, local: str, peer: str, there: Path, back: Path) -> None:
        """The paths between two hosts."""
        self._paths[local, peer] = there
        self._paths[peer, local] = back

    def path(self, source: str, target: str) -> Path:
        """One direction between two hosts."""
        return self._paths[source, target]

    def paths(self) -> list[Path]:
        """All directions."""
        return list(self._paths.values())

    def set_peers(self, name: str, peers: Mapping[str, Address] | tuple[str, ...]) -> None:
        """Let a host ask these."""
        host = self.hosts[name]
        addresses = peers if isinstance(peers, Mapping) else {peer: (peer, 1) for peer in peers}
        self._perform(host, host.machine.handle_peers(addresses, host.crystal.raw_at(self.now_ns)), self.now_ns)

    def inject(self, to: str, data: bytes, source: Address, at_ns: int) -> None:
        """A datagram from nowhere."""
        self._at(at_ns, lambda now_ns: self._arrive(self.hosts[to], data, source, now_ns))

    def call(self, at_ns: int, what: Callable[[], None]) -> None:
        """Something that happens at a true instant."""
        self._at(at_ns, lambda _: what())

    def run(self, until_ns: int) -> None:
        """Let virtual time pass."""
        while self._events and self._events[0][0] <= until_ns:
            at_ns, _, event = heapq.heappop(self._events)
            self.now_ns = max(at_ns, self.now_ns)
            event(self.now_ns)
        self.now_ns = until_ns

    def true_offset_ns(self, local: str, peer: str, at_raw_ns: int) -> int:
        """REALTIME of local - REALTIME of peer when local's RAW read at_raw_ns."""
        true_ns = self.hosts[local].crystal.true_at(at_raw_ns)
        return self.hosts[local].realtime.real_at(true_ns) - self.hosts[peer].realtime.real_at(true_ns)

    def true_raw_offset_ns(self, local: str, peer: str, at_raw_ns: int) -> int:
        """RAW of local - RAW of peer when local's RAW read at_raw_ns."""
        return at_raw_ns - self.hosts[peer].crystal.raw_at(self.hosts[local].crystal.true_at(at_raw_ns))

    def true_cluster_offset_ns(self, told: Told, at_raw_ns: int) -> int | None:
        """RAW of a host - the cluster time that a record speaks of, when the host's RAW read at_raw_ns; None where
        nobody ever defined that."""
        defined = self._defined.get((told.record.epoch, told.record.reference))
        if defined is None:
            return None
        root, definition = defined
        root_raw_ns = root.crystal.raw_at(self.hosts[told.host].crystal.true_at(at_raw_ns))
        return at_raw_ns - (root_raw_ns - definition.estimate_at(root_raw_ns))

    # ---- a host's processor ----

    def _wake(self, host: SimulatedHost, now_ns: int) -> None:
        """The process runs: all that waits, then the timer, as `mesh.driver` does it."""
        if host.dead:
            return
        at_ns = max(now_ns, host.awake_at)
        not_before_ns = max(host.empty_raw_ns - 10_000_000, host.began_raw_ns)
        received = []
        while host.inbox and host.inbox[0][0] <= at_ns:
            at_ns += self.chance.randint(*RECEIVE_NS)
            received.append((host.crystal.raw_at(at_ns), host.inbox.popleft()))
        host.empty_raw_ns = host.crystal.raw_at(at_ns)
        actions: list[Action] = []
        for read_raw_ns, (_, stamp_ns, data, source) in received:
            at_ns = self._read_clocks(host, at_ns)
            arrival = Arrival(
                not_before_raw_ns=not_before_ns,
                read_raw_ns=read_raw_ns,
                real_ns=host.realtime.real_at(stamp_ns) if host.kernel_stamps else None,
                path=source[1],
            )
            raw_ns = host.crystal.raw_at(at_ns)
            actions += host.machine.handle_datagram(data, source, arrival, raw_ns)
        at_ns = self._perform(host, actions, at_ns)
        if host.timer_ns is not None and host.crystal.raw_at(at_ns) >= host.timer_ns:
            host.timer_ns = None
            at_ns = self._read_clocks(host, at_ns)
            at_ns = self._perform(host, host.machine.handle_timer(host.crystal.raw_at(at_ns)), at_ns)
        host.awake_at = at_ns
        if host.inbox:
            self._at(max(host.inbox[0][0], at_ns), lambda then_ns: self._wake(host, then_ns))

    def _read_clocks(self, host: SimulatedHost, at_ns: int) -> int:
        """Feeds the machine a reading; when it was done."""
        between = [self.chance.randint(*CLOCK_READ_NS) for _ in range(2)]
        reading = Reading(
            raw_before_ns=host.crystal.raw_at(at_ns),
            real_ns=host.realtime.real_at(at_ns + between[0]),
            raw_after_ns=host.crystal.raw_at(at_ns + sum(between)),
        )
        for action in host.machine.handle_reading(reading):
            if isinstance(action, Notice):
                self.notices.append(action)
            elif isinstance(action, Published):
                self._tell(host, action, at_ns)
        return at_ns + sum(between)

    def _perform(self, host: SimulatedHost, actions: list[Action], at_ns: int) -> int:
        departures = []
        for action in actions:
            match action:
                case Send():
                    handed_ns = host.crystal.raw_at(at_ns)
                    left_ns = at_ns + self.chance.randint(*SEND_NS) // 2
                    departures.append((action.ticket, handed_ns, host.realtime.real_at(left_ns)))
                    host.sent += 1
                    self._transmit(host, action, left_ns)
                    at_ns = left_ns + self.chance.randint(*SEND_NS) // 2
                case ArmTimer():
                    host.timer_ns = action.at_ns
                    due_ns = max(host.crystal.true_at(action.at_ns), at_ns) + self.chance.randint(*WAKE_NS)
                    self._at(due_ns, lambda now_ns: self._wake(host, now_ns))
                case Measured():
                    self._note(host, action, at_ns)
                case Notice():
                    self.notices.append(action)
                case Published():
                    self._tell(host, action, at_ns)
        if departures:
            known_ns = host.crystal.raw_at(at_ns)
            at_ns = self._read_clocks(host, at_ns)
            for ticket, handed_ns, real_ns in departures:
                stamp_ns = real_ns if host.kernel_stamps else None
                departure = Departure(handed_raw_ns=handed_ns, known_raw_ns=known_ns, real_ns=stamp_ns)
                host.machine.handle_departure(ticket, departure)
        return at_ns

    # ---- the network ----

    def _transmit(self, host: SimulatedHost, send: Send, left_ns: int) -> None:
        to = self.hosts.get(send.to[0])
        path = self._paths.get((host.name, send.to[0]))
        if to is None or path is None:
            return
        for delay_ns in path.arrivals(self.chance, send.path):
            data = send.data if path.tamper is None else path.tamper(send.data)
            if data is not None:
                self._at(left_ns + delay_ns, self._arrival(to, data, (host.name, send.path)))

    def _arrival(self, to: SimulatedHost, data: bytes, source: Address) -> Callable[[int], None]:
        return lambda now_ns: self._arrive(to, data, source, now_ns)

    def _arrive(self, to: SimulatedHost, data: bytes, source: Address, now_ns: int) -> None:
        stamp_ns = now_ns + self.chance.randint(0, 200)
        to.inbox.append((stamp_ns, stamp_ns, data, source))
        wake_ns = max(now_ns, to.awake_at) + self.chance.randint(*WAKE_NS)
        self._at(wake_ns, lambda then_ns: self._wake(to, then_ns))

    def _note(self, host: SimulatedHost, measured: Measured, at_ns: int) -> None:
        at_raw_ns = measured.offset.at_raw_ns
        truth_ns = None if at_raw_ns is None else self.true_offset_ns(host.name, measured.peer, at_raw_ns)
        self.samples.append(Sample(host=host.name, measured=measured, true_ns=at_ns, truth_ns=truth_ns))

    def _tell(self, host: SimulatedHost, record: Published, at_ns: int) -> None:
        if record.hops == 0 and record.relation is not None and record.reference == host.name:
            self._defined.setdefault((record.epoch, record.reference), (host, record.relation))
        self.told.append(Told(host=host.name, record=record, true_ns=at_ns))

    def _at(self, at_ns: int, event: Callable[[int], None]) -> None:
        heapq.heappush(self._events, (at_ns, next(self._order), event))
