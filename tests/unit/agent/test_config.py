"""The agent's configuration file: what it may say, and one line with file, line and key for what it may not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rankclock.agent.config import load_settings, parse_settings
from rankclock.agent.files import agent_yaml, peers_of
from rankclock.agent.settings import ClockClass, Settings
from rankclock.cluster import load_cluster
from rankclock.errors import UserError

HEAD = "schema: rankclock-agent/1\n"
EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_bytes(b"a key that all agents share")
    path.chmod(0o600)
    return path


def test_an_empty_configuration_listens_on_loopback_and_probes_nobody() -> None:
    settings = parse_settings(HEAD, "a.yaml")
    assert (settings.listen_host, settings.listen_port, settings.probe) == ("127.0.0.1", 4911, None)
    assert settings.limits_ns(ClockClass.NTP) == (1_000_000, 1_000_000)
    assert settings.limits_ns(ClockClass.PTP_HARDWARE) == (1_000, 1_000)
    assert settings.limits_ns(ClockClass.PTP_SOFTWARE) == (100_000, 100_000)


def test_settings_survive_json(key: Path) -> None:
    text = (
        f"{HEAD}node: n1\nclass: ptp-hardware\nlimits: {{cluster: 50us, utc: 1ms}}\nholdover_budget: 2h\n"
        f"probe: {{bind: '[::]:4910', key_file: {key}, peers: {{n2: 10.0.0.2:4910}}, reference: n2}}\n"
    )
    settings = parse_settings(text, "a.yaml")
    assert settings.probe is not None
    assert settings.probe.peers == {"n2": ("10.0.0.2", 4910)}
    assert settings.holdover_budget_ns == 7200 * 10**9
    assert settings.limits_ns(ClockClass.NTP) == (50_000, 1_000_000)
    assert Settings.from_json(json.loads(json.dumps(settings.to_json()))) == settings


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "a.yaml:1: the file is empty"),
        ("- 1\n", "a.yaml:1: an agent configuration is a mapping"),
        ("node: x\n", "a.yaml:1: schema"),
        (HEAD + "colour: red\n", "a.yaml:2: colour: unknown key; expected one of schema, node"),
        (HEAD + "listen: 0.0.0.0:4911\n", "reached from other machines: give tls and users_file"),
        (HEAD + "listen: localhost:1\n", "a.yaml:2: listen: expected ADDRESS:PORT with a numeric address"),
        (HEAD + "read_every: 5\n", "a.yaml:2: read_every: '5' is no span of time"),
        (HEAD + "read_every: 1us\n", "a.yaml:2: read_every: "),
        (HEAD + "class: sundial\n", "a.yaml:2: class: "),
        (HEAD + "probe: {key_file: /nowhere/key}\n", "a.yaml:2: probe.key_file: cannot read /nowhere/key"),
        (HEAD + "users_file: /nowhere/users\n", "a.yaml:2: users_file: cannot read /nowhere/users"),
        (HEAD + "probe:\n  key_file: x\n  peers: {n2: gpu2:1}\n", "a.yaml:4: probe.peers.n2: expected ADDRESS:PORT"),
        (HEAD + "probe: {key_file: x, peers: {}, reference: n9}\n", "the reference 'n9' is not among the peers"),
        (HEAD + "node: 'a b'\n", "a.yaml:2: node: "),
        (HEAD + "a: [\n", "a.yaml:"),
    ],
)
def test_what_is_wrong_is_one_line_with_its_place(text: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_settings(text, "a.yaml")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_key_that_everybody_may_read_is_refused(key: Path) -> None:
    key.chmod(0o644)
    with pytest.raises(UserError, match=r"everybody may use .*chmod 640"):
        parse_settings(f"{HEAD}probe: {{key_file: {key}}}\n", "a.yaml")


def test_a_short_key_is_refused(key: Path) -> None:
    key.write_bytes(b"short")
    with pytest.raises(UserError, match="has 5 bytes, 16 or more"):
        parse_settings(f"{HEAD}probe: {{key_file: {key}}}\n", "a.yaml")


def test_the_process_that_reads_the_file_says_one_line_and_2(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(HEAD + "colour: red\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "rankclock.agent.config", str(path)],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


def test_what_is_written_for_a_cluster_is_what_the_agent_reads(tmp_path: Path, key: Path) -> None:
    cluster = load_cluster(EXAMPLES / "qlora-ptp-32.yaml")
    for node in (cluster.nodes[0], cluster.nodes[-1]):
        peers = peers_of(node, cluster)
        assert node.name not in peers
        assert 4 <= len(peers) <= 7
        path = tmp_path / "agent.yaml"
        text = agent_yaml(node, peers)
        for name in ("agent.crt", "agent.key", "users", "probe.key"):
            text = text.replace(f"/etc/rankclock/{name}", str(key))
        path.write_text(text, encoding="utf-8")
        settings = load_settings(path)
        assert settings.node == node.name
        assert settings.probe is not None
        assert set(settings.probe.peers) == set(peers)


def test_peers_reach_around_so_that_every_node_is_probed_by_somebody() -> None:
    cluster = load_cluster(EXAMPLES / "qlora-ptp-32.yaml")
    probed = {peer for node in cluster.nodes if node.nics for peer in peers_of(node, cluster)}
    assert probed == {node.name for node in cluster.nodes if node.nics}
