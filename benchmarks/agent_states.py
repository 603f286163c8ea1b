"""What a parser of `chronyc -c tracking` says of a clock, and what an agent says, in states where the truth is known.

    python -m benchmarks.agent_states

The parser does what published exporters and checks do: leap status, |system time| + root dispersion + root delay / 2.
(The node exporter is a Go program: it ignores the preloaded clocks of this lab and is left out.)
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rankclock.cluster.model import Cluster
from rankclock.lab import Lab, Scenario
from rankclock.lab.daemons import find_daemon
from rankclock.timebase import NS_PER_S, ClockState, SyncState, format_offset_ns, format_span_ns

__all__ = ["main"]

GOOD, FOLLOWER, ISLAND, ALONE, LIAR, LIED_TO = (f"n{i}" for i in range(1, 7))
WHAT = {
    FOLLOWER: "follows a right server",
    ISLAND: "`local` island, 2 s off",
    ALONE: "its server never answered, 2 s off",
    LIED_TO: "follows a server that is 3 s off",
}
LINES = {
    GOOD: "local stratum 1\n",
    FOLLOWER: "server 10.77.0.1 iburst minpoll -2 maxpoll -2\n",
    ISLAND: "local stratum 10\n",
    ALONE: "server 10.77.0.200 iburst\n",
    LIAR: "local stratum 1\n",
    LIED_TO: "server 10.77.0.5 iburst minpoll -2 maxpoll -2\nmakestep 0.1 3\n",
}


@dataclass(frozen=True)
class _Service:
    name: str
    argv: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """What somebody says: whether the clock is fine, and within what bound."""

    fine: bool
    bound_ns: int | None
    text: str

    def wrong(self, truth_ns: int) -> bool:
        """A confident wrong answer: called fine, and the truth is outside the bound."""
        return self.fine and (self.bound_ns is None or abs(truth_ns) > self.bound_ns)


def main() -> int:
    """Print the table; 1 where the agent gives a confident wrong answer."""
    nodes = [
        {"name": f"n{i}", "nics": [{"name": "eth0", "address": f"10.77.0.{i}/16", "segment": "lan"}]}
        for i in range(1, 7)
    ]
    cluster = Cluster.model_validate({"schema": "rankclock-cluster/1", "name": "states", "nodes": nodes})
    clocks = {
        ISLAND: {"offset_ns": 2 * NS_PER_S},
        ALONE: {"offset_ns": -2 * NS_PER_S},
        LIAR: {"offset_ns": 3 * NS_PER_S},
    }
    wrong = 0
    with Lab.up(Scenario.of(cluster, clocks=clocks)) as lab, tempfile.TemporaryDirectory() as folder:
        _start(lab, Path(folder))
        time.sleep(12)
        print(f"{'state':36} {'truth':>9}  {'parser of chronyc -c':44} agent")
        for node, what in WHAT.items():
            truth_ns = lab.true_offset_ns(node, GOOD)
            parser, agent = _parse(lab, node), _ask(lab, node)
            wrong += agent.wrong(truth_ns)
            told = [f"{one.text}{' WRONG' if one.wrong(truth_ns) else ''}" for one in (parser, agent)]
            print(f"{what:36} {format_offset_ns(truth_ns):>9}  {told[0]:44} {told[1]}")
    return 1 if wrong else 0


def _start(lab: Lab, folder: Path) -> None:
    key = folder / "key"
    key.write_bytes(b"a key for this benchmark")
    key.chmod(0o600)
    for node, lines in LINES.items():
        text = f"driftfile /var/lib/chrony/drift\npidfile /run/chrony/chronyd.pid\nallow\n{lines}"
        lab.install(node, {"/etc/chrony/chrony.conf": text.encode()})
        lab.start_service(node, _Service("chronyd", ("chronyd", "-d", "-u", "root", "-f", "/etc/chrony/chrony.conf")))
        peers = ", ".join(f"{peer}: '10.77.0.{peer[1:]}:4910'" for peer in (GOOD, FOLLOWER) if peer != node)
        path = folder / f"{node}.yaml"
        path.write_text(
            f"schema: rankclock-agent/1\nnode: {node}\nread_every: 1s\n"
            f"probe: {{bind: '10.77.0.{node[1:]}:4910', key_file: {key}, peers: {{{peers}}}}}\n"
        )
        lab.spawn(node, [sys.executable, "-m", "rankclock.agent", str(path)], log=folder / f"{node}.log")


def _parse(lab: Lab, node: str) -> _Told:
    done = lab.run(node, [str(find_daemon("chronyc")), "-c", "-n", "tracking"], timeout_s=10)
    fields = done.stdout.strip().split(",")
    correction_s, delay_s, dispersion_s, leap = float(fields[4]), float(fields[10]), float(fields[11]), fields[13]
    bound_ns = round((abs(correction_s) + dispersion_s + delay_s / 2) * 1e9)
    fine = leap == "Normal"
    return _Told(fine=fine, bound_ns=bound_ns, text=f"{leap}, bound {format_span_ns(bound_ns)}")


def _ask(lab: Lab, node: str) -> _Told:
    code = "import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:4911/status').read().decode())"
    done = lab.run(node, [sys.executable, "-c", code], timeout_s=10)
    state = ClockState.from_json(json.loads(done.stdout))
    fine = state.state is SyncState.SYNCHRONISED
    far_ns = None
    if state.claimed.lo_ns is not None and state.claimed.hi_ns is not None:
        far_ns = max(abs(state.claimed.lo_ns), abs(state.claimed.hi_ns))
    bound = f", bound {format_span_ns(far_ns)}" if fine and far_ns is not None else ""
    return _Told(fine=fine, bound_ns=far_ns, text=f"{state.state.value}{bound}: {state.reasons[0]}")


if __name__ == "__main__":
    sys.exit(main())
