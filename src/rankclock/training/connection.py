"""Sockets of a meeting: one non-blocking TCP connection with its channel, names resolved and ports opened in time.

Adapter without policy: it moves bytes and says what happened. No call here waits longer than it was told.
"""

from __future__ import annotations

import errno
import ipaddress
import secrets
import select
import socket
import threading
import time
from typing import Any

from rankclock.errors import HostError
from rankclock.timebase import NS_PER_MS, NS_PER_S
from rankclock.training.channel import NONCE_BYTES, Channel, Role
from rankclock.training.environment import MeetingPoint

__all__ = ["Connection", "ConnectionLost", "Unreachable", "connect", "listen", "plain_address", "resolve"]

_CHUNK = 1 << 16
_BACKLOG = 4096
"""Ranks connect at the same instant; the kernel cuts this to net.core.somaxconn."""


class ConnectionLost(Exception):
    """The other side closed, or the connection broke."""


class Unreachable(Exception):
    """Nobody could be reached there, and why."""


class Connection:
    """A connected socket that speaks in messages. `send` queues; `read` and `write` move what the socket takes."""

    def __init__(self, sock: socket.socket, role: Role, shared: bytes | None) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self.channel = Channel(role, nonce=secrets.token_bytes(NONCE_BYTES), shared=shared)
        self.closing = False
        self._out = bytearray(self.channel.greeting())
        self._unsealed: list[dict[str, Any]] = []
        self._inbox: list[dict[str, Any]] = []

    @property
    def wants_write(self) -> bool:
        """Whether bytes wait for the socket to take them."""
        return bool(self._out)

    def send(self, message: dict[str, Any]) -> None:
        """Queue a message; it is sealed once the other side's greeting is here."""
        self._unsealed.append(message)
        self._seal()

    def read(self) -> list[dict[str, Any]]:
        """The messages that came. Raises ConnectionLost, and DecodeError where it is no message."""
        try:
            data = self.sock.recv(_CHUNK)
        except (BlockingIOError, InterruptedError):
            return []
        except OSError as error:
            raise ConnectionLost(error.strerror or str(error)) from None
        if not data:
            raise ConnectionLost("it closed the connection")
        messages = self.channel.feed(data)
        self._seal()
        return messages

    def write(self) -> None:
        """Give the socket what it takes. Raises ConnectionLost."""
        try:
            del self._out[: self.sock.send(self._out)]
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            raise ConnectionLost(error.strerror or str(error)) from None

    def wait_greeted(self, until_ns: int) -> bool:
        """Wait for the other side's greeting; False when `until_ns` (monotonic) is there. Raises as `wait`."""
        while not self.channel.greeted and time.monotonic_ns() < until_ns:
            self._inbox += self._step(until_ns)
        return self.channel.greeted

    def wait(self, until_ns: int) -> list[dict[str, Any]]:
        """The next messages, writing what is queued meanwhile; empty when `until_ns` (monotonic) is there.

        Raises ConnectionLost, and DecodeError where what came is no message.
        """
        while not self._inbox and time.monotonic_ns() < until_ns:
            self._inbox += self._step(until_ns)
        messages, self._inbox = self._inbox, []
        return messages

    def finish(self, until_ns: int) -> None:
        """Send what is queued, say that no more comes, and close."""
        try:
            while self.wants_write and time.monotonic_ns() < until_ns:
                if self._poll(select.POLLOUT, until_ns):
                    self.write()
            self.sock.shutdown(socket.SHUT_WR)
        except (ConnectionLost, OSError):
            pass  # who is gone needs no farewell
        self.sock.close()

    def _step(self, until_ns: int) -> list[dict[str, Any]]:
        ready = self._poll(select.POLLIN | (select.POLLOUT if self.wants_write else 0), until_ns)
        if ready & select.POLLOUT:
            self.write()
        return self.read() if ready & ~select.POLLOUT else []

    def _poll(self, events: int, until_ns: int) -> int:
        # poll and not select: a training process may have more than 1024 files open.
        poller = select.poll()
        poller.register(self.sock, events)
        left_ms = -(-(until_ns - time.monotonic_ns()) // NS_PER_MS)
        return sum(ready for _, ready in poller.poll(max(left_ms, 0)))

    def _seal(self) -> None:
        if self.channel.greeted:
            for message in self._unsealed:
                self._out += self.channel.seal(message)
            self._unsealed.clear()


def resolve(host: str, port: int, until_ns: int) -> list[tuple[Any, ...]]:
    """Addresses of a host as getaddrinfo gives them. Raises Unreachable.

    The resolver has its own timeouts, which may lie beyond the deadline: the thread that asks it may be left behind.
    """
    answer: list[tuple[Any, ...]] = []
    failure: list[str] = []

    def ask() -> None:
        try:
            answer.extend(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            failure.append(str(getattr(error, "strerror", None) or error))

    thread = threading.Thread(target=ask, daemon=True, name="rankclock-resolve")
    thread.start()
    thread.join(max(until_ns - time.monotonic_ns(), 0) / NS_PER_S)
    if answer:
        return answer
    why = failure[0] if failure else "the resolver did not answer in time"
    raise Unreachable(f"the name {host} does not resolve: {why}")


def connect(address: tuple[Any, ...], until_ns: int) -> socket.socket:
    """A connection to one of `resolve`'s addresses. Raises Unreachable."""
    family, kind, protocol, _, target = address
    sock = socket.socket(family, kind, protocol)
    try:
        sock.settimeout(max((until_ns - time.monotonic_ns()) / NS_PER_S, 0.001))
        sock.connect(target)
        if sock.getsockname() == sock.getpeername():
            # Linux lets a socket meet itself where nobody listens on an ephemeral port of this host.
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
    except OSError as error:
        sock.close()
        raise Unreachable(f"{plain_address(target[0])}: {error.strerror or 'no answer'}") from None
    return sock


def listen(point: MeetingPoint) -> socket.socket:
    """A listening socket on the first free port of the meeting point, for IPv4 and IPv6. Raises HostError.

    It listens on every address of this host: the name of the meeting point may mean another address here than
    elsewhere (Debian maps a host's own name to 127.0.1.1). A loopback meeting point stays on loopback.
    """
    problems = []
    for port in point.ports:
        try:
            return _listen(point.host, port)
        except OSError as error:
            problems.append(f"port {port}: {error.strerror}")
    raise HostError(
        f"rank 0 cannot listen for the other ranks at {point}: {'; '.join(problems)}; "
        "give another port with --rendezvous HOST:PORT on every rank"
    )


def _listen(host: str, port: int) -> socket.socket:
    loopback = {"localhost": "127.0.0.1", "127.0.0.1": "127.0.0.1", "::1": "::1"}.get(host)
    if loopback is not None:
        family = socket.AF_INET6 if ":" in loopback else socket.AF_INET
        return socket.create_server((loopback, port), family=family, backlog=_BACKLOG)
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=_BACKLOG)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise
    return socket.create_server(("", port), backlog=_BACKLOG)  # IPv6 is off on this host


def plain_address(address: str) -> str:
    """The address as one writes it: IPv4 where it is IPv4 mapped into IPv6."""
    try:
        mapped = ipaddress.IPv6Address(address).ipv4_mapped
    except ValueError:
        return address
    return str(mapped) if mapped is not None else address
