"""The lab as its user holds it: start it, run things in its nodes, know the truth about its clocks, end it.

Every process of a lab runs without CAP_SYS_TIME; the lab refuses to start where that cannot be assured.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Protocol, Self

import rankclock
from rankclock.cluster.model import NodeKind
from rankclock.errors import HostError, UserError
from rankclock.lab.build import cable_path, library_path
from rankclock.lab.channel import Channel, channel_pair
from rankclock.lab.clock import VirtualClock
from rankclock.lab.daemons import find_daemon
from rankclock.lab.link import Link
from rankclock.lab.process import LabProcess
from rankclock.lab.registry import connect, make_folder, one_of, save_state
from rankclock.lab.scenario import Scenario
from rankclock.lab.topology import ports_of, spec_of
from rankclock.lab.view import LAB_RUN

__all__ = ["Lab", "ServiceLike"]

START_TIMEOUT_S = 60
REQUEST_TIMEOUT_S = 30
PATH = os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin"
_START = "import sys; sys.path.insert(0, sys.argv.pop(1)); from rankclock.lab.init import main; main(sys.argv[1:])"


class ServiceLike(Protocol):
    """What `start_service` needs of a service."""

    @property
    def name(self) -> str: ...
    @property
    def argv(self) -> tuple[str, ...]: ...


@dataclass(slots=True)
class _NodeSide:
    """The harness's end of a node."""

    channel: Channel
    clock: VirtualClock
    phc: VirtualClock | None
    lock: threading.Lock


