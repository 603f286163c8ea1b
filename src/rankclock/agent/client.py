"""Asks agents for their /status, many at once. One that does not answer is unknown with the reason, never left out.

What an agent answers is checked for its form. TLS by https:// (RANKCLOCK_AGENT_CA: a file of certificates to trust),
the user and password from RANKCLOCK_AGENT_USER (`name:password`): never on a command line.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import ssl
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from rankclock.agent.settings import DEFAULT_PORT
from rankclock.errors import PeerError, UserError
from rankclock.timebase import ClockState, Offset, SyncState

__all__ = ["AgentAddress", "AgentStatus", "agent_addresses", "ask_agent", "ask_agents"]

CA_VARIABLE = "RANKCLOCK_AGENT_CA"
USER_VARIABLE = "RANKCLOCK_AGENT_USER"
TIMEOUT_S = 2.0
MAX_BODY = 1 << 20
AT_ONCE = 64
_ADDRESS = re.compile(r"^(?:(https?)://)?(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(\d{1,5}))?/?$")


@dataclass(frozen=True, slots=True)
class AgentAddress:
    """Where an agent is asked."""

    host: str
    port: int = DEFAULT_PORT
    tls: bool = False

    def __str__(self) -> str:
        return f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentStatus:
    """One agent's answer. more: what /status holds under `agent`, empty where it did not answer."""

    address: AgentAddress
    state: ClockState
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def peers(self) -> dict[str, Offset]:
        """The measured offsets by peer."""
        return {name: Offset.from_json(value) for name, value in self.more.get("peers", {}).items()}


def agent_addresses(text: str) -> list[AgentAddress]:
    """The agents of `gpu[001-004]:4911,https://time1`. Raises UserError."""
    from rankclock.cluster.hostlist import expand
    from rankclock.errors import DecodeError

    found = []
    for part in re.split(r",(?![^\[]*\])", text):
        try:
            scheme, sep, rest = part.strip().rpartition("://")
            ipv6 = rest.startswith("[")
            names = [rest] if ipv6 else [f"{host}{_port_of(rest)}" for host in expand(_host_of(rest))]
        except DecodeError as error:
            raise UserError(f"--agents: {error}") from None
        for name in names:
            match = _ADDRESS.match(f"{scheme}{sep}{name}")
            port = int(match[3] or DEFAULT_PORT) if match else 0
            if match is None or not 0 < port < 65536:
                raise UserError(f"--agents: expected HOST:PORT or https://HOST:PORT, found {part.strip()[:60]!r}")
            found.append(AgentAddress(match[2].strip("[]"), port, match[1] == "https"))
    return found


def _host_of(text: str) -> str:
    return text.rstrip("/").rpartition(":")[0] if _port_of(text) else text.rstrip("/")


def _port_of(text: str) -> str:
    match = re.search(r":\d+/?$", text)
    return match[0].rstrip("/") if match else ""


def ask_agent(address: AgentAddress, *, timeout_s: float = TIMEOUT_S) -> AgentStatus:
    """The answer of one agent. Raises PeerError, one line."""
    try:
        value = _get(address, timeout_s)
        more = value.get("agent", {})
        status = AgentStatus(address=address, state=ClockState.from_json(value), more=more)
        _ = status.peers  # an offset that is none shows here
    except (OSError, http.client.HTTPException) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
        raise PeerError(f"the agent at {address} does not answer: {why}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise PeerError(f"what answers at {address} is no agent: {type(error).__name__}: {str(error)[:80]}") from None
    return status


def _get(address: AgentAddress, timeout_s: float) -> dict[str, Any]:
    if address.tls:
        context = ssl.create_default_context(cafile=os.environ.get(CA_VARIABLE) or None)
        link: http.client.HTTPConnection = http.client.HTTPSConnection(
            address.host, address.port, timeout=timeout_s, context=context
        )
    else:
        link = http.client.HTTPConnection(address.host, address.port, timeout=timeout_s)
    headers = {"Connection": "close"}
    if user := os.environ.get(USER_VARIABLE):
        headers["Authorization"] = "Basic " + base64.b64encode(user.encode()).decode()
    try:
        link.request("GET", "/status", headers=headers)
        answer = link.getresponse()
        body = answer.read(MAX_BODY)
    finally:
        link.close()
    if answer.status == http.HTTPStatus.UNAUTHORIZED:
        raise PeerError(f"the agent at {address} wants a user: set {USER_VARIABLE}=name:password")
    if answer.status != http.HTTPStatus.OK:
        raise PeerError(f"what answers at {address} says {answer.status} to /status: is it an agent?")
    value = json.loads(body)
    if not isinstance(value, dict):
        raise TypeError(f"expected an object, found {type(value).__name__}")
    return value


def ask_agents(addresses: Sequence[AgentAddress], *, timeout_s: float = TIMEOUT_S) -> list[AgentStatus]:
    """The answers of all, in their order."""

    def ask(address: AgentAddress) -> AgentStatus:
        try:
            return ask_agent(address, timeout_s=timeout_s)
        except PeerError as error:
            return _silent(address, str(error))

    with ThreadPoolExecutor(max_workers=min(AT_ONCE, max(len(addresses), 1))) as pool:
        return list(pool.map(ask, addresses))


def _silent(address: AgentAddress, why: str) -> AgentStatus:
    unknown = Offset.unknown(why, reference="none", method="none")
    state = ClockState(
        node=str(address),
        state=SyncState.UNKNOWN,
        owner="?",
        source="",
        claimed=unknown,
        measured=unknown,
        reasons=(why,),
    )
    return AgentStatus(address=address, state=state)
