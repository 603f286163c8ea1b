"""The clock record <-> JSON: `rankclock-clock.jsonl`, and the same as one object in a profiler trace's metadata.

The file has one JSON object a line: a header (the one with `schema`), then its lines; a process that starts again
appends another header. In metadata, under METADATA_KEY, the header's object carries its lines under "lines".
Decides what a record is; refuses everything else with DecodeError. Forgives one thing: a last line that was cut off,
at the end of the file or before another header.
"""

from __future__ import annotations

import json
import math
from typing import Any

from rankclock.errors import DecodeError
from rankclock.timebase.clock_record import ClockEvent, ClockHeader, ClockLine, ClockRecord

__all__ = [
    "FILE_NAME",
    "METADATA_KEY",
    "SCHEMA",
    "decode_file",
    "decode_object",
    "encode_header",
    "encode_line",
    "encode_object",
    "file_name",
]

SCHEMA = "rankclock-clock/1"
FILE_NAME = "rankclock-clock.jsonl"
METADATA_KEY = "rankclock"

_LIMIT_NS = 1 << 63
_LINE_FIELDS = ("real_ns", "raw_ns", "lo_ns", "hi_ns", "est_ns", "rate_ppb", "event")


def file_name(rank: int | None) -> str:
    """'rankclock-clock.rank3.jsonl': ranks share folders; 'rankclock-clock*.jsonl' finds all of them."""
    return FILE_NAME if rank is None else f"rankclock-clock.rank{rank}.jsonl"


def encode_header(header: ClockHeader) -> str:
    """One line of the file, its end included."""
    return _dumps(_header_object(header)) + "\n"


def encode_line(line: ClockLine) -> str:
    """One line of the file, its end included."""
    return _dumps(_line_object(line)) + "\n"


def encode_object(record: ClockRecord) -> dict[str, Any]:
    """Header and lines as one JSON object, for a trace's metadata."""
    return {**_header_object(record.header), "lines": [_line_object(line) for line in record.lines]}


def decode_object(value: Any) -> ClockRecord:
    """The inverse of `encode_object`. Raises DecodeError."""
    header = _header(value)
    lines = value.get("lines")
    if not isinstance(lines, list):
        raise DecodeError("a clock record's lines are a list")
    return _checked(ClockRecord(header=header, lines=tuple(_line(item) for item in lines)))


def decode_file(text: str) -> tuple[ClockRecord, ...]:
    """The records of a file, one for each header. Raises DecodeError, with the line's number."""
    found: list[tuple[ClockHeader, list[ClockLine]]] = []
    torn: set[int] = set()
    *lines, rest = text.split("\n")
    broken: DecodeError | None = None
    for number, item in enumerate(lines, start=1):
        try:
            value = _loads(item)
            if isinstance(value, dict) and "schema" in value:
                if broken is not None:
                    torn.add(len(found) - 1)
                    broken = None
                found.append((_header(value), []))
            elif not found:
                raise DecodeError(f"the first line is a header with schema {SCHEMA!r}")  # noqa: TRY301
            elif broken is None:
                found[-1][1].append(_line(value))
        except DecodeError as error:
            broken = broken or DecodeError(f"line {number}: {error}")
            if not found:
                raise broken from None
        else:
            if broken is not None:
                raise broken
    if broken is not None:
        raise broken
    if not found:
        raise DecodeError("no clock record: the file has no complete line" if rest else "no clock record: it is empty")
    if rest:
        torn.add(len(found) - 1)
    return tuple(
        _checked(ClockRecord(header=header, lines=tuple(own), torn=index in torn))
        for index, (header, own) in enumerate(found)
    )


def _header_object(header: ClockHeader) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "job": header.job,
        "rank": header.rank,
        "host": header.host,
        "clock_id": header.clock_id,
        "reference": header.reference,
        "growth_ppb": header.growth_ppb,
    }


def _line_object(line: ClockLine) -> dict[str, Any]:
    value: dict[str, Any] = {name: getattr(line, name) for name in _LINE_FIELDS}
    value["event"] = None if line.event is None else line.event.value
    if line.growth_ppb is not None:
        value["growth_ppb"] = line.growth_ppb
    if line.detail:
        value["detail"] = line.detail
    return value


def _header(value: Any) -> ClockHeader:
    schema = _field(value, "schema", str)
    if schema != SCHEMA:
        raise DecodeError(f"a clock record of schema {SCHEMA!r} is expected, found {str(schema)[:40]!r}")
    try:
        return ClockHeader(
            job=_field(value, "job", str),
            rank=_field(value, "rank", int, type(None)),
            host=_field(value, "host", str),
            clock_id=_field(value, "clock_id", str),
            reference=_field(value, "reference", str),
            growth_ppb=_field(value, "growth_ppb", int),
        )
    except DecodeError:
        raise
    except ValueError as error:
        raise DecodeError(str(error)) from None


def _line(value: Any) -> ClockLine:
    rate = _field(value, "rate_ppb", float, int, type(None))
    event = _field(value, "event", str, type(None))
    extra = value if "growth_ppb" in value else {"growth_ppb": None}
    detail = value if "detail" in value else {"detail": ""}
    try:
        return ClockLine(
            real_ns=_field(value, "real_ns", int),
            raw_ns=_field(value, "raw_ns", int),
            lo_ns=_field(value, "lo_ns", int, type(None)),
            hi_ns=_field(value, "hi_ns", int, type(None)),
            est_ns=_field(value, "est_ns", int, type(None)),
            rate_ppb=None if rate is None else float(rate),
            event=None if event is None else ClockEvent(event),
            growth_ppb=_field(extra, "growth_ppb", int, type(None)),
            detail=_field(detail, "detail", str),
        )
    except DecodeError:
        raise
    except (ValueError, OverflowError) as error:
        raise DecodeError(str(error)) from None


def _checked(record: ClockRecord) -> ClockRecord:
    for before, after in zip(record.lines, record.lines[1:], strict=False):
        if after.raw_ns < before.raw_ns:
            raise DecodeError(f"CLOCK_MONOTONIC_RAW ran backwards, from {before.raw_ns} to {after.raw_ns}")
    return record


def _field(value: Any, name: str, *kinds: type) -> Any:
    """A field of one of the given types; bool is no number, numbers fit 64 bits and are finite."""
    if not isinstance(value, dict) or name not in value:
        raise DecodeError(f"an object with a field {name!r} is expected, found {str(value)[:80]!r}")
    item = value[name]
    if type(item) not in kinds:
        found, wanted = type(item).__name__, " or ".join(kind.__name__ for kind in kinds)
        raise DecodeError(f"field {name!r} has type {found}, expected {wanted}")
    if isinstance(item, int) and abs(item) >= _LIMIT_NS:
        raise DecodeError(f"field {name!r} does not fit 64 bits")
    if isinstance(item, float) and not math.isfinite(item):
        raise DecodeError(f"field {name!r} is not finite")
    return item


def _dumps(value: dict[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _loads(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"no JSON: {str(error)[:80]}") from None
