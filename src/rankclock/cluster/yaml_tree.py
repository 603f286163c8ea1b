"""A YAML text as plain values, each with its line. Refuses what a cluster file never needs and an attacker does.

Built from the parser's events, not by a loader, so that depth, size and aliases are bounded before anything is made
of them, keys given twice are seen, and no tag can make an object.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from rankclock.errors import DecodeError

__all__ = ["MAX_BYTES", "MAX_DEPTH", "MAX_VALUES", "Tree", "YamlError", "parse_yaml"]

MAX_BYTES = 2 * 1024 * 1024
"""10,000 nodes written out one by one are about 1 MB; more is better said with ranges."""

MAX_DEPTH = 16
"""A lab scenario needs 6."""

MAX_VALUES = 1_000_000
"""Values after aliases were followed: a few lines of nested aliases can stand for billions."""


class YamlError(DecodeError):
    """What is wrong with the text, and at which line."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True, slots=True)
class Tree:
    """One value: `plain` is what it is without lines; `parts` are its items, by key or number; `line` counts from 1."""

    plain: Any
    line: int
    parts: dict[str | int, Tree]
    size: int

    def line_of(self, path: tuple[str | int, ...]) -> int:
        """The line of the deepest part of `path` that exists."""
        here = self
        for step in path:
            if step not in here.parts:
                break
            here = here.parts[step]
        return here.line


def parse_yaml(text: str) -> Tree:
    """Parse one YAML document. Raises YamlError for anything else."""
    from ruamel.yaml import YAML  # here: importing the package stays quick where no file is read
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    if len(text) > MAX_BYTES:
        raise YamlError(
            f"{len(text)} bytes: expected at most {MAX_BYTES}; write nodes as ranges such as gpu[001-032]", 1
        )
    if any(not (mark.isprintable() or mark in "\n\r\t") for mark in text.lstrip("\ufeff")):
        bad = next(mark for mark in text.lstrip("\ufeff") if not (mark.isprintable() or mark in "\n\r\t"))
        raise YamlError(f"the character {bad!r} has no place in the file", text[: text.index(bad)].count("\n") + 1)
    reader = YAML(typ="safe", pure=True)
    try:
        return _Builder().document(iter(reader.parse(text)))
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise YamlError(f"not YAML: {error.problem or error.context}", mark.line + 1 if mark else 1) from None
    except YAMLError as error:
        raise YamlError(f"not YAML: {str(error).splitlines()[0]}", 1) from None


_INT = re.compile(r"[-+]?[0-9]{1,30}")
_HEX = re.compile(r"0x[0-9a-fA-F]{1,16}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]{1,3})?")
_WORDS = {"": None, "~": None, "null": None, "Null": None, "NULL": None, "true": True, "True": True, "TRUE": True,
          "false": False, "False": False, "FALSE": False}  # fmt: skip


def _plain(text: str) -> str | int | float | bool | None:
    """An unquoted scalar by the core schema of YAML 1.2 (section 10.3.2): `yes` and dates are text."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    if _HEX.fullmatch(text):
        return int(text, 16)
    return float(text) if _FLOAT.fullmatch(text) else text


class _Builder:
    """Makes a tree of events; every refusal is in here."""

    def __init__(self) -> None:
        self.anchors: dict[str, Tree] = {}
        self.values = 0

    def document(self, events: Iterator[Any]) -> Tree:
        tree: Tree | None = None
        for event in events:
            kind = type(event).__name__
            if kind in ("StreamStartEvent", "DocumentStartEvent", "DocumentEndEvent", "StreamEndEvent"):
                continue
            if tree is not None:
                self._refuse("a second document starts here: expected one", event)
            tree = self._value(event, events, 0)
        if tree is None:
            raise YamlError("the file is empty", 1)
        return tree

    def _value(self, event: Any, events: Iterator[Any], depth: int) -> Tree:
        if depth > MAX_DEPTH:
            self._refuse(f"nested deeper than {MAX_DEPTH}", event)
        kind = type(event).__name__
        if kind == "AliasEvent":
            tree = self._alias(event)
        elif kind == "ScalarEvent":
            tree = Tree(self._scalar(event), _line(event), {}, 1)
        elif kind == "SequenceStartEvent":
            tree = self._sequence(event, events, depth)
        elif kind == "MappingStartEvent":
            tree = self._mapping(event, events, depth)
        else:
            self._refuse(f"unexpected {kind}", event)
        if getattr(event, "anchor", None) and kind != "AliasEvent":
            self.anchors[event.anchor] = tree
        return tree

    def _alias(self, event: Any) -> Tree:
        target = self.anchors.get(event.anchor)
        if target is None:
            self._refuse(f"the alias *{event.anchor} stands for nothing before it", event)
        self._count(target.size, event)
        return target

    def _sequence(self, event: Any, events: Iterator[Any], depth: int) -> Tree:
        self._tag(event, "seq")
        parts: dict[str | int, Tree] = {}
        for item in events:
            if type(item).__name__ == "SequenceEndEvent":
                break
            parts[len(parts)] = self._value(item, events, depth + 1)
        return Tree([part.plain for part in parts.values()], _line(event), parts, _size(parts))

    def _mapping(self, event: Any, events: Iterator[Any], depth: int) -> Tree:
        self._tag(event, "map")
        parts: dict[str | int, Tree] = {}
        for item in events:
            if type(item).__name__ == "MappingEndEvent":
                break
            key = self._value(item, events, depth + 1).plain
            if not isinstance(key, str):
                self._refuse(f"a key is text, found {key!r:.40}", item)
            if key in parts:
                self._refuse(f"key {key!r:.60} is given twice, first in line {parts[key].line}", item)
            part = self._value(next(events), events, depth + 1)
            parts[key] = Tree(part.plain, _line(item), part.parts, part.size)
        return Tree({key: part.plain for key, part in parts.items()}, _line(event), parts, _size(parts))

    def _scalar(self, event: Any) -> str | int | float | bool | None:
        self._count(1, event)
        self._tag(event, "str")
        return _plain(event.value) if event.implicit[0] and not event.tag else str(event.value)

    def _tag(self, event: Any, kind: str) -> None:
        if event.tag not in (None, "!", f"tag:yaml.org,2002:{kind}"):
            self._refuse(f"the tag {event.tag!r:.60} is not allowed", event)

    def _count(self, values: int, event: Any) -> None:
        self.values += values
        if self.values > MAX_VALUES:
            self._refuse(f"stands for more than {MAX_VALUES} values (aliases that hold aliases?)", event)

    def _refuse(self, message: str, event: Any) -> NoReturn:
        raise YamlError(message, _line(event))


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def _size(parts: dict[str | int, Tree]) -> int:
    return 1 + sum(part.size for part in parts.values())
