"""The prober process and its handle on real sockets (loopback, one clock: the truth is zero)."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rankclock.errors import HostError, UserError
from rankclock.mesh import NodeReport, Prober
from rankclock.mesh.matrix import pairwise

KEY = b"a key of sixteen bytes or more"
SAFE = ("setpriv", "--bounding-set=-sys_time", "--inh-caps=-sys_time") if os.geteuid() == 0 else ()
COMMAND = (*SAFE, sys.executable, "-m", "rankclock.mesh.prober")

Until = Callable[..., None]


def connected(*probers: Prober, key: bytes = KEY) -> None:
    for one in probers:
        one.connect(peers={other.node: (other.host, other.port) for other in probers if other is not one}, key=key)


@pytest.mark.parametrize("bind", ["127.0.0.1:0", "[::1]:0"])
def test_two_probers_on_one_clock_measure_zero_within_microseconds_in_a_second(bind: str) -> None:
    with Prober.start(node="one", bind=bind) as one, Prober.start(node="two", bind=bind) as two:
        connected(one, two)
        assert one.stamps == "kernel"
        assert one.clock_id == two.clock_id
        reports = [two.measure(for_s=1.0), one.report()]
    for report in reports:
        (edge,) = report.edges
        assert edge.offset.contains(0)
        assert edge.offset.bound_ns is not None
        assert edge.offset.bound_ns < 20_000
        assert edge.offset.method.startswith("two-way probes, kernel stamps")
        assert edge.peer_clock_id == one.clock_id
        assert "no departure stamp is late and no arrival stamp early" in edge.offset.assumptions
    assert pairwise(reports).offset("one", "two").method == "both read the same clock"


def test_process_stamps_are_a_fallback_that_says_so_and_still_holds_zero() -> None:
    with (
        Prober.start(node="one", bind="127.0.0.1:0", user_stamps=True) as one,
        Prober.start(node="two", bind="127.0.0.1:0", user_stamps=True) as two,
    ):
        connected(one, two)
        assert one.stamps == "user"
        (edge,) = one.measure(for_s=1.0).edges
    assert edge.offset.contains(0)
    assert "user stamps" in edge.offset.method
    assert "kernel" not in edge.offset.method


def test_one_that_stamps_with_the_kernel_and_one_that_does_not_still_hold_zero() -> None:
    with (
        Prober.start(node="one", bind="127.0.0.1:0") as one,
        Prober.start(node="two", bind="127.0.0.1:0", user_stamps=True) as two,
    ):
        connected(one, two)
        reports = [one.measure(for_s=1.0), two.report()]
    assert all(report.edges[0].offset.contains(0) for report in reports)
    assert all("user stamps" in report.edges[0].offset.method for report in reports)


def test_without_the_same_key_nothing_is_measured_and_the_attempts_are_counted() -> None:
    with Prober.start(node="one", bind="127.0.0.1:0") as one, Prober.start(node="two", bind="127.0.0.1:0") as two:
        one.connect(peers={"two": (two.host, two.port)}, key=KEY)
        two.connect(peers={}, key=KEY + b"!")
        (edge,) = one.measure(for_s=0.5).edges
        report = two.report()
    assert "has not answered any" in (edge.offset.unknown_why or "")
    assert report.counters["not authentic"] >= 16


def test_garbage_and_replays_get_no_answer_and_disturb_nothing() -> None:
    with Prober.start(node="one", bind="127.0.0.1:0") as one, Prober.start(node="two", bind="127.0.0.1:0") as two:
        connected(one, two)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as attacker:
            attacker.bind(("127.0.0.1", 0))
            for size in (0, 1, 48, 359, 360, 361, 1_500, 9_000):
                attacker.sendto(os.urandom(size), (two.host, two.port))
            report = two.measure(for_s=0.6)
            attacker.setblocking(False)
            with pytest.raises(BlockingIOError):
                attacker.recv(1)
    assert report.counters["garbage"] == 8
    assert report.edges[0].offset.contains(0)


def test_a_prober_that_was_killed_is_lost_to_its_peer_and_its_replacement_is_found_again() -> None:
    with Prober.start(node="one", bind="127.0.0.1:0") as one:
        with Prober.start(node="two", bind="127.0.0.1:0") as two:
            address = (two.host, two.port)
            connected(one, two)
            assert one.measure(for_s=0.5).edges[0].offset.known
            os.kill(two._child.pid, signal.SIGKILL)
            with pytest.raises(HostError, match="ended, exit code -9"):
                two.report()
        with Prober.start(node="two", bind=f"{address[0]}:{address[1]}") as two:
            two.connect(peers={}, key=KEY)
            (edge,) = one.measure(for_s=2.2).edges
    assert edge.offset.contains(0)
    assert edge.offset.known
    assert edge.offset.age_ns < 2_000_000_000


def test_the_process_ends_with_its_parent_however_that_ends(tmp_path: Path, until: Until) -> None:
    script = (
        "import os, sys\n"
        "from rankclock.mesh import Prober\n"
        "prober = Prober.start(node='one', bind='127.0.0.1:0')\n"
        "prober.connect(peers={}, key=b'k' * 16)\n"
        "if os.fork() == 0: sys.stdin.read(); os._exit(0)\n"  # a worker that inherits the pipe and lives on
        "print(prober._child.pid, flush=True); sys.stdin.read()\n"
    )
    parent = subprocess.Popen(
        [*SAFE, sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    assert parent.stdin is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    until(lambda: not _lives(pid), 2, f"prober {pid} ended after its parent was killed")
    parent.stdin.close()
    parent.stdout.close()


def _children_named(node: str) -> list[str]:
    """Command lines of this process's children that are probers of that node."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int(path.joinpath("stat").read_text().rpartition(")")[2].split()[1])
            words = path.joinpath("cmdline").read_text().split("\0")
        except (OSError, IndexError):
            continue
        if parent == os.getpid() and "rankclock.mesh.prober" in words and node in words:
            found.append(" ".join(words))
    return found


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_bytes(KEY)
    return path


