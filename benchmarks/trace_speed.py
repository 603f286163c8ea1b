"""How fast traces are put on one timeline: `python -m benchmarks.trace_speed [MB] [--others MB] [--hta PYTHON]`.

Two ranks' traces of MB megabytes together (400 by default), made of repeated steps of a synthetic job. In one run on
the same files: plain copying, reading, archives with their manifest, rewriting every stamp, one native Perfetto trace,
merging into one file. Tools that hold parsed traces get two of --others megabytes (100): loading, changing and dumping
JSON by the standard library and by orjson, VizTracer's --combine; with --hta (a Python that has it) the parser of
HolisticTraceAnalysis gets two of a tenth of that, and writes nothing. Peak memory in processes of their own; megabytes
of input a second.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from rankclock.timebase.clock_record import ClockHeader, ClockLine, ClockRecord
from rankclock.traces.align import align
from rankclock.traces.archive import write_archive
from rankclock.traces.pftrace import pftrace
from rankclock.traces.read import by_rank, read_files
from rankclock.traces.rewrite import common_base_ns, merged, rewritten
from rankclock.traces.synthetic import START_TRUE_NS, Job, SyntheticJob, write_traces

S = 1_000_000_000
_STAMP = re.compile('"<([0-9.]+)>"')


def make(folder: Path, megabytes: int) -> list[Path]:
    """Traces of two ranks; events are repeated, each copy later."""
    job = SyntheticJob(Job(ranks=2, ranks_per_host=1, steps=20, max_rate_ppb=50))
    paths = []
    for path in write_traces(job, folder, padding=40):
        text = path.read_text()
        value = json.loads(text)
        events, span_us = value.pop("traceEvents"), 2_000_000
        copies = max(megabytes * 500_000 // len(text), 1)
        with path.open("w") as file:
            file.write(json.dumps(value)[:-1] + ', "traceEvents": [')
            for copy in range(copies):
                for index, event in enumerate(events):
                    if copy and event["ph"] == "M":
                        continue
                    moved = {**event, "ts": f"<{event.get('ts', 0) + copy * span_us:.3f}>"}
                    # Three decimals, as the profiler writes them.
                    file.write(("" if copy == index == 0 else ",\n") + _STAMP.sub(r"\1", json.dumps(moved)))
            file.write("]}")
        paths.append(path)
    return paths


def records(paths: list[Path]) -> list[ClockRecord]:
    """A clock record of each rank over the whole trace, 1 µs wide."""
    found = []
    for rank in range(len(paths)):
        header = ClockHeader(job="j", rank=rank, host="h", clock_id="c", reference="r", growth_ppb=100)
        lines = tuple(
            ClockLine(real_ns=START_TRUE_NS + at * S, raw_ns=at * S, lo_ns=-1000, hi_ns=1000, est_ns=0, rate_ppb=0.0)
            for at in range(-60, 20_000)
        )
        found.append(ClockRecord(header=header, lines=lines))
    return found


HTA = """
import sys, time
from hta.common.trace import parse_trace_file
began = time.perf_counter()
for path in sys.argv[1:]:
    parse_trace_file(path)
