"""The rank clock against the truth: RankClock in real Python processes on a lab's virtual clocks.

    python -m benchmarks.clock_truth [--seconds 20] [--json]     # a phase; about two and a half minutes by default

Four ranks on four nodes; clocks up to 20 s and 100 ppm off, all oscillators wander. Each rank asks its clock a hundred
times a second: `offset()` and `window()`; past stamps are asked again through the history. Phases: idle; steps, slews
of up to 83,000 ppm in mid-exchange; two processor hogs and a flow that saturates the path of two of the nodes. Needs
user namespaces and a C compiler; touches no clock of this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankclock.cluster.model import Cluster
from rankclock.lab import Lab, Scenario
from rankclock.timebase import format_span_ns

ROOT = Path(__file__).parents[1]
NODES = ("n1", "n2", "n3", "n4")
CLOCKS = {
    "n1": {"offset_ns": 0, "drift_ppb": 12_000},
    "n2": {"offset_ns": -20_000_000_000, "drift_ppb": 60_000},
    "n3": {"offset_ns": 1_500, "drift_ppb": -100_000},
    "n4": {"offset_ns": 3_000_000, "drift_ppb": 100_000},
}
EVERY_S = 0.01
WALK_PPB = 10.0
S = 1_000_000_000

SET_TICK = """
import ctypes, sys
class Timex(ctypes.Structure):
    _fields_ = [("modes", ctypes.c_uint), *[(name, ctypes.c_long) for name in "offset freq maxerror esterror".split()],
                ("status", ctypes.c_int), *[(name, ctypes.c_long) for name in "constant precision tolerance".split()],
                ("sec", ctypes.c_long), ("usec", ctypes.c_long), ("tick", ctypes.c_long), ("rest", ctypes.c_long * 20)]
timex = Timex(modes=0x4000, tick=int(sys.argv[1]))
sys.exit(ctypes.CDLL(None).adjtimex(ctypes.byref(timex)) < 0)
"""

FLOW = """
import socket, sys
flow = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
while True:
    try:
        flow.sendto(bytes(1400), (sys.argv[1], 9))
    except OSError:
        pass
