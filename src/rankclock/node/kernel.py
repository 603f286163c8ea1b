"""The kernel's clock as it is: readings, adjtimex (read only), clocksource, boot id, time namespace, capabilities.

Reads through the process's own libc (`ctypes.CDLL(None)`), never through one opened by name: a preloaded clock must be
seen. Sets nothing: adjtimex is called with modes 0 only.
"""

from __future__ import annotations

import ctypes
import errno
import os
import time
from dataclasses import dataclass

from rankclock.node.fact import Fact, read_text, why_not

__all__ = [
    "Adjtimex",
    "boot_id",
    "cap_sys_time",
    "clocksource",
    "has_private_clock",
    "may_set_clock",
    "raw_ns",
    "read_adjtimex",
    "realtime_ns",
    "time_namespace",
]

CAP_SYS_TIME = 25
PRIVATE_CLOCK = "RANKCLOCK_VCLOCK"
"""Set in the processes of a rankclock lab: their clock is the node's own and no capability guards it."""

_STATE_NAMES = ("TIME_OK", "TIME_INS", "TIME_DEL", "TIME_OOP", "TIME_WAIT", "TIME_ERROR")
STA_UNSYNC = 0x40
_STA_NANO = 0x2000
_STATUS_FLAGS = {
    0x1: "PLL", 0x2: "PPSFREQ", 0x4: "PPSTIME", 0x8: "FLL", 0x10: "INS", 0x20: "DEL", 0x40: "UNSYNC", 0x80: "FREQHOLD",
    0x100: "PPSSIGNAL", 0x200: "PPSJITTER", 0x400: "PPSWANDER", 0x800: "PPSERROR", 0x1000: "CLOCKERR", 0x2000: "NANO",
    0x4000: "MODE", 0x8000: "CLK",
}  # fmt: skip


def realtime_ns() -> int:
    """CLOCK_REALTIME now."""
    return time.clock_gettime_ns(time.CLOCK_REALTIME)


def raw_ns() -> int:
    """CLOCK_MONOTONIC_RAW now."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)


class _Timex(ctypes.Structure):
    """struct timex of Linux (uapi/linux/timex.h)."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        *((name, ctypes.c_long) for name in ("offset", "freq", "maxerror", "esterror")),
        ("status", ctypes.c_int),
        *((name, ctypes.c_long) for name in ("constant", "precision", "tolerance", "sec", "usec", "tick")),
        *((name, ctypes.c_long) for name in ("ppsfreq", "jitter")),
        ("shift", ctypes.c_int),
        *((name, ctypes.c_long) for name in ("stabil", "jitcnt", "calcnt", "errcnt", "stbcnt")),
        ("tai", ctypes.c_int),
        ("reserved", ctypes.c_int * 11),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Adjtimex:
    """What the kernel was told about its clock. maxerror is a bound only where its writer is chronyd or ntpd: phc2sys,
    ptp4l and systemd-timesyncd write 0 into it.
    """

    state: int
    status: int
    maxerror_us: int
    esterror_us: int
    offset_ns: int
    freq_ppb: int
    tick_us: int
    tai_s: int

    @property
    def synchronised(self) -> bool:
        """The flag, as somebody set it; nobody may have looked since."""
        return not self.status & STA_UNSYNC

    def fact(self) -> Fact:
        """The fact `adjtimex`."""
        value = {
            "state": self.state,
            "state_name": _STATE_NAMES[self.state] if 0 <= self.state < len(_STATE_NAMES) else str(self.state),
            "status": self.status,
            "status_flags": [name for bit, name in _STATUS_FLAGS.items() if self.status & bit],
            "maxerror_us": self.maxerror_us,
            "esterror_us": self.esterror_us,
            "offset_ns": self.offset_ns,
            "freq_ppb": self.freq_ppb,
            "tick_us": self.tick_us,
            "tai_s": self.tai_s,
        }
        return Fact.known(value, "adjtimex, modes 0")


