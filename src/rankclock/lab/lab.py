"""The lab as its user holds it: start it, run things in its nodes, know the truth about its clocks, end it.

Every process of a lab runs without CAP_SYS_TIME; the lab refuses to start where that cannot be assured.
"""

from __future__ import annotations

import os
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

from pydantic import ValidationError

import rankclock
from rankclock.errors import HostError, UserError
from rankclock.lab.build import cable_path, library_path
from rankclock.lab.channel import Channel, channel_pair
from rankclock.lab.clock import VirtualClock
from rankclock.lab.daemons import find_daemon
from rankclock.lab.process import LabProcess
from rankclock.lab.scenario import LinkSettings, Scenario
from rankclock.lab.topology import Port, ports_of, spec_of, ways_of
from rankclock.lab.view import LAB_RUN

__all__ = ["Lab", "Link", "ServiceLike"]

START_TIMEOUT_S = 60
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
        self._links = {
            (link.node, link.nic): LinkSettings(**link.model_dump(exclude={"node", "nic"})) for link in scenario.links
        }
        self._outer = outer
        self._library = library_path()
        self._nodes: dict[str, _NodeSide] = {}
        self._kept_fds: list[int] = []

    # ---- life ----

    @classmethod
    def up(cls, scenario: Scenario, tied: bool = True) -> Self:
        """Starts a lab; a tied one dies with this process. Use it as a context manager. Raises HostError."""
        library = library_path()
        ours, theirs = channel_pair()
        source = str(Path(rankclock.__file__).parents[1])
        outer = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _START, source, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={"PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin"},
        )
        theirs.close()
        lab = cls(scenario, ours, outer)
        try:
            with library.open("rb") as clocks, cable_path().open("rb") as cable:
                ours.send(spec_of(scenario, tied=tied), [clocks.fileno(), cable.fileno()])
            _await_ready(ours)
        except BaseException:
            lab.down()
            raise
        return lab

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    def down(self) -> None:
        """Ends the lab and everything in it. Calling it again does nothing."""
        for side in self._nodes.values():
            side.channel.close()
            side.clock.close()
            if side.phc:
                side.phc.close()
        self._nodes.clear()
        for fd in self._kept_fds:
            os.close(fd)
        self._kept_fds.clear()
        self._control.close()
        if self._outer:
            try:
                self._outer.wait(5)
            except subprocess.TimeoutExpired:
                self._outer.kill()
                self._outer.wait()
            self._outer = None

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

    def _control_request(self, message: dict[str, Any]) -> None:
        with self._control_lock:
            self._called(self._control, message, ())

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
            except HostError:
                process.kill()
                raise
            finally:
                process.poll()
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
    ) -> LabProcess:
        """Starts a program in a node; its output goes to `log`, or to memory (`LabProcess.log_text`) without one."""
        if log is not None:
            with log.open("ab") as file, open(os.devnull, "rb") as null:  # noqa: PTH123
                files = (null.fileno(), file.fileno(), file.fileno())
                return self._start(node, argv, files, env=env, clock=clock, cwd=cwd, log=log)
        memory = os.memfd_create(f"{node}-log", os.MFD_CLOEXEC)
        self._kept_fds.append(memory)
        with open(os.devnull, "rb") as null:  # noqa: PTH123
            return self._start(node, argv, (null.fileno(), memory, memory), env=env, clock=clock, cwd=cwd, log=memory)

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
    ) -> LabProcess:
        message = {"op": "spawn", "argv": list(argv), "env": self.environment(node, env, clock=clock), "cwd": cwd}
        _, (pidfd, status_fd) = self._request(node, message, files)
        return LabProcess(name=Path(argv[0]).name, node=node, pidfd=pidfd, status_fd=status_fd, log=log)

    def environment(self, node: str, more: Mapping[str, str] | None = None, *, clock: bool = True) -> dict[str, str]:
        """The environment of a node's processes: ours, with the node's clock, and `more`."""
        env = {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "XDG_RUNTIME_DIR")}
        env["PATH"] = env.get("PATH", "") + ":/usr/sbin:/sbin"
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
        process = self.spawn(node, argv, log=log)
        self.services[node, service.name] = process
        return process

    def link(self, node: str, nic: str = "eth0") -> Link:
        """The path between an interface and its segment. Raises UserError where there is none of that name."""
        cables = [port for port in self._ports if port.cable]
        for port in self._ports:
            if (port.node, port.nic) == (node, nic):
                return Link(self, port, cables.index(port) if port.cable else None)
        raise UserError(f"the lab's node {node!r} has no interface {nic!r}")

    # ---- truth ----

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


class Link:
    """The path between one interface and its segment, changeable while the lab runs."""

    def __init__(self, lab: Lab, port: Port, cable: int | None) -> None:
        self._lab = lab
        self._port = port
        self._cable = cable

    @property
    def settings(self) -> LinkSettings:
        """What the path does to packets now."""
        return self._lab._links.get((self._port.node, self._port.nic), LinkSettings())

    def set(self, **changes: Any) -> None:
        """Changes what is named (delay_ns, asymmetry_ns, jitter_ns, loss); the rest stays. Raises UserError."""
        if self._cable is None:
            raise UserError(
                f"the path of {self._port.node} {self._port.nic} is a plain one: name it under `links:` in the "
                "scenario to have it go through the cable"
            )
        try:
            settings = LinkSettings.model_validate({**self.settings.model_dump(), **changes})
        except ValidationError as error:
            first = error.errors()[0]
            raise UserError(f"link of {self._port.node} {self._port.nic}: {first['loc']}: {first['msg']}") from error
        self._lab._control_request({"op": "cable", "index": self._cable, "ways": ways_of(settings)})
        self._lab._links[self._port.node, self._port.nic] = settings

    def up(self, up: bool = True) -> None:
        """Plugs the interface in, or out: the node's interface loses its carrier. Works for plain paths too."""
        end = self._port.inner if self._port.cable else self._port.port
        self._lab._control_request({"op": "ip", "lines": [f"link set {end} {'up' if up else 'down'}"]})


def _await_ready(control: Channel) -> None:
    control.sock.settimeout(START_TIMEOUT_S)
    try:
        answer, _ = control.receive()
    except TimeoutError:
        raise HostError(f"the lab has not started within {START_TIMEOUT_S} s") from None
    except (EOFError, OSError) as error:
        raise HostError(f"the lab's first process ended while it started: {error}") from error
    control.sock.settimeout(None)
    if "error" in answer:
        raise HostError(f"the lab could not start: {answer['error']}")


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", errors="replace")
