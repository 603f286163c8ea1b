"""The time daemons: which are installed and running, and which of them steer CLOCK_REALTIME.

Who owns the clock is told from evidence: what a daemon was started to do, whether it may set a clock at all, and for a
ptp4l that may serve or follow, what its ports do now. Where others' processes are hidden the answer is unknown, not
"nobody". Runs only programs of the system's folders: a running process may be anybody's.
"""

from __future__ import annotations

import getopt
import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rankclock.errors import PeerError
from rankclock.node.fact import Fact, why_not
from rankclock.node.kernel import has_private_clock, may_set_clock
from rankclock.node.linuxptp_options import phc2sys_options, ptp4l_options
from rankclock.node.processes import Process, ProcessTable
from rankclock.node.ptp4l import read_ptp4l
from rankclock.wire.ptp_data_sets import PortState

__all__ = ["DAEMONS", "Owners", "chronyd_leaves_clock_alone", "daemon_facts", "find_owners", "owners_fact"]

DAEMONS = ("chronyd", "ntpd", "systemd-timesyncd", "ptp4l", "phc2sys", "ts2phc", "timemaster", "gpsd")

_FOLDERS = ("/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/bin", "/usr/local/bin", "/lib/systemd", "/usr/lib/systemd")
_VERSION_OPTION = {"ntpd": "--version", "systemd-timesyncd": "--version", "gpsd": "-V"}
_VERSION = re.compile(r"\d+(?:\.\d+)+[A-Za-z0-9.]*")
_VERSION_TIMEOUT_S = 2.0
_CHRONYD_OPTIONS = "46df:F:hl:L:nPpqQrRst:u:Uvx"


# ---- installed and running ----


def daemon_facts(table: ProcessTable) -> dict[str, Fact]:
    """The facts `daemon.<name>`."""
    return {f"daemon.{name}": _daemon_fact(name, table) for name in DAEMONS}


def _daemon_fact(name: str, table: ProcessTable) -> Fact:
    running = table.running(name)
    path = _installed(name)
    version, why = _version(name, path) if path else ("none", None)
    if not path and running:  # somewhere else; run it we do not
        path, version, why = _executable_of(running), None, "it runs from a place where it is not installed"
    reasons = [f"version: {why}"] if why else []
    if path is None and running:
        reasons.append("path: the process may not be looked at")
    hidden = table.blind_spot if not running else None
    if hidden:
        reasons.append(f"running_pids: {hidden}")
    value = {
        "path": path or (None if running else "none"),
        "version": version,
        "running_pids": None if hidden else [process.pid for process in running],
        "command_lines": None if hidden else [list(process.argv) for process in running],
    }
    return Fact.known(value, f"PATH, {_FOLDERS[0]}, {path or name} -v, /proc", why="; ".join(reasons) or None)


def _installed(name: str) -> str | None:
    folders = (os.environ.get("RANKCLOCK_DAEMONS", ""), *os.environ.get("PATH", "").split(":"), *_FOLDERS)
    for folder in filter(None, folders):
        path = Path(folder, name)
        if path.is_file() and os.access(path, os.X_OK):
            return str(path)
    return None


def _executable_of(running: Sequence[Process]) -> str | None:
    for process in running:
        try:
            return os.readlink(f"/proc/{process.pid}/exe").removesuffix(" (deleted)")  # noqa: PTH115
        except OSError:
            continue
    return None


def _version(name: str, path: str) -> tuple[str | None, str | None]:
    """What the program says of itself, or why it did not."""
    option = _VERSION_OPTION.get(name, "-v")
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(
            [path, option],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_VERSION_TIMEOUT_S,
            check=False,
            env=environment,
        )
    except OSError as error:
        return None, f"{path} {option}: {why_not(error)}"
    except subprocess.TimeoutExpired:
        return None, f"{path} {option}: no answer within {_VERSION_TIMEOUT_S:g} s"
    text = (done.stdout + done.stderr).decode("utf-8", "replace")
    if name == "systemd-timesyncd":  # it prints "systemd 252 (...)"
        match = re.search(r"systemd (\d+)", text)
        return (match.group(1), None) if match else (None, f"{path} {option} names no version")
    found = _VERSION.search(text)
    return (found.group(), None) if found else (None, f"{path} {option} names no version")


