"""What is wrong with command lines of ptp4l, phc2sys and ts2phc, in systemd units and in scripts. Pure.

Decides by the programs' own letters and by the combinations that they refuse at start (linuxptp 3.1.1 to 4.4). Refuses
to judge what only the running system knows: words from `$VARIABLES`, commands inside a quoted `sh -c`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from rankclock.configs.options import Version
from rankclock.configs.options_linuxptp import PHC2SYS, PTP4L
from rankclock.configs.problem import Problem
from rankclock.errors import UserError
from rankclock.wire.text.linuxptp_argv import LETTERS, Given, read_options

__all__ = ["CommandLine", "command_lines", "lint_argv", "lint_commands"]

_EXEC = re.compile(r"Exec(?:Start|StartPre|StartPost|Reload)\s*=\s*[-+!@:|]*(?P<command>.*)\Z")
_NEEDS = re.compile(r"(?:Requires|BindsTo|Requisite)\s*=.*\bptp4l\.service\b")
_WRAPPERS = ("sudo", "exec", "nice", "chrt", "taskset", "setpriv", "env", "ionice", "nohup")
_PROGRAMS = (*LETTERS, "chronyd", "timemaster", "ntpd")
_LATER_LETTERS = {("ts2phc", "-a"): (4, 0)}
_MANUAL = ("-s", "-c", "-d", "-w", "-O")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """One call. line: where it begins. argv: program first, as it stands in the file. open: `$` or a backtick in it."""

    line: int
    program: str
    argv: tuple[str, ...]
    open: bool = False


def command_lines(text: str) -> list[CommandLine]:
    """The calls of time daemons in a unit, a drop-in or a script."""
    found = []
    for number, line in _joined(text):
        unit = _EXEC.match(line)
        command = _call(number, unit["command"] if unit else line, in_unit=unit is not None)
        if command is not None:
            found.append(command)
    return found


def _joined(text: str) -> Iterator[tuple[int, str]]:
    """Lines with what continues them behind a backslash; comments left out."""
    start, parts = 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped[0] in "#;":
            continue
        start = start or number
        if stripped.endswith("\\"):
            parts += stripped[:-1] + " "
            continue
        yield start, parts + stripped
        start, parts = 0, ""
    if parts:
        yield start, parts.rstrip()


def _call(number: int, command: str, *, in_unit: bool) -> CommandLine | None:
    try:
        words = shlex.split(command, comments=not in_unit)
    except ValueError:
        return None
    for index, word in enumerate(words):
        program = word.rpartition("/")[2]
        if program not in _PROGRAMS:
            continue
        wrapped = not index or words[0].rpartition("/")[2] in _WRAPPERS
        if not wrapped or not (in_unit or words[index + 1 : index + 2] == [] or words[index + 1].startswith("-")):
            return None
        argv = _until_shell_word(words[index:])
        return CommandLine(line=number, program=program, argv=argv, open=any(set(word) & set("$`") for word in argv))
    return None


def _until_shell_word(words: list[str]) -> tuple[str, ...]:
    for index, word in enumerate(words):
        if word in ("&&", "||", "|", ";", "&") or word.startswith((">", "2>", "<")):
            return tuple(words[:index])
        if word.endswith(";"):
            return (*words[:index], word[:-1])
    return tuple(words)


def lint_commands(text: str, version: Version) -> list[Problem]:
    """What that release of linuxptp rejects in the command lines of a unit or script, or takes though it is wrong."""
    found: list[Problem] = []
    for number, line in _joined(text):
        if _NEEDS.match(line):
            what = "it needs ptp4l.service: where there is only ptp4l@.service (Debian 12), systemd starts neither"
            found.append(Problem(line=number, rejected=False, what=what, do="name the instance, ptp4l@IFACE.service"))
    for command in command_lines(text):
        if command.program in LETTERS:
            found += lint_argv(command, version)
    return sorted(found, key=lambda problem: problem.line)


def lint_argv(command: CommandLine, version: Version) -> list[Problem]:
    """The faults of one call."""
    given = read_options(command.argv[1:], LETTERS[command.program][1])
    found = [problem for one in given for problem in _option(command, one, version)]
    if found or command.open:  # what a variable holds may be what is missing
        return found
    combine = {"phc2sys": _phc2sys, "ptp4l": _ptp4l}.get(command.program)
    return list(combine(command.line, given)) if combine else []


def _rejected(line: int, what: str, do: str) -> Problem:
    return Problem(line=line, rejected=True, what=what, do=do)


def _option(command: CommandLine, given: Given, version: Version) -> Iterator[Problem]:
    program, release = command.program, ".".join(map(str, version))
    if given.long:
        yield from _long(command, given, version)
        return
    alone, valued = LETTERS[program]
    letter = given.name[1:]
    since = _LATER_LETTERS.get((program, given.name))
    if since is not None and version >= since:
        return
    if letter not in alone + valued:
        yield _rejected(command.line, f"{program} {release} has no option {given.name}", f"see {program} -h")
    elif letter in valued and not given.value:
        yield _rejected(command.line, f"{program} {given.name}: a value is missing", "give one, or take it out")
    elif program == "phc2sys" and letter in valued and PHC2SYS.has(given.name, version) and not _unknown(given.value):
        fault = PHC2SYS.find(given.name, version).fault(given.value or "")
        if fault:
            yield _rejected(command.line, f"phc2sys {given.name} {given.value}: {fault}", "correct it")


def _long(command: CommandLine, given: Given, version: Version) -> Iterator[Problem]:
    """Every setting of a linuxptp file is a long option too; getopt takes a beginning that is no other's."""
    name = given.name[2:]
    names = [one for one in PTP4L.options if one.startswith(name) and PTP4L.has(one, version)]
    name = name if name in names else names[0] if len(names) == 1 else name
    try:
        option = PTP4L.find(name, version)
    except UserError as error:
        said = str(error).replace("ptp4l", command.program, 1).replace(repr(name), f"--{name}")
        what, _, needs = said.partition(": ")
        yield _rejected(command.line, what, needs or "correct the name, or take it out")
        return
    if given.value is None:
        yield _rejected(command.line, f"{command.program} --{name}: a value is missing", "give one, or take it out")
    elif not _unknown(given.value) and (fault := option.fault(given.value)):
        yield _rejected(command.line, f"{command.program} --{name} {given.value}: {fault}", "correct it")


