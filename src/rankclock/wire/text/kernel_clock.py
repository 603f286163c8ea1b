"""The kernel's clock in text.

Adjtimex --print, ntptime, and messages of the ring buffer about clock sources and drivers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rankclock.wire.text.event import EventTable
from rankclock.wire.text.line import Line
from rankclock.wire.text.number import as_float, as_int

__all__ = ["EVENTS", "KernelClock", "read_kernel_clock"]

UNSYNC = 0x40
"""STA_UNSYNC of <linux/timex.h>."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelClock:
    """What adjtimex says. None: the line was not there. freq_ppm: as the kernel has it, positive runs fast."""

    status: int | None = None
    return_code: int | None = None
    maxerror_us: float | None = None
    esterror_us: float | None = None
    offset_us: float | None = None
    freq_ppm: float | None = None
    tick_us: int | None = None
    tai_s: int | None = None

    @property
    def unsynchronised(self) -> bool | None:
        """STA_UNSYNC; None where the status was not there."""
        return None if self.status is None else bool(self.status & UNSYNC)


_ADJTIMEX = re.compile(
    r"^\s*(?P<key>mode|offset|frequency|maxerror|esterror|status|time_constant|precision|tolerance|tick|raw time|"
    r"return value)\s*[:=]\s*(?P<value>-?\d+)"
)
_NTPTIME = re.compile(
    r"ntp_(?:gettime|adjtime)\(\) returns code (?P<code>\d+)|offset (?P<offset>-?[\d.]+) us|"
    r"frequency (?P<freq>-?[\d.]+) ppm|maximum error (?P<maxerror>\d+) us|estimated error (?P<esterror>\d+) us|"
    r"TAI offset (?P<tai>-?\d+)|status 0x(?P<status>[0-9a-fA-F]+)"
)
_SHIFT_PPM = 65_536


def read_kernel_clock(lines: Sequence[Line], at: int) -> tuple[KernelClock, int] | None:
    """adjtimex --print or ntptime that begins here."""
    if "ntp_gettime() returns" in lines[at].text or "ntp_adjtime() returns" in lines[at].text:
        return _ntptime(lines, at)
    found: dict[str, int] = {}
    end = at
    while end < len(lines) and (match := _ADJTIMEX.match(lines[end].text)) and match["key"] not in found:
        found[match["key"]] = as_int(match["value"]) or 0
        end += 1
    if len(found) < 3 or not {"maxerror", "esterror", "tolerance", "time_constant"} & set(found):
        return None
    frequency = found.get("frequency")
    return (
        KernelClock(
            status=found.get("status"),
            return_code=found.get("return value"),
            maxerror_us=found.get("maxerror"),
            esterror_us=found.get("esterror"),
            offset_us=found.get("offset"),
            freq_ppm=None if frequency is None else frequency / _SHIFT_PPM,
            tick_us=found.get("tick"),
        ),
        end,
    )


def _ntptime(lines: Sequence[Line], at: int) -> tuple[KernelClock, int]:
    found: dict[str, str] = {}
    end = at
    while end < len(lines) and end < at + 16:
        pairs = [
            (key, value) for m in _NTPTIME.finditer(lines[end].text) for key, value in m.groupdict().items() if value
        ]
        if not pairs and not re.match(r"^\s+(?:time|modes|pps|jitter|stability|intervals)", lines[end].text):
            break
        found.update(pairs)
        end += 1
    return (
        KernelClock(
            status=as_int(found["status"], 16) if "status" in found else None,
            return_code=as_int(found["code"]) if "code" in found else None,
            maxerror_us=as_float(found.get("maxerror", "")),
            esterror_us=as_float(found.get("esterror", "")),
            offset_us=as_float(found.get("offset", "")),
            freq_ppm=as_float(found.get("freq", "")),
            tai_s=as_int(found["tai"]) if "tai" in found else None,
        ),
        end,
    )


EVENTS = EventTable(
    (
        ("kernel-unstable", "as unstable", r"[Mm]arking clocksource '?(?P<clocksource>[\w-]+)'? as unstable"),
        ("kernel-unstable", "TSC unstable", r"Marking TSC unstable(?P<clocksource>)"),
        ("kernel-unstable", "TSC found unstable", r"TSC found unstable(?P<clocksource>)"),
        (
            "kernel-skew-detail",
            "clocksource:",
            r"'(?P<clocksource>[\w-]+)' (?P<which>cs|wd)_(?:nsec: (?P<elapsed_ns>\d+)|now)",
        ),
        ("kernel-readback", "read-back delay of", r"(?P<clocksource>[\w-]+) read-back delay of (?P<delay_ns>\d+)ns"),
        ("kernel-switched", "Switched to clocksource", r"Switched to clocksource (?P<clocksource>[\w-]+)"),
        ("kernel-clocksource", "current_clocksource", r"current_clocksource:?\s*=?\s*(?P<clocksource>[\w-]+)?"),
        ("kernel-rtc-skew", "hctosys", r"setting system clock to (?P<when>\S+)"),
        (
            "kernel-tx-hang",
            "tx timestamp",
            r"(?P<driver>[\w-]+) \S+ (?P<iface>\w+): .*(?:clearing|hang|timeout).*[Tt]x timestamp",
        ),
        ("kernel-ena-phc", "PHC", r"ena \S+: .*PHC (?P<what>.*)"),
        ("kernel-ptp-kvm", "ptp_kvm", r"ptp_kvm(?P<what>.*)"),
        ("kernel-hv-timesync", "TimeSync IC", r"hv_utils: (?P<what>TimeSync IC.*)"),
        ("kernel-resumed", "PM: suspend exit", r"suspend exit"),
        ("kernel-resumed", "PM: resume", r"PM: resume"),
        ("kernel-resumed", "clocksource: ", r"timekeeping: Suspended for (?P<suspended_s>[\d.]+) seconds"),
        ("kernel-resumed", "Suspended for", r"Suspended for (?P<suspended_s>[\d.]+) seconds"),
        ("vbox-time", "vbox", r"(?i)vbox.*(?:time|clock).*(?P<what>radical|set|jump)"),
        ("vmtools-time", "timesync", r"(?i)vmware.*timesync|timesync.*(?P<what>enable|disable)"),
    )
)