@pytest.fixture
def free_ports() -> list[int]:
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@pytest.fixture
def responder(key_file: Path, free_ports: list[int]) -> Iterator[subprocess.Popen[bytes]]:
    command = [
        *COMMAND,
        "--node",
        "two",
        "--bind",
        f"127.0.0.1:{free_ports[1]}",
        "--key-file",
        str(key_file),
        "--responder-only",
    ]
    process = subprocess.Popen(command)
    yield process
    process.terminate()
    process.wait(5)


def test_the_long_running_process_appends_a_sample_a_second(
    tmp_path: Path, key_file: Path, free_ports: list[int], responder: subprocess.Popen[bytes], until: Until
) -> None:
    out = tmp_path / "measured.jsonl"
    command = [*COMMAND, "--node", "one", "--bind", f"127.0.0.1:{free_ports[0]}", "--key-file", str(key_file)]
    command += ["--peer", f"two=127.0.0.1:{free_ports[1]}", "--peer", "absent=127.0.0.1:9", "--out", str(out)]
    asker = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        until(lambda: out.exists() and out.read_text().count('"peer":"two"') >= 5, 10, "five samples of the peer")
    finally:
        asker.terminate()
        assert asker.wait(5) == 0
    samples = [json.loads(line) for line in out.read_text().splitlines()]
    known = [one for one in samples if one["peer"] == "two" and one["offset"]["lo_ns"] is not None]
    assert len(known) >= 4
    for one in known:
        assert one["schema"] == "rankclock-measured/1"
        assert one["offset"]["lo_ns"] <= 0 <= one["offset"]["hi_ns"]
        assert one["offset"]["at_raw_ns"] == one["at_raw_ns"]
        assert abs(one["at_real_ns"] - time.time_ns()) < 60_000_000_000
    absent = [one for one in samples if one["peer"] == "absent"]
    assert absent
    assert all(one["offset"]["unknown_why"] for one in absent)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--node", "x"], 2, "--key-file is missing"),
        (["--node", "x", "--key-file", "{short}", "--responder-only"], 2, "16 or more are needed"),
        (["--node", "x", "--key-file", "/nowhere/key", "--responder-only"], 2, "cannot be read"),
        (["--node", "x", "--key-file", "{key}", "--responder-only", "--bind", "host:1"], 2, "numeric ADDRESS:PORT"),
        (["--node", "x", "--key-file", "{key}", "--responder-only", "--bind", "192.0.2.1:4910"], 3, "cannot be opened"),
        (["--node", "x", "--key-file", "{key}", "--responder-only", "--peer", "y=1.2.3.4:5"], 2, "asks nobody"),
        (["--node", "x", "--key-file", "{key}", "--peer", "y"], 2, "give --peer and --out"),
        (["--node", "x", "--key-file", "{key}", "--peer", "y", "--out", "{out}"], 2, "NAME=ADDRESS:PORT"),
        (
            ["--node", "x", "--key-file", "{key}", "--peer", "y=1.2.3.4:5", "--out", "/nowhere/out"],
            3,
            "cannot be written",
        ),
    ],
)
def test_wrong_use_is_one_line_and_the_right_exit_code(
    tmp_path: Path, key_file: Path, arguments: list[str], code: int, message: str
) -> None:
    (tmp_path / "short").write_bytes(b"short")
    places = {"key": key_file, "short": tmp_path / "short", "out": tmp_path / "out"}
    done = subprocess.run(
        [*COMMAND, *(text.format(**places) for text in arguments)],
        check=False,
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert done.returncode == code
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_port_in_use_is_a_host_error_and_leaves_no_process() -> None:
    with (
        Prober.start(node="one", bind="127.0.0.1:0") as one,
        pytest.raises(HostError, match=f"UDP port {one.port} on 127.0.0.1 cannot be opened"),
    ):
        Prober.start(node="two", bind=f"127.0.0.1:{one.port}")
    assert not _children_named("two")


def test_the_handle_refuses_wrong_use_before_anything_is_sent() -> None:
    with pytest.raises(UserError, match="numeric ADDRESS:PORT"):
        Prober.start(node="one", bind="localhost:0")
    with Prober.start(node="one", bind="127.0.0.1:0") as one:
        with pytest.raises(UserError, match="call connect first"):
            one.report()
        with pytest.raises(UserError, match="16 bytes or more"):
            one.connect(peers={}, key=b"short")
        with pytest.raises(UserError, match="is numeric"):
            one.connect(peers={"two": ("localhost", 1)}, key=KEY)
        with pytest.raises(UserError, match="1 to 65535"):
            one.connect(peers={"two": ("127.0.0.1", 0)}, key=KEY)
        one.close()
        one.close()
        with pytest.raises(UserError, match="was closed"):
            one.connect(peers={}, key=KEY)


def test_a_report_travels_as_json() -> None:
    with Prober.start(node="one", bind="127.0.0.1:0") as one, Prober.start(node="two", bind="127.0.0.1:0") as two:
        connected(one, two)
        report = one.measure(for_s=0.4)
    assert NodeReport.from_json(json.loads(json.dumps(report.to_json()))) == report


def test_the_process_is_up_fast_and_stays_small() -> None:
    starts = []
    for _ in range(3):
        began = time.monotonic()
        with Prober.start(node="one", bind="127.0.0.1:0") as one:
            starts.append(time.monotonic() - began)
            status = Path(f"/proc/{one._child.pid}/status").read_text()
            maps = Path(f"/proc/{one._child.pid}/maps").read_text()
    assert min(starts) < 0.4  # 0.12 s on a quiet machine
    resident_kb = int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])
    assert resident_kb < 32_000
    assert "numpy" not in maps
    assert "pydantic" not in maps
