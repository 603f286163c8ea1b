"""What chronyc prints: tracking, sources, sourcestats, activity, ntpdata; as text or with -c.

Signs are turned to ours here: positive means that the local clock is ahead. chronyc says so in words in `tracking`; in
`-c tracking` a positive system time is a slow clock, a positive frequency a fast one (checked against chrony 4.3).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rankclock.wire.text.line import Line
from rankclock.wire.text.moment import moment_at
from rankclock.wire.text.number import as_float, as_int, quantity_ns

__all__ = [
    "Activity",
    "ChronySource",
    "SourceStats",
    "Tracking",
    "read_activity",
    "read_source",
    "read_sourcestats",
    "read_tracking",
]

LOCAL_REFID = "7F7F0101"
"""The reference id of chronyd's `local` mode, 127.127.1.1: no source at all, and zeros that look perfect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracking:
    """`chronyc tracking`. None: the paste did not have that line."""

    ref_id: str | None = None
    ref_name: str | None = None
    stratum: int | None = None
    ref_time_ns: int | None = None
    system_time_s: float | None = None
    last_offset_s: float | None = None
    rms_offset_s: float | None = None
    frequency_ppm: float | None = None
    residual_freq_ppm: float | None = None
    skew_ppm: float | None = None
    root_delay_s: float | None = None
    root_dispersion_s: float | None = None
    update_interval_s: float | None = None
    leap: str | None = None
    leap_cut: bool = False

    @property
    def local(self) -> bool:
        """Whether the clock follows only itself (`local stratum`)."""
        return self.ref_id == LOCAL_REFID

    @property
    def unsynchronised(self) -> bool | None:
        """Whether chronyd says that it follows nobody. None where the lines that say it are missing."""
        if self.leap is not None and self.leap.lower().startswith("not sync"):
            return True
        if self.ref_id is not None and self.stratum is not None and not self.local:
            return self.ref_id.strip("0") == "" and self.stratum in (0, 16)
        return None if self.leap is None and self.ref_id is None else False

    @property
    def bound_s(self) -> float | None:
        """|system time| + root dispersion + root delay / 2, as chronyc(1) says. None where a term is missing."""
        if self.system_time_s is None or self.root_delay_s is None or self.root_dispersion_s is None:
            return None
        return abs(self.system_time_s) + self.root_dispersion_s + self.root_delay_s / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ChronySource:
    """One row of `chronyc sources`. mode: ^ = #. state: * + - ? x ~. error_ns: the margin behind +/-."""

    mode: str
    state: str
    name: str
    stratum: int
    poll: int
    reach: int
    last_rx_s: int | None
    offset_ns: int | None
    measured_ns: int | None
    error_ns: int | None

    @property
    def has_sample(self) -> bool:
        """Whether a sample was ever taken: without one chronyc prints zeros that mean nothing."""
        return self.last_rx_s is not None and self.offset_ns is not None and bool(self.error_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStats:
    """One row of `chronyc sourcestats`."""

    name: str
    samples: int
    runs: int
    span_s: int | None
    frequency_ppm: float
    skew_ppm: float
    offset_ns: int
    std_dev_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """`chronyc activity`."""

    online: int
    offline: int
    unresolved: int


_LABELS = (
    "Reference ID|Stratum|Ref time \\(UTC\\)|System time|Last offset|RMS offset|Frequency|Residual freq|Skew|"
    "Root delay|Root dispersion|Update interval|Leap status"
)
_FIELD = re.compile(rf"(?:^|(?<=[\s)]))(?P<label>{_LABELS})\s*: ?(?P<value>.*?)(?=\s+(?:{_LABELS})\s*:|$)")
_OWN = ("System time", "Last offset", "RMS offset", "Residual freq", "Skew", "Update interval")
"""Labels that no other chronyc report has: ntpdata shares the rest."""
_SIGNED = re.compile(r"([+-]?[\d.,]+(?:[eE][+-]?\d+)?)(?: (?:seconds|ppm))?(?: (slow|fast))?")
_QUANTITY = r"[+-]?\d+(?:[.,]\d+)?(?:[eE][+-]?\d+)? ?(?:ns|us|µs|ms|s|m|h|d|y)"
_SOURCE = re.compile(
    r"\s{0,3}(?P<mode>[\^=#])(?P<state>[*+\-?x~]) ?\s*(?P<name>\S+)\s+(?P<stratum>\d{1,2})\s+(?P<poll>-?\d{1,2})\s+"
    r"(?P<reach>[0-7]{1,3})\s+(?P<last>-|\d+[mhdy]?)"
    rf"(?:\s+(?P<offset>{_QUANTITY})\s*\[\s*(?P<measured>{_QUANTITY})\]\s*(?:\+/-\s*(?P<error>{_QUANTITY}))?)?"
)
_SOURCE_CSV = re.compile(
    r"(?P<mode>[\^=#]),(?P<state>[*+\-?x~]),(?P<name>[^,\s]+),(?P<stratum>\d+),(?P<poll>-?\d+),(?P<reach>\d+),"
    r"(?P<last>\d+),(?P<offset>[-+\d.e]+),(?P<measured>[-+\d.e]+),(?P<error>[-+\d.e]+)"
)
_STATS = re.compile(
    r"\s{0,3}(?P<name>[\w.:>-]+)\s+(?P<samples>\d{1,3})\s+(?P<runs>\d{1,3})\s+(?P<span>\d+[mhd]?)\s+"
    rf"(?P<freq>[+-][\d.]+)\s+(?P<skew>[\d.]+)\s+(?P<offset>{_QUANTITY})\s+(?P<sd>{_QUANTITY})\s*$"
)
_TRACKING_CSV = re.compile(
    r"(?P<id>[0-9A-Fa-f]{8}),(?P<name>[^,]*),(?P<stratum>\d+),(?P<ref>[\d.]+)"
    r"((?:,[-+]?[\d.]+){9}),(?P<leap>[A-Za-z ]+)$"
)
_ACTIVITY = re.compile(r"(\d+) sources? (online|offline|with unknown address|doing burst)")
_SPAN_S = {"m": 60, "h": 3600, "d": 86_400, "y": 31_556_952}
_NEVER = 4_294_967_295


def _last_s(text: str) -> int | None:
    """LastRx and Span: '34', '17m', '-' (never)."""
    if text == "-":
        return None
    if text[-1] in _SPAN_S:
        return int(text[:-1]) * _SPAN_S[text[-1]]
    return None if int(text) == _NEVER else int(text)


def read_tracking(lines: Sequence[Line], at: int) -> tuple[Tracking, int] | None:
    """A tracking report that begins here, whole, cut or collapsed into one line, and the place behind it."""
    if match := _TRACKING_CSV.match(lines[at].body.strip()):
        return _tracking_csv(match), at + 1
    found: dict[str, str] = {}
    end = at
    for index in range(at, min(len(lines), at + 20)):
        fields = [(m["label"], m["value"].strip()) for m in _FIELD.finditer(lines[index].text)]
        if not fields:
            if lines[index].text.strip():
                break
            continue
        if any(label in found for label, _ in fields):
            break
        found.update(fields)
        end = index + 1
    if not any(label in found for label in _OWN) and not _looks_like_head(found):
        return None
    return _tracking(found), end


def _looks_like_head(found: Mapping[str, str]) -> bool:
    """Only the first or the last lines of a cut report: enough where two of them stand together."""
    return ("Reference ID" in found and ("Stratum" in found or "Ref time (UTC)" in found)) or (
        "Leap status" in found and "Root dispersion" in found
    )


def _tracking(found: Mapping[str, str]) -> Tracking:
    identity = re.match(r"([0-9A-Fa-f]{8}|[\d.]+)\s*(?:\(([^)]*)\)?)?", found.get("Reference ID", ""))
    moment = moment_at(found.get("Ref time (UTC)", ""), 4) if found.get("Ref time (UTC)") else None
    stratum = re.match(r"\d+", found.get("Stratum", ""))
    leap = found.get("Leap status")
    known = ("normal", "not sync", "insert", "delete")
    return Tracking(
        ref_id=identity[1].upper() if identity else None,
        ref_name=identity[2] if identity else None,
        stratum=int(stratum[0]) if stratum else None,
        ref_time_ns=moment.unix_ns if moment else None,
        system_time_s=_signed(found.get("System time"), slow=-1),
        last_offset_s=_signed(found.get("Last offset")),
        rms_offset_s=_signed(found.get("RMS offset")),
        frequency_ppm=_signed(found.get("Frequency"), slow=-1),
        residual_freq_ppm=_signed(found.get("Residual freq")),
        skew_ppm=_signed(found.get("Skew")),
        root_delay_s=_signed(found.get("Root delay")),
        root_dispersion_s=_signed(found.get("Root dispersion")),
        update_interval_s=_signed(found.get("Update interval")),
        leap=leap or None,
        leap_cut=leap is not None and not leap.lower().startswith(known),
    )


def _signed(text: str | None, *, slow: int = 1) -> float | None:
    """'7.81 seconds slow of NTP time' with slow=-1 is -7.81; without its word (a cut line) it has no sign: None."""
    match = _SIGNED.match(text or "")
    if match is None or (value := as_float(match[1])) is None:
        return None
    if slow == -1:
        return None if match[2] is None and value else value * (-1 if match[2] == "slow" else 1)
    return value


def _tracking_csv(match: re.Match[str]) -> Tracking:
    numbers = [as_float(part) for part in match[5].split(",")[1:]]
    system, last, rms, frequency, residual, skew, delay, dispersion, interval = numbers
    return Tracking(
        ref_id=match["id"].upper(),
        ref_name=match["name"],
        stratum=int(match["stratum"]),
        ref_time_ns=round(float(match["ref"]) * 1e9) if as_float(match["ref"]) is not None else None,
        system_time_s=None if system is None else -system,
        last_offset_s=last,
        rms_offset_s=rms,
        frequency_ppm=frequency,
        residual_freq_ppm=residual,
        skew_ppm=skew,
        root_delay_s=delay,
        root_dispersion_s=dispersion,
        update_interval_s=interval,
        leap=match["leap"],
    )


def read_source(line: Line) -> ChronySource | None:
    """One row of `chronyc sources`, with any spacing, in text or from -c; a row cut behind LastRx has no offsets."""
    if match := _SOURCE.match(line.text):
        offset, measured, error = (quantity_ns(match[name] or "") for name in ("offset", "measured", "error"))
    elif match := _SOURCE_CSV.match(line.text.strip()):
        offset, measured, error = (
            None if (value := as_float(match[name])) is None else round(value * 1e9)
            for name in ("offset", "measured", "error")
        )
    else:
        return None
    return ChronySource(
        mode=match["mode"],
        state=match["state"],
        name=match["name"],
        stratum=int(match["stratum"]),
        poll=int(match["poll"]),
        # -c prints reach in decimal, the table in octal
        reach=as_int(match["reach"], 8 if match.re is _SOURCE else 10) or 0,
        last_rx_s=_last_s(match["last"]),
        offset_ns=offset,
        measured_ns=measured,
        error_ns=error,
    )


def read_sourcestats(line: Line) -> SourceStats | None:
    """One row of `chronyc sourcestats`."""
    match = _STATS.match(line.text)
    if match is None:
        return None
    frequency, skew = as_float(match["freq"]), as_float(match["skew"])
    offset, deviation = quantity_ns(match["offset"]), quantity_ns(match["sd"])
    if frequency is None or skew is None or offset is None or deviation is None:
        return None
    return SourceStats(
        name=match["name"],
        samples=int(match["samples"]),
        runs=int(match["runs"]),
        span_s=_last_s(match["span"]),
        frequency_ppm=frequency,
        skew_ppm=skew,
        offset_ns=offset,
        std_dev_ns=deviation,
    )


def read_activity(lines: Sequence[Line], at: int) -> tuple[Activity, int] | None:
    """`chronyc activity`: lines of '3 sources online'."""
    counts: dict[str, int] = {}
    end = at
    while end < len(lines) and (match := _ACTIVITY.search(lines[end].body)):
        counts[match[2]] = counts.get(match[2], 0) + int(match[1])
        end += 1
    if "online" not in counts and "offline" not in counts:
        return None
    return (
        Activity(
            online=counts.get("online", 0),
            offline=counts.get("offline", 0),
            unresolved=counts.get("with unknown address", 0),
        ),
        end,
    )
