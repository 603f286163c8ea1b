"""assess, plan and render as a person runs them: exit codes, one line for each fault, nothing half done."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest

from rankclock.cli import main

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


def run(*words: str, cwd: Path = ROOT, env: dict[str, str] | None = None) -> Done:
    """The whole command, from its arguments to its exit code, in this process: a hundred starts would take a minute."""
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["rankclock", *words]),
        mock.patch.dict(os.environ, {"NO_COLOR": "1", **(env or {})}),
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as end,
    ):
        main.run()
    return Done(int(end.value.code or 0), out.getvalue(), err.getvalue())


def lab_facts(folder: Path) -> Path:
    """Facts of the lab's nodes as golden case lab-ptp has them."""
    groups = json.loads((ROOT / "tests/golden/lab-ptp/facts.json").read_text())
    folder.mkdir()
    for group in groups:
        for name in ("time1", "time2", "gpu1", "gpu2", "gpu3", "gpu4", "gpu5", "gpu6", "leaf1", "leaf2"):
            if name.startswith("leaf") == group["nodes"].startswith("leaf"):
                facts = {key: {"value": value, "why": None, "source": "x"} for key, value in group["facts"].items()}
                value = {"schema": "rankclock-facts/1", "node": name, "collected_at_ns": 0, "facts": facts}
                (folder / f"{name}.json").write_text(json.dumps(value))
    return folder


