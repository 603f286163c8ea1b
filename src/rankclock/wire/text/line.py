"""One line of pasted text: what stood in front of the message (stamps, host, program) taken apart from the message.

Journal, syslog, plain daemon output, kernel ring buffer, klog, container runtimes and compose prefixes are peeled off
one after the other. What is no known prefix stays in the body: nothing is thrown away, `text` is the line as it was
pasted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from rankclock.wire.text.moment import moment_at
from rankclock.wire.text.number import seconds_ns

__all__ = ["Line", "parse_line", "prompt_of"]

LONGEST = 4_000
"""Longer lines are cut here: no tool that we read writes them, and patterns cost time on each character."""

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_DAEMONS = "ptp4l|phc2sys|ts2phc|timemaster|synce4l|nsm|pmc|chronyd|chronyc|ntpd|ntpdate|systemd-timesyncd|gpsd"
_TAG = re.compile(r"(?P<tag>[A-Za-z][\w./@-]{0,60}?)(?:\[(?P<pid>[\d.]+)\])?: ?")
_DAEMON_TAG = re.compile(rf"(?P<tag>{_DAEMONS})(?:\[(?P<pid>[\d.]+)\])?: ?")
_HOST = re.compile(r"(?P<host>[A-Za-z0-9][\w.:-]*) ")
_MONO = re.compile(r"\[ *(?P<mono>\d{1,9}\.\d{3,6})\]:? ?")
_MESSAGE_TAG = re.compile(r"\[[\w.:/-]+\] ")
_KLOG = re.compile(r"[IWEF]\d{4} (\d\d:\d\d:\d\d\.\d{3,6}) +\d+ (?P<where>\S+?:\d+)\] ")
_COMPOSE = re.compile(r"(?P<host>[A-Za-z][\w.-]*?) +\| (?=\S)")
_FANOUT = re.compile(
    r"(?P<host>(?!eth|enp|ens|eno|ptp|pps|port|mon\.|lo\b|ts2phc|phc2sys)[A-Za-z][A-Za-z.-]*\d+[\w.-]*): (?=\S)"
)
_STREAM = re.compile(r"(?:stdout|stderr) [FP] ")
_LEVEL = re.compile(r"(?:[DIWEC] \| |\[(?:DEBUG|INFO|WARNING|WARN|ERROR)\] |(?:DEBUG|INFO|WARN|WARNING|ERROR) +(?=\S))")
_HF = re.compile(r"\[(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\|(?P<where>[^\]]+)\] ")
_PROMPT = re.compile(
    r"(?:\[(?:[\w.-]+@)?(?P<a>[A-Za-z][\w.-]*)[^\]\n]{0,60}\] ?[#$%] ?"  # [root@login ~]# date
    r"|(?:[\w.-]+@)(?P<b>[A-Za-z][\w.-]*):?[^#$\n]{0,60}[#$] ?"  # root@tqmls:~# phc2sys
    r"|(?:ba|z)?sh-[\d.]+[#$] ?"  # bash-5.0# systemctl
    r"|[#$] +(?=[\w./~]))"  # $ phc2sys, # ptp4l
    r"(?P<command>.*)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One pasted line.

    number: from 1. body: the message without its prefixes. program, host: '' where the prefix did not say.
    wall_ns: the wall clock of the prefix as Unix ns (year 2000 where it had none, UTC where it had no zone).
    mono_ns: the monotonic stamp of linuxptp and of the kernel.
    """

    number: int
    text: str
    body: str
    program: str = ""
    host: str = ""
    wall_ns: int | None = None
    mono_ns: int | None = None


def prompt_of(text: str) -> tuple[str, str] | None:
    """(host, command) of a line that starts with a shell prompt.

    Host '' where the prompt does not say. None: no prompt.
    """
    match = _PROMPT.match(text.lstrip())
    if match is None:
        return None
    return match["a"] or match["b"] or "", match["command"].strip()


def parse_line(number: int, text: str) -> Line:  # noqa: PLR0912  (one branch a prefix, as they nest)
    """Take the prefixes off one line. Never fails."""
    text = text[:LONGEST].rstrip("\r\n")
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    at = len(text) - len(text.lstrip(" \t\ufeff"))
    body_start = at
    host = program = ""
    wall_ns = mono_ns = None
    if match := _COMPOSE.match(text, at) or _FANOUT.match(text, at):
        host, at = match["host"], match.end()
    if match := _HF.match(text, at):
        at = match.end()
    if match := _KLOG.match(text, at):
        wall_ns, at = _day_ns(match[1]), match.end()
    else:
        bracket = text[at : at + 1] == "["
        moment = moment_at(text, at + bracket)
        if moment:
            wall_ns, at = moment.unix_ns, moment.end
            at = _skip(text, at, "] ,:.>")
            at = _match_end(_STREAM, text, at)
            if not _DAEMON_TAG.match(text, at) and (named := _HOST.match(text, at)):
                behind = _TAG.match(text, named.end())
                if behind and not _LEVEL.match(text, at):
                    host, at = named["host"], named.end()
    if (match := _DAEMON_TAG.match(text, at)) or (wall_ns is not None and host and (match := _TAG.match(text, at))):
        program, at = match["tag"].rsplit("/", 1)[-1], match.end()
        if match["pid"] and "." in match["pid"]:
            mono_ns = seconds_ns(match["pid"])
    elif text.startswith("kernel: ", at):
        program, at = "kernel", at + 8
    if match := _MONO.match(text, at):
        mono_ns, at = seconds_ns(match["mono"]), match.end()
        program = program or "kernel"
    if mono_ns is not None and program != "kernel":
        at = _match_end(_MESSAGE_TAG, text, at)
    at = _match_end(_LEVEL, text, at)
    return Line(
        number=number,
        text=text,
        body=text[at:].rstrip() if at > body_start else text.rstrip(),
        program=program,
        host=host,
        wall_ns=wall_ns,
        mono_ns=mono_ns,
    )


def _day_ns(clock: str) -> int | None:
    hours, minutes, seconds = clock.split(":")
    second_ns = seconds_ns(seconds)
    return None if second_ns is None else (int(hours) * 3600 + int(minutes) * 60) * 1_000_000_000 + second_ns


def _skip(text: str, at: int, characters: str) -> int:
    while at < len(text) and text[at] in characters:
        at += 1
    return at


def _match_end(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return match.end() if match else at
