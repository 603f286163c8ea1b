"""Asks the daemons themselves whether they take a file: `chronyd -p`, ptp4l's parser, phc2sys's flags, systemd-analyze.

Decides nothing about the content. Every daemon runs without the power to set a clock and, where namespaces may be
made, in a network of its own with no interface: a file that names a real NIC must be parsed, never carried out.
Standard library only.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rankclock.errors import HostError

__all__ = ["ParserVerdict", "check_command", "check_file", "find_program", "installed_release"]

TIMEOUT_S = 10.0

Finder = Callable[[str], Path]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParserVerdict:
    """What a daemon says of a file. accepted: None where it could not be asked; said: its words, or why not."""

    what: str
    program: str
    accepted: bool | None
    said: str


def find_program(name: str) -> Path:
    """A daemon in $RANKCLOCK_DAEMONS, on PATH or in sbin. Raises HostError."""
    folders = [os.environ.get("RANKCLOCK_DAEMONS", ""), os.environ.get("PATH", ""), "/usr/sbin", "/sbin"]
    found = shutil.which(name, path=os.pathsep.join(folder for folder in folders if folder))
    if found is None:
        raise HostError(f"{name} not found in $RANKCLOCK_DAEMONS, PATH or /usr/sbin: install it, or name its folder")
    return Path(found)


def check_file(path: Path, find: Finder = find_program, *, dialect: str | None = None) -> ParserVerdict:
    """Ask the daemon that reads a file of that name, or of that dialect. Never raises for what the daemon says."""
    for name, pattern, ask in _PARSERS:
        if dialect == name or path.match(pattern):
            return ask(path, find)
    return ParserVerdict(what=str(path), program="", accepted=None, said="no parser for files of this name")


def installed_release(name: str, find: Finder = find_program) -> str | None:
    """What `chronyd -v` or `ptp4l -v` calls itself; None where it is not installed or does not say."""
    done = _run(name, name, ["-v"], find)
    if isinstance(done, ParserVerdict):
        return None
    found = re.search(r"\d+\.\d+(?:\.\d+)?", done.stdout + done.stderr)
    return None if found is None else found[0]


def check_command(argv: Sequence[str], find: Finder = find_program) -> ParserVerdict:
    """Ask phc2sys whether it takes its flags: it reads them in order, and -h behind them ends it before it starts."""
    what, name = " ".join(argv), Path(argv[0]).name
    if name != "phc2sys":
        return ParserVerdict(what=what, program=name, accepted=None, said="no parser for this command")
    done = _run(what, name, [*argv[1:], "-h"], find)
    if isinstance(done, ParserVerdict):
        return done
    said = done.stderr.strip().splitlines()
    first = said[0] if said and not said[0].startswith("usage") else ""
    return ParserVerdict(what=what, program=name, accepted=done.returncode == 0, said=first)


def _chrony(path: Path, find: Finder) -> ParserVerdict:
    done = _run(str(path), "chronyd", ["-p", "-f", str(path)], find)
    if isinstance(done, ParserVerdict):
        return done
    said = done.stderr.strip().splitlines()
    return ParserVerdict(
        what=str(path), program="chronyd", accepted=done.returncode == 0, said=said[-1] if done.returncode else ""
    )


_BEHIND_THE_PARSER = ("failed to get time stamping info", "time stamping not supported on")
"""timemaster took the file and then looked for its NICs, which are kept away from it here (3.1.1 to 4.4)."""


def _timemaster(path: Path, find: Finder) -> ParserVerdict:
    """`timemaster -n` prints what it would write and start, and starts nothing."""
    done = _run(str(path), "timemaster", ["-n", "-m", "-q", "-f", str(path)], find)
    if isinstance(done, ParserVerdict):
        return done
    said = [line.partition("]: ")[2] or line for line in done.stderr.strip().splitlines() + done.stdout.splitlines()]
    accepted = done.returncode == 0 or any(line.startswith(_BEHIND_THE_PARSER) for line in said)
    return ParserVerdict(
        what=str(path), program="timemaster", accepted=accepted, said="" if accepted else (said or [""])[0]
    )


_PTP4L_REJECTS = 254
_PTP4L_STOPS = 255
"""254: the file is rejected. 255: it was taken, and then something was missing (no interface here): that is a yes.
(linuxptp 3.1.1 to 4.4: config_read's fault is main's exit code, everything later is -1.)
"""


def _ptp4l(path: Path, find: Finder) -> ParserVerdict:
    what = str(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        return ParserVerdict(what=what, program="ptp4l", accepted=None, said=str(error))
    with tempfile.TemporaryDirectory(prefix="rankclock-") as folder:
        # The interfaces are renamed line by line in a copy: should no namespace keep them away, none exists.
        copy = Path(folder) / "ptp4l.conf"
        copy.write_text(_without_interfaces(text), encoding="utf-8")
        done = _run(what, "ptp4l", ["-f", str(copy), "-q", "-m", "--uds_address", f"{folder}/s"], find)
    if isinstance(done, ParserVerdict):
        return done
    said = [line for line in (done.stderr + done.stdout).strip().splitlines() if line]
    faults = [line for line in said if _REJECTION.search(line)]  # beside them there may be words on old names
    rejected = done.returncode == _PTP4L_REJECTS or bool(faults)
    accepted = False if rejected else True if done.returncode == _PTP4L_STOPS else None
    first = (faults or said or [""])[0]
    return ParserVerdict(what=what, program="ptp4l", accepted=accepted, said="" if accepted else first)


_REJECTION = re.compile(r"line \d+|unknown option|out of range|malformed")
_SECTION = re.compile(r"^\[(?!global\]|unicast_master_table\])([^\]]+)\]\s*$", re.MULTILINE)


def _without_interfaces(text: str) -> str:
    numbers: dict[str, int] = {}
    return _SECTION.sub(lambda match: f"[rknone{numbers.setdefault(match[1], len(numbers))}]", text)


def _systemd(path: Path, find: Finder) -> ParserVerdict:
    done = _run(str(path), "systemd-analyze", ["verify", "--man=no", str(path)], find, isolate=False)
    if isinstance(done, ParserVerdict):
        return done
    # Daemons and units that are not installed here are none of this file's faults.
    absent = ("not found", "is not executable: No such file")
    own = [line for line in done.stderr.splitlines() if path.name in line and not any(word in line for word in absent)]
    return ParserVerdict(what=str(path), program="systemd-analyze", accepted=not own, said=own[0] if own else "")


_NTPD_HAS_READ = ("INIT: Using ", "IO: Listen", "INIT: MRU")
_NTPD_SAYS = re.compile(r"CONFIG: (.*(?:syntax error in|invalid argument|provided value|failed to open).*)")


def _ntpd(path: Path, find: Finder) -> ParserVerdict:
    """ntpd cannot only check a file: it is started without power over the clock, and ended once it has read it."""
    what = str(path)
    try:
        program, prefix = find("ntpd"), _isolation()
    except HostError as error:
        return ParserVerdict(what=what, program="ntpd", accepted=None, said=str(error))
    if prefix is None or not prefix:
        said = "ntpd is only started where a network namespace keeps it to itself, and none can be made"
        return ParserVerdict(what=what, program="ntpd", accepted=None, said=said)
    process = subprocess.Popen(
        [*prefix, str(program), "-n", "-c", what],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
    )
    timer = threading.Timer(TIMEOUT_S, process.kill)
    timer.start()
    faults, has_read = [], False
    try:
        for line in process.stdout or ():
            found = _NTPD_SAYS.search(line)
            if found is not None:
                faults.append(found[1])
            if any(mark in line for mark in _NTPD_HAS_READ):
                has_read = True
                break
    finally:
        timer.cancel()
        process.kill()
        process.communicate()
    return ParserVerdict(
        what=what,
        program="ntpd",
        accepted=False if faults else True if has_read else None,
        said=faults[0] if faults else "",
    )


def _ask(path: Path, program: str, arguments: Sequence[str], find: Finder) -> ParserVerdict:
    """A program that says no by its exit code, and why on standard error."""
    done = _run(str(path), program, arguments, find)
    if isinstance(done, ParserVerdict):
        return done
    said = done.stderr.strip().splitlines()
    first = said[0] if said and done.returncode else ""
    return ParserVerdict(what=str(path), program=program, accepted=done.returncode == 0, said=first)


def _run(
    what: str, name: str, arguments: Sequence[str], find: Finder, *, isolate: bool = True
) -> subprocess.CompletedProcess[str] | ParserVerdict:
    try:
        program = find(name)
    except HostError as error:
        return ParserVerdict(what=what, program=name, accepted=None, said=str(error))
    prefix = _isolation() if isolate else ()
    if prefix is None:
        said = "cannot give up the power to set this machine's clock (neither unshare nor setpriv works)"
        return ParserVerdict(what=what, program=name, accepted=None, said=said)
    try:
        return subprocess.run(
            [*prefix, str(program), *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return ParserVerdict(what=what, program=name, accepted=None, said=f"did not end within {TIMEOUT_S:g} s")
    except OSError as error:
        return ParserVerdict(what=what, program=name, accepted=None, said=f"{program}: {error.strerror}")


def _isolation() -> tuple[str, ...] | None:
    """The command prefix without power over the clock: a user and network namespace, else a dropped capability.

    Capabilities of a new user namespace do not reach the machine's clock (it belongs to the first one). Empty for an
    ordinary user, who has no such power; None where root cannot give it up.
    """
    unshare, setpriv = _tool("unshare"), _tool("setpriv")
    namespaced = (unshare, "--user", "--map-root-user", "--net") if unshare else ()
    drop = (setpriv, "--bounding-set=-sys_time", "--inh-caps=-sys_time") if setpriv else ()
    for prefix in ((*namespaced, *drop), namespaced, drop):
        if prefix and _works(prefix):
            return prefix
    return () if os.geteuid() != 0 else None


def _tool(name: str) -> str | None:
    """A tool of the system, also where PATH does not lead to it."""
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/bin", "/bin"]))


@cache
def _works(prefix: tuple[str, ...]) -> bool:
    try:
        done = subprocess.run([*prefix, "/bin/true"], capture_output=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


_PARSERS: tuple[tuple[str, str, Callable[[Path, Finder], ParserVerdict]], ...] = (
    ("chrony", "chrony.conf", _chrony),
    ("ptp4l", "ptp4l.conf", _ptp4l),
    ("ts2phc", "ts2phc.conf", _ptp4l),  # linuxptp's programs share one parser and one table of settings
    ("timemaster", "timemaster.conf", _timemaster),
    ("ntp", "ntp.conf", _ntpd),
    ("unit", "*.service", _systemd),
    ("nftables", "*.nft", lambda path, find: _ask(path, "nft", ["-c", "-f", str(path)], find)),
    ("gpsd", "default/gpsd", lambda path, find: _ask(path, "sh", ["-n", str(path)], find)),
)
"""Dialect, file name, whom to ask."""
