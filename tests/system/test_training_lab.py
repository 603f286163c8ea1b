"""Ranks on nodes whose clocks are known: verdicts are right, and the truth lies inside every bound of the matrix."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankclock import planning
from rankclock.cluster.load import load_measured
from rankclock.cluster.measured import MeasuredPath, worst_loss
from rankclock.lab import Lab, Scenario
from rankclock.timebase import NS_PER_MS, Offset

pytestmark = pytest.mark.lab

RANKS = ("gpu1", "gpu2", "gpu3", "gpu4", "gpu5", "gpu6")
HOSTS = "10.80.1.[11-13],10.80.2.[11-13]"
RANKCLOCK = (sys.executable, "-m", "rankclock")

Answer = tuple[int, str]


def on_all_nodes(
    lab: Lab, *arguments: str, per_node: Callable[[int], tuple[str, ...]] = lambda rank: ()
) -> list[Answer]:
    """Run the command on every training node at once: each one's exit code and output."""
    processes = [
        lab.spawn(node, [*RANKCLOCK, *arguments, *per_node(rank)], env={"NO_COLOR": "1", "COLUMNS": "200"})
        for rank, node in enumerate(RANKS)
    ]
    return [(process.wait(60), process.log_text()) for process in processes]


def check_truth(lab: Lab, result: dict[str, Any]) -> int:
    """Every pair's interval contains the true offset at the instant that it speaks of; how many there were."""
    pairs = result["pairwise"]["offsets"]
    for pair in pairs:
        offset = Offset.from_json(pair["offset"])
        assert offset.known, pair
        truth_ns = lab.true_offset_ns(pair["local"], pair["reference"], offset.at_raw_ns)
        assert offset.contains(truth_ns), f"{pair['local']} - {pair['reference']}: {truth_ns} not in {offset}"
    return len(pairs)


def test_a_host_20_s_behind_is_refused_by_all_alike_before_the_job_starts(lab: Lab) -> None:
    answers = on_all_nodes(lab, "preflight", "--hosts", HOSTS, "--json")
    assert [code for code, _ in answers] == [1] * 6
    result = json.loads(answers[0][1])
    assert result["verdict"] == "refused"
    assert [host["name"] for host in result["hosts"] if host["odd"]] == ["gpu5"]
    assert "the clock of gpu5 is off from the other 5" in result["line"]
    assert {json.loads(text)["line"] for _, text in answers} == {result["line"]}
    (gpu5,) = [host for host in result["hosts"] if host["name"] == "gpu5"]
    components = [broken["component"] for broken in gpu5["breaks"] if broken["certain"]]
    assert "torchrun c10d rendezvous" in components
    assert "TensorBoard" in components
    assert "torchrun exit barrier" not in components, "that one breaks a host that is ahead"
    assert check_truth(lab, result) == 15


def test_hosts_that_come_as_they_come_are_refused_alike(lab: Lab) -> None:
    command = [*RANKCLOCK, "preflight", "--rendezvous", "10.80.1.11:29440", "--hosts", "3", "--seconds", "0.5"]
    processes = [lab.spawn(node, command) for node in ("gpu4", "gpu5", "gpu1")]
    answers = [(process.wait(60), process.log_text()) for process in processes]
    assert [code for code, _ in answers] == [1] * 3
    for _, text in answers:
        assert "rankclock preflight: REFUSED: the clock of gpu5 is off from the other 2" in text


def test_two_hosts_that_disagree_do_not_learn_which_is_wrong(lab: Lab) -> None:
    nodes = {"gpu1": "10.80.1.11", "gpu5": "10.80.2.12"}
    hosts = ",".join(nodes.values())
    processes = [lab.spawn(node, [*RANKCLOCK, "preflight", "--hosts", hosts, "--seconds", "0.5"]) for node in nodes]
    answers = [(process.wait(60), process.log_text()) for process in processes]
    assert [code for code, _ in answers] == [1, 1]
    assert "which clock is wrong cannot be told from here" in answers[0][1]


def test_verify_finds_the_pair_that_is_beyond_and_prints_at_rank_0_only(lab: Lab) -> None:
    answers = on_all_nodes(lab, "verify", "--hosts", HOSTS)
    assert [code for code, _ in answers] == [1] * 6
    truths = [lab.true_offset_ns(a, b) for index, a in enumerate(RANKS) for b in RANKS[index + 1 :]]
    beyond = sum(abs(truth_ns) > NS_PER_MS for truth_ns in truths)
    assert min(abs(abs(truth_ns) - NS_PER_MS) for truth_ns in truths) > 100_000, "no pair is near the threshold"
    verdict = answers[0][1].splitlines()[-1]
    assert verdict.startswith("rankclock verify: BEYOND 1 ms: ")
    assert "gpu5" in verdict
    assert f"; {beyond} of 15 pairs of 6 clocks of 6 ranks are beyond" in verdict
    assert [text for _, text in answers[1:]] == [""] * 5


