"""The first process of a node: makes the node's namespaces, starts and reaps its processes, writes its files.

It answers requests on channels (lab/channel.py); when it ends, the kernel ends every process of the node with it.
Standard library only. Requests: network, spawn, install, folders, connect, services, signal.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
from pathlib import Path
from typing import Any

from rankclock.lab import kernel, view
from rankclock.lab.channel import Channel

__all__ = ["run_node"]

Answer = tuple[dict[str, Any], list[int]]


def run_node(channel: Channel, node: dict[str, Any], base: Path) -> None:
    """Never returns."""
    try:
        kernel.unshare(kernel.CLONE_NEWNS | kernel.CLONE_NEWUTS | kernel.CLONE_NEWIPC | kernel.CLONE_NEWNET)
        view.enter(base, node)
    except OSError as error:
        channel.send({"error": f"node {node['name']}: {error}"})
        os._exit(1)
    channel.send({"ready": True})
    _Agent(channel).serve()


class _Agent:
    def __init__(self, channel: Channel) -> None:
        self.channels = [channel]
        self.services: dict[str, int] = {}
        self.status_pipes: dict[int, int] = {}  # pid -> the pipe that its exit status goes into
        self.wake, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)

    def serve(self) -> None:
        while True:
            sources: list[int | Channel] = [self.wake, *self.channels]
            ready = select.select(sources, [], [])[0]
            for source in ready:
                if source == self.wake:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self.wake, 4096)
                    self._reap()
                elif isinstance(source, Channel) and source in self.channels:
                    self._answer(source)

    def _answer(self, channel: Channel) -> None:
        try:
            request, fds = channel.receive()
        except (EOFError, OSError):
            channel.close()
            self.channels.remove(channel)
            return
        try:
            handler = getattr(self, "_do_" + request["op"])
            answer, passed = handler(request, fds)
        except (OSError, ValueError) as error:
            answer, passed = {"error": str(error)}, []
        with contextlib.suppress(OSError):
            channel.send(answer, passed)
        for fd in (*fds, *passed):
            os.close(fd)

    def _do_connect(self, _request: dict[str, Any], fds: list[int]) -> Answer:
        import socket

        self.channels.append(Channel(socket.socket(fileno=os.dup(fds[0]))))
        return {}, []

    def _do_network(self, request: dict[str, Any], _fds: list[int]) -> Answer:
        for path, value in request["sysctl"]:
            with contextlib.suppress(FileNotFoundError):
                Path("/proc/sys", path).write_text(value)
        done = subprocess.run(
            ["ip", "-batch", "-"], input="\n".join(request["ip"]), text=True, capture_output=True, check=False
        )
        if done.returncode:
            raise OSError(f"ip: {done.stderr.strip()}")
        return {}, []

    def _do_install(self, request: dict[str, Any], fds: list[int]) -> Answer:
        with os.fdopen(os.dup(fds[0]), "rb") as file:
            file.seek(0)
            for path, size, mode in request["files"]:
                view.install(path, file.read(size), mode)
        return {}, []

    def _do_folders(self, request: dict[str, Any], _fds: list[int]) -> Answer:
        for folder in request["folders"]:
            view.make_private(Path(folder))
            Path(folder).chmod(0o750)  # chronyd makes no command socket where others may enter
        return {}, []

    def _do_spawn(self, request: dict[str, Any], fds: list[int]) -> Answer:
        error_read, error_write = os.pipe2(os.O_CLOEXEC)
        status_read, status_write = os.pipe2(os.O_CLOEXEC)
        pid = os.fork()
        if pid == 0:
            _become(request, fds, error_write)
        os.close(error_write)
        with os.fdopen(error_read, "rb") as file:
            error = file.read()
        if error:
            os.waitpid(pid, 0)
            os.close(status_read)
            os.close(status_write)
            raise OSError(error.decode())
        pidfd = os.pidfd_open(pid)
        self.status_pipes[pid] = status_write
        if request.get("service"):
            self.services[request["service"]] = pid
        return {"pid": pid}, [pidfd, status_read]

    def _do_services(self, _request: dict[str, Any], _fds: list[int]) -> Answer:
        return {"services": {name: pid in self.status_pipes for name, pid in self.services.items()}}, []

    def _do_signal(self, request: dict[str, Any], _fds: list[int]) -> Answer:
        pid = self.services.get(request["service"])
        if pid is None or pid not in self.status_pipes:
            return {"sent": False}, []
        os.kill(pid, request["number"])
        return {"sent": True}, []

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            pipe = self.status_pipes.pop(pid, None)
            if pipe is not None:
                with contextlib.suppress(OSError):
                    os.write(pipe, b"%d\n" % os.waitstatus_to_exitcode(status))
                os.close(pipe)


def _become(request: dict[str, Any], fds: list[int], error_write: int) -> None:
    """In the forked child: turns into the program asked for, or says why not. Never returns."""
    try:
        signal.set_wakeup_fd(-1)
        for handled in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
            signal.signal(handled, signal.SIG_DFL)
        os.setsid()
        if request.get("terminal"):
            import fcntl
            import termios

            fcntl.ioctl(fds[0], termios.TIOCSCTTY, 0)
        # Received descriptors may already be 0, 1 or 2 here (the first process closed its own): move them up first.
        high = [os.dup(fd) for fd in fds]
        for number, fd in enumerate(high):
            os.dup2(fd, number)
            os.close(fd)
        os.chdir(request.get("cwd") or "/")
        os.execvpe(request["argv"][0], request["argv"], request["env"])
    except BaseException as error:
        text = f"{request['argv'][0]}: {error.strerror if isinstance(error, OSError) else error}"
        os.write(error_write, text.encode())
    finally:
        os._exit(127)
