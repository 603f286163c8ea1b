"""examples/qlora as a user runs it: torchrun on this machine, NF4 base, adapters, checkpoints, traces, step skew."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rankclock.training.checkpoints import latest
from rankclock.wire.clock_record import METADATA_KEY, decode_file, decode_object

pytestmark = pytest.mark.torch

SCRIPT = Path(__file__).parents[2] / "examples/qlora/finetune.py"


def finetune(out: Path, ranks: int, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return subprocess.run(
        [*launcher, str(SCRIPT), "--output", str(out), *options],
        capture_output=True, text=True, timeout=240, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"} | variables,
    )  # fmt: skip


def losses(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"'loss': '([0-9.]+)'", text)]


@pytest.mark.timeout(240)
def test_a_real_finetune_learns_and_leaves_clocks_traces_checkpoints_and_the_straggler(tmp_path: Path) -> None:
    options = ["--steps", "40", "--save-steps", "10", "--profile", "--late", "1:120"]
    done = finetune(tmp_path, 2, *options)
    assert done.returncode == 0, done.stderr[-3000:]
    loss = losses(done.stdout + done.stderr)
    assert loss[-1] < loss[0] - 0.5
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == ["checkpoint-30", "checkpoint-40"]
    adapters = latest(tmp_path / "adapters", verify=True)
    assert adapters is not None
    assert adapters.step == 40
    assert "adapter_model.safetensors" in adapters.files
    assert adapters.cluster_time_ns is not None
    assert adapters.offset is not None
    assert adapters.offset.bound_ns is not None
    state = json.loads((tmp_path / "checkpoint-40/trainer_state.json").read_text(encoding="utf-8"))
    assert any("rankclock/bound_us" in entry for entry in state["log_history"])
    places = json.loads((tmp_path / "step-skew.json").read_text(encoding="utf-8"))["places"]
    assert places["gradients"]["steps"] + places["gradients"]["unknown"] == 40
    skew = places["forward"]  # a Llama has buffers, DDP broadcasts them: the late rank is waited for there
    assert skew["late"]["1"] > 0.8 * skew["steps"] > 0, skew
    assert skew["caused_ns"]["1"] > 0.8 * skew["steps"] * 80_000_000
    for rank in (0, 1):
        (record,) = decode_file((tmp_path / f"rankclock-clock.rank{rank}.jsonl").read_text(encoding="utf-8"))
        assert record.header.rank == rank
        trace = json.loads((tmp_path / f"traces/rank{rank}.pt.trace.json").read_text(encoding="utf-8"))
        inside = decode_object(trace[METADATA_KEY])
        assert inside.header == record.header
        begins_ns = trace["baseTimeNanoseconds"] + min(int(e["ts"] * 1000) for e in trace["traceEvents"] if e.get("ts"))
        assert inside.lines[0].real_ns < begins_ns, "the window's beginning is covered"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_four_ranks_train_too_and_none_of_ours_is_left(tmp_path: Path) -> None:
    done = finetune(tmp_path, 4, "--steps", "20")
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads((tmp_path / "step-skew.json").read_text())["places"]["gradients"]["steps"] > 0
    assert subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, check=False).stdout == b""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_switched_off_the_same_script_trains_without_a_trace_of_ours(tmp_path: Path) -> None:
    done = finetune(tmp_path, 2, "--steps", "10", RANKCLOCK_DISABLE="1")
    assert done.returncode == 0, done.stderr[-3000:]
    assert list(tmp_path.glob("rankclock*")) == []
    assert "rankclock" not in done.stdout
