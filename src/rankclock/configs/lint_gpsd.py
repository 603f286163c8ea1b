"""What is wrong with gpsd's defaults (/etc/default/gpsd, /etc/sysconfig/gpsd) where a clock is to follow it. Pure.

systemd reads the file as environment (KEY=VALUE a line) and gpsd's units use four of the names. Decides nothing about
receivers.
"""

from __future__ import annotations

import re

from rankclock.configs.problem import Problem

__all__ = ["GPSD_NAMES", "lint_gpsd"]

GPSD_NAMES = ("DEVICES", "GPSD_OPTIONS", "OPTIONS", "USBAUTO", "START_DAEMON", "GPSD_SOCKET")
_LINE = re.compile(r"(?P<name>[A-Za-z_]\w*)=(?P<value>.*)\Z")
_NO_WAIT = re.compile(r"(?:^|\s)(?:-[A-Za-z]*n|--nowait)")


def lint_gpsd(text: str) -> list[Problem]:
    """What systemd or gpsd takes silently though a chronyd or ntpd beside it then gets no samples."""
    found: list[Problem] = []
    values: dict[str, tuple[int, str]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped[0] in "#;":
            continue
        match = _LINE.match(stripped)
        if match is None:
            what = "not NAME=VALUE: systemd leaves the line out"
            found.append(Problem(line=number, rejected=False, what=what, do='write NAME="VALUE", no spaces around ='))
            continue
        if match["name"] not in GPSD_NAMES:
            what = f"gpsd's units read no {match['name']}"
            found.append(Problem(line=number, rejected=False, what=what, do="one of " + ", ".join(GPSD_NAMES)))
        values[match["name"]] = number, match["value"].strip("\"' ")
    return sorted([*found, *_missing(values)], key=lambda problem: problem.line)


def _missing(values: dict[str, tuple[int, str]]) -> list[Problem]:
    found = []
    options = values.get("GPSD_OPTIONS") or values.get("OPTIONS")
    if not options or not _NO_WAIT.search(options[1]):
        what = (
            "without -n gpsd opens the receiver only while a client asks: chronyd and ntpd are none, they get nothing"
        )
        found.append(Problem(line=options[0] if options else 1, rejected=False, what=what, do='GPSD_OPTIONS="-n"'))
    devices, automatic = values.get("DEVICES", (1, "")), values.get("USBAUTO", (1, ""))
    if not devices[1] and automatic[1].lower() == "false":
        what = "no DEVICES, and USBAUTO is false: gpsd has no receiver"
        found.append(Problem(line=devices[0], rejected=False, what=what, do='DEVICES="/dev/ttyS0 /dev/pps0"'))
    return found
