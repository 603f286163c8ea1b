"""A small simulated cluster that fills a run record: oscillators, servos, two-way exchanges with hidden truth.

Nothing here is a picture of a result: offsets come out of clocks that drift, get stepped, are steered on noisy
readings and lose their grandmaster; bounds come out of random path delays. Seeded, so every run is the same.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pytest

from rankclock.report.record import (
    Check,
    Event,
    Figure,
    Host,
    LeftOut,
    Matrix,
    Phase,
    PlanNode,
    PlanRecord,
    RunRecord,
    Sample,
    Series,
    Standing,
    Takeover,
)
from rankclock.timebase import ClockState, Judgement, Offset, SyncState

KERNEL = "two-way, kernel stamps"
USER = "two-way, user stamps"
STEP_S = 0.05
SAMPLE_EVERY = 4
KILLED_S, TAKEN_OVER_S, ENDED_S = 62.0, 63.4, 80.0
PTP_FROM_S = 38.0
REPAIRED_S = 26.0
PHASES = (
    ("lab up", 0.0, 1.4),
    ("assess, plan, render", 1.4, 4.0),
    ("apply NTP", 4.0, 14.0),
    ("NTP settled", 14.0, 22.0),
    ("preflight, repair", 22.0, 30.0),
    ("verify", 30.0, PTP_FROM_S),
    ("apply PTP", PTP_FROM_S, 50.0),
    ("PTP settled", 50.0, KILLED_S),
    ("takeover", KILLED_S, ENDED_S),
)
GPUS = tuple(f"gpu{number}" for number in range(1, 7))
OFFSETS_NS = {"gpu5": -20_000_000_000, "gpu1": 1_400_000, "gpu2": -330_000, "gpu6": 44_000_000, "leaf1": -2_000_000}
DRIFTS_PPB = {"gpu2": 60_000, "gpu1": -8_000, "gpu3": 14_000, "gpu4": -21_000, "time2": 5_000, "leaf2": -12_000}


@dataclass
class Clock:
    """One simulated clock: its offset from true time in ns, its oscillator's error, and what the servo adds to it."""

    name: str
    offset_ns: float
    drift_ppb: float
    learnt_ppb: float = 0.0
    steer_ppb: float = 0.0
    started: bool = False
    heard_ns: float | None = None
    source: str | None = None

    def pass_time(self, chance: random.Random) -> None:
        self.drift_ppb += chance.gauss(0, 2)
        self.offset_ns += (self.drift_ppb + self.learnt_ppb + self.steer_ppb) * STEP_S

    def hear(self, error_ns: float) -> None:
        self.heard_ns = error_ns
        if not self.started and abs(error_ns) > 1_000:
            self.offset_ns -= error_ns
            self.started = True
            return
        self.started = True
        self.steer_ppb = -error_ns * 1.2
        self.learnt_ppb -= error_ns * 0.12


