"""Under the real torchrun: `rankclock verify` as its script, and a clock that lives through a restart of its job."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rankclock.wire.clock_record import decode_file, file_name

pytestmark = pytest.mark.torch

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
LAUNCHER_WORDS = ("RANK", "SLURM_", "PMI", "OMPI_", "MASTER_", "TORCHELASTIC", "WORLD_SIZE", "RANKCLOCK_", "JOB_COMP")

WORKER = """
import os, sys, time
from rankclock import RankClock
with RankClock.start(directory=sys.argv[1], period_s=0.5) as clock:
    known = clock.wait(30)
    rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    time.sleep(2.0)  # a line is written a second after it was begun
    print(f"told rank {rank} attempt {attempt} known {known}", flush=True)
    if attempt == 0 and rank == 1:
        os._exit(3)
    if attempt == 0:
        time.sleep(60)
"""


def torchrun(*arguments: str) -> tuple[int, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHER_WORDS)}
    env = {**clean, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    done = subprocess.run([*TORCHRUN, *arguments], env=env, capture_output=True, text=True, timeout=100, check=False)
    return done.returncode, done.stdout + done.stderr


def test_verify_runs_as_the_script_of_torchrun_and_answers_once() -> None:
    code, text = torchrun("-m", "rankclock", "verify", "--seconds", "0.3")
    assert code == 0, text
    assert text.count("rankclock verify: within 1 ms: one clock") == 1


def test_a_clock_lives_through_a_restart_of_the_workers(tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    code, text = torchrun("--max-restarts", "1", str(script), str(tmp_path))
    assert code == 0, text
    for rank in range(2):
        for attempt in range(2):
            assert f"told rank {rank} attempt {attempt} known True" in text
        assert len(decode_file((tmp_path / file_name(rank)).read_text())) == 2, "a header for each start"