def read_adjtimex() -> Adjtimex:
    """Needs no privilege. Raises OSError."""
    timex = _Timex(modes=0)
    libc = ctypes.CDLL(None, use_errno=True)
    state = libc.adjtimex(ctypes.byref(timex))
    if state < 0:
        number = ctypes.get_errno() or errno.EINVAL
        raise OSError(number, os.strerror(number))
    return Adjtimex(
        state=state,
        status=timex.status,
        maxerror_us=timex.maxerror,
        esterror_us=timex.esterror,
        offset_ns=timex.offset if timex.status & _STA_NANO else timex.offset * 1000,
        freq_ppb=round(timex.freq * 1000 / 65536),
        tick_us=timex.tick,
        tai_s=timex.tai,
    )


def clocksource() -> Fact:
    """What counts the time of this kernel."""
    folder = "/sys/devices/system/clocksource/clocksource0"
    try:
        current = read_text(f"{folder}/current_clocksource")
        available = read_text(f"{folder}/available_clocksource").split()
    except OSError as error:
        return Fact.unknown(why_not(error), folder)
    return Fact.known({"current": current, "available": available}, folder)


def boot_id() -> Fact:
    """The same for all namespaces of one boot of one kernel."""
    path = "/proc/sys/kernel/random/boot_id"
    try:
        return Fact.known(read_text(path), path)
    except OSError as error:
        return Fact.unknown(why_not(error), path)


def time_namespace() -> Fact:
    """Which time namespace this is: in another one CLOCK_MONOTONIC and BOOTTIME are shifted, CLOCK_REALTIME is not."""
    path, offsets_path = "/proc/self/ns/time", "/proc/self/timens_offsets"
    try:
        own = os.readlink(path)  # noqa: PTH115 (a magic link: Path.readlink gives the same, as a path)
        number = int(own.partition("[")[2].rstrip("]"))
        offsets = {"monotonic": 0, "boottime": 0}
        for line in read_text(offsets_path).splitlines():
            name, seconds, ns = line.split()
            offsets[name] = int(seconds) * 1_000_000_000 + int(ns)
    except OSError as error:
        return Fact.unknown(f"{why_not(error)} (a kernel before 5.6 has no time namespaces)", path)
    except ValueError as error:
        return Fact.unknown(f"unexpected form: {error}", path)
    value: dict[str, object] = {"id": number, "initial": None, "offsets_ns": offsets}
    try:
        value["initial"] = os.readlink("/proc/1/ns/time") == own  # noqa: PTH115
    except OSError as error:
        return Fact.known(value, path, why=f"initial: process 1 may not be looked at: {why_not(error)}")
    return Fact.known(value, path)


def has_private_clock() -> bool:
    """Whether this process lives in a node of a rankclock lab, under a clock that is that node's alone."""
    return bool(os.environ.get(PRIVATE_CLOCK))


def may_set_clock(pid: int | str) -> tuple[bool, str]:
    """Whether a process could set CLOCK_REALTIME, and why. Raises OSError where it may not be looked at.

    The capability counts only in the initial user namespace, whose map is the identity over all ids.
    """
    effective = 0
    for line in read_text(f"/proc/{pid}/status").splitlines():
        name, _, value = line.partition(":")
        if name == "CapEff":
            effective = int(value, 16)
    if not effective >> CAP_SYS_TIME & 1:
        return False, "has no CAP_SYS_TIME"
    if read_text(f"/proc/{pid}/uid_map").split() != ["0", "0", "4294967295"]:
        return False, "has CAP_SYS_TIME in a user namespace only"
    return True, "has CAP_SYS_TIME"


def cap_sys_time() -> Fact:
    """Whether the collecting process itself could set this machine's clock."""
    if has_private_clock():
        return Fact.known(os.geteuid() == 0, f"${PRIVATE_CLOCK}: the clock of a lab's node, settable by its root")
    try:
        return Fact.known(may_set_clock("self")[0], "/proc/self/status, /proc/self/uid_map")
    except OSError as error:
        return Fact.unknown(why_not(error), "/proc/self/status")
