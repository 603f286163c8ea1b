"""Host lists with ranges as Slurm writes them: `gpu[001-003,007]` names four machines. Expands and folds them.

A list is names parted by commas; a name may hold several bracket groups, and the leftmost runs slowest. Zeros in
front are kept (`[08-11]` is 08, 09, 10, 11). Refuses what could mean two things: nested or open brackets, ranges that
run backwards, empty names, and lists longer than a limit (a range of a few bytes may name millions).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import product

from rankclock.errors import DecodeError

__all__ = ["MAX_HOSTS", "expand", "expand_pattern", "fold"]

MAX_HOSTS = 200_000
"""Twice the largest cluster that is planned for (100,000 nodes)."""

_TAIL_NUMBER = re.compile(r"^(.*?)(\d{1,18})(\D*)$", re.DOTALL)
_RANGE = re.compile(r"^(\d{1,18})(?:-(\d{1,18}))?$")


def expand(text: str, *, limit: int = MAX_HOSTS) -> tuple[str, ...]:
    """All names of a host list in the order written. Raises DecodeError for anything that is not one."""
    names: list[str] = []
    for part in _split(text):
        names.extend(expand_pattern(part, limit=limit - len(names)))
    return tuple(names)


def expand_pattern(pattern: str, *, limit: int = MAX_HOSTS) -> tuple[str, ...]:
    """All texts that one pattern stands for; commas count only inside brackets. Raises DecodeError."""
    if not pattern:
        raise DecodeError("an empty name in a host list")
    pieces = re.split(r"\[([^\[\]]*)\]", pattern)
    if any("[" in literal or "]" in literal for literal in pieces[::2]):
        raise DecodeError(f"brackets that do not close or are nested in {pattern!r}")
    groups: list[list[str]] = []
    total = 1
    for group in pieces[1::2]:
        values = _group(group, pattern, limit)
        total *= len(values)
        if total > limit:
            raise DecodeError(f"{pattern!r} names more than {limit} hosts")
        groups.append(values)
    literals = pieces[::2]
    return tuple(
        literals[0] + "".join(value + literal for value, literal in zip(choice, literals[1:], strict=True))
        for choice in product(*groups)
    )


def fold(names: Iterable[str]) -> str:
    """The shortest host list for these names that this module knows, order kept: `expand(fold(names)) == names`.

    Neighbours whose names differ only in their last number share one bracket group. Raises ValueError for names that
    hold a comma or a bracket: no list could say them.
    """
    runs: list[_Run] = []
    for name in names:
        if not name or any(mark in name for mark in "[],"):
            raise ValueError(f"{name!r} cannot stand in a host list")
        if not (runs and runs[-1].takes(name)):
            runs.append(_Run(name))
    return ",".join(run.text() for run in runs)


class _Run:
    """Neighbouring names with the same text around their last number."""

    def __init__(self, name: str) -> None:
        match = _TAIL_NUMBER.match(name)
        # \d also matches other scripts' digits, which int() reads and str() would not write again.
        self.name = name
        self.around = (match[1], match[3]) if match and match[2].isascii() else None
        self.ranges: list[tuple[str, str]] = [(match[2], match[2])] if match and self.around else []

    def takes(self, name: str) -> bool:
        other = _Run(name)
        if self.around is None or other.around != self.around:
            return False
        number = other.ranges[0][0]
        first, last = self.ranges[-1]
        if number == str(int(last) + 1).zfill(len(first)):
            self.ranges[-1] = (first, number)
        else:
            self.ranges.append((number, number))
        return True

    def text(self) -> str:
        if self.around is None or (len(self.ranges) == 1 and self.ranges[0][0] == self.ranges[0][1]):
            return self.name
        spans = ",".join(first if first == last else f"{first}-{last}" for first, last in self.ranges)
        return f"{self.around[0]}[{spans}]{self.around[1]}"


def _split(text: str) -> list[str]:
    """Parts between the commas that stand outside brackets."""
    parts: list[str] = [""]
    depth = 0
    for mark in text:
        depth += (mark == "[") - (mark == "]")
        if mark == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += mark
    return [part.strip() for part in parts]


def _group(group: str, pattern: str, limit: int) -> list[str]:
    values: list[str] = []
    for span in group.split(","):
        match = _RANGE.match(span) if span.isascii() else None
        if match is None:
            raise DecodeError(f"{span!r} in {pattern!r} is no number and no range of numbers such as 001-032")
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first):
            raise DecodeError(f"the range {span!r} in {pattern!r} runs backwards")
        if int(last) - int(first) >= limit - len(values):
            raise DecodeError(f"{pattern!r} names more than {limit} hosts")
        values.extend(str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))
    return values
