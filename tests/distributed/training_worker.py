"""One rank of a real gloo job that trains a small model under a TrainingClock; prints one JSON object at its end."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from rankclock.training.log_stamps import ClusterFormatter, ClusterTime
from rankclock.training.start_check import ClocksApart
from rankclock.training.torch_loop import TrainingClock


def main() -> None:
    options = json.loads(sys.argv[1])
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    said: list[str] = []
    handler = logging.StreamHandler(sys.stderr)
    handler.emit = lambda record: said.append(handler.format(record))  # type: ignore[method-assign]
    handler.setFormatter(ClusterFormatter())
    logging.getLogger().addHandler(handler)
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    logged: list[Any] = []
    settings = {"period_s": 0.5, "log_every": 5, **options.get("clock", {})}
    answer: dict[str, Any] = {"rank": rank, "stopped": None}
    try:
        with TrainingClock(model, log=lambda metrics, step: logged.append([step, metrics]), **settings) as training:
            handler.addFilter(ClusterTime(training.clock))
            answer["known"] = training.clock.wait(20)
            for number in range(options["steps"]):
                if rank == options.get("late") and number >= options.get("late_from", 0):
                    time.sleep(options["late_s"])
                optimizer.zero_grad()
                wrapped(torch.randn(8, 32)).square().sum().backward()
                training.exchanged()
                optimizer.step()
                training.step()
                time.sleep(options.get("pause_s", 0))
            logging.getLogger("job").warning("done")
            time.sleep(options.get("linger_s", 0))
            answer["offset"] = training.clock.offset().to_json()
        answer["skew"] = training.skew
        answer["verdict"] = None if training.verdict is None else training.verdict.line
    except ClocksApart as error:
        answer["stopped"] = str(error)
    print(json.dumps({**answer, "said": said, "logged": logged}), flush=True)
    if answer["stopped"] is None:
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
