"""Other machines: the probe as one file, the ways to a node, and what becomes of nodes that fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from rankclock.errors import HostError, PeerError
from rankclock.fleet.collect import collect_facts, collect_states, facts_of, state_of
from rankclock.fleet.pack import probe_script
from rankclock.fleet.status_table import MISSES_TRUTH, StatusRow, cells, offset_text, row_json, worst_first
from rankclock.fleet.transport import Local, Ssh
from rankclock.timebase import ClockState, Offset, SyncState

FAKE_SSH = """#!/bin/sh
# What openssh does for us, without the network: the last word is a command line for the host's shell.
printf '%s\\n' "$@" >> "$FAKE_SSH_LOG"
while [ $# -gt 2 ]; do shift; done
case "$1" in
  refused) echo "ssh: connect to host refused port 22: Connection refused" >&2; exit 255;;
  old) exec sh -c 'echo "rankclock: python3 >= 3.11 is needed here, found 3.6" >&2; exit 3';;
  banner) echo "Welcome to banner"; exit 0;;
  list) echo "[1, 2]"; exit 0;;
  hung) exec sleep 60;;
esac
exec sh -c "$2"
"""


@pytest.fixture
def ssh_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fake `ssh` first on PATH; the file that it writes its arguments to."""
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(FAKE_SSH, encoding="utf-8")
    program.chmod(0o755)
    log = tmp_path / "ssh.log"
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SSH_LOG", str(log))
    return log


