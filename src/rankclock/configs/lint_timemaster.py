"""What a release of timemaster rejects in its file, and what the daemons reject that it starts from it. Pure.

timemaster itself passes on what is meant for chronyd, ptp4l and phc2sys without a look (`timemaster -n` too): here
those lines are judged by the tables of the daemons that get them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from rankclock.configs.lint import lint_chrony, lint_ptp4l_line
from rankclock.configs.lint_commands import CommandLine, lint_argv
from rankclock.configs.options import Version
from rankclock.configs.problem import Problem
from rankclock.wire.text.linuxptp_argv import LETTERS

__all__ = ["Section", "lint_timemaster", "sections"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One section. name: its first word in lower case; parameter: what follows; lines: (number, text)."""

    line: int
    name: str
    parameter: str
    lines: tuple[tuple[int, str], ...]


_PROGRAM = ("path", "options")
_SETTINGS: dict[str, dict[str, str]] = {
    "ntp_server": {"minpoll": "int", "maxpoll": "int", "iburst": "bool", "ntp_options": "str"},
    "ptp_domain": {
        "interfaces": "str", "delay": "real", "ntp_poll": "int", "phc2sys_poll": "int", "ptp4l_option": "str",
        "ntp_options": "str",
    },
    "timemaster": {
        "ntp_program": "program", "rundir": "str", "first_shm_segment": "int", "restart_processes": "int",
        "use_vclocks": "int", "user": "str",
    },
    **{name: dict.fromkeys(_PROGRAM, "str") for name in ("chronyd", "ntpd", "phc2sys", "ptp4l")},
}  # fmt: skip
"""Section to setting to kind (timemaster.c 3.1.1 to 4.4)."""

_SINCE: dict[str, Version] = {"use_vclocks": (4, 0), "user": (4, 5)}
_RAW = ("chrony.conf", "ntp.conf", "ptp4l.conf")


def sections(text: str) -> tuple[list[Section], int]:
    """The sections, and the line of the first setting before any (0: none)."""
    found: list[Section] = []
    outside = 0
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped[0] == "#":
            continue
        if stripped[0] == "[":
            name, _, parameter = stripped[1:].partition("]")[0].strip().partition(" ")
            found.append(Section(line=number, name=name.lower(), parameter=parameter.strip(), lines=()))
        elif found:
            found[-1] = replace(found[-1], lines=(*found[-1].lines, (number, stripped)))
        else:
            outside = outside or number
    return found, outside


def lint_timemaster(text: str, version: Version, chrony: Version) -> list[Problem]:
    """What these releases reject in a timemaster.conf, or take in a way that the writer cannot have meant."""
    parts, outside = sections(text)
    found = [_rejected(outside, "a setting before any section", "begin with [timemaster]")] if outside else []
    for part in parts:
        found += _section(part, version, chrony)
    own = any(part.name in ("ntp_server", "ptp_domain") for part in parts)
    if not own and not any(part.lines for part in parts if part.name in ("chrony.conf", "ntp.conf")):
        what = (
            "neither [ntp_server ADDRESS] nor [ptp_domain NUMBER]: timemaster runs and gives its NTP daemon no source"
        )
        found.append(Problem(line=1, rejected=False, what=what, do="add one"))
    return sorted(found, key=lambda problem: problem.line)


def _rejected(line: int, what: str, do: str) -> Problem:
    return Problem(line=line, rejected=True, what=what, do=do)


def _section(part: Section, version: Version, chrony: Version) -> Iterator[Problem]:
    if part.name in _RAW:
        yield from _raw(part, version, chrony)
        return
    settings = _SETTINGS.get(part.name)
    if settings is None:
        yield _rejected(part.line, f"timemaster knows no section [{part.name}]", "correct the name, or take it out")
        return
    if part.name == "ntp_server" and not part.parameter:
        yield _rejected(part.line, "[ntp_server] without an address", "[ntp_server ADDRESS]")
    if part.name == "ptp_domain" and not part.parameter.isdigit():
        yield _rejected(part.line, f"[ptp_domain {part.parameter}]: expected a number", "[ptp_domain 0]")
    for number, line in part.lines:
        yield from _setting(part, number, line, settings, version)
    if part.name == "ptp_domain" and not any(line.split()[0].lower() == "interfaces" for _, line in part.lines):
        yield _rejected(part.line, "[ptp_domain] without interfaces", "interfaces eth0")


def _setting(part: Section, number: int, line: str, settings: dict[str, str], version: Version) -> Iterator[Problem]:
    words = line.split(None, 1)
    name, value = words[0].lower(), words[1].strip() if len(words) > 1 else ""
    kind = settings.get(name)
    release = ".".join(map(str, version))
    if kind is None:
        yield _rejected(number, f"timemaster knows no {name!r} in [{part.name}]", "one of " + ", ".join(settings))
        return
    if version < _SINCE.get(name, (0,)):
        needs = ".".join(map(str, _SINCE[name]))
        yield _rejected(number, f"timemaster {release} has no {name!r}", f"it needs {needs} and newer")
        return
    fault = _KINDS[kind](value)
    if fault:
        yield _rejected(number, f"{name} {value}".strip() + f": {fault}", "correct it")
    elif name == "ntp_options":
        yield from _ntp_options(part, number, value)
    elif name == "ptp4l_option":
        yield from lint_ptp4l_line(number, value, "global", version)
    elif name == "options" and part.name in LETTERS:
        argv = (part.name, *value.split())
        # What timemaster adds is unknown here: only what stands there is judged, not what is missing.
        yield from lint_argv(CommandLine(line=number, program=part.name, argv=argv, open=True), version)


def _ntp_options(part: Section, number: int, value: str) -> Iterator[Problem]:
    own = {"ptp_domain": ("poll", "ntp_poll"), "ntp_server": ("minpoll", "minpoll")}[part.name]
    if own[0] in value.split():
        what = f"{own[0]} in ntp_options stands twice in what timemaster writes: it adds its own"
        yield Problem(line=number, rejected=False, what=what, do=f"use {own[1]} for it")


def _number(text: str) -> str | None:
    try:
        int(text)
    except ValueError:
        return "expected a whole number"
    return None


def _real(text: str) -> str | None:
    try:
        float(text)
    except ValueError:
        return "expected a number of seconds"
    return None


_KINDS: dict[str, Callable[[str], str | None]] = {
    "int": _number,
    "real": _real,
    "bool": lambda text: None if text in ("0", "1") else "expected 0 or 1",
    "str": lambda _: None,
    "program": lambda text: None if text.lower() in ("chronyd", "ntpd") else "expected chronyd or ntpd",
}


def _raw(part: Section, version: Version, chrony: Version) -> Iterator[Problem]:
    """Lines that go into a daemon's own file as they are; a leading > is taken off."""
    lines = [(number, line.removeprefix(">")) for number, line in part.lines]
    if part.name == "ptp4l.conf":
        section = "global"  # timemaster heads the lines with [global]
        for number, line in lines:
            if line.startswith("["):
                section = line.strip("[] ")
            else:
                yield from lint_ptp4l_line(number, line, section, version)
    if part.name == "chrony.conf":
        for number, line in lines:
            for problem in lint_chrony(line, chrony):
                yield replace(problem, line=number)
            if line.split() == ["include", "/etc/chrony.conf"]:
                what = "Debian and Ubuntu have no /etc/chrony.conf: chronyd does not start there"
                yield Problem(line=number, rejected=False, what=what, do="include /etc/chrony/chrony.conf")
