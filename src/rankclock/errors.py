"""Who must act when something cannot go on, and the one table of exit codes.

Expected outcomes (a refused source, a failed check, an unknown clock) are values, never exceptions.
"""

from __future__ import annotations

from enum import IntEnum

__all__ = [
    "DecodeError",
    "ExitCode",
    "HostError",
    "InternalError",
    "PeerError",
    "RankclockError",
    "UserError",
]


class ExitCode(IntEnum):
    """What a command tells its caller. `rankclock check` alone follows the monitoring plugins instead."""

    OK = 0
    CHECK_FAILED = 1
    BAD_INPUT = 2
    HOST_LACKS = 3
    CANNOT_TELL = 4
    OUR_FAULT = 70


class RankclockError(Exception):
    """Base of all errors that end a command. The message is one line: what, where, found, expected, what to do."""

    exit_code: ExitCode = ExitCode.OUR_FAULT


class UserError(RankclockError):
    """The input is wrong: the caller fixes it."""

    exit_code = ExitCode.BAD_INPUT


class HostError(RankclockError):
    """This machine lacks something: a device, a permission, a tool, a free port."""

    exit_code = ExitCode.HOST_LACKS


class PeerError(RankclockError):
    """The other side did not answer, or answered wrongly."""

    exit_code = ExitCode.CANNOT_TELL


class InternalError(RankclockError):
    """Our own fault."""

    exit_code = ExitCode.OUR_FAULT


class DecodeError(ValueError):
    """Outside bytes or text are not what their format says. The only thing a decoder raises, for any input."""
