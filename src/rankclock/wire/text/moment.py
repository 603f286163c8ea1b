"""Wall-clock readings in text, in the forms and languages of `date`, logs, HTTP and certificates.

A reading without a year counts as one of the year 2000, a reading without a zone as UTC, and both are marked: only
differences between readings of one form mean anything then. The resolution says how fine the text was.
"""
# ruff: noqa: SIM905  (lists of words read best as words)

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date

from rankclock.wire.text.number import seconds_ns

__all__ = ["Moment", "find_moments", "moment_at", "unix_seconds_ns"]

_MONTHS = {
    **{name: number for number, name in enumerate("jan feb mar apr may jun jul aug sep oct nov dec".split(), 1)},
    **{"fev": 2, "fév": 2, "mär": 3, "mrz": 3, "mrt": 3, "maa": 3, "avr": 4, "abr": 4, "mai": 5, "mei": 5, "maj": 5},
    **{"mag": 5, "jui": 6, "giu": 6, "lug": 7, "aoû": 8, "aou": 8, "ago": 8, "set": 9, "okt": 10, "ott": 10},
    **{"out": 10, "dez": 12, "déc": 12, "dic": 12, "des": 12, "ene": 1, "gen": 1},
}
_ZONES_MIN = {
    **{"Z": 0, "UTC": 0, "GMT": 0, "WET": 0, "CET": 60, "BST": 60, "WEST": 60, "CEST": 120, "EET": 120, "SAST": 120},
    **{"EEST": 180, "MSK": 180, "IST": 330, "HKT": 480, "SGT": 480, "JST": 540, "KST": 540, "AEST": 600, "AEDT": 660},
    **{"EST": -300, "EDT": -240, "CST": -360, "CDT": -300, "MST": -420, "MDT": -360, "PST": -480, "PDT": -420},
    **{"NZST": 720, "NZDT": 780, "BRT": -180, "ART": -180},
}
_CLOCK = r"(?P<h>\d{1,2}):(?P<m>\d\d):(?P<s>\d\d)(?:[.,](?P<f>\d{1,9}))?(?: ?(?P<pm>AM|PM|am|pm))?"
_ZONE = r"(?:Z|[+-]\d\d:?\d\d(?!\d)|[A-Z]{2,5}(?![A-Za-z]))"
_NAME = r"[^\W\d_]{3,9}\.?"
_FORMS = (
    # 2015-06-04T22:26:16Z, 2016-07-13 16:59:59.776094, 2019/02/15 15:13:15
    re.compile(rf"(?P<y>\d{{4}})[-/](?P<mo>\d\d)[-/](?P<d>\d\d)[T _]+{_CLOCK}\s?(?P<z>{_ZONE})?"),
    # 20150604T232559Z
    re.compile(r"(?P<y>\d{4})(?P<mo>\d\d)(?P<d>\d\d)T(?P<h>\d\d)(?P<m>\d\d)(?P<s>\d\d)(?P<f>)(?P<pm>)(?P<z>Z)?"),
    # Sat Mar 19 22:43:04 UTC 2016, Mon Sep 14 06:39:33 2015, Sep 03 10:32:28, Jun  2 15:17:54 2026 GMT
    re.compile(rf"(?P<mon>{_NAME}) {{1,2}}(?P<d>\d{{1,2}}),? {_CLOCK}(?: (?P<z>{_ZONE}))?(?:,? (?P<y>\d{{4}})(?!\d))?"),
    # Thu, 04 Jun 2015 23:25:59 GMT, Wed 03 Mar 2021 09:07:17 AM UTC, mi 3. mär 2021 09:07:17 CET
    re.compile(rf"(?P<d>\d{{1,2}})[. -] ?(?P<mon>{_NAME})[ -](?P<y>\d{{4}}),? {_CLOCK}(?: (?P<z>{_ZONE}))?"),
    # Mi 3. Mär 09:07:17 CET 2021, 28 Jun 08:42:36
    re.compile(rf"(?P<d>\d{{1,2}})\.? (?P<mon>{_NAME}) {_CLOCK}(?: (?P<z>{_ZONE}))?(?: (?P<y>\d{{4}})(?!\d))?"),
)
_UNIX = date(1970, 1, 1).toordinal()
_NO_YEAR = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A wall-clock reading. unix_ns: as if UTC where no zone stood. start, end: where it stands in its text."""

    unix_ns: int
    has_year: bool
    zone_min: int | None
    zone_name: str
    resolution_ns: int
    start: int
    end: int


def _from_match(match: re.Match[str]) -> Moment | None:
    part = match.groupdict()
    month = int(part["mo"]) if part.get("mo") else _MONTHS.get(part["mon"][:3].lower(), 0)
    year = int(part["y"]) if part["y"] else _NO_YEAR
    hour = int(part["h"])
    if part["pm"]:
        hour = hour % 12 + (12 if part["pm"].lower() == "pm" else 0)
    try:
        days = date(year, month, int(part["d"])).toordinal() - _UNIX
    except ValueError:
        return None
    if hour > 24 or int(part["m"]) > 59 or int(part["s"]) > 60:
        return None
    zone_min, zone_name = _zone(part["z"])
    fraction = part["f"] or ""
    whole_s = days * 86_400 + hour * 3_600 + int(part["m"]) * 60 + int(part["s"]) - (zone_min or 0) * 60
    return Moment(
        unix_ns=whole_s * 1_000_000_000 + int(fraction.ljust(9, "0") or 0),
        has_year=bool(part["y"]),
        zone_min=zone_min,
        zone_name=zone_name,
        resolution_ns=10 ** (9 - len(fraction)),
        start=match.start(),
        end=match.end(),
    )


def _zone(text: str | None) -> tuple[int | None, str]:
    if not text:
        return None, ""
    if text in _ZONES_MIN:
        return _ZONES_MIN[text], text
    if text[0] in "+-":
        minutes = int(text[1:3]) * 60 + int(text[-2:])
        return (minutes if text[0] == "+" else -minutes), text
    return None, text


def moment_at(text: str, at: int = 0) -> Moment | None:
    """The reading that begins exactly at this place, None where none does."""
    for form in _FORMS:
        match = form.match(text, at)
        if match and (moment := _from_match(match)):
            return moment
    return None


def find_moments(text: str) -> Iterator[Moment]:
    """Every reading in a line, from left to right, none overlapping.

    Unix seconds such as 1558694733 are not readings.
    """
    at = 0
    while at < len(text):
        found = [moment for form in _FORMS if (match := form.search(text, at)) and (moment := _from_match(match))]
        if not found:
            return
        # The longest of the leftmost: '14 Sep 2015 06:39:33' must not be read as '2015 06:39:33' of another form.
        first = min(found, key=lambda moment: (moment.start, -moment.end))
        yield first
        at = first.end


def unix_seconds_ns(text: str) -> int | None:
    """Unix seconds as programs print them: '1558694733' or '1558694733.25'; None outside the years 1990 to 2100."""
    value = seconds_ns(text)
    return value if value is not None and 631_152_000 <= value // 1_000_000_000 < 4_102_444_800 else None
