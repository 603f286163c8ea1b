"""What systemd says of time.

Timedatectl, timesync-status, `systemctl status`, is-active, unit lists and process lists.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rankclock.wire.text.line import Line
from rankclock.wire.text.moment import moment_at
from rankclock.wire.text.number import duration_ns

__all__ = ["TimeDate", "TimesyncStatus", "UnitState", "daemon_of", "read_timedatectl", "read_timesync", "read_unit"]

_FIELD = re.compile(
    r"^\s*(?P<label>Local time|Universal time|RTC time|Time ?zone|System clock synchronized|NTP synchronized|"
    r"NTP service|Network time on|NTP enabled|systemd-timesyncd\.service active|RTC in local TZ|"
    r"NTPSynchronized|NTP|LocalRTC|CanNTP)\s*[:=]\s*(?P<value>.*?)\s*$"
)
_TIMESYNC = re.compile(
    r"^\s*(?P<label>Server|Poll interval|Leap|Version|Stratum|Reference|Precision|Root distance|Offset|Delay|Jitter|"
    r"Packet count|Frequency)\s*: (?P<value>.*?)\s*$"
)
_YES = {"yes": True, "true": True, "active": True, "no": False, "false": False, "inactive": False}

DAEMONS = {
    "chronyd": "chrony",
    "chrony": "chrony",
    "chronyd-restricted": "chrony",
    "ntpd": "ntpd",
    "ntp": "ntpd",
    "ntpsec": "ntpd",
    "openntpd": "openntpd",
    "systemd-timesyncd": "systemd-timesyncd",
    "timemaster": "timemaster",
    "ptp4l": "ptp4l",
    "phc2sys": "phc2sys",
    "ts2phc": "ts2phc",
    "vmtoolsd": "vmtoolsd",
    "VBoxService": "VBoxService",
    "ntpdate": "ntpdate",
    "gpsd": "gpsd",
}
"""What a unit or process name means; the value is the name that one program has in all its forms."""

_UNIT_HEAD = re.compile(r"^\s*[●○×*x↻] (?P<unit>[\w@.\\-]+)\.service(?: - .*)?$")
_ACTIVE = re.compile(r"^\s*Active: (?P<state>\w+)(?: \((?P<sub>[^)]*)\))?")
_LOADED = re.compile(r"^\s*Loaded: (?P<loaded>\S+)(?: \((?P<detail>.*))?")
_STATUS = re.compile(r'^\s*Status: "(?P<status>.*?)"?$')
_UNIT_ROW = re.compile(
    r"^\s*[●○×*]?\s*(?P<unit>[\w@.-]+)\.service\s+(?P<loaded>loaded|not-found|masked)\s+"
    r"(?P<state>active|inactive|failed|activating)\s+(?P<sub>\w+)"
)
_FILE_ROW = re.compile(r"^\s*(?P<unit>[\w@.-]+)\.service\s+(?P<enabled>enabled|disabled|masked|static)(?:\s+\w+)?\s*$")
_PROCESS = re.compile(
    r"^\s*(?:\w[\w+.-]*\s+)?\d+\s.*?(?:^|[\s/])(?P<daemon>chronyd|ntpd|systemd-timesyn(?:cd)?|ptp4l|phc2sys|ts2phc|timemaster)"
    r"(?P<args>(?: -.*)?)$"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeDate:
    """`timedatectl`.

    Ntp_service: as printed, 'active', 'inactive', 'n/a', 'yes', 'no'. None: the line was not there.
    """

    synchronized: bool | None = None
    ntp_service: str | None = None
    rtc_local: bool | None = None
    universal_ns: int | None = None
    rtc_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimesyncStatus:
    """`timedatectl timesync-status`. offset_ns: as printed (server minus local)."""

    server: str | None = None
    stratum: int | None = None
    leap: str | None = None
    root_distance_ns: int | None = None
    offset_ns: int | None = None
    delay_ns: int | None = None
    packet_count: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitState:
    """A time daemon as systemd or ps shows it. daemon: its one name. running, enabled: None where not shown."""

    unit: str
    daemon: str
    running: bool | None
    failed: bool = False
    enabled: bool | None = None
    status: str = ""


def daemon_of(unit: str) -> str | None:
    """The program behind a unit name.

    'chronyd', 'chrony' -> 'chrony', 'ptp4l@eth0' -> 'ptp4l'. None: no time daemon.
    """
    return DAEMONS.get(unit.split("@", 1)[0])


def read_timedatectl(lines: Sequence[Line], at: int) -> tuple[TimeDate, int] | None:
    """timedatectl, status or show, whole or cut."""
    found: dict[str, str] = {}
    end = at
    while end < len(lines) and (match := _FIELD.match(lines[end].text)) and match["label"] not in found:
        found[match["label"]] = match["value"]
        end += 1
    if not found:
        return None
    service = next(
        (found[key] for key in ("NTP service", "Network time on", "NTP enabled", "NTP") if key in found), None
    )
    state = next(
        (found[key] for key in ("System clock synchronized", "NTP synchronized", "NTPSynchronized") if key in found), ""
    )
    universal, rtc = (moment_at(found.get(key, ""), 4) for key in ("Universal time", "RTC time"))
    return (
        TimeDate(
            synchronized=_YES.get(state),
            ntp_service=service,
            rtc_local=_YES.get(found.get("RTC in local TZ", found.get("LocalRTC", ""))),
            universal_ns=universal.unix_ns if universal else None,
            rtc_ns=rtc.unix_ns if rtc else None,
        ),
        end,
    )


def read_timesync(lines: Sequence[Line], at: int) -> tuple[TimesyncStatus, int] | None:
    """timesync-status: at least three of its labels in a row, among them one that nothing else has."""
    found: dict[str, str] = {}
    end = at
    while end < len(lines) and (match := _TIMESYNC.match(lines[end].text)) and match["label"] not in found:
        found[match["label"]] = match["value"]
        end += 1
    if len(found) < 2 or not {"Root distance", "Packet count", "Poll interval", "Server"} & set(found):
        return None
    stratum, packets = found.get("Stratum", ""), found.get("Packet count", "")
    return (
        TimesyncStatus(
            server=found.get("Server"),
            stratum=int(stratum) if stratum.isdigit() else None,
            leap=found.get("Leap"),
            root_distance_ns=duration_ns(found.get("Root distance", "").split(" (")[0]),
            offset_ns=duration_ns(found.get("Offset", "")),
            delay_ns=duration_ns(found.get("Delay", "")),
            packet_count=int(packets) if packets.isdigit() else None,
        ),
        end,
    )


def read_unit(lines: Sequence[Line], at: int) -> tuple[UnitState, int] | None:
    """The state of a time daemon's unit: a `systemctl status` head, a row of a list, or a row of ps."""
    text = lines[at].text
    if head := _UNIT_HEAD.match(text):
        daemon = daemon_of(head["unit"])
        return None if daemon is None else _status(head["unit"], daemon, lines, at + 1)
    if (row := _UNIT_ROW.match(text)) and (daemon := daemon_of(row["unit"])):
        running = row["state"] in ("active", "activating")
        return UnitState(unit=row["unit"], daemon=daemon, running=running, failed=row["state"] == "failed"), at + 1
    if (row := _FILE_ROW.match(text)) and (daemon := daemon_of(row["unit"])):
        return UnitState(unit=row["unit"], daemon=daemon, running=None, enabled=row["enabled"] == "enabled"), at + 1
    if (row := _PROCESS.match(text)) and not lines[at].program:
        name = "systemd-timesyncd" if row["daemon"].startswith("systemd-timesyn") else row["daemon"]
        if (daemon := daemon_of(name)) and "-x" not in row["args"].split():
            return UnitState(unit=name, daemon=daemon, running=True), at + 1
    return None


def _status(unit: str, daemon: str, lines: Sequence[Line], at: int) -> tuple[UnitState, int]:
    running: bool | None = None
    failed, enabled, status, end = False, None, "", at
    for index in range(at, min(len(lines), at + 14)):
        text = lines[index].text
        if _UNIT_HEAD.match(text):
            break
        if match := _ACTIVE.match(text):
            running, failed, end = match["state"] in ("active", "activating"), match["state"] == "failed", index + 1
        elif match := _LOADED.match(text):
            detail = match["detail"] or ""
            enabled, end = (None if not detail else "; enabled" in detail), index + 1
        elif match := _STATUS.match(text):
            status, end = match["status"], index + 1
        elif re.match(r"^\s+(?:Docs|Process|Main PID|Tasks|Memory|CPU|CGroup|Drop-In|Invocation):|^\s+[└├│|`]", text):
            end = index + 1
    return UnitState(unit=unit, daemon=daemon, running=running, failed=failed, enabled=enabled, status=status), end
