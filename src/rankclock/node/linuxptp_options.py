"""What a running ptp4l or phc2sys was told to do: its command line and the [global] part of its configuration file.

Reads the file that a command line names. A file that may not be read leaves `unread` set: then what it would have said
is unknown, not default. What the words mean is in `rankclock.wire.text.linuxptp_argv`.
"""

from __future__ import annotations

from collections.abc import Sequence

from rankclock.node.fact import read_text, why_not
from rankclock.wire.text.linuxptp_argv import (
    LETTERS,
    Phc2sysOptions,
    Ptp4lOptions,
    global_section,
    phc2sys_options,
    ptp4l_settings,
    read_options,
)

__all__ = ["Phc2sysOptions", "Ptp4lOptions", "phc2sys_options", "ptp4l_options"]


def _file(path: str | None) -> tuple[dict[str, str], str | None]:
    if path is None:
        return {}, None
    try:
        return global_section(read_text(path)), None
    except OSError as error:
        return {}, f"{path}: {why_not(error)}"


def ptp4l_options(argv: Sequence[str]) -> Ptp4lOptions:
    """The options of a running ptp4l."""
    files = [given.value for given in read_options(argv[1:], LETTERS["ptp4l"][1]) if given.name == "-f"]
    settings, unread = _file(files[-1] if files else None)
    return ptp4l_settings(argv, settings, unread)
