"""Jobs whose clocks follow cluster time, in virtual time: hidden truth, faults, and a score of what each host said.

Every host has a wandering crystal and a CLOCK_REALTIME that is off, slewed and set; the paths between hosts have delays
of their own and queues. A scenario does something to them. The score counts, for every record a host published, whether
the truth lay inside, how wide the bound was, how far off the estimate.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from rankclock.mesh.settings import ProbeSettings
from rankclock.mesh.timescale import Role
from rankclock.simulate.clocks import Oscillator, VirtualRealtime
from rankclock.simulate.probing import KEY, Path, Simulation
from rankclock.wire.probe import Record, WireStamp, decode_datagram, encode_datagram

__all__ = ["SCENARIOS", "Job", "Score", "build", "kill", "lie", "restart", "run_scenario", "score"]

S = 1_000_000_000
MS = 1_000_000
EPOCH_S = 1_790_000_000

Peers = Callable[[int, random.Random], list[list[int]]]


def everybody(count: int, _: random.Random) -> list[list[int]]:
    """A full mesh."""
    return [[other for other in range(count) if other != one] for one in range(count)]


@dataclass(slots=True, kw_only=True)
class Job:
    """A simulated job: host 0 is the reference, the next three its successors."""

    simulation: Simulation
    names: tuple[str, ...]
    role: Role
    peers: list[list[int]]
    chance: random.Random
    crystals: dict[str, tuple[Oscillator, VirtualRealtime]] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Score:
    """Of all records that hosts other than the reference published.

    held: those whose bound holds the truth, of `known`; first_known_ns: when the last host first knew its offset.
    """

    known: int = 0
    held: int = 0
    unknown: int = 0
    errors_ns: list[int] = field(default_factory=list)
    widths_ns: list[int] = field(default_factory=list)
    first_known_ns: int = 0
    references: set[str] = field(default_factory=set)

    def add(self, other: Score) -> None:
        """Take another run's in."""
        self.known += other.known
        self.held += other.held
        self.unknown += other.unknown
        self.errors_ns += other.errors_ns
        self.widths_ns += other.widths_ns
        self.first_known_ns = max(self.first_known_ns, other.first_known_ns)
        self.references |= other.references


def build(
    seed: int,
    *,
    count: int = 5,
    period_s: float = 1.0,
    for_s: int = 20,
    peers: Peers = everybody,
    settings: ProbeSettings | None = None,
    wander_ppb: float = 10.0,
) -> Job:
    """A job with clocks up to 20 s and 100 ppm off, paths of 3 to 60 µs, lightly queued."""
    chance = random.Random(seed)
    settings = replace(settings or ProbeSettings(), period_ns=round(period_s * S))
    names = tuple(f"host{index}" for index in range(count))
    job = Job(
        simulation=Simulation(seed, settings=settings),
        names=names,
        role=Role(reference=names[0], successors=names[1:4]),
        peers=peers(count, chance),
        chance=chance,
    )
    for name in names:
        crystal = Oscillator.wandering(
            chance,
            starts_at_ns=chance.randrange(10**15),
            rate_ppb=chance.uniform(-1e5, 1e5),
            for_s=for_s + 1,
            walk_ppb=wander_ppb,
        )
        real_ns = EPOCH_S * S + chance.randrange(-20 * S, 20 * S)
        gains_ppb = chance.randrange(-100_000, 100_000)
        realtime = VirtualRealtime(crystal, real_ns=real_ns, rate_ppb=gains_ppb)
        job.crystals[name] = crystal, realtime
        role = job.role
        if name == names[0]:
            raw_ns = crystal.raw_at(0)
            role = replace(role, anchor_raw_ns=raw_ns, anchor_ns=raw_ns - real_ns, anchor_rate_ppb=-float(gains_ppb))
        job.simulation.add_host(name, crystal, realtime, role=role)
    for one, asked in enumerate(job.peers):
        for two in asked:
            there, back = (Path(delay_ns=chance.randrange(3_000, 60_000)) for _ in range(2))
            job.simulation.connect(names[one], names[two], there, back)
    for one, asked in enumerate(job.peers):
        job.simulation.set_peers(names[one], tuple(names[two] for two in asked))
    return job


def kill(job: Job, index: int) -> None:
    """The prober process of a host ends."""
    job.simulation.hosts[job.names[index]].dead = True


def restart(job: Job, index: int) -> None:
    """It is started again, as the rank that watches it does: same clock, same role, nothing remembered."""
    name = job.names[index]
    old = job.simulation.hosts[name].follower
    role = job.role if old is None else old.timescale.role
    crystal, realtime = job.crystals[name]
    job.simulation.add_host(name, crystal, realtime, role=role)
    job.simulation.set_peers(name, tuple(job.names[peer] for peer in job.peers[index]))


def lie(job: Job, liar: int, victims: Iterable[int], by_ns: int) -> None:
    """A two-faced host: to some it tells stamps that are off by `by_ns`, and the same belief as to all."""
    for victim in victims:
        path = job.simulation.path(job.names[liar], job.names[victim])
        path.tamper = lambda data: _shifted(data, by_ns)


