"""What an agent costs: a scrape, its memory after 10,000 of them, and native reads against forking the daemons' tools.

    python -m benchmarks.agent_cost [--scrapes 10000]

A lab of two nodes with real chronyds and ptp4ls; the agent of the second reads every second and probes the first.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankclock.cluster.model import Cluster
from rankclock.lab import Lab, Scenario
from rankclock.lab.daemons import find_daemon

__all__ = ["main", "measure"]

AGENT = "n2"
READS = 200


@dataclass(frozen=True)
class _Service:
    name: str
    argv: tuple[str, ...]


def main() -> int:
    """Print the table; 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scrapes", type=int, default=10_000)
    options = parser.parse_args()
    found = measure(options.scrapes)
    for name, value in found.items():
        print(f"{name:44} {value}")
    goals = (
        found["scrape p50, ms"] < 5,
        found["resident after, MB"] < 40,
        found["growth over the scrapes, MB"] < 1,
        found["chronyd: forking / native"] >= 50,
        found["ptp4l: forking / native"] >= 50,
    )
    print("goals met" if all(goals) else f"goals missed: {goals}")
    return 0 if all(goals) else 1


def measure(scrapes: int) -> dict[str, float]:
    """The figures by name."""
    nodes = [
        {"name": f"n{i}", "nics": [{"name": "eth0", "address": f"10.77.0.{i}/16", "segment": "lan"}]} for i in (1, 2)
    ]
    cluster = Cluster.model_validate({"schema": "rankclock-cluster/1", "name": "cost", "nodes": nodes})
    with Lab.up(Scenario.of(cluster)) as lab, tempfile.TemporaryDirectory() as folder:
        _start(lab, Path(folder))
        command = [sys.executable, "-m", "benchmarks.agent_cost", "--inside"]
        asked = {"scrapes": scrapes, "chronyc": str(find_daemon("chronyc")), "pmc": str(find_daemon("pmc"))}
        done = lab.run(AGENT, command, input=json.dumps(asked), timeout_s=280, cwd=str(Path(__file__).parents[1]))
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _start(lab: Lab, folder: Path) -> None:
    chrony = "driftfile /var/lib/chrony/drift\npidfile /run/chrony/chronyd.pid\nallow\n"
    for node, line in (("n1", "local stratum 1\n"), ("n2", "server 10.77.0.1 iburst minpoll 0 maxpoll 0\n")):
        lab.install(node, {"/etc/chrony/chrony.conf": (chrony + line).encode()})
        lab.start_service(node, _Service("chronyd", ("chronyd", "-d", "-u", "root", "-f", "/etc/chrony/chrony.conf")))
    for node, role in (("n1", "masterOnly"), ("n2", "slaveOnly")):
        text = f"[global]\ntime_stamping software\nfree_running 1\n{role} 1\n[eth0]\n"
        lab.install(node, {"/etc/linuxptp/ptp4l.conf": text.encode()})
        lab.start_service(node, _Service("ptp4l", ("ptp4l", "-f", "/etc/linuxptp/ptp4l.conf")))
    key, config = folder / "key", folder / "agent.yaml"
    key.write_bytes(b"a key for this benchmark")
    key.chmod(0o600)
    config.write_text(
        f"schema: rankclock-agent/1\nnode: {AGENT}\nread_every: 1s\n"
        f"probe: {{bind: '10.77.0.2:4910', key_file: {key}, peers: {{n1: '10.77.0.1:4910'}}}}\n"
    )
    prober = ["-m", "rankclock.mesh.prober", "--node", "n1", "--bind", "10.77.0.1:4910", "--key-file", str(key)]
    lab.spawn("n1", [sys.executable, *prober, "--responder-only"])
    lab.spawn(AGENT, [sys.executable, "-m", "rankclock.agent", str(config)], log=folder / "agent.log")


# ---- in the node ----


