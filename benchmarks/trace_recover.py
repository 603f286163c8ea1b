"""Clocks recovered from the collectives in traces: `python -m benchmarks.trace_recover [RANKS ...]`.

Synthetic jobs of known truth: clocks within ±50 ms and ±20 ppm, ring and tree orders, tensor and pipeline parallel
parts that overlap, ranks without a file, lost events, in one job a stepped clock. Every instant of every rank is held
against its bound. Beside it, on the same files: what trusting the wall clocks gives (subtracting one global minimum, as
HTA does, moves all ranks alike), and aligning the first event of every rank (as VizTracer does).
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from rankclock.timebase import format_span_ns
from rankclock.traces.read import by_rank, read_files
from rankclock.traces.recover import recover
from rankclock.traces.synthetic import HostClock, Job, SyntheticJob, write_traces

JOBS: dict[int, list[tuple[str, dict[str, Any]]]] = {
    8: [
        ("data parallel, 8 hosts", {"ranks_per_host": 1}),
        ("2 % of events lost, a rank missing", {"ranks_per_host": 1, "lost": 0.02, "missing": (3,)}),
        ("a clock stepped by 80 ms", {"ranks_per_host": 1, "one_step_ns": 80_000_000, "steps": 30}),
    ],
    64: [
        ("data parallel, 8 hosts, a tree's order", {"tree_ns": 40_000}),
        ("tensor 4, pipeline 4 (NCCL)", {"tensor": 4, "pipeline": 4, "backend": "nccl"}),
    ],
    512: [("data parallel, 64 hosts", {"steps": 10})],
}
INSTANTS = 101


def truths(job: SyntheticJob, rank: int, reference: HostClock) -> tuple[Any, Any]:
    """Instants of a rank's trace by its own clock, and by the reference's."""
    clock, steps = job.clock_of(rank), job.steps[rank]
    instants = np.linspace(steps[0][1] + 1000, steps[-1][2] - 1000, INSTANTS).astype(np.int64).tolist()
    local = [at_ns + clock.offset_at(at_ns) for at_ns in instants]
    return np.array(local), np.array([at_ns + reference.offset_at(at_ns) for at_ns in instants])


def run(name: str, options: dict[str, Any], ranks: int) -> int:
    """Prints one line of the table; how many instants were outside of their bound."""
    job = SyntheticJob(Job(ranks=ranks, seed=ranks, **options))
    with tempfile.TemporaryDirectory() as folder:
        digests = by_rank(read_files(write_traces(job, Path(folder), padding=0)))
        began = time.perf_counter()
        found = recover(digests)
        took_s = time.perf_counter() - began
    reference = job.clocks[int(found.alignment.reference.removeprefix("node"))]
    held = outside = unknown = 0
    ours, wall, first = [], [], []
    begins = {rank: truths(job, rank, reference) for rank in digests}
    for rank, (local, true) in begins.items():
        mapped = found.alignment.ranks[rank].to_cluster(local)
        inside = (mapped.lo_ns <= true) & (true <= mapped.hi_ns)
        held += int((inside & mapped.known).sum())
        outside += int((~inside & mapped.known).sum())
        unknown += int((~mapped.known).sum())
        ours.append(np.abs(mapped.cluster_ns - true)[mapped.known])
        wall.append(np.abs(local - true))
        start = min(begins)
        first.append(np.abs((local - local[0]) - (true - begins[start][1][0])))
    errors = [format_span_ns(int(np.median(np.concatenate(one)))) for one in (ours, first, wall)]
    p99 = format_span_ns(int(np.quantile(np.concatenate(ours), 0.99)))
    print(
        f"{ranks:4} {name:40} {held:6} of {held + outside:6} {unknown:5}  {errors[0]:>8} {p99:>8}  "
        f"{errors[1]:>8} {errors[2]:>8}  {took_s:6.2f} s"
    )
    return outside


def main() -> int:
    """1 where a bound did not hold."""
    wanted = [int(text) for text in sys.argv[1:]] or list(JOBS)
    print("rank, job, truth held of instants, unknown; error: median, p99; by first event; by wall clock; time")
    return int(sum(run(name, options, ranks) for ranks in wanted for name, options in JOBS[ranks]) > 0)


if __name__ == "__main__":
    sys.exit(main())
