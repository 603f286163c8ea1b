"""Whether somebody works on this node: a file that says so, for a while. Alerts respect it; measurements go on.

The file holds how long (`2h`, `30m`; an hour where it is empty). It never holds for more than a day: a silence that
nobody remembers is how a broken clock goes unseen. Counted from when the agent first saw it, by a clock of its own.
"""

from __future__ import annotations

import re
from pathlib import Path

from rankclock.timebase import NS_PER_S

__all__ = ["Maintenance"]

_SPAN = re.compile(r"^\s*(\d{1,5})\s?([smh])\s*$")
_UNIT_S = {"s": 1, "m": 60, "h": 3600}
DEFAULT_S = 3600
MAX_S = 24 * 3600
_MAX_BYTES = 64


class Maintenance:
    """Remembers which file it saw when."""

    def __init__(self) -> None:
        self._seen: tuple[int, int] | None = None
        self._since_ns = 0

    def holds(self, path: str, now_ns: int) -> bool:
        """Whether the silence of that file holds now. A file that cannot be read is none."""
        try:
            stat = Path(path).stat()
            with Path(path).open("rb") as file:
                text = file.read(_MAX_BYTES).decode("utf-8", "replace")
        except OSError:
            self._seen = None
            return False
        seen = (stat.st_ino, stat.st_mtime_ns)
        if seen != self._seen:
            self._seen, self._since_ns = seen, now_ns
        return now_ns - self._since_ns < _span_s(text) * NS_PER_S


def _span_s(text: str) -> int:
    match = _SPAN.match(text)
    if match is None:
        return DEFAULT_S
    return min(int(match[1]) * _UNIT_S[match[2]], MAX_S)
