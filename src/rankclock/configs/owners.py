"""Who steers CLOCK_REALTIME, as the configuration files of one node say it: exactly one program may. Pure.

Files tell what a daemon does once it runs, not whether it runs: two owners are said as "both, if both run". A file that
leaves open whether its daemon steers counts as silent. Files of different nodes are never put together.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rankclock.configs.lint_commands import CommandLine, command_lines
from rankclock.configs.lint_timemaster import sections
from rankclock.wire.text.linuxptp_argv import LETTERS, global_section, phc2sys_options, ptp4l_settings, read_options

__all__ = ["ConfigFile", "Owner", "conflicts", "node_of", "owners"]

_ROOTS = ("etc", "usr", "lib", "run")
_CHRONY_SOURCE = re.compile(r"\s*(?:server|pool|peer|refclock)\s", re.IGNORECASE)
_NTP_SOURCE = re.compile(r"\s*(?:server|pool|peer|refclock)\s+(?!127\.127\.1\.)")
_PORT = re.compile(r"\[(?!global\]|unicast_master_table|nmea)[^\]]+\]\s*\Z", re.IGNORECASE)
_SERVER_ONLY = re.compile(r"(?:masterOnly|serverOnly)\s+1\s*\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFile:
    """A file with its dialect, one of `rankclock.configs.lint.DIALECTS`."""

    path: str
    text: str
    dialect: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A program that steers CLOCK_REALTIME once it runs. how: by which words."""

    program: str
    path: str
    line: int
    how: str


def node_of(path: str) -> str:
    """Which machine a file is of: what stands before its last /etc, /usr, /lib or /run; else its folder."""
    parts = path.split("/")
    roots = [index for index, part in enumerate(parts[:-1]) if part in _ROOTS]
    if not roots:
        return "/".join(parts[:-1])
    first = roots[-1]
    while first - 1 in roots:  # /usr/lib is one
        first -= 1
    return "/".join(parts[:first])


def conflicts(files: Iterable[ConfigFile]) -> list[tuple[Owner, ...]]:
    """For each machine with more than one owner: all of them."""
    nodes: dict[str, list[ConfigFile]] = {}
    for file in files:
        nodes.setdefault(node_of(file.path), []).append(file)
    found = [owners(group) for group in nodes.values()]
    return [several for several in found if len(several) > 1]


def owners(files: Sequence[ConfigFile]) -> tuple[Owner, ...]:
    """The programs that steer CLOCK_REALTIME by these files of one machine, one for each running instance."""
    calls = [(file, call) for file in files if file.dialect == "commands" for call in command_lines(file.text)]
    by_key: dict[str, Owner] = {}
    for owner in _phc2sys(calls):
        by_key[f"phc2sys {_unit_of(owner.path) or owner.line}"] = owner
    for owner in [*_ptp4l(files, calls), *_chronyd(files, calls), *_others(files)]:
        by_key.setdefault(owner.program, owner)
    return tuple(by_key.values())


def _unit_of(path: str) -> str:
    """The unit of a .service file or of a drop-in: both are one instance."""
    match = re.search(r"([^/]+\.service)(?:\.d/[^/]*)?\Z", path)
    return match[1] if match else ""


def _phc2sys(calls: Sequence[tuple[ConfigFile, CommandLine]]) -> Iterable[Owner]:
    for file, call in calls:
        if call.program == "phc2sys" and phc2sys_options(call.argv).realtime_sink:
            yield Owner(program="phc2sys", path=file.path, line=call.line, how=" ".join(call.argv[1:]))


