"""Agents beside real daemons in every state, scraped by a real Prometheus over TLS with a password; the truth is known.

What an agent calls synchronised has a claim that holds the truth, and every offset that it measured holds it always.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from rankclock.agent.dashboards import DASHBOARDS, queries_of
from rankclock.agent.files import write_files
from rankclock.agent.users import password_line
from rankclock.lab import Lab, Scenario
from rankclock.lab.process import LabProcess
from rankclock.timebase import NS_PER_MS, NS_PER_S, ClockState, Offset, SyncState

pytestmark = pytest.mark.lab

Until = Callable[..., None]
FETCH = Path(__file__).with_name("agent_fetch.py")
USER = "prometheus:a password"
SERVER, FOLLOWER, ISLAND, STOPPED, ORPHAN, OTHER_SERVER, LIED_TO, LIAR, PTP_SERVER, PTP_CLIENT = (
    f"n{i}" for i in range(1, 11)
)
WATCHED = (SERVER, FOLLOWER, ISLAND, STOPPED, ORPHAN, LIED_TO, PTP_SERVER, PTP_CLIENT)
PEERS = {FOLLOWER: (SERVER, STOPPED, LIED_TO)}
CHRONY = "driftfile /var/lib/chrony/chrony.drift\npidfile /run/chrony/chronyd.pid\nallow\n"
FAST_PTP = (
    "[global]\ntime_stamping software\nlogAnnounceInterval -1\nlogSyncInterval -3\nlogMinDelayReqInterval -3\n"
    "pi_proportional_const 0.7\npi_integral_const 0.3\nstep_threshold 0.00002\nfirst_step_threshold 0.00002\n{role} 1\n"
    "[eth0]\n"
)


@dataclass(frozen=True)
class Service:
    name: str
    argv: tuple[str, ...]


BABBLER = """
import os, random, socket
link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
link.bind(("127.0.0.1", 323))
while True:
    data, asker = link.recvfrom(4096)
    reply = bytearray(data.ljust(104, b"\\0"))
    reply[1] = 2  # as a reply, with the right sequence in the wrong place, then cut anywhere, then noise
    for answer in (reply, reply[: random.randrange(104)], os.urandom(104), b"", os.urandom(4000)):
        link.sendto(answer, asker)
