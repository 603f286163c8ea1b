"""Messages with file descriptors between the harness, the first process of a lab and its nodes. Standard library only.

One JSON object a message on a SOCK_SEQPACKET unix socket. An object too long for one packet travels in a memory file.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from typing import Any

__all__ = ["Channel", "channel_pair"]

_INLINE_BYTES = 60_000  # well under the kernel's default limit of one packet (net.core.wmem_default 212992)
_MAX_FDS = 250  # the kernel carries at most 253 (SCM_MAX_FD)


class Channel:
    """One end. All methods raise OSError; a closed peer is EOFError."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def fileno(self) -> int:
        """For select."""
        return self.sock.fileno()

    def send(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """Sends one message; the descriptors stay the sender's too."""
        body = json.dumps(message).encode()
        if len(body) <= _INLINE_BYTES:
            socket.send_fds(self.sock, [b"J" + body], fds)
            return
        memory = os.memfd_create("message")
        try:
            with os.fdopen(os.dup(memory), "wb") as file:
                file.write(body)
            socket.send_fds(self.sock, [b"F"], [memory, *fds])
        finally:
            os.close(memory)

    def receive(self) -> tuple[dict[str, Any], list[int]]:
        """One message and its descriptors (close-on-exec), which are the receiver's to close. Raises EOFError."""
        data, fds, _, _ = socket.recv_fds(self.sock, _INLINE_BYTES + 1, _MAX_FDS, socket.MSG_CMSG_CLOEXEC)
        if not data:
            raise EOFError("the other end of the channel is closed")
        if data[:1] == b"F":
            with os.fdopen(fds[0], "rb") as file:
                file.seek(0)
                data = b"J" + file.read()
            fds = fds[1:]
        message = json.loads(data[1:])
        assert isinstance(message, dict)
        return message, list(fds)

    def call(self, message: dict[str, Any], fds: Sequence[int] = ()) -> tuple[dict[str, Any], list[int]]:
        """Sends a request and waits for its answer."""
        self.send(message, fds)
        return self.receive()

    def close(self) -> None:
        """Closes this end."""
        self.sock.close()


def channel_pair() -> tuple[Channel, Channel]:
    """Two connected ends."""
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return Channel(a), Channel(b)