"""


def rank(arguments: list[str]) -> int:
    """One rank: ask the clock until a file says stop; what it said goes to a file, past stamps too."""
    from rankclock import RankClock

    number, folder = int(arguments[0]), Path(arguments[1])
    events: list[tuple[str, int]] = []

    def seen(line: Any) -> None:
        events.append((line.event.value, time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)))

    place = {"rank": number, "world_size": len(NODES), "rendezvous": "10.77.0.1:29333", "directory": str(folder)}
    with RankClock.start(**place, on_event=seen) as clock, (folder / f"said-{number}").open("w") as out:  # type: ignore[arg-type]
        clock.wait(20.0)
        at = clock.at_raw(0)
        if number == 0 and at is not None:
            out.write(json.dumps(["anchor", -at[1]]) + "\n")
        (folder / f"ready-{number}").touch()
        stamps: list[tuple[int, int, int]] = []
        while not (folder / "stop").exists():
            offset = clock.offset()
            before_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
            window, now_ns = clock.window(), clock.now_ns()
            after_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
            drift = clock.drift_ppb
            told = ["now", offset.at_raw_ns, offset.lo_ns, offset.hi_ns, offset.estimate_ns]
            out.write(json.dumps([*told, before_ns, after_ns, window, now_ns, drift]) + "\n")
            raw_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
            stamps.append((raw_ns, time.time_ns(), time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)))
            if len(stamps) == 100:
                for raw_ns, stamp_ns, later_ns in stamps[::5]:
                    past = clock.offset_at(stamp_ns)
                    told = ["past", raw_ns, past.lo_ns, past.hi_ns, past.estimate_ns]
                    out.write(json.dumps([*told, stamp_ns, later_ns]) + "\n")
                stamps.clear()
            time.sleep(EVERY_S)
        for what, raw_ns in events:
            out.write(json.dumps(["event", what, raw_ns]) + "\n")
    return 0


@dataclass
class Figures:
    """Of one phase."""

    held: int = 0
    known: int = 0
    unknown: int = 0
    errors_ns: list[int] = field(default_factory=list)
    bounds_ns: list[int] = field(default_factory=list)

    def add(self, lo_ns: int | None, hi_ns: int | None, guess_ns: int | None, truth_ns: int) -> None:
        if lo_ns is None or hi_ns is None or guess_ns is None:
            self.unknown += 1
            return
        self.known += 1
        self.held += lo_ns <= truth_ns <= hi_ns
        self.errors_ns.append(abs(guess_ns - truth_ns))
        self.bounds_ns.append(max(hi_ns - guess_ns, guess_ns - lo_ns))

    def row(self) -> dict[str, Any]:
        errors, bounds = sorted(self.errors_ns), sorted(self.bounds_ns)
        return {
            "windows": self.known,
            "held": self.held,
            "unknown": self.unknown,
            "error_median_ns": _at(errors, 0.5),
            "error_p99_ns": _at(errors, 0.99),
            "bound_median_ns": _at(bounds, 0.5),
            "bound_p99_ns": _at(bounds, 0.99),
        }


def _at(values: list[int], share: float) -> int:
    return values[min(int(len(values) * share), len(values) - 1)] if values else 0


def scenario() -> Scenario:
    """Four nodes on one segment."""
    nodes = [
        {"name": node, "nics": [{"name": "eth0", "address": f"10.77.0.{node[1:]}/16", "segment": "lan"}]}
        for node in NODES
    ]
    cluster = Cluster.model_validate({"schema": "rankclock-cluster/1", "name": "bench", "nodes": nodes})
    return Scenario.of(cluster, clocks=CLOCKS)


@contextmanager
def wandering(lab: Lab, chance: random.Random) -> Iterator[None]:
    """All oscillators walk at random, 10 ppb per square root of a second."""
    stop = threading.Event()
    rates = {node: float(CLOCKS[node]["drift_ppb"]) for node in NODES}

    def walk() -> None:
        while not stop.wait(0.25):
            for node in NODES:
                rates[node] += chance.gauss(0, WALK_PPB / 2)
                lab.clock(node).set_drift_ppb(rates[node])

    thread = threading.Thread(target=walk)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def trouble(lab: Lab, chance: random.Random, seconds: float) -> list[tuple[str, int]]:
    """Steps and slews; the steps done, as (node, host instant)."""
    steps = []
    until = time.monotonic() + seconds
    while time.monotonic() < until - 2:
        node = chance.choice(NODES)
        if chance.random() < 0.5:
            by_ns = chance.choice([-3 * S, 20 * S, -20 * S, 5_000_000_000])
            steps.append((node, time.monotonic_ns()))
            lab.clock(node).step_ns(by_ns)
        else:
            for tick in (chance.choice(["9170", "10830", "10100"]), "10000"):
                lab.run(node, [sys.executable, "-c", SET_TICK, tick], timeout_s=5)
                time.sleep(chance.uniform(0.3, 0.8))
        time.sleep(chance.uniform(0.4, 0.9))
    time.sleep(max(until - time.monotonic(), 0))
    return steps


def load(lab: Lab, seconds: float) -> None:
    """Two hogs, and a flow as fast as a process can send between two nodes."""
    python = [sys.executable, "-c"]
    busy = [lab.spawn(node, [*python, "while True: pass"]) for node in ("n2", "n3")]
    busy.append(lab.spawn("n2", [*python, FLOW, "10.77.0.1"]))
    time.sleep(seconds)
    for process in busy:
        process.kill()


class Truth:
    """What was true, from the lab's clocks. Cluster time is node 1's RAW less a constant, which its rank has told."""

    def __init__(self, lab: Lab, lines: list[list[Any]]) -> None:
        self._lab = lab
        self._anchor_ns = next(line[1] for line in lines if line[0] == "anchor")

    def cluster_ns(self, host_ns: int) -> int:
        """Cluster time at a host instant."""
        return self._lab.clock("n1").at_host(host_ns).raw_ns - self._anchor_ns

    def offset_ns(self, node: str, raw_ns: int) -> int:
        """CLOCK_REALTIME of a node - cluster time when its RAW read raw_ns."""
        host_ns = self._lab.clock(node).host_at_raw(raw_ns)
        return self._lab.clock(node).at_host(host_ns).real_ns - self.cluster_ns(host_ns)

    def drift_ppb(self, node: str, raw_ns: int) -> float:
        """How fast a node's RAW gains on the reference's at an instant."""
        clock, reference = self._lab.clock(node), self._lab.clock("n1")
        host_ns = clock.host_at_raw(raw_ns)
        rates = [1 + one.segment_at(host_ns).osc_q48 / 2**48 for one in (clock, reference)]
        return (1 - rates[1] / rates[0]) * 1e9


def judge(lab: Lab, folder: Path, phases: dict[str, tuple[int, int]]) -> dict[str, Any]:
    """Every line of every rank beside the truth."""
    said = [[json.loads(line) for line in (folder / f"said-{n}").read_text().splitlines()] for n in range(len(NODES))]
    truth = Truth(lab, said[0])
    figures = {name: Figures() for name in phases}
    past = Figures()
    drifts: list[tuple[int, float]] = []
    for node, lines in zip(NODES, said, strict=True):
        clock = lab.clock(node)
        for line in lines:
            if line[0] in ("event", "anchor") or (node == "n1" and line[0] == "now"):
                continue
            host_ns = clock.host_at_raw(line[1] if line[1] is not None else line[5])
            phase = next((name for name, (start, end) in phases.items() if start <= host_ns < end), None)
            if phase is None:
                continue
            if line[0] == "past":
                _judge_past(past, lab, truth, node, line)
                continue
            if line[1] is None:
                figures[phase].unknown += 1
                continue
            figures[phase].add(line[2], line[3], line[4], truth.offset_ns(node, line[1]))
            _judge_window(figures[phase], clock.host_at_raw, truth, line)
            if line[9] is not None:
                drifts.append((host_ns, line[9][1] - truth.drift_ppb(node, line[1])))
    start_ns = next(iter(phases.values()))[0]
    late = sorted(abs(error) for at_ns, error in drifts if at_ns > start_ns + 55 * S) or [abs(drifts[-1][1])]
    return {
        "phases": {name: one.row() for name, one in figures.items()},
        "past": past.row(),
        "drift_error_ppb": {"median": late[len(late) // 2], "p99": late[min(len(late) * 99 // 100, len(late) - 1)]},
        "events": {
            node: [line[1:] for line in lines if line[0] == "event"] for node, lines in zip(NODES, said, strict=True)
        },
    }


def _judge_past(past: Figures, lab: Lab, truth: Truth, node: str, line: list[Any]) -> None:
    """A stamp taken between two readings of RAW: the true offset is found where CLOCK_REALTIME read it."""
    clock = lab.clock(node)
    stamp_ns = line[5]
    low, high = clock.host_at_raw(line[1]), clock.host_at_raw(line[6])
    while low < high:
        middle = (low + high) // 2
        if clock.at_host(middle).real_ns >= stamp_ns:
            high = middle
        else:
            low = middle + 1
    past.add(line[2], line[3], line[4], stamp_ns - truth.cluster_ns(low))


def _judge_window(figures: Figures, host_at_raw: Callable[[int], int], truth: Truth, line: list[Any]) -> None:
    """The window was asked between two readings of RAW: cluster time at some instant between must lie inside."""
    earliest_ns, latest_ns = line[7]
    before_ns, after_ns = truth.cluster_ns(host_at_raw(line[5])), truth.cluster_ns(host_at_raw(line[6]))
    figures.known += 1
    figures.held += earliest_ns <= after_ns and latest_ns >= before_ns


def measure(seconds: float, settle_s: float) -> dict[str, Any]:
    """Run all phases; the figures."""
    chance = random.Random(20261201)
    with tempfile.TemporaryDirectory() as name, Lab.up(scenario()) as lab, wandering(lab, chance):
        folder = Path(name)
        command = [sys.executable, "-m", "benchmarks.clock_truth", "rank"]
        ranks = [
            lab.spawn(node, [*command, str(n), name], env={"RANKCLOCK_CLOCK_ID": node}, cwd=str(ROOT))
            for n, node in enumerate(NODES)
        ]
        _await(lambda: all((folder / f"ready-{n}").exists() for n in range(len(NODES))), ranks)
        time.sleep(settle_s)
        marks = [time.monotonic_ns()]
        time.sleep(seconds)
        marks.append(time.monotonic_ns())
        load(lab, seconds)
        marks.append(time.monotonic_ns())
        time.sleep(1.0)
        start_ns = time.monotonic_ns()
        steps = trouble(lab, chance, seconds)
        end_ns = time.monotonic_ns()
        (folder / "stop").touch()
        for one in ranks:
            if one.wait(20) != 0:
                raise SystemExit(f"a rank failed: {one.log_text()}")
        phases = {
            "idle": (marks[0], marks[1]),
            "two hogs, a saturating flow": (marks[1], marks[2]),
            "steps and slews": (start_ns, end_ns),
        }
        found = judge(lab, folder, phases)
        found["steps"] = _flagged(lab, steps, found.pop("events"))
    return found


def _flagged(lab: Lab, steps: list[tuple[str, int]], events: dict[str, list[tuple[str, int]]]) -> dict[str, Any]:
    """How long after each step its rank was told."""
    delays = []
    for node, at_ns in steps:
        told = [lab.clock(node).host_at_raw(raw_ns) for what, raw_ns in events[node] if what == "step"]
        later = [host_ns - at_ns for host_ns in told if host_ns > at_ns]
        if later:
            delays.append(min(later) / S)
    return {"done": len(steps), "told": len(delays), "latest_s": max(delays, default=0.0)}


def _await(ready: Callable[[], bool], ranks: list[Any]) -> None:
    until = time.monotonic() + 60
    while not ready():
        if time.monotonic() > until:
            raise SystemExit("the ranks did not start: " + " | ".join(one.log_text()[-300:] for one in ranks))
        time.sleep(0.05)


def main() -> int:
    """Run and print; 1 where a bound did not hold the truth."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=40.0, help="of each phase")
    parser.add_argument("--settle", type=float, default=2.0, help="before the first phase")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options.seconds, options.settle)
    rows = [*found["phases"].items(), ("past stamps, all phases", found["past"])]
    missed = sum(row["windows"] - row["held"] for _, row in rows)
    if options.json:
        print(json.dumps(found))
        return int(missed > 0)
    head = ["phase", "held", "unknown", "error median", "error p99", "bound median", "bound p99"]
    table = [head]
    for name, row in rows:
        spans = [format_span_ns(row[f"{what}_{how}_ns"]) for what in ("error", "bound") for how in ("median", "p99")]
        table.append([name, f"{row['held']}/{row['windows']}", str(row["unknown"]), *spans])
    widths = [max(len(line[column]) for line in table) for column in range(len(head))]
    for line in table:
        print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())
    drift, steps = found["drift_error_ppb"], found["steps"]
    print(f"drift after a minute: off by {drift['median']:.0f} ppb (median), {drift['p99']:.0f} ppb (p99)")
    print(f"steps: {steps['told']} of {steps['done']} told, the latest after {steps['latest_s']:.2f} s")
    machine = f"{os.cpu_count()} processors, Linux {platform.release()}, Python {platform.python_version()}"
    print(f"{len(NODES)} ranks, {machine}, {time.strftime('%Y-%m-%d')}")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(rank(sys.argv[2:]) if sys.argv[1:2] == ["rank"] else main())
