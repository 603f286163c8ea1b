"""Log lines to stderr, where systemd takes them; of one kind only so many, and what was left out is counted."""

from __future__ import annotations

import sys
from collections.abc import Callable

from rankclock.timebase import NS_PER_S

__all__ = ["QuietLog"]

BURST = 5
PER_NS = 60 * NS_PER_S
MAX_KINDS = 256
LINE_CHARACTERS = 500


class QuietLog:
    """Of each kind `BURST` lines a minute pass. The kind of a line is its text up to the first colon or digit."""

    def __init__(self, *, write: Callable[[str], object] = sys.stderr.write) -> None:
        self._write = write
        self._kinds: dict[str, list[int]] = {}  # kind: [begin of its minute, lines in it]

    def say(self, line: str, now_ns: int) -> None:
        """Say it, or count it."""
        kind = _kind(line)
        if kind not in self._kinds and len(self._kinds) >= MAX_KINDS:
            self._kinds.pop(next(iter(self._kinds)))
        since = self._kinds.setdefault(kind, [now_ns, 0])
        if now_ns - since[0] >= PER_NS:
            if since[1] > BURST:
                self._put(f"{since[1] - BURST} more lines like: {kind}")
            since[:] = [now_ns, 0]
        since[1] += 1
        if since[1] <= BURST:
            self._put(line)

    def _put(self, line: str) -> None:
        text = " ".join(line.split())[:LINE_CHARACTERS]
        self._write(f"rankclock agent: {text}\n")


def _kind(line: str) -> str:
    for index, character in enumerate(line):
        if character == ":" or character.isdigit():
            return line[:index].strip()
    return line
