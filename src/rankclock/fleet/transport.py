"""Running something on a node, one protocol for all ways: on this machine, by openssh, in a lab.

A program that ran and failed is a result; a node out of reach is a PeerError, a missing tool here a HostError.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rankclock.errors import HostError, PeerError

__all__ = ["InLab", "Local", "Ssh", "Transport"]

Completed = subprocess.CompletedProcess[str]


class Transport(Protocol):
    """A way to one node. python: the interpreter there."""

    @property
    def python(self) -> str: ...

    def run(self, argv: Sequence[str], *, input: str = "", timeout_s: float) -> Completed:
        """Runs a program to its end. Raises PeerError (not reached, or not done in time), HostError."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Local:
    """This machine."""

    python: str = sys.executable

    def run(self, argv: Sequence[str], *, input: str = "", timeout_s: float) -> Completed:
        """See `Transport`."""
        return _run(argv, input=input, timeout_s=timeout_s, where="this machine")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ssh:
    """A host by the openssh client with the user's own configuration; never asks for a password."""

    host: str
    connect_timeout_s: int = 5
    python: str = "python3"

    def __post_init__(self) -> None:
        if not self.host or self.host.startswith("-"):
            raise ValueError(f"not a host name: {self.host!r}")

    def run(self, argv: Sequence[str], *, input: str = "", timeout_s: float) -> Completed:
        """See `Transport`. The remote shell gets the words quoted."""
        options = ("-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={self.connect_timeout_s}")
        command = ["ssh", *options, "--", self.host, shlex.join(argv)]
        done = _run(command, input=input, timeout_s=timeout_s, where=self.host)
        if done.returncode == _SSH_FAILED:
            raise PeerError(f"{self.host}: ssh: {_last_line(done.stderr) or 'failed'} (try: ssh {self.host} true)")
        return done


class _RunsInNodes(Protocol):
    def run(self, node: str, argv: Sequence[str], *, input: str, timeout_s: float) -> Any: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class InLab:
    """A node of a running lab, under its clock; `lab` is anything with the lab's `run`."""

    lab: _RunsInNodes
    node: str
    python: str = sys.executable

    def run(self, argv: Sequence[str], *, input: str = "", timeout_s: float) -> Completed:
        """See `Transport`."""
        done: Completed = self.lab.run(self.node, argv, input=input, timeout_s=timeout_s)
        return done


_SSH_FAILED = 255


def _run(command: Sequence[str], *, input: str, timeout_s: float, where: str) -> Completed:
    try:
        return subprocess.run(
            list(command),
            input=input,
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except FileNotFoundError as error:
        raise HostError(f"{command[0]}: not installed here") from error
    except OSError as error:
        raise HostError(f"{command[0]}: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise PeerError(f"{where}: {command[0]} did not end within {timeout_s:g} s") from error


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
