"""Real profiler traces of real ranks on clocks of known truth: aligned by records, and recovered without any."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.perfetto.trace_processor import ask

from rankclock.lab import Lab, Scenario
from rankclock.traces.align import align
from rankclock.traces.digest import TraceDigest
from rankclock.traces.happens_before import check_order
from rankclock.traces.pftrace import pftrace
from rankclock.traces.read import by_rank, read_files
from rankclock.traces.recover import recover
from rankclock.traces.stragglers import find_stragglers
from rankclock.traces.timemap import Alignment

pytestmark = [pytest.mark.torch, pytest.mark.lab]

WORKER = Path(__file__).with_name("trace_worker.py")
MS = 1_000_000
COUNT = 60
NODES = ("n1", "n2", "n3", "n4")
CLOCKS = {
    "n1": {"drift_ppb": -20_000},
    "n2": {"offset_ns": 250 * MS, "drift_ppb": 20_000},
    "n3": {"offset_ns": -50 * MS, "drift_ppb": 5_000},
    "n4": {"offset_ns": 7 * MS, "drift_ppb": -13_000},
}


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.slow)])
def recording(
    request: pytest.FixtureRequest,
    lab_of: Callable[[Scenario], Lab],
    flat: Callable[..., Scenario],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Lab, dict[int, TraceDigest], list[list[list[int]]]]:
    """Ranks up to 300 ms and 40 ppm apart; the second is 5 ms late to every range. Truth: RAW at each range's begin."""
    nodes = NODES[: request.param]
    lab = lab_of(flat(len(nodes), clocks={node: CLOCKS[node] for node in nodes}))
    folder = tmp_path_factory.mktemp("traces")
    ranks = []
    for rank, node in enumerate(nodes):
        env = {"RANK": str(rank), "WORLD_SIZE": str(len(nodes)), "MASTER_ADDR": "10.77.0.1", "MASTER_PORT": "29411"}
        argv = [sys.executable, str(WORKER), str(folder), str(COUNT), "0.005"]
        ranks.append(lab.spawn(node, argv, log=folder / f"{node}.log", env={**env, "OMP_NUM_THREADS": "1"}))
    codes = [process.wait(110) for process in ranks]
    texts = [process.log_text() for process in ranks]
    assert not any(codes), texts
    said = [json.loads(line[6:]) for text in texts for line in text.splitlines() if line.startswith("MARKS ")]
    assert all(one["known"] for one in said)
    return lab, by_rank(read_files(sorted(folder.glob("*.json")))), [one["marks"] for one in said]


def begins_ns(digest: TraceDigest) -> dict[int, int]:
    """Number of a marked range to its begin in the trace, by the rank's CLOCK_REALTIME."""
    trace = json.loads(digest.path.read_text())
    return {
        int(event["name"][5:]): trace["baseTimeNanoseconds"] + round(event["ts"] * 1000)
        for event in trace["traceEvents"]
        if event.get("ph") == "X" and event["name"].startswith("mark-")
    }


def in_reference_time(lab: Lab, rank: int, raw_ns: int) -> int:
    """The reference's CLOCK_MONOTONIC_RAW at the instant when this rank's read `raw_ns`: cluster time but for a
    constant."""
    host_ns = lab.clock(NODES[rank]).host_at_raw(raw_ns)
    return lab.clock(NODES[0]).at_host(host_ns).raw_ns


