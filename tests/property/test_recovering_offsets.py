"""Offsets out of collectives: the truth lies in every interval, and what cannot be told is said to be unknown."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankclock.traces.digest import TraceDigest
from rankclock.traces.flight_recorder import UNBOUNDED
from rankclock.traces.read import by_rank, read_files
from rankclock.traces.recover import Recovery, recover
from rankclock.traces.synthetic import HostClock, Job, SyntheticJob, write_traces

MS = 1_000_000
INSTANTS = 201

Performed = Callable[..., tuple[SyntheticJob, dict[int, TraceDigest]]]


@pytest.fixture
def perform(tmp_path: Path) -> Performed:
    """The job's truth and what its files say. clocks: given instead of drawn ones, by host."""
    written = iter(range(10_000))

    def run(*, clocks: dict[int, HostClock] | None = None, **job: Any) -> tuple[SyntheticJob, dict[int, TraceDigest]]:
        performed = SyntheticJob(Job(**job))
        for host, clock in (clocks or {}).items():
            performed.clocks[host] = clock
        paths = write_traces(performed, tmp_path / str(next(written)), padding=0)
        return performed, by_rank(read_files(paths, jobs=1))

    return run


def truths(performed: SyntheticJob, rank: int, reference: HostClock) -> tuple[Any, Any]:
    """Instants of a rank's trace by its own clock, and by the reference clock as it would be without a step."""
    clock = performed.clock_of(rank)
    recorded = performed.steps[rank][1 if rank in performed.job.late else 0 :]
    instants = np.linspace(recorded[0][1] + 1000, recorded[-1][2] - 1000, INSTANTS).astype(np.int64).tolist()
    local = [at_ns + clock.offset_at(at_ns) for at_ns in instants]
    return np.array(local), np.array([at_ns + reference.offset_at(at_ns) for at_ns in instants])


def reference_of(performed: SyntheticJob, recovered: Recovery) -> HostClock:
    return performed.clocks[int(recovered.alignment.reference.removeprefix("node"))]


def missed(performed: SyntheticJob, recovered: Recovery) -> list[tuple[int, int]]:
    """(rank, ns) where the truth is outside of an interval, by how much at most."""
    outside = []
    for rank, rank_map in recovered.alignment.ranks.items():
        local, true = truths(performed, rank, reference_of(performed, recovered))
        mapped = rank_map.to_cluster(local)
        excess = np.maximum(mapped.lo_ns - true, true - mapped.hi_ns)[mapped.known]
        if len(excess) and excess.max() > 0:
            outside.append((rank, int(excess.max())))
    return outside


def unmapped(performed: SyntheticJob, recovered: Recovery) -> list[int]:
    """Ranks of which some instant is not mapped."""
    found = []
    for rank, rank_map in recovered.alignment.ranks.items():
        local, _ = truths(performed, rank, reference_of(performed, recovered))
        if not rank_map.to_cluster(local).known.all():
            found.append(rank)
    return found


def errors_ns(performed: SyntheticJob, recovered: Recovery) -> Any:
    found = []
    for rank, rank_map in recovered.alignment.ranks.items():
        local, true = truths(performed, rank, reference_of(performed, recovered))
        mapped = rank_map.to_cluster(local)
        found.append(np.abs(mapped.cluster_ns - true)[mapped.known])
    return np.concatenate(found)


jobs = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**20),
        "steps": st.sampled_from([12, 24]),
        "ranks_per_host": st.sampled_from([1, 1, 2, 4]),
        "backend": st.sampled_from(["gloo", "nccl"]),
        "tree_ns": st.sampled_from([0, 5_000, 40_000]),
        "skew_ns": st.sampled_from([2_000, 20_000]),
        "jitter": st.sampled_from([0.0, 0.05, 0.5]),
        "transfer_ns": st.sampled_from([100_000, 2_000_000]),
        "lost": st.sampled_from([0.0, 0.02, 0.1]),
        "missing": st.sampled_from([(), (0,), (4, 6)]),
        "late": st.sampled_from([(), (3,), (2, 5)]),
    }
)