class Lab:
    """A running lab. Use `Lab.up`."""

    def __init__(self, scenario: Scenario, control: Channel, outer: subprocess.Popen[bytes] | None) -> None:
        self.scenario = scenario
        self.services: dict[tuple[str, str], LabProcess] = {}
        self.started_host_ns = time.monotonic_ns()
        self._control = control
        self._control_lock = threading.RLock()
        self._ports = ports_of(scenario)
        self._outer = outer
        self._library = library_path()
        self._nodes: dict[str, _NodeSide] = {}
        self._spawned: list[LabProcess] = []

    # ---- life ----

    @classmethod
    def up(cls, scenario: Scenario, tied: bool = True, *, name: str | None = None) -> Self:
        """Starts a lab. A tied one dies with this process; one that is not is kept under `name` (the cluster's if
        None) and found again by `attach`. Use it as a context manager. Raises HostError, UserError.
        """
        library, cable = library_path(), cable_path()
        if shutil.which("ip", path=PATH) is None:
            raise HostError("the lab needs `ip` for its network: install iproute2")
        folder, listener = (None, None) if tied else make_folder(name or scenario.cluster.name)
        ours, theirs = channel_pair()
        outer = _launch(theirs, listener, folder)
        theirs.close()
        lab = cls(scenario, ours, outer if tied else None)
        try:
            with library.open("rb") as clocks, cable.open("rb") as cable_file:
                in_main_thread = threading.current_thread() is threading.main_thread()
                spec = spec_of(scenario, tied=tied, die_with_parent=tied and in_main_thread)
                ours.send(spec, [clocks.fileno(), cable_file.fileno()])
            _await_ready(ours)
            if folder:
                dumped = scenario.model_dump(mode="json", by_alias=True)
                save_state(folder, {"pid": outer.pid, "started_at_s": time.time(), "scenario": dumped})
        except BaseException:
            lab.down()
            outer.kill()
            outer.wait()
            if folder:
                shutil.rmtree(folder, ignore_errors=True)
            raise
        return lab

    @classmethod
    def attach(cls, name: str | None = None) -> Self:
        """A lab that runs in the background (the only one, if no name is given). `down` only lets go of it."""
        kept = one_of(name)
        return cls(Scenario.model_validate(kept.state["scenario"]), connect(kept.folder), None)

    def end(self) -> None:
        """Ends a lab that runs in the background."""
        with contextlib.suppress(HostError):
            self._control_request({"op": "down"})
        self.down()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    def down(self) -> None:
        """Ends the lab and everything in it (lets go of one in the background). Calling it again does nothing."""
        for side in self._nodes.values():
            side.channel.close()
            side.clock.close()
            if side.phc:
                side.phc.close()
        self._nodes.clear()
        self._control.close()
        if self._outer:
            try:
                self._outer.wait(5)
            except subprocess.TimeoutExpired:
                self._outer.kill()
                self._outer.wait()
            self._outer = None
        for process in self._spawned:
            process.close()
        self._spawned.clear()

    def alive(self) -> bool:
        """Whether the lab still runs."""
        try:
            self._control_request({"op": "alive"})
        except HostError:
            return False
        return True

    # ---- nodes ----

    def _node(self, name: str) -> _NodeSide:
        with self._control_lock:
            if name not in self._nodes:
                self._nodes[name] = self._connect(name)
            return self._nodes[name]

    def _connect(self, name: str) -> _NodeSide:
        if all(node.name != name for node in self.scenario.cluster.nodes):
            raise UserError(f"the lab has no node {name!r}")
        _, fds = self._called(self._control, {"op": "node", "node": name}, ())
        channel = Channel(socket.socket(fileno=fds[0]))
        channel.sock.settimeout(REQUEST_TIMEOUT_S)
        clocks = [
            VirtualClock(fd, self._library, name=f"{name}{suffix}")
            for fd, suffix in zip(fds[1:], ("", " PHC"), strict=False)
        ]
        for fd in fds[1:]:
            os.close(fd)
        return _NodeSide(channel, clocks[0], clocks[1] if len(clocks) > 1 else None, threading.Lock())

    def _called(
        self, channel: Channel, message: dict[str, Any], fds: Sequence[int]
    ) -> tuple[dict[str, Any], list[int]]:
        try:
            answer, received = channel.call(message, fds)
        except (EOFError, OSError) as error:
            raise HostError("the lab is gone: its first process has ended") from error
        if "error" in answer:
            raise HostError(answer["error"])
        return answer, received

    def _control_request(self, message: dict[str, Any]) -> dict[str, Any]:
        with self._control_lock:
            return self._called(self._control, message, ())[0]

    def _request(self, node: str, message: dict[str, Any], fds: Sequence[int]) -> tuple[dict[str, Any], list[int]]:
        side = self._node(node)
        with side.lock:
            return self._called(side.channel, message, fds)

    # ---- running things ----

    def run(
        self,
        node: str,
        argv: Sequence[str],
        *,
        input: str | bytes | None = None,
        timeout_s: float,
        env: Mapping[str, str] | None = None,
        clock: bool = True,
        cwd: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program in a node to its end; `clock=False`: on the host's clock. HostError after `timeout_s`."""
        text = input.encode() if isinstance(input, str) else input or b""
        with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
            stdin.write(text)
            stdin.seek(0)
            files = (stdin.fileno(), stdout.fileno(), stderr.fileno())
            process = self._start(node, argv, files, env=env, clock=clock, cwd=cwd, log=None)
            try:
                code = process.wait(timeout_s)
            except BaseException:
                process.kill()
                process.close()
                raise
            return subprocess.CompletedProcess(list(argv), code, _text(stdout), _text(stderr))

    def spawn(
        self,
        node: str,
        argv: Sequence[str],
        *,
        log: Path | None = None,
        env: Mapping[str, str] | None = None,
        clock: bool = True,
        cwd: str | None = None,
        service: str | None = None,
    ) -> LabProcess:
        """Starts a program in a node; its output goes to `log`, or to memory (`LabProcess.log_text`) without one."""
        output = os.memfd_create(f"{node}-log", os.MFD_CLOEXEC) if log is None else _opened(log)
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        kept: Path | int = output if log is None else log
        try:
            files = (null, output, output)
            process = self._start(node, argv, files, env=env, clock=clock, cwd=cwd, log=kept, service=service)
        except BaseException:
            kept = output  # nobody will read it
            os.close(output)
            raise
        finally:
            os.close(null)
            if kept != output:
                os.close(output)
        self._spawned.append(process)
        return process

    def spawn_on(
        self, node: str, argv: Sequence[str], files: tuple[int, int, int], *, terminal: bool = False
    ) -> LabProcess:
        """Starts a program in a node on descriptors of ours; `terminal`: the first becomes its controlling terminal."""
        return self._start(node, argv, files, env=None, clock=True, cwd=None, log=None, terminal=terminal)

    def _start(
        self,
        node: str,
        argv: Sequence[str],
        files: tuple[int, int, int],
        *,
        env: Mapping[str, str] | None,
        clock: bool,
        cwd: str | None,
        log: Path | int | None,
        service: str | None = None,
        terminal: bool = False,
    ) -> LabProcess:
        environment = self.environment(node, env, clock=clock)
        message: dict[str, Any] = {"op": "spawn", "argv": list(argv), "env": environment, "cwd": cwd}
        message |= {"service": service, "terminal": terminal}
        _, (pidfd, status_fd) = self._request(node, message, files)
        return LabProcess(name=Path(argv[0]).name, node=node, pidfd=pidfd, status_fd=status_fd, log=log)

    def environment(self, node: str, more: Mapping[str, str] | None = None, *, clock: bool = True) -> dict[str, str]:
        """The environment of a node's processes: ours, with the node's clock, and `more`."""
        env = {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "XDG_RUNTIME_DIR")}
        env["PATH"] = PATH
        env.update(HOSTNAME=node, RANKCLOCK_LAB_NODE=node)
        if clock:
            env.update(LD_PRELOAD=f"{LAB_RUN}/libvclock.so", RANKCLOCK_VCLOCK=f"{LAB_RUN}/clock")
            if self.scenario.clocks_of(node).phc is not None:
                env["RANKCLOCK_VPHC"] = f"{LAB_RUN}/phc"
        return {**env, **(more or {})}

    def install(self, node: str, files: Mapping[str, bytes], *, mode: int = 0o644) -> None:
        """Writes files of a node at their real paths (absolute); nothing of the host's is touched."""
        with tempfile.TemporaryFile() as body:
            for data in files.values():
                body.write(data)
            body.flush()
            listed = [(str(path), len(data), mode) for path, data in files.items()]
            self._request(node, {"op": "install", "files": listed}, [body.fileno()])

    def start_service(self, node: str, service: ServiceLike, *, log: Path | None = None) -> LabProcess:
        """Starts a daemon as its plan says; the program is found by its base name (`find_daemon`)."""
        argv = [str(find_daemon(Path(service.argv[0]).name)), *service.argv[1:]]
        directories = list(getattr(service, "directories", ()))
        if directories:
            self._request(node, {"op": "folders", "folders": directories}, ())
        process = self.spawn(node, argv, log=log, service=service.name)
        self.services[node, service.name] = process
        return process

    def running_services(self, node: str) -> dict[str, bool]:
        """Services that were started in a node, by anyone: name -> whether it still runs."""
        return dict(self._request(node, {"op": "services"}, ())[0]["services"])

    def signal_service(self, node: str, service: str, number: int) -> None:
        """Sends a signal to a service, whoever started it. Raises UserError where it does not run."""
        if not self._request(node, {"op": "signal", "service": service, "number": int(number)}, ())[0]["sent"]:
            running = ", ".join(name for name, runs in self.running_services(node).items() if runs)
            raise UserError(f"service {service!r} does not run on {node}: running there: {running or 'none'}")

    def stop_service(self, node: str, service: str, timeout_s: float = 5) -> None:
        """Ends a service that runs (SIGTERM, SIGKILL after `timeout_s`); does nothing where it does not."""
        deadline = time.monotonic() + timeout_s
        number = signal.SIGTERM
        while self.running_services(node).get(service):
            with contextlib.suppress(UserError):
                self.signal_service(node, service, number)
            if time.monotonic() > deadline:
                number = signal.SIGKILL
            time.sleep(0.02)

    def link(self, node: str, nic: str = "eth0") -> Link:
        """The path between an interface and its segment. Raises UserError where there is none of that name."""
        cables = [port for port in self._ports if port.cable]
        for port in self._ports:
            if (port.node, port.nic) == (node, nic):
                return Link(self._control_request, port, cables.index(port) if port.cable else None)
        raise UserError(f"the lab's node {node!r} has no interface {nic!r}")

    # ---- truth ----

    @property
    def reference(self) -> str:
        """The node whose clock counts as the truth: the first of kind `source`, else the first of all."""
        nodes = self.scenario.cluster.nodes
        return next((node.name for node in nodes if node.kind is NodeKind.SOURCE), nodes[0].name)

    def clock(self, node: str) -> VirtualClock:
        """The node's system clock."""
        return self._node(node).clock

    def phc(self, node: str) -> VirtualClock:
        """The node's PTP hardware clock. Raises UserError where it has none."""
        phc = self._node(node).phc
        if phc is None:
            raise UserError(f"node {node!r} has no PTP hardware clock in this scenario (clocks.{node}.phc is null)")
        return phc

    def true_offset_ns(self, node: str, reference: str, at_raw_ns: int | None = None) -> int:
        """REALTIME(node) - REALTIME(reference) at the instant when the node's CLOCK_MONOTONIC_RAW read `at_raw_ns`
        (now if None). Exact to 1 ns, for past instants too.
        """
        clock, other = self.clock(node), self.clock(reference)
        host_ns = time.monotonic_ns() if at_raw_ns is None else clock.host_at_raw(at_raw_ns)
        return clock.at_host(host_ns).real_ns - other.at_host(host_ns).real_ns


