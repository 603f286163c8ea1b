"""A process inside a node, seen from the harness: its pid here, its log, its end."""

from __future__ import annotations

import os
import select
import signal
import time
from pathlib import Path

from rankclock.errors import HostError

__all__ = ["LabProcess"]


class LabProcess:
    """Started by `Lab.spawn`. `pid` is the process id as this side sees it (for /proc); signals go by pidfd."""

    def __init__(self, *, name: str, node: str, pidfd: int, status_fd: int, log: Path | int | None) -> None:
        """`log`: a file, or the descriptor of one in memory, which becomes ours."""
        self.name = name
        self.node = node
        self.pid = _pid_of(pidfd)
        self.returncode: int | None = None
        self._pidfd = pidfd
        self._status_fd = status_fd
        self._log: Path | int | str = "" if log is None else log

    def __repr__(self) -> str:
        return f"<LabProcess {self.name} on {self.node}, pid {self.pid}, returncode {self.returncode}>"

    def fileno(self) -> int:
        """Becomes readable when the process has ended (for select)."""
        return self._status_fd

    def poll(self) -> int | None:
        """The exit code if it has ended (negative: the signal that ended it), else None."""
        if self.returncode is None and select.select([self._status_fd], [], [], 0)[0]:
            text = os.read(self._status_fd, 64)
            # Nobody wrote a status: the node's first process was killed, and the kernel this one with it.
            self.returncode = int(text) if text else -signal.SIGKILL
            os.close(self._status_fd)
            os.close(self._pidfd)
        return self.returncode

    def close(self) -> None:
        """Lets go of a process that may still run (its exit code then counts as killed); its log stays readable."""
        if self.poll() is None:
            self.returncode = -signal.SIGKILL
            os.close(self._status_fd)
            os.close(self._pidfd)
        if isinstance(self._log, int):
            fd, self._log = self._log, self.log_text()
            os.close(fd)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Sends a signal to the process (not to its children); nothing happens if it has ended."""
        if self.poll() is None:
            try:
                signal.pidfd_send_signal(self._pidfd, number)
            except ProcessLookupError:
                return

    def wait(self, timeout_s: float) -> int:
        """Its exit code, waited for. Raises HostError when it has not ended in time."""
        deadline = time.monotonic() + timeout_s
        while self.poll() is None:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise HostError(f"{self.name} on {self.node} has not ended within {timeout_s} s")
            select.select([self._status_fd], [], [], left_s)
        assert self.returncode is not None
        return self.returncode

    def stop(self, timeout_s: float = 5) -> int:
        """SIGTERM, then SIGKILL where that does not end it; gives the exit code."""
        self.kill(signal.SIGTERM)
        try:
            return self.wait(timeout_s)
        except HostError:
            self.kill(signal.SIGKILL)
            return self.wait(timeout_s)

    def log_text(self) -> str:
        """What it has written to stdout and stderr so far."""
        if isinstance(self._log, str):
            return self._log
        if isinstance(self._log, Path):
            return self._log.read_text(encoding="utf-8", errors="replace")
        return os.pread(self._log, os.fstat(self._log).st_size, 0).decode("utf-8", errors="replace")


def _pid_of(pidfd: int) -> int:
    """The process id in our own PID namespace; 0 where it has ended already."""
    with Path(f"/proc/self/fdinfo/{pidfd}").open(encoding="ascii") as info:
        for line in info:
            if line.startswith("Pid:"):
                return max(0, int(line.split()[1]))
    return 0
