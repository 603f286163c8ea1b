"""Cluster time in jobs with hidden truth and faults: every bound that any host publishes holds the truth.

`python -m benchmarks.clock_faults` runs the same scenarios over hundreds of seeds.
"""

from __future__ import annotations

import pytest

from rankclock.clockmath.history import ClockHistory
from rankclock.clockmath.realtime import Reading
from rankclock.clockmath.relation import Relation
from rankclock.mesh.actions import Event
from rankclock.mesh.recorder import Recorder
from rankclock.mesh.settings import ProbeSettings
from rankclock.simulate.cluster_time import SCENARIOS, S, build, kill, lie, restart, run_scenario, score
from rankclock.timebase.clock_record import ClockEvent, ClockHeader
from rankclock.training.peers import choose_peers


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_published_bound_holds_the_truth(name: str) -> None:
    result = run_scenario(
        name, seed=len(name), count=5 if "restarted" in name else 4, for_s=9 if "killed" in name else 5
    )
    assert result.known > 30
    assert result.held == result.known
    assert result.first_known_ns < S, "every host knows its offset within a second"


def test_a_one_way_delay_moves_the_estimate_by_half_of_it_and_never_the_bound() -> None:
    result = run_scenario("2 ms one way", seed=5, count=3, for_s=6)
    assert result.held == result.known
    assert max(result.errors_ns) > 900_000
    assert min(width for width in result.widths_ns if width > 1_000_000) > 2_000_000


def test_a_killed_reference_is_succeeded_by_one_host_and_its_estimate_goes_on() -> None:
    job = build(3, count=5, for_s=14)
    job.simulation.call(4 * S, lambda: kill(job, 0))
    job.simulation.run(14 * S)
    living = [job.simulation.hosts[name] for name in job.names[1:]]
    assert {host.follower.timescale.reference for host in living if host.follower} == {"host1"}
    changes = [one for one in job.simulation.notices if one.event is Event.REFERENCE_CHANGED]
    assert len(changes) == len(living), "each host says so once"
    # The old and the new cluster time differ by no more than the successor was unsure of.
    at_ns = job.simulation.now_ns
    old, new = (
        next(one for one in reversed(job.simulation.told) if one.record.epoch == epoch and one.host == "host2")
        for epoch in (1, 2)
    )
    raw_ns = job.crystals["host2"][0].raw_at(at_ns)
    ends = [job.simulation.true_cluster_offset_ns(one, raw_ns) for one in (old, new)]
    assert ends[0] is not None
    assert ends[1] is not None
    assert 0 < abs(ends[1] - ends[0]) < 100_000


@pytest.mark.slow
def test_beyond_128_hosts_leaders_carry_cluster_time_over_the_loss_of_the_reference() -> None:
    settings = ProbeSettings(
        pairs=1,
        collect_ns=S // 100,
        reply_wait_ns=S // 10,
        start_ns=(0, S // 4, S // 2),
        requests_per_s=256,
        request_burst=512,
    )
    job = build(1, count=140, for_s=11, peers=choose_peers, settings=settings)
    job.simulation.call(3 * S, lambda: kill(job, 0))
    job.simulation.run(10 * S)
    living = [host.follower for host in job.simulation.hosts.values() if not host.dead]
    assert {one.timescale.reference for one in living if one} == {"host1"}
    result = score(job)
    assert result.known == result.held > 5_000
    assert result.unknown == 0


def test_the_history_says_when_the_reference_changed_and_covers_both_sides() -> None:
    job = build(3, count=4, for_s=12)
    job.simulation.call(4 * S, lambda: kill(job, 0))
    job.simulation.run(12 * S)
    lines = [one.record.line for one in job.simulation.told if one.host == "host2" and one.record.line is not None]
    events = [line.event for line in lines if line.event is not None and line.event.parts]
    assert events == [ClockEvent.REFERENCE]
    header = ClockHeader(job="j", rank=2, host="host2", clock_id="c", reference="host0", growth_ppb=1_000)
    history = ClockHistory(header, lines)
    assert history.reference == "host1"
    (change,) = [line for line in lines if line.event is ClockEvent.REFERENCE]
    assert any("both sides" in text for text in history.offset_at_real(change.real_ns - 50_000_000).assumptions)


def test_a_reference_that_comes_back_follows_the_one_that_took_over() -> None:
    job = build(4, count=4, for_s=16)
    job.simulation.call(4 * S, lambda: kill(job, 0))
    job.simulation.call(10 * S, lambda: restart(job, 0))
    job.simulation.run(15 * S)
    followers = [host.follower for host in job.simulation.hosts.values()]
    assert {one.timescale.reference for one in followers if one} == {"host1"}
    assert [one.timescale.defines for one in followers if one] == [False, True, False, False]


def test_a_two_faced_host_is_outvoted_and_named() -> None:
    job = build(6, count=5, for_s=8)
    job.simulation.call(3 * S, lambda: lie(job, 2, (1, 3), 1_000_000))
    job.simulation.run(8 * S)
    named = {(one.about, one.event) for one in job.simulation.notices if one.event is Event.CONTRADICTED}
    assert named == {("host2", Event.CONTRADICTED)}
    result = score(job, skip=(2,))
    assert result.known == result.held
    assert result.unknown == 0


def test_where_one_of_two_ways_lies_nobody_is_believed() -> None:
    job = build(7, count=3, for_s=10)
    # Host 2's rate stays: only its stamps towards host 1 are off, once that is known well.
    job.simulation.call(3 * S, lambda: lie(job, 2, (1,), 1_000_000))
    job.simulation.run(10 * S)
    last = next(one for one in reversed(job.simulation.told) if one.host == "host1")
    assert last.record.relation is None
    assert "host0" in last.record.why
    assert "host2" in last.record.why
    result = score(job)
    assert result.known == result.held


def test_a_host_that_loses_the_reference_and_finds_its_successor_says_so_in_its_history() -> None:
    """As where leaders learn of a new reference first: for a while no way leads to it."""
    way = Relation.itself(0, -5)
    recorder = Recorder()
    lines = recorder.take_relation(way)
    for turn in range(30):
        if turn == 10:
            lines += recorder.take_relation(None, detail="no way")
        if turn == 20:
            lines += recorder.take_relation(way, event=ClockEvent.REFERENCE, detail="host1")
        at_ns = turn * 100_000_000
        lines += recorder.take_reading(Reading(raw_before_ns=at_ns, real_ns=at_ns + 50, raw_after_ns=at_ns + 100))
    events = [line.event for line in [*lines, *recorder.finish()] if line.event]
    assert events == [ClockEvent.START, ClockEvent.LOST, ClockEvent.REFERENCE]


def test_without_any_answer_nothing_is_known_and_the_reason_is_said() -> None:
    job = build(8, count=2, for_s=4)
    for path in job.simulation.paths():
        path.loss = 1.0
    job.simulation.run(4 * S)
    last = next(one for one in reversed(job.simulation.told) if one.host == "host1")
    assert last.record.relation is None
    assert last.record.why.startswith("host0 has not answered any of ")
