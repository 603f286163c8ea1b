"""Frozen dataclasses as plain JSON values and back. Field names are the keys; enums are their values."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, TypeVar

from rankclock.errors import DecodeError

__all__ = ["from_plain", "to_plain"]

T = TypeVar("T")


def to_plain(value: Any) -> Any:
    """JSON values for a dataclass and all in it."""
    if is_dataclass(value) and not isinstance(value, type):
        return {part.name: to_plain(getattr(value, part.name)) for part in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_plain(item) for item in value]
    return value


def from_plain(kind: type[T], value: Any, *, schema: str, derived: tuple[str, ...] = ()) -> T:
    """The dataclass that `to_plain` wrote with a `schema` key. `derived`: keys that are there for other readers only.

    Raises DecodeError for anything else.
    """
    if not isinstance(value, Mapping) or value.get("schema") != schema:
        found = value.get("schema") if isinstance(value, Mapping) else type(value).__name__
        raise DecodeError(f"expected an object of schema {schema}, found {found!r:.60}")
    rest = {key: item for key, item in value.items() if key != "schema" and key not in derived}
    return typing.cast(T, _read(kind, rest, kind.__name__))


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _read(kind: Any, value: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in arguments:
            return None
        return _read(next(item for item in arguments if item is not type(None)), value, where)
    if origin is tuple:
        return _tuple(arguments, value, where)
    if origin is Mapping:
        _expect(isinstance(value, Mapping), "an object", value, where)
        return {str(key): _read(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    return _dataclass(kind, value, where) if is_dataclass(kind) else _scalar(kind, value, where)


def _scalar(kind: Any, value: Any, where: str) -> Any:
    if issubclass(kind, Enum):
        try:
            return kind(value)
        except ValueError:
            raise DecodeError(f"{where}: {value!r:.60} is no {kind.__name__}") from None
    _expect(type(value) is kind, kind.__name__, value, where)
    return value


def _tuple(arguments: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    _expect(isinstance(value, list), "a list", value, where)
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return tuple(_read(arguments[0], item, f"{where}[{number}]") for number, item in enumerate(value))
    _expect(len(value) == len(arguments), f"{len(arguments)} items", value, where)
    return tuple(_read(part, item, where) for part, item in zip(arguments, value, strict=True))


def _dataclass(kind: Any, value: Any, where: str) -> Any:
    _expect(isinstance(value, Mapping), "an object", value, where)
    hints = _hints(kind)
    unknown = sorted(str(key) for key in value if key not in hints)
    missing = sorted(part.name for part in fields(kind) if part.name not in value)
    _expect(
        not unknown and not missing, f"no unknown {unknown} and no missing {missing}", sorted(value, key=str), where
    )
    return kind(**{name: _read(hints[name], value[name], f"{where}.{name}") for name in value})


def _expect(right: bool, wanted: str, value: Any, where: str) -> None:
    if not right:
        raise DecodeError(f"{where}: expected {wanted}, found {value!r:.80}")
