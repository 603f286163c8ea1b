"""What a release of chronyd or ptp4l rejects in a configuration that somebody wrote, line by line. Pure.

Decides by the option tables: names, places, ranges, releases. What a daemon accepts though it is wrong is for the rules
of `rankclock.diagnosis`. Refuses to judge dialects that it has no table for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from rankclock.configs.options import Option, Place, Table, Version, version_range
from rankclock.configs.options_chrony import CHRONY, CHRONY_SOURCE
from rankclock.configs.options_linuxptp import PTP4L
from rankclock.configs.problem import Problem

__all__ = ["DIALECTS", "Problem", "dialect_of", "included", "lint_chrony", "lint_ptp4l", "lint_ptp4l_line"]

_SOURCES = ("server", "pool", "peer")
_COMMENTS = "#%;!"
_INCLUDES = ("include", "confdir", "sourcedir")
_SECTION = re.compile(r"\[([^\]]*)\]\s*\Z")
_BY_NAME = (
    ("timemaster", "timemaster"),
    ("timesyncd", "timesyncd"),
    ("ts2phc", "ts2phc"),
    ("chrony", "chrony"),
    ("ptp4l", "ptp4l"),
    ("ntp.conf", "ntp"),
    (".sources", "chrony"),
)
DIALECTS = ("chrony", "ptp4l", "ts2phc", "timemaster", "commands", "gpsd", "ntp", "timesyncd")
_OPTIONS_OF_TABLES = re.compile(r"(unicast_master_table|nmea|ts2phc)", re.IGNORECASE)


def dialect_of(name: str, text: str) -> str | None:
    """One of DIALECTS by the file's name, else by what stands in it; None where it is none of them."""
    base = name.rpartition("/")[2]
    if base.endswith((".service", ".sh")) or ".service.d/" in name:
        return "commands"
    for word, dialect in _BY_NAME:
        if word in base:
            return dialect
    if base == "gpsd":
        return "gpsd"
    return _by_content(text)


def _by_content(text: str) -> str | None:
    lines = [line.split() for line in text.splitlines() if line.strip() and line.strip()[0] not in _COMMENTS]
    heads = {words[0].lower() for words in lines}
    if any(head.startswith(("[ntp_server", "[ptp_domain", "[timemaster")) for head in heads):
        return "timemaster"
    if "[global]" in heads:
        return "ts2phc" if any(head.startswith("ts2phc.") for head in heads) else "ptp4l"
    if any(head.startswith(("gpsd_options=", "usbauto=")) for head in heads):
        return "gpsd"
    if "[unit]" in heads or "[service]" in heads or any(_program(words[0]) for words in lines):
        return "commands"
    if heads & {"restrict", "disable", "enable", "fudge", "tinker"}:
        return "ntp"
    known = sum(words[0].lower() in CHRONY.options for words in lines)
    return "chrony" if lines and known > len(lines) / 2 else None


def _program(word: str) -> bool:
    return word.rpartition("/")[2] in ("ptp4l", "phc2sys", "ts2phc")


def included(text: str) -> list[tuple[int, str, str]]:
    """What a chrony.conf reads besides: (line, 'include' | 'confdir' | 'sourcedir', path)."""
    found = []
    for number, words in _directives(text):
        if words[0].lower() in _INCLUDES and len(words) > 1:
            found += [(number, words[0].lower(), path) for path in words[1:]]
    return found


def lint_chrony(text: str, version: Version) -> list[Problem]:
    """What that release of chronyd rejects in a chrony.conf, or takes in a way that the writer cannot have meant."""
    found: list[Problem] = []
    for number, words in _directives(text):
        name = words[0].lower()
        problem = _named(CHRONY, name, version, number)
        if problem is not None:
            found.append(problem)
        elif name in _SOURCES:
            found += _source(number, words, version)
    return found


def _directives(text: str) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if stripped and stripped[0] not in _COMMENTS:
            yield number, stripped.split()


def _named(table: Table, name: str, version: Version, number: int) -> Problem | None:
    forms = table.options.get(name)
    release = ".".join(map(str, version))
    if not forms:
        return Problem(
            line=number, rejected=True, what=f"{table.daemon} knows no {name!r}", do="correct the name, or take it out"
        )
    if not any(form.in_version(version) for form in forms):
        wanted = " or ".join(version_range(form) for form in forms)
        return Problem(
            line=number,
            rejected=True,
            what=f"{table.daemon} {release} has no {name!r}",
            do=f"it needs {wanted}",
        )
    return None


def _source(number: int, words: list[str], version: Version) -> list[Problem]:
    if len(words) < 2:
        return [Problem(line=number, rejected=True, what=f"{words[0]} without an address", do="name the server")]
    found: list[Problem] = []
    values: dict[str, str] = {}
    rest = iter(words[2:])
    for word in rest:
        name = word.lower()
        problem = _named(CHRONY_SOURCE, name, version, number)
        if problem is not None:
            return [*found, problem]
        option = CHRONY_SOURCE.find(name, version)
        if option.kind == "flag":
            continue
        value = next(rest, None)
        fault = "a value is missing" if value is None else option.fault(value)
        if fault:
            found.append(
                Problem(
                    line=number, rejected=True, what=f"{name} {value or ''}".strip() + f": {fault}", do="correct it"
                )
            )
        elif value is not None:
            values[name] = value
    low, high = int(values.get("minpoll", 6)), int(values.get("maxpoll", 10))
    if low > high:
        found.append(
            Problem(
                line=number,
                rejected=False,
                what=f"minpoll {low} is above maxpoll {high}{'' if 'maxpoll' in values else ' (the default)'}",
                do=f"add maxpoll {low} or more: chronyd raises it silently",
            )
        )
    return found


# ---- linuxptp ----


def lint_ptp4l(text: str, version: Version) -> list[Problem]:
    """What that release of ptp4l rejects in a ptp4l.conf."""
    found: list[Problem] = []
    section: str | None = None
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped[0] == "#":
            continue
        heading = _SECTION.match(stripped)
        if heading is not None:
            section = heading[1].strip()
            continue
        if section is None:
            found.append(
                Problem(line=number, rejected=True, what="an option before any section", do="begin with [global]")
            )
        elif not _OPTIONS_OF_TABLES.match(section):
            found += lint_ptp4l_line(number, stripped, section, version)
    return found


def lint_ptp4l_line(number: int, line: str, section: str, version: Version) -> list[Problem]:
    """What that release rejects in one line of a section."""
    name, _, value = line.partition(" ") if " " in line else line.partition("\t")
    problem = _named(PTP4L, name, version, number)
    if problem is not None:
        return [problem]
    option = PTP4L.find(name, version)
    if section != "global" and option.place is not Place.PORT:
        what = f"{name} stands in [{section}]: ptp4l takes it in [global] only"
        return [Problem(line=number, rejected=True, what=what, do="move it to [global]")]
    fault = option.fault(value.strip())
    if fault:
        return [Problem(line=number, rejected=True, what=f"{name} {value.strip()}: {fault}", do="correct it")]
    return _deprecated(number, option, version)


def _deprecated(number: int, option: Option, version: Version) -> list[Problem]:
    since = option.deprecated_since
    if since is None or version < tuple(int(part) for part in since.split(".")):
        return []
    what = f"{option.name} is an old name since {since}"
    return [Problem(line=number, rejected=False, what=what, do=f"call it {option.deprecated_for}")]