# ---- who steers CLOCK_REALTIME ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Owners:
    """The processes that steer CLOCK_REALTIME by (daemon, process), what speaks for and against each daemon, and why
    some may be missing.
    """

    steering: tuple[tuple[str, Process], ...]
    evidence: tuple[str, ...]
    blind_spot: str | None

    @property
    def names(self) -> tuple[str, ...]:
        """The daemons, each once."""
        return tuple(dict.fromkeys(name for name, _ in self.steering))


def find_owners(table: ProcessTable) -> Owners:
    """Looks at every running time daemon."""
    judges = {
        "chronyd": _chronyd_steers,
        "ntpd": _always_steers,
        "systemd-timesyncd": _always_steers,
        "ptp4l": _ptp4l_steers,
        "phc2sys": _phc2sys_steers,
    }
    steering, evidence = [], []
    for name, judge in judges.items():
        for process in table.running(name):
            steers, why = judge(process)
            if steers:
                steers, why = _may(process, why)
            evidence.append(f"{name} (pid {process.pid}) {'steers' if steers else 'does not steer'}: {why}")
            if steers:
                steering.append((name, process))
    return Owners(steering=tuple(steering), evidence=tuple(evidence), blind_spot=table.blind_spot)


def owners_fact(owners: Owners) -> Fact:
    """The fact `realtime_owner`."""
    source = "/proc: command lines, configurations, capabilities; ptp4l's sockets"
    if not owners.steering and owners.blind_spot:
        return Fact.unknown(owners.blind_spot, source)
    return Fact.known({"owners": list(owners.names), "evidence": list(owners.evidence)}, source)


def _may(process: Process, why: str) -> tuple[bool, str]:
    """A daemon that may not set the clock goes on running and steers nothing."""
    if has_private_clock():
        return True, why
    try:
        may, reason = may_set_clock(process.pid)
    except OSError as error:
        return True, f"{why}; its capabilities may not be looked at: {why_not(error)}"
    return may, why if may else reason


def chronyd_leaves_clock_alone(argv: Sequence[str]) -> str | None:
    """Why a chronyd started so does not touch the clock, None where it steers it."""
    try:
        options, _ = getopt.gnu_getopt(list(argv[1:]), _CHRONYD_OPTIONS)
    except getopt.GetoptError:
        return None
    given = {option for option, _ in options}
    for option, meaning in (("-x", "does not touch the clock"), ("-Q", "prints and ends"), ("-p", "prints and ends")):
        if option in given:
            return f"{option}: {meaning}"
    return None


def _chronyd_steers(process: Process) -> tuple[bool, str]:
    alone = chronyd_leaves_clock_alone(process.argv)
    return alone is None, alone or "without -x it steers the system clock"


def _always_steers(process: Process) -> tuple[bool, str]:
    return True, f"{process.comm} steers the system clock"


def _phc2sys_steers(process: Process) -> tuple[bool, str]:
    options = phc2sys_options(process.argv)
    if not options.realtime_sink:
        return False, "its command line has another sink"
    if options.realtime_may_lead and not _follows_now(process):
        return False, "-rr: no port of ptp4l is a client, the system clock is its source"
    return True, "CLOCK_REALTIME is its sink"


def _follows_now(process: Process) -> bool:
    try:
        options = phc2sys_options(process.argv)
        reading = read_ptp4l(options.sockets, domain=options.domain)
    except PeerError:
        return False
    return bool(reading.in_state(PortState.SLAVE, PortState.UNCALIBRATED))


def _ptp4l_steers(process: Process) -> tuple[bool, str]:
    options = ptp4l_options(process.argv)
    if options.unread:
        return False, f"its configuration may not be read: {options.unread}"
    never = options.never_steers_realtime
    if never:
        return False, never
    if options.client_only:
        return True, "software stamps, client only"
    try:
        reading = read_ptp4l(options.sockets, domain=options.domain, sdo=options.sdo)
    except PeerError as error:
        return True, f"software stamps; whether it follows now cannot be asked: {error}"
    if reading.in_state(PortState.SLAVE, PortState.UNCALIBRATED):
        return True, "software stamps, follows a grandmaster"
    return False, "software stamps, follows nobody now"
