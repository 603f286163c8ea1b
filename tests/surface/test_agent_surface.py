"""What people and programs rely on of the agent: its reference pages, unit, files, commands on bad input."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rankclock.agent.config import parse_settings
from rankclock.agent.dashboards import DASHBOARDS, dashboard_json
from rankclock.agent.metrics import METRICS

ROOT = Path(__file__).resolve().parents[2]


def rankclock(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rankclock", *arguments],
        input=stdin, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_the_pages_of_metrics_and_alerts_are_those_that_the_tables_give() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/agent_reference.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_metrics_have_base_units_and_counters_end_in_total() -> None:
    for spec in METRICS:
        assert spec.name.endswith("_total") == (spec.kind == "counter"), spec.name
        assert not re.search(r"_(ns|us|ms|ppb|ppm|milliseconds|percent)$", spec.name), spec.name
        assert spec.help.endswith(".") or spec.help.endswith(")."), spec.name
    assert len({spec.name for spec in METRICS}) == len(METRICS)


def test_the_configuration_that_the_guide_shows_is_one(tmp_path: Path) -> None:
    page = (ROOT / "docs/how-to/watch-a-cluster.md").read_text(encoding="utf-8")
    shown = re.findall(r"^```yaml\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)[0]
    key = tmp_path / "key"
    key.write_bytes(b"k" * 32)
    key.chmod(0o600)
    settings = parse_settings(shown.replace("/etc/rankclock/probe.key", str(key)), "guide")
    assert settings.probe is not None
    assert settings.probe.reference == "time1"


@pytest.mark.parametrize("name", sorted(DASHBOARDS))
def test_a_dashboard_has_the_form_that_grafana_imports(name: str) -> None:
    value = json.loads(dashboard_json(name))
    assert value["uid"] == name
    assert len({panel["id"] for panel in value["panels"]}) == len(value["panels"])
    taken: set[tuple[int, int]] = set()
    for panel in value["panels"]:
        assert panel["targets"], panel["title"]
        assert panel["description"], panel["title"]
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not taken & cells, f"{panel['title']} covers another"
        taken |= cells
    used = set(re.findall(r"\$(\w+)", " ".join(t["expr"] for p in value["panels"] for t in p["targets"])))
    assert used <= {variable["name"] for variable in value["templating"]["list"]}


def test_the_unit_is_one_that_systemd_takes_and_is_shut_in(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze: apt-get install systemd")
    done = rankclock("agent", "files", "-o", str(tmp_path))
    assert done.returncode == 0, done.stderr
    unit = tmp_path / "systemd/rankclock-agent.service"
    text = unit.read_text(encoding="utf-8").replace("/usr/bin/rankclock", "/bin/true")
    unit.write_text(text, encoding="utf-8")
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False, timeout=60
    )
    assert (verified.returncode, verified.stderr) == (0, "")
    judged = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", str(unit)], capture_output=True, text=True, check=False
    )
    found = re.search(r"exposure level for .*: ([0-9.]+)", judged.stdout)
    assert found is not None, judged.stdout + judged.stderr
    assert float(found[1]) <= 2.5


def test_files_for_a_cluster_can_be_written_again(tmp_path: Path) -> None:
    arguments = ("agent", "files", "-o", str(tmp_path), "--cluster", str(ROOT / "examples/qlora-ptp-32.yaml"), "--json")
    first, second = rankclock(*arguments), rankclock(*arguments)
    assert first.returncode == second.returncode == 0
    assert json.loads(first.stdout) == json.loads(second.stdout)
    targets = json.loads((tmp_path / "prometheus/targets.json").read_text(encoding="utf-8"))
    assert {target["labels"].get("rack") for target in targets} > {"rack1", "rack4"}


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("agent", "--config", "missing.yaml"), 2, "missing.yaml: cannot read this agent configuration"),
        (("agent", "check", "missing.yaml"), 2, "missing.yaml: cannot read"),
        (("agent", "files", "-o", "/proc/new"), 2, "/proc/new: cannot write there"),
        (("agent", "password", "a:b"), 2, "a user name has no colon"),
        (("agent", "password", "ann"), 2, "the password of ann is empty"),
        (("watch", "--agents", "a b"), 2, "--agents: "),
        (("watch", "--agents", "x", "--every", "0"), 2, "--every is 0.1 to 3600"),
        (("serve", "--agents", "x", "--listen", "0.0.0.0:80"), 2, "listen on loopback"),
        (("serve", "--agents", "x", "--listen", "soon"), 2, "--listen is ADDRESS:PORT"),
        (("status", "--agents", "x", "--lab", "y"), 2, "not both"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_input_is_one_line(arguments: tuple[str, ...], code: int, said: str) -> None:
    done = rankclock(*arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1), done.stderr
    assert said in done.stderr


@pytest.mark.parametrize("arguments", [("--agent", "127.0.0.1:1"), ("--critical", "soon"), ("--agent", "a,b")])
def test_check_says_unknown_as_plugins_do_when_it_cannot_tell(arguments: tuple[str, ...]) -> None:
    done = rankclock("check", *arguments)
    assert (done.returncode, done.stderr) == (3, "")
    assert done.stdout.startswith("CLOCK UNKNOWN - ")
    assert done.stdout.count("\n") == 1


def test_check_has_json_and_never_another_exit_code() -> None:
    done = rankclock("check", "--json")
    value = json.loads(done.stdout)
    assert value["exit_code"] == done.returncode
    assert done.returncode in (0, 1, 2, 3)
    assert value["status"]["schema"] == "rankclock-status/1"


def test_a_password_line_lets_its_user_in() -> None:
    done = rankclock("agent", "password", "ann", stdin="secret\n")
    assert re.fullmatch(r"ann:scrypt\$[0-9a-f]{32}\$[0-9a-f]{64}\n", done.stdout), done.stderr


def test_the_agents_process_loads_neither_numpy_nor_what_reads_yaml() -> None:
    code = "import rankclock.agent.__main__, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & {"numpy", "scipy", "pydantic", "ruamel.yaml", "typer", "rich", "torch", "plotly", "starlette"}
