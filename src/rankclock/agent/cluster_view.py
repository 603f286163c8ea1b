"""What the cluster page shows, as data: the time tree, the matrix of measured pairs, a short history. Pure.

The tree says whom each node's daemon follows; an edge exists where the source's address or clock identity is a node's.
A cell of the matrix exists where one of the two measured the other; nothing is computed through third nodes here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from rankclock.agent.client import AgentStatus
from rankclock.timebase import Judgement, Offset, SyncState, format_offset_ns, format_span_ns

__all__ = ["HISTORY", "View"]

HISTORY = 720
"""Looks that are remembered: an hour at one every five seconds, 200 nodes at about 20 MB."""

_SEVERITY = (
    SyncState.UNKNOWN, SyncState.UNSYNCHRONISED, SyncState.FREE_RUNNING, SyncState.HOLDOVER, SyncState.SYNCHRONISED,
)  # fmt: skip


class View:
    """addresses: IP address to node name, as the cluster file has it, for the tree; may be empty."""

    def __init__(self, addresses: Mapping[str, str], *, title: str) -> None:
        self._addresses = dict(addresses)
        self._title = title
        self._found: list[AgentStatus] = []
        self._at_unix_s: float | None = None
        self._history: deque[tuple[float, dict[str, tuple[int, int, int] | None]]] = deque(maxlen=HISTORY)

    def handle_look(self, found: Sequence[AgentStatus], at_unix_s: float) -> None:
        """All agents were asked."""
        self._found = list(found)
        self._at_unix_s = at_unix_s
        self._history.append((at_unix_s, {one.state.node: _triple(_best(one)) for one in found}))

    def to_json(self) -> dict[str, Any]:
        """Everything that the page draws."""
        nodes = {one.state.node: one for one in self._found}
        return {
            "schema": "rankclock-cluster-view/1",
            "title": self._title,
            "at_unix_s": self._at_unix_s,
            "nodes": [self._node(one) for one in sorted(self._found, key=_worst)],
            "tree": self._tree(nodes),
            "matrix": _matrix(nodes),
            "history": {
                "at_unix_s": [at for at, _ in self._history],
                "nodes": {name: [row.get(name) for _, row in self._history] for name in nodes},
            },
        }

    def _node(self, one: AgentStatus) -> dict[str, Any]:
        state = one.state
        limit_ns = one.more.get("cluster_limit_ns")
        judged = state.measured.judge(limit_ns) if isinstance(limit_ns, int) else Judgement.CANNOT_TELL
        return {
            "node": state.node,
            "state": state.state.value,
            "owner": state.owner,
            "source": state.source,
            "claimed": _words(state.claimed),
            "measured": _words(state.measured),
            "measured_judgement": judged.value,
            "reasons": list(state.reasons),
            "maintenance": bool(one.more.get("maintenance")),
        }

    def _tree(self, nodes: Mapping[str, AgentStatus]) -> list[dict[str, Any]]:
        """Every node once, below the one that it follows: depth and order for drawing."""
        identities = {ptp["identity"]: name for name, one in nodes.items() for ptp in one.more.get("ptp", [])}
        parents = {
            name: self._addresses.get(one.state.source) or identities.get(one.state.source)
            for name, one in nodes.items()
        }
        rows: list[dict[str, Any]] = []
        children: dict[str, list[str]] = {}
        for name, one in nodes.items():
            parent = parents[name] or ""
            root = parent if parent in nodes and parent != name else f"\0{one.state.source or _nobody(one)}"
            children.setdefault(root, []).append(name)

        def add(name: str, depth: int) -> None:
            rows.append({"node": name, "depth": depth, "is_node": True})
            for child in sorted(children.get(name, [])):
                if all(row["node"] != child for row in rows):
                    add(child, depth + 1)

        for root in sorted(key for key in children if key.startswith("\0")):
            label = root[1:]
            rows.append({"node": self._addresses.get(label, label), "depth": 0, "is_node": False})
            for name in sorted(children[root]):
                add(name, 1)
        for name in sorted(nodes):  # nodes that follow each other in a circle hang under no root
            if all(row["node"] != name for row in rows):
                rows.append({"node": f"{name} (in a circle)", "depth": 0, "is_node": False})
                add(name, 1)
        return rows


def _nobody(one: AgentStatus) -> str:
    """The root of those that name no source: who cannot be read may well follow somebody."""
    return "whom these follow is unknown" if one.state.owner == "?" else "these follow nobody"


def _worst(one: AgentStatus) -> tuple[int, str]:
    return _SEVERITY.index(one.state.state), one.state.node


def _best(one: AgentStatus) -> Offset:
    return one.state.measured if one.state.measured.known else one.state.claimed


def _triple(offset: Offset) -> tuple[int, int, int] | None:
    if offset.lo_ns is None or offset.estimate_ns is None or offset.hi_ns is None:
        return None
    return offset.lo_ns, offset.estimate_ns, offset.hi_ns


def _matrix(nodes: Mapping[str, AgentStatus]) -> dict[str, Any]:
    """estimate_ns and bound_ns of row - column, None where nobody measured that pair."""
    names = sorted(nodes)
    pairs: dict[tuple[str, str], Offset] = {}
    for name, one in nodes.items():
        for peer, offset in one.peers.items():
            if peer in nodes and offset.known:
                pairs[name, peer] = offset
                pairs.setdefault((peer, name), offset.reversed(reference=name))
    return {
        "names": names,
        "estimate_ns": [[_of(pairs, row, column, "estimate_ns") for column in names] for row in names],
        "bound_ns": [[_of(pairs, row, column, "bound_ns") for column in names] for row in names],
    }


def _of(pairs: Mapping[tuple[str, str], Offset], row: str, column: str, name: str) -> int | None:
    if row == column:
        return 0
    offset = pairs.get((row, column))
    value: int | None = getattr(offset, name) if offset else None
    return value


def _words(offset: Offset) -> str:
    if offset.estimate_ns is None or offset.bound_ns is None:
        return f"unknown: {offset.unknown_why}"
    return f"{format_offset_ns(offset.estimate_ns)} ± {format_span_ns(offset.bound_ns)} from {offset.reference}"
