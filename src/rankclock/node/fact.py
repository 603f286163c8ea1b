"""One finding about this machine: a value, or unknown with the reason; and where it was looked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

__all__ = ["Fact", "read_text", "why_not"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """value: None where it could not be seen, and then `why` says why. source: file, call or command."""

    value: Any
    why: str | None
    source: str

    @classmethod
    def known(cls, value: Any, source: str, *, why: str | None = None) -> Self:
        """A value; `why` only where a field inside it is unknown."""
        return cls(value=value, why=why, source=source)

    @classmethod
    def unknown(cls, why: str, source: str) -> Self:
        """Nothing could be seen."""
        return cls(value=None, why=why, source=source)

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {"value": self.value, "why": self.why, "source": self.source}


def why_not(error: OSError) -> str:
    """An operating system's refusal in a few words."""
    return (error.strerror or str(error)).lower()


def read_text(path: str | Path, limit: int = 65_536) -> str:
    """A small file of /proc or /sys, stripped. Raises OSError."""
    with Path(path).open("rb") as file:
        return file.read(limit).decode("utf-8", "replace").strip()
