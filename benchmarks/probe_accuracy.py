"""How far off the prober is, and whether its bounds hold: kernel and process stamps side by side, in one run.

    python -m benchmarks.probe_accuracy [SECONDS]      # SECONDS idle, then as many beside a processor hog; default 20

Three nodes of a lab, clocks with known truth (offsets to 20 s, drifts to 100 ppm), each probing both others, once with
kernel stamps and once with the process's own. Needs user namespaces and a C compiler; touches no clock of this machine.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path

from rankclock.cluster.model import Cluster
from rankclock.lab import Lab, Scenario
from rankclock.timebase import Offset, format_span_ns

NODES = ("n1", "n2", "n3")
CLOCKS = {
    "n1": {"offset_ns": 0, "drift_ppb": 0},
    "n2": {"offset_ns": -20_000_000_000, "drift_ppb": 60_000},
    "n3": {"offset_ns": 1_500, "drift_ppb": -100_000},
}
PORTS = {"kernel": 4910, "process": 4911}
SETTLE_S = 3.0


def scenario() -> Scenario:
    """Three nodes on one segment."""
    nodes = [
        {"name": node, "nics": [{"name": "eth0", "address": f"{address(node)}/16", "segment": "lan"}]} for node in NODES
    ]
    cluster = Cluster.model_validate({"schema": "rankclock-cluster/1", "name": "bench", "nodes": nodes})
    return Scenario.of(cluster, clocks=CLOCKS)


def address(node: str) -> str:
    """The node's address in the lab."""
    return f"10.77.0.{node[1:]}"


def start(lab: Lab, folder: Path, node: str, stamps: str) -> None:
    """A prober that asks all others."""
    port = PORTS[stamps]
    command = [sys.executable, "-m", "rankclock.mesh.prober", "--node", node, "--bind", f"{address(node)}:{port}"]
    command += [word for peer in NODES if peer != node for word in ("--peer", f"{peer}={address(peer)}:{port}")]
    command += ["--key-file", str(folder / "key"), "--out", str(folder / f"{node}-{stamps}.jsonl")]
    command += ["--user-stamps"] if stamps == "process" else []
    lab.spawn(node, command, env={"RANKCLOCK_CLOCK_ID": node})


def row(lab: Lab, folder: Path, name: str, stamps: str, span_ns: tuple[int, int]) -> list[str]:
    """The figures of one phase: every sample of every node beside the truth."""
    errors, bounds, held, unknown = [], [], 0, 0
    for node in NODES:
        for line in (folder / f"{node}-{stamps}.jsonl").read_text().splitlines():
            told = json.loads(line)
            offset = Offset.from_json(told["offset"])
            if not span_ns[0] <= lab.clock(node).host_at_raw(told["at_raw_ns"]) < span_ns[1]:
                continue
            if offset.estimate_ns is None or offset.bound_ns is None:
                unknown += 1
                continue
            truth_ns = lab.true_offset_ns(node, told["peer"], told["at_raw_ns"])
            held += offset.contains(truth_ns)
            errors.append(abs(offset.estimate_ns - truth_ns))
            bounds.append(offset.bound_ns)
    errors.sort()
    bounds.sort()
    figures = [errors[len(errors) // 2], errors[len(errors) * 99 // 100], bounds[len(bounds) // 2], bounds[-1]]
    return [name, stamps, *(format_span_ns(ns) for ns in figures), f"{held}/{len(errors)}", str(unknown)]


def main() -> int:
    """Run and print; 1 where a bound did not hold the truth."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 20.0
    head = ["path", "stamps by", "error median", "error p99", "bound median", "bound max", "truth held", "unknown"]
    with tempfile.TemporaryDirectory() as name, Lab.up(scenario()) as lab:
        folder = Path(name)
        (folder / "key").write_bytes(os.urandom(32).hex().encode())
        for stamps in PORTS:
            for node in NODES:
                start(lab, folder, node, stamps)
        time.sleep(SETTLE_S)
        marks = [time.monotonic_ns()]
        time.sleep(seconds)
        marks.append(time.monotonic_ns())
        hog = lab.spawn("n1", [sys.executable, "-c", "while True: pass"])
        time.sleep(seconds)
        marks.append(time.monotonic_ns())
        hog.kill()
        time.sleep(0.5)
        phases = {"idle": (marks[0], marks[1]), "a hog on n1": (marks[1], marks[2])}
        rows = [row(lab, folder, name, stamps, span) for name, span in phases.items() for stamps in PORTS]
    widths = [max(len(line[column]) for line in [head, *rows]) for column in range(len(head))]
    for line in [head, *rows]:
        print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())
    machine = f"{os.cpu_count()} processors, Linux {platform.release()}, Python {platform.python_version()}"
    print(f"{len(NODES)} nodes, {machine}, {time.strftime('%Y-%m-%d')}")
    return int(any(held.split("/")[0] != held.split("/")[1] for *_, held, _ in rows))


if __name__ == "__main__":
    sys.exit(main())
