"""The exit codes are a promise: scripts and launchers depend on them."""

from __future__ import annotations

import subprocess
import sys

from rankclock.errors import ExitCode, HostError, InternalError, PeerError, UserError


def rankclock(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rankclock", *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def test_the_table_of_exit_codes_does_not_change() -> None:
    assert {code.name: code.value for code in ExitCode} == {
        "OK": 0,
        "CHECK_FAILED": 1,
        "BAD_INPUT": 2,
        "HOST_LACKS": 3,
        "CANNOT_TELL": 4,
        "OUR_FAULT": 70,
    }


def test_every_error_says_who_must_act_by_its_exit_code() -> None:
    assert [error.exit_code.value for error in (UserError, HostError, PeerError, InternalError)] == [2, 3, 4, 70]


def test_an_unknown_command_is_one_line_and_exit_code_2() -> None:
    result = rankclock("no-such-verb")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "rankclock: No such command 'no-such-verb'.\n"


def test_the_version_is_printed() -> None:
    result = rankclock("--version")
    assert result.returncode == 0
    assert result.stdout.startswith("rankclock 0.")


def test_no_arguments_print_the_help() -> None:
    result = rankclock()
    assert result.returncode == 0
    assert "Usage: rankclock" in result.stdout
