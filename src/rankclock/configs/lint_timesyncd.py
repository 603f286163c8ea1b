"""timesyncd.conf and its drop-ins (systemd 247 to 257): [Time] with its keys. Pure.

systemd-timesyncd never refuses a file: it logs what it does not know and goes on with its defaults.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from rankclock.configs.problem import Problem

__all__ = ["lint_timesyncd"]

_SPAN = re.compile(r"(\d+(\.\d+)?\s*(us|ms|s|sec|seconds?|m|min|minutes?|h|hr|hours?|d|days?|w|weeks?)?\s*)+|infinity")
_SPANS = ("RootDistanceMaxSec", "PollIntervalMinSec", "PollIntervalMaxSec", "ConnectionRetrySec", "SaveIntervalSec")
_SHORTEST_POLL_S = 16


def lint_timesyncd(text: str) -> list[Problem]:
    """Lines that are passed over, and values that it does not take."""
    found: list[Problem] = []
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped[0] in "#;":
            continue
        if stripped[0] == "[":
            section = stripped.strip("[]")
            if section != "Time":
                found.append(_passed_over(number, f"timesyncd has no section [{section}]", "[Time]"))
        else:
            found += _setting(number, stripped, section)
    return found


def _passed_over(line: int, what: str, do: str) -> Problem:
    return Problem(line=line, rejected=False, what=f"{what}: it is passed over, the default stays", do=do)


def _setting(number: int, line: str, section: str) -> Iterator[Problem]:
    key, mark, value = (part.strip() for part in line.partition("="))
    if not mark:
        yield _passed_over(number, f"no KEY=VALUE: {line[:40]!r}", "KEY=VALUE")
    elif not section:
        yield _passed_over(number, f"{key} before any section", "begin with [Time]")
    elif section == "Time" and key not in ("NTP", "FallbackNTP", *_SPANS):
        yield _passed_over(number, f"[Time] has no {key!r}", f"NTP, FallbackNTP, {', '.join(_SPANS)}")
    elif key in _SPANS and value and not _SPAN.fullmatch(value):
        yield _passed_over(number, f"{key}={value}: no span of time", "a span such as 5s or 10min")
    elif key == "PollIntervalMinSec" and value.isdigit() and int(value) < _SHORTEST_POLL_S:
        yield _passed_over(number, f"{key}={value}: below {_SHORTEST_POLL_S} s", f"{_SHORTEST_POLL_S} or more")
    elif key in ("NTP", "FallbackNTP") and "," in value:
        yield _passed_over(number, f"{key}: servers are parted by spaces, not by commas", value.replace(",", " "))
