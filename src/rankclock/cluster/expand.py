"""Entries of a cluster file that stand for several machines: `name: gpu[001-032]` becomes 32 nodes.

The other texts of such an entry (rack, clock_id, addresses, segments) may hold ranges too. A range with as many values
as the name goes along with it one by one; one whose number of values divides it goes along in blocks:
`rack: rack[1-4]` puts the first 8 of 32 nodes into rack1. Any other number is refused.
Works on plain data, before it is checked by the model; leaves alone what is not an entry with ranges.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rankclock.cluster.hostlist import MAX_HOSTS, expand, expand_pattern
from rankclock.errors import DecodeError

__all__ = ["EntryError", "expand_entry", "expand_nodes"]


class EntryError(DecodeError):
    """An entry that cannot be expanded: `path` leads from the list of nodes to the text at fault."""

    def __init__(self, message: str, path: tuple[str | int, ...]) -> None:
        super().__init__(message)
        self.path = path


def expand_nodes(entries: list[Any]) -> list[tuple[int, Any]]:
    """(number of the entry, node) for each node of all entries, in order. Raises EntryError."""
    nodes: list[tuple[int, Any]] = []
    for number, entry in enumerate(entries):
        try:
            nodes.extend((number, node) for node in expand_entry(entry, limit=MAX_HOSTS - len(nodes)))
        except EntryError as error:
            raise EntryError(str(error), (number, *error.path)) from None
    return nodes


def expand_entry(entry: Any, *, limit: int = MAX_HOSTS) -> list[Any]:
    """The nodes of one entry; the entry itself where its name holds no range. Raises EntryError."""
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        return [entry]
    if "[" not in entry["name"] and "," not in entry["name"]:
        return [entry]
    try:
        names = expand(entry["name"], limit=limit)
    except DecodeError as error:
        raise EntryError(str(error), ("name",)) from None
    whole = _values(entry, names, (), top=True)
    return [whole(index) for index in range(len(names))]


def _values(value: Any, names: tuple[str, ...], path: tuple[str | int, ...], *, top: bool) -> Callable[[int], Any]:
    """How to make node number n's copy of `value`: each text is expanded once for all nodes, not once a node."""
    if isinstance(value, dict):
        parts = {
            key: (lambda index: names[index])
            if top and key == "name"
            else _values(item, names, (*path, key), top=False)
            for key, item in value.items()
        }
        return lambda index: {key: part(index) for key, part in parts.items()}
    if isinstance(value, list):
        items = [_values(item, names, (*path, number), top=False) for number, item in enumerate(value)]
        return lambda index: [item(index) for item in items]
    if isinstance(value, str) and "[" in value:
        return _ranged(value, len(names), path)
    return lambda _index: value


def _ranged(text: str, count: int, path: tuple[str | int, ...]) -> Callable[[int], str]:
    try:
        values = expand_pattern(text, limit=count)
    except DecodeError as error:
        raise EntryError(f"{error}; the entry's name stands for {count} nodes", path) from None
    if count % len(values):
        raise EntryError(
            f"{text!r} has {len(values)} values for {count} nodes: expected {count}, or a number that divides it", path
        )
    block = count // len(values)
    return lambda index: values[index // block]
