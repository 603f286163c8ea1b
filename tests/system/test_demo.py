"""The main job as a stranger runs it, and what remains when it is ended at any point: nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rankclock.demo.main import why_no_lab

DEMO = [sys.executable, "-m", "rankclock", "demo", "-o"]
TAG = "RANKCLOCK_TEST_DEMO"
NO_SYS_TIME = ["setpriv", "--bounding-set=-sys_time", "--inh-caps=-sys_time"]


@pytest.fixture(autouse=True)
def a_lab_can_run() -> None:
    why = why_no_lab()
    if why is not None:
        pytest.skip(why)


IMPAIRED = """links:
  - {node: gpu3, nic: eth0, delay_ns: 1000000, asymmetry_ns: 2000000}
  - {node: gpu4, nic: eth0, delay_ns: 20000, loss: 0.3}
  - {node: leaf2, nic: eth0, delay_ns: 50000, jitter_ns: 30000}
"""


def in_lab_processes(out: Path) -> set[str]:
    """Processes of the lab of one demo: whatever it starts inherits TAG."""
    mark = f"{TAG}={out}".encode()
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            if mark in environment.split(b"\0") and b"RANKCLOCK_LAB_NODE=" in environment:
                found.add(entry.name)
    return found


@pytest.mark.lab
@pytest.mark.timeout(240)
def test_the_demo_runs_from_scenario_to_report_and_every_bound_contains_the_truth(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    done = subprocess.run([*NO_SYS_TIME, *DEMO, str(out)], capture_output=True, text=True, timeout=230, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    record = json.loads((out / "record.json").read_text(encoding="utf-8"))
    assert {check["name"]: check["passed"] for check in record["checks"] if not check["passed"]} == {}
    assert [plan["protocol"] for plan in record["plans"]] == ["ntp", "ptp-hardware"]
    assert record["takeover"]["new"] == "time2"
    assert {standing["state"]["state"] for plan in record["plans"] for standing in plan["standings"]} == {
        "synchronised"
    }
    assert (out / "ptp/MANIFEST.json").exists()
    assert 100_000 < (out / "report.html").stat().st_size < 8_000_000


def interrupted(tmp_path: Path, *, after_s: float, number: int) -> None:
    """Ends a demo some seconds after its first word and looks for what it left."""
    out = tmp_path / f"demo-{after_s}"
    process = subprocess.Popen(
        [*NO_SYS_TIME, *DEMO, str(out)],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=os.environ | {TAG: str(out)},
    )  # fmt: skip
    try:
        assert process.stderr is not None
        first = process.stderr.readline()
        deadline = time.monotonic() + after_s
        lab_seen = False
        while time.monotonic() < deadline:
            lab_seen = lab_seen or bool(in_lab_processes(out))
            time.sleep(0.05)
        process.send_signal(number)
        _, said = process.communicate(timeout=30)
    finally:
        process.kill()
    assert lab_seen or after_s < 3
    assert process.returncode in (130, -number), first + said
    deadline = time.monotonic() + 5
    while in_lab_processes(out) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert in_lab_processes(out) == set()
    if number != signal.SIGKILL:
        assert list(tmp_path.iterdir()) == []
        assert said.splitlines()[-1] == "rankclock: interrupted"
        assert "Traceback" not in said


@pytest.mark.lab
@pytest.mark.parametrize(("after_s", "number"), [(3.0, signal.SIGINT), (8.0, signal.SIGTERM), (6.0, signal.SIGKILL)])
def test_a_demo_that_is_ended_leaves_nothing_behind(tmp_path: Path, after_s: float, number: int) -> None:
    interrupted(tmp_path, after_s=after_s, number=number)


@pytest.mark.lab
@pytest.mark.slow
@pytest.mark.parametrize("after_s", [0.05, 0.3, 0.7, 1.5, 4.2, 11.0, 19.0, 27.0, 45.0, 62.0])
def test_a_demo_that_is_interrupted_at_any_point_leaves_nothing_behind(tmp_path: Path, after_s: float) -> None:
    interrupted(tmp_path, after_s=after_s, number=signal.SIGINT)


@pytest.mark.lab
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_on_impaired_paths_checks_fail_by_name_and_every_bound_still_contains_the_truth(tmp_path: Path) -> None:
    scenario = tmp_path / "impaired.yaml"
    scenario.write_text(Path("examples/lab.yaml").read_text(encoding="utf-8").replace("links: []\n", IMPAIRED))
    out = tmp_path / "demo"
    done = subprocess.run(
        [*NO_SYS_TIME, *DEMO[:-1], str(scenario), "-o", str(out)],
        capture_output=True, text=True, timeout=580, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout[-3000:] + done.stderr[-3000:]
    passed = {check["name"]: check["passed"] for check in json.loads((out / "record.json").read_text())["checks"]}
    assert passed["every measured bound contains the truth"]
    assert "verify: NTP (CANNOT BE TOLD at 1 ms" in done.stdout + done.stderr


def test_an_interrupt_while_the_program_is_still_loading_is_one_line() -> None:
    code = (
        "import sys\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'rankclock.cli.main': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "from rankclock.__main__ import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "rankclock: interrupted\n")


@pytest.mark.timeout(240)
def test_without_the_daemons_ranks_on_loopback_still_run_and_what_was_left_out_is_said(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    code = (
        "import sys\n"
        "import rankclock.demo.main as m\n"
        "from rankclock.errors import HostError\n"
        "def none(name): raise HostError(f'{name} not found')\n"
        "m.find_daemon = none\n"
        "from rankclock.cli.main import run\n"
        "sys.argv = ['rankclock', 'demo', '-o', sys.argv[1]]\n"
        "run()\n"
    )
    done = subprocess.run(
        [*NO_SYS_TIME, sys.executable, "-c", code, str(out)],
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 3, done.stdout[-2000:] + done.stderr[-2000:]
    record = json.loads((out / "record.json").read_text(encoding="utf-8"))
    assert all(check["passed"] for check in record["checks"])
    assert "chronyd not found" in record["left_out"][0]["why"]
    assert (out / "report.html").exists()
