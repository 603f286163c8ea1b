"""A TrainingClock in real training: several gloo processes, on this machine and in a lab with clocks far apart."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankclock.lab import Lab, Scenario

pytestmark = pytest.mark.torch

WORKER = Path(__file__).with_name("training_worker.py")
MS = 1_000_000


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def environment(rank: int, world_size: int, address: str, port: int, **more: str) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_RANK": "0",
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        **more,
    }


def here(world_size: int, options: dict[str, Any], **more: str) -> list[dict[str, Any]]:
    port = free_port()
    ranks = [
        subprocess.Popen(
            [sys.executable, str(WORKER), json.dumps(options)],
            stdout=subprocess.PIPE, text=True,
            env=os.environ | environment(rank, world_size, "127.0.0.1", port, **more),
        )
        for rank in range(world_size)
    ]  # fmt: skip
    try:
        said = [process.communicate(timeout=90)[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert [process.returncode for process in ranks] == [0] * world_size, said
    return [json.loads(text.splitlines()[-1]) for text in said]


def test_the_rank_that_is_late_is_named_and_what_the_others_waited_is_counted() -> None:
    options = {"steps": 30, "late": 1, "late_s": 0.02, "late_from": 10, "pause_s": 0.1}
    answers = here(3, options)
    assert all(answer["skew"] == answers[0]["skew"] for answer in answers), "all ranks have the same summary"
    skew = answers[0]["skew"]["places"]["gradients"]
    assert skew["steps"] + skew["unknown"] == 30
    assert skew["steps"] >= 20
    assert skew["late"]["1"] >= 19
    assert 19 * 2 * 15 * MS < skew["caused_ns"]["1"] < 20 * 2 * 60 * MS, "two ranks waited 20 ms in 20 steps"
    assert all(skew["waited_ns"][rank] > 19 * 15 * MS for rank in ("0", "2"))
    assert [answer["verdict"] for answer in answers] == [answers[0]["verdict"]] * 3
    assert answers[0]["verdict"].startswith("clocks within 1.00 ms")
    metrics = answers[2]["logged"][-1][1]
    assert abs(metrics["rankclock/offset_us"]) <= metrics["rankclock/bound_us"] + 1e6
    done = next(line for line in answers[1]["said"] if "done" in line)
    assert "rank1 WARNING job: done" in done
    assert "±" in done


def test_switched_off_it_does_nothing_at_all() -> None:
    answers = here(2, {"steps": 3}, RANKCLOCK_DISABLE="1")
    for answer in answers:
        assert (answer["skew"], answer["verdict"], answer["known"]) == (None, None, False)
        assert answer["said"] == [line for line in answer["said"] if "done" in line]


@pytest.mark.lab
@pytest.mark.parametrize("fail", [False, True])
def test_ranks_on_hosts_whose_clocks_are_apart_are_told_or_stopped_together(
    lab_of: Callable[[Scenario], Lab], flat: Callable[..., Scenario], tmp_path: Path, fail: bool
) -> None:
    """250 ms apart and drifting 40 ppm: the late rank is still the right one, by the right amount."""
    clocks = {"n1": {"drift_ppb": -20_000}, "n2": {"offset_ns": 250 * MS, "drift_ppb": 20_000}}
    lab = lab_of(flat(2, clocks=clocks))
    options = {"steps": 30, "late": 0, "late_s": 0.01, "pause_s": 0.1, "clock": {"fail": fail}}
    argv = [sys.executable, str(WORKER), json.dumps(options)]
    ranks = [
        lab.spawn(node, argv, log=tmp_path / f"{node}.log", env=environment(rank, 2, "10.77.0.1", 29_400))
        for rank, node in enumerate(("n1", "n2"))
    ]
    codes = [process.wait(90) for process in ranks]
    texts = [process.log_text() for process in ranks]
    assert codes == [0, 0], texts
    answers = [json.loads(next(line for line in text.splitlines() if line.startswith("{"))) for text in texts]
    if fail:
        assert answers[0]["stopped"] == answers[1]["stopped"]
        assert answers[0]["stopped"].startswith("clocks BEYOND 1.00 ms: rank 1 is +250 ms from rank 0")
        return
    assert any("clocks BEYOND 1.00 ms" in line for line in answers[0]["said"])
    assert any("this host's clock is +250 ms" in line and "beyond 10.0 ms" in line for line in answers[1]["said"])
    skew = answers[0]["skew"]["places"]["gradients"]
    assert skew["steps"] >= 20
    assert skew["late"]["0"] >= 20
    assert skew["late"].get("1", 0) <= 3, "its own hiccups, if any"
    assert 8 * MS < skew["spread_median_ns"] < 40 * MS, "not 250 ms: cluster time, not wall clocks"
