"""This machine's clocks, read from the process: bracketed readings, and the identity of the clock.

Decides what counts as one clock: boot id, time namespace and, where declared, a name. Network namespaces share the boot
id and a host name proves nothing. (Equal identities are still checked against the readings: see `mesh.matrix`.)
Only reads. `time.clock_gettime_ns` goes through libc, so that a lab's virtual clock is what is seen.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from time import CLOCK_MONOTONIC_RAW, CLOCK_REALTIME, clock_gettime_ns

from rankclock.clockmath.realtime import Reading

__all__ = ["CLOCK_ID_VARIABLE", "clock_identity", "read_clocks", "read_raw_ns"]

CLOCK_ID_VARIABLE = "RANKCLOCK_CLOCK_ID"
"""Where the environment names the clock: nodes of a lab share boot id and time namespace, and have clocks apart."""

NARROW_NS = 1_000
TRIES = 3


def read_raw_ns() -> int:
    """CLOCK_MONOTONIC_RAW now."""
    return clock_gettime_ns(CLOCK_MONOTONIC_RAW)


def read_clocks() -> Reading:
    """RAW, REALTIME, RAW; read again, at most twice, where the process was interrupted in between."""
    narrowest = None
    for _ in range(TRIES):
        before_ns = clock_gettime_ns(CLOCK_MONOTONIC_RAW)
        real_ns = clock_gettime_ns(CLOCK_REALTIME)
        after_ns = clock_gettime_ns(CLOCK_MONOTONIC_RAW)
        if narrowest is None or after_ns - before_ns < narrowest.width_ns:
            narrowest = Reading(raw_before_ns=before_ns, real_ns=real_ns, raw_after_ns=after_ns)
        if narrowest.width_ns <= NARROW_NS:
            break
    assert narrowest is not None
    return narrowest


def clock_identity() -> str:
    """16 hex digits that stand for this clock; two processes with equal ones claim to read the same clock."""
    boot_id = _read(Path("/proc/sys/kernel/random/boot_id"))
    try:
        namespace = str(Path("/proc/self/ns/time").readlink())
    except OSError:
        namespace = "no time namespaces"  # before Linux 5.6 there is only one
    if not boot_id:
        boot_id = os.urandom(16).hex()  # nothing to tell clocks apart by: claim to share with nobody
    declared = os.environ.get(CLOCK_ID_VARIABLE, "")
    return hashlib.sha256(f"{boot_id} {namespace} {declared}".encode()).hexdigest()[:16]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