"""

CHRONYD = Service("chronyd", ("/usr/sbin/chronyd", "-d", "-u", "root", "-f", "/etc/chrony/chrony.conf"))
PTP4L = Service("ptp4l", ("/usr/sbin/ptp4l", "-f", "/etc/linuxptp/ptp4l.conf"))


def address(node: str) -> str:
    return f"10.77.0.{node[1:]}"


def server(node: str) -> str:
    return f"server {address(node)} iburst minpoll -2 maxpoll -2 xleave\nmakestep 0.1 3\n"


CONFIGURED = {
    SERVER: "local stratum 1\n",
    FOLLOWER: server(SERVER),
    ISLAND: "local stratum 10\n",
    STOPPED: server(SERVER),
    ORPHAN: server(OTHER_SERVER),
    OTHER_SERVER: "local stratum 1\n",
    LIED_TO: server(LIAR),
    LIAR: "local stratum 1\n",
    PTP_SERVER: server(SERVER),
}


class Watched:
    """The lab with its agents, asked from inside it."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab = lab
        self.folder = folder
        self.agents: dict[str, LabProcess] = {}

    def fetch(self, *urls: tuple[str, str]) -> list[tuple[int, str, float]]:
        asked = {"urls": urls, "ca": str(self.folder / "agent.crt")}
        done = self.lab.run(SERVER, [sys.executable, str(FETCH)], input=json.dumps(asked), timeout_s=30, clock=False)
        assert done.returncode == 0, done.stderr
        return [(status, text, seconds) for status, text, seconds in json.loads(done.stdout)]

    def page(self, node: str, path: str, user: str = USER) -> tuple[int, str, float]:
        return self.fetch((f"https://{address(node)}:4911{path}", user))[0]

    def statuses(self, nodes: tuple[str, ...] = WATCHED) -> dict[str, dict[str, Any]]:
        found = self.fetch(*((f"https://{address(node)}:4911/status", USER) for node in nodes))
        return {node: json.loads(text) for node, (status, text, _) in zip(nodes, found, strict=True) if status == 200}

    def status(self, node: str) -> ClockState:
        return ClockState.from_json(self.statuses((node,))[node])

    def metrics(self, node: str) -> dict[str, float]:
        status, text, _ = self.page(node, "/metrics")
        assert status == 200, text
        lines = [line.rsplit(" ", 1) for line in text.splitlines() if line and line[0] != "#"]
        return {re.sub(r'node="n\d+",?|,node="n\d+"', "", name): float(value) for name, value in lines}

    def settles(self, node: str, wanted: SyncState, until: Until, timeout_s: float = 20) -> ClockState:
        seen: list[ClockState] = []

        def is_wanted() -> bool:
            found = self.statuses((node,))
            if node in found:
                seen.append(ClockState.from_json(found[node]))
            return bool(seen) and seen[-1].state is wanted

        until(is_wanted, timeout_s, f"{node} {wanted}; seen: {seen[-1:]}", every_s=0.1)
        return seen[-1]

    def query(self, *expressions: str) -> list[list[dict[str, Any]]]:
        urls = [(f"http://127.0.0.1:9090/api/v1/query?query={quote(one)}", "") for one in expressions]
        answers = [json.loads(text) for _, text, _ in self.fetch(*urls)]
        assert all(answer["status"] == "success" for answer in answers), answers
        return [answer["data"]["result"] for answer in answers]

    def truth_ns(self, node: str, other: str, offset: Offset) -> int:
        return self.lab.true_offset_ns(node, other, at_raw_ns=offset.at_raw_ns)

    def start_agent(self, node: str) -> None:
        path = self.folder / f"{node}.yaml"
        peers = PEERS.get(node) or tuple(peer for peer in (SERVER, FOLLOWER, PTP_SERVER) if peer != node)
        listed = ", ".join(f"{peer}: '{address(peer)}:4910'" for peer in peers)
        path.write_text(
            f"schema: rankclock-agent/1\nnode: {node}\nlisten: '{address(node)}:4911'\n"
            f"tls: {{certificate: {self.folder}/agent.crt, key: {self.folder}/agent.key}}\n"
            f"users_file: {self.folder}/users\nread_every: 500ms\n"
            f"probe: {{bind: '{address(node)}:4910', key_file: {self.folder}/key, peers: {{{listed}}}}}\n"
        )
        log = self.folder / f"{node}.log"
        self.agents[node] = self.lab.spawn(node, [sys.executable, "-m", "rankclock.agent", str(path)], log=log)

    def log(self, node: str) -> str:
        return (self.folder / f"{node}.log").read_text()

    def pids(self, node: str) -> tuple[str, str]:
        """(agent, its prober), as the node numbers them."""
        find = f"agent=$(pgrep -f '[-]m rankclock.agent {self.folder}/{node}.yaml') && echo $agent $(pgrep -P $agent)"
        agent, prober = self.lab.run(node, ["sh", "-c", find], timeout_s=5).stdout.split()
        return agent, prober

    def rss_kib(self, node: str) -> int:
        done = self.lab.run(node, ["grep", "VmRSS", f"/proc/{self.pids(node)[0]}/status"], timeout_s=5)
        return int(done.stdout.split()[1])


