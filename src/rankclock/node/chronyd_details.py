"""What chronyd tells beside its state: who stamps its packets, how sources are authenticated, why one is not used, and
what it serves. Read commands only.

Over UDP chronyd keeps most of this to itself (but `activity`; from 4.7 on `opencommands` opens it); over its unix
socket it tells root and its own user everything. What was not allowed is said as such and never shown as zero. Nothing
of this enters a bound.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rankclock.errors import DecodeError, PeerError
from rankclock.node.chronyd import UNIX_SOCKET, Endpoint, ask, connected, endpoint_name, endpoints_of
from rankclock.node.fact import why_not
from rankclock.wire import chrony
from rankclock.wire.chrony_reports import (
    AuthData,
    NtpData,
    SelectData,
    ServerStats,
    ServerStats2,
    ServerStats3,
    ServerStats4,
)

__all__ = ["ChronydDetails", "SourceDetails", "read_chronyd_details"]

MAX_DETAILED = 32
"""Of more sources only the first are asked about: three questions each."""

ServerCounts = ServerStats | ServerStats2 | ServerStats3 | ServerStats4


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceDetails:
    """One source. None: not allowed, or there is no such thing (a reference clock has no packets)."""

    name: str
    ntp: NtpData | None
    auth: AuthData | None
    select: SelectData | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChronydDetails:
    """endpoint: where it was asked. refused: command to why it is missing, in a few words."""

    endpoint: Endpoint
    activity: chrony.Activity | None
    server: ServerCounts | None
    sources: tuple[SourceDetails, ...]
    refused: dict[str, str]


def read_chronyd_details(endpoints: Sequence[Endpoint] = (), *, timeout_s: float = 1.0) -> ChronydDetails:
    """From the unix socket where we may, else over UDP. Raises PeerError, one line, where neither answers."""
    deadline = time.monotonic() + timeout_s
    silent = []
    # The unix socket first: it is the one that may tell everything.
    for endpoint in sorted(endpoints or (*endpoints_of(), UNIX_SOCKET), key=lambda one: not isinstance(one, str)):
        try:
            with connected(endpoint) as link:
                return _Details(link, endpoint, deadline).read()
        except TimeoutError:
            silent.append(f"{endpoint_name(endpoint)}: no answer within {timeout_s:g} s")
        except OSError as error:
            silent.append(f"{endpoint_name(endpoint)}: {why_not(error)}")
        except DecodeError as error:
            silent.append(f"{endpoint_name(endpoint)}: {error}")
    raise PeerError(f"chronyd does not answer ({'; '.join(dict.fromkeys(silent))})")


class _Details:
    """Questions over one connected socket, all before one deadline."""

    def __init__(self, link: socket.socket, endpoint: Endpoint, deadline: float) -> None:
        self.link = link
        self.endpoint = endpoint
        self.deadline = deadline
        self.refused: dict[str, str] = {}

    def read(self) -> ChronydDetails:
        count = ask(self.link, chrony.N_SOURCES, self.deadline).count
        sources = [self._source(index) for index in range(min(count, MAX_DETAILED))]
        return ChronydDetails(
            endpoint=self.endpoint,
            activity=self._ask(chrony.ACTIVITY),
            server=self._ask(chrony.SERVER_STATS),
            sources=tuple(source for source in sources if source is not None),
            refused=self.refused,
        )

    def _source(self, index: int) -> SourceDetails | None:
        listed: chrony.SourceData | None = self._ask(chrony.SOURCE_DATA, index=index)
        if listed is None:
            return None
        by_packets = listed.mode != chrony.SourceMode.REFCLOCK and listed.address.text != ""
        ntp = self._ask(chrony.NTP_DATA, address=listed.address) if by_packets else None
        return SourceDetails(
            name=listed.name,
            ntp=ntp if ntp is not None and ntp.measured else None,
            auth=self._ask(chrony.AUTH_DATA, address=listed.address) if by_packets else None,
            select=self._ask(chrony.SELECT_DATA, index=index),
        )

    def _ask(self, command: chrony.Command, **arguments: Any) -> Any:
        """None where it was refused or nothing came; what was once not allowed is not asked for again."""
        if command.name in self.refused:
            return None
        try:
            return ask(self.link, command, self.deadline, **arguments)
        except chrony.CommandRefused as refusal:
            if refusal.status == chrony.NOT_AUTHORISED:
                self.refused[command.name] = "not allowed over UDP (root's unix socket, or opencommands from 4.7 on)"
            elif refusal.status != chrony.NO_SUCH_SOURCE:  # a source of the list may go, or have no name yet
                self.refused[command.name] = str(refusal)
        except TimeoutError:
            self.refused[command.name] = "no answer that could be read"
        return None
