"""The documentation says what the program says, and builds without a warning and without a network."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from rankclock.cli import main
from rankclock.cluster.load import load_cluster
from rankclock.errors import ExitCode
from rankclock.lab.scenario import parse_scenario
from rankclock.planning.plan import make_plan

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "README.zh-CN.md", ROOT / "CONTRIBUTING.md"]


def test_the_command_reference_is_what_the_commands_print() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/cli_reference.py", "--check"], cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_every_exit_code_stands_in_the_table_and_no_other() -> None:
    table = (ROOT / "docs/reference/exit-codes.md").read_text(encoding="utf-8")
    rows = {int(code) for code in re.findall(r"^\| (\d+) \|", table, flags=re.MULTILINE)}
    assert rows == {int(code) for code in ExitCode} | {130, 141}  # interrupted, reader gone: rankclock.cli.main


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name != "cli.md"], ids=lambda page: str(page.relative_to(ROOT))
)
def test_every_command_that_a_page_shows_exists(page: Path) -> None:
    known = {*main.VERBS, *main.GROUPS, "VERB", "WORDS", "--help", "--version"}
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    shells = [block for language, block in blocks if language != "python"]
    shown = {word for block in shells for word in re.findall(r"(?:^|[ |&;(])rankclock ([a-z-]+)", block)}
    assert shown <= known, f"{page}: {sorted(shown - known)}"


def _yaml_of(page: str) -> str:
    return re.findall(
        r"^```yaml\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )[0]


def test_the_cluster_file_that_the_documentation_shows_can_be_planned(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(_yaml_of("docs/how-to/plan-a-cluster.md"), encoding="utf-8")
    plan = make_plan(load_cluster(path))
    assert len(plan.roles) >= 18
    assert plan.refused == ()


def test_the_scenario_that_the_documentation_shows_can_be_read() -> None:
    example = (ROOT / "examples/lab.yaml").read_text(encoding="utf-8")
    cluster = re.search(r"^cluster:\n(?:[ #].*\n|\n)+", example, flags=re.MULTILINE)
    assert cluster is not None
    shown = re.sub(
        r"^cluster: \{\.\.\.\}.*\n", lambda _: cluster[0], _yaml_of("docs/how-to/use-the-lab.md"), flags=re.MULTILINE
    )
    scenario = parse_scenario(shown, name="docs/how-to/use-the-lab.md")
    assert len(scenario.events) == 2
    assert scenario.clocks["gpu2"].drift_ppb == 60_000


def test_both_readmes_have_the_same_structure_and_the_same_commands() -> None:
    english, chinese = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh-CN.md"))
    for pattern in (r"^(#+) ", r"^```(\w*)$"):
        found = [re.findall(pattern, text, flags=re.MULTILINE) for text in (english, chinese)]
        assert found[0] == found[1]
    commands = [
        re.findall(r"^(?:rankclock|make|srun|torchrun)[^#\n]*", text, flags=re.MULTILINE) for text in (english, chinese)
    ]
    assert [line.rstrip() for line in commands[0]] == [line.rstrip() for line in commands[1]]


def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="the documentation's packages are not installed: make docs installs them")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    for page in tmp_path.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r"<(?:script|img|iframe)[^>]*\ssrc=.?https?:|<link[^>]*stylesheet[^>]*https?:", text)
