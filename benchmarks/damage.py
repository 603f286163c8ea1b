"""Damage by clocks in real stacks, without rankclock and with it: `python -m benchmarks.damage`.

World split: two torchrun agents (c10d rendezvous) on two lab nodes, the second clock 20 s behind. Alone, the first
agent starts a world of one that trains and exits 0; with `rankclock preflight &&` before it nothing starts.
Rotation: transformers' Trainer resumes beside checkpoints whose mtimes lie in the future (a clock was set back, or
another host wrote them); it deletes what it has just saved, and does not with the callback's guard.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rankclock.cluster.model import Cluster
from rankclock.lab import Lab, Scenario

BEHIND_NS = -20_000_000_000
ADDRESS = "10.77.0.{}"

TRAIN = """
import os, time
from datetime import timedelta
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=timedelta(seconds=30))
for _ in range(10):
    value = torch.ones(1)
    dist.all_reduce(value)
    time.sleep(0.2)
if dist.get_rank() == 0:
    print("TRAINED with WORLD_SIZE", int(value.item()), flush=True)
"""


@dataclass(frozen=True, slots=True)
class Agent:
    """One torchrun agent: what it exited with and said."""

    code: int
    text: str

    @property
    def trained_alone(self) -> bool:
        """It went through its training with nobody else."""
        return "TRAINED with WORLD_SIZE 1" in self.text


def scenario(behind_ns: int) -> Scenario:
    """Two nodes on one segment."""
    nodes = [
        {"name": f"n{i}", "nics": [{"name": "eth0", "address": f"{ADDRESS.format(i)}/24", "segment": "lan"}]}
        for i in (1, 2)
    ]
    cluster = Cluster.model_validate({"schema": "rankclock-cluster/1", "name": "damage", "nodes": nodes})
    return Scenario.of(cluster, clocks={"n2": {"offset_ns": behind_ns}})


def start_job(lab: Lab, *, preflight: bool, folder: Path) -> list[Agent]:
    """Both agents, as a person would start them: the second host three seconds later."""
    script = folder / "train.py"
    script.write_text(TRAIN, encoding="utf-8")
    endpoint, meeting = f"{ADDRESS.format(1)}:29500", f"{ADDRESS.format(1)}:29333"
    torchrun = (
        f"{sys.executable} -m torch.distributed.run --nnodes 2 --nproc-per-node 1 --max-restarts 0 "
        f"--rdzv-backend c10d --rdzv-endpoint {endpoint} --rdzv-id job --rdzv-conf join_timeout=45 "
        f"--local-addr $ADDRESS {script}"
    )
    check = f"{sys.executable} -m rankclock preflight --rendezvous {meeting} --hosts 2 --timeout 30 && "
    line = (check if preflight else "") + torchrun
    name = "checked" if preflight else "alone"
    processes = []
    for number in (1, 2):
        delay = "" if preflight or number == 1 else "sleep 3; "
        environment = {"ADDRESS": ADDRESS.format(number), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0"}
        processes.append(
            lab.spawn(f"n{number}", ["sh", "-c", delay + line], log=folder / f"{name}-n{number}.log", env=environment)
        )
    return [Agent(process.wait(150), process.log_text()) for process in processes]


ROTATION = """
import json, os, shutil, sys, time
from pathlib import Path
import torch
from transformers import Trainer, TrainingArguments
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__(); self.layer = torch.nn.Linear(4, 1)
    def forward(self, x): return {"loss": self.layer(x).square().mean()}
def run(out, steps, resume, callbacks):
    options = TrainingArguments(output_dir=out, max_steps=steps, save_steps=10, save_total_limit=2, report_to=[],
        per_device_train_batch_size=2, use_cpu=True, disable_tqdm=True, logging_steps=1000, save_only_model=False)
    data = [{"x": torch.ones(4)} for _ in range(8)]
    Trainer(model=Model(), args=options, train_dataset=data, callbacks=callbacks).train(resume_from_checkpoint=resume)
def left(out): return sorted(int(path.name.split("-")[1]) for path in Path(out).glob("checkpoint-*"))
first = sys.argv[1] + "/first"
run(first, 20, None, [])
answer = {"saved": left(first)}
for name in ("without", "with"):
    out = sys.argv[1] + "/" + name
    shutil.copytree(first, out)
    for step in (10, 20):
        later = time.time() + 3600 + step
        os.utime(f"{out}/checkpoint-{step}", (later, later))
    callbacks = []
    if name == "with":
        from rankclock.training.hugging_face import RankClockCallback
        callbacks = [RankClockCallback()]
    run(out, 40, True, callbacks)
    answer[name] = left(out)
print("ROTATION " + json.dumps(answer))
"""


def rotate(folder: Path) -> dict[str, list[int]]:
    """Steps of the checkpoints: saved first, and left after a resumed run to step 40 without and with the guard."""
    done = subprocess.run(
        [sys.executable, "-c", ROTATION, str(folder)],
        capture_output=True, text=True, timeout=180, check=False, env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    line = next((one for one in done.stdout.splitlines() if one.startswith("ROTATION ")), None)
    if line is None:
        raise RuntimeError(done.stderr[-2000:])
    found: dict[str, list[int]] = json.loads(line.removeprefix("ROTATION "))
    return found


def main() -> int:
    """Prints the table; 0 where the damage happened without and not with rankclock."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with Lab.up(scenario(BEHIND_NS)) as lab:
            alone = start_job(lab, preflight=False, folder=folder)
            checked = start_job(lab, preflight=True, folder=folder)
        rotated = rotate(folder)
    print(f"{'what':44} {'without rankclock':34} with it")
    split = f"trained alone, exit {alone[0].code}" if alone[0].trained_alone else f"exit {alone[0].code}"
    refused = f"refused on both hosts, exit {checked[0].code} and {checked[1].code}"
    print(f"{'torchrun, second host 20 s behind':44} {split:34} {refused}")
    print(f"{'checkpoints left of 10, 20, 30, 40 (limit 2)':44} {rotated['without']!s:34} {rotated['with']}")
    print("\n".join(line for line in checked[0].text.splitlines() if "REFUSED" in line or "refused" in line))
    good = alone[0].trained_alone and alone[0].code == 0 and not any("TRAINED" in agent.text for agent in checked)
    return 0 if good and rotated["with"] == [30, 40] and rotated["without"] != [30, 40] else 1


if __name__ == "__main__":
    sys.exit(main())
