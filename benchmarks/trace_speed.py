"""How fast traces are put on one timeline: `python -m benchmarks.trace_speed [MB]`.

Two ranks' traces of MB megabytes together (400 by default), made of repeated steps of a synthetic job. In one run on
the same files: plain copying, reading, an archive with its manifest, rewriting every stamp, merging into one file, and
loading and dumping JSON by the standard library and by orjson, as tools that edit parsed traces do. Peak memory in
processes of their own.
"""

from __future__ import annotations

import json
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rankclock.timebase.clock_record import ClockHeader, ClockLine, ClockRecord
from rankclock.traces.align import align
from rankclock.traces.archive import write_archive
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


def way(name: str, folder: Path, paths: list[Path]) -> float:
    """Does it once; seconds."""
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
    elif name == "merged":
        with (folder / "merged.json").open("wb") as file:
            file.writelines(merged(digests, alignment, base_ns))
    else:
        for rank, digest in digests.items():
            with (folder / f"rewritten{rank}.json").open("wb") as file:
                file.writelines(rewritten(digest, alignment.ranks[rank], alignment, base_ns))
    return time.perf_counter() - began


WAYS = ("copy", "read", "zip", "tar", "rewritten", "merged", "json", "orjson")


def main() -> int:
    """Prints the table; 0. With a way and a folder: does that one, for a process of its own."""
    if len(sys.argv) == 3 and sys.argv[1] in WAYS:
        folder = Path(sys.argv[2])
        took_s = way(sys.argv[1], folder, sorted(folder.glob("rank?.pt.trace.json")))
        print(took_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
        return 0
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    with tempfile.TemporaryDirectory() as name:
        paths = make(Path(name), megabytes)
        size_mb = sum(path.stat().st_size for path in paths) / 1e6
        largest_mb = max(path.stat().st_size for path in paths) / 1e6
        print(f"two traces of {size_mb:.0f} MB together, the larger {largest_mb:.0f} MB")
        speeds = {}
        for one in WAYS:
            argv = [sys.executable, "-m", "benchmarks.trace_speed", one, name]
            took, memory = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()
            speeds[one] = size_mb / float(took)
            ratio = f"{speeds[one] / speeds['copy']:.3f} of copying"
            peak = f"{int(memory):6} MiB ({int(memory) / largest_mb:.2f} of the larger)"
            print(f"{one:10} {speeds[one]:8.0f} MB/s  {ratio:18} {peak}")
        print(
            f"rewriting against JSON by the standard library {speeds['rewritten'] / speeds['json']:.1f}, by orjson "
            f"{speeds['rewritten'] / speeds['orjson']:.1f} times as fast"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
