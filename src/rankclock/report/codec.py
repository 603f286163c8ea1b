"""Frozen dataclasses to JSON values and back, by their type hints.

Decides that a file is read exactly as its dataclass declares it: no missing key without a default, no unknown key, no
string where a number belongs, no number that is not finite. Everything else is one `DecodeError` that names the place.
"""

from __future__ import annotations

import math
import types
import typing
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from typing import Any

from rankclock.errors import DecodeError

__all__ = ["decode", "encode"]

INT64 = 1 << 63
"""Instants and spans fit in 64 bits; a larger integer in a file is a broken file (and would break every plot)."""


def encode(value: Any) -> Any:
    """Dataclasses, tuples, dicts, enums and plain values as JSON types; a member's own `to_json` is honoured."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _member(getattr(value, field.name)) for field in fields(value)}
    return _member(value)


def _member(value: Any) -> Any:
    if isinstance(value, StrEnum):
        return value.value
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, tuple | list):
        return [_member(item) for item in value]
    if isinstance(value, dict):
        return {key: _member(item) for key, item in value.items()}
    if hasattr(value, "to_json"):
        return value.to_json()
    return encode(value)


def decode(kind: Any, value: object, where: str) -> Any:
    """`value` as a `kind` (a type hint). Raises DecodeError, naming `where`; nothing else, for any input."""
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        return _optional(kind, value, where)
    if origin is tuple:
        item_kind = typing.get_args(kind)[0]
        return tuple(decode(item_kind, v, f"{where}[{i}]") for i, v in enumerate(_expect(list, value, where)))
    if origin is dict:
        item_kind = typing.get_args(kind)[1]
        return {key: decode(item_kind, v, f"{where}.{key}") for key, v in _expect(dict, value, where).items()}
    if kind in _PLAIN:
        return _PLAIN[kind](kind, value, where)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return _built(kind, where, _expect(str, value, where))
    return _object(kind, value, where)


def _optional(kind: Any, value: object, where: str) -> Any:
    if value is None:
        return None
    (present,) = (arg for arg in typing.get_args(kind) if arg is not types.NoneType)
    return decode(present, value, where)


def _expect(kind: type, value: object, where: str) -> Any:
    if not isinstance(value, kind):
        raise DecodeError(f"{where}: expected {kind.__name__}, found {type(value).__name__}")
    return value


def _number(kind: type, value: object, where: str) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int if kind is int else (int, float)):
        raise DecodeError(f"{where}: expected {kind.__name__}, found {type(value).__name__}")
    if not (math.isfinite(value) if isinstance(value, float) else -INT64 <= value < INT64):
        raise DecodeError(f"{where}: the number is not finite, or beyond 64 bits")
    return kind(value)  # type: ignore[no-any-return]


_PLAIN = {str: _expect, bool: _expect, int: _number, float: _number}


def _object(kind: Any, value: object, where: str) -> Any:
    entries = dict(_expect(dict, value, where))
    if "schema" in entries and "schema" not in {field.name for field in fields(kind)}:
        del entries["schema"]  # a nested format (a status object) carries its own
    hints = typing.get_type_hints(kind)
    given = {}
    for field in fields(kind):
        if field.name in entries:
            given[field.name] = decode(hints[field.name], entries.pop(field.name), f"{where}.{field.name}")
        elif field.default is MISSING and field.default_factory is MISSING:
            raise DecodeError(f"{where}: {field.name!r} is missing")
    if entries:
        raise DecodeError(f"{where}: unknown key {min(entries)!r}")
    return _built(kind, where, **given)


def _built(kind: Any, where: str, *args: Any, **given: Any) -> Any:
    try:
        return kind(*args, **given)
    except ValueError as error:
        raise DecodeError(f"{where}: {error}") from error