def _ptp4l(files: Sequence[ConfigFile], calls: Sequence[tuple[ConfigFile, CommandLine]]) -> Iterable[Owner]:
    """Software stamps make ptp4l steer the system clock itself, wherever a port of it may be a client."""
    runs = [(file, call) for file, call in calls if call.program == "ptp4l"]
    named = {base: (file, call) for file, call in runs for base in _files_of(call)}
    configs = {file.path.rpartition("/")[2]: file for file in files if file.dialect == "ptp4l"}
    for base, config in configs.items():
        _, call = named.get(base, (None, None))
        told = ptp4l_settings(call.argv if call else ("ptp4l",), global_section(config.text))
        if told.never_steers_realtime is None and not _all_ports_serve(config.text):
            line = _line_of(config.text, "time_stamping") or 1
            yield Owner(program="ptp4l", path=config.path, line=line, how="software time stamps")
    for file, call in runs:
        if _files_of(call) & configs.keys():
            continue  # judged with its file
        if not _files_of(call) and ptp4l_settings(call.argv).never_steers_realtime is None:
            yield Owner(program="ptp4l", path=file.path, line=call.line, how="-S, software time stamps")


def _files_of(call: CommandLine) -> set[str]:
    given = read_options(call.argv[1:], LETTERS["ptp4l"][1])
    return {one.value.rpartition("/")[2] for one in given if one.name == "-f" and one.value}


def _all_ports_serve(text: str) -> bool:
    """Whether every port section says that it is never a client."""
    ports: list[bool] = []
    for line in text.splitlines():
        stripped = line.strip()
        if _PORT.match(stripped):
            ports.append(False)
        elif stripped.startswith("["):
            continue
        elif ports and _SERVER_ONLY.match(stripped):
            ports[-1] = True
    return bool(ports) and all(ports)


def _chronyd(files: Sequence[ConfigFile], calls: Sequence[tuple[ConfigFile, CommandLine]]) -> Iterable[Owner]:
    masters = [file for file in files if file.dialect == "timemaster"]
    for file in masters:
        program = _ntp_program(file.text)
        yield Owner(program=program, path=file.path, line=1, how="started by timemaster")
    if any(call.program == "chronyd" and "-x" in call.argv for _, call in calls):
        return  # told to leave the clock alone
    taken = {path for file in masters for path in _included(file.text)}
    for file in files:
        if file.dialect != "chrony" or any(file.path.endswith(path) for path in taken):
            continue
        line = next((n for n, text in enumerate(file.text.splitlines(), 1) if _CHRONY_SOURCE.match(text)), 0)
        if line:
            yield Owner(program="chronyd", path=file.path, line=line, how="a source to follow, and no -x in sight")


def _ntp_program(text: str) -> str:
    said = [line.split() for part in sections(text)[0] if part.name == "timemaster" for _, line in part.lines]
    chosen = [words[1].lower() for words in said if words[0].lower() == "ntp_program" and len(words) > 1]
    return f"timemaster's {chosen[-1] if chosen else 'chronyd'}"


def _included(text: str) -> set[str]:
    raw = [part for part in sections(text)[0] if part.name == "chrony.conf"]
    words = [line.split() for part in raw for _, line in part.lines]
    return {one[1] for one in words if one[0].lower() == "include" and len(one) > 1}


def _others(files: Sequence[ConfigFile]) -> Iterable[Owner]:
    tests: Mapping[str, tuple[str, re.Pattern[str], str]] = {
        "ntp": ("ntpd", _NTP_SOURCE, "a source to follow"),
        "timesyncd": ("systemd-timesyncd", re.compile(r"\s*NTP\s*=\s*\S"), "servers are named"),
    }
    for file in files:
        if file.dialect not in tests or re.search(r"^\s*disable\s.*\bntp\b", file.text, re.MULTILINE):
            continue
        program, pattern, how = tests[file.dialect]
        line = next((n for n, text in enumerate(file.text.splitlines(), 1) if pattern.match(text)), 0)
        if line:
            yield Owner(program=program, path=file.path, line=line, how=how)


def _line_of(text: str, name: str) -> int:
    return next((n for n, line in enumerate(text.splitlines(), 1) if line.strip().startswith(name)), 0)
