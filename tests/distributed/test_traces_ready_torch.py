"""The real profiler with a schedule, the real clock, and the handler that brings windows onto cluster time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch

JOB = """
import sys, time
from pathlib import Path
import torch
from rankclock import RankClock
from rankclock.training.torch_profiler import ClockedProfile
from rankclock.traces.ready import ClusterTimeTraces
folder = Path(sys.argv[1])
handler = ClusterTimeTraces(folder / "traces", keep_original=True)
with RankClock.start(directory=folder) as clock:
    assert clock.wait(30), clock.why_unknown
    time.sleep(1.5)
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=2, repeat=2)
    with ClockedProfile(clock, schedule=schedule, on_trace_ready=handler) as profile:
        for number in range(6):
            torch.ones(32, 32) @ torch.ones(32, 32)
            time.sleep(0.2)
            profile.step()
    assert handler.wait(60)
"""


def test_each_window_of_a_schedule_is_written_in_cluster_time(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", JOB, str(tmp_path)], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    names = sorted(path.name for path in (tmp_path / "traces").iterdir())
    assert names == [f"rank0.{window}{end}" for window in (0, 1) for end in (".json", ".local.json")], done.stderr
    for window in (0, 1):
        local = json.loads((tmp_path / f"traces/rank0.{window}.local.json").read_text())
        cluster = json.loads((tmp_path / f"traces/rank0.{window}.json").read_text())
        how = cluster.pop("rankclock_alignment")
        assert how["rank"] == 0
        assert how["bound_ns"] < 10_000_000
        assert len(local["traceEvents"]) == len(cluster["traceEvents"]) > 10
        moved = {
            round((one["ts"] - two["ts"]) * 1000)
            for one, two in zip(local["traceEvents"], cluster["traceEvents"], strict=True)
            if one.get("ts") and one["ph"] == "X"
        }
        # One process is its own reference: its cluster time is its clock's, but for how UTC was fitted.
        assert max(moved) - min(moved) < 100_000
