"""The doctor on public reports, and on journals of 100 MB (`python -m benchmarks.doctor [MEGABYTES]`).

Prints a table of the reports by kind (verdict right, all numbers right) and the time that three large logs take: a
mixed journal, one of nothing but ptp4l's offsets, one of nothing but chronyd's messages.
"""

from __future__ import annotations

import json
import random
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rankclock.diagnosis.scan import read_sources
from rankclock.diagnosis.verdict import diagnose

REPORTS = Path(__file__).parents[1] / "tests/captured/reports/reports.jsonl"
NO_VALUES = ("tol_s", "tol_ppm")


def right(expected: dict[str, Any], values: dict[str, Any]) -> tuple[int, int]:
    """(numbers that are right, numbers that are expected)."""
    hits = 0
    wanted = {name: value for name, value in expected.items() if name not in NO_VALUES}
    tolerance = max((float(expected.get(name, 0)) for name in NO_VALUES), default=0.0)
    for name, value in wanted.items():
        found = values.get(name)
        numbers = isinstance(value, (int, float)) and isinstance(found, (int, float))
        hits += found == value or (numbers and abs(found - value) <= max(tolerance, abs(value) * 2e-3))
    return hits, len(wanted)


def reports() -> None:
    kinds: dict[str, list[tuple[bool, int, int]]] = {}
    for line in REPORTS.read_text(encoding="utf-8").splitlines():
        report = json.loads(line)
        if report["kind"] == "trace":
            continue
        answer = diagnose(read_sources([("-", [report["input"].encode()])]))
        expected = report["expect"]
        row = (answer.verdict.value in expected["answer"], *right(expected["values"], answer.values))
        kinds.setdefault(report["kind"], []).append(row)
    print(f"{'kind':18} {'reports':>8} {'verdict right':>14} {'values right':>14}")
    everything = [row for found in kinds.values() for row in found]
    for kind, rows in [*sorted(kinds.items()), ("all", everything)]:
        values = f"{sum(row[1] for row in rows)} of {sum(row[2] for row in rows)}"
        print(f"{kind:18} {len(rows):8} {sum(row[0] for row in rows):14} {values:>14}")


def journal(kind: str, size: int) -> Iterator[bytes]:
    """Chunks of about 1 MiB of a log."""
    chance = random.Random(1)
    index = 0
    while size > 0:
        lines = []
        for _ in range(9_000):
            index += 1
            stamp = f"{index // 3600 % 24:02d}:{index // 60 % 60:02d}:{index % 60:02d}"
            head = f"Sep {1 + index // 86400 % 28:02d} {stamp} gpu{index % 8} "
            offset = (
                f"ptp4l[263]: [{index}.057] master offset {chance.randint(-40, 40):10d} s2 freq -25200 path delay 635"
            )
            noise = f"kubelet[812]: I{index} {chance.getrandbits(60):x} SetUp succeeded pvc-{chance.getrandbits(64):x}"
            said = f"chronyd[99]: Selected source 10.0.0.{index % 200}"
            lines.append(head + {"ptp4l": offset, "chronyd": said}.get(kind, offset if index % 10 == 0 else noise))
        chunk = ("\n".join(lines) + "\n").encode()
        size -= len(chunk)
        yield chunk


def large(megabytes: int) -> None:
    print(f"\n{'log of ' + str(megabytes) + ' MB':18} {'lines':>10} {'CPU s':>8} {'peak MiB':>9}")
    for kind in ("mixed", "ptp4l", "chronyd"):
        chunks = list(journal(kind, megabytes * 1_000_000))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.process_time()
        evidence = read_sources([(kind, iter(chunks))])
        diagnose(evidence)
        took = time.process_time() - began
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        print(f"{kind:18} {evidence.lines:10} {took:8.2f} {grown / 1024:9.0f}")


if __name__ == "__main__":
    reports()
    large(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
