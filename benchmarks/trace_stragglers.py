"""Planted stragglers, found or not: `python -m benchmarks.trace_stragglers [--hta PYTHON]`.

Synthetic NCCL jobs of eight hosts, data parallel, clocks up to 250 ms off; one rank is late by 0, 1, 5 or 20 ms a
step. Printed is whom rankclock names, with clocks known within 5 µs and with clocks recovered from the same files, and
what the durations say without any clock. With --hta (a Python that has HolisticTraceAnalysis), beside it the candidates
of HTA's get_potential_stragglers on the same files, with the clocks as they are and with perfect ones. HTA 0.5.0 knows
only kernels named ncclKernel... with stream and correlation: it gets copies with these.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from rankclock.timebase import NS_PER_S, format_span_ns
from rankclock.traces.read import by_rank, read_files
from rankclock.traces.recover import recover
from rankclock.traces.stragglers import StragglerReport, find_stragglers
from rankclock.traces.synthetic import START_TRUE_NS, HostClock, Job, SyntheticJob, write_traces
from rankclock.traces.timemap import Alignment, Piece, RankMap

RANKS, STEPS, LATE_RANK = 8, 20, 5
LATE_MS = (0, 0, 1, 5, 20)
BOUND_NS = 5_000
ASK_HTA = """
import sys
from hta.trace_analysis import TraceAnalysis
paths = {rank: path for rank, path in enumerate(sys.argv[1:])}
found = TraceAnalysis(trace_files=paths, trace_dir="").get_potential_stragglers(num_candidates=2)
print("ANSWER", ", ".join(str(rank) for rank in found))
"""


def known(job: SyntheticJob) -> Alignment:
    """The clocks as they are, with a bound."""
    maps = {}
    for rank in range(RANKS):
        ends = []
        for true_ns in (START_TRUE_NS - NS_PER_S, START_TRUE_NS + 60 * NS_PER_S):
            offset_ns = job.clock_of(rank).offset_at(true_ns)
            ends.append((true_ns + offset_ns, (offset_ns, offset_ns - BOUND_NS, offset_ns + BOUND_NS)))
        piece = Piece(start_ns=ends[0][0], end_ns=ends[1][0], at_start=ends[0][1], at_end=ends[1][1])
        maps[rank] = RankMap(
            rank=rank, host="", pieces=(piece,), method="known", assumptions=(), notes=(), unknown_why=""
        )
    return Alignment(reference="truth", method="known", ranks=maps, problems=())


def ours(report: StragglerReport) -> str:
    """Whom the report names, and by how much."""
    (group,) = report.groups
    if group.named is None:
        return f"nobody ({group.why_not})" if "refused" in group.why_not else "nobody"
    return f"{group.named} by {format_span_ns(group.late_median_ns or 0)}"


def hta(python: str, paths: list[Path]) -> str:
    """The candidates of HTA, or its last word."""
    for path in paths:
        text = path.read_text().replace("ncclDevKernel", "ncclKernel")
        text = re.sub(r'"External id": (\d+), "Coll', r'"correlation": \1, "External id": \1, "Coll', text)
        path.write_text(re.sub(r'("cat": "kernel"[^{]*"args": \{)', r'\1 "stream": 20,', text))
    argv = [python, "-c", ASK_HTA, *map(str, paths)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    answers = [line[7:] for line in done.stdout.splitlines() if line.startswith("ANSWER ")]
    return answers[0] if answers else (done.stderr.strip().splitlines() or ["no answer"])[-1][:60]


def main() -> int:
    """1 where a rank was named that is not late."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--hta", metavar="PYTHON")
    python = parser.parse_args().hta
    wrong = 0
    print("late rank; named (clocks known); named (clocks recovered); without clocks; HTA; HTA with perfect clocks")
    for seed, late_ms in enumerate(LATE_MS):
        options = {"straggler": {LATE_RANK: late_ms * 1_000_000}} if late_ms else {}
        made = Job(
            ranks=RANKS,
            ranks_per_host=1,
            steps=STEPS,
            jitter=0.01,
            backend="nccl",
            max_offset_ns=250_000_000,
            seed=seed,
        )
        job = SyntheticJob(replace(made, **options))
        with tempfile.TemporaryDirectory() as folder:
            paths = write_traces(job, Path(folder) / "apart", padding=2)
            digests = by_rank(read_files(paths))
            reports = [find_stragglers(digests, one) for one in (known(job), recover(digests).alignment)]
            theirs = ["not asked", "not asked"]
            if python:
                perfect = SyntheticJob(replace(made, **options))
                perfect.clocks = [HostClock()] * RANKS
                theirs = [hta(python, paths), hta(python, write_traces(perfect, Path(folder) / "perfect", padding=2))]
        wrong += sum(
            group.named not in (None, LATE_RANK if late_ms else None) for one in reports for group in one.groups
        )
        truth = f"{LATE_RANK} by {late_ms} ms" if late_ms else "nobody"
        durations = reports[0].groups[0].without_clock
        print("; ".join([truth, *map(ours, reports), "nobody" if durations is None else str(durations), *theirs]))
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
