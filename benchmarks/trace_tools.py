"""How others place two ranks: `python -m benchmarks.trace_tools [PYTHON]`.

PYTHON: one that has HolisticTraceAnalysis. The real traces of tests/captured/traces: two gloo ranks on one host:
their clocks are one. The second is then moved by 250 ms. Printed: the error of the second rank's place against the
first's, by trusting wall clocks, by putting every first event at zero, by HTA's own alignment, and by recovery, which
is told that the hosts differ.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from rankclock.traces.read import by_rank, read_files
from rankclock.traces.recover import recover

REAL = sorted((Path(__file__).parent.parent / "tests/captured/traces").glob("torch-*.json.gz"))
SHIFT_US = 250_000.0
HTA = """
import sys
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_files={rank: path for rank, path in enumerate(sys.argv[1:])})
for rank in (0, 1):
    frame = analysis.t.get_trace(rank)
    names = analysis.t.symbol_table.get_sym_table()
    for ts, name in zip(frame.ts, frame.name):
        if names[name] == "step-0":
            print("PLACE", float(ts))
"""


def moved(folder: Path) -> list[Path]:
    """The two traces, the second 250 ms later."""
    paths = []
    for rank, packed in enumerate(REAL):
        trace = json.loads(gzip.decompress(packed.read_bytes()))
        for event in trace["traceEvents"]:
            if rank and "ts" in event:
                event["ts"] += SHIFT_US
        paths.append(folder / f"rank{rank}.json")
        paths[-1].write_text(json.dumps(trace))
    return paths


def marks_us(path: Path) -> tuple[float, float]:
    """Where the range step-0 begins, and the first event."""
    events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    begin: float = next(event["ts"] for event in spans if event["name"] == "step-0")
    return begin, min(event["ts"] for event in spans)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        paths = moved(Path(name))
        (mark0, first0), (mark1, first1) = map(marks_us, paths)
        truth_us = mark1 - SHIFT_US - mark0
        print(f"wall clocks            {mark1 - mark0 - truth_us:12.1f} µs")
        print(f"first events at zero   {(mark1 - first1) - (mark0 - first0) - truth_us:12.1f} µs")
        for python in sys.argv[1:2]:
            done = subprocess.run(
                [python, "-c", HTA, *map(str, paths)], capture_output=True, text=True, timeout=120, check=True
            )
            places = [float(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("PLACE")]
            print(f"HolisticTraceAnalysis  {places[1] - places[0] - truth_us:12.1f} µs")
        digests = {rank: replace(one, host=f"h{rank}") for rank, one in by_rank(read_files(paths)).items()}
        offset = recover(digests).clocks[1].offset
        assert offset.estimate_ns is not None
        assert offset.contains(round(SHIFT_US * 1000)), offset
        error_us = offset.estimate_ns / 1000 - SHIFT_US
        print(
            f"rankclock recover      {error_us:12.1f} µs, bound ±{(offset.bound_ns or 0) / 1000:.0f} µs, truth inside"
        )


if __name__ == "__main__":
    main()
