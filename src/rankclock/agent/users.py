"""Who may read the agent's pages: a file of `name:scrypt$SALT$KEY` lines, and HTTP basic authentication against it.

Refuses a file with a line of another form. A right password is remembered by a keyed digest for as long as the process
runs: scrypt takes 10 ms by design, too long for every scrape; a wrong one always pays.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from pathlib import Path

from rankclock.errors import UserError

__all__ = ["Users", "password_line"]

_COST = {"n": 4096, "r": 8, "p": 1, "dklen": 32}
_MAX_KNOWN = 64


def password_line(name: str, password: str) -> str:
    """The line of a user. Raises UserError."""
    if not name or ":" in name or not name.isprintable():
        raise UserError(f"a user name has no colon and is not empty, found {name!r}")
    if not password:
        raise UserError(f"the password of {name} is empty")
    salt = os.urandom(16)
    return f"{name}:scrypt${salt.hex()}${_key(password.encode(), salt).hex()}"


def _key(password: bytes, salt: bytes) -> bytes:
    return hashlib.scrypt(password, salt=salt, **_COST)


class Users:
    """Those of one file."""

    def __init__(self, keys: dict[str, tuple[bytes, bytes]]) -> None:
        self._keys = keys
        self._secret = os.urandom(32)
        self._known: set[bytes] = set()

    @classmethod
    def load(cls, path: Path) -> Users:
        """Read the file. Raises UserError with file and line."""
        keys: dict[str, tuple[bytes, bytes]] = {}
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{path}: cannot read this file of users: {error}") from None
        for number, line in enumerate(lines, 1):
            if not line.strip() or line.startswith("#"):
                continue
            name, _, rest = line.partition(":")
            try:
                kind, salt, key = rest.strip().split("$")
                keys[name] = (bytes.fromhex(salt), bytes.fromhex(key))
            except ValueError:
                kind = ""
            if kind != "scrypt" or not name:
                raise UserError(
                    f"{path}:{number}: expected name:scrypt$SALT$KEY: `rankclock agent password` makes such lines"
                )
        if not keys:
            raise UserError(f"{path}: no users: `rankclock agent password NAME` makes a line")
        return cls(keys)

    def allow(self, authorization: str) -> bool:
        """Whether an Authorization header names a user with the right password."""
        digest = hmac.digest(self._secret, authorization.encode(), "sha256")
        if digest in self._known:
            return True
        scheme, _, encoded = authorization.partition(" ")
        try:
            name, colon, password = base64.b64decode(encoded, validate=True).decode().partition(":")
        except ValueError:  # neither base64, nor ASCII, nor UTF-8
            return False
        # An unknown name takes as long as a known one.
        salt, key = self._keys.get(name, (b"nobody", b""))
        right = hmac.compare_digest(_key(password.encode(), salt), key)
        if scheme.lower() != "basic" or not colon or not right:
            return False
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        self._known.add(digest)
        return True
