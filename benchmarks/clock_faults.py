"""What the others report when things go wrong: coverage and width of every published bound, over many hidden truths.

    python -m benchmarks.clock_faults [SEEDS]      # per scenario; default 5: 60 runs, about two minutes; 17 for 204

Five hosts in virtual time, the very state machine that runs on a socket. Clocks are up to 20 s and 100 ppm off and
wander; paths take 3 to 60 µs each way, so that an estimate is off by up to 28 µs before anything goes wrong.
"""

from __future__ import annotations

import sys
import time

from rankclock.simulate.cluster_time import SCENARIOS, Score, run_scenario
from rankclock.timebase import format_span_ns

HEAD = ["scenario", "runs", "held", "unknown", "error median", "error p99", "width median", "width p99", "known within"]


def row(name: str, seeds: int) -> tuple[list[str], Score]:
    """One scenario's figures."""
    total = Score()
    for seed in range(seeds):
        total.add(run_scenario(name, seed))
    errors, widths = sorted(total.errors_ns), sorted(total.widths_ns)
    figures = [_at(errors, 0.5), _at(errors, 0.99), _at(widths, 0.5), _at(widths, 0.99), total.first_known_ns]
    spans = [format_span_ns(ns) for ns in figures]
    return [name, str(seeds), f"{total.held}/{total.known}", str(total.unknown), *spans], total


def _at(values: list[int], share: float) -> int:
    return values[min(int(len(values) * share), len(values) - 1)] if values else 0


def main() -> int:
    """Run and print; 1 where a bound did not hold the truth."""
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    began = time.monotonic()
    rows, missed = [HEAD], 0
    for name in SCENARIOS:
        line, total = row(name, seeds)
        rows.append(line)
        missed += total.known - total.held
    widths = [max(len(line[column]) for line in rows) for column in range(len(HEAD))]
    for line in rows:
        print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())
    print(f"{seeds * len(SCENARIOS)} runs of 14 s virtual time, {time.monotonic() - began:.0f} s")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