def _inside() -> None:
    """Measure from inside the node; the figures as JSON."""
    import http.client

    asked = json.load(sys.stdin)
    link = http.client.HTTPConnection("127.0.0.1", 4911, timeout=5)
    _wait_for(link)
    pid = _agent_pid()
    time.sleep(5)
    idle_from, at = _cpu_s(pid), time.monotonic()
    time.sleep(10)
    idle = (_cpu_s(pid) - idle_from) / (time.monotonic() - at)
    for _ in range(100):
        _get(link)
    before_kib, cpu_before, began = _rss_kib(pid), _cpu_s(pid), time.monotonic()
    took = sorted(_timed(lambda: _get(link)) for _ in range(asked["scrapes"]))
    span = time.monotonic() - began
    spent = _cpu_s(pid) - cpu_before - idle * span
    after_kib = _rss_kib(pid)
    size = len(_get(link))
    reads = _reads(asked)
    json.dump(
        {
            "scrape p50, ms": round(took[len(took) // 2] * 1e3, 3),
            "scrape p99, ms": round(took[len(took) * 99 // 100] * 1e3, 3),
            "scrape, bytes": size,
            "processor time a scrape, ms": round(spent / asked["scrapes"] * 1e3, 3),
            "processor time of reading every second, %": round(idle * 100, 2),
            "resident before, MB": round(before_kib / 1024, 1),
            "resident after, MB": round(after_kib / 1024, 1),
            "growth over the scrapes, MB": round((after_kib - before_kib) / 1024, 2),
            **reads,
        },
        sys.stdout,
    )


def _reads(asked: dict[str, Any]) -> dict[str, float]:
    import subprocess

    from rankclock.node.chronyd import ask, connected
    from rankclock.node.ptp4l import Conversation, _abstract
    from rankclock.wire import chrony
    from rankclock.wire.ptp_data_sets import TimeStatus

    def forked(*command: str) -> Callable[[], object]:
        return lambda: subprocess.run(command, capture_output=True, check=True)

    # One question each way, over a connection that stands: what the tools do besides starting is the same.
    with connected(("127.0.0.1", 323)) as link:
        native = _median(lambda: ask(link, chrony.TRACKING, time.monotonic() + 1), READS)
    tool = _median(forked(asked["chronyc"], "-c", "-n", "tracking"), 50)
    with _abstract() as ptp_link:
        ptp_link.connect("/var/run/ptp4l")
        talk = Conversation(ptp_link, "/var/run/ptp4l", 5.0)

        def once() -> None:
            talk._collect({talk._ask(TimeStatus, 0, 0): (TimeStatus, 1)})

        ptp_native = _median(once, READS)
    ptp_tool = _median(forked(asked["pmc"], "-u", "-b", "0", "GET TIME_STATUS_NP"), 10)
    return {
        "chronyd tracking: native, µs": round(native * 1e6, 1),
        "chronyd tracking: chronyc, µs": round(tool * 1e6, 1),
        "chronyd: forking / native": round(tool / native, 1),
        "ptp4l TIME_STATUS_NP: native, µs": round(ptp_native * 1e6, 1),
        "ptp4l TIME_STATUS_NP: pmc, µs": round(ptp_tool * 1e6, 1),
        "ptp4l: forking / native": round(ptp_tool / ptp_native, 1),
    }


def _median(job: Callable[[], object], count: int) -> float:
    return sorted(_timed(job) for _ in range(count))[count // 2]


def _timed(job: Callable[[], object]) -> float:
    began = time.perf_counter()
    job()
    return time.perf_counter() - began


def _get(link: Any) -> bytes:
    link.request("GET", "/metrics")
    body: bytes = link.getresponse().read()
    return body


def _wait_for(link: Any) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            if b'mesh_offset_known{node="n2",peer="n1"} 1.0' in _get(link):
                return
        except OSError:
            link.close()
        if time.monotonic() > deadline:
            raise RuntimeError("the agent does not measure")
        time.sleep(0.1)


def _agent_pid() -> int:
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and b"rankclock.agent\0" in (path / "cmdline").read_bytes():
            return int(path.name)
    raise RuntimeError("no agent runs")


def _rss_kib(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(text.split("VmRSS:")[1].split()[0])


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    if "--inside" in sys.argv:
        _inside()
    else:
        sys.exit(main())
