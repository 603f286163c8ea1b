"""PTP hardware clocks: what they are, and how they stand to CLOCK_REALTIME, by the kernel's ioctls. Reads only.

The reading with the shortest way between two looks at the system clock is kept: its error is at most half that width.
"""

from __future__ import annotations

import array
import errno
import fcntl
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rankclock.node.fact import Fact, read_text, why_not
from rankclock.node.kernel import raw_ns

__all__ = ["PhcReading", "phc_facts", "read_phc"]

PTP_CLOCK_GETCAPS = 0x80503D01
PTP_SYS_OFFSET = 0x43403D05
PTP_SYS_OFFSET_EXTENDED = 0xC4C03D09

_SAMPLES = 9
_MAX_SAMPLES = 25
_TIME = struct.Struct("=qII")
_EXTENDED_OCTETS, _OFFSET_OCTETS, _CAPS_OCTETS = 1216, 832, 80
_HEAD_OCTETS = 16
_NOT_SUPPORTED = (errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL, errno.ENOSYS)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhcReading:
    """One comparison. minus_realtime_ns: PHC - CLOCK_REALTIME, uncertain by half of width_ns.

    phc_ns: the PHC at `at_raw_ns` (read right behind, so late by microseconds: for ages, not for offsets).
    advances: whether it moved between the first and the last of several looks; False: a frozen counter.
    """

    phc_ns: int
    advances: bool
    minus_realtime_ns: int
    width_ns: int
    at_raw_ns: int


def read_phc(device: str) -> PhcReading:
    """Compares a PHC with CLOCK_REALTIME. Raises OSError where the device may not be opened or cannot do it."""
    handle = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            samples = _extended(handle)
        except OSError as error:
            if error.errno not in _NOT_SUPPORTED:
                raise
            samples = _plain(handle)
        at_raw_ns = raw_ns()
    finally:
        os.close(handle)
    before_ns, phc_ns, after_ns = min(samples, key=lambda sample: sample[2] - sample[0])
    return PhcReading(
        phc_ns=samples[-1][1],
        advances=samples[-1][1] != samples[0][1],
        minus_realtime_ns=phc_ns - (before_ns + after_ns) // 2,
        width_ns=after_ns - before_ns,
        at_raw_ns=at_raw_ns,
    )


def _times(data: bytes, count: int) -> list[int]:
    return [
        seconds * 1_000_000_000 + ns
        for seconds, ns, _ in _TIME.iter_unpack(data[_HEAD_OCTETS : _HEAD_OCTETS + count * _TIME.size])
    ]


def _extended(handle: int) -> list[tuple[int, int, int]]:
    """Triples (system, PHC, system), the looks at the system clock taken by the driver right around the PHC's."""
    data = array.array("B", struct.pack("=I", _SAMPLES).ljust(_EXTENDED_OCTETS, b"\0"))
    fcntl.ioctl(handle, PTP_SYS_OFFSET_EXTENDED, data, True)
    times = _times(data.tobytes(), 3 * _SAMPLES)
    return list(zip(times[::3], times[1::3], times[2::3], strict=True))


def _plain(handle: int) -> list[tuple[int, int, int]]:
    """The same from drivers that cannot do better: the looks alternate, system, PHC, system, ..."""
    data = array.array("B", struct.pack("=I", _SAMPLES).ljust(_OFFSET_OCTETS, b"\0"))
    fcntl.ioctl(handle, PTP_SYS_OFFSET, data, True)
    times = _times(data.tobytes(), 2 * _SAMPLES + 1)
    return list(zip(times[::2], times[1::2], times[2::2], strict=False))


def _max_adjustment_ppb(device: str) -> int:
    handle = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = array.array("B", bytes(_CAPS_OCTETS))
        fcntl.ioctl(handle, PTP_CLOCK_GETCAPS, data, True)
    finally:
        os.close(handle)
    return int.from_bytes(data[:4].tobytes(), "little", signed=True)


_KINDS = (("kvm", "ptp_kvm"), ("hyperv", "hyperv"), ("ena", "ena"), ("vmclock", "vmclock"))


def phc_facts(nics: Mapping[str, Mapping[str, object]]) -> dict[str, Fact]:
    """The facts `phc.<n>`: of every device, every entry of sysfs, and every index that a NIC reports."""
    owners: dict[int, list[str]] = {}
    for name, nic in nics.items():
        index = nic.get("phc_index")
        if isinstance(index, int) and index >= 0:
            owners.setdefault(index, []).append(name)
    numbers = {*owners, *_numbered("/dev"), *_numbered("/sys/class/ptp")}
    return {f"phc.{number}": _phc_fact(number, owners.get(number, [])) for number in sorted(numbers)}


def _numbered(folder: str) -> set[int]:
    try:
        names = [entry.name for entry in Path(folder).iterdir()]
    except OSError:
        return set()
    return {int(name[3:]) for name in names if name.startswith("ptp") and name[3:].isdigit()}


def _phc_fact(number: int, nics: Sequence[str]) -> Fact:
    device, why = f"/dev/ptp{number}", []
    value: dict[str, object] = {
        "clock_name": None,
        "device": device,
        "openable": False,
        "max_adj_ppb": None,
        "nics": list(nics),
        "kind": "nic" if nics else "other",
        "minus_realtime_ns": None,
        "read_width_ns": None,
        "advances": None,
    }
    try:
        name = read_text(f"/sys/class/ptp/ptp{number}/clock_name")
        value["clock_name"] = name
        value["kind"] = next((kind for mark, kind in _KINDS if mark in name.lower()), value["kind"])
        if Path(f"/sys/class/ptp/ptp{number}/device/net").is_dir():
            value["kind"] = "nic"
    except OSError as error:
        why.append(f"clock_name: sysfs: {why_not(error)}")
    try:
        reading = read_phc(device)
        value.update(
            openable=True,
            max_adj_ppb=_max_adjustment_ppb(device),
            minus_realtime_ns=reading.minus_realtime_ns,
            read_width_ns=reading.width_ns,
            advances=reading.advances,
        )
    except OSError as error:
        why.append(f"its reading: {device}: {why_not(error)}")
    return Fact.known(value, f"{device}, /sys/class/ptp/ptp{number}", why="; ".join(why) or None)
