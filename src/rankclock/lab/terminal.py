"""Runs a program of a node in the terminal that we are in, or with our plain standard streams."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import sys
import termios
import tty
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rankclock.lab.lab import Lab
    from rankclock.lab.process import LabProcess

__all__ = ["run_here"]


def run_here(lab: Lab, node: str, argv: Sequence[str]) -> int:
    """Its exit code (128 + signal where a signal ended it, as shells say)."""
    code = _in_terminal(lab, node, argv) if _is_terminal() else _plain(lab, node, argv)
    return code if code >= 0 else 128 - code


def _is_terminal() -> bool:
    return all(os.isatty(fd) for fd in (0, 1))


def _plain(lab: Lab, node: str, argv: Sequence[str]) -> int:
    process = lab.spawn_on(node, argv, (0, 1, 2))
    try:
        return _ended(process)
    except KeyboardInterrupt:
        process.kill(signal.SIGINT)
        return _ended(process)


def _ended(process: LabProcess) -> int:
    while (code := process.poll()) is None:
        select.select([process], [], [])
    return code


def _in_terminal(lab: Lab, node: str, argv: Sequence[str]) -> int:
    """The program gets a terminal of its own, so that job control and Ctrl-C work; we carry bytes to and fro."""
    master, slave = pty.openpty()
    before = termios.tcgetattr(0)
    termios.tcsetwinsize(slave, termios.tcgetwinsize(0))
    process = lab.spawn_on(node, argv, (slave, slave, slave), terminal=True)
    os.close(slave)
    old = signal.signal(signal.SIGWINCH, lambda *_: termios.tcsetwinsize(master, termios.tcgetwinsize(0)))
    try:
        tty.setraw(0, termios.TCSADRAIN)  # what was typed ahead is kept
        _carry(master, process)
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)
        signal.signal(signal.SIGWINCH, old)
        os.close(master)
    return _ended(process)


def _carry(master: int, process: LabProcess) -> None:
    sources: list[int | LabProcess] = [0, master, process]
    while True:
        ready = select.select(sources, [], [])[0]
        if master in ready:
            data = b""
            with contextlib.suppress(OSError):  # EIO: nobody holds the other end any more
                data = os.read(master, 65536)
            if not data:
                return
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        elif process in ready:
            return
        if 0 in ready:
            data = os.read(0, 65536)
            if data:
                os.write(master, data)
            else:
                sources.remove(0)
