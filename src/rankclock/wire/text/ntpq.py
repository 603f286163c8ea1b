"""What ntpq prints: the peers billboard (-p, -pn, lpeers, as) and the system variables (rv).

Offsets are turned to our sign here: ntpq prints server minus local, so a negative offset there is a clock that is
ahead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rankclock.wire.text.line import Line
from rankclock.wire.text.number import as_float

__all__ = ["NtpPeer", "NtpVariables", "read_peers", "read_variables"]

_HEADER = re.compile(r"\s*remote\s+refid\s+(?:st|assid)\s+", re.IGNORECASE)
_ROW = re.compile(
    r"(?P<name>\S+)\s+(?P<refid>\S+(?: \(\d\))?)\s+"
    r"(?P<st>\d{1,2})\s+(?P<type>[ulbmsBSAMp-])\s+(?P<when>-|\d+[mhdy]?)\s+"
    r"(?P<poll>\d+[mhd]?)\s+(?P<reach>[0-7]{1,3})"
    r"(?:\s+(?P<delay>-?[\d.,]+))?(?:\s+(?P<offset>[+-]?[\d.,]+))?(?:\s+(?P<jitter>[\d.,]+))?\s*$"
)
_TALLIES = " *+-#x.o"
_SPAN_S = {"m": 60, "h": 3600, "d": 86_400, "y": 31_556_952}
_VARIABLE = re.compile(r'(?P<name>\w+)=(?P<value>"[^"]*"|[^,\s]+(?: \([^)]*\))?)')
_STATUS = re.compile(r"assoc(?:ID|id)=\d+ status=([0-9a-f]{4})")


@dataclass(frozen=True, slots=True, kw_only=True)
class NtpPeer:
    """One row of the billboard. offset_ms: local minus server, our sign; raw_offset_ms: as printed. None: cut off."""

    tally: str
    name: str
    refid: str
    stratum: int
    kind: str
    when_s: int | None
    poll_s: int
    reach: int
    delay_ms: float | None
    raw_offset_ms: float | None
    jitter_ms: float | None

    @property
    def offset_ms(self) -> float | None:
        """Local minus server."""
        return None if self.raw_offset_ms is None else -self.raw_offset_ms

    @property
    def local_clock(self) -> bool:
        """Whether this is the undisciplined local clock driver."""
        return self.name.upper().startswith(("LOCAL(", "127.127.1.")) or self.refid.upper() == ".LOCL."


@dataclass(frozen=True, slots=True, kw_only=True)
class NtpVariables:
    """`ntpq -c rv`: the variables as they stood, and what their status word and leap say."""

    variables: Mapping[str, str]

    def number(self, name: str) -> float | None:
        """A variable as a number, None where it is not there or is none."""
        return as_float(self.variables.get(name, "").split()[0]) if self.variables.get(name) else None

    @property
    def unsynchronised(self) -> bool | None:
        """Leap 3 (alarm) or stratum 16; None where neither stands there."""
        leap, stratum = self.variables.get("leap"), self.number("stratum")
        if leap is None and stratum is None:
            return None
        return leap in ("3", "11") or stratum == 16


def _seconds(text: str) -> int | None:
    if text == "-":
        return None
    return int(text[:-1]) * _SPAN_S.get(text[-1], 1) if text[-1] in _SPAN_S else int(text)


def read_peers(lines: Sequence[Line], at: int) -> tuple[tuple[tuple[NtpPeer, Line], ...], int] | None:
    """A billboard that begins here, with or without its header; each row with its line."""
    end = at
    header = _HEADER.match(lines[at].text)
    kept_margin = bool(header) and lines[at].text.startswith("  ")
    if header:
        end += 1
        while end < len(lines) and (set(lines[end].text.strip()) == {"="} or not lines[end].text.strip()):
            end += 1
    rows: list[tuple[NtpPeer, Line]] = []
    while end < len(lines) and (row := _peer(lines[end].text, kept_margin)):
        rows.append((row, lines[end]))
        end += 1
    if not rows and not header:
        return None
    return tuple(rows), end


def _peer(text: str, kept_margin: bool) -> NtpPeer | None:
    tally = text[:1] if text[:1] in _TALLIES else ""
    # Without the margin of the header a leading x or o may be the first letter of a host name: a mark is followed by
    # a capital, a digit or nothing that a name would go on with.
    if tally and tally in "xo" and not kept_margin and not re.match(r"[xo][\dA-Z]", text):
        tally = ""
    match = _ROW.match(text[1:].lstrip() if tally else text.lstrip())
    if match is None:
        return None
    return NtpPeer(
        tally=tally or " ",
        name=match["name"],
        refid=match["refid"],
        stratum=int(match["st"]),
        kind=match["type"],
        when_s=_seconds(match["when"]),
        poll_s=_seconds(match["poll"]) or 0,
        reach=int(match["reach"], 8),
        delay_ms=as_float(match["delay"] or ""),
        raw_offset_ms=as_float(match["offset"] or ""),
        jitter_ms=as_float(match["jitter"] or ""),
    )


def read_variables(lines: Sequence[Line], at: int) -> tuple[NtpVariables, int] | None:
    """`ntpq -c rv` that begins here: 'associd=0 status=0615 ...' and the lines of name=value behind it."""
    if not _STATUS.search(lines[at].text):
        return None
    variables: dict[str, str] = {}
    end = at
    while end < len(lines) and end < at + 30 and (pairs := list(_VARIABLE.finditer(lines[end].text))):
        variables.update({pair["name"]: pair["value"].strip('"') for pair in pairs})
        end += 1
    variables.update({name: name for name in ("leap_alarm", "leap_none") if name in lines[at].text})
    return NtpVariables(variables=variables), end
