"""Lines that torch itself logs, from C++ and from Python: the interval that is read holds the time of writing."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime

import pytest

from rankclock.traces.log_lines import Zone, time_of_line

pytestmark = pytest.mark.torch

WRITER = """
import logging, sys, time
from datetime import timedelta
import torch.distributed as dist
for _ in range(3):
    print("BEGIN", time.time_ns(), file=sys.stderr, flush=True)
    store = dist.TCPStore("127.0.0.1", 0, 1, True, timeout=timedelta(seconds=5))
    del store
    logging.getLogger("torch.distributed.rankclock").warning("from Python")
    print("END", time.time_ns(), file=sys.stderr, flush=True)
    time.sleep(0.31)
"""


def test_stamps_of_torch_hold_the_time_of_writing() -> None:
    env = {**os.environ, "TORCH_CPP_LOG_LEVEL": "INFO", "TORCH_DISTRIBUTED_DEBUG": "DETAIL", "TZ": "UTC"}
    done = subprocess.run(
        [sys.executable, "-c", WRITER], capture_output=True, text=True, env=env, timeout=100, check=True
    )
    zone = Zone(year=datetime.now(UTC).year)
    begun_ns, waiting, cpp, python = None, [], 0, 0
    for line in done.stderr.splitlines():
        if line.startswith("BEGIN"):
            begun_ns, waiting = int(line.split()[1]), []
        elif line.startswith("END") and begun_ns is not None:
            for text in waiting:
                found = time_of_line(text, zone)
                assert found is not None, text
                assert found.lo_ns <= int(line.split()[1]), text
                assert found.hi_ns >= begun_ns, text
                cpp += ".cpp:" in text
                python += "from Python" in text
        elif ".cpp:" in line or "from Python" in line:
            waiting.append(line)
    assert cpp > 10
    assert python == 3
