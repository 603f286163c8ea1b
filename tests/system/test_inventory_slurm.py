"""A real Slurm controller is asked by the real scontrol, and what is written can be planned."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankclock.cluster import load_cluster
from rankclock.planning import make_plan

pytestmark = pytest.mark.slow

CONF = """\
ClusterName=train
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
TopologyPlugin=topology/tree
GresTypes=gpu
MpiDefault=none
NodeName=gpu[01-08] NodeAddr=10.20.0.[1-8] CPUs=8 RealMemory=2000 Gres=gpu:8 State=UNKNOWN
NodeName=later[1-2] CPUs=8 RealMemory=2000 State=FUTURE
PartitionName=train Nodes=gpu[01-08] Default=YES State=UP
"""
TOPOLOGY = "SwitchName=leaf1 Nodes=gpu[01-04]\nSwitchName=leaf2 Nodes=gpu[05-08]\nSwitchName=s Switches=leaf[1-2]\n"


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment in which scontrol reaches a controller of ours. Skipped where Slurm is not installed."""
    where = f"{os.environ.get('PATH', '')}:/usr/sbin"
    programs = {name: shutil.which(name, path=where) for name in ("munged", "slurmctld", "scontrol")}
    if None in programs.values() or os.getuid() != 0:
        pytest.skip("needs root and Debian's slurm-wlm")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    key = tmp_path / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    (tmp_path / "state").mkdir()
    (tmp_path / "slurm.conf").write_text(CONF.format(port=port, folder=tmp_path))
    (tmp_path / "topology.conf").write_text(TOPOLOGY)
    (tmp_path / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    environment = os.environ | {"SLURM_CONF": str(tmp_path / "slurm.conf")}
    files = ("key-file=munge.key", "socket=munge.sock", "pid-file=munged.pid", "log-file=munged.log", "seed-file=seed")
    munge = [f"--{word.replace('=', f'={tmp_path}/')}" for word in files]
    started = [
        subprocess.Popen([str(programs["munged"]), "--foreground", "--force", *munge]),
        subprocess.Popen([str(programs["slurmctld"]), "-D"], env=environment, stderr=subprocess.DEVNULL),
    ]
    try:
        for _ in range(120):
            done = subprocess.run(["scontrol", "ping"], env=environment, capture_output=True, text=True, check=False)
            if "UP" in done.stdout:
                break
            time.sleep(0.25)
        yield environment
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait(timeout=20)


def test_a_running_controller_gives_a_cluster_file(controller: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    argv = [sys.executable, "-m", "rankclock", "inventory", "slurm", "--nic", "eth0", "-o", str(path)]
    done = subprocess.run(argv, env=controller, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    cluster = load_cluster(path)
    assert [node.name for node in cluster.nodes] == [f"gpu{i:02}" for i in range(1, 9)]
    assert {node.rack for node in cluster.nodes} == {"leaf1", "leaf2"}
    assert make_plan(cluster).usable
