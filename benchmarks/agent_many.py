"""500 agents' listeners with the real encoder in one process, scraped by one real Prometheus; `status` over all.

    python -m benchmarks.agent_many [--agents 500]

The listeners stand in one process (500 processes do not fit here); everything else is what runs in a cluster.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rankclock.lab.daemons import find_daemon

__all__ = ["main"]

FIRST_PORT = 21000
PROMETHEUS = 20909
INTERVAL_S = 10
PEERS = 6


def main() -> int:
    """Print the figures; 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, default=500)
    count = parser.parse_args().agents
    agents = multiprocessing.get_context("spawn").Process(target=_serve, args=(count,), daemon=True)
    agents.start()
    with tempfile.TemporaryDirectory() as folder:
        server = _prometheus(Path(folder), count)
        try:
            found = _measure(count)
        finally:
            server.terminate()
            server.wait()
            agents.terminate()
            agents.join()
    for name, value in found.items():
        print(f"{name:44} {value}")
    good = found["up"] == count and found["status over all, s"] < 3 and found["readings that failed"] == 0
    print("goals met" if good else "goals missed")
    return 0 if good else 1


def _measure(count: int) -> dict[str, Any]:
    _until(lambda: _query("count(count_over_time(up{job='rankclock'}[1m]) > 2)") == count, 120)
    command = [sys.executable, "-m", "rankclock", "status", "--json", "--agents"]
    command.append(",".join(f"127.0.0.1:{FIRST_PORT + number}" for number in range(count)))
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, check=False)
    took = time.monotonic() - began
    answered = [row for row in json.loads(done.stdout) if row["state"] == "synchronised"]
    return {
        "agents": count,
        "up": _query("sum(up{job='rankclock'})"),
        "series of one agent": _query("max(scrape_samples_scraped{job='rankclock'})"),
        "scrape p50, ms": round(_query("quantile(0.5, scrape_duration_seconds{job='rankclock'})") * 1e3, 2),
        "scrape p99, ms": round(_query("quantile(0.99, scrape_duration_seconds{job='rankclock'})") * 1e3, 2),
        "Prometheus resident, MB": round(_query('process_resident_memory_bytes{job="itself"}') / 1e6),
        "rules: one evaluation, ms": round(_query("prometheus_rule_group_last_duration_seconds") * 1e3, 1),
        "readings that failed": _query("sum(prometheus_rule_evaluation_failures_total)"),
        "status over all, s": round(took, 2),
        "status: agents that answered": len(answered),
    }


def _until(condition: Any, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            if condition():
                return
        except (OSError, IndexError):
            pass
        time.sleep(1)
    raise RuntimeError(f"not within {timeout_s} s")


def _query(expression: str) -> float:
    url = f"http://127.0.0.1:{PROMETHEUS}/api/v1/query?query={quote(expression)}"
    with urllib.request.urlopen(url, timeout=10) as answer:
        value: float = float(json.load(answer)["data"]["result"][0]["value"][1])
    return value


def _prometheus(folder: Path, count: int) -> subprocess.Popen[bytes]:
    from rankclock.agent.alerts import rules_yaml

    targets = [f"127.0.0.1:{FIRST_PORT + number}" for number in range(count)]
    config = {
        "global": {"scrape_interval": f"{INTERVAL_S}s", "evaluation_interval": f"{INTERVAL_S}s"},
        "rule_files": ["rules.yml"],
        "scrape_configs": [
            {"job_name": "rankclock", "static_configs": [{"targets": targets}]},
            {"job_name": "itself", "static_configs": [{"targets": [f"127.0.0.1:{PROMETHEUS}"]}]},
        ],
    }
    (folder / "rules.yml").write_text(rules_yaml(), encoding="utf-8")
    (folder / "prometheus.yml").write_text(json.dumps(config), encoding="utf-8")
    options = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb", "--log.level=error"]
    return subprocess.Popen([find_daemon("prometheus"), *options, f"--web.listen-address=127.0.0.1:{PROMETHEUS}"])


def _serve(count: int) -> None:
    asyncio.run(_listen(count))


async def _listen(count: int) -> None:
    """All listeners; each story looks again every ten seconds, so that every page is encoded anew."""
    from rankclock.agent.http_server import HttpServer
    from rankclock.agent.pages import Clocks, Pages
    from rankclock.agent.settings import ProbeSettings, Settings
    from rankclock.agent.story import Story
    from rankclock.node.kernel import raw_ns

    stories, servers = [], []
    for number in range(count):
        peers = {f"n{(number + step) % count}": ("127.0.0.1", 1) for step in range(1, PEERS + 1)}
        probe = ProbeSettings(bind="", key_hex="", peers=peers)
        story = Story(settings=Settings(node=f"n{number}", probe=probe))
        stories.append(story)
        pages = Pages(story, lambda: Clocks(raw_ns(), time.time()))
        servers.append(HttpServer(pages.answer, on_error=print))
        await servers[-1].open("127.0.0.1", FIRST_PORT + number)
    while True:
        for story in stories:
            _look(story, raw_ns())
            await asyncio.sleep(10 / count)


def _look(story: Any, now_ns: int) -> None:
    from rankclock.agent.look import Look, Source, Sources
    from rankclock.mesh.report import EdgeReport, NodeReport
    from rankclock.timebase import ClockState, Offset, SyncState

    def offset(reference: str) -> Offset:
        spread_ns = hash((story.settings.node, reference, now_ns)) % 2_000 - 1_000
        return Offset.around(spread_ns, 9_000, reference=reference, method="synthetic", at_raw_ns=now_ns)

    state = ClockState(
        node=story.settings.node,
        state=SyncState.SYNCHRONISED,
        owner="chronyd",
        source="time1",
        claimed=offset("root"),
        measured=offset("none"),
        reasons=("follows time1",),
    )
    shown = tuple(
        Source(name=f"10.0.0.{i}", state="selectable", reach=255, offset_ns=1, bound_ns=2, age_ns=3) for i in range(4)
    )
    look = Look(
        state=state, sources=Sources(counts={"selectable": 4}, shown=shown), ptp=(), kernel=None, at_raw_ns=now_ns
    )
    story.handle_look(look, took_ns=1_000_000, now_ns=now_ns)
    edges = tuple(
        EdgeReport(
            peer=peer, peer_clock_id="", offset=offset(peer), raw=None, raw_estimate_ns=None, raw_rate_ppb=None,
            min_rtt_ns=20_000, sent=9, answered=9,
        )
        for peer in story.settings.probe.peers
    )  # fmt: skip
    report = NodeReport(
        node=story.settings.node,
        clock_id="",
        stamps="kernel",
        made_at_raw_ns=now_ns,
        readings=(),
        edges=edges,
        counters={},
    )
    story.handle_report(report, took_ns=1_000_000, now_ns=now_ns)


if __name__ == "__main__":
    sys.exit(main())