@pytest.fixture(scope="module")
def watched(
    lab_of: Callable[[Scenario], Lab],
    flat: Callable[..., Scenario],
    daemon: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
    until: Until,
) -> Watched:
    for name in ("chronyd", "ptp4l", "prometheus"):
        daemon(name)
    clocks = {
        FOLLOWER: {"offset_ns": -3 * NS_PER_MS, "drift_ppb": 40_000},
        LIAR: {"offset_ns": 3 * NS_PER_S},
        PTP_CLIENT: {"offset_ns": NS_PER_MS, "drift_ppb": 10_000},
    }
    lab = lab_of(flat(10, clocks=clocks))
    folder = tmp_path_factory.mktemp("agents")
    for node, lines in CONFIGURED.items():
        lab.install(node, {"/etc/chrony/chrony.conf": (CHRONY + lines).encode()})
        lab.start_service(node, CHRONYD)
    for node, role in ((PTP_SERVER, "masterOnly"), (PTP_CLIENT, "slaveOnly")):
        lab.install(node, {"/etc/linuxptp/ptp4l.conf": FAST_PTP.format(role=role).encode()})
        lab.start_service(node, PTP4L)
    _secrets(folder)
    found = Watched(lab, folder)
    for node in WATCHED:
        found.start_agent(node)
    _prometheus(found, daemon("prometheus"))
    until(lambda: len(found.statuses()) == len(WATCHED), 30, "all agents answer", every_s=0.2)
    for node in (FOLLOWER, STOPPED, ORPHAN, PTP_SERVER, PTP_CLIENT):
        found.settles(node, SyncState.SYNCHRONISED, until, timeout_s=40)
    return found


def _secrets(folder: Path) -> None:
    names = ",".join(f"IP:{address(node)}" for node in WATCHED)
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", "agent.key", "-out", "agent.crt", "-days", "2", "-subj", "/CN=agents"]
    subprocess.run([*command, "-addext", f"subjectAltName={names}"], cwd=folder, check=True, capture_output=True)
    (folder / "users").write_text(password_line(*USER.split(":")) + "\n")
    (folder / "key").write_bytes(b"the agents of a lab share this")
    for name in ("agent.key", "users", "key"):
        (folder / name).chmod(0o600)


def _prometheus(watched: Watched, program: Path) -> None:
    write_files(watched.folder, None)
    name, password = USER.split(":")
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rankclock.rules.yml"],
        "scrape_configs": [
            {
                "job_name": "rankclock",
                "scheme": "https",
                "tls_config": {"ca_file": str(watched.folder / "agent.crt")},
                "basic_auth": {"username": name, "password": password},
                "static_configs": [
                    {"targets": [f"{address(node)}:4911" for node in WATCHED], "labels": {"rack": "rack1"}}
                ],
            }
        ],
    }
    path = watched.folder / "prometheus/lab.yml"
    path.write_text(json.dumps(config))
    watched.lab.spawn(
        SERVER,
        [
            str(program),
            f"--config.file={path}",
            f"--storage.tsdb.path={watched.folder}/tsdb",
            "--web.listen-address=127.0.0.1:9090",
            "--log.level=warn",
        ],
        log=watched.folder / "prometheus.log",
        clock=False,
    )


# ---- states ----

STATES = {
    SERVER: SyncState.FREE_RUNNING,  # `local`: it is the reference of this lab, and follows nobody
    FOLLOWER: SyncState.SYNCHRONISED,
    ISLAND: SyncState.FREE_RUNNING,
    STOPPED: SyncState.SYNCHRONISED,
    ORPHAN: SyncState.SYNCHRONISED,
    LIED_TO: SyncState.UNKNOWN,
    PTP_SERVER: SyncState.SYNCHRONISED,
    PTP_CLIENT: SyncState.SYNCHRONISED,
}
ROOTS = {FOLLOWER: SERVER, STOPPED: SERVER, ORPHAN: OTHER_SERVER, PTP_SERVER: SERVER, PTP_CLIENT: PTP_SERVER}


def test_each_node_is_called_what_it_is(watched: Watched, until: Until) -> None:
    watched.settles(LIED_TO, SyncState.UNKNOWN, until)
    seen = {node: SyncState(status["state"]) for node, status in watched.statuses().items()}
    assert seen == STATES


def test_every_claim_of_a_synchronised_clock_and_every_measured_offset_holds_the_truth(watched: Watched) -> None:
    measured = 0
    for _ in range(10):
        for node, status in watched.statuses().items():
            state = ClockState.from_json(status)
            if state.state is SyncState.SYNCHRONISED:
                assert state.claimed.contains(watched.truth_ns(node, ROOTS[node], state.claimed)), state
            for peer, value in status["agent"]["peers"].items():
                offset = Offset.from_json(value)
                if offset.known:
                    assert offset.contains(watched.truth_ns(node, peer, offset)), (node, peer, offset)
                    measured += 1
    assert measured > 100