def score(job: Job, *, after_s: float = 1.0, skip: Sequence[int] = ()) -> Score:
    """What was published after the start, by all hosts but those of `skip`, held against the truth."""
    result = Score()
    first: dict[str, int] = {}
    skipped = {job.names[index] for index in skip}
    for told in job.simulation.told:
        way = told.record.relation
        if told.host in skipped:
            continue
        if way is None:
            result.unknown += told.true_ns > after_s * S
            continue
        first.setdefault(told.host, told.true_ns)
        if told.record.hops == 0 or told.true_ns < after_s * S:
            continue
        result.references.add(told.record.reference)
        truth_ns = job.simulation.true_cluster_offset_ns(told, told.record.at_raw_ns)
        lo_ns, hi_ns = way.bounds_at(told.record.at_raw_ns)
        result.known += 1
        result.held += truth_ns is not None and lo_ns <= truth_ns <= hi_ns
        result.widths_ns.append(hi_ns - lo_ns)
        if truth_ns is not None:
            result.errors_ns.append(abs(way.estimate_at(told.record.at_raw_ns) - truth_ns))
    result.first_known_ns = max(first.values(), default=0)
    return result


def run_scenario(name: str, seed: int, *, count: int = 5, for_s: int = 14) -> Score:
    """One run of a scenario of SCENARIOS, scored."""
    job = build(seed, count=count, for_s=for_s)
    SCENARIOS[name](job)
    job.simulation.run(for_s * S)
    return score(job, skip=(2,) if name == "a two-faced peer" else ())


# ---- what is done to a job ----


def _nothing(_: Job) -> None:
    """A quiet network."""


def _lossy(share: float) -> Callable[[Job], None]:
    def scenario(job: Job) -> None:
        for path in job.simulation.paths():
            path.loss = share

    return scenario


def _congested(job: Job) -> None:
    """Half of all datagrams meet a queue of up to 2 ms."""
    for path in job.simulation.paths():
        path.busy_share, path.busy_queue_ns = 0.5, 2 * MS


def _asymmetric(job: Job) -> None:
    """2 ms more on the way from host 1 to everybody: no two-way method can see it."""
    for name in job.names:
        if name != job.names[1]:
            job.simulation.path(job.names[1], name).delay_ns += 2 * MS


def _silent(job: Job) -> None:
    """Host 2 never answers."""
    kill(job, 2)


def _two_faced(job: Job) -> None:
    """Host 2 tells half of the others a clock that is 1 ms off, from 3 s on."""
    job.simulation.call(3 * S, lambda: lie(job, 2, (1, 3), MS))


def _restarts(job: Job) -> None:
    """Three hosts' processes are killed within a second, and started again 3 s later."""
    for turn, index in enumerate((1, 3, 4)):
        at_ns = 4 * S + turn * 300 * MS
        job.simulation.call(at_ns, lambda index=index: kill(job, index))  # type: ignore[misc]
        job.simulation.call(at_ns + 3 * S, lambda index=index: restart(job, index))  # type: ignore[misc]


def _reference_killed(job: Job) -> None:
    job.simulation.call(4 * S, lambda: kill(job, 0))


def _reference_back(job: Job) -> None:
    """The reference is killed, a successor takes over, and the reference comes back."""
    _reference_killed(job)
    job.simulation.call(10 * S, lambda: restart(job, 0))


def _reference_and_liar(job: Job) -> None:
    """The reference is killed while a two-faced host is about."""
    _reference_killed(job)
    lie(job, 3, (2,), MS)


def _stepped(job: Job) -> None:
    """CLOCK_REALTIME of every host is set and slewed by up to 83,000 ppm, in mid-exchange."""
    for name in job.names:
        realtime = job.crystals[name][1]
        at_ns = 2 * S
        for _ in range(5):
            at_ns += job.chance.randrange(300 * MS, 2 * S)
            step_ns = job.chance.choice([0, -3 * S, 20 * S, 1_000, -50_000])
            realtime.change(at_ns, step_ns=step_ns, rate_ppb=job.chance.choice([0, 83_000_000, -83_000_000, 40_000]))


SCENARIOS: dict[str, Callable[[Job], None]] = {
    "quiet": _nothing,
    "clocks set and slewed": _stepped,
    "congested": _congested,
    "30 % loss": _lossy(0.3),
    "50 % loss": _lossy(0.5),
    "2 ms one way": _asymmetric,
    "a peer that never answers": _silent,
    "a two-faced peer": _two_faced,
    "three killed and restarted": _restarts,
    "the reference killed": _reference_killed,
    "the reference killed and back": _reference_back,
    "the reference killed, a liar about": _reference_and_liar,
}


def _shifted(data: bytes, by_ns: int) -> bytes:
    datagram = decode_datagram(data, KEY)
    records = tuple(
        Record(
            sequence=record.sequence,
            arrival=_moved(record.arrival, by_ns),
            departure=None if record.departure is None else _moved(record.departure, by_ns),
        )
        for record in datagram.records
    )
    return encode_datagram(replace(datagram, records=records), KEY)


def _moved(stamp: WireStamp, by_ns: int) -> WireStamp:
    return replace(stamp, earliest_ns=stamp.earliest_ns + by_ns)
