"""Small pieces of evidence that no tool prints as such: readings of `date`, comments, metrics, whole JSON documents."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rankclock.wire.text.moment import Moment, find_moments

__all__ = ["Comment", "DateReading", "Measured", "Metric", "date_hosts", "date_line"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DateReading:
    """What `date` (or the like) printed on one host, '' where nothing says which."""

    host: str
    moment: Moment


@dataclass(frozen=True, slots=True, kw_only=True)
class Comment:
    """A line that a person or a file wrote behind a hash: a hint, never a proof."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One sample in Prometheus' text form."""

    name: str
    labels: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One measured offset of a node to a peer: rankclock-measured/1, or a rank's line in a clock record."""

    node: str
    peer: str
    lo_ns: int
    hi_ns: int
    estimate_ns: int
    at_real_ns: int | None


_DATE_WORDS = re.compile(r"^(?:[^\W\d_]{2,10}[.,]? )?$")
_SSH = re.compile(
    r"\b(?:ssh|rsh|pdsh -w|srun -w|kubectl exec|docker exec|docker run|podman run|oc debug)\s+(?:-\S+\s+)*(?:\w+@)?"
    r"(?P<host>[\w.-]*(?:\$\{?\w+\}?)?[\w.-]*)\b"
)
_LOOP = re.compile(r"for (?P<name>\w+) in (?P<words>[^;]+);")


def date_line(text: str) -> Moment | None:
    """The reading of a line that holds nothing else: what `date`, `date -u`, `date -Iseconds`, `date -R` print."""
    stripped = text.strip()
    if not 8 < len(stripped) < 60 or not any(character.isdigit() for character in stripped):
        return None
    for moment in find_moments(stripped):
        before, behind = stripped[: moment.start], stripped[moment.end :].strip()
        if _DATE_WORDS.match(before) and re.fullmatch(r"(?:\(?[A-Z]{2,5}\)?)?(?: ?[12]\d{3})?", behind):
            return moment
        return None
    return None


def date_hosts(command: str, host: str) -> list[str]:
    """The hosts whose `date` a command line prints, in order: 'date; ssh node001 date' at login is [login, node001]."""
    loop = _LOOP.search(command)
    if loop and (ssh := _SSH.search(command, loop.end())):
        return [re.sub(rf"\$\{{?{loop['name']}\}}?", word, ssh["host"]) for word in loop["words"].split()]
    hosts = []
    for part in re.split(r";|&&", command):
        if re.search(r"\bdate\b", part):
            ssh = _SSH.search(part)
            hosts.append(ssh["host"] if ssh else host)
    return [one or "here" for one in hosts] if len(hosts) > 1 else hosts
