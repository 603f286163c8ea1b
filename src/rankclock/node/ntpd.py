"""Asks a running ntpd (classic or ntpsec) by NTP control messages over loopback UDP. Read operations only.

One timeout for the whole reading: a stopped or hung daemon holds nobody up. Variables are asked for by name, so that
neither the arrays with stray octets nor a change of order matters; a version that lacks one of the names is asked for
all. What does not verify as the answer to the question asked is dropped, and counts as silence.
"""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass

from rankclock.errors import DecodeError, PeerError
from rankclock.node.fact import why_not
from rankclock.node.kernel import raw_ns, realtime_ns
from rankclock.wire.ntp_control import (
    PEER_NAMES,
    SYSTEM_NAMES,
    Assembly,
    ControlMessage,
    ControlRefused,
    Opcode,
    PeerStatus,
    PeerVariables,
    SystemStatus,
    SystemVariables,
    decode_associations,
    decode_variables,
)

__all__ = ["ENDPOINTS", "NtpdPeer", "NtpdReading", "read_ntpd"]

NTP_PORT = 123
ENDPOINTS: tuple[tuple[str, int], ...] = (("127.0.0.1", NTP_PORT), ("::1", NTP_PORT))
MAX_PEERS = 100
"""Of more associations only the first are read: the bound on a reading's work."""

_MAX_DATAGRAM = 4096
_NO_SUCH_VARIABLE = 5
_SILENT_BY_RULE = "'restrict default noquery' without 'restrict 127.0.0.1' is silent too"


@dataclass(frozen=True, slots=True, kw_only=True)
class NtpdPeer:
    """One association. variables: None where it went away, or time ran out, before it was read."""

    association: int
    status: PeerStatus
    variables: PeerVariables | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NtpdReading:
    """What ntpd said between two instants of this node's clocks. peers: None where it refused to list them."""

    status: SystemStatus
    system: SystemVariables
    peers: tuple[NtpdPeer, ...] | None
    endpoint: tuple[str, int]
    before_raw_ns: int
    after_raw_ns: int
    at_real_ns: int

    @property
    def followed(self) -> NtpdPeer | None:
        """The association that steers the clock, None where none does or it could not be seen."""
        return next((peer for peer in self.peers or () if peer.status.followed), None)


def read_ntpd(endpoints: Sequence[tuple[str, int]] = ENDPOINTS, *, timeout_s: float = 1.0) -> NtpdReading:
    """System variables and associations from the first endpoint that answers. Raises PeerError, one line."""
    deadline = time.monotonic() + timeout_s
    silent = []
    for number, endpoint in enumerate(endpoints):
        name = f"UDP {endpoint[0]} port {endpoint[1]}"
        share_s = max(deadline - time.monotonic(), 0) / (len(endpoints) - number)
        try:
            with _connected(endpoint) as link:
                return _read(link, endpoint, time.monotonic() + share_s, deadline)
        except TimeoutError:
            silent.append(f"{name}: no answer within {share_s:.2g} s; {_SILENT_BY_RULE}")
        except OSError as error:
            silent.append(f"{name}: {why_not(error)}")
        except DecodeError as error:
            silent.append(f"{name}: {error}")
    raise PeerError(f"ntpd does not answer ({'; '.join(silent)})")


def _connected(endpoint: tuple[str, int]) -> socket.socket:
    link = socket.socket(socket.AF_INET6 if ":" in endpoint[0] else socket.AF_INET, socket.SOCK_DGRAM)
    try:
        link.connect(endpoint)  # then a port that is closed refuses at once instead of staying silent
    except OSError:
        link.close()
        raise
    return link


def _read(link: socket.socket, endpoint: tuple[str, int], first_by: float, deadline: float) -> NtpdReading:
    before_raw_ns = raw_ns()
    values, status = _variables(link, 0, SYSTEM_NAMES, first_by)
    after_raw_ns, at_real_ns = raw_ns(), realtime_ns()
    peers: tuple[NtpdPeer, ...] | None
    try:
        listed, _ = _ask(link, Opcode.READ_STATUS, 0, b"", deadline)
        associations = decode_associations(listed)[:MAX_PEERS]
        peers = tuple(_peer(link, number, word, deadline) for number, word in associations)
    except (DecodeError, TimeoutError):  # the system variables stand without them
        peers = None
    return NtpdReading(
        status=SystemStatus.of(status),
        system=SystemVariables.of(values, near_unix_ns=at_real_ns),
        peers=peers,
        endpoint=endpoint,
        before_raw_ns=before_raw_ns,
        after_raw_ns=after_raw_ns,
        at_real_ns=at_real_ns,
    )


def _peer(link: socket.socket, association: int, status: PeerStatus, deadline: float) -> NtpdPeer:
    try:
        values, _ = _variables(link, association, PEER_NAMES, deadline)
    except (DecodeError, TimeoutError):
        return NtpdPeer(association=association, status=status, variables=None)
    return NtpdPeer(association=association, status=status, variables=PeerVariables.of(values))


def _variables(
    link: socket.socket, association: int, names: Sequence[str], deadline: float
) -> tuple[dict[str, str], int]:
    try:
        data, status = _ask(link, Opcode.READ_VARIABLES, association, ",".join(names).encode(), deadline)
    except ControlRefused as refusal:
        if refusal.code != _NO_SUCH_VARIABLE:
            raise
        data, status = _ask(link, Opcode.READ_VARIABLES, association, b"", deadline)
    return decode_variables(data), status


def _ask(link: socket.socket, opcode: Opcode, association: int, data: bytes, deadline: float) -> tuple[bytes, int]:
    """The joined answer and its status word. Raises TimeoutError, ControlRefused, DecodeError, OSError."""
    question = ControlMessage(opcode=opcode, sequence=secrets.randbits(16), association=association, data=data)
    answer = Assembly(question=question)
    link.settimeout(max(deadline - time.monotonic(), 0.001))
    link.send(question.encode())
    while True:
        remaining_s = deadline - time.monotonic()
        if remaining_s <= 0:
            raise TimeoutError
        link.settimeout(remaining_s)
        datagram = link.recv(_MAX_DATAGRAM)
        try:
            message = ControlMessage.decode(datagram)
        except DecodeError:  # garbage: the answer may still come
            continue
        whole = answer.add(message)
        if whole is not None:
            return whole, answer.status