def packed(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """The packed probe as a bare node runs it: from standard input, isolated, nothing of ours on the path."""
    return subprocess.run(
        [sys.executable, "-I", "-S", "-", *arguments],
        input=probe_script(), capture_output=True, text=True, cwd="/", env={}, timeout=60, check=False,
    )  # fmt: skip


def test_the_packed_probe_runs_on_a_bare_python_and_says_what_the_installed_one_says() -> None:
    done = packed(["facts", "--node", "bare"])
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    here = facts_of(Local(), "bare")
    assert found["node"] == "bare"
    assert found["facts"].keys() == here["facts"].keys()
    for steady in ("kernel", "boot_id", "os", "clocksource"):
        assert found["facts"][steady] == here["facts"][steady]


def test_the_packed_probe_prints_a_clock_state() -> None:
    seen = ClockState.from_json(json.loads(packed(["status", "--node", "bare"]).stdout))
    assert (seen.node, seen.measured.known) == ("bare", False)
    assert seen.reasons


def test_the_packed_probe_is_the_same_text_each_time_and_plain_ascii() -> None:
    first = probe_script()
    probe_script.cache_clear()
    assert probe_script() == first
    assert first.isascii()
    assert len(first) < 300_000, "small enough to be piped to every node of a large cluster"


def test_wrong_use_of_the_packed_probe_is_one_line_and_exit_code_2() -> None:
    done = packed(["everything"])
    assert done.returncode == 2
    assert "invalid choice: 'everything'" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_old_python_is_told_in_one_line() -> None:
    pretend = "import sys\nsys.version_info = (3, 6, 9)\n"
    done = subprocess.run(
        [sys.executable, "-"], input=pretend + probe_script(), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "rankclock: python3 >= 3.11 is needed here, found 3.6\n"


@pytest.mark.usefixtures("ssh_log")
def test_a_node_behind_ssh_answers_by_the_packed_probe() -> None:
    found = facts_of(Ssh(host="gpu1", python=sys.executable), "gpu1")
    assert found["node"] == "gpu1"
    assert state_of(Ssh(host="gpu1", python=sys.executable), "gpu1").node == "gpu1"


def test_ssh_never_asks_for_a_password_and_words_are_quoted_for_the_remote_shell(ssh_log: Path) -> None:
    done = Ssh(host="gpu1").run(("printf", "%s|", "two words", "$HOME; echo bad", "it's"), timeout_s=10)
    assert done.stdout == "two words|$HOME; echo bad|it's|"
    said = ssh_log.read_text(encoding="utf-8").splitlines()
    assert "BatchMode=yes" in said
    assert said[said.index("--") + 1] == "gpu1"


@pytest.mark.parametrize("host", ["", "-oProxyCommand=touch /tmp/x", "-l"])
def test_a_host_name_that_ssh_would_take_for_an_option_is_refused(host: str) -> None:
    with pytest.raises(ValueError, match="not a host name"):
        Ssh(host=host)


@pytest.mark.usefixtures("ssh_log")
@pytest.mark.parametrize(
    ("host", "what"),
    [
        (
            "refused",
            r"refused: ssh: ssh: connect to host refused port 22: Connection refused \(try: ssh refused true\)",
        ),
        ("old", "old: the probe ended with 3: rankclock: python3 >= 3.11 is needed here, found 3.6"),
        ("banner", "banner: the probe's answer is no JSON: 'Welcome to banner"),
        ("list", "list: the probe's answer is no JSON object"),
    ],
)
def test_a_node_that_answers_nothing_useful_is_one_line(host: str, what: str) -> None:
    with pytest.raises(PeerError, match=what):
        state_of(Ssh(host=host), host)


@pytest.mark.usefixtures("ssh_log")
def test_a_hung_node_costs_its_timeout_and_the_others_nothing() -> None:
    transports = {"hung": Ssh(host="hung"), "gpu1": Ssh(host="gpu1", python=sys.executable)}
    states = collect_states(transports, timeout_s=3)
    assert list(states) == ["hung", "gpu1"]
    assert states["hung"].state is SyncState.UNKNOWN
    assert states["hung"].reasons == ("hung: ssh did not end within 3 s",)
    assert states["gpu1"].reasons != states["hung"].reasons


@pytest.mark.usefixtures("ssh_log")
def test_facts_of_a_node_out_of_reach_are_unknown_with_the_reason() -> None:
    found = collect_facts({"refused": Ssh(host="refused")})["refused"]
    assert found["node"] == "refused"
    assert found["facts"]["realtime_owner"]["value"] is None
    assert "Connection refused" in found["facts"]["realtime_owner"]["why"]


def test_nobody_to_ask_is_nobody() -> None:
    assert collect_states({}) == {}


def test_a_missing_ssh_client_is_this_machines_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HostError, match="ssh: not installed here"):
        Ssh(host="gpu1").run(("true",), timeout_s=5)


# ---- the status table ----


def known(estimate_ns: int, bound_ns: int, age_ns: int = 0) -> Offset:
    return Offset.around(estimate_ns, bound_ns, reference="time1", method="test", age_ns=age_ns)


NOTHING = Offset.unknown("nobody looked", reference="none", method="none")


def row(
    node: str,
    state: SyncState,
    *,
    claimed: Offset = NOTHING,
    measured: Offset = NOTHING,
    truth_ns: int | None = None,
) -> StatusRow:
    clock = ClockState(node=node, state=state, owner=None, source="", claimed=claimed, measured=measured)
    return StatusRow(state=clock, truth_ns=truth_ns)


def test_who_should_be_looked_at_first_stands_first() -> None:
    rows = [
        row("fine", SyncState.SYNCHRONISED, claimed=known(5, 10), measured=known(5, 10)),
        row("far", SyncState.SYNCHRONISED, claimed=known(5, 10), measured=known(-9_000, 10)),
        row("wide", SyncState.SYNCHRONISED, claimed=known(0, 5_000)),
        row("coasts", SyncState.HOLDOVER, claimed=known(0, 5)),
        row("mute", SyncState.UNKNOWN),
        row("lost", SyncState.UNSYNCHRONISED),
        row("alone", SyncState.FREE_RUNNING),
        row("wrong", SyncState.SYNCHRONISED, measured=known(0, 5), truth_ns=6),
    ]
    assert [one.state.node for one in worst_first(rows)] == [
        "wrong", "mute", "lost", "alone", "coasts", "far", "wide", "fine",
    ]  # fmt: skip


def test_a_measured_bound_without_the_truth_is_said_in_words_a_claims_is_not() -> None:
    wrong = row("n", SyncState.SYNCHRONISED, claimed=known(0, 5), measured=known(0, 5), truth_ns=-6)
    assert wrong.misses_truth
    assert wrong.claim_misses_truth
    assert [MISSES_TRUTH in text for text in cells(wrong)] == [False] * 6 + [True, False]
    assert row_json(wrong)["misses_truth"] is True
    edge = row("n", SyncState.SYNCHRONISED, measured=known(0, 5), truth_ns=-5)
    assert not edge.misses_truth


def test_what_nobody_measured_misses_nothing_and_what_has_no_truth_is_not_judged() -> None:
    assert not row("n", SyncState.SYNCHRONISED, truth_ns=10**9).misses_truth
    assert row_json(row("n", SyncState.SYNCHRONISED, measured=known(0, 5)))["misses_truth"] is None


def test_an_offset_reads_with_sign_bound_and_age_or_as_unknown() -> None:
    assert offset_text(known(1_200, 30_000, age_ns=2_100_000)) == "+1.20 µs ± 30.0 µs, 2.10 ms old"
    assert offset_text(known(-20, 5)) == "-20 ns ± 5 ns"
    assert offset_text(NOTHING) == "unknown"