def test_the_commands_start_as_a_program() -> None:
    words = [sys.executable, "-m", "rankclock", "plan", "examples/qlora-ntp-4.yaml"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (ROOT / "tests/golden/ntp-4/expected/plan.txt").read_text(encoding="utf-8")


def test_assess_prints_every_question_and_the_choice() -> None:
    done = run("assess", "examples/qlora-ptp-32.yaml")
    assert done.returncode == 0, done.stderr
    assert "choice: ptp-hardware" in done.stdout
    assert "threshold small_cluster_nodes = 8" in done.stdout
    asked = json.loads(run("assess", "examples/lab.yaml", "--json").stdout)
    assert asked["schema"] == "rankclock-decision/1"
    assert asked["questions"][-1]["key"] == "small"


def test_plan_prints_a_tree_and_exits_by_what_it_reaches(tmp_path: Path) -> None:
    done = run("plan", "examples/qlora-ptp-32.yaml")
    assert done.returncode == 0
    assert "gpu[01-08]  ordinary clocks" in done.stdout
    unknown = run("plan", "examples/lab.yaml", "--protocol", "ptp")
    assert unknown.returncode == 1
    assert "refused: the plan" in unknown.stdout
    known = run(
        "plan", "examples/lab.yaml", "--protocol", "ptp", "--facts", str(lab_facts(tmp_path / "facts")), "--json"
    )
    assert known.returncode == 0
    assert json.loads(known.stdout)["roles"]["time2"]["role"] == "backup-grandmaster"
    tight = tmp_path / "tight.yaml"
    tight.write_text((EXAMPLES / "qlora-ptp-32.yaml").read_text().replace("accuracy: 5us", "accuracy: 1us"))
    assert run("plan", str(tight)).returncode == 4, "the bound is wider than that: it cannot be told beforehand"


def test_render_writes_the_folder_and_explains_every_line(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run("render", "examples/qlora-ntp-4.yaml", "-o", str(out))
    assert done.returncode == 0, done.stderr
    assert "8 files of 4 nodes" in done.stdout
    assert (out / "gpu3/etc/chrony/chrony.conf").is_file()
    assert "chronyd 4.3 is assumed" in done.stderr
    told = run("render", "examples/qlora-ptp-32.yaml", "--explain").stdout
    for line in (
        "masterOnly 1",
        "why: no grandmaster is on this side",
        "releases: all (from 4.0 on called serverOnly)",
    ):
        assert line in told


def test_every_option_line_is_explained_with_its_releases(tmp_path: Path) -> None:
    out = run(
        "render",
        "examples/lab.yaml",
        "--protocol",
        "ptp",
        "--facts",
        str(lab_facts(tmp_path / "f")),
        "--explain",
        "--json",
    )
    nodes = (
        json.loads(out.stdout)["nodes"]
        if out.stdout.startswith("{")
        else json.loads(out.stdout[out.stdout.index("\n{") :])["nodes"]
    )
    for node in nodes.values():
        for path, lines in node["files"].items():
            for line in lines:
                if (
                    path.endswith((".conf", "phc2sys"))
                    and "systemd" not in path
                    and line["text"]
                    and line["text"] != "[global]"
                ):
                    assert line["why"], (path, line)
                    assert line["releases"] or line["text"].startswith("["), (path, line)


@pytest.mark.parametrize("accuracy", ["100ns", "1ns"])
def test_a_plan_that_cannot_reach_the_goal_writes_nothing(tmp_path: Path, accuracy: str) -> None:
    text = (EXAMPLES / "qlora-ptp-32.yaml").read_text().replace("accuracy: 5us", f"accuracy: {accuracy}")
    (tmp_path / "c.yaml").write_text(text)
    done = run("render", "c.yaml", "-o", "out", cwd=tmp_path)
    assert done.returncode == 1
    assert "nothing was written" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["c.yaml"]


INJECTIONS = [
    ("name: gpu[1-4]", "name: 'gpu1; reboot'"),
    ("name: gpu[1-4]", "name: ../../etc"),
    ("name: gpu[1-4]", 'name: "gpu1\\nserver evil"'),
    ("name: eth0", "name: 'eth0]\\n[eth1'"),
    ("name: eth0", "name: '-o'"),
    ("name: eth0", "name: '$(reboot)'"),
    ("address: ntp1.aliyun.com", 'address: "ntp1.aliyun.com iburst\\nallow all"'),
    ("address: ntp1.aliyun.com", "address: 'ntp1.aliyun.com # x'"),
    ("address: ntp1.aliyun.com", "address: '-x'"),
    ("segment: lan", "segment: 'lan]'"),
    ("name: qlora-ntp-4", "name: '`id`'"),
]


@pytest.mark.parametrize(("old", "new"), INJECTIONS)
def test_names_that_carry_lines_flags_or_paths_are_refused_and_nothing_is_written(
    tmp_path: Path, old: str, new: str
) -> None:
    text = (EXAMPLES / "qlora-ntp-4.yaml").read_text()
    assert old in text
    (tmp_path / "c.yaml").write_text(text.replace(old, new, 1))
    done = run("render", "c.yaml", "-o", "out", cwd=tmp_path)
    assert done.returncode == 2, done.stdout
    assert done.stderr.count("\n") == 1
    assert "c.yaml:" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["c.yaml"]


def test_comments_of_the_cluster_file_never_reach_a_rendered_file(tmp_path: Path) -> None:
    text = (EXAMPLES / "qlora-ntp-4.yaml").read_text() + "# server evil.example.org\n"
    (tmp_path / "c.yaml").write_text(text)
    assert run("render", "c.yaml", "-o", "out", cwd=tmp_path).returncode == 0
    assert not any("evil" in path.read_text() for path in (tmp_path / "out").rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["plan", "nowhere.yaml"], 2, "nowhere.yaml: cannot read this cluster file: No such file"),
        (["plan", "."], 2, ".: is a folder"),
        (["plan"], 2, "Missing argument"),
        (["plan", "examples/lab.yaml", "--protocol", "gps"], 2, "expected auto, ntp, ptp"),
        (["plan", "examples/lab.yaml", "--facts", "nowhere"], 2, "nowhere: cannot read this facts file"),
        (["plan", "examples/lab.yaml", "--facts", "examples"], 2, "no facts in this folder"),
        (["plan", "examples/lab.yaml", "--facts", "README.md"], 2, "no facts"),
        (["render", "examples/lab.yaml"], 2, "nothing to do"),
        (["render", "examples/lab.yaml", "-o", "/proc/x/out"], 2, "choose another folder"),
        (["render", "examples/lab.yaml", "-o", "README.md"], 2, "no folder"),
        (["render", "examples/lab.yaml", "-o", "examples"], 2, "rankclock did not write"),
        (["assess", "examples/lab.yaml", "--wrong"], 2, "No such option"),
    ],
)
def test_wrong_use_is_one_line_on_standard_error(words: list[str], code: int, said: str) -> None:
    done = run(*words)
    assert done.returncode == code, (done.stdout, done.stderr)
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_facts_of_another_cluster_are_refused(tmp_path: Path) -> None:
    facts = lab_facts(tmp_path / "facts")
    done = run("plan", "examples/qlora-ptp-32.yaml", "--facts", str(facts))
    assert "are not used, such as gpu1" in done.stderr
    assert "refused: time1: ens1f0: no such interface among those that were seen (eth0)" in done.stdout
    assert done.returncode == 1
    done = run("plan", "examples/qlora-ntp-4.yaml", "--facts", str(facts / "leaf1.json"))
    assert done.returncode == 2
    assert "no node of" in done.stderr


@pytest.mark.parametrize("verb", ["assess", "plan", "render"])
def test_help_ends_in_an_example(verb: str) -> None:
    done = run(verb, "--help")
    assert done.returncode == 0
    assert f"Example: rankclock {verb} examples/" in done.stdout


def test_check_asks_the_daemons_and_writes_only_what_they_take(tmp_path: Path) -> None:
    done = run(
        "render", "examples/qlora-ntp-4.yaml", "--check", "-o", str(tmp_path / "out"), env={"PATH": str(tmp_path)}
    )
    if "not asked" in done.stderr:
        assert done.returncode == 3, "written, and said that nobody could be asked"
    assert (tmp_path / "out/MANIFEST.json").is_file()
    refuses = tmp_path / "bin"
    refuses.mkdir()
    (refuses / "chronyd").write_text("#!/bin/sh\necho 'Fatal error : Invalid directive at line 2' >&2\nexit 1\n")
    (refuses / "chronyd").chmod(0o755)
    done = run(
        "render",
        "examples/qlora-ntp-4.yaml",
        "--check",
        "-o",
        str(tmp_path / "new"),
        env={"RANKCLOCK_DAEMONS": str(refuses)},
    )
    assert done.returncode == 1
    assert "REJECTED" in done.stderr
    assert "Invalid directive at line 2" in done.stderr
    assert not (tmp_path / "new").exists()
