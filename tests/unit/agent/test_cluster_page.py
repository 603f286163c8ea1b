"""The cluster page: every node once in the tree, pairs as measured, gaps where nothing is known; drawn by a browser."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from rankclock.agent.client import AgentAddress, AgentStatus
from rankclock.agent.cluster_view import View
from rankclock.timebase import ClockState, Offset, SyncState

UNKNOWN = Offset.unknown("nobody answered", reference="none", method="none")


def off(estimate_ns: int, reference: str = "root") -> Offset:
    return Offset.around(estimate_ns, 9_000, reference=reference, method="probes", at_raw_ns=0)


def node(
    name: str, source: str, *, owner: str | None = "chronyd", more: dict[str, object] | None = None
) -> AgentStatus:
    known = bool(source)
    state = ClockState(
        node=name,
        state=SyncState.SYNCHRONISED if known else SyncState.UNKNOWN if owner == "?" else SyncState.FREE_RUNNING,
        owner=owner,
        source=source,
        claimed=off(100) if known else UNKNOWN,
        measured=UNKNOWN,
        reasons=("because <b>",),
    )
    return AgentStatus(address=AgentAddress(name), state=state, more=more or {})


def peers(**offsets: int) -> dict[str, object]:
    return {
        "peers": {name: off(value, name).to_json() for name, value in offsets.items()},
        "cluster_limit_ns": 1_000_000,
    }


CLUSTER = [
    node("time1", "GPS", more={"ptp": [{"domain": 0, "identity": "aa.bb", "grandmaster": "aa.bb"}]}),
    node("gpu1", "10.0.0.1", more=peers(time1=-300, gpu2=50)),
    node("gpu2", "aa.bb", owner="phc2sys", more=peers(gpu1=-40)),
    node("alone", "", owner=None),
    node("silent", "", owner="?"),
    node("a", "10.0.0.8"),
    node("b", "10.0.0.7"),
]
ADDRESSES = {"10.0.0.1": "time1", "10.0.0.7": "a", "10.0.0.8": "b"}


@pytest.fixture
def view() -> View:
    made = View(ADDRESSES, title="test")
    made.handle_look(CLUSTER, 1000.0)
    made.handle_look(CLUSTER[:3], 1001.0)
    made.handle_look(CLUSTER, 1002.0)
    return made


def test_every_node_stands_once_in_the_tree_below_whom_it_follows(view: View) -> None:
    tree = view.to_json()["tree"]
    assert sorted(row["node"] for row in tree if row["is_node"]) == sorted(one.state.node for one in CLUSTER)
    lines = [f"{row['depth']} {row['node']}" for row in tree]
    assert lines == [
        "0 GPS", "1 time1", "2 gpu1", "2 gpu2",
        "0 these follow nobody", "1 alone",
        "0 whom these follow is unknown", "1 silent",
        "0 a (in a circle)", "1 a", "2 b",
    ]  # fmt: skip


def test_a_pair_is_as_its_row_measured_it_else_mirrored_else_unknown(view: View) -> None:
    matrix = view.to_json()["matrix"]
    at = {name: index for index, name in enumerate(matrix["names"])}

    def cell(row: str, column: str) -> int | None:
        value: int | None = matrix["estimate_ns"][at[row]][at[column]]
        return value

    assert (cell("gpu1", "time1"), cell("time1", "gpu1")) == (-300, 300)
    assert (cell("gpu1", "gpu2"), cell("gpu2", "gpu1")) == (50, -40)
    assert cell("alone", "gpu1") is None
    assert cell("alone", "alone") == 0


def test_history_has_a_gap_where_nothing_was_known(view: View) -> None:
    history = view.to_json()["history"]
    assert history["at_unix_s"] == [1000.0, 1001.0, 1002.0]
    assert history["nodes"]["a"] == [(-8900, 100, 9100), None, (-8900, 100, 9100)]
    assert history["nodes"]["silent"] == [None, None, None]


def test_nodes_are_worst_first(view: View) -> None:
    assert [one["node"] for one in view.to_json()["nodes"]][:2] == ["silent", "alone"]


class _Agent(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        one = CLUSTER[self.server.server_port % len(CLUSTER)]
        body = json.dumps({**one.state.to_json(), "agent": one.more}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def page(tmp_path: Path) -> Iterator[str]:
    """The address of a page over agents that answer as CLUSTER does."""
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), _Agent) for _ in range(7)]
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    agents = ",".join(f"127.0.0.1:{server.server_port}" for server in servers)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, "-m", "rankclock", "serve", "--agents", agents, "--listen", listen, "--every", "0.3"]
    child = subprocess.Popen(command, stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 20
        while True:
            try:
                if json.load(urllib.request.urlopen(f"http://{listen}/data"))["at_unix_s"]:
                    break
            except OSError:
                assert time.monotonic() < deadline
            time.sleep(0.05)
        yield f"http://{listen}/"
    finally:
        child.terminate()
        child.wait(10)
        for server in servers:
            server.shutdown()
            server.server_close()


def test_the_page_and_all_it_loads_come_from_here(page: str) -> None:
    with urllib.request.urlopen(page) as answer:
        text = answer.read().decode()
        policy = answer.headers["Content-Security-Policy"]
    assert not re.findall(r"(?:src|href)=.https?:", text)
    assert "default-src 'none'" in policy
    with urllib.request.urlopen(f"{page}plotly.js") as answer:
        assert b"plotly.js" in answer.read(4096)


@pytest.mark.slow
def test_a_browser_draws_tree_matrix_and_history_without_an_error(page: str, tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium on PATH: apt-get install chromium")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    flags += ["--virtual-time-budget=8000", "--enable-logging=stderr", f"--user-data-dir={tmp_path / 'profile'}"]
    done = subprocess.run(
        [browser, *flags, "--dump-dom", page], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count('<svg class="main-svg"') >= 4
    assert 'class="badge ' in done.stdout
    assert "<b>" not in re.findall(r'<div id="nodes">.*', done.stdout, flags=re.DOTALL)[0].split("<script")[0]
    assert re.findall(r"CONSOLE.*(?:Error|Refused)", done.stderr) == []
