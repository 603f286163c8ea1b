"""What a call costs: `RankClock.now_ns()` against `time.time_ns()`, in one run.

python -m benchmarks.clock_cost [--json]      # about five seconds
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import statistics
import sys
import time
from collections.abc import Callable
from timeit import Timer

from rankclock import RankClock

LIMIT = 5.0
CALLS = 50_000
TURNS = 9


def cost_ns(call: Callable[[], object], calls: int) -> float:
    """Nanoseconds of one call."""
    return Timer(call).timeit(calls) / calls * 1e9


def measure() -> dict[str, dict[str, float]]:
    """Costs in ns and as multiples of time.time_ns(): the median of turns, each paired with its own yardstick."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with RankClock.start(rank=0, world_size=1, rendezvous=f"127.0.0.1:{port}") as clock:
        if not clock.wait(20.0):
            raise SystemExit(f"the clock did not start: {clock.why_unknown}")
        stamp_ns = time.time_ns()
        time.sleep(1.5)
        calls: dict[str, tuple[Callable[[], object], int]] = {
            "now_ns()": (clock.now_ns, CALLS),
            "window()": (clock.window, CALLS // 5),
            "offset()": (clock.offset, CALLS // 20),
            "to_cluster_ns(past stamp)": (lambda: clock.to_cluster_ns(stamp_ns), CALLS // 50),
        }
        found = {}
        for name, (call, count) in calls.items():
            turns = [(cost_ns(call, count), cost_ns(time.time_ns, CALLS)) for _ in range(TURNS)]
            found[name] = {
                "ns": statistics.median(one for one, _ in turns),
                "times": statistics.median(one / yardstick for one, yardstick in turns),
            }
    return found


def main() -> int:
    """Run and print; 1 where now_ns() costs more than five times time.time_ns()."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure()
    if options.json:
        print(json.dumps(found))
    else:
        print(f"{'call':26}  {'cost':>8}  times time.time_ns()")
        for name, one in found.items():
            print(f"{name:26}  {one['ns']:5.0f} ns  {one['times']:.1f}")
        machine = f"{os.cpu_count()} processors, Linux {platform.release()}, Python {platform.python_version()}"
        print(f"{machine}, {time.strftime('%Y-%m-%d')}")
    return int(found["now_ns()"]["times"] > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