@dataclass
class Cluster:
    """The clocks and who follows whom at an instant; `looks` collects the samples."""

    chance: random.Random
    clocks: dict[str, Clock]
    looks: dict[str, list[Sample]] = field(default_factory=dict)

    def source_of(self, name: str, now_s: float) -> str | None:
        ptp = now_s >= PTP_FROM_S
        leaf = "leaf1" if name in GPUS[:3] else "leaf2"
        if name == "time1":
            return "upstream" if now_s >= 4.2 else None
        if name == "time2":
            return "upstream" if now_s >= 4.4 else None
        if name == "gpu5" and now_s < REPAIRED_S:
            return None
        if ptp and KILLED_S <= now_s < TAKEN_OVER_S and name.startswith("leaf"):
            return None
        server = "time2" if now_s >= KILLED_S else "time1"
        if now_s < 6.0:
            return None
        return server if not ptp or name.startswith("leaf") else leaf

    def advance(self, now_s: float) -> None:
        for clock in self.clocks.values():
            clock.pass_time(self.chance)
        for name, clock in self.clocks.items():
            clock.source = self.source_of(name, now_s)
            if clock.source is None or self.chance.random() > 0.25:
                continue
            noise_ns = 250 if now_s >= PTP_FROM_S else 2_000
            heard_ns = clock.offset_ns - self.clocks[clock.source].offset_ns + self.chance.gauss(0, noise_ns)
            clock.hear(heard_ns)

    def measured(self, true_ns: int, method: str) -> Offset:
        out_ns, back_ns = (
            (150 if method == KERNEL else 5_000) + self.chance.expovariate(1 / (300 if method == KERNEL else 1_500))
            for _ in range(2)
        )
        lo_ns, hi_ns = int(true_ns - out_ns) - 1, int(true_ns + back_ns) + 1
        return Offset(
            lo_ns=lo_ns,
            hi_ns=hi_ns,
            estimate_ns=(lo_ns + hi_ns) // 2,
            reference="upstream",
            method=method,
            assumptions=("stamps not late", "200 ppm while the value ages"),
            age_ns=int(self.chance.uniform(0, 1.2e9)),
        )

    def claimed(self, clock: Clock, now_s: float) -> tuple[Offset, int | None]:
        ptp = now_s >= PTP_FROM_S and not clock.name.startswith("time")
        method = "ptp4l TIME_STATUS_NP, one hop" if ptp else "chronyd tracking"
        if clock.heard_ns is None or clock.source is None:
            return Offset.unknown("the daemon has no source", reference="", method=method), None
        if ptp:
            truth_ns = round(clock.offset_ns - self.clocks[clock.source].offset_ns)
            return Offset.around(round(clock.heard_ns), 700, reference=clock.source, method=method), truth_ns
        bound_ns = 14_000 + round(8_000 * self.chance.random())
        claim = Offset.around(round(clock.heard_ns * 0.4), bound_ns, reference="upstream", method=method)
        return claim, round(clock.offset_ns)

    def look(self, now_s: float, phase: str) -> None:
        for name, clock in self.clocks.items():
            if name == "upstream":
                continue
            true_ns = round(clock.offset_ns)
            measured = self.measured(true_ns, USER if self.chance.random() < 0.2 else KERNEL)
            if name == "time1" and now_s >= KILLED_S:
                measured = Offset.unknown("no answer for 1 s", reference="upstream", method=KERNEL)
            claimed, claimed_true_ns = self.claimed(clock, now_s)
            self.looks.setdefault(name, []).append(
                Sample(
                    t_s=round(now_s, 3),
                    phase=phase,
                    measured=measured,
                    claimed=claimed,
                    true_ns=true_ns,
                    claimed_true_ns=claimed_true_ns,
                )
            )

    def matrix(self, title: str, names: tuple[str, ...], now_s: float) -> Matrix:
        cells, truths = [], []
        for one in names:
            row, true_row = [], []
            for other in names:
                true_ns = round(self.clocks[one].offset_ns - self.clocks[other].offset_ns)
                cell = replace(self.measured(true_ns, KERNEL), reference=other)
                if one == other:
                    cell = Offset.around(0, 0, reference=other, method="the same clock")
                if {one, other} == {"gpu3", "gpu4"} and now_s < REPAIRED_S:
                    cell = Offset.unknown("no path between them", reference=other, method=KERNEL)
                row.append(cell)
                true_row.append(true_ns)
            cells.append(tuple(row))
            truths.append(tuple(true_row))
        judgements = [cell.judge(1_000_000) for row in cells for cell in row]
        verdict = next((j for j in (Judgement.BEYOND, Judgement.CANNOT_TELL) if j in judgements), Judgement.WITHIN)
        return Matrix(
            title=title,
            names=names,
            cells=tuple(cells),
            threshold_ns=1_000_000,
            verdict=verdict,
            t_s=now_s,
            true_ns=tuple(truths),
        )

    def standings(self, now_s: float) -> tuple[Standing, ...]:
        found = []
        for name, looks in self.looks.items():
            last = looks[-1]
            owner = "phc2sys" if now_s > PTP_FROM_S and not name.startswith("time") else "chronyd"
            running = self.clocks[name].source is not None
            state = ClockState(
                node=name,
                state=SyncState.SYNCHRONISED if running else SyncState.FREE_RUNNING,
                owner=owner if running else None,
                source=self.clocks[name].source or "",
                claimed=last.claimed,
                measured=last.measured,
                reasons=("reference fresh",) if running else ("the daemon is not running",),
            )
            found.append(Standing(state=state, true_ns=last.true_ns))
        return tuple(found)


def plan_nodes(ptp: bool) -> Iterator[PlanNode]:
    yield PlanNode(node="upstream", role="reference", upstream=(), owner=None, tier=0, budget_ns=None)
    for name, role in (("time1", "grandmaster"), ("time2", "backup grandmaster")):
        yield PlanNode(
            node=name, role=role if ptp else "server", upstream=("upstream",), owner="chronyd", tier=1, budget_ns=20_000
        )
    for name in ("leaf1", "leaf2"):
        role, owner = ("boundary clock", "phc2sys") if ptp else ("client", "chronyd")
        yield PlanNode(node=name, role=role, upstream=("time1", "time2"), owner=owner, tier=2, budget_ns=30_000)
    for name in GPUS:
        upstream = ("leaf1" if name in GPUS[:3] else "leaf2",) if ptp else ("time1", "time2")
        role, owner = ("ordinary clock", "phc2sys") if ptp else ("client", "chronyd")
        yield PlanNode(node=name, role=role, upstream=upstream, owner=owner, tier=3, budget_ns=50_000)


