"""What the messages of a meeting are made of: the ranks present, how a meeting ended, and fields checked once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rankclock.errors import DecodeError, ExitCode

__all__ = ["End", "Member", "integer_field", "text_field"]

MAX_TEXT = 2000
"""Names of hosts and jobs, and error messages of one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One rank: its host's own name for itself, and the numeric address under which rank 0 sees it."""

    rank: int
    host: str
    address: str
    pid: int

    def __str__(self) -> str:
        return f"rank {self.rank} ({self.host})"


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How the meeting ended before its time: the same for all ranks."""

    code: ExitCode
    message: str


def integer_field(message: dict[str, Any], name: str) -> int:
    """A whole number of 64 bits. Raises DecodeError."""
    value = message.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= 1 << 63:
        raise DecodeError(f"{name} is no whole number")
    return value


def text_field(message: dict[str, Any], name: str) -> str:
    """A text of limited length. Raises DecodeError."""
    value = message.get(name)
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        raise DecodeError(f"{name} is no text of at most {MAX_TEXT} letters")
    return value
