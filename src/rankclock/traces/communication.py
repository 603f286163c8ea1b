"""Spans of communication out of trace events: what the arguments of kernels and annotations say.

Accepts numbers given as text, as salvaged events and some writers have them. Drops what moves nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from rankclock.traces.kinds import Kind, kind_of_name
from rankclock.traces.salvage import Event
from rankclock.traces.spans import GPU_SLACK_NS, NO_SEQUENCE, UNKNOWN_SIZE, Span, Token

__all__ = ["elements_of", "integer_of", "kernel_span", "lane_of", "object_of"]

_NUMBER = re.compile(r"-?\d+")


def kernel_span(kind: Kind, args: Mapping[str, Any], start_ns: int, end_ns: int, lane: str) -> Span | None:
    """The span of a communication kernel; None where it moves nothing, so that nobody waits for it."""
    name = args.get("Collective name")
    if isinstance(name, str) and kind_of_name(name) is not Kind.OTHER:
        kind = kind_of_name(name)
    counts = [integer_of(args.get(key)) for key in ("In msg nelems", "Out msg nelems")]
    known = [count for count in counts if count is not None]
    if known and not any(known) and kind is not Kind.BARRIER:
        return None
    if kind is Kind.ALL_TO_ALL and not _everyone_sends(args):
        kind = Kind.OTHER
    token = Token(
        kind=kind,
        group=str(args.get("Process Group Name", "")),
        size=known[0] if known else UNKNOWN_SIZE,
        source=_or_minus_one(integer_of(args.get("Src Rank"))),
        destination=_or_minus_one(integer_of(args.get("Dst Rank"))),
    )
    sequence = integer_of(args.get("Seq"))
    return Span(token, NO_SEQUENCE if sequence is None else sequence, start_ns, end_ns, GPU_SLACK_NS, lane)


def _everyone_sends(args: Mapping[str, Any]) -> bool:
    """Whether an all-to-all certainly moves something between every two ranks: equal splits, or none of them zero."""
    for key in ("In split size", "Out split size"):
        splits = args.get(key)
        if isinstance(splits, str):
            splits = [int(number) for number in _NUMBER.findall(splits)]
        if isinstance(splits, list) and splits and any(integer_of(split) == 0 for split in splits):
            return False
    return True


def elements_of(dims: Any) -> int:
    """How many elements the first input has, from [[37376]] (or the same as text)."""
    if isinstance(dims, str):
        match = re.match(r"\s*\[+([0-9,\s]*)\]", dims)
        dims = [[int(number) for number in _NUMBER.findall(match.group(1))]] if match else None
    if not isinstance(dims, list) or not dims or not isinstance(dims[0], list):
        return UNKNOWN_SIZE
    first = dims[0][0] if dims[0] and isinstance(dims[0][0], list) else dims[0]
    product = 1
    for size in first:
        number = integer_of(size)
        if number is None:
            return UNKNOWN_SIZE
        product *= number
    return product


def lane_of(event: Event) -> str:
    """Thread or stream; the same thread appears as a number in some events and as text in others."""
    return f"{_plain(event.pid)}/{_plain(event.tid)}"


def _plain(raw: msgspec.Raw) -> str:
    return bytes(raw).decode("utf-8", "replace").strip('"')


def object_of(raw: msgspec.Raw) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(raw) if raw else {}
    except msgspec.DecodeError:
        value = {}
    return value if isinstance(value, dict) else {}


def integer_of(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,19}", value):
        return int(value)
    return None


def _or_minus_one(value: int | None) -> int:
    return -1 if value is None else value