def simulate_run(seed: int = 7) -> RunRecord:
    """One whole run, as `rankclock demo` would record it."""
    names = ("upstream", "time1", "time2", "leaf1", "leaf2", *GPUS)
    clocks = {
        name: Clock(name=name, offset_ns=OFFSETS_NS.get(name, 0), drift_ppb=DRIFTS_PPB.get(name, 0)) for name in names
    }
    cluster = Cluster(chance=random.Random(seed), clocks=clocks)
    matrices, standings = [], {}
    for tick in range(int(ENDED_S / STEP_S)):
        now_s = tick * STEP_S
        phase = next(name for name, since_s, until_s in PHASES if since_s <= now_s < until_s)
        clocks["upstream"].offset_ns = clocks["upstream"].drift_ppb = 0.0
        cluster.advance(now_s)
        if tick % SAMPLE_EVERY == 0 and now_s > 1.4:
            cluster.look(now_s, phase)
        if tick in (int(21.9 / STEP_S), int(61.9 / STEP_S)):
            standings[tick] = cluster.standings(now_s)
        if tick == int(23.0 / STEP_S):
            matrices.append(cluster.matrix("Preflight, before the job starts", GPUS, now_s))
        if tick == int(34.0 / STEP_S):
            matrices.append(cluster.matrix("Verify between the ranks (NTP)", GPUS, now_s))
        if tick == int(58.0 / STEP_S):
            matrices.append(cluster.matrix("Verify between the ranks (PTP)", GPUS, now_s))
    return _record(cluster, tuple(matrices), list(standings.values()))


def _record(cluster: Cluster, matrices: tuple[Matrix, ...], standings: list[tuple[Standing, ...]]) -> RunRecord:
    plans = tuple(
        PlanRecord(
            protocol=protocol,
            tree="upstream\n├── time1\n│   ├── leaf1\n│   └── leaf2\n└── time2",
            decision=(
                "Fewer than 8 training nodes? 6: yes (threshold: 8).",
                "Network unstable? No: jitter 12 µs, loss 0 of 400 probes.",
            ),
            nodes=tuple(plan_nodes(protocol == "ptp")),
            standings=stood,
            standings_at_s=at_s,
        )
        for protocol, stood, at_s in zip(("ntp", "ptp"), standings, (21.9, 61.9), strict=True)
    )
    return RunRecord(
        title="Two racks on one machine",
        created_utc="2026-12-01T05:00:00Z",
        command="rankclock demo",
        reference="upstream",
        host=Host(kernel="Linux 6.1.0 x86_64", cores=2, versions={"chronyd": "4.3", "ptp4l": "3.1.1"}),
        phases=tuple(Phase(name=name, started_s=a, ended_s=b) for name, a, b in PHASES),
        plans=plans,
        series=tuple(
            Series(node=name, reference="upstream", samples=tuple(looks)) for name, looks in cluster.looks.items()
        ),
        matrices=matrices,
        events=(
            Event(t_s=4.2, node="time1", text="chronyd started"),
            Event(t_s=23.0, node="gpu5", text="preflight refused: 20.0 s behind"),
            Event(t_s=REPAIRED_S, node="gpu5", text="chronyd started; the clock was stepped"),
            Event(t_s=KILLED_S, node="time1", text="ptp4l killed (SIGKILL)"),
            Event(t_s=TAKEN_OVER_S, text="both boundary clocks follow time2"),
        ),
        takeover=Takeover(killed_s=KILLED_S, old="time1", new="time2", taken_over_s=TAKEN_OVER_S),
        figures=(Figure(name="time to take over", value=1.4, unit="s", command="rankclock demo"),),
        checks=(
            Check(name="Preflight refuses the node that is 20 s behind", passed=True, detail="gpu5, -20.0 s"),
            Check(name="Verify passes between all ranks", passed=True, detail="worst pair 3.1 µs against 1 ms"),
        ),
        left_out=(LeftOut(what="agreement with UTC", why="this machine has no network"),),
    )


@pytest.fixture(scope="session")
def run() -> RunRecord:
    return simulate_run()


@pytest.fixture(scope="session")
def lying_run(run: RunRecord) -> RunRecord:
    """The same run in which one measured bound of gpu2 does not hold the truth."""
    (gpu2,) = (series for series in run.series if series.node == "gpu2")
    samples = list(gpu2.samples)
    victim = samples[200]
    bound = Offset.around((victim.true_ns or 0) + 90_000, 2_000, reference="upstream", method=KERNEL)
    samples[200] = replace(victim, measured=bound)
    changed = replace(gpu2, samples=tuple(samples))
    return replace(run, series=tuple(changed if series.node == "gpu2" else series for series in run.series))


@pytest.fixture(scope="session")
def simulate() -> Callable[[int], RunRecord]:
    return simulate_run
