"""The callback in a real Lightning job of two ranks: given in one line, or found by its entry point."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch

WORKER = Path(__file__).with_name("lightning_worker.py")


@pytest.mark.parametrize(
    "variables",
    [pytest.param({}, id="given", marks=pytest.mark.slow), pytest.param({"RANKCLOCK_LIGHTNING": "1"}, id="found")],
)
def test_the_late_rank_of_a_lightning_job_is_named_and_clocks_are_kept(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*launcher, str(WORKER), str(tmp_path)],
        capture_output=True, text=True, timeout=110, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"} | variables,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    answers = [json.loads(line.removeprefix("ANSWER ")) for line in done.stdout.splitlines() if line[:7] == "ANSWER "]
    assert len(answers) == 2
    for answer in answers:
        assert answer["found"]["steps"] == 60
        skew = answer["found"]["skew"]["places"]["gradients"]
        assert skew["steps"] + skew["unknown"] == 60
        assert skew["late"]["1"] > 0.8 * skew["steps"] > 0
    assert {path.name for path in tmp_path.glob("rankclock-clock*")} == {
        "rankclock-clock.rank0.jsonl",
        "rankclock-clock.rank1.jsonl",
    }
