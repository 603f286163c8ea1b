"""The prober in virtual time: every known sample holds the truth, on bad paths, through steps and slews, and lies."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable
from typing import Any

import pytest

from rankclock.mesh.actions import Event
from rankclock.simulate.clocks import Oscillator, VirtualRealtime
from rankclock.simulate.probing import KEY, Path, Simulation
from rankclock.wire.probe import Kind, decode_datagram, encode_datagram

S = 1_000_000_000
Simulate = Callable[..., Simulation]

PATHS: dict[str, dict[str, Any]] = {
    "quiet": {},
    "asymmetric": {"there": Path(delay_ns=2_000_000)},
    "lossy": {"there": Path(loss=0.3), "back": Path(loss=0.3)},
    "half lost each way": {"there": Path(loss=0.5), "back": Path(loss=0.5)},
    "doubling": {"there": Path(doubled=0.4), "back": Path(doubled=0.4)},
    "reordering": {"there": Path(queue_ns=400_000), "back": Path(queue_ns=400_000)},
    "congested": {"there": Path(busy_share=0.7), "back": Path(busy_share=0.5)},
    "long": {
        "there": Path(delay_ns=25_000_000, queue_ns=2_000_000),
        "back": Path(delay_ns=25_000_000, queue_ns=2_000_000),
    },
    "stamped by the process": {"kernel_stamps": False},
    "stamped by the process, lossy": {"kernel_stamps": False, "there": Path(loss=0.3)},
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("seed", range(3))
def test_every_sample_holds_the_truth(simulate_pair: Simulate, score_of: Any, path: str, seed: int) -> None:
    score = score_of(simulate_pair(seed, **PATHS[path]).samples)
    assert not score.missed
    assert len(score.known) >= 20
    assert len(score.unknown) <= 4


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("step_s", [-3.0, 0.5, -0.004, 0.00002])
def test_a_step_in_the_middle_of_a_burst_is_flagged_and_no_bound_is_wrong(
    simulate_pair: Simulate, score_of: Any, change: Any, seed: int, step_s: float
) -> None:
    # Bursts of 'a' leave about every second; the step falls into the seventh, at another place of it with each seed.
    at_ns = 6 * S + 700_000_000 + seed * 61_000
    done = simulate_pair(seed, seconds=11, changes=[change("a", at_ns, step_ns=int(step_s * S))])
    score = score_of(done.samples)
    assert not score.missed
    if abs(step_s) > 0.1:
        flagged = {(notice.event, notice.about) for notice in done.notices}
        assert flagged == {(Event.CLOCK_STEPPED, "a"), (Event.PEER_CLOCK_STEPPED, "a")}
        within_a_period_ns = done.hosts["a"].crystal.raw_at(at_ns + S)
        own = [notice for notice in done.notices if notice.event is Event.CLOCK_STEPPED]
        assert own[0].at_raw_ns < within_a_period_ns
    late = [one for one in score.known if one.true_ns > at_ns + 2 * S]
    assert max(one.measured.offset.hi_ns - one.measured.offset.lo_ns for one in late) < 14_000


@pytest.mark.parametrize("rate_ppb", [83_000_000, -83_000_000, 50_000_000, 500_000])
@pytest.mark.parametrize("seed", range(3))
def test_a_slew_at_the_kernels_limit_keeps_bounds_true_and_narrow(
    simulate_pair: Simulate, score_of: Any, change: Any, seed: int, rate_ppb: int
) -> None:
    start_ns = 5 * S + 650_000_000 + seed * 31_000_000
    changes = [change("b", start_ns, rate_ppb=rate_ppb), change("b", start_ns + 3 * S, rate_ppb=10_000)]
    score = score_of(simulate_pair(seed, changes=changes).samples)
    assert not score.missed
    assert score.median_width() < 13_000
    # Two bursts may straddle the ends of the slew; all others stay narrow while REALTIME runs 8 % fast.
    assert sorted(score.widths())[-3] < 20_000


def test_estimates_on_a_quiet_path_are_off_by_a_tenth_of_a_microsecond(simulate_pair: Simulate, score_of: Any) -> None:
    scores = [score_of(simulate_pair(seed).samples) for seed in range(10, 20)]
    assert statistics.median(error for score in scores for error in score.errors()) < 150
    assert max(error for score in scores for error in score.errors()) < 1_000


def test_two_milliseconds_of_asymmetry_move_the_estimate_by_one_and_the_bound_says_so(
    simulate_pair: Simulate, score_of: Any
) -> None:
    score = score_of(simulate_pair(3, there=Path(delay_ns=2_000_000)).samples)
    assert not score.missed
    assert 850_000 < score.median_error() < 1_050_000
    assert score.median_width() < 2_050_000


def test_flows_over_different_paths_bound_better_together_than_each_alone(
    simulate_pair: Simulate, score_of: Any
) -> None:
    there, back = (90_000, 30_000, 0, 60_000), (0, 50_000, 80_000, 20_000)
    score = score_of(simulate_pair(6, there=Path(by_port_ns=there), back=Path(by_port_ns=back)).samples)
    assert not score.missed
    assert min(map(sum, zip(there, back, strict=True))) == 80_000
    assert score.median_width() < 14_000


def test_a_bound_stands_a_second_after_the_start(simulate_pair: Simulate) -> None:
    for seed in range(5):
        done = simulate_pair(seed, seconds=1)
        last = {one.host: one.measured.offset for one in done.samples}
        assert set(last) == {"a", "b"}
        assert all(offset.known and offset.bound_ns < 8_000 for offset in last.values())


def test_the_rate_is_known_to_a_tenth_of_a_ppm_after_a_minute(simulate_pair: Simulate) -> None:
    done = simulate_pair(5, seconds=62)
    host, peer = done.hosts["a"], done.hosts["b"]
    edge = host.machine.report(host.crystal.raw_at(done.now_ns), stamps="kernel").edges[0]
    assert edge.raw is not None
    at_ns = host.crystal.true_at(edge.raw.at_ns)
    local, other = (crystal.raw_at(at_ns) - crystal.raw_at(at_ns - S) for crystal in (host.crystal, peer.crystal))
    true_ppb = (local - other) * S / local
    assert abs(edge.raw_rate_ppb - true_ppb) < 100  # type: ignore[operator]
    assert edge.raw.rate_ppb()[0] - 30 <= true_ppb <= edge.raw.rate_ppb()[1] + 30


def test_a_jump_of_a_crystal_is_noticed_and_the_past_forgotten(score_of: Any) -> None:
    for seed in range(6):
        simulation = Simulation(seed)
        for name in "ab":
            crystal = Oscillator(starts_at_ns=10**14, rate_ppb=1_000)
            if name == "b":
                crystal.set_rate(8 * S, 61_000)
            simulation.add_host(name, crystal, VirtualRealtime(crystal, real_ns=10**18))
        simulation.connect("a", "b", Path(), Path())
        simulation.set_peers("a", ("b",))
        simulation.run(20 * S)
        score = score_of(simulation.samples)
        assert not score.missed
        assert Event.RATE_CHANGED in {notice.event for notice in simulation.notices}
        assert score.unknown
        assert all("rate jumped" in (one.measured.offset.unknown_why or "") for one in score.unknown)
        assert score.known[-1].measured.offset.bound_ns < 8_000


def test_a_peer_that_dies_is_lost_and_its_offset_unknown_and_it_may_return() -> None:
    simulation = Simulation(4)
    for name in "ab":
        crystal = Oscillator(starts_at_ns=10**14, rate_ppb=1_000)
        simulation.add_host(name, crystal, VirtualRealtime(crystal, real_ns=10**18))
    simulation.connect("a", "b", Path(), Path())
    simulation.set_peers("a", ("b",))
    simulation.call(5 * S, lambda: setattr(simulation.hosts["b"], "dead", True))
    simulation.call(12 * S, lambda: setattr(simulation.hosts["b"], "dead", False))
    simulation.run(20 * S)
    events = [(notice.event, notice.about) for notice in simulation.notices]
    assert events == [(Event.PEER_LOST, "b"), (Event.PEER_RETURNED, "b")]
    dead = [one.measured.offset for one in simulation.samples if 6.5 * S < one.true_ns < 12 * S]
    assert dead
    assert all("has not answered for" in (offset.unknown_why or "") for offset in dead)
    after = [one for one in simulation.samples if one.true_ns > 14 * S]
    assert after
    assert all(one.measured.offset.contains(one.truth_ns or 0) and one.measured.offset.known for one in after)


def test_a_peer_that_never_answers_is_unknown_with_the_reason(simulate_pair: Simulate) -> None:
    done = simulate_pair(2, seconds=4, there=Path(loss=1.0))
    assert done.samples
    assert all("has not answered any" in (one.measured.offset.unknown_why or "") for one in done.samples)


def test_a_responder_that_lies_about_its_stamps_is_not_believed() -> None:
    """Records of replies moved by 50 µs for one burst: first no bound, then the odd burst is left out."""
    simulation = Simulation(9)
    for name in "ab":
        crystal = Oscillator(starts_at_ns=10**14, rate_ppb=1_000)
        simulation.add_host(name, crystal, VirtualRealtime(crystal, real_ns=10**18))

    def lie(data: bytes) -> bytes:
        told = decode_datagram(data, KEY)
        if told.kind is not Kind.REPLY or not 6.6 * S < simulation.now_ns < 6.8 * S:
            return data

        def moved(stamp: Any) -> Any:
            return None if stamp is None else dataclasses.replace(stamp, earliest_ns=stamp.earliest_ns + 50_000)

        records = tuple(
            dataclasses.replace(one, arrival=moved(one.arrival), departure=moved(one.departure)) for one in told.records
        )
        return encode_datagram(dataclasses.replace(told, records=records), KEY)

    simulation.connect("a", "b", Path(), Path(tamper=lie))
    simulation.set_peers("a", ("b",))
    simulation.run(14 * S)
    known = [one for one in simulation.samples if one.measured.offset.known]
    assert all(one.measured.offset.contains(one.truth_ns or 0) for one in known)
    assert len(simulation.samples) - len(known) == 1
    report = simulation.hosts["a"].machine.report(
        simulation.hosts["a"].crystal.raw_at(simulation.now_ns), stamps="kernel"
    )
    assert report.counters["odd burst"] == 1
