"""What a node is: a machine of its own, with its files, interfaces, processes and paths; and what it must not see."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rankclock.errors import HostError, UserError
from rankclock.lab import Lab, Scenario, load_scenario

pytestmark = pytest.mark.lab

EXAMPLE = Path(__file__).parents[2] / "examples/lab.yaml"
PYTHON = sys.executable


@pytest.fixture(scope="module")
def lab(lab_of: Callable[[Scenario], Lab]) -> Lab:
    dumped = load_scenario(EXAMPLE).model_dump(mode="json", by_alias=True)
    dumped["links"] = [{"node": "gpu1", "delay_ns": 0}]
    return lab_of(Scenario.model_validate(dumped))


def shell(lab: Lab, node: str, command: str, **more: object) -> str:
    done = lab.run(node, ["sh", "-c", command], timeout_s=10, **more)  # type: ignore[arg-type]
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_node_reaches_every_other_by_name_across_racks(lab: Lab) -> None:
    names = [node.name for node in lab.scenario.cluster.nodes]
    echo = (
        "import socket\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('', 99))\n"
        "print('ready', flush=True)\nwhile True: s.sendto(*s.recvfrom(99))"
    )
    servers = [lab.spawn(name, [PYTHON, "-c", echo]) for name in names]
    deadline = time.monotonic() + 20
    while any("ready" not in server.log_text() for server in servers):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    ask = (
        "import socket, sys\nfor name in sys.argv[1:]:\n s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        " s.settimeout(3); s.sendto(name.encode(), (name, 99)); assert s.recv(99) == name.encode()"
    )
    for name in ("upstream", "leaf1", "gpu1", "gpu6"):
        assert lab.run(name, [PYTHON, "-c", ask, *names], timeout_s=20).returncode == 0, name
    for server in servers:
        server.kill()


def test_node_has_its_own_name_identity_and_interfaces(lab: Lab) -> None:
    seen = {}
    for node in ("leaf1", "gpu1"):
        command = "hostname; cat /etc/hostname /proc/sys/kernel/random/boot_id /etc/machine-id; ls /sys/class/net"
        seen[node] = shell(lab, node, command).split()
    assert seen["leaf1"][:2] == ["leaf1", "leaf1"]
    assert seen["leaf1"][4:] == ["eth0", "eth1", "lo"]
    assert seen["gpu1"][4:] == ["eth0", "lo"]
    host = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert len({host, seen["leaf1"][2], seen["gpu1"][2]}) == 3


def test_node_sees_its_own_processes_only(lab: Lab) -> None:
    other = lab.spawn("gpu2", ["sleep", "60"])
    assert other.pid > 0
    assert Path(f"/proc/{other.pid}/cmdline").read_bytes() == b"sleep\x0060\x00"
    listed = shell(lab, "gpu1", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    assert "sleep 60" not in listed
    other.kill()
    assert other.wait(5) == -9


def of_the_host(path: str) -> bytes | str:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        return str(error)


def test_files_are_installed_at_their_real_paths_and_the_hosts_stay_as_they_were(lab: Lab) -> None:
    paths = [
        "/etc/chrony/chrony.conf",
        "/etc/systemd/system/chrony.service.d/10-lab.conf",
        "/var/lib/chrony/chrony.drift",
        "/usr/local/sbin/rankclock-lab-test",
        "/opt/rankclock-lab-test/deep/file",
    ]
    before = {path: of_the_host(path) for path in paths}
    lab.install("gpu1", {path: path.encode() for path in paths})
    lab.install("gpu1", {"/etc/chrony/chrony.conf": b"again"})
    for path in paths[1:]:
        assert shell(lab, "gpu1", f"cat {path}") == path
    assert shell(lab, "gpu1", "cat /etc/chrony/chrony.conf; ls /etc/chrony") == "againchrony.conf\n"
    assert shell(lab, "gpu2", "ls -A /etc/chrony /var/lib/chrony").split() == ["/etc/chrony:", "/var/lib/chrony:"]
    assert {path: of_the_host(path) for path in paths} == before


def test_rest_of_the_hosts_files_is_readable_through_the_private_folders(lab: Lab) -> None:
    assert shell(lab, "gpu1", "cat /etc/passwd") == Path("/etc/passwd").read_text()
    assert shell(lab, "gpu1", "getent hosts gpu6").split() == ["10.80.2.13", "gpu6"]


@pytest.mark.parametrize("path", ["relative/path", "/etc/../etc/passwd", "/file"])
def test_path_that_could_leave_the_node_is_refused(lab: Lab, path: str) -> None:
    with pytest.raises(HostError, match="is installed"):
        lab.install("gpu1", {path: b"x"})


def test_no_process_of_a_node_holds_cap_sys_time_and_the_hosts_clock_devices_are_out_of_sight(lab: Lab) -> None:
    script = (
        "import glob, json\n"
        "caps = [int(l.split()[1], 16) >> 25 & 1 for f in glob.glob('/proc/[0-9]*/status') for l in open(f) "
        "if l.startswith('Cap')]\n"
        "devices = [g for p in ('rtc*', 'pps*', 'ptp*') for g in glob.glob('/dev/' + p)]\n"
        "print(json.dumps([sum(caps), len(caps), devices]))"
    )
    held, looked_at, devices = json.loads(lab.run("gpu1", [PYTHON, "-c", script], timeout_s=10).stdout)
    assert held == 0
    assert looked_at >= 10, "its first process and the one that looks"
    assert devices == ["/dev/ptp0"], "the emulated one"


def test_run_gives_output_input_and_exit_code_and_ends_what_takes_too_long(lab: Lab) -> None:
    done = lab.run("gpu1", ["sh", "-c", "cat; echo oops >&2; exit 5"], input="words", timeout_s=5)
    assert (done.stdout, done.stderr, done.returncode) == ("words", "oops\n", 5)
    started = time.monotonic()
    with pytest.raises(HostError, match="not ended within"):
        lab.run("gpu1", ["sleep", "60"], timeout_s=0.2)
    assert time.monotonic() - started < 5
    with pytest.raises(HostError, match="No such file"):
        lab.run("gpu1", ["/no/such/program"], timeout_s=5)
    with pytest.raises(UserError, match="no node 'nobody'"):
        lab.run("nobody", ["true"], timeout_s=5)


def test_spawned_process_logs_to_the_file_asked_for(lab: Lab, tmp_path: Path) -> None:
    process = lab.spawn("gpu1", ["sh", "-c", "echo hello; kill -TERM $$"], log=tmp_path / "log")
    assert process.wait(5) == -15
    assert (tmp_path / "log").read_text() == "hello\n"
    assert process.log_text() == "hello\n"


ONE_WAY = """
import json, os, socket, struct, sys
FLAGS = (1 << 1) | (1 << 3) | (1 << 4) | (1 << 11) | (1 << 7)
def stamp(ancillary):
    return next(s * 10**9 + n for _, what, data in ancillary if what == 37 for s, n in [struct.unpack("qq", data[:16])])
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, 37, FLAGS)
s.bind(("", 98))
s.settimeout(0.3)
if len(sys.argv) == 1:
    print("ready", flush=True)
    s.settimeout(None)
    while True:
        data, ancillary, _, peer = s.recvmsg(99, 512)
        arrived = stamp(ancillary)
        s.sendto(struct.pack("q", arrived), peer)
        sent = None
        while sent is None:
            try: sent = stamp(s.recvmsg(0, 512, socket.MSG_ERRQUEUE)[1])
            except BlockingIOError: pass
        print(data.decode(), sent, flush=True)