def check_all_pairs(
    lab: Lab, digests: dict[int, TraceDigest], marks: list[list[list[int]]], alignment: Alignment
) -> tuple[int, list[int]]:
    """Every range of a rank against every range of the first: how many hold the truth, and the estimates' errors."""
    instants = []
    for rank, digest in digests.items():
        for number, stamp_ns in begins_ns(digest).items():
            before, after = (in_reference_time(lab, rank, raw_ns) for raw_ns in marks[rank][number])
            found = alignment.ranks[rank].offset_at(stamp_ns)
            assert found is not None
            instants.append((rank, stamp_ns - found[2], stamp_ns - found[1], stamp_ns - found[0], before, after))
    pairs, errors = 0, []
    for _, lo0, est0, hi0, before0, after0 in (one for one in instants if one[0] == 0):
        for _, lo1, est1, hi1, before1, after1 in (one for one in instants if one[0]):
            pairs += 1
            assert lo1 - hi0 <= after1 - before0, "the later bound is not before the truth"
            assert hi1 - lo0 >= before1 - after0, "the earlier bound is not behind the truth"
            errors.append(abs((est1 - est0) - (before1 + after1 - before0 - after0) // 2))
    return pairs, sorted(errors)


def test_aligned_by_records_every_range_lies_within_its_bound(
    recording: tuple[Lab, dict[int, TraceDigest], list[list[list[int]]]], capsys: pytest.CaptureFixture[str]
) -> None:
    lab, digests, marks = recording
    alignment = align(digests)
    assert alignment.problems == ()
    pairs, errors = check_all_pairs(lab, digests, marks, alignment)
    assert pairs == COUNT * COUNT * (len(digests) - 1)
    assert errors[len(errors) // 2] < 50_000
    bounds = [alignment.ranks[rank].worst_bound_ns(*span(digests[rank])) for rank in digests]
    with capsys.disabled():
        print(
            f"\naligned: {pairs} pairs held, error median {errors[len(errors) // 2] / 1e3:.2f} µs, bounds {bounds} ns"
        )
    assert check_order(digests, alignment).violated == 0


def span(digest: TraceDigest) -> tuple[int, int]:
    assert digest.first_ns is not None
    assert digest.last_ns is not None
    return digest.first_ns, digest.last_ns


def test_recovered_without_records_the_truth_lies_inside(
    recording: tuple[Lab, dict[int, TraceDigest], list[list[list[int]]]], capsys: pytest.CaptureFixture[str]
) -> None:
    lab, digests, marks = recording
    bare = {rank: replace(digest, clock_record=None, host=f"h{rank}") for rank, digest in digests.items()}
    found = recover(bare)
    assert found.inconsistent == {}
    pairs, errors = check_all_pairs(lab, bare, marks, found.alignment)
    assert pairs == COUNT * COUNT * (len(digests) - 1)
    # Recovered time is the reference's CLOCK_REALTIME: nothing steers it in this lab, so it runs as its RAW does.
    first = min(begins_ns(bare[0]).values()), min(begins_ns(bare[1]).values())
    naive = abs(
        (first[1] - first[0]) - (in_reference_time(lab, 1, marks[1][0][0]) - in_reference_time(lab, 0, marks[0][0][0]))
    )
    middle_us = errors[len(errors) // 2] / 1e3
    with capsys.disabled():
        print(f"\nrecovered: error median {middle_us:.1f} µs; trusting wall clocks {naive / 1e3:.0f} µs")
    assert errors[len(errors) // 2] < 2 * MS
    assert naive > 200 * MS


def test_the_late_rank_is_named_by_its_amount(
    recording: tuple[Lab, dict[int, TraceDigest], list[list[list[int]]]],
) -> None:
    _, digests, _ = recording
    report = find_stragglers(digests, align(digests))
    named = [group for group in report.groups if group.named is not None]
    assert [group.named for group in named] == [1], report.lines()
    assert 3 * MS < (named[0].late_median_ns or 0) < 12 * MS


def test_perfetto_itself_shows_every_range_where_it_was(
    recording: tuple[Lab, dict[int, TraceDigest], list[list[list[int]]]], tmp_path: Path
) -> None:
    lab, digests, marks = recording
    out = tmp_path / "all.pftrace"
    out.write_bytes(b"".join(pftrace(digests, align(digests))))
    shown, bounds, problems = ask(
        out,
        "select process.name as process, slice.name as name, slice.ts as ts from slice join thread_track on "
        "slice.track_id = thread_track.id join thread using(utid) join process using(upid) "
        "where slice.name glob 'mark-*'",
        "select int_value as bound_ns from args where flat_key = 'debug.args.rankclock_alignment.bound_ns'",
        "select name, value from stats where severity in ('error', 'data_loss') and value > 0",
    )
    assert problems == [] and len(shown) == COUNT * len(digests)
    at_ns = {(int(row["process"][5:].partition(":")[0]), int(row["name"][5:])): row["ts"] for row in shown}
    wide_ns = 2 * max(row["bound_ns"] for row in bounds)
    for (rank, number), shown_ns in at_ns.items():
        before, after = (in_reference_time(lab, rank, raw_ns) for raw_ns in marks[rank][number])
        before0, after0 = marks[0][0]
        apart_ns = shown_ns - at_ns[0, 0]
        assert before - after0 - wide_ns <= apart_ns <= after - before0 + wide_ns
