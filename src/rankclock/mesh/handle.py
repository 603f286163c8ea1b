"""A prober in a process of its own, and the handle that a rank holds: the GIL of a training process never disturbs it.

    with Prober.start(node="rank0", bind="0.0.0.0:0") as prober:
        mine = {"node": "rank0", "port": prober.port, "clock_id": prober.clock_id}   # exchange with the other ranks
        prober.connect(peers={"rank1": ("10.80.1.12", 40000)}, key=key)
        report = prober.measure(for_s=2.0)            # NodeReport, .to_json() for gathering

The child answers its peers' probes from `connect` until `close`; it ends when its parent ends, however that happens.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rankclock.errors import DecodeError, HostError, RankclockError, UserError
from rankclock.mesh.report import NodeReport
from rankclock.wire.probe import MIN_KEY_BYTES

__all__ = ["Prober"]

ANSWER_S = 10.0
"""The child answers within milliseconds; a machine that needs longer than this cannot measure anything."""

END_S = 2.0


class Prober:
    """A running prober process. `start` returns when its UDP port is open.

    node, host, port: who and where it is. clock_id: identity of this node's clock; ranks that share it need one prober
    among them. stamps: 'kernel' or 'user', who stamps the datagrams here.
    """

    def __init__(self, child: subprocess.Popen[bytes], *, node: str) -> None:
        self._child = child
        self._held = b""
        self._connected = False
        hello = self._answer()
        self.node = node
        self.host = str(hello["host"])
        self.port = int(hello["port"])
        self.clock_id = str(hello["clock_id"])
        self.stamps = str(hello["stamps"])

    @classmethod
    def start(cls, *, node: str, bind: str = "0.0.0.0:0", log: Path | None = None, user_stamps: bool = False) -> Self:
        """Start the process and open its port. `bind` is ADDRESS:PORT ([::]:0 for IPv6), port 0 for any.

        log: where it appends what it notices (a step, a lost peer), nowhere without. Raises HostError where the port
        cannot be opened or the process cannot be started, UserError for a bad `bind`.
        """
        command = [sys.executable, "-m", "rankclock.mesh.prober", "--control", "--node", node, "--bind", bind]
        if user_stamps:
            command.append("--user-stamps")
        with contextlib.ExitStack() as stack:
            errors: Any = subprocess.DEVNULL
            if log is not None:
                try:
                    errors = stack.enter_context(log.open("ab"))
                except OSError as error:
                    raise HostError(f"the prober's log {log} cannot be written: {error.strerror}") from error
            try:
                child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
            except OSError as error:
                raise HostError(f"the prober process cannot be started: {error}") from error
        try:
            return cls(child, node=node)
        except BaseException:
            _end(child)
            raise

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._child.poll() is None

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._child.pid

    def connect(
        self, *, peers: Mapping[str, tuple[str, int]], key: bytes, timescale: Mapping[str, Any] | None = None
    ) -> None:
        """Begin to answer and to probe. `peers`: node name to (numeric address, port); may be empty (answer only).

        timescale: follow cluster time and publish it (`rankclock.mesh.prober` says what it holds); only measure without
        it.

        Names must be those that the peers were started with: they are part of what is authenticated. The key has 16
        bytes or more. May be called again: with the same key, peers that stay keep what was measured of them.
        Raises UserError, HostError.
        """
        if len(key) < MIN_KEY_BYTES:
            raise UserError(f"a probe key has {MIN_KEY_BYTES} bytes or more, this one has {len(key)}")
        for name, (host, port) in peers.items():
            _check_address(name, host, port)
        command = {"peers": {name: list(address) for name, address in peers.items()}, "key": key.hex()}
        self._ask(command if timescale is None else {**command, "timescale": dict(timescale)})
        self._connected = True

    def measure(self, *, for_s: float) -> NodeReport:
        """Let it run for `for_s` seconds, then say what is known. Raises HostError where the process died."""
        time.sleep(for_s)
        return self.report()

    def report(self) -> NodeReport:
        """What is known now. Raises HostError where the process died."""
        if not self._connected:
            raise UserError("the prober has no peers and no key yet: call connect first")
        try:
            return NodeReport.from_json(self._ask({"report": True}))
        except DecodeError as error:
            raise HostError(f"the prober process answered nonsense: {error}") from error

    def close(self) -> None:
        """End the process; safe to call twice."""
        _end(self._child)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, command: dict[str, Any]) -> dict[str, Any]:
        if self._child.stdin is None or self._child.stdin.closed:
            raise UserError("the prober was closed")
        try:
            self._child.stdin.write(json.dumps(command).encode() + b"\n")
            self._child.stdin.flush()
        except OSError as error:
            raise self._died() from error
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        """The child's next line. Raises what the child says went wrong, or HostError where it says nothing."""
        pipe = self._child.stdout
        if pipe is None or pipe.closed:
            raise UserError("the prober was closed")
        until = time.monotonic() + ANSWER_S
        while b"\n" not in self._held:
            if not select.select([pipe], [], [], max(until - time.monotonic(), 0))[0]:
                raise HostError(
                    f"the prober process did not answer within {ANSWER_S:.0f} s: is this machine overloaded?"
                )
            data = os.read(pipe.fileno(), 1 << 16)
            if not data:
                raise self._died()
            self._held += data
        line, _, self._held = self._held.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise _error(answer)
        return answer

    def _died(self) -> HostError:
        try:
            code: int | str = self._child.wait(END_S)
        except subprocess.TimeoutExpired:
            code = "none yet"
        return HostError(f"the prober process ended, exit code {code}: start it with a log to see why")


def _error(answer: dict[str, Any]) -> RankclockError:
    kind = UserError if answer.get("kind") == "UserError" else HostError
    return kind(str(answer["error"]))


def _check_address(name: str, host: str, port: int) -> None:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError as error:
        raise UserError(f"the address of peer {name} is numeric, such as 10.80.1.12, found {host!r}") from error
    if not 0 < port < 65536:
        raise UserError(f"the port of peer {name} is 1 to 65535, found {port}")


def _end(child: subprocess.Popen[bytes]) -> None:
    """End of input ends it; if not, it is killed."""
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    try:
        child.wait(END_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