print("TOOK", time.perf_counter() - began)
"""


def other_program(name: str, folder: Path, paths: list[Path]) -> float:
    """What another program takes for it; seconds."""
    if name.startswith("hta="):
        argv = [name.removeprefix("hta="), "-c", HTA, *map(str, paths)]
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
        return float(done.stdout.rpartition("TOOK")[2])
    began = time.perf_counter()
    combine = [sys.executable, "-m", "viztracer", "--combine", *map(str, paths), "-o", str(folder / "combined.json")]
    subprocess.run(combine, capture_output=True, check=True)
    return time.perf_counter() - began


def way(name: str, folder: Path, paths: list[Path]) -> float:
    """Does it once; seconds."""
    if name == "viztracer" or name.startswith("hta="):
        return other_program(name, folder, paths)
    if name in ("json", "orjson"):
        import orjson

        load = json.loads if name == "json" else orjson.loads
        dump = (lambda value: json.dumps(value).encode()) if name == "json" else orjson.dumps
        began = time.perf_counter()
        for path in paths:
            value = load(path.read_bytes())
            for event in value["traceEvents"]:
                event["ts"] = event.get("ts", 0) + 1.5
            (folder / f"{name}-{path.name}").write_bytes(dump(value))
        return time.perf_counter() - began
    if name == "copy":
        began = time.perf_counter()
        for path in paths:
            shutil.copyfile(path, folder / f"copy-{path.name}")
        return time.perf_counter() - began
    digests = by_rank(read_files(paths, jobs=1))
    began = time.perf_counter()
    if name == "read":
        by_rank(read_files(paths, jobs=1))
        return time.perf_counter() - began
    alignment = align(digests, records(paths))
    base_ns = common_base_ns(digests)
    began = time.perf_counter()
    if name in ("zip", "tar"):
        names = {rank: f"rank{rank}.json" for rank in digests}
        write_archive(folder / f"out.{name}", digests, alignment, names, tar=name == "tar")
    elif name == "pftrace":
        with (folder / "out.pftrace").open("wb") as file:
            file.writelines(pftrace(digests, alignment))
    elif name == "merged":
        with (folder / "merged.json").open("wb") as file:
            file.writelines(merged(digests, alignment, base_ns))
    else:
        for rank, digest in digests.items():
            with (folder / f"rewritten{rank}.json").open("wb") as file:
                file.writelines(rewritten(digest, alignment.ranks[rank], alignment, base_ns))
    return time.perf_counter() - began


WAYS = ("copy", "read", "zip", "tar", "rewritten", "merged", "pftrace")
OTHERS = ("json", "orjson", "viztracer")


def measured(ways: Iterable[str], megabytes: int) -> dict[str, float]:
    """Megabytes a second of each way; printed with peak memory."""
    speeds = {}
    with tempfile.TemporaryDirectory() as name:
        paths = make(Path(name), megabytes)
        size_mb = sum(path.stat().st_size for path in paths) / 1e6
        largest_mb = max(path.stat().st_size for path in paths) / 1e6
        print(f"two traces of {size_mb:.0f} MB together, the larger {largest_mb:.0f} MB")
        for one in ways:
            argv = [sys.executable, "-m", "benchmarks.trace_speed", one, name]
            took, memory = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()
            speeds[one] = size_mb / float(took)
            peak = f"{int(memory):6} MiB ({int(memory) / largest_mb:.2f} of the larger)"
            print(f"{one.partition('=')[0]:10} {speeds[one]:8.0f} MB/s  {peak}", flush=True)
    return speeds


def main() -> int:
    """Prints the tables; 0. With a way and a folder: does that one, for a process of its own."""
    if len(sys.argv) == 3 and sys.argv[1].partition("=")[0] in (*WAYS, *OTHERS, "hta"):
        folder = Path(sys.argv[2])
        took_s = way(sys.argv[1], folder, sorted(folder.glob("rank?.pt.trace.json")))
        peaks = [resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        print(took_s, max(peaks) // 1024)
        return 0
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trace_speed")
    parser.add_argument("megabytes", nargs="?", type=int, default=400)
    parser.add_argument("--others", type=int, default=100)
    parser.add_argument("--hta", help="a Python that has HolisticTraceAnalysis")
    given = parser.parse_args()
    speeds = measured(WAYS, given.megabytes)
    others = measured(OTHERS, given.others)
    if given.hta:
        others |= measured([f"hta={given.hta}"], max(given.others // 10, 1))
    parts = [f"{one} {speeds[one] / speeds['copy']:.2f}" for one in ("zip", "tar")]
    print(f"archives against plain copying: {', '.join(parts)} of its speed")
    for one, speed in others.items():
        print(f"rewriting is {speeds['rewritten'] / speed:.1f} times as fast as {one.partition('=')[0]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
