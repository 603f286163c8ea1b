"""The machine that a demo runs on, as far as its figures depend on it."""

from __future__ import annotations

import os
import re
import subprocess
import time

from rankclock.errors import HostError
from rankclock.lab.daemons import find_daemon
from rankclock.report.record import Host

__all__ = ["HostClock", "this_host"]

STEP_LIMIT_NS = 1_000_000
_VERSION = re.compile(r"\d+(?:\.\d+)+")


def this_host() -> Host:
    """Kernel, cores, versions of the daemons that are here."""
    versions = {}
    for name in ("chronyd", "ptp4l", "phc2sys"):
        try:
            done = subprocess.run([find_daemon(name), "-v"], capture_output=True, text=True, timeout=10, check=False)
        except (HostError, OSError, subprocess.TimeoutExpired):
            continue
        found = _VERSION.search(done.stdout + done.stderr)
        if found:
            versions[name] = found.group()
    return Host(kernel=os.uname().release, cores=os.cpu_count() or 1, versions=versions)


class HostClock:
    """Proof that this machine's own clock was left alone: the kernel's settings, and REALTIME against RAW."""

    def __init__(self) -> None:
        from rankclock.node.kernel import read_adjtimex

        self._read = read_adjtimex
        self._settings = self._now()
        self._lead_ns = _lead_ns()

    def _now(self) -> tuple[int, int, int]:
        reading = self._read()
        return reading.freq_ppb, reading.tick_us, reading.tai_s

    def untouched(self) -> tuple[bool, str]:
        """Whether frequency, tick and TAI offset are as before, and no step beyond 1 ms came; and that in words."""
        moved_ns = abs(_lead_ns() - self._lead_ns)
        same = self._now() == self._settings
        words = (
            f"frequency, tick and TAI offset {'as before' if same else 'CHANGED'}, REALTIME - RAW moved {moved_ns} ns"
        )
        return same and moved_ns < STEP_LIMIT_NS, words


def _lead_ns() -> int:
    before_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
    real_ns = time.clock_gettime_ns(time.CLOCK_REALTIME)
    return real_ns - (before_ns + time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)) // 2
