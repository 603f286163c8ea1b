"""What several nodes or ranks show together: grandmasters, nodes that are out, clocks recorded during a job."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankclock.timebase import ClockState, Offset, SyncState
from rankclock.timebase.clock_record import ClockEvent, ClockHeader, ClockLine
from rankclock.wire.clock_record import encode_header, encode_line, file_name

S, MS = 10**9, 10**6


def doctor(*arguments: str) -> tuple[int, dict[str, Any]]:
    argv = [sys.executable, "-m", "rankclock", "doctor", "--json", *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def finding(answer: dict[str, Any], name: str) -> dict[str, Any] | None:
    return next((one for one in answer["findings"] if one["id"] == name), None)


@pytest.fixture
def states(tmp_path: Path) -> Callable[..., str]:
    """A file as `rankclock status --json` prints it: (node, state, owner, source)."""

    def write(*nodes: tuple[str, SyncState, str | None, str]) -> str:
        nothing = Offset.unknown("nobody looked", reference="none", method="none")
        values = [
            ClockState(
                node=node, state=state, owner=owner, source=source, claimed=nothing, measured=nothing,
                reasons=("its server does not answer",) if state is not SyncState.SYNCHRONISED else (),
            ).to_json()
            for node, state, owner, source in nodes
        ]  # fmt: skip
        path = tmp_path / "status.json"
        path.write_text(json.dumps(values), encoding="utf-8")
        return str(path)

    return write


FINE, OUT = SyncState.SYNCHRONISED, SyncState.UNSYNCHRONISED


def test_nodes_that_follow_two_grandmasters_are_named_by_group(states: Callable[..., str]) -> None:
    path = states(
        ("gpu1", FINE, "phc2sys", "aa.bb"), ("gpu2", FINE, "phc2sys", "aa.bb"), ("gpu3", FINE, "ptp4l", "cc.dd")
    )
    code, answer = doctor(path)
    found = finding(answer, "SEVERAL_GRANDMASTERS_FOLLOWED")
    assert (code, answer["verdict"]) == (1, "fault")
    assert found is not None
    assert "aa.bb (gpu1, gpu2); cc.dd (gpu3)" in found["cause"]
    assert found["values"] == {"grandmasters": 2, "nodes": 3}


def test_several_ntp_servers_are_no_fault(states: Callable[..., str]) -> None:
    path = states(("gpu1", FINE, "chronyd", "10.0.0.1"), ("gpu2", FINE, "chronyd", "10.0.0.2"))
    assert finding(doctor(path)[1], "SEVERAL_GRANDMASTERS_FOLLOWED") is None


def test_the_node_that_is_out_is_named_where_most_are_well(states: Callable[..., str]) -> None:
    path = states(
        ("gpu1", FINE, "chronyd", "10.0.0.1"), ("gpu2", FINE, "chronyd", "10.0.0.1"), ("gpu3", OUT, "chronyd", "")
    )
    found = finding(doctor(path)[1], "SOME_NODES_OUT")
    assert found is not None
    assert "1 of 3 nodes are not synchronised while 2 are: gpu3 (its server does not answer)" in found["cause"]


def record(folder: Path, rank: int, offset_ns: int, *, step_ns: int = 0, bound_ns: int = 2_000) -> str:
    """A clock record of 20 s; the clock is `offset_ns` ahead, and stepped in the middle."""
    header = ClockHeader(job="j", rank=rank, host=f"gpu{rank}", clock_id=f"c{rank}", reference="gpu0", growth_ppb=1_000)
    text = encode_header(header)
    for at in range(20):
        now_ns = offset_ns + (step_ns if at >= 10 else 0)
        line = ClockLine(
            real_ns=1_796_000_000 * S + at * S + now_ns,
            raw_ns=at * S,
            lo_ns=now_ns - bound_ns,
            hi_ns=now_ns + bound_ns,
            est_ns=now_ns,
            rate_ppb=0.0,
            event=ClockEvent.STEP if step_ns and at == 10 else None,
        )
        text += encode_line(line)
    path = folder / file_name(rank)
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_ranks_whose_clocks_are_apart_are_found_from_their_records(tmp_path: Path) -> None:
    code, answer = doctor(*(record(tmp_path, rank, offset_ns) for rank, offset_ns in enumerate((0, 3_000, 250 * MS))))
    found = finding(answer, "RANKS_APART")
    assert (code, answer["verdict"]) == (1, "degraded")
    assert found is not None
    assert sorted(found["values"]["ranks"]) == [0, 2]
    assert abs(found["values"]["offset_ns"]) == 250 * MS
    assert found["values"]["bound_ns"] < 20_000


def test_ranks_that_agree_are_healthy_and_wide_bounds_cannot_be_told(tmp_path: Path) -> None:
    code, answer = doctor(record(tmp_path, 0, 0), record(tmp_path, 1, 5_000))
    assert (code, answer["verdict"]) == (0, "healthy")
    code, answer = doctor(record(tmp_path, 0, 0), record(tmp_path, 1, 5_000, bound_ns=5 * MS))
    assert (code, answer["verdict"]) == (4, "cannot-tell")


def test_a_step_during_the_job_is_a_fault_with_its_size_and_instant(tmp_path: Path) -> None:
    code, answer = doctor(record(tmp_path, 0, 0), record(tmp_path, 1, 5_000, step_ns=-700 * MS))
    found = finding(answer, "STEPPED_IN_JOB")
    assert (code, answer["verdict"]) == (1, "fault")
    assert found is not None
    assert found["values"]["step_ns"] == -700 * MS
    assert found["values"]["rank"] == 1


def test_a_damaged_record_is_not_recognised_and_says_nothing(tmp_path: Path) -> None:
    path = Path(record(tmp_path, 0, 0))
    path.write_text(path.read_text().replace('"lo_ns"', '"low"'), encoding="utf-8")
    code, answer = doctor(str(path))
    assert (code, answer["verdict"]) == (4, "cannot-tell")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--lab", "no-such-lab"), "no lab named 'no-such-lab' is up"),
        (("--cluster", "missing.yaml"), "missing.yaml"),
        (("--cluster", "a.yaml", "--lab", "b"), "give a cluster file or --lab, not both"),
    ],
)
def test_nodes_that_cannot_be_asked_for_are_one_line(arguments: tuple[str, ...], why: str) -> None:
    argv = [sys.executable, "-m", "rankclock", "doctor", *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert why in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_files_of_several_nodes_say_nothing_of_each_others_roles(tmp_path: Path) -> None:
    client, boundary = tmp_path / "gpu1.conf", tmp_path / "leaf1.conf"
    client.write_text("[global]\nslaveOnly 1\n[eth0]\n", encoding="utf-8")
    boundary.write_text("[global]\n[eth0]\n[eth1]\nmasterOnly 1\n", encoding="utf-8")
    assert finding(doctor(str(client), str(boundary))[1], "PTP4L_CONF") is None
    both = tmp_path / "both.conf"
    both.write_text("[global]\nslaveOnly 1\n[eth1]\nmasterOnly 1\n", encoding="utf-8")
    assert finding(doctor(str(both))[1], "PTP4L_CONF") is not None
