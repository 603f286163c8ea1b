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
import subprocess
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


RANK = """
import os, sys, time
from rankclock import RankClock
with RankClock.start(rank=int(sys.argv[1]), world_size=2, rendezvous=sys.argv[2]) as clock:
    assert clock.wait(20.0), clock.why_unknown
    time.sleep(5.0)
    ticks = os.sysconf("SC_CLK_TCK")
    def used(pid):
        fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / ticks
    prober = clock._member.prober.pid
    before = used(prober), time.process_time(), time.monotonic()
    time.sleep(10.0)
    passed = time.monotonic() - before[2]
    print((used(prober) - before[0]) / passed, (time.process_time() - before[1]) / passed)
    time.sleep(1.0)
"""


def shares() -> dict[str, float]:
    """The shares of a processor that a prober and a rank's thread take."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        where = f"127.0.0.1:{probe.getsockname()[1]}"
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), where],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "RANKCLOCK_CLOCK_ID": f"clock {rank}"},
        )
        for rank in range(2)
    ]
    told = [[float(word) for word in rank.communicate(timeout=60)[0].split()] for rank in ranks]
    return {"prober": max(one[0] for one in told), "thread": max(one[1] for one in told)}


def main() -> int:
    """Run and print; 1 where now_ns() costs more than five times time.time_ns()."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found, taken = measure(), shares()
    if options.json:
        print(json.dumps({**found, "shares": taken}))
    else:
        print(f"{'call':26}  {'cost':>8}  times time.time_ns()")
        for name, one in found.items():
            print(f"{name:26}  {one['ns']:5.0f} ns  {one['times']:.1f}")
        print(f"a prober takes {taken['prober']:.2%} of a processor, a rank's thread {taken['thread']:.2%}")
        machine = f"{os.cpu_count()} processors, Linux {platform.release()}, Python {platform.python_version()}"
        print(f"{machine}, {time.strftime('%Y-%m-%d')}")
    return int(found["now_ns()"]["times"] > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