def test_a_client_of_a_liar_claims_what_its_neighbours_refute(watched: Watched, until: Until) -> None:
    seen = watched.settles(LIED_TO, SyncState.UNKNOWN, until)
    assert "3 of 3 peers measured contradict what the daemon claims" in seen.reasons
    assert seen.claimed.known
    assert watched.metrics(LIED_TO)["rankclock_mesh_disagrees{}"] == 1
    assert watched.metrics(FOLLOWER)["rankclock_mesh_disagrees{}"] == 0
    assert watched.metrics(FOLLOWER)["rankclock_mesh_peers_against{}"] == 1


def test_an_island_shows_no_zero_as_its_offset(watched: Watched) -> None:
    found = watched.metrics(ISLAND)
    assert found["rankclock_claimed_offset_known{}"] == 0
    assert not any(name.startswith("rankclock_claimed_offset_seconds") for name in found)


# ---- Prometheus ----


def test_every_query_of_every_dashboard_returns_data(watched: Watched, until: Until) -> None:
    until(lambda: all(watched.query("count(rankclock_agent_info) == 8", "ALERTS")), 20, "all are scraped", every_s=0.5)
    until(lambda: watched.query("count_over_time(rankclock_maintenance[1m]) > 3")[0], 20, "a few scrapes", every_s=0.5)
    empty = []
    for name, dashboard in DASHBOARDS.items():
        queries = [query.replace("$rack", "rack1") for query in queries_of(dashboard)]
        if "$node" not in "".join(queries):
            empty += [(name, query) for query, found in zip(queries, watched.query(*queries), strict=True) if not found]
            continue
        for query in queries:  # a node's panels: of the nodes, some have what the panel shows
            if not any(watched.query(*(query.replace("$node", node) for node in (FOLLOWER, PTP_CLIENT)))):
                empty.append((name, query))
    assert empty == []


def test_prometheus_sees_the_faults_as_alerts_and_nothing_at_healthy_nodes(watched: Watched, until: Until) -> None:
    wanted = {(ISLAND, "RankclockClockUnsynchronised"), (LIED_TO, "RankclockMeshDisagrees")}

    def alerts() -> set[tuple[str, str]]:
        return {(one["metric"].get("node", ""), one["metric"]["alertname"]) for one in watched.query("ALERTS")[0]}

    until(lambda: wanted <= alerts(), 20, "alerts are pending", every_s=0.5)
    assert {name for node, name in alerts() if node == FOLLOWER} <= {"RankclockFewSources"}
    assert watched.query("prometheus_rule_evaluation_failures_total > 0")[0] == []


# ---- doors ----


def test_pages_take_a_password_and_health_takes_none(watched: Watched) -> None:
    assert watched.page(FOLLOWER, "/metrics", user="")[0] == 401
    assert watched.page(FOLLOWER, "/status", user="prometheus:wrong")[0] == 401
    assert watched.page(FOLLOWER, "/healthz", user="")[:2] == (200, "healthy\n")
    assert watched.page(FOLLOWER, "/readyz", user="")[:2] == (200, "ready\n")
    assert watched.page(FOLLOWER, "/nothing")[0] == 404
    status, text, _ = watched.page(FOLLOWER, "/")
    assert status == 200
    assert "synchronised" in text


def test_status_and_check_ask_agents(watched: Watched) -> None:
    env = {"RANKCLOCK_AGENT_USER": USER, "RANKCLOCK_AGENT_CA": str(watched.folder / "agent.crt")}
    agents = ",".join(f"https://{address(node)}:4911" for node in (FOLLOWER, LIED_TO))
    command = [sys.executable, "-m", "rankclock"]
    done = watched.lab.run(
        SERVER, [*command, "status", "--agents", agents, "--json"], timeout_s=20, env=env, clock=False
    )
    assert [row["node"] for row in json.loads(done.stdout)] == [LIED_TO, FOLLOWER], done.stderr
    assert done.returncode == 4
    check = [*command, "check", "--agent", f"https://{address(FOLLOWER)}:4911", "--critical", "10ms"]
    done = watched.lab.run(SERVER, check, timeout_s=20, env=env, clock=False)
    assert "n2: synchronised by chronyd" in done.stdout
    assert "measured_offset=" in done.stdout
    assert done.returncode == 1, "one source where three are wanted is a warning"
    done = watched.lab.run(SERVER, check, timeout_s=20, clock=False)
    assert done.returncode == 3


