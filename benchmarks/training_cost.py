"""What the training clock costs a step: `python -m benchmarks.training_cost [STEPS]`.

Two gloo ranks train the model of examples/qlora (NF4 base, adapters, DDP). Every other step is under a TrainingClock:
its hook, its calls, its watching; the plain ones between have neither. Each is compared with the plain one before it,
and the bootstrap interval is over these pairs; plain steps against the plain ones before them show what this machine
can tell at all. The slower rank of a step counts. The clock's prober and thread run all the time, so their cost
is in both: the CPU time that they take is printed beside.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

RESAMPLES = 10_000

WORKER = """
import json, os, sys, time
from datetime import timedelta
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import finetune
from rankclock.training.torch_loop import TrainingClock
from transformers import PreTrainedTokenizerFast
torch.set_num_threads(1)
rank, base, steps = int(os.environ["RANK"]), Path(sys.argv[1]), int(sys.argv[3])
dist.init_process_group("gloo", timeout=timedelta(seconds=120))
if rank == 0: finetune.make_base(base)
dist.barrier()
model = finetune.quantised_with_adapters(base)
wrapped = DistributedDataParallel(model)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
tokenizer = PreTrainedTokenizerFast.from_pretrained(base)
tokens = tokenizer(finetune.sentences(8, seed=3), padding=True, return_tensors="pt")
batch = {"input_ids": tokens["input_ids"], "attention_mask": tokens["attention_mask"], "labels": tokens["input_ids"]}
def step(clocked):
    began = time.perf_counter_ns()
    optimizer.zero_grad()
    wrapped(**batch).loss.backward()
    if clocked: training.exchanged()
    optimizer.step()
    if clocked: training.step()
    return time.perf_counter_ns() - began
training = TrainingClock(wrapped, log_every=10, log=lambda metrics, step: None)
training.begin(); training.clock.wait(30)
for _ in range(20): step(True)
arrival = training._arrivals.pop("gradients"); others = dict(training._arrivals)
for other in others.values(): other.close()
training._arrivals.clear()
found = []
for number in range(steps):
    clocked = number % 2 == 1
    if clocked:
        arrival._watch([arrival._last]); training._arrivals["gradients"] = arrival
    else:
        arrival.close(); training._arrivals.clear()
    found.append(step(clocked))
cpu = []
member = training.clock._member
if member.prober is not None:
    fields = Path(f"/proc/{member.prober.pid}/stat").read_text().rpartition(")")[2].split()
    cpu = [(int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), sum(found) / 1e9]
print("TIMES " + json.dumps([found, cpu]), flush=True)
training.close()
dist.barrier(); dist.destroy_process_group()
"""


def measure(steps: int) -> list[list[Any]]:
    """Per rank: step times in ns, every other one clocked; where it has the prober its CPU seconds and the wall's."""
    examples = Path(__file__).parents[1] / "examples/qlora"
    with socket.socket() as one, tempfile.TemporaryDirectory() as folder:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
        one.close()
        argv = [sys.executable, "-c", WORKER, f"{folder}/base", str(examples), str(steps)]
        ranks = []
        for rank in range(2):
            env = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            env |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "LOCAL_RANK": str(rank)}
            ranks.append(subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=os.environ | env))
        texts = [process.communicate()[0] for process in ranks]
    lines = [next(line for line in text.splitlines() if line.startswith("TIMES ")) for text in texts]
    return [json.loads(line.removeprefix("TIMES ")) for line in lines]


def interval(ratios: np.ndarray) -> tuple[float, float, float]:
    """(2.5 %, median, 97.5 %) of the median ratio, by bootstrap over pairs."""
    chance = np.random.default_rng(1)
    medians = np.median(chance.choice(ratios, (RESAMPLES, len(ratios))), axis=1)
    return float(np.quantile(medians, 0.025)), float(np.median(ratios)), float(np.quantile(medians, 0.975))


def main() -> int:
    """Prints the table; 0."""
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 4000
    both = measure(steps)
    slower = np.maximum(*(np.array(times, dtype=float) for times, _ in both))
    plain, clocked = slower[0::2], slower[1::2]
    lo, middle, hi = interval(clocked / plain[: len(clocked)] - 1)
    null_lo, null, null_hi = interval(plain[1::2] / plain[0:-1:2] - 1)
    cpu_s, wall_s = next(cpu for _, cpu in both if cpu)
    print(f"steps: {slower.size}, every other one under a TrainingClock; 2 ranks, gloo, NF4 base with LoRA")
    print(f"step time, median: plain {np.median(plain) / 1e6:.2f} ms, clocked {np.median(clocked) / 1e6:.2f} ms")
    print(f"cost of a step, median:     {middle:+.2%}, 95 % interval {lo:+.2%} to {hi:+.2%}")
    print(f"plain against plain beside: {null:+.2%}, 95 % interval {null_lo:+.2%} to {null_hi:+.2%}")
    print(f"the host's prober: {cpu_s:.2f} s of CPU in {wall_s:.0f} s ({cpu_s / wall_s:.2%} of a core)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
