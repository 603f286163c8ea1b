"""The time stamps that training logs carry, and the ranks that their lines name.

Decides of a line when it was written (an interval as wide as the stamp's last digit) and by which rank; a line without
a stamp belongs to the one before. Stamps without a zone are taken in the zone that the caller gives, those without a
year in the caller's year. Only a stamp at the head of a line, behind what launchers and loggers put there, says when it
was written: a date inside a message does not. Refuses nothing: what is no stamp is text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone

from rankclock.timebase import NS_PER_S

__all__ = ["LineTime", "Zone", "local_rank_of_line", "rank_of_line", "time_of_line"]

HEAD = 160
"""Characters of a line in which its rank is looked for."""

_BEFORE = re.compile(
    r"(?:\x1b\[[0-9;]*m|\[(?:rank|default)?\d+\]:|\[(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)(?:\|[^\]]{1,200})?\]"
    r"|(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL|STAGE|USDT)\b[:|]?|rank\d+:|\s+)*\[?",
    re.ASCII | re.IGNORECASE,
)
"""What stands in front of a stamp: colours, torchrun's and torch's ranks, levels, an opening bracket."""

_DATE = r"(?P<year>\d{4})[-/](?P<month>\d\d)[-/](?P<day>\d\d)"
_CLOCK = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?:[.,](?P<fraction>\d{1,9}))?"
_FULL = re.compile(rf"{_DATE}[T _]{_CLOCK}(?P<zone>Z|[+-]\d\d:?\d\d)?")
# c10 writes month * 100 + day, so that March is one digit; torch's Python side writes two, as glog does.
_GLOG = re.compile(rf"[IWEFDV](?P<month>\d?\d)(?P<day>\d\d) {_CLOCK}\b(?P<process> +\d+ )?")
_EPOCH = re.compile(r"(?P<seconds>1[0-9]{9})(?:\.(?P<fraction>\d{1,9}))?\b")
_OURS = re.compile(r"Z ±(?P<value>[0-9.]+) (?P<unit>ns|µs|ms|s) rank(?P<rank>\d+)\b")
_LOCAL_RANK = re.compile(r"\[default(\d+)\]:")
_RANK = re.compile(r"\[rank(\d+)\]|\brank(\d+)\b(?=\s+[A-Z]+\s)|\[\d+\]:\[rank(\d+)\]", re.IGNORECASE)
_CALENDAR = ("month", "day", "hour", "minute", "second")
_UNITS = {"ns": 1, "µs": 1_000, "ms": 1_000_000, "s": NS_PER_S}


@dataclass(frozen=True, slots=True, kw_only=True)
class Zone:
    """How stamps without a zone or a year are read. offset_s: east of UTC."""

    offset_s: int = 0
    year: int = 1970


@dataclass(frozen=True, slots=True, kw_only=True)
class LineTime:
    """[lo, hi) in ns since 1970. cluster: it is cluster time already, with the writer's bound in the interval."""

    lo_ns: int
    hi_ns: int
    cluster: bool = False


def time_of_line(line: str, zone: Zone) -> LineTime | None:
    """When a line says that it was written; None where it does not."""
    before = _BEFORE.match(line)
    at = before.end() if before is not None else 0
    match = _FULL.match(line, at) or _GLOG.match(line, at) or _EPOCH.match(line, at)
    if match is None:
        return None
    fields = match.groupdict()
    second_ns = int(fields["seconds"]) * NS_PER_S if fields.get("seconds") else _second_ns(fields, zone)
    if second_ns is None:
        return None
    fraction = fields.get("fraction") or ""
    if match.re is _GLOG:
        fraction = _glog_fraction(fraction, python=fields["process"] is not None)
    width_ns = 10 ** (9 - len(fraction))
    lo_ns = second_ns + (int(fraction) if fraction else 0) * width_ns
    ours = _OURS.match(line, match.end() - 1) if line[match.end() - 1 : match.end()] == "Z" else None
    if ours is not None:
        bound_ns = round(float(ours["value"]) * _UNITS[ours["unit"]])
        # Three digits were printed: the bound may be half a digit more.
        bound_ns += bound_ns // 100 + 1
        return LineTime(lo_ns=lo_ns - bound_ns, hi_ns=lo_ns + bound_ns, cluster=True)
    return LineTime(lo_ns=lo_ns, hi_ns=lo_ns + width_ns)


def _glog_fraction(digits: str, *, python: bool) -> str:
    """The digits that belong to the stamp's second.

    c10 takes seconds from time() and nine digits from CLOCK_MONOTONIC (Logging.cpp, seen in torch 2.13): they say
    nothing. torch's Python side knows milliseconds, and writes three zeros behind them.
    """
    if len(digits) == 9 and not python:
        return ""
    return digits[:-3] if python and len(digits) == 6 and digits.endswith("000") else digits


def local_rank_of_line(line: str) -> int | None:
    """The rank within its node that torchrun puts in front ([default3]:); None where it does not."""
    match = _LOCAL_RANK.search(line[:HEAD])
    return None if match is None else int(match[1])


def rank_of_line(line: str) -> int | None:
    """The rank that torch's prefix or our own formatter names; None where the line names none."""
    match = _RANK.search(line[:HEAD])
    return None if match is None else int(next(group for group in match.groups() if group is not None))


def _second_ns(fields: dict[str, str | None], zone: Zone) -> int | None:
    month, day, hour, minute, second = (int(fields[name] or 0) for name in _CALENDAR)
    year = int(fields.get("year") or zone.year)
    try:
        at = datetime(year, month, day, hour, minute, second, tzinfo=_zone(fields.get("zone"), zone))
    except ValueError:
        return None
    return int(at.timestamp()) * NS_PER_S


def _zone(text: str | None, zone: Zone) -> timezone:
    if text is None:
        return timezone(timedelta(seconds=zone.offset_s))
    if text == "Z":
        return UTC
    sign = -1 if text[0] == "-" else 1
    digits = text[1:].replace(":", "")
    return timezone(sign * timedelta(hours=int(digits[:2]), minutes=int(digits[2:])))
