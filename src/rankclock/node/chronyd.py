"""Asks a running chronyd by its own protocol: over loopback UDP where that is open, else over its unix socket.

Read commands only. One timeout for the whole reading: a stopped or hung daemon holds nobody up. Everything that does
not verify as the answer to the question asked is dropped, and counts as silence.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from rankclock.errors import DecodeError, PeerError
from rankclock.node.fact import read_text, why_not
from rankclock.node.kernel import raw_ns, realtime_ns
from rankclock.wire import chrony

__all__ = [
    "UNIX_SOCKET",
    "ChronydReading",
    "Endpoint",
    "ask",
    "connected",
    "endpoint_name",
    "endpoints_of",
    "read_chronyd",
]

UNIX_SOCKET = "/run/chrony/chronyd.sock"
COMMAND_PORT = 323
MAX_SOURCES = 1000
"""Of more sources only the first are read: the bound on a reading's time."""

_MAX_REPLY = 4096

Endpoint = tuple[str, int] | str
"""An address and port, or the path of the unix socket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChronydReading:
    """What chronyd said between two instants of this node's clocks. sources: None where it refused to list them."""

    tracking: chrony.Tracking
    sources: tuple[chrony.SourceData, ...] | None
    endpoint: Endpoint
    before_raw_ns: int
    after_raw_ns: int
    at_real_ns: int


def endpoints_of(argv: Sequence[str] = ()) -> tuple[Endpoint, ...]:
    """Where a chronyd started with that command line may be asked: as its configuration says, else chrony's defaults.

    Only the file itself is read, no included ones: the defaults are then still tried.
    """
    port, paths, addresses = COMMAND_PORT, [], ["127.0.0.1", "::1"]
    for line in _configuration(argv):
        words = line.split()
        if not words or words[0][0] in "#%!;":
            continue
        directive, value = words[0].lower(), words[1] if len(words) > 1 else ""
        if directive == "cmdport" and value.isdigit():
            port = int(value)
        elif directive == "bindcmdaddress" and value.startswith("/"):
            paths.append(value)
    udp: list[Endpoint] = [(address, port) for address in addresses] if port else []
    return (*udp, *(paths or [UNIX_SOCKET]))


def _configuration(argv: Sequence[str]) -> list[str]:
    path = "/etc/chrony/chrony.conf"
    for option, value in pairwise(argv):
        if option == "-f":
            path = value
    with contextlib.suppress(OSError):
        return read_text(path).splitlines()
    return []


def read_chronyd(endpoints: Sequence[Endpoint] = (), *, timeout_s: float = 1.0) -> ChronydReading:
    """Tracking and sources from the first endpoint that answers. Raises PeerError, one line, where none does."""
    deadline = time.monotonic() + timeout_s
    silent = []
    for endpoint in endpoints or endpoints_of():
        name = endpoint_name(endpoint)
        try:
            with connected(endpoint) as link:
                return _read(link, endpoint, deadline)
        except TimeoutError:
            silent.append(f"{name}: no answer within {timeout_s:g} s")
        except OSError as error:
            silent.append(f"{name}: {why_not(error)}")
        except DecodeError as error:
            silent.append(f"{name}: {error}")
    raise PeerError(f"chronyd does not answer ({'; '.join(silent)})")


def endpoint_name(endpoint: Endpoint) -> str:
    """As a message names it."""
    return endpoint if isinstance(endpoint, str) else f"UDP {endpoint[0]} port {endpoint[1]}"


def _read(link: socket.socket, endpoint: Endpoint, deadline: float) -> ChronydReading:
    before_raw_ns = raw_ns()
    tracking: chrony.Tracking = ask(link, chrony.TRACKING, deadline)
    after_raw_ns, at_real_ns = raw_ns(), realtime_ns()
    sources: tuple[chrony.SourceData, ...] | None
    try:
        count = min(ask(link, chrony.N_SOURCES, deadline).count, MAX_SOURCES)
        sources = tuple(ask(link, chrony.SOURCE_DATA, deadline, index=index) for index in range(count))
    except (DecodeError, TimeoutError):  # not allowed, or the list changed under us: tracking stands without it
        sources = None
    return ChronydReading(
        tracking=tracking,
        sources=sources,
        endpoint=endpoint,
        before_raw_ns=before_raw_ns,
        after_raw_ns=after_raw_ns,
        at_real_ns=at_real_ns,
    )


def ask(link: socket.socket, command: chrony.Command, deadline: float, **arguments: Any) -> Any:
    """The report that answers over a connected socket. Raises TimeoutError, CommandRefused, OSError."""
    sequence = secrets.randbits(32)
    link.settimeout(max(deadline - time.monotonic(), 0.001))
    link.send(chrony.encode_request(command, sequence=sequence, **arguments))
    while True:
        data = link.recv(_MAX_REPLY)
        try:
            return chrony.decode_reply(command, data, sequence=sequence)
        except chrony.CommandRefused:
            raise
        except DecodeError:  # of an earlier question, or garbage: the answer may still come
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                raise TimeoutError from None
            link.settimeout(remaining_s)


@contextmanager
def connected(endpoint: Endpoint) -> Iterator[socket.socket]:
    """A socket connected to a chronyd, closed (and its path gone) afterwards. Raises OSError."""
    if isinstance(endpoint, str):
        with _connected_unix(endpoint) as link:
            yield link
        return
    family = socket.AF_INET6 if ":" in endpoint[0] else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as link:
        link.connect(endpoint)  # then a port that is closed refuses at once instead of staying silent
        yield link


@contextmanager
def _connected_unix(path: str) -> Iterator[socket.socket]:
    """chronyd answers to a path that it may write to. Ours lies in a new folder beside its own socket that only we may
    change: making a file of a folder that chronyd's user owns writable for all would let that user redirect it.
    """
    folder = Path(tempfile.mkdtemp(prefix="rankclock.", dir=Path(path).parent))
    handle = os.open(folder, os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as link:
            os.fchmod(handle, 0o711)
            link.bind(str(folder / "sock"))
            os.chmod("sock", 0o666, dir_fd=handle)
            link.connect(path)
            yield link
    finally:
        with contextlib.suppress(OSError):
            os.unlink("sock", dir_fd=handle)
        os.close(handle)
        with contextlib.suppress(OSError):
            folder.rmdir()