def _unknown(value: str | None) -> bool:
    """Whether systemd or a shell puts something else there (`%I`, `$OPTIONS`)."""
    return value is not None and bool(set(value) & set("%$`"))


def _phc2sys(line: int, given: tuple[Given, ...]) -> Iterator[Problem]:
    """What phc2sys refuses behind its options, and what it takes without a word."""
    names = {one.name for one in given}
    if names & {"-h", "-v"}:
        return
    manual = sorted(names & set(_MANUAL))
    if "-a" in names and manual:
        what = f"phc2sys -a finds its clocks by ptp4l and cannot be combined with {', '.join(manual)}"
        yield _rejected(line, what, "drop -a, or those")
    elif "-a" not in names and not names & {"-s", "-d"}:
        what = "phc2sys has neither -a nor a source (-s)"
        yield _rejected(line, what, "phc2sys -a -r, or -s IFACE -w")
    elif "-a" not in names and not names & {"-w", "-O"}:
        what = "phc2sys was told no offset between the two time scales: neither -w nor -O"
        yield _rejected(line, what, "-w (ptp4l knows it), or -O -37 for a system clock fed from a PHC")
    elif "-r" in names and "-a" not in names:
        what = "-r means nothing without -a: phc2sys ignores it"
        yield Problem(line=line, rejected=False, what=what, do="drop -r, or use -a -r in place of -s and -c")


def _ptp4l(line: int, given: tuple[Given, ...]) -> Iterator[Problem]:
    values = {one.name: one.value for one in given}
    if values.keys() & {"-h", "-v"}:
        return
    if not values.keys() & {"-i", "-f"}:
        yield _rejected(line, "ptp4l has no interface: neither -i nor a file with ports (-f)", "add -i IFACE")
    device = values.get("-p")
    if device and device.isdigit():
        what = f"-p {device}: -p is the clock device, not a priority"
        yield Problem(line=line, rejected=False, what=what, do=f"--priority1 {device}, or -p /dev/ptpN")
