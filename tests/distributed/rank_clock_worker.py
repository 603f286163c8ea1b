"""One rank of a test: holds a RankClock and does what it is told, one JSON answer a line."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from typing import Any

from rankclock import RankClock


class Messages(logging.Handler):
    """What the clock said."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


def snapshot(clock: RankClock) -> dict[str, Any]:
    """Everything one can ask, and the clocks beside it."""
    raw_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
    now_ns, window = clock.now_ns(), clock.window()
    after_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
    stamp_ns = time.time_ns()
    return {
        "raw_ns": [raw_ns, after_ns],
        "now_ns": now_ns,
        "window": window,
        "offset": clock.offset().to_json(),
        "stamp": [stamp_ns, clock.to_cluster_ns(stamp_ns), clock.offset_at(stamp_ns).to_json()],
        "rank": clock.rank,
        "node": clock.node,
        "reference": clock.reference,
        "lines": len(clock.history()),
    }


def in_a_fork(clock: RankClock) -> dict[str, Any]:
    """The same, asked in a child process, as a data loader's worker would."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        time.sleep(0.2)
        os.write(write, json.dumps(snapshot(clock)).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    result: dict[str, Any] = json.loads(text)
    return result


def prober_pid(clock: RankClock) -> int | None:
    member = clock._member
    return None if member is None or member.prober is None else member.prober.pid


def main() -> None:
    options = json.loads(sys.argv[1])
    messages = Messages()
    logging.getLogger("rankclock").addHandler(messages)
    began = time.perf_counter()
    if "torch_store" in options:
        import torch.distributed as dist

        store = options.pop("torch_store")
        rank, world_size = options.pop("rank"), options.pop("world_size")
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world_size)
    with RankClock.start(**options) as clock:
        print(json.dumps({"started_s": time.perf_counter() - began}), flush=True)
        for line in sys.stdin:
            match line.strip():
                case "wait":
                    answer: Any = clock.wait(20.0)
                case "snapshot":
                    answer = snapshot(clock)
                case "fork":
                    answer = in_a_fork(clock)
                case "said":
                    answer = messages.said
                case "prober":
                    answer = prober_pid(clock)
                case "why":
                    answer = clock.why_unknown
                case _:
                    break
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