# ---- faults ----


def test_maintenance_is_a_metric_while_its_file_is_there(watched: Watched, until: Until) -> None:
    watched.lab.install(ISLAND, {"/run/rankclock/maintenance": b"2h\n"})
    until(lambda: watched.metrics(ISLAND)["rankclock_maintenance{}"] == 1, 5, "maintenance")
    watched.lab.run(ISLAND, ["rm", "/run/rankclock/maintenance"], timeout_s=5)
    until(lambda: watched.metrics(ISLAND)["rankclock_maintenance{}"] == 0, 5, "no maintenance")


def test_a_stopped_killed_and_restarted_daemon_is_followed_and_scrapes_stay_quick(
    watched: Watched, until: Until
) -> None:
    watched.lab.signal_service(STOPPED, "chronyd", signal.SIGSTOP)
    seen = watched.settles(STOPPED, SyncState.FREE_RUNNING, until)
    assert any("stopped by a signal" in reason for reason in seen.reasons)
    assert not seen.claimed.known
    status, _, seconds = watched.page(STOPPED, "/metrics")
    assert (status, seconds < 1) == (200, True)
    watched.lab.signal_service(STOPPED, "chronyd", signal.SIGKILL)
    until(lambda: watched.status(STOPPED).owner is None, 10, "nobody steers")
    watched.lab.start_service(STOPPED, CHRONYD)
    watched.settles(STOPPED, SyncState.SYNCHRONISED, until)
    assert watched.page(STOPPED, "/healthz")[0] == 200


def test_a_client_whose_server_died_is_in_holdover_and_the_time_is_counted(watched: Watched, until: Until) -> None:
    watched.lab.signal_service(OTHER_SERVER, "chronyd", signal.SIGKILL)
    watched.settles(ORPHAN, SyncState.HOLDOVER, until, timeout_s=30)
    before = watched.metrics(ORPHAN)["rankclock_holdover_seconds{}"]
    until(lambda: watched.metrics(ORPHAN)["rankclock_holdover_seconds{}"] > before, 5, "holdover goes on")


def test_a_client_that_lost_its_grandmaster_is_no_longer_synchronised(watched: Watched, until: Until) -> None:
    watched.lab.signal_service(PTP_SERVER, "ptp4l", signal.SIGKILL)
    seen = watched.settles(PTP_CLIENT, SyncState.HOLDOVER, until)
    assert seen.claimed.contains(watched.truth_ns(PTP_CLIENT, PTP_SERVER, seen.claimed))
    listening = 'rankclock_ptp_port_state{domain="0",port="1",state="LISTENING"}'
    until(lambda: watched.metrics(PTP_CLIENT)[listening] == 1, 10, "the port listens")
    seen = watched.status(PTP_CLIENT)
    assert (seen.state, seen.claimed.known) == (SyncState.HOLDOVER, False), "ptp4l still shows its last offset"


def test_a_step_is_counted_and_claims_that_exclude_it_do_not_last(watched: Watched, until: Until) -> None:
    before = watched.metrics(FOLLOWER)["rankclock_clock_steps_total{}"]
    watched.lab.clock(FOLLOWER).step_ns(50 * NS_PER_MS)
    until(lambda: watched.metrics(FOLLOWER)["rankclock_clock_steps_total{}"] > before, 5, "the step is counted")

    def holds() -> bool:
        seen = watched.status(FOLLOWER)
        if seen.state is not SyncState.SYNCHRONISED:
            return False
        return seen.claimed.contains(watched.truth_ns(FOLLOWER, SERVER, seen.claimed))

    until(holds, 15, "the claim contains the truth again")


