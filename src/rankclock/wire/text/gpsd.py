"""gpsd's JSON: fixes, satellites, pulses. Lines may be cut; keys that are missing are normal and mean nothing."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from rankclock.wire.text.line import Line
from rankclock.wire.text.moment import moment_at

__all__ = ["GpsReport", "read_gps"]

_CLASS = re.compile(r'\{"class":"(TPV|SKY|PPS|TOFF|OSC|DEVICE|VERSION|ERROR)"')
_PAIR = re.compile(r'"(?P<key>\w+)":(?P<value>-?\d+(?:\.\d+)?|true|false|"[^"]*")')


@dataclass(frozen=True, slots=True, kw_only=True)
class GpsReport:
    """One report. offset_ns: system clock minus GPS at a pulse (PPS) or a sentence (TOFF), our sign."""

    kind: str
    mode: int | None = None
    status: int | None = None
    used: int | None = None
    seen: int | None = None
    time_ns: int | None = None
    leapseconds: int | None = None
    offset_ns: int | None = None
    message: str = ""


def read_gps(line: Line) -> GpsReport | None:
    """One line of gpsd JSON, whole or cut."""
    match = _CLASS.search(line.text)
    if match is None:
        return None
    fields = _fields(line.text[match.start() :])
    satellites = fields.get("satellites")
    used, seen = fields.get("uSat"), fields.get("nSat")
    if isinstance(satellites, list):
        seen = len(satellites) if seen is None else seen
        used = sum(1 for one in satellites if isinstance(one, dict) and one.get("used")) if used is None else used
    parts = [_whole(fields.get(key)) for key in ("clock_sec", "real_sec", "clock_nsec", "real_nsec")]
    offset = None
    if None not in parts:
        clock_s, real_s, clock_ns, real_ns = (part or 0 for part in parts)
        offset = (clock_s - real_s) * 1_000_000_000 + clock_ns - real_ns
    time = fields.get("time")
    moment = moment_at(time) if isinstance(time, str) else None
    return GpsReport(
        kind=match[1],
        mode=_whole(fields.get("mode")),
        status=_whole(fields.get("status")),
        used=_whole(used),
        seen=_whole(seen),
        time_ns=moment.unix_ns if moment else None,
        leapseconds=_whole(fields.get("leapseconds")),
        offset_ns=offset,
        message=str(fields.get("message", "")),
    )


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _fields(text: str) -> dict[str, object]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = {}
        for pair in _PAIR.finditer(text):
            word = pair["value"]
            value[pair["key"]] = (
                word.strip('"')
                if word[0] == '"'
                else word == "true"
                if word in ("true", "false")
                else float(word)
                if "." in word
                else int(word[:30])
            )
    return value if isinstance(value, dict) else {}
