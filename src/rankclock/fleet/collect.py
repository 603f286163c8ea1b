"""Facts and clock states of many nodes, by the packed probe. A node that fails costs the others nothing.

What a node answers is checked for its form; a node that does not answer is unknown with the reason, never left out.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from rankclock.errors import HostError, PeerError
from rankclock.fleet.pack import probe_script
from rankclock.fleet.transport import Transport
from rankclock.node.facts import SCHEMA
from rankclock.timebase import ClockState, Offset, SyncState

__all__ = ["collect_facts", "collect_states", "facts_of", "state_of"]

T = TypeVar("T")

TIMEOUT_S = 20.0
_AT_ONCE = 32


def facts_of(transport: Transport, node: str, *, timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
    """The facts object of one node. Raises PeerError, HostError."""
    value = _probe(transport, "facts", node, timeout_s)
    if value.get("schema") != SCHEMA or not isinstance(value.get("facts"), dict):
        raise PeerError(f"{node}: the probe answered with schema {value.get('schema')!r}, expected {SCHEMA}")
    return value


def state_of(transport: Transport, node: str, *, timeout_s: float = TIMEOUT_S) -> ClockState:
    """The clock state of one node, claims only. Raises PeerError, HostError."""
    value = _probe(transport, "status", node, timeout_s)
    try:
        return ClockState.from_json(value)
    except (KeyError, TypeError, ValueError) as error:
        raise PeerError(f"{node}: the probe's answer is no clock state: {error}") from error


def collect_facts(transports: Mapping[str, Transport], *, timeout_s: float = TIMEOUT_S) -> dict[str, dict[str, Any]]:
    """The facts of every node, in the order given; of one that fails an object that says why all is unknown."""

    def unknown(node: str, why: str) -> dict[str, Any]:
        fact = {"value": None, "why": why, "source": "the probe"}
        facts = {"hostname": fact, "realtime_owner": fact}
        return {"schema": SCHEMA, "node": node, "collected_at_ns": time.time_ns(), "facts": facts}

    return _each(transports, lambda transport, node: facts_of(transport, node, timeout_s=timeout_s), unknown)


def collect_states(transports: Mapping[str, Transport], *, timeout_s: float = TIMEOUT_S) -> dict[str, ClockState]:
    """The clock state of every node, in the order given; of one that fails UNKNOWN with the reason."""

    def unknown(node: str, why: str) -> ClockState:
        nothing = Offset.unknown(why, reference="none", method="none")
        return ClockState(
            node=node,
            state=SyncState.UNKNOWN,
            owner="?",
            source="",
            claimed=nothing,
            measured=nothing,
            reasons=(why,),
        )

    return _each(transports, lambda transport, node: state_of(transport, node, timeout_s=timeout_s), unknown)


def _each(
    transports: Mapping[str, Transport], ask: Callable[[Transport, str], T], otherwise: Callable[[str, str], T]
) -> dict[str, T]:
    def one(node: str) -> T:
        try:
            return ask(transports[node], node)
        except (PeerError, HostError) as error:
            return otherwise(node, str(error))

    if not transports:
        return {}
    with ThreadPoolExecutor(max_workers=min(_AT_ONCE, len(transports))) as pool:
        return dict(zip(transports, pool.map(one, transports), strict=True))


def _probe(transport: Transport, what: str, node: str, timeout_s: float) -> dict[str, Any]:
    command = (transport.python, "-", what, "--node", node)
    done = transport.run(command, input=probe_script(), timeout_s=timeout_s)
    if done.returncode != 0:
        last = [line for line in done.stderr.splitlines() if line.strip()][-1:]
        raise PeerError(f"{node}: the probe ended with {done.returncode}: {' '.join(last) or 'no message'}")
    try:
        value = json.loads(done.stdout)
    except ValueError as error:
        raise PeerError(f"{node}: the probe's answer is no JSON: {done.stdout[:80]!r}") from error
    if not isinstance(value, dict):
        raise PeerError(f"{node}: the probe's answer is no JSON object: {done.stdout[:80]!r}")
    return value