def test_a_thousand_sources_are_counted_and_a_few_shown(watched: Watched, until: Until) -> None:
    many = "".join(f"server 10.77.{100 + i // 250}.{1 + i % 250} offline\n" for i in range(1000))
    watched.lab.stop_service(ISLAND, "chronyd")
    watched.lab.install(ISLAND, {"/etc/chrony/chrony.conf": (CHRONY + "local stratum 10\n" + many).encode()})
    watched.lab.start_service(ISLAND, CHRONYD)

    def counted() -> bool:
        return sum(v for k, v in watched.metrics(ISLAND).items() if k.startswith("rankclock_sources{")) == 1000

    until(counted, 20, "all are counted", every_s=0.2)
    found = watched.metrics(ISLAND)
    assert sum(name.startswith("rankclock_source_reach_ratio") for name in found) == 16
    assert found['rankclock_reader_up{reader="daemons"}'] == 1
    assert watched.status(ISLAND).state is SyncState.FREE_RUNNING


def test_a_daemon_whose_port_answers_garbage_is_unknown_and_never_fine(watched: Watched, until: Until) -> None:
    """chronyd is gone and something else has its port: cut-off, wrong and endless answers."""
    watched.lab.signal_service(FOLLOWER, "chronyd", signal.SIGSTOP)  # it keeps its port, and says nothing
    watched.settles(FOLLOWER, SyncState.FREE_RUNNING, until)
    watched.lab.stop_service(FOLLOWER, "chronyd")
    babbler = watched.folder / "chronyd"
    babbler.write_text(f"#!{sys.executable}\n{BABBLER}")
    babbler.chmod(0o755)
    process = watched.lab.spawn(FOLLOWER, [str(babbler)], log=watched.folder / "babbler.log")
    watched.settles(FOLLOWER, SyncState.UNKNOWN, until)
    assert watched.status(FOLLOWER).owner == "chronyd", "it is taken for one"
    for _ in range(10):
        seen = watched.status(FOLLOWER)
        assert (seen.state, seen.claimed.known) == (SyncState.UNKNOWN, False)
        status, _, seconds = watched.page(FOLLOWER, "/metrics")
        assert (status, seconds < 1) == (200, True)
    process.kill(signal.SIGKILL)
    watched.lab.start_service(FOLLOWER, CHRONYD)
    watched.settles(FOLLOWER, SyncState.SYNCHRONISED, until)


def test_a_killed_prober_is_started_again(watched: Watched, until: Until) -> None:
    watched.lab.run(FOLLOWER, ["kill", "-KILL", watched.pids(FOLLOWER)[1]], timeout_s=5)
    until(lambda: watched.metrics(FOLLOWER)['rankclock_reader_failures_total{reader="mesh"}'] >= 1, 10, "it is noticed")
    known = 'rankclock_mesh_offset_known{peer="n1"}'
    until(lambda: watched.metrics(FOLLOWER).get(known) == 1, 25, "it measures again", every_s=0.2)


def test_a_wrong_configuration_is_refused_and_a_right_one_taken_without_a_restart(
    watched: Watched, until: Until
) -> None:
    path = watched.folder / f"{ISLAND}.yaml"
    right = path.read_text()
    path.write_text(right + "colour: red\n")
    watched.agents[ISLAND].kill(signal.SIGHUP)
    until(lambda: "colour: unknown key" in watched.log(ISLAND), 15, "it says what is wrong", every_s=0.1)
    path.write_text(right + "limits: {cluster: 7us}\n")
    watched.agents[ISLAND].kill(signal.SIGHUP)
    limit = 'rankclock_offset_limit_seconds{scope="cluster"}'
    until(lambda: watched.page(ISLAND, "/metrics")[0] == 200 and watched.metrics(ISLAND)[limit] == 7e-6, 15, "taken")


def test_an_agent_is_small_after_all_that_and_ends_cleanly(watched: Watched) -> None:
    for node in (FOLLOWER, STOPPED):
        assert watched.rss_kib(node) < 40 * 1024
    prober = watched.pids(STOPPED)[1]
    watched.agents[STOPPED].kill(signal.SIGTERM)
    assert watched.agents[STOPPED].wait(10) == 0
    left = watched.lab.run(STOPPED, ["kill", "-0", prober], timeout_s=5)
    assert left.returncode != 0, "its prober is gone with it"
    assert watched.log(STOPPED).count("\n") < 40, "log lines are limited"
