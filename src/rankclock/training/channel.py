"""Bytes of one connection between two ranks <-> JSON messages, sealed and limited in length. No I/O.

Each side first sends a greeting in the clear: the format's name, a random nonce, whether it has a key file. Every later
frame is sealed: HMAC-SHA256 over its number and its text, with a key made of both nonces and the shared key, another
one for each direction. So who has not the shared key can forge, replay, reorder or reflect nothing. Without a key file
the shared key is a constant: seals then only tell rankclock from other programs, and whoever can connect to the port
can take part.

Decides whether bytes are a message. Refuses everything else with DecodeError, for any input.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from enum import StrEnum
from typing import Any

from rankclock.errors import DecodeError

__all__ = ["MAX_FRAME", "NONCE_BYTES", "SCHEMA", "Channel", "Role", "derive_key"]

SCHEMA = "rankclock-meeting/1"

NONCE_BYTES = 16
_SEAL_BYTES = 32
_LENGTH_BYTES = 4

MAX_STRANGER_FRAME = 4096
"""Until the other side has shown a valid seal: a greeting has about 100 bytes, the first message about 300."""

MAX_FRAME = 16 << 20
"""Largest message of a rank: the reports of 65,536 ranks' reference (250 bytes each) fit."""

_OPEN_KEY = b"rankclock without a key file"


class Role(StrEnum):
    """Which of the two sides this is; it says which key seals and which one checks."""

    SERVER = "server"
    CLIENT = "client"


def derive_key(shared: bytes | None, purpose: bytes, *parts: bytes) -> bytes:
    """A key of 32 bytes for one purpose, from the shared key (None: the open one) and public parts."""
    text = b"".join(len(part).to_bytes(4, "big") + part for part in (purpose, *parts))
    return hmac.digest(shared if shared is not None else _OPEN_KEY, text, hashlib.sha256)


class Channel:
    """One connection's state: bytes in, messages out, and the other way."""

    def __init__(self, role: Role, *, nonce: bytes, shared: bytes | None) -> None:
        """`nonce`: NONCE_BYTES fresh random bytes. `shared`: what the key file holds, None without one."""
        self._role, self._nonce, self._shared = role, nonce, shared
        self._buffer = bytearray()
        self._sent = self._received = 0
        self._keys: tuple[bytes, bytes] | None = None

    @property
    def greeted(self) -> bool:
        """Whether the other side's greeting has come: it speaks this protocol."""
        return self._keys is not None

    @property
    def trusted(self) -> bool:
        """Whether a valid seal has come."""
        return self._received > 0

    def greeting(self) -> bytes:
        """The first bytes to send."""
        return _frame(_encode({"schema": SCHEMA, "nonce": self._nonce.hex(), "keyed": self._shared is not None}))

    def seal(self, message: dict[str, Any]) -> bytes:
        """The bytes of a message. Only after the other side's greeting. Raises ValueError where it is too long."""
        if self._keys is None:
            raise ValueError("a channel seals only after both greetings")
        text = _encode(message)
        if len(text) + _SEAL_BYTES > MAX_FRAME:
            raise ValueError(f"a message of {len(text)} bytes: at most {MAX_FRAME - _SEAL_BYTES}")
        seal = _seal(self._keys[0], self._sent, text)
        self._sent += 1
        return _frame(seal + text)

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """The messages that these bytes complete. Raises DecodeError; the channel is then of no more use."""
        self._buffer += data
        messages = []
        while (body := self._next_body()) is not None:
            if self._keys is None:
                self._read_greeting(body)
            else:
                messages.append(self._open(body))
        return messages

    def _next_body(self) -> bytes | None:
        if len(self._buffer) < _LENGTH_BYTES:
            return None
        length = int.from_bytes(self._buffer[:_LENGTH_BYTES], "big")
        limit = MAX_FRAME if self.trusted else MAX_STRANGER_FRAME
        if length > limit:
            raise DecodeError(f"a frame of {length} bytes: at most {limit}; is this another program's port?")
        end = _LENGTH_BYTES + length
        if len(self._buffer) < end:
            return None
        body = bytes(self._buffer[_LENGTH_BYTES:end])
        del self._buffer[:end]
        return body

    def _read_greeting(self, body: bytes) -> None:
        greeting = _decode(body)
        nonce, keyed = greeting.get("nonce"), greeting.get("keyed")
        if greeting.get("schema") != SCHEMA:
            raise DecodeError(f"it speaks {str(greeting.get('schema'))[:40]!r}, expected {SCHEMA!r}: versions differ")
        if not isinstance(nonce, str) or not isinstance(keyed, bool):
            raise DecodeError("a greeting without nonce or keyed")
        try:
            theirs = bytes.fromhex(nonce)
        except ValueError:
            raise DecodeError("a greeting whose nonce is not hexadecimal") from None
        if len(theirs) != NONCE_BYTES:
            raise DecodeError(f"a greeting with a nonce of {len(theirs)} bytes, expected {NONCE_BYTES}")
        server = self._role is Role.SERVER
        nonces = (self._nonce, theirs) if server else (theirs, self._nonce)
        from_server = derive_key(self._shared, b"from server", *nonces)
        from_client = derive_key(self._shared, b"from client", *nonces)
        self._keys = (from_server, from_client) if server else (from_client, from_server)
        if keyed and self._shared is None:
            raise DecodeError("it has a RANKCLOCK_KEY_FILE and this process has none: set it on every rank")
        if self._shared is not None and not keyed:
            raise DecodeError("this process has a RANKCLOCK_KEY_FILE and the other side has none: set it on every rank")

    def _open(self, body: bytes) -> dict[str, Any]:
        assert self._keys is not None
        seal, text = body[:_SEAL_BYTES], body[_SEAL_BYTES:]
        if not hmac.compare_digest(seal, _seal(self._keys[1], self._received, text)):
            if self._shared is None:
                raise DecodeError("a frame whose seal does not fit: garbage, or a message that was changed on the way")
            raise DecodeError("a seal made with another key: RANKCLOCK_KEY_FILE must hold the same bytes on every rank")
        self._received += 1
        return _decode(text)


def _seal(key: bytes, number: int, text: bytes) -> bytes:
    return hmac.digest(key, number.to_bytes(8, "big") + text, hashlib.sha256)


def _frame(body: bytes) -> bytes:
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


def _encode(message: dict[str, Any]) -> bytes:
    return json.dumps(message, allow_nan=False, separators=(",", ":")).encode()


def _decode(text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text.decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"a message that is no JSON: {str(error)[:80]}") from None
    if not isinstance(value, dict):
        raise DecodeError(f"a message that is no JSON object but a {type(value).__name__}")
    return value


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
