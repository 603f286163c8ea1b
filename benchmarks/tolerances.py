"""Where components of a training stack break when a clock is off, measured (`python -m benchmarks.tolerances`).

Two lab nodes with virtual clocks: what n1 makes (a certificate, a token, a credential, a file, an event file, a
checkpoint) is used on n2, whose clock is put behind or ahead in steps. Prints for each component the largest offset
that worked and the smallest that failed. `--site`: a folder with PyJWT, tensorboard and transformers (pip install
--target); what is missing is said and left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks import damage
from rankclock.cluster.model import Cluster
from rankclock.lab import Lab, Scenario

S = 10**9
FINE_S = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)
SMALL_S = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0)
MUNGE_S = (0, 60, 240, 295, 299, 301, 305, 310, 330, 600)
RENDEZVOUS_S = (0.0, 8.0, 12.0, 16.0, 20.0)
ROTATION_S = (0, 300, 590, 598, 602, 610, 900)
MUNGED = ["--key-file=/tmp/m.key", "--socket=/tmp/m.sock", "--pid-file=/tmp/m.pid", "--log-file=/tmp/m.log"]


@dataclass(frozen=True)
class Measured:
    """Offsets of n2 against n1 in seconds: the largest that worked and the smallest that failed, None for none."""

    component: str
    direction: str
    worked_s: float | None
    failed_s: float | None
    note: str = ""


class Bench:
    """Two nodes, one of them with a clock that is put where a trial wants it."""

    def __init__(self, site: str | None) -> None:
        nodes = [
            {"name": f"n{i}", "nics": [{"name": "eth0", "address": f"10.77.0.{i}/16", "segment": "lan"}]}
            for i in (1, 2)
        ]
        cluster = Cluster.model_validate({"schema": "rankclock-cluster/1", "name": "bench", "nodes": nodes})
        self.lab = Lab.up(Scenario.of(cluster))
        self.site = site

    def on(self, node: str, *argv: str, text: str | bytes | None = None) -> tuple[int, str]:
        env = {"PYTHONPATH": self.site} if self.site else {}
        done = self.lab.run(node, argv, input=text, timeout_s=60, env=env)
        return done.returncode, done.stdout + done.stderr

    def python(self, node: str, code: str, *argv: str) -> tuple[int, str]:
        return self.on(node, sys.executable, "-c", code, *argv)

    def put(self, offset_s: float) -> None:
        """n2's clock at that offset from n1's."""
        self.lab.clock("n2").step_ns(round(offset_s * S) - self.lab.true_offset_ns("n2", "n1"))

    def sweep(
        self, component: str, sign: int, steps: tuple[float, ...], works: Callable[[], bool], note: str = ""
    ) -> Measured:
        """Try growing offsets until one fails. What n1 makes is made anew by each trial."""
        worked: float | None = None
        for size in steps:
            self.put(sign * size)
            if not works():
                return Measured(component, "behind" if sign < 0 else "ahead", worked, size, note)
            worked = size
        return Measured(component, "behind" if sign < 0 else "ahead", worked, None, note)


def tls(bench: Bench) -> list[Measured]:
    def works() -> bool:
        make = [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "1",
        ]
        code, said = bench.on("n1", *make, "-subj", "/CN=n1", "-keyout", "/tmp/k.pem", "-out", "/dev/stdout")
        assert code == 0, said
        bench.lab.install("n2", {"/tmp/c.pem": said[said.index("-----BEGIN CERT") :].encode()})
        return bench.on("n2", "openssl", "verify", "-CAfile", "/tmp/c.pem", "/tmp/c.pem")[0] == 0

    return [bench.sweep("TLS certificate just issued (OpenSSL)", -1, SMALL_S, works)]


def token(bench: Bench) -> list[Measured]:
    make = "import jwt, time; print(jwt.encode({'iat': int(time.time()), 'nbf': int(time.time())}, 'k' * 32, 'HS256'))"
    read = "import jwt, sys; jwt.decode(sys.argv[1], 'k' * 32, ['HS256'])"
    if bench.python("n1", "import jwt")[0]:
        return [Measured("JWT (PyJWT)", "behind", None, None, "PyJWT is not there")]

    def works() -> bool:
        code, said = bench.python("n1", make)
        assert code == 0, said
        return bench.python("n2", read, said.strip())[0] == 0

    return [bench.sweep("JWT (PyJWT, no leeway)", -1, SMALL_S, works)]


def make_builds(bench: Bench) -> list[Measured]:
    """A file that n1 wrote on a shared file system, whose time n2's make compares with n2's clock."""

    def works() -> bool:
        _, stamp = bench.python("n1", "import time; print(time.time_ns())")
        bench.lab.install("n2", {"/tmp/Makefile": b"all: in\n\t@true\n", "/tmp/in": b"x\n"})
        bench.python("n2", "import os, sys; os.utime('/tmp/in', ns=(int(sys.argv[1]),) * 2)", stamp.strip())
        return "in the future" not in bench.on("n2", "make", "-C", "/tmp", "-f", "/tmp/Makefile")[1]

    return [bench.sweep("GNU make on a shared file", -1, FINE_S, works, "built some 0.1 s after it was written")]


def munge(bench: Bench) -> list[Measured]:
    key = bytes(range(256)) * 4
    for node in ("n1", "n2"):
        bench.lab.install(node, {"/tmp/m.key": key}, mode=0o600)
        bench.put(0)
        bench.lab.spawn(node, ["/usr/sbin/munged", "--foreground", "--force", *MUNGED, "--seed-file=/tmp/m.seed"])
    time.sleep(1.5)
    if bench.on("n1", "munge", "-n", "-S", "/tmp/m.sock")[0]:
        return [Measured("munge", "behind", None, None, "munged does not run here")]

    def works() -> bool:
        code, credential = bench.on("n1", "munge", "-n", "-S", "/tmp/m.sock")
        assert code == 0, credential
        return bench.on("n2", "unmunge", "-S", "/tmp/m.sock", text=credential)[0] == 0

    steps = tuple(float(size) for size in MUNGE_S)
    return [
        bench.sweep("munge, decoder ahead ('Expired')", +1, steps, works),
        bench.sweep("munge, decoder behind ('Rewound')", -1, steps, works),
    ]


def tensorboard(bench: Bench) -> list[Measured]:
    """n2 restarts a writer in n1's folder: does a reader that follows the folder go on to n2's file?"""
    if bench.python("n1", "import tensorboard")[0]:
        return [Measured("TensorBoard", "behind", None, None, "tensorboard is not there")]
    code = (
        "import sys, tempfile, os\n"
        "from tensorboard.backend.event_processing import directory_watcher, io_wrapper\n"
        "folder = tempfile.mkdtemp()\n"
        "class Loader:\n"
        " def __init__(self, path): self.path = path; self.done = False\n"
        " def Load(self):\n"
        "  if not self.done: self.done = True; yield self.path\n"
        "def write(at): open(os.path.join(folder, 'events.out.tfevents.%010d.host' % at), 'w').close()\n"
        "watcher = directory_watcher.DirectoryWatcher(folder, Loader, io_wrapper.IsTensorFlowEventsFile)\n"
        "write(int(sys.argv[1])); seen = list(watcher.Load())\n"
        "write(int(sys.argv[2])); seen += list(watcher.Load())\n"
        "sys.exit(0 if len(seen) == 2 else 1)\n"
    )
    clock = "import time; print(int(time.time()))"

    def works() -> bool:
        first = bench.python("n1", clock)[1].strip()
        time.sleep(1.1)  # a restart takes longer than the second that the name resolves
        second = bench.python("n2", clock)[1].strip()
        return bench.python("n1", code, first, second)[0] == 0

    note = "restarted 1.1 s later; the offset eats that up"
    return [bench.sweep("TensorBoard, restarted writer", -1, SMALL_S, works, note)]


def rotation(bench: Bench) -> list[Measured]:
    """Checkpoints 600 s apart, save_total_limit 1; the newest is saved by n2: which does the Trainer delete?"""
    code = (
        "import sys, os, tempfile\n"
        "from transformers import trainer_utils\n"
        "folder = tempfile.mkdtemp(); now = 1_700_000_000\n"
        "for step, at in ((100, now), (200, now + 600 + float(sys.argv[1]))):\n"
        " path = os.path.join(folder, f'checkpoint-{step}'); os.mkdir(path); os.utime(path, (at, at))\n"
        "ordered = trainer_utils.sort_checkpoints(folder, use_mtime=True)\n"
        "sys.exit(0 if str(ordered[-1]).endswith('-200') else 1)\n"
    )
    if bench.python("n1", "from transformers import trainer_utils; trainer_utils.sort_checkpoints")[0]:
        return [Measured("HF Trainer's rotation", "behind", None, None, "transformers (5) is not there")]
    worked: float | None = None
    for size in ROTATION_S:
        if bench.python("n1", code, str(-size))[0]:
            return [Measured("HF Trainer's rotation, limit 1, 600 s", "behind", worked, float(size))]
        worked = float(size)
    return [Measured("HF Trainer's rotation, limit 1, 600 s", "behind", worked, None)]


def rendezvous(_bench: Bench) -> list[Measured]:
    """Two torchrun agents, c10d; the second host behind: do both train in one world? Each trial has its own lab."""
    if importlib.util.find_spec("torch") is None:
        return [Measured("torchrun c10d rendezvous", "behind", None, None, "torch is not there")]
    worked: float | None = None
    for size in RENDEZVOUS_S:
        with tempfile.TemporaryDirectory() as folder, Lab.up(damage.scenario(round(-size * S))) as lab:
            agents = damage.start_job(lab, preflight=False, folder=Path(folder))
        if not any("TRAINED with WORLD_SIZE 2" in agent.text for agent in agents):
            alone = "the first trains alone and exits 0" if agents[0].trained_alone else "does not start"
            return [Measured("torchrun c10d rendezvous", "behind", worked, size, alone)]
        worked = size
    return [Measured("torchrun c10d rendezvous", "behind", worked, None)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--site", type=Path, help="folder with PyJWT, tensorboard, transformers")
    arguments = parser.parse_args()
    print(f"{'component':44} {'clock':8} {'worked up to':>14} {'failed from':>14}  note")
    for trial in (tls, token, make_builds, munge, tensorboard, rotation, rendezvous):
        bench = Bench(str(arguments.site) if arguments.site else None)
        try:
            found = trial(bench)
        finally:
            bench.lab.down()
        for one in found:
            worked = "-" if one.worked_s is None else f"{one.worked_s:g} s"
            failed = "-" if one.failed_s is None else f"{one.failed_s:g} s"
            print(f"{one.component:44} {one.direction:8} {worked:>14} {failed:>14}  {one.note}", flush=True)


if __name__ == "__main__":
    main()
