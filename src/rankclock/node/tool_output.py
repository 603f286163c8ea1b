"""What the time tools of this machine print, for the doctor to read: only commands that change and start nothing.

`timedatectl timesync-status` is not among them: it may start systemd-timesyncd and so stop chronyd. A tool that is
missing, hangs or refuses gives no output and no error.
"""

from __future__ import annotations

import os
import shutil
import subprocess

__all__ = ["COMMANDS", "read_tools"]

TIMEOUT_S = 5
_UNITS = ("chrony*", "ntp*", "systemd-timesyncd*", "ptp4l*", "phc2sys*", "ts2phc*", "timemaster*", "openntpd*")
_TAGS = ("chronyd", "ntpd", "systemd-timesyncd", "ptp4l", "phc2sys", "ts2phc", "timemaster")

COMMANDS: tuple[tuple[str, ...], ...] = (
    ("chronyc", "-n", "tracking"),
    ("chronyc", "-n", "sources"),
    ("ntpq", "-pn"),
    ("systemctl", "list-units", "--all", "--plain", "--no-legend", "--no-pager", *_UNITS),
    ("journalctl", "--boot", "--no-pager", "--lines", "400", *(f"--identifier={tag}" for tag in _TAGS)),
    (
        "journalctl",
        "--boot",
        "--no-pager",
        "--dmesg",
        "--lines",
        "200",
        "--grep",
        "clocksource|TSC|ptp|hv_utils|Suspended for",
    ),
)


def read_tools() -> list[tuple[str, bytes]]:
    """(command, its output) of each tool that is here and answers in time."""
    path = os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin"
    found = []
    for command in COMMANDS:
        program = shutil.which(command[0], path=path)
        if program is None:
            continue
        try:
            done = subprocess.run(
                [program, *command[1:]], capture_output=True, timeout=TIMEOUT_S, check=False, stdin=subprocess.DEVNULL
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.stdout.strip() and done.returncode in (0, 1):
            found.append((" ".join(command[:3]), done.stdout))
    return found
