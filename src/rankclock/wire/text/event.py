"""One-line messages as a table: kind, a literal that must stand in the line, a pattern with named groups.

A group's name says its type: `_ns`, `_ppb`, `_n` are whole numbers, `_s`, `_ms`, `_us`, `_ppm` decimal ones, everything
else is text. A group that is no number of its type is left out of the fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rankclock.wire.text.line import Line
from rankclock.wire.text.number import as_float, as_int

__all__ = ["Event", "EventTable", "Field"]

Field = str | int | float

_WHOLE = ("_ns", "_ppb", "_n")
_DECIMAL = ("_s", "_ms", "_us", "_ppm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One message that was understood. kind: its name in the table. fields: the typed groups of its pattern."""

    kind: str
    fields: Mapping[str, Field]
    line: Line

    def text(self, name: str) -> str:
        """A field as text, '' where the message did not have it."""
        return str(self.fields.get(name, ""))

    def number(self, name: str) -> float | None:
        """A field as a number, None where the message did not have it."""
        value = self.fields.get(name)
        return value if isinstance(value, (int, float)) else None


class EventTable:
    """Messages of one tool. The first row that fits wins, so special rows stand before general ones."""

    __slots__ = ("needles", "rows")

    def __init__(self, rows: Iterable[tuple[str, str, str]]) -> None:
        self.rows = [(kind, needle, re.compile(pattern)) for kind, needle, pattern in rows]
        self.needles = tuple(dict.fromkeys(needle for _, needle, _ in self.rows))

    def match(self, line: Line) -> Event | None:
        """The event of a line, None where no row fits."""
        body = line.body
        for kind, needle, pattern in self.rows:
            if needle in body and (match := pattern.search(body)):
                return Event(kind=kind, fields=_typed(match.groupdict()), line=line)
        return None


def _typed(groups: dict[str, str | None]) -> dict[str, Field]:
    fields: dict[str, Field] = {}
    for name, text in groups.items():
        value: Field | None = text
        if text is None:
            continue
        if name.endswith(_WHOLE):
            value = as_int(text)
        elif name.endswith(_DECIMAL):
            value = as_float(text)
        if value is not None:
            fields[name] = value
    return fields
