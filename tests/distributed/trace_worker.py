"""One gloo rank that profiles marked ranges; prints MONOTONIC_RAW before and after each, read beside the profiler."""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from time import CLOCK_MONOTONIC_RAW, clock_gettime_ns

import torch
import torch.distributed as dist
from torch.profiler import record_function

from rankclock import RankClock
from rankclock.training.torch_profiler import ClockedProfile


def main() -> None:
    folder, count, late_s = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    marks = []
    with RankClock.start(directory=folder) as clock:
        known = clock.wait(30)
        time.sleep(3)
        with ClockedProfile(clock, record_shapes=True) as profile:
            for number in range(count):
                if rank == 1:
                    time.sleep(late_s)
                before = clock_gettime_ns(CLOCK_MONOTONIC_RAW)
                with record_function(f"mark-{number}"):
                    after_begin = clock_gettime_ns(CLOCK_MONOTONIC_RAW)
                    torch.ones(64, 64).matmul(torch.ones(64, 64))
                marks.append([before, after_begin])
                dist.all_reduce(torch.ones(1000))
                time.sleep(0.02)
        profile.export_chrome_trace(str(folder / f"rank{rank}.pt.trace.json"))
    print("MARKS " + json.dumps({"known": known, "marks": marks}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