@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(job=jobs)
def test_with_steady_clocks_every_instant_is_mapped_and_its_truth_lies_inside(
    perform: Performed, job: dict[str, Any]
) -> None:
    performed, digests = perform(ranks=8, **job)
    recovered = recover(digests)
    assert not missed(performed, recovered)
    assert not unmapped(performed, recovered)
    assert not recovered.inconsistent


@settings(max_examples=16, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(job=jobs, step_ms=st.sampled_from([-3_000, -30, -5, 5, 30, 60]))
def test_a_step_that_can_be_seen_leaves_no_truth_outside(perform: Performed, job: dict[str, Any], step_ms: int) -> None:
    performed, digests = perform(ranks=8, one_step_ns=step_ms * MS, **job)
    recovered = recover(digests)
    seen = [clock.smallest_step_ns for clock in recovered.clocks]
    if all(smallest is not None and smallest < abs(step_ms) * MS for smallest in seen):
        assert not missed(performed, recovered)


def test_a_step_of_a_clock_is_found_where_it_was_and_as_large_as_it_was(perform: Performed) -> None:
    for step_ns in (-30 * MS, 5 * MS, 60 * MS):
        performed, digests = perform(ranks=8, ranks_per_host=1, steps=20, one_step_ns=step_ns)
        recovered = recover(digests)
        assert not missed(performed, recovered)
        assert not unmapped(performed, recovered)
        stepped = {clock.name: clock.steps for clock in recovered.clocks if clock.steps}
        assert list(stepped) == ["node007"]
        ((at_ns, size_ns),) = stepped["node007"]
        assert abs(size_ns - step_ns) < 100_000
        clock = performed.clocks[7]
        assert clock.step_at_ns is not None
        behind = [
            span.end_ns for span in performed.spans[7] if span.end_ns > performed.steps[0][0][1] + clock.step_at_ns
        ]
        assert at_ns - clock.offset_at(behind[0]) < min(behind) + 100 * MS


def test_a_stepped_first_rank_gives_the_reference_to_a_steady_clock(perform: Performed) -> None:
    first = HostClock(offset_ns=7 * MS, rate_ppb=5_000, step_at_ns=400 * MS, step_ns=-20 * MS)
    performed, digests = perform(ranks=4, ranks_per_host=1, steps=20, clocks={0: first})
    recovered = recover(digests)
    assert recovered.alignment.reference != "node000"
    assert any("node000 was stepped" in problem for problem in recovered.problems)
    assert not missed(performed, recovered)


def test_of_two_clocks_it_is_said_that_either_may_have_been_stepped(perform: Performed) -> None:
    performed, digests = perform(ranks=2, ranks_per_host=1, steps=20, one_step_ns=9 * MS)
    recovered = recover(digests)
    assert any("cannot be told which" in problem for problem in recovered.problems)
    assert not missed(performed, recovered)


def test_steps_that_move_stamps_to_another_training_step_are_not_taken_for_lost_spans(perform: Performed) -> None:
    # 30 ms against a period of 48: the nearest span of the same kind was that of the neighbouring step.
    performed, digests = perform(ranks=8, ranks_per_host=1, one_step_ns=30 * MS, steps=20)
    recovered = recover(digests)
    assert np.median(errors_ns(performed, recovered)) < 30_000
    assert not missed(performed, recovered)


@pytest.mark.parametrize(
    ("backend", "tensor", "lost", "missing"),
    [("nccl", 8, 0.0, ()), ("gloo", 1, 0.0, ()), ("nccl", 2, 0.02, (5, 17))],
)
def test_64_ranks_on_8_hosts_are_inside_everywhere(
    perform: Performed, backend: str, tensor: int, lost: float, missing: tuple[int, ...]
) -> None:
    performed, digests = perform(
        ranks=64, backend=backend, tensor=tensor, lost=lost, missing=missing, one_step_ns=8 * MS, steps=10
    )
    recovered = recover(digests)
    assert not missed(performed, recovered)
    assert not unmapped(performed, recovered)
    assert np.median(errors_ns(performed, recovered)) < 100_000


def test_a_constant_skew_of_a_tree_moves_the_estimate_but_not_out_of_the_bounds(perform: Performed) -> None:
    performed, digests = perform(ranks=8, ranks_per_host=1, tree_ns=40_000, skew_ns=1_000, transfer_ns=200_000)
    recovered = recover(digests)
    assert not missed(performed, recovered)
    assert 30_000 < errors_ns(performed, recovered).max() < 200_000
    assert any("end at about the same time" in assumption for assumption in recovered.assumptions)


def test_with_messages_in_one_direction_only_a_clock_is_unbounded_on_one_side(perform: Performed) -> None:
    performed, digests = perform(ranks=2, ranks_per_host=1, backend="nccl", pipeline=2)
    recovered = recover(digests)
    for clock in recovered.clocks[1:]:
        assert not clock.offset.known
    receiver = recovered.alignment.ranks[1]
    assert not receiver.known
    assert "unbounded on one side" in receiver.unknown_why
    assert not missed(performed, recovered)


def test_a_pipeline_on_several_hosts_leaves_clocks_behind_one_way_messages_unbounded(perform: Performed) -> None:
    performed, digests = perform(ranks=16, ranks_per_host=4, backend="nccl", tensor=4, pipeline=2)
    recovered = recover(digests)
    assert not missed(performed, recovered)
    assert [rank for rank, one in recovered.alignment.ranks.items() if one.known] == [0, 1, 2, 3, 8, 9, 10, 11]


def test_gloo_flight_recorders_bound_nothing(tmp_path: Path) -> None:
    chance = random.Random(3)
    paths = []
    for rank in range(3):
        entries = [
            {
                "record_id": number,
                "pg_id": 0,
                "process_group": ["0", "default_pg"],
                "collective_seq_id": number,
                "p2p_seq_id": 0,
                "op_id": number,
                "profiling_name": "gloo:all_reduce",
                "time_created_ns": 1_790_000_000_000_000_000 + number * 40 * MS + chance.randrange(MS),
                "input_sizes": [[64]],
                "output_sizes": [[64]],
                "state": "scheduled",
                "time_discovered_started_ns": None,
                "time_discovered_completed_ns": None,
                "retired": True,
                "is_p2p": False,
            }
            for number in range(20)
        ]
        paths.append(tmp_path / f"rank{rank}.json")
        paths[-1].write_text(json.dumps({"version": "2.10", "pg_config": {}, "entries": entries}))
    recovered = recover(by_rank(read_files(paths, jobs=1)))
    assert [one.unknown_why for one in recovered.alignment.ranks.values()][1:] == [UNBOUNDED, UNBOUNDED]
    assert not any(clock.offset.known for clock in recovered.clocks[1:])


def test_a_rank_whose_stamps_no_line_explains_is_named_and_the_others_stay_right(perform: Performed) -> None:
    performed, digests = perform(ranks=6, ranks_per_host=1, steps=20, transfer_ns=200_000, skew_ns=2_000)
    chance = np.random.default_rng(1)
    columns = digests[4].collectives
    shaken = chance.integers(-8 * MS, 8 * MS, len(columns)) + 10**12
    object.__setattr__(columns, "start_ns", columns.start_ns + shaken)
    object.__setattr__(columns, "end_ns", columns.end_ns + shaken)
    recovered = recover(digests)
    assert list(recovered.inconsistent) == [4] or not recovered.alignment.ranks[4].known
    others = [rank for rank in digests if rank != 4]
    assert all(recovered.alignment.ranks[rank].known for rank in others)
    assert not [rank for rank, _ in missed(performed, recovered) if rank in others]


def test_solving_writes_nothing_to_stdout(perform: Performed, capfd: pytest.CaptureFixture[str]) -> None:
    _, digests = perform(ranks=2, ranks_per_host=1)
    recover(digests)
    assert capfd.readouterr().out == ""