def repair(lab: Lab) -> None:
    """Set all clocks right; gpu2's bad crystal takes it 60 µs away each second from then on."""
    for node in RANKS:
        lab.clock(node).step_ns(-lab.true_offset_ns(node, "upstream"))


def test_once_repaired_the_same_hosts_may_start_and_are_within_a_millisecond(lab: Lab) -> None:
    repair(lab)
    answers = on_all_nodes(lab, "preflight", "--hosts", HOSTS, "--seconds", "0.5")
    assert [code for code, _ in answers] == [0] * 6
    assert "rankclock preflight: fine: 6 clocks within 10 ms" in answers[0][1]

    repair(lab)
    answers = on_all_nodes(lab, "verify", "--hosts", HOSTS, "--json")
    assert [code for code, _ in answers] == [0] * 6
    result = json.loads(answers[0][1])
    assert result["verdict"] == "within"
    assert check_truth(lab, result) == 15
    assert {clock["stamps"] for clock in result["clocks"]} == {"kernel"}
    widest_ns = max(Offset.from_json(pair["offset"]).bound_ns or 0 for pair in result["pairwise"]["offsets"])
    assert widest_ns < 500_000, "a bound that wide would decide nothing"
    paths = [MeasuredPath.from_json(one) for one in result["paths"]]
    assert {path.local for path in paths} | {path.peer for path in paths} == set(RANKS)
    assert all(path.sent > 0 and path.answered > 0 for path in paths)
    trips_ns = [path.round_trip_ns for path in paths]
    assert all(trip is not None and 0 <= trip < 10_000_000 for trip in trips_ns), "0: below what the stamps can tell"


def test_ranks_of_one_host_share_a_clock(lab: Lab) -> None:
    repair(lab)
    env = {"RANKCLOCK_RENDEZVOUS": "10.80.1.11:29450", "NO_COLOR": "1"}
    nodes = ["gpu1", "gpu1", "gpu2", "gpu2"]
    processes = [
        lab.spawn(
            node,
            [*RANKCLOCK, "verify", "--json", "--seconds", "1"],
            env={**env, "RANK": str(rank), "WORLD_SIZE": "4", "LOCAL_RANK": str(rank % 2)},
        )
        for rank, node in enumerate(nodes)
    ]
    answers = [(process.wait(60), process.log_text()) for process in processes]
    assert [code for code, _ in answers] == [0] * 4
    result = json.loads(answers[0][1])
    assert [(clock["name"], clock["ranks"]) for clock in result["clocks"]] == [("gpu1", [0, 1]), ("gpu2", [2, 3])]
    assert check_truth(lab, result) == 1


def test_a_host_that_does_not_answer_is_named_on_all_others(lab: Lab) -> None:
    command = [*RANKCLOCK, "preflight", "--hosts", "10.80.1.11,10.80.1.12,10.80.2.11", "--timeout", "3"]
    processes = [lab.spawn(node, command) for node in ("gpu1", "gpu2")]
    answers = [(process.wait(60), process.log_text()) for process in processes]
    assert [code for code, _ in answers] == [4] * 2
    for _, text in answers:
        assert "only 2 of 3 ranks came within 3 s: missing rank 2 (10.80.2.11)" in text


def test_a_path_that_loses_packets_is_measured_as_such_and_the_plan_believes_it(
    lab_of: Callable[[Scenario], Lab], flat: Callable[..., Scenario], tmp_path: Path
) -> None:
    lab = lab_of(flat(3, links=[{"node": "n1", "nic": "eth0", "loss": 0.2}]))
    command = [*RANKCLOCK, "preflight", "--hosts", "10.77.0.[1-3]", "--seconds", "2", "--json"]
    processes = [lab.spawn(node, command) for node in ("n1", "n2", "n3")]
    ends = [(process.wait(60), process.log_text()) for process in processes]
    measured = tmp_path / "measured.json"
    measured.write_text(ends[0][1])
    worst = worst_loss(load_measured(measured))
    assert worst is not None
    assert worst[1] > 0.02, "a fifth of the packets is lost each way; four ports try for each answer"
    assert "n1" in (worst[0].local, worst[0].peer)
    plan = planning.make_plan(
        lab.scenario.cluster, paths=load_measured(measured), settings=planning.Settings(small_cluster_nodes=1)
    )
    stable = next(question for question in plan.decision.questions if question.key == "stable")
    assert stable.answer is planning.Answer.NO
