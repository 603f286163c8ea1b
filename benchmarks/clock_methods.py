"""The rank clock against what people use, in the same run, on the same paths, against the same truth.

    python -m benchmarks.clock_methods [--rounds 40] [--json]      # about a minute and a half

Four ranks on four nodes of a lab, clocks up to 20 s and 100 ppm off, wandering. Each round, one after another:
  barrier + all_gather   torch.distributed over gloo: barrier, then gather time.time_ns(), and compare
  one exchange           four stamps of one UDP exchange with rank 0, the middle; it states half its round trip as bound
  regression             50 such exchanges over a tenth of a second, a straight line through all of them
  tree                   ranks learn a line to their parent's corrected clock, parents first (binomial tree); each point
                         is the middle between the greatest and the least one-way difference of ten exchanges
  rank clock             RankClock.offset()
All but the rank clock stamp in the process. Needs user namespaces, a C compiler and torch (`make setup-training`).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import socket
import struct
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.clock_truth import NODES, ROOT, Figures, Truth, scenario, wandering
from rankclock.lab import Lab
from rankclock.timebase import format_span_ns

PORT = 5005
REPLY = struct.Struct("!qq")
SPACING_S = 0.002
EXCHANGES = 50
TREE_POINTS, TREE_EXCHANGES = 20, 10
METHODS = ("barrier + all_gather", "one exchange", "regression", "tree", "rank clock")


@dataclass
class Line:
    """A clock's offset as a straight line over its own CLOCK_REALTIME."""

    at_ns: int = 0
    offset_ns: float = 0.0
    rate: float = 0.0

    def at(self, real_ns: int) -> float:
        return self.offset_ns + self.rate * (real_ns - self.at_ns)

    @classmethod
    def through(cls, points: list[tuple[int, float]]) -> Line:
        """Least squares."""
        base_ns, base = points[0]
        xs = [at_ns - base_ns for at_ns, _ in points]
        ys = [offset - base for _, offset in points]
        mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
        under = sum((x - mean_x) ** 2 for x in xs)
        rate = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / under if under else 0.0
        return cls(at_ns=base_ns + round(mean_x), offset_ns=base + mean_y, rate=rate)


@dataclass
class Echo:
    """Answers with when it received and sent, on the clock as corrected by `line`."""

    line: Line = field(default_factory=Line)

    def serve(self, address: str) -> None:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.bind((address, PORT))
        while True:
            data, source = sock.recvfrom(64)
            received_ns = self.now_ns()
            sock.sendto(REPLY.pack(received_ns, self.now_ns()) + data, source)

    def now_ns(self) -> int:
        real_ns = time.time_ns()
        return real_ns - round(self.line.at(real_ns))


class Asker:
    """Exchanges with another rank's echo."""

    def __init__(self) -> None:
        self._sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._sock.settimeout(1.0)
        self._number = 0

    def ask(self, rank: int) -> tuple[int, int, int, int]:
        """The four stamps."""
        while True:
            self._number += 1
            token = self._number.to_bytes(8, "big")
            sent_ns = time.time_ns()
            self._sock.sendto(token, (f"10.77.0.{rank + 1}", PORT))
            try:
                data, _ = self._sock.recvfrom(64)
            except TimeoutError:
                continue
            returned_ns = time.time_ns()
            if data[REPLY.size :] == token:
                return (sent_ns, *REPLY.unpack_from(data), returned_ns)

    def one(self, rank: int) -> tuple[int, float, int]:
        """(local instant, offset, half the round trip)."""
        sent, received, answered, returned = self.ask(rank)
        return (
            returned,
            ((sent - received) + (returned - answered)) / 2,
            ((returned - sent) - (answered - received)) // 2 + 1,
        )

    def regression(self) -> Line:
        """A line through many exchanges with rank 0."""
        points = []
        for _ in range(EXCHANGES):
            at_ns, offset, _ = self.one(0)
            points.append((at_ns, offset))
            time.sleep(SPACING_S)
        return Line.through(points)

    def tree_line(self, parent: int) -> Line:
        """A line to the parent's corrected clock: the middle of running bounds, point by point."""
        points = []
        for _ in range(TREE_POINTS):
            lows, highs, last = [], [], 0
            for _ in range(TREE_EXCHANGES):
                sent, received, answered, returned = self.ask(parent)
                lows.append(sent - received)
                highs.append(returned - answered)
                last = returned
            points.append((last, (max(lows) + min(highs)) / 2))
            time.sleep(SPACING_S)
        return Line.through(points)


