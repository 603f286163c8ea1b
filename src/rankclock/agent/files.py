"""The files that go with agents: rules, runbooks, dashboards, examples for Prometheus and Alertmanager, a systemd unit.

With a cluster file also a configuration for each of its nodes and the list of targets. Writes, and decides nothing but
who probes whom: the nodes that serve time, and the next few in the order of the file. Safe to run again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rankclock.agent.alerts import ALERTS, rules_yaml, runbook
from rankclock.agent.dashboards import DASHBOARDS, dashboard_json
from rankclock.agent.settings import DEFAULT_PORT

if TYPE_CHECKING:
    from rankclock.cluster import Cluster, Node

__all__ = ["agent_yaml", "files_of", "peers_of", "write_files"]

PROBE_PORT = 4910
NEIGHBOURS = 4
SERVERS = 3
_TEXTS = Path(__file__).parent / "texts"


def write_files(folder: Path, cluster: Cluster | None) -> list[Path]:
    """Write them all; the paths in order. Raises OSError."""
    written = []
    for name, text in files_of(cluster).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return written


def files_of(cluster: Cluster | None) -> dict[str, str]:
    """Their names and texts."""
    files = {
        "prometheus/rankclock.rules.yml": rules_yaml(),
        **{f"runbooks/{alert.name}.md": runbook(alert) for alert in ALERTS},
        **{f"grafana/{name}.json": dashboard_json(name) for name in DASHBOARDS},
    }
    for path in sorted(_TEXTS.rglob("*")):
        if path.is_file():
            files[str(path.relative_to(_TEXTS))] = path.read_text(encoding="utf-8")
    if cluster is not None:
        nodes = [node for node in cluster.nodes if node.nics]
        files |= {f"agents/{node.name}.yaml": agent_yaml(node, peers_of(node, cluster)) for node in nodes}
        files["prometheus/targets.json"] = _targets(nodes)
    return files


def peers_of(node: Node, cluster: Cluster) -> dict[str, str]:
    """Whom a node probes, by address: up to three that serve time, and the next four of the file, around its end."""
    nodes = [other for other in cluster.nodes if other.nics]
    at = nodes.index(node)
    servers = [other for other in nodes if other.kind.value in ("server", "source")][:SERVERS]
    others = (nodes[at + 1 :] + nodes[:at])[:NEIGHBOURS]
    return {peer.name: str(peer.nics[0].address.ip) for peer in (*servers, *others) if peer.name != node.name}


def agent_yaml(node: Node, peers: Mapping[str, str]) -> str:
    """One node's configuration."""
    address = str(node.nics[0].address.ip)
    lines = [
        "schema: rankclock-agent/1",
        f"node: {json.dumps(node.name)}",
        f"listen: {json.dumps(_joined(address, DEFAULT_PORT))}",
        "tls: {certificate: /etc/rankclock/agent.crt, key: /etc/rankclock/agent.key}",
        "users_file: /etc/rankclock/users  # rankclock agent password prometheus",
        "probe:",
        f"  bind: {json.dumps(_joined(address, PROBE_PORT))}",
        "  key_file: /etc/rankclock/probe.key  # the same on all nodes: head -c 32 /dev/urandom | base64",
        f"  peers:{'' if peers else ' {}'}",
        *(f"    {json.dumps(name)}: {json.dumps(_joined(host, PROBE_PORT))}" for name, host in peers.items()),
    ]
    return "\n".join(lines) + "\n"


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _targets(nodes: list[Node]) -> str:
    """For file_sd_configs; the rack becomes a label that dashboards choose by."""
    found = [
        {
            "targets": [_joined(str(node.nics[0].address.ip), DEFAULT_PORT)],
            "labels": {"rack": node.rack} if node.rack else {},
        }
        for node in nodes
    ]
    return json.dumps(found, indent=1) + "\n"