def _launch(control: Channel, listener: socket.socket | None, folder: Path | None) -> subprocess.Popen[bytes]:
    source = str(Path(rankclock.__file__).parents[1])
    argv = [sys.executable, "-I", "-S", "-c", _START, source, str(control.fileno())]
    fds = [control.fileno()]
    if listener and folder:
        argv += [str(listener.fileno()), str(folder)]
        fds.append(listener.fileno())
    process = subprocess.Popen(
        argv,
        pass_fds=fds,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL if folder else None,
        start_new_session=True,  # Ctrl-C is for us: we end the lab in order, or our end ends it
        env={"PATH": PATH},
    )
    if listener:
        listener.close()
    return process


def _await_ready(control: Channel) -> None:
    control.sock.settimeout(START_TIMEOUT_S)
    try:
        answer, _ = control.receive()
    except TimeoutError:
        raise HostError(f"the lab has not started within {START_TIMEOUT_S} s") from None
    except (EOFError, OSError) as error:
        raise HostError(f"the lab's first process ended while it started: {error}") from error
    control.sock.settimeout(REQUEST_TIMEOUT_S)
    if "error" in answer:
        raise HostError(f"the lab could not start: {answer['error']}")


def _opened(log: Path) -> int:
    try:
        return os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise UserError(f"{log}: cannot write a log there: {error.strerror}") from error


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", errors="replace")
