"""Asks a running systemd-timesyncd over the system bus for its last exchange, and looks for what it leaves in /run.

One timeout for the whole reading. It starts no daemon and changes nothing. timesyncd follows one server at a time and
publishes no bound; what can be made of its last exchange is in `judge_timesyncd`.
"""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankclock.errors import DecodeError, PeerError
from rankclock.node.fact import why_not
from rankclock.node.kernel import raw_ns, realtime_ns
from rankclock.wire.dbus import FIXED_OCTETS, DbusMessage, MessageKind, encode_call, message_octets

__all__ = ["TimesyncExchange", "TimesyncdReading", "last_synchronised", "read_timesyncd"]

BUS_SOCKET = "/run/dbus/system_bus_socket"
SYNCHRONISED_FILE = "/run/systemd/timesync/synchronized"
_SERVICE, _OBJECT = "org.freedesktop.timesync1", "/org/freedesktop/timesync1"
_MANAGER, _PROPERTIES = "org.freedesktop.timesync1.Manager", "org.freedesktop.DBus.Properties"
_BUS = "org.freedesktop.DBus"
_NS_PER_US = 1000
_EXCHANGE_FIELDS = 15
_MAX_LINE = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TimesyncExchange:
    """NTPMessage: the last answer of the server, in ns. The four instants are Unix times: sent and came on the local
    clock, received and replied on the server's. spike: timesyncd did not believe it.
    """

    leap: int
    stratum: int
    root_delay_ns: int
    root_dispersion_ns: int
    sent_ns: int
    received_ns: int
    replied_ns: int
    came_ns: int
    spike: bool
    packets: int

    @property
    def offset_ns(self) -> int:
        """Local minus server, when it came."""
        return -((self.received_ns - self.sent_ns) + (self.replied_ns - self.came_ns)) // 2

    @property
    def delay_ns(self) -> int:
        """The round trip."""
        return (self.came_ns - self.sent_ns) - (self.replied_ns - self.received_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimesyncdReading:
    """What timesyncd said. exchange: None before the first answer. poll_ns: None where it did not say."""

    server: str
    poll_ns: int | None
    exchange: TimesyncExchange | None
    at_raw_ns: int
    at_real_ns: int


def last_synchronised() -> int | None:
    """When timesyncd last set the clock (Unix ns, of the file that it touches), None where it has not since boot.

    Raises OSError where that cannot be seen.
    """
    try:
        return Path(SYNCHRONISED_FILE).stat().st_mtime_ns
    except FileNotFoundError:
        return None


def read_timesyncd(path: str = BUS_SOCKET, *, timeout_s: float = 1.0) -> TimesyncdReading:
    """The manager's properties. Raises PeerError, one line, where the bus or timesyncd does not answer."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            talk = _Conversation(link, time.monotonic() + timeout_s)
            talk.open(path)
            properties = talk.call(_SERVICE, _OBJECT, _PROPERTIES, "GetAll", _MANAGER)
            return _reading(properties)
    except TimeoutError:
        raise PeerError(f"systemd-timesyncd does not answer on the bus within {timeout_s:g} s ({path})") from None
    except OSError as error:
        raise PeerError(f"the system bus does not answer ({path}: {why_not(error)})") from None
    except DecodeError as error:
        raise PeerError(f"systemd-timesyncd on the bus: {error} ({path})") from None


class _Conversation:
    """Calls over one connection to the bus, all before one deadline."""

    def __init__(self, link: socket.socket, deadline: float) -> None:
        self.link = link
        self.deadline = deadline
        self.serial = 0
        self.rest = b""

    def open(self, path: str) -> None:
        """Connects, tells who we are (the bus checks that by the socket), and takes a name."""
        self._wait()
        self.link.connect(path)
        self.link.sendall(b"\0AUTH EXTERNAL " + str(os.geteuid()).encode().hex().encode() + b"\r\n")
        while b"\r\n" not in self.rest:
            if len(self.rest) > _MAX_LINE:
                raise DecodeError("no answer to AUTH")
            self._more()
        answer, _, self.rest = self.rest.partition(b"\r\n")
        if not answer.startswith(b"OK "):
            raise DecodeError(f"the bus does not let us in: {answer[:60]!r}")
        self.link.sendall(b"BEGIN\r\n")
        self.call(_BUS, "/org/freedesktop/DBus", _BUS, "Hello")

    def call(self, destination: str, path: str, interface: str, member: str, *arguments: str) -> tuple[Any, ...]:
        """The values that it returns. Raises DecodeError where it is refused."""
        self.serial += 1
        self._wait()
        self.link.sendall(encode_call(self.serial, destination, path, interface, member, *arguments))
        while True:
            message = self._message()
            if message.reply_to != self.serial:
                continue
            if message.kind == MessageKind.ERROR:
                said = message.body[0] if message.body and isinstance(message.body[0], str) else ""
                raise DecodeError(f"{message.error}: {said[:200]}")
            return message.body

    def _message(self) -> DbusMessage:
        while len(self.rest) < FIXED_OCTETS or len(self.rest) < message_octets(self.rest):
            self._more()
        size = message_octets(self.rest)
        data, self.rest = self.rest[:size], self.rest[size:]
        return DbusMessage.decode(data)

    def _more(self) -> None:
        self._wait()
        data = self.link.recv(65_536)
        if not data:
            raise DecodeError("the bus closed the connection")
        self.rest += data

    def _wait(self) -> None:
        remaining_s = self.deadline - time.monotonic()
        if remaining_s <= 0:
            raise TimeoutError
        self.link.settimeout(remaining_s)


def _reading(body: tuple[Any, ...]) -> TimesyncdReading:
    """Raises DecodeError where a property is not what systemd's manual says."""
    try:
        properties = dict(body[0])
    except (IndexError, TypeError, ValueError):
        raise DecodeError("its properties are no dictionary") from None
    name, poll_us = properties.get("ServerName", ""), properties.get("PollIntervalUSec")
    address = _address(properties.get("ServerAddress"))
    return TimesyncdReading(
        server=address or (name if isinstance(name, str) else ""),
        poll_ns=poll_us * _NS_PER_US if isinstance(poll_us, int) and poll_us > 0 else None,
        exchange=_exchange(properties.get("NTPMessage")),
        at_raw_ns=raw_ns(),
        at_real_ns=realtime_ns(),
    )


def _address(value: Any) -> str:
    """ServerAddress: family and octets."""
    if not isinstance(value, tuple) or len(value) != 2 or not isinstance(value[1], bytes):
        return ""
    family, packed = value
    sizes = {socket.AF_INET: 4, socket.AF_INET6: 16}
    return socket.inet_ntop(family, packed) if sizes.get(family) == len(packed) else ""


def _exchange(value: Any) -> TimesyncExchange | None:
    """NTPMessage, (uuuuittayttttbtt): times in µs; no packet yet: None."""
    if not isinstance(value, tuple) or len(value) != _EXCHANGE_FIELDS:
        raise DecodeError("its NTPMessage is not (uuuuittayttttbtt)")
    leap, _, _, stratum, _, root_delay, root_dispersion, _, sent, received, replied, came, spike, packets, _ = value
    numbers = (leap, stratum, root_delay, root_dispersion, sent, received, replied, came, packets)
    if not all(isinstance(number, int) for number in numbers):
        raise DecodeError("its NTPMessage is not (uuuuittayttttbtt)")
    if packets == 0:
        return None
    return TimesyncExchange(
        leap=leap,
        stratum=stratum,
        root_delay_ns=root_delay * _NS_PER_US,
        root_dispersion_ns=root_dispersion * _NS_PER_US,
        sent_ns=sent * _NS_PER_US,
        received_ns=received * _NS_PER_US,
        replied_ns=replied * _NS_PER_US,
        came_ns=came * _NS_PER_US,
        spike=bool(spike),
        packets=packets,
    )
