"""A UDP socket whose datagrams the kernel stamps, in and out (SO_TIMESTAMPING, software, no privilege needed).

Decides where a stamp comes from. A departure is matched to its datagram by the datagram's own bytes, which the kernel
hands back with the stamp: a count of sends goes wrong as soon as one send fails. Where the kernel gives no stamp it
says so (None): the caller knows when it handed the datagram over. Bytes that come in are not judged here.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct
from dataclasses import dataclass
from typing import Self

from rankclock.errors import HostError, UserError
from rankclock.mesh.actions import Address
from rankclock.mesh.clocks import read_raw_ns

__all__ = ["Received", "StampedSocket", "parse_address"]

SO_TIMESTAMPING = 37
_TX_SOFTWARE, _RX_SOFTWARE, _SOFTWARE = 1 << 1, 1 << 3, 1 << 4
_TIMESPEC = struct.Struct("@qq")
_DATA_BYTES = 1024
_ANCILLARY_BYTES = 512
NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A datagram, read at RAW instant read_raw_ns; real_ns: the kernel's REALTIME stamp of its arrival, if any."""

    data: bytes
    source: Address
    read_raw_ns: int
    real_ns: int | None


def parse_address(text: str, *, what: str) -> Address:
    """'10.0.0.1:319', '[fe80::1]:319' or '[::]:0' as (host, port). Raises UserError: names are not resolved here."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    try:
        ipaddress.ip_address(host.partition("%")[0])
        number = int(port)
    except ValueError:
        number = -1
    if not colon or not 0 <= number <= 65535:
        raise UserError(f"{what} is a numeric ADDRESS:PORT such as 10.0.0.1:4910 or [::1]:4910, found {text!r}")
    return host, number


class StampedSocket:
    """One bound socket. `kernel` says whether the kernel was asked for stamps and agreed."""

    def __init__(self, sock: socket.socket, *, kernel: bool) -> None:
        self._socket = sock
        self.kernel = kernel

    @classmethod
    def open(cls, address: Address, *, user_stamps: bool = False) -> Self:
        """Bind to (numeric host, port; 0 for any). An IPv6 wildcard also takes IPv4. Raises HostError."""
        host, port = address
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            sock.bind((host, port))
        except OSError as error:
            sock.close()
            raise HostError(
                f"UDP port {port} on {host} cannot be opened: {error.strerror}; free it, or bind to another"
            ) from error
        kernel = False
        if not user_stamps:
            # A kernel or sandbox without it is no error: the process stamps, and the method says so.
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, _TX_SOFTWARE | _RX_SOFTWARE | _SOFTWARE)
                kernel = True
        return cls(sock, kernel=kernel)

    @classmethod
    def open_paths(cls, address: Address, *, count: int, user_stamps: bool = False) -> list[Self]:
        """The socket that peers know, and count - 1 more on ports of the kernel's choice. Raises HostError."""
        sockets = [cls.open(address, user_stamps=user_stamps)]
        sockets += [cls.open((address[0], 0), user_stamps=user_stamps) for _ in range(count - 1)]
        return sockets

    @property
    def address(self) -> Address:
        """What it is bound to."""
        host, port = self._socket.getsockname()[:2]
        return host, port

    def fileno(self) -> int:
        """For poll; an outgoing stamp raises POLLERR."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close it."""
        self._socket.close()

    def send(self, data: bytes, to: Address) -> int | None:
        """Send now; the RAW instant just before, or None where the kernel did not take it."""
        host, port = to
        if self._socket.family == socket.AF_INET6 and ":" not in host:
            host = f"::ffff:{host}"
        handed_ns = read_raw_ns()
        try:
            self._socket.sendto(data, (host, port))
        except OSError:  # no route, a full queue, a firewall: the datagram is lost, as it may be on the way
            return None
        return handed_ns

    def receive(self) -> Received | None:
        """The next datagram that waits, if any."""
        try:
            data, ancillary, _, source = self._socket.recvmsg(_DATA_BYTES, _ANCILLARY_BYTES)
        except OSError:  # nothing waits, or the network told of an error: neither is a datagram
            return None
        read_ns = read_raw_ns()
        return Received(data=data, source=source[:2], read_raw_ns=read_ns, real_ns=_stamp_in(ancillary))

    def departures(self) -> list[tuple[bytes, int]]:
        """The stamps of sent datagrams that have come in: (the bytes that left, headers before them; REALTIME)."""
        stamped = []
        while self.kernel:
            try:
                data, ancillary, _, _ = self._socket.recvmsg(
                    _DATA_BYTES, _ANCILLARY_BYTES, socket.MSG_ERRQUEUE | socket.MSG_DONTWAIT
                )
            except OSError:
                break
            real_ns = _stamp_in(ancillary)
            if real_ns is not None:
                stamped.append((data, real_ns))
        return stamped


def _stamp_in(ancillary: list[tuple[int, int, bytes]]) -> int | None:
    """The software stamp among a message's ancillary data, in ns of CLOCK_REALTIME."""
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPING and len(data) >= _TIMESPEC.size:
            seconds, nanoseconds = _TIMESPEC.unpack_from(data)
            if seconds or nanoseconds:
                return int(seconds * NS_PER_S + nanoseconds)
    return None
