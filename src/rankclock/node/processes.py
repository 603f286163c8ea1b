"""Which processes run here, as /proc shows them, and how much of the machine that is.

Refuses to call what it cannot see absent: in a container, or where /proc hides others' processes, "not found" means
nothing, and `blind_spot` says so.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rankclock.node.fact import read_text, why_not
from rankclock.node.kernel import has_private_clock

__all__ = ["INITIAL_PID_NAMESPACE", "Process", "ProcessTable", "read_processes"]

INITIAL_PID_NAMESPACE = "pid:[4026531836]"
"""PROC_PID_INIT_INO of the kernel (include/linux/proc_ns.h): the same on every machine."""

_COMM_LENGTH = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process. state: the letter of /proc/PID/stat ('T' is stopped by a signal)."""

    pid: int
    parent: int
    comm: str
    state: str
    argv: tuple[str, ...]

    @property
    def stopped(self) -> bool:
        """Stopped by a signal or a debugger: it does nothing, though it is there."""
        return self.state in ("T", "t")

    def is_program(self, name: str) -> bool:
        """Whether it runs the program of that name (the kernel keeps 15 letters of it)."""
        if self.argv and Path(self.argv[0]).name == name:
            return True
        return self.comm == name[:_COMM_LENGTH] and bool(self.argv)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessTable:
    """What runs here. blind_spot: why processes that act on this clock may be missing, None where none can be."""

    processes: tuple[Process, ...]
    blind_spot: str | None

    def running(self, name: str) -> tuple[Process, ...]:
        """The processes of a program, without the helpers that it forked of itself (chronyd's for NTS)."""
        found = [process for process in self.processes if process.is_program(name)]
        pids = {process.pid for process in found}
        return tuple(process for process in found if process.parent not in pids)


def read_processes(proc: str = "/proc") -> ProcessTable:
    """All processes that this one may see."""
    found = []
    try:
        numbers = [entry.name for entry in os.scandir(proc) if entry.name.isdigit()]
    except OSError as error:
        return ProcessTable(processes=(), blind_spot=f"{proc} cannot be read: {why_not(error)}")
    for number in sorted(numbers, key=int):
        process = _read(proc, number)
        if process:
            found.append(process)
    return ProcessTable(processes=tuple(found), blind_spot=_blind_spot(proc, found))


def _read(proc: str, number: str) -> Process | None:
    try:
        stat = read_text(f"{proc}/{number}/stat")
        command = read_text(f"{proc}/{number}/cmdline")
    except OSError:  # ended meanwhile, or hidden
        return None
    # The name stands in parentheses and may hold any character, a parenthesis too.
    front, _, rest = stat.rpartition(")")
    fields = rest.split()
    argv = tuple(command.rstrip("\0").split("\0")) if command else ()
    return Process(pid=int(number), comm=front.partition("(")[2], state=fields[0], parent=int(fields[1]), argv=argv)


def _blind_spot(proc: str, found: Iterable[Process]) -> str | None:
    if all(process.pid != 1 for process in found):
        return f"{proc} hides the processes of other users (hidepid)"
    if has_private_clock():
        return None  # a lab's node is a PID namespace of its own, and so is its clock
    try:
        own = os.readlink(f"{proc}/self/ns/pid")  # noqa: PTH115
    except OSError as error:
        return f"{proc}/self/ns/pid cannot be read: {why_not(error)}"
    if own != INITIAL_PID_NAMESPACE:
        return "this is a container (a PID namespace of its own): the machine's processes cannot be seen from here"
    return None
