"""Who is waited for: named with its amount, never for another's lateness, by chance, or behind the clocks' bounds."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankclock.errors import ExitCode, HostError
from rankclock.traces.digest import TraceDigest
from rankclock.traces.read import by_rank, read_files
from rankclock.traces.recover import recover
from rankclock.traces.stragglers import StragglerReport, binomial_tail, find_stragglers
from rankclock.traces.stragglers_page import render_page, write_page
from rankclock.traces.synthetic import START_TRUE_NS, Job, SyntheticJob, write_traces
from rankclock.traces.timemap import Alignment, Piece, RankMap

MS, S = 10**6, 10**9


def traced(tmp_path: Path, **job: Any) -> tuple[SyntheticJob, dict[int, TraceDigest]]:
    performed = SyntheticJob(Job(**{"ranks_per_host": 1, "steps": 20, "jitter": 0.002, **job}))
    return performed, by_rank(read_files(write_traces(performed, tmp_path, padding=0), jobs=1))


def known_within(job: SyntheticJob, digests: dict[int, TraceDigest], bound_ns: int | dict[int, int]) -> Alignment:
    """Every clock known within a bound; the estimate lies anywhere in it."""
    chance = np.random.default_rng(7)
    maps = {}
    for rank, digest in digests.items():
        clock, bound = job.clock_of(rank), bound_ns if isinstance(bound_ns, int) else bound_ns[rank]
        shift = int(chance.integers(-bound, bound + 1)) if bound else 0
        ends = []
        for true_ns in (START_TRUE_NS - S, START_TRUE_NS + 20 * S):
            offset_ns = clock.offset_at(true_ns)
            ends.append(
                (true_ns + offset_ns, (offset_ns + shift, offset_ns + shift - bound, offset_ns + shift + bound))
            )
        piece = Piece(start_ns=ends[0][0], end_ns=ends[1][0], at_start=ends[0][1], at_end=ends[1][1])
        maps[rank] = RankMap(
            rank=rank, host=digest.host or "", pieces=(piece,), method="known", assumptions=(), notes=(), unknown_why=""
        )
    return Alignment(reference="truth", method="known", ranks=maps, problems=())


def named(report: StragglerReport) -> dict[str, int]:
    return {group.group: group.named for group in report.groups if group.named is not None}


@pytest.mark.parametrize("late_ms", [1, 5, 20])
def test_a_planted_straggler_is_named_with_its_amount_and_cost(tmp_path: Path, late_ms: int) -> None:
    job, digests = traced(tmp_path, ranks=8, straggler={5: late_ms * MS}, max_offset_ns=250 * MS, seed=late_ms)
    report = find_stragglers(digests, known_within(job, digests, 2_000))
    (group,) = report.groups
    assert (group.named, group.without_clock) == (5, 5)
    assert group.won[5] >= 18
    assert abs((group.own_median_ns or 0) - late_ms * MS) < 0.1 * MS
    assert abs((group.late_median_ns or 0) - late_ms * MS) < 0.1 * MS
    least_ns, most_ns = group.waited_range_ns
    assert least_ns <= true_waiting_ns(job) <= most_ns
    assert abs(group.caused_ns[5] - 7 * 20 * late_ms * MS) < 7 * 20 * 0.1 * MS


def true_waiting_ns(job: SyntheticJob) -> int:
    starts: dict[int, list[int]] = {}
    for spans in job.spans.values():
        for span in spans:
            if span.name == "all_reduce":
                starts.setdefault(span.sequence, []).append(span.start_ns)
    return sum(max(one) - start_ns for one in starts.values() for start_ns in one)


@pytest.mark.parametrize("shape", [{"tensor": 4}, {"tensor": 2, "pipeline": 2}])
def test_lateness_that_another_group_passed_on_is_nobodys_fault(tmp_path: Path, shape: dict[str, int]) -> None:
    """Rank 6 waits for rank 2 in one group and is so late to the next: it was once named, by 4.9 ms 'of its own'."""
    job, digests = traced(tmp_path, ranks=8, backend="nccl", straggler={2: 5 * MS}, **shape)
    report = find_stragglers(digests, known_within(job, digests, 2_000))
    assert named(report) == {"dp2": 2}
    passed_on = [group for group in report.groups if "brings that along" in group.why_not]
    assert len(passed_on) == 2
    assert all(group.spread_median_ns > 4 * MS for group in passed_on)


@pytest.mark.parametrize("seed", range(6))
def test_of_many_ranks_none_is_named_by_chance(tmp_path: Path, seed: int) -> None:
    """With more ranks than collectives some rank is last twice: that says nothing."""
    job, digests = traced(tmp_path, ranks=48, steps=6, jitter=0.05, seed=seed)
    assert named(find_stragglers(digests, known_within(job, digests, 1_000))) == {}


@pytest.mark.parametrize("seed", range(4))
def test_who_is_known_best_is_not_blamed_for_it(tmp_path: Path, seed: int) -> None:
    """Only for the rank with the tight bound can it be told that it was last: its share of all steps stays fair."""
    job, digests = traced(tmp_path, ranks=4, steps=40, jitter=0.2, seed=seed)
    bounds = {rank: 0 if rank == 0 else 300_000 for rank in digests}
    report = find_stragglers(digests, known_within(job, digests, bounds))
    assert named(report) == {}


@pytest.mark.parametrize("bound_ns", [2 * MS, 20 * MS])
def test_an_effect_smaller_than_the_bound_is_refused(tmp_path: Path, bound_ns: int) -> None:
    job, digests = traced(tmp_path, ranks=4, straggler={2: 1 * MS})
    report = find_stragglers(digests, known_within(job, digests, bound_ns))
    (group,) = report.groups
    assert (group.named, report.exit_code) == (None, ExitCode.CANNOT_TELL)
    assert "refused" in group.why_not
    assert group.waited_range_ns[0] <= true_waiting_ns(job) <= group.waited_range_ns[1]
    assert group.without_clock == 2
    assert "without any clock: rank 2" in "\n".join(group.lines())


def test_members_without_a_trace_are_said_to_be_perhaps_later(tmp_path: Path) -> None:
    job, digests = traced(tmp_path, ranks=4, straggler={2: 5 * MS, 3: 3 * MS}, missing=(2,))
    (group,) = find_stragglers(digests, known_within(job, digests, 2_000)).groups
    assert (group.named, group.missing) == (3, (2,))
    assert "they may be later than all: 2" in "\n".join(group.lines())


def test_collectives_that_a_trace_lost_are_left_out_and_counted(tmp_path: Path) -> None:
    job, digests = traced(tmp_path, ranks=8, straggler={2: 5 * MS}, lost=0.03)
    (group,) = find_stragglers(digests, known_within(job, digests, 2_000)).groups
    assert group.named == 2
    assert group.incomplete > 5
    assert group.collectives + group.incomplete <= 60


def test_wrong_clocks_are_doubted_because_the_durations_disagree(tmp_path: Path) -> None:
    """Clocks said to be known within 2 µs, one of them 20 ms off: the durations name the right rank beside it."""
    job, digests = traced(tmp_path, ranks=4, straggler={2: 5 * MS})
    true = known_within(job, digests, 2_000)
    (piece,) = true.ranks[1].pieces
    moved = replace(
        piece,
        at_start=tuple(one - 20 * MS for one in piece.at_start),
        at_end=tuple(one - 20 * MS for one in piece.at_end),
    )
    wrong = replace(true.ranks[1], pieces=(moved,))
    report = find_stragglers(
        digests, Alignment(reference="truth", method="known", ranks={**true.ranks, 1: wrong}, problems=())
    )
    (group,) = report.groups
    assert group.without_clock == 2
    assert group.named is None or group.disagree
    assert group.named != 2


def test_recovered_clocks_name_the_planted_rank_or_nobody(tmp_path: Path) -> None:
    found: Counter[int | None] = Counter()
    for seed, late_ms in enumerate((1, 5, 20)):
        _, digests = traced(
            tmp_path / str(seed), ranks=4, straggler={2: late_ms * MS}, max_offset_ns=250 * MS, seed=seed
        )
        found.update(group.named for group in find_stragglers(digests, recover(digests).alignment).groups)
    assert set(found) <= {None, 2}


def test_the_json_says_what_the_text_says(tmp_path: Path) -> None:
    job, digests = traced(tmp_path, ranks=4, straggler={2: 5 * MS})
    value = json.loads(json.dumps(find_stragglers(digests, known_within(job, digests, 2_000)).to_json()))
    (group,) = value["groups"]
    assert (value["schema"], group["named"], group["steps"], group["missing"]) == ("rankclock-stragglers/1", 2, 20, [])
    assert group["won"] == {"2": 20}
    assert group["waited_range_ns"][0] <= sum(group["waited_ns"].values()) <= group["waited_range_ns"][1]


def test_the_page_needs_no_network_and_holds_the_numbers(tmp_path: Path) -> None:
    job, digests = traced(tmp_path, ranks=4, straggler={2: 5 * MS})
    report = find_stragglers(digests, known_within(job, digests, 2_000))
    path = tmp_path / "page.html"
    write_page(path, report)
    text = path.read_text(encoding="utf-8")
    assert "default-src 'none'" in text
    assert re.search(r"<(?:script|link|img)[^>]+(?:src|href)=", text.partition("<script>")[0]) is None
    assert "rank 2 holds up group" in text
    (data,) = re.findall(r'id="plots">(.*?)</script>', text)
    plots = json.loads(data)
    assert plots["waits0"]["data"][1]["y"][2] == report.groups[0].caused_ns[2] / S
    assert len(plots["apart0"]["data"][0]["x"]) == report.groups[0].collectives
    assert len(plots["apart0"]["data"][0]["error_y"]["array"]) == report.groups[0].collectives


def test_names_in_a_page_are_text_and_what_is_not_drawn_is_said(tmp_path: Path) -> None:
    job, digests = traced(tmp_path, ranks=4, straggler={2: 5 * MS})
    report = find_stragglers(digests, known_within(job, digests, 2_000))
    (group,) = report.groups
    many = tuple(replace(group, group=f"</script><b>{number}", history=group.history * 50) for number in range(15))
    text = render_page(replace(report, groups=many))
    assert "</script><b>" not in text
    assert "of 15.</p>" in text
    assert f"of {50 * group.collectives} collectives" in text


def test_a_page_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="cannot write"):
        write_page(
            tmp_path / "no" / "page.html", StragglerReport(groups=(), unknown=0, left_out={}, method="", reference="")
        )


def test_the_command_writes_the_page_beside_its_answer(tmp_path: Path) -> None:
    performed = SyntheticJob(Job(ranks=2, ranks_per_host=1, steps=20, jitter=0.002, straggler={1: 20 * MS}))
    names = list(map(str, write_traces(performed, tmp_path, padding=0)))
    page = tmp_path / "page.html"
    argv = [sys.executable, "-m", "rankclock", "trace", "stragglers", *names, "--page", str(page), "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    value = json.loads(done.stdout)
    assert done.returncode == (1 if any(group["named"] is not None for group in value["groups"]) else 4), done.stderr
    assert "Who everybody waits for" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("least", "trials", "chance", "expected"),
    [(0, 5, 0.3, 1.0), (5, 5, 0.5, 1 / 32), (6, 5, 0.5, 0.0), (2, 3, 0.5, 0.5), (18, 20, 0.25, 1.61071512e-09)],
)
def test_the_tail_of_a_binomial_is_exact(least: int, trials: int, chance: float, expected: float) -> None:
    assert binomial_tail(least, trials, chance) == pytest.approx(expected, rel=1e-6, abs=1e-15)


def test_the_tail_agrees_with_counting_outcomes() -> None:
    for trials in (1, 7, 40):
        for least in range(trials + 1):
            counted = (
                sum(math.comb(trials, hits) * 3 ** (trials - hits) for hits in range(least, trials + 1)) / 4**trials
            )
            assert binomial_tail(least, trials, 0.25) == pytest.approx(counted, rel=1e-9)