rows = []
for i in range(int(sys.argv[2])):
    s.sendto(str(i).encode(), (sys.argv[1], 98))
    sent = None
    while sent is None:
        try: sent = stamp(s.recvmsg(0, 512, socket.MSG_ERRQUEUE)[1])
        except BlockingIOError: pass
    try: data, ancillary, _, _ = s.recvmsg(99, 512)
    except TimeoutError: rows.append(None); continue
    rows.append((i, struct.unpack("q", data)[0] - sent, stamp(ancillary)))
print(json.dumps(rows))
"""


def one_way_ns(lab: Lab, count: int = 40) -> tuple[float, float, int]:
    """Median delay out of gpu1 and into it, in ns of the host's clock, and how many of the probes got no answer."""
    server = lab.spawn("gpu2", [PYTHON, "-c", ONE_WAY], clock=False)
    while "ready" not in server.log_text():
        assert server.poll() is None, server.log_text()
        time.sleep(0.01)
    done = lab.run("gpu1", [PYTHON, "-c", ONE_WAY, "10.80.1.12", str(count)], timeout_s=60, clock=False)
    assert done.returncode == 0, done.stderr
    server.kill()
    server.wait(5)
    sent_back = {int(i): int(ns) for i, ns in (line.split() for line in server.log_text().splitlines()[1:])}
    rows = [row for row in json.loads(done.stdout) if row is not None]
    out_ns = statistics.median(row[1] for row in rows)
    in_ns = statistics.median(arrived - sent_back[i] for i, _, arrived in rows)
    return out_ns, in_ns, count - len(rows)


