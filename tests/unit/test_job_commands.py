"""`rankclock verify` and `preflight` refuse bad input before they meet anybody: one line, the right exit code."""

from __future__ import annotations

import os
import sys

import pytest

from rankclock.cli.main import run

LAUNCHER_WORDS = ("RANK", "SLURM_", "PMI", "OMPI_", "MASTER_", "TORCHELASTIC", "WORLD_SIZE", "RANKCLOCK_", "JOB_COMP")


@pytest.fixture(autouse=True)
def no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(LAUNCHER_WORDS):
            monkeypatch.delenv(name)


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["rankclock", *arguments])
    with pytest.raises(SystemExit) as ended:
        run()
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize(
    ("arguments", "env", "code", "says"),
    [
        (["verify"], {}, 2, "in no job that I know"),
        (["verify", "--threshold", "1"], {"RANK": "0", "WORLD_SIZE": "1"}, 2, "--threshold: '1' is no span of time"),
        (["verify", "--threshold", "0ms"], {}, 2, "no two clocks are exactly alike"),
        (["verify", "--seconds", "0"], {}, 2, "--seconds is 0"),
        (["verify", "--hosts", "gpu[1-"], {}, 2, "--hosts: brackets"),
        (["verify", "--hosts", "a.invalid,b.invalid"], {}, 2, "none of them is this host"),
        (["verify", "--hosts", "a,a"], {}, 2, "--hosts names a twice"),
        (["verify", "--hosts", "2"], {}, 2, "Give --rank 0 to 1"),
        (["preflight", "--warn", "2s"], {}, 2, "expected --warn <= --error <= --refuse"),
        (["preflight", "--hosts", "2", "--rendezvous", "x:y"], {}, 2, "expected HOST:PORT"),
        (["verify"], {"RANK": "0", "WORLD_SIZE": "1", "RANKCLOCK_KEY_FILE": "/nowhere"}, 2, "/nowhere: No such file"),
    ],
)
def test_bad_input_is_one_line_and_the_right_exit_code(
    *,
    arguments: list[str],
    env: dict[str, str],
    code: int,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert call(monkeypatch, *arguments) == code
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("verb", ["verify", "preflight"])
def test_disabled_it_does_nothing_and_says_so(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANKCLOCK_DISABLE", "1")
    assert call(monkeypatch, verb) == 0
    assert capsys.readouterr().out == f"rankclock {verb}: not measured: RANKCLOCK_DISABLE=1\n"


@pytest.mark.parametrize("verb", ["verify", "preflight"])
def test_help_ends_in_examples(verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(monkeypatch, verb, "--help") == 0
    text = capsys.readouterr().out
    assert "Examples:" in text
    assert f"rankclock {verb} " in text
