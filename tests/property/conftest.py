"""Simulated hosts for tests of the prober: the real state machine in virtual time, with the truth beside."""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from rankclock.mesh.report import NodeReport
from rankclock.simulate.clocks import Oscillator, VirtualRealtime
from rankclock.simulate.probing import Path, Sample, Simulation

S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Change:
    """What a test does to a host's CLOCK_REALTIME."""

    host: str
    at_ns: int
    step_ns: int = 0
    rate_ppb: int | None = None


@dataclass(frozen=True, slots=True)
class Score:
    """How well samples did: every known one holds the truth, or its excess is listed."""

    known: list[Sample]
    unknown: list[Sample]

    @property
    def missed(self) -> list[Sample]:
        return [one for one in self.known if not one.measured.offset.contains(_truth(one))]

    def errors(self) -> list[int]:
        return [abs((one.measured.offset.estimate_ns or 0) - _truth(one)) for one in self.known]

    def widths(self) -> list[int]:
        offsets = [one.measured.offset for one in self.known]
        return [(offset.hi_ns or 0) - (offset.lo_ns or 0) for offset in offsets]

    def median_error(self) -> float:
        return statistics.median(self.errors())

    def median_width(self) -> float:
        return statistics.median(self.widths())


def _truth(sample: Sample) -> int:
    assert sample.truth_ns is not None
    return sample.truth_ns


def score(samples: Sequence[Sample]) -> Score:
    return Score(
        known=[one for one in samples if one.measured.offset.known],
        unknown=[one for one in samples if not one.measured.offset.known],
    )


def add_hosts(
    simulation: Simulation, names: Sequence[str], seconds: int, changes: Sequence[Change], **more: Any
) -> None:
    """Hosts up to 20 s, 200 ppm of crystal and 100 ppm of discipline apart, crystals wandering."""
    chance = simulation.chance
    for name in names:
        crystal = Oscillator.wandering(
            chance,
            starts_at_ns=chance.randrange(10**12, 10**15),
            rate_ppb=chance.uniform(-1e5, 1e5),
            for_s=seconds + 2,
        )
        realtime = VirtualRealtime(
            crystal,
            real_ns=1_700_000_000 * S + chance.randrange(-20 * S, 20 * S),
            rate_ppb=chance.randrange(-50_000, 50_000),
        )
        for change in changes:
            if change.host == name:
                realtime.change(change.at_ns, step_ns=change.step_ns, rate_ppb=change.rate_ppb)
        simulation.add_host(name, crystal, realtime, **more)


@pytest.fixture(scope="session")
def simulate_pair() -> Callable[..., Simulation]:
    """Two hosts 'a' and 'b' that probe each other for some seconds."""

    def run(
        seed: int,
        *,
        seconds: int = 12,
        there: Path | None = None,
        back: Path | None = None,
        changes: Sequence[Change] = (),
        **more: Any,
    ) -> Simulation:
        simulation = Simulation(seed)
        add_hosts(simulation, "ab", seconds, changes, **more)
        simulation.connect("a", "b", there or Path(), back or Path())
        simulation.set_peers("a", ("b",))
        simulation.set_peers("b", ("a",))
        simulation.run(seconds * S)
        return simulation

    return run


@pytest.fixture(scope="session")
def simulate_mesh() -> Callable[..., tuple[Simulation, list[NodeReport]]]:
    """Hosts 'h0', 'h1', ... where each probes those that `peers_of(index)` names; and their reports, through JSON."""

    def run(
        seed: int,
        count: int,
        *,
        seconds: float = 2.5,
        peers_of: Callable[[int], Sequence[int]] | None = None,
        changes: Sequence[Change] = (),
        path: Callable[[random.Random], Path] | None = None,
    ) -> tuple[Simulation, list[NodeReport]]:
        simulation = Simulation(seed)
        names = [f"h{index}" for index in range(count)]
        add_hosts(simulation, names, int(seconds) + 1, changes)
        for index, name in enumerate(names):
            for other in names[:index]:
                ways = [path(simulation.chance) if path else Path() for _ in range(2)]
                simulation.connect(name, other, *ways)
        for index, name in enumerate(names):
            others = peers_of(index) if peers_of else [other for other in range(count) if other != index]
            simulation.set_peers(name, tuple(names[other] for other in others))
        simulation.run(int(seconds * S))
        reports = []
        for host in simulation.hosts.values():
            asked_ns = host.crystal.raw_at(simulation.now_ns + simulation.chance.randrange(30_000_000))
            told = json.dumps(host.machine.report(asked_ns, stamps="kernel").to_json())
            reports.append(NodeReport.from_json(json.loads(told)))
        return simulation, reports

    return run


@pytest.fixture(scope="session")
def score_of() -> Callable[[Sequence[Sample]], Score]:
    return score


@pytest.fixture(scope="session")
def change() -> type[Change]:
    return Change