def test_cable_delays_each_way_by_what_was_set_while_the_lab_runs(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    link = lab.link("gpu1")
    free_out_ns, free_in_ns, _ = one_way_ns(lab)
    assert max(free_out_ns, free_in_ns) < 200_000
    link.set(delay_ns=1_000_000, asymmetry_ns=600_000)
    try:
        assert (link.settings.delay_ns, link.settings.asymmetry_ns) == (1_000_000, 600_000)
        out_ns, in_ns, _ = one_way_ns(lab)
    finally:
        link.set(delay_ns=0, asymmetry_ns=0)
    assert 1_300_000 <= out_ns < 1_400_000
    assert 700_000 <= in_ns < 800_000
    with capsys.disabled():
        free = f"{free_out_ns / 1e3:.1f}/{free_in_ns / 1e3:.1f}"
        print(f"\ncable: free {free} µs, set to 1300/700 µs: {out_ns / 1e3:.1f}/{in_ns / 1e3:.1f} µs")


def test_cable_loses_what_it_was_told_to_lose(lab: Lab) -> None:
    link = lab.link("gpu1")
    link.set(loss=1.0)
    try:
        done = lab.run("gpu1", [PYTHON, "-c", ONE_WAY, "10.80.1.12", "2"], timeout_s=20, clock=False)
        assert json.loads(done.stdout) == [None, None]
    finally:
        link.set(loss=0.0)
    assert one_way_ns(lab, 5)[2] == 0


def test_cable_carries_a_bulk_transfer_whole(lab: Lab) -> None:
    receive = (
        "import hashlib, socket\ns = socket.create_server(('', 97)); print('ready', flush=True); c = s.accept()[0]\n"
        "h = hashlib.sha256()\nwhile d := c.recv(1 << 20): h.update(d)\nprint(h.hexdigest())"
    )
    server = lab.spawn("gpu2", [PYTHON, "-c", receive])
    while "ready" not in server.log_text():
        time.sleep(0.01)
    send = (
        "import hashlib, random, socket\nd = random.Random(1).randbytes(8_000_000)\n"
        "socket.create_connection(('gpu2', 97)).sendall(d); print(hashlib.sha256(d).hexdigest())"
    )
    sent = lab.run("gpu1", [PYTHON, "-c", send], timeout_s=30).stdout
    assert server.wait(10) == 0
    assert server.log_text() == "ready\n" + sent


def test_unplugged_interface_loses_its_carrier_and_gets_it_back(lab: Lab) -> None:
    for node in ("gpu1", "gpu3"):  # one with a cable, one without
        lab.link(node).plug(False)
        assert shell(lab, node, "cat /sys/class/net/eth0/carrier") == "0\n"
        lab.link(node).plug(True)
        assert shell(lab, node, "cat /sys/class/net/eth0/carrier") == "1\n"


def test_impossible_or_unprepared_changes_of_a_path_are_refused(lab: Lab) -> None:
    with pytest.raises(UserError, match="plain one"):
        lab.link("gpu2").set(delay_ns=1)
    with pytest.raises(UserError, match="needs a delay_ns of at least 500"):
        lab.link("gpu1").set(asymmetry_ns=1000)
    with pytest.raises(UserError, match="no interface 'eth7'"):
        lab.link("gpu1", "eth7")


def test_environment_of_a_node_carries_no_preload_of_ours_when_the_hosts_clock_is_asked_for(lab: Lab) -> None:
    assert "LD_PRELOAD" not in lab.environment("gpu1", clock=False)
    assert os.environ.get("HOME", "") == lab.environment("gpu1").get("HOME", "")


@pytest.mark.parametrize(
    ("sender", "address"), [("gpu2", "10.80.1.13"), ("gpu2", "10.80.2.11"), ("gpu1", "10.80.1.12")]
)
def test_packet_has_one_transmit_stamp_whatever_carries_it(lab: Lab, sender: str, address: str) -> None:
    """A bridge that passed the sender's own frame on let the second veth stamp it again, 2 µs later."""
    script = """
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, 37, (1 << 1) | (1 << 4) | (1 << 7) | (1 << 11))
for _ in range(5):
    s.sendto(b"x", (sys.argv[1], 96))
    time.sleep(0.02)
stamps = 0
try:
    while True:
        ancillary = s.recvmsg(9, 512, socket.MSG_ERRQUEUE | socket.MSG_DONTWAIT)[1]
        stamps += any(what == 37 for _, what, _ in ancillary)
except BlockingIOError:
    print(stamps)
"""
    assert lab.run(sender, [PYTHON, "-c", script, address], timeout_s=10).stdout == "5\n"
