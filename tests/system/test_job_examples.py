"""examples/slurm and examples/kubernetes: what they run is accepted, and the prolog drains only the odd node."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from rankclock.lab import Lab, Scenario

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.lab
def test_the_prolog_fails_on_the_odd_node_alone(
    lab_of: Callable[[Scenario], Lab], flat: Callable[..., Scenario], tmp_path: Path
) -> None:
    lab = lab_of(flat(3, clocks={"n2": {"offset_ns": -20 * 10**9}}))
    rankclock = tmp_path / "rankclock"
    rankclock.write_text(f'#!/bin/sh\nexec {sys.executable} -m rankclock "$@"\n', encoding="utf-8")
    rankclock.chmod(0o755)
    processes = []
    for number in (1, 2, 3):
        environment = {
            "PATH": f"{tmp_path}:{Path(sys.executable).parent}:/usr/bin:/bin",
            "SLURM_JOB_NODELIST": "10.77.0.[1-3]",
            "SLURM_JOB_NUM_NODES": "3",
            "SLURM_JOB_ID": "77",
            "SLURMD_NODENAME": f"10.77.0.{number}",
        }
        argv = ["sh", str(EXAMPLES / "slurm/prolog.sh")]
        processes.append(lab.spawn(f"n{number}", argv, log=tmp_path / f"n{number}.log", env=environment))
    assert [process.wait(60) for process in processes] == [0, 1, 0], [one.log_text() for one in processes]
    assert "the clock of n2 is off" in processes[1].log_text()


@pytest.mark.parametrize(
    "variables", [{}, {"SLURM_JOB_NODELIST": "gpu1", "SLURM_JOB_NUM_NODES": "1"}, {"SLURM_JOB_NODELIST": "gpu1"}]
)
def test_the_prolog_of_a_job_of_one_node_does_nothing(variables: dict[str, str]) -> None:
    done = subprocess.run(
        ["sh", str(EXAMPLES / "slurm/prolog.sh")], env=variables, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_kubernetes_example_is_yaml_and_its_command_is_one_of_ours() -> None:
    service, job = YAML(typ="safe").load_all((EXAMPLES / "kubernetes/preflight.yaml").read_text(encoding="utf-8"))
    assert (service["kind"], job["kind"]) == ("Service", "Job")
    (init,) = job["spec"]["template"]["spec"]["initContainers"]
    assert init["command"][:2] == ["rankclock", "preflight"]
    options = [word for word in init["command"] if word.startswith("--")]
    said = subprocess.run(
        [sys.executable, "-m", "rankclock", "preflight", "--help"], capture_output=True, text=True, check=True
    )
    assert all(option in said.stdout for option in options)


def test_the_scripts_are_shell() -> None:
    for path in ("slurm/prolog.sh", "slurm/job.sbatch"):
        subprocess.run(["bash", "-n", str(EXAMPLES / path)], check=True)
