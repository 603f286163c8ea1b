"""The doctor on live nodes of the lab: real daemons, broken on purpose, and its answer from inside the node."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankclock.fleet.collect import collect_states
from rankclock.fleet.transport import InLab
from rankclock.lab import Lab, Scenario

pytestmark = pytest.mark.lab

CHRONY = "driftfile /var/lib/chrony/chrony.drift\npidfile /run/chrony/chronyd.pid\nallow\n"
CLIENT = CHRONY + "server 10.77.0.1 iburst minpoll -1 maxpoll 1 xleave\nmakestep 0.1 3\n"
PTP = (
    "[global]\ntime_stamping hardware\nuse_syslog 0\nverbose 1\ntx_timestamp_timeout 50\nlogAnnounceInterval -2\n"
    "logSyncInterval -3\nlogMinDelayReqInterval -3\n"
)


@pytest.fixture(scope="module")
def nodes(lab_of: Callable[[Scenario], Lab], flat: Callable[..., Scenario], daemon: Callable[[str], Path]) -> Lab:
    daemon("chronyd")
    daemon("ptp4l")
    return lab_of(flat(6))


def start(lab: Lab, node: str, daemon: Callable[[str], Path], text: str) -> Any:
    lab.install(node, {"/etc/chrony/chrony.conf": text.encode()})
    lab.run(node, ["mkdir", "-p", "/run/chrony", "/var/lib/chrony"], timeout_s=5)
    return lab.spawn(node, [str(daemon("chronyd")), "-d", "-u", "root", "-f", "/etc/chrony/chrony.conf"])


def ask(lab: Lab, node: str, *arguments: str, text: str | None = None) -> tuple[int, dict[str, Any]]:
    argv = [sys.executable, "-m", "rankclock", "doctor", "--json", *arguments]
    done = lab.run(node, argv, timeout_s=60, input=text)
    return done.returncode, json.loads(done.stdout)


def ids(answer: dict[str, Any]) -> set[str]:
    return {finding["id"] for finding in answer["findings"]}


def test_a_client_that_follows_its_server_is_not_called_faulty(
    nodes: Lab, daemon: Callable[[str], Path], until: Callable[..., None]
) -> None:
    start(nodes, "n1", daemon, CHRONY + "local stratum 1\n")
    start(nodes, "n2", daemon, CLIENT)
    until(lambda: abs(nodes.true_offset_ns("n2", "n1")) < 100_000, 30, "n2 follows n1")
    time.sleep(2)
    code, answer = ask(nodes, "n2")
    assert (code, answer["verdict"]) in ((0, "healthy"), (4, "cannot-tell")), ids(answer)
    assert "TRACKING_WELL" in ids(answer)


def test_a_client_without_a_server_that_answers_is_named_unreached(nodes: Lab, daemon: Callable[[str], Path]) -> None:
    start(nodes, "n3", daemon, CHRONY + "server 10.77.0.9 iburst\nserver 10.77.0.10 iburst\n")
    time.sleep(3)
    code, answer = ask(nodes, "n3")
    assert (code, answer["verdict"]) == (1, "fault")
    assert "NEVER_REACHED" in ids(answer)


def test_a_node_on_which_nobody_steers_the_clock_is_named(nodes: Lab) -> None:
    code, answer = ask(nodes, "n4")
    assert code in (1, 4)
    assert {"NOBODY_STEERS", "CLOCK_STATE"} & ids(answer)


def test_two_grandmasters_that_do_not_yield_are_found_from_a_capture_of_the_wire(
    nodes: Lab, daemon: Callable[[str], Path]
) -> None:
    for node in ("n5", "n6"):
        nodes.install(node, {"/etc/linuxptp/ptp4l.conf": (PTP + "masterOnly 1\n").encode()})
        nodes.spawn(node, [str(daemon("ptp4l")), "-f", "/etc/linuxptp/ptp4l.conf", "-i", "eth0"])
    time.sleep(4)
    capture = nodes.run(
        "n4", ["timeout", "3", "tcpdump", "-n", "-i", "eth0", "udp", "port", "320"], timeout_s=20, clock=False
    )
    code, answer = ask(nodes, "n4", "-", text=capture.stdout)
    assert code == 1
    assert "TWO_GRANDMASTERS" in ids(answer)


def test_training_stamps_of_ranks_whose_clocks_differ_are_found_from_their_logs(nodes: Lab) -> None:
    """Two ranks end the same steps at the same instants; the second one's node is put 42 s behind."""
    nodes.clock("n4").step_ns(-42 * 10**9 - nodes.true_offset_ns("n4", "n1"))
    script = (
        "import sys, time; t = time.time(); print(time.strftime('%F %T', time.gmtime(t)) + f',{int(t % 1 * 1000):03d}')"
    )
    rows = []
    for step in range(4):
        for rank, node in enumerate(("n1", "n4")):
            stamp = nodes.run(node, [sys.executable, "-c", script], timeout_s=20).stdout.strip()
            rows.append(f"{stamp} [rank{rank}] step {step} loss 2.0")
        time.sleep(0.5)
    code, answer = ask(nodes, "n1", "-", text="\n".join(rows) + "\n")
    assert code == 1
    assert "RANK_LOGS_APART" in ids(answer)
    assert abs(answer["values"]["offset_s"] + 42) < 1


def test_all_nodes_of_a_lab_are_examined_at_once_and_the_one_that_is_out_is_named(
    lab_of: Callable[[Scenario], Lab], flat: Callable[..., Scenario], daemon: Callable[[str], Path]
) -> None:
    lab = lab_of(flat(4))
    texts = {"n1": CHRONY + "local stratum 1\n", "n2": CLIENT, "n3": CLIENT, "n4": CLIENT.replace("0.1 ", "0.99 ")}
    for node, text in texts.items():
        start(lab, node, daemon, text)
    deadline = time.monotonic() + 20
    found: dict[str, Any] = {}
    while time.monotonic() < deadline:
        states = [state.to_json() for state in collect_states({n: InLab(lab=lab, node=n) for n in texts}).values()]
        if sum(one["state"] == "synchronised" for one in states) == 2:
            break
        time.sleep(0.2)
    code, found = ask(lab, "n1", "-", text=json.dumps(states))
    assert code == 1
    (out,) = [one for one in found["findings"] if one["id"] == "SOME_NODES_OUT"]
    assert "n4" in out["cause"]
