"""Bad input gets one clear line, the right exit code, and leaves nothing: every command, every way to be wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FILES = {
    "twice.yaml": b"schema: rankclock-cluster/1\nname: x\nnodes:\n  - {name: a}\n  - {name: a}\n",
    "unknown.yaml": b"schema: rankclock-cluster/1\nname: x\nnodes:\n  - {name: a, colour: red}\n",
    "broken.yaml": b"a: [1,\n b: {",
    "binary.yaml": bytes(range(256)),
    "large.yaml": b"a" * 10_000_000,
}

CASES = [
    *((["plan", name], 2, f"{name}:") for name in ("missing.yaml", *FILES)),
    *(([verb, "twice.yaml"], 2, "twice.yaml:") for verb in ("assess", "status", "lab up")),
    (["demo", "twice.yaml", "-o", "new"], 2, "twice.yaml:1: a lab scenario starts with"),
    (["demo", "missing.yaml", "-o", "new"], 2, "missing.yaml: cannot read"),
    (["demo", "-o", "kept"], 2, "holds other things"),
    (["demo", "-o", "/proc/new"], 2, "cannot write there"),
    (["render", "unknown.yaml", "-o", "new"], 2, "unknown.yaml:4"),
    (["status", "--lab", "nope"], 2, "no lab named 'nope'"),
    (["status", "twice.yaml", "--lab", "nope"], 2, "not both"),
    (["lab", "shell", "gpu1", "--name", "nope"], 2, "no lab"),
    (["lab", "down", "nope"], 2, "no lab"),
    (["verify", "--threshold", "soon", "--rank", "0", "--world-size", "1"], 2, "'soon' is no span of time"),
    (["verify", "--rank", "5", "--world-size", "2", "--rendezvous", "127.0.0.1:1"], 2, "the rank is 5"),
    (["doctor", "missing.log"], 2, "missing.log"),
    (["probe", "--colour"], 2, "No such option"),
    (["no-such-verb"], 2, "No such command"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with every kind of bad file, and one that must be kept."""
    for name, data in FILES.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/work.txt").write_text("a year's work")
    return tmp_path


@pytest.mark.parametrize(("arguments", "code", "said"), CASES, ids=[" ".join(case[0]) for case in CASES])
def test_bad_input_is_one_line_with_the_right_exit_code_and_leaves_nothing(
    folder: Path, arguments: list[str], code: int, said: str
) -> None:
    before = sorted(folder.rglob("*"))
    words = [word for argument in arguments for word in (argument.split() if argument == "lab up" else [argument])]
    done = subprocess.run(
        [sys.executable, "-m", "rankclock", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "XDG_RUNTIME_DIR": str(folder)},
    )
    lines = done.stderr.splitlines()
    assert done.returncode == code, done.stderr
    assert len(lines) == 1 and lines[0].startswith("rankclock: ") and said in lines[0], done.stderr
    assert done.stdout == ""
    left = [path for path in sorted(folder.rglob("*")) if path not in before and path.name != "rankclock-labs"]
    assert left == []


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}, {"COLUMNS": "40"}])
def test_tables_read_without_colours_and_in_narrow_terminals(environment: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rankclock", "status"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode in (0, 1, 4)
    assert "\x1b" not in done.stdout
    assert "…" not in done.stdout