def rank(arguments: list[str]) -> int:
    """One rank: every method in turn, what each says to a file."""
    import torch
    import torch.distributed as dist

    from rankclock import RankClock

    number, folder, rounds = int(arguments[0]), Path(arguments[1]), int(arguments[2])
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    dist.init_process_group("gloo", init_method="tcp://10.77.0.1:29500", rank=number, world_size=len(NODES))
    echo, asker = Echo(), Asker()
    threading.Thread(target=echo.serve, args=(f"10.77.0.{number + 1}",), daemon=True).start()
    with RankClock.start() as clock, (folder / f"said-{number}").open("w") as out:
        clock.wait(30.0)

        def tell(method: str, offset: float | None, bound: float | None = None) -> None:
            """What a method says of the offset right now."""
            if offset is not None:
                raw_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
                out.write(json.dumps([method, raw_ns, offset, bound]) + "\n")

        at = clock.at_raw(0)
        if number == 0 and at is not None:
            out.write(json.dumps(["anchor", -at[1]]) + "\n")
        time.sleep(5.0)
        for turn in range(rounds):
            dist.barrier()
            mine = torch.tensor([time.time_ns()])
            raw_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
            gathered = [torch.zeros_like(mine) for _ in NODES]
            dist.all_gather(gathered, mine)
            out.write(json.dumps([METHODS[0], raw_ns, int(mine) - int(gathered[0]), None]) + "\n")
            if turn % 5 == 0:
                echo.line = Line()
                dist.barrier()
                _tree(number, asker, echo, dist)
            if number != 0:
                _, offset, bound = asker.one(0)
                tell("one exchange", offset, bound)
                line = asker.regression()
                tell("regression", line.at(time.time_ns()))
                tell("tree", echo.line.at(time.time_ns()))
                said = clock.offset()
                if said.estimate_ns is not None and said.bound_ns is not None:
                    out.write(
                        json.dumps(["rank clock", said.at_raw_ns, said.estimate_ns, [said.lo_ns, said.hi_ns]]) + "\n"
                    )
            time.sleep(0.2 * random.random())
            dist.barrier()
        dist.barrier()
    dist.destroy_process_group()
    return 0


def _tree(number: int, asker: Asker, echo: Echo, dist: Any) -> None:
    """Rank 2 learns from 0, then 1 from 0 and 3 from 2, each from a clock that is corrected already."""
    for step in (2, 1):
        if number % (2 * step) == step:
            echo.line = asker.tree_line(number - step)
        dist.barrier()


def measure(rounds: int) -> dict[str, Any]:
    """Run; the figures of each method."""
    chance = random.Random(1201)
    with tempfile.TemporaryDirectory() as name, Lab.up(scenario()) as lab, wandering(lab, chance):
        command = [sys.executable, "-m", "benchmarks.clock_methods", "rank"]
        ranks = [
            lab.spawn(
                node,
                [*command, str(number), name, str(rounds)],
                env={"RANKCLOCK_CLOCK_ID": node, "OMP_NUM_THREADS": "1"},
                cwd=str(ROOT),
            )
            for number, node in enumerate(NODES)
        ]
        for one in ranks:
            if one.wait(300) != 0:
                raise SystemExit(f"a rank failed: {one.log_text()[-2000:]}")
        said = [
            [json.loads(line) for line in (Path(name) / f"said-{number}").read_text().splitlines()]
            for number in range(len(NODES))
        ]
        return _judge(lab, said)


def _judge(lab: Lab, said: list[list[list[Any]]]) -> dict[str, Any]:
    truth = Truth(lab, said[0])
    figures = {method: Figures() for method in METHODS}
    bounded = {"one exchange", "rank clock"}
    for number, node in enumerate(NODES):
        for line in said[number]:
            if line[0] == "anchor" or number == 0:
                continue
            method, raw_ns, offset, bound = line
            if method == "rank clock":
                figures[method].add(*bound, offset, truth.offset_ns(node, raw_ns))
                continue
            guess_ns, half_ns = round(offset), round(bound or 0)
            figures[method].add(
                guess_ns - half_ns, guess_ns + half_ns, guess_ns, lab.true_offset_ns(node, "n1", raw_ns)
            )
    result = {}
    for method, one in figures.items():
        result[method] = {**one.row(), "states_a_bound": method in bounded}
    return result


def main() -> int:
    """Run and print; 1 where a bound of the rank clock does not hold the truth."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options.rounds)
    ours = found["rank clock"]
    if options.json:
        print(json.dumps(found))
        return int(ours["held"] < ours["windows"])
    head = ["method", "error median", "error p99", "times ours", "states a bound", "it holds"]
    rows = [head]
    for method, one in found.items():
        holds = f"{one['held']}/{one['windows']}" if one["states_a_bound"] else "-"
        times = one["error_median_ns"] / max(ours["error_median_ns"], 1)
        spans = [format_span_ns(one[key]) for key in ("error_median_ns", "error_p99_ns")]
        rows.append([method, *spans, f"{times:.1f}", "yes" if one["states_a_bound"] else "no", holds])
    widths = [max(len(line[column]) for line in rows) for column in range(len(head))]
    for line in rows:
        print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())
    machine = f"{os.cpu_count()} processors, Linux {platform.release()}, Python {platform.python_version()}"
    print(f"{len(NODES)} ranks, {options.rounds} rounds, {machine}, {time.strftime('%Y-%m-%d')}")
    return int(ours["held"] < ours["windows"])


if __name__ == "__main__":
    sys.exit(rank(sys.argv[2:]) if sys.argv[1:2] == ["rank"] else main())
