"""All ranks of a job meet over TCP at rank 0, without torch: rounds of values, and a random key for the job.

Decides nothing about clocks. Promises that no wait lasts longer than its deadline, and that all ranks end alike: a rank
that dies, fails or stays silent ends the meeting for all with one message and one exit code. Refuses ranks of another
job, of another world size, twice the same rank, and with a key file everybody who has not its bytes.

    with meet(place, timeout_s=60.0, shared=read_key_file(os.environ)) as meeting:
        values = meeting.all_gather({"port": 40000}, timeout_s=10.0)
"""

from __future__ import annotations

import os
import resource
import secrets
import selectors
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rankclock.errors import DecodeError, ExitCode, HostError, InternalError, PeerError, RankclockError, UserError
from rankclock.timebase import NS_PER_MS, NS_PER_S
from rankclock.training.channel import Role, derive_key
from rankclock.training.connection import (
    Connection,
    ConnectionLost,
    Unreachable,
    connect,
    listen,
    plain_address,
    resolve,
)
from rankclock.training.environment import Place
from rankclock.training.guest import Guest, hello
from rankclock.training.meeting import Close, Meeting, Send
from rankclock.training.roster import End, Member

__all__ = ["Decide", "Rendezvous", "meet", "read_key_file"]

GRACE_S = 5.0
"""How much longer a guest waits than rank 0: rank 0's reason is the better one, and must arrive first."""

_CONNECT_NS = 3 * NS_PER_S
_GREETING_NS = 2 * NS_PER_S
_FAREWELL_NS = 2 * NS_PER_S
_PAUSES_S = (0.05, 0.1, 0.2, 0.4, 0.8)
"""Between two tries to reach rank 0; the last one repeats: thousands of ranks may be waiting."""

_MIN_KEY_BYTES, _MAX_KEY_BYTES = 16, 4096

Decide = Callable[[list[Any]], Sequence[Any]]
"""What rank 0 makes of all ranks' values, in rank order: a reply for each rank, in rank order."""


def read_key_file(env: Mapping[str, str]) -> bytes | None:
    """The shared key of RANKCLOCK_KEY_FILE, white space at its ends left out; None where none is set."""
    name = env.get("RANKCLOCK_KEY_FILE")
    if not name:
        return None
    try:
        with Path(name).open("rb") as file:
            key = file.read(_MAX_KEY_BYTES + 1).strip()
    except OSError as error:
        raise UserError(f"RANKCLOCK_KEY_FILE {name}: {error.strerror}") from None
    if not _MIN_KEY_BYTES <= len(key) <= _MAX_KEY_BYTES:
        raise UserError(
            f"RANKCLOCK_KEY_FILE {name} holds {len(key)} bytes: expected {_MIN_KEY_BYTES} to {_MAX_KEY_BYTES}, "
            f"the same on every rank (openssl rand -hex 32 > {name})"
        )
    return key


def meet(
    place: Place,
    *,
    timeout_s: float,
    shared: bytes | None = None,
    hosting: bool | None = None,
    listener: socket.socket | None = None,
) -> Rendezvous:
    """Meet all other ranks of the job; returns once all are there.

    `listener`: rank 0's open socket, in place of one at the meeting point. `hosting`: whether this process is rank 0,
    to be given where `place` has no rank: ranks are then given out once all came, in the order of their host names.
    Raises PeerError where ranks are missing after `timeout_s`, UserError where rank 0 refuses this one, HostError where
    rank 0 cannot listen.
    """
    host = socket.gethostname()
    if place.world_size == 1 or (place.rank == 0 if hosting is None else hosting):
        return _Hosting(place, host=host, timeout_s=timeout_s, shared=shared, listener=listener)
    return _Visiting(place, host=host, timeout_s=timeout_s, shared=shared)


class Rendezvous(ABC):
    """All ranks together. Every call is made by all ranks in the same order. Use it as a context manager: leaving it
    with an error ends the meeting for the other ranks with that error."""

    rank: int
    world_size: int
    job: str
    key: bytes
    """32 bytes that only the ranks of this job have. Without a key file it protects against who cannot listen in."""

    @abstractmethod
    def exchange(self, value: Any, decide: Decide, *, timeout_s: float) -> Any:
        """Give `value`, get rank 0's reply to this rank. `decide` is called at rank 0 only. `timeout_s` is how long
        rank 0 waits for the slowest rank from its own call on. Raises what ended the meeting."""

    @abstractmethod
    def idle(self, for_s: float) -> None:
        """Let time pass, and notice at once when the meeting ends meanwhile. Raises what ended it."""

    def all_gather(self, value: Any, *, timeout_s: float) -> list[Any]:
        """All ranks' values, in rank order."""
        gathered: list[Any] = self.exchange(value, lambda values: [values] * self.world_size, timeout_s=timeout_s)
        return gathered

    def broadcast(self, value: Any, *, timeout_s: float) -> Any:
        """Rank 0's value; what the others give is ignored."""
        mine = value if self.rank == 0 else None
        return self.exchange(mine, lambda values: [values[0]] * self.world_size, timeout_s=timeout_s)

    def gather(self, value: Any, *, timeout_s: float) -> list[Any] | None:
        """All ranks' values in rank order at rank 0, None at the others."""
        gathered: list[Any] = []

        def keep(values: list[Any]) -> list[None]:
            gathered.extend(values)
            return [None] * self.world_size

        self.exchange(value, keep, timeout_s=timeout_s)
        return gathered if self.rank == 0 else None

    @property
    @abstractmethod
    def roster(self) -> tuple[Member, ...]:
        """The ranks, in order, with the addresses under which they reach one another. At rank 0 only."""

    @abstractmethod
    def abort(self, code: ExitCode, message: str) -> None:
        """End the meeting for all ranks."""

    @abstractmethod
    def close(self) -> None:
        """Take leave; safe to call twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, RankclockError):
            self.abort(error.exit_code, str(error))
        elif isinstance(error, Exception):
            self.abort(ExitCode.OUR_FAULT, f"{type(error).__name__}: {error}")
        elif error is not None:
            self.abort(ExitCode.CANNOT_TELL, "was interrupted")
        self.close()


class _Hosting(Rendezvous):
    """Rank 0: drives the `Meeting` machine over a listening socket."""

    def __init__(
        self, place: Place, *, host: str, timeout_s: float, shared: bytes | None, listener: socket.socket | None = None
    ) -> None:
        salt = secrets.token_bytes(32)
        self.rank, self.world_size, self.job = 0, place.world_size, place.job
        self.key = derive_key(shared, b"probes", salt)
        self._shared = shared
        self._connections: dict[int, Connection] = {}
        self._next = 0
        self._meeting = Meeting(
            place,
            host=host,
            pid=os.getpid(),
            salt=salt,
            until_ns=time.monotonic_ns() + round(timeout_s * NS_PER_S),
            timeout_s=timeout_s,
        )
        self._selector = selectors.DefaultSelector()
        self._listener = listener
        if place.world_size == 1:
            return
        try:
            _allow_open_files(place.world_size)
            self._listener = self._listener or listen(place.meeting)
            self._listener.setblocking(False)
            self._selector.register(self._listener, selectors.EVENT_READ, None)
            self._run(lambda: self._meeting.roster is not None)
            self._flush()
        except BaseException:
            self.close()
            raise

    @property
    def roster(self) -> tuple[Member, ...]:
        assert self._meeting.roster is not None
        return self._meeting.roster

    def exchange(self, value: Any, decide: Decide, *, timeout_s: float) -> Any:
        until_ns = time.monotonic_ns() + round(timeout_s * NS_PER_S)
        self._do(self._meeting.begin_round(value, until_ns=until_ns, timeout_s=timeout_s))
        self._run(lambda: self._meeting.collected is not None)
        values = self._meeting.collected
        assert values is not None
        replies = decide(values)
        self._do(self._meeting.reply(replies))
        self._flush()
        return replies[0]

    def idle(self, for_s: float) -> None:
        until_ns = time.monotonic_ns() + round(for_s * NS_PER_S)
        self._run(lambda: time.monotonic_ns() >= until_ns, until_ns)

    def abort(self, code: ExitCode, message: str) -> None:
        rank0 = "" if self._meeting.ended else "rank 0: "
        self._do(self._meeting.fail(code, f"{rank0}{message}"))

    def close(self) -> None:
        if self._listener is not None:
            self._flush()
            until_ns = time.monotonic_ns() + _FAREWELL_NS
            # A rank that still reads must not lose its last message to our reset: wait for it to close first.
            while not self._meeting.all_gone and time.monotonic_ns() < until_ns:
                self._poll(until_ns)
            self._listener.close()
        for connection in self._connections.values():
            connection.sock.close()
        self._connections.clear()
        self._listener = None
        self._selector.close()

    def _run(self, finished: Callable[[], bool], until_ns: int | None = None) -> None:
        """Serve the connections until it is finished. Raises what ended the meeting."""
        while not finished():
            if self._meeting.ended is not None:
                raise _error(self._meeting.ended)
            self._poll(until_ns)

    def _flush(self) -> None:
        until_ns = time.monotonic_ns() + _FAREWELL_NS
        while any(c.wants_write for c in self._connections.values()) and time.monotonic_ns() < until_ns:
            self._poll(until_ns)

    def _poll(self, until_ns: int | None) -> None:
        """Wait for the next thing to happen, at most until a deadline, and handle it."""
        deadlines = [ns for ns in (until_ns, self._meeting.next_deadline_ns) if ns is not None]
        left_s = (min(deadlines) - time.monotonic_ns()) / NS_PER_S if deadlines else None
        for key, ready in self._selector.select(None if left_s is None else max(left_s, 0)):
            if key.data is None:
                self._accept()
            else:
                self._serve(key.data, ready)
        self._do(self._meeting.handle_time(time.monotonic_ns()))

    def _watch(self, number: int) -> None:
        """Ask the selector for what this connection waits for now; end it where it waits for nothing more."""
        connection = self._connections.get(number)
        if connection is None:
            return
        if connection.closing and not connection.wants_write:
            self._drop(number)
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.wants_write else 0)
        if self._selector.get_key(connection.sock).events != events:
            self._selector.modify(connection.sock, events, number)

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            sock, peer = self._listener.accept()
            own = sock.getsockname()
        except OSError:
            return  # it was gone before we looked
        number, self._next = self._next, self._next + 1
        self._connections[number] = Connection(sock, Role.SERVER, self._shared)
        self._selector.register(sock, selectors.EVENT_READ, number)
        self._watch(number)
        self._do(
            self._meeting.handle_connected(
                number,
                address=plain_address(peer[0]),
                own_address=plain_address(own[0]),
                now_ns=time.monotonic_ns(),
            )
        )

    def _serve(self, number: int, ready: int) -> None:
        connection = self._connections.get(number)
        if connection is None:
            return
        try:
            if ready & selectors.EVENT_WRITE:
                connection.write()
            if ready & selectors.EVENT_READ:
                for message in connection.read():
                    self._do(self._meeting.handle_message(number, message, time.monotonic_ns()))
        except ConnectionLost:
            self._drop(number)
            self._do(self._meeting.handle_closed(number))
        except DecodeError as error:
            self._do(self._meeting.handle_broken(number, str(error)))
        self._watch(number)

    def _do(self, actions: Sequence[Send | Close]) -> None:
        for action in actions:
            connection = self._connections.get(action.connection)
            if connection is None:
                continue
            if isinstance(action, Send):
                connection.send(action.message)
            else:
                connection.closing = True
            self._watch(action.connection)

    def _drop(self, number: int) -> None:
        connection = self._connections.pop(number, None)
        if connection is not None:
            self._selector.unregister(connection.sock)
            connection.sock.close()


class _Visiting(Rendezvous):
    """Every other rank: one connection to rank 0."""

    def __init__(self, place: Place, *, host: str, timeout_s: float, shared: bytes | None) -> None:
        self.world_size, self.job = place.world_size, place.job
        self._place, self._shared = place, shared
        self._guest = Guest(place)
        self._hello = hello(place, host=host, pid=os.getpid())
        self._connection = self._join(timeout_s)
        try:
            wait_s = (self._guest.joined_wait_ms or 0) * NS_PER_MS / NS_PER_S
            self._wait(lambda: self._guest.rank is not None, wait_s)
        except BaseException:
            self.close()
            raise
        assert self._guest.rank is not None
        self.rank = self._guest.rank
        self.key = derive_key(shared, b"probes", self._guest.salt)

    @property
    def roster(self) -> tuple[Member, ...]:
        raise InternalError("the roster is known at rank 0 only")

    def exchange(self, value: Any, decide: Decide, *, timeout_s: float) -> Any:
        self._connection.send(self._guest.value_message(value))
        self._wait(lambda: self._guest.has_reply, timeout_s)
        return self._guest.take_reply()

    def idle(self, for_s: float) -> None:
        until_ns = time.monotonic_ns() + round(for_s * NS_PER_S)
        while time.monotonic_ns() < until_ns:
            self._receive(until_ns)

    def abort(self, code: ExitCode, message: str) -> None:
        if self._guest.ended is None:
            self._connection.send({"type": "fail", "code": int(code), "message": message[:1000]})

    def close(self) -> None:
        if self._connection.sock.fileno() >= 0:
            self._connection.send({"type": "bye"})
            self._connection.finish(time.monotonic_ns() + _FAREWELL_NS)

    def _wait(self, finished: Callable[[], bool], timeout_s: float) -> None:
        """Wait for rank 0. Raises what ended the meeting."""
        until_ns = time.monotonic_ns() + round((timeout_s + GRACE_S) * NS_PER_S)
        while not finished():
            if not self._receive(until_ns):
                raise PeerError(f"rank 0 at {self._place.meeting} did not answer within {timeout_s + GRACE_S:g} s")

    def _receive(self, until_ns: int) -> bool:
        """Handle what rank 0 says next; False when time is over. Raises what ended the meeting."""
        where = f"rank 0 at {self._place.meeting}"
        try:
            messages = self._connection.wait(until_ns)
            for message in messages:
                self._guest.handle_message(message)
        except ConnectionLost:
            raise PeerError(f"{where} left before the end: was it killed? Look at its own output") from None
        except DecodeError as error:
            raise PeerError(f"{where} sent what is no message: {error}") from None
        if self._guest.ended is not None:
            raise _error(self._guest.ended)
        return bool(messages)

    def _join(self, timeout_s: float) -> Connection:
        """Try every port and address of the meeting point until rank 0 takes us in. Raises when time is over."""
        until_ns = time.monotonic_ns() + round(timeout_s * NS_PER_S)
        pauses = iter(_PAUSES_S)
        pause_s = 0.0
        while True:
            reasons: dict[str, None] = {}
            for port in self._place.meeting.ports:
                try:
                    return self._try_port(port, until_ns)
                except Unreachable as error:
                    reasons[str(error)] = None
            pause_s = next(pauses, pause_s)
            if time.monotonic_ns() + round(pause_s * NS_PER_S) >= until_ns:
                break
            time.sleep(pause_s)
        raise PeerError(
            f"rank 0 could not be reached at {self._place.meeting} within {timeout_s:g} s ({'; '.join(reasons)}): "
            "is it started, is this its address, does the firewall let the port through?"
        )

    def _try_port(self, port: int, until_ns: int) -> Connection:
        why = ""
        for address in resolve(self._place.meeting.host, port, until_ns):
            try:
                sock = connect(address, min(until_ns, time.monotonic_ns() + _CONNECT_NS))
                return self._introduce(Connection(sock, Role.CLIENT, self._shared), until_ns)
            except Unreachable as error:
                why = str(error)
        raise Unreachable(f"port {port}: {why}")

    def _introduce(self, connection: Connection, until_ns: int) -> Connection:
        """Say hello and wait for the answer. Raises Unreachable where this is not our rank 0, UserError where it is,
        but refuses us."""
        try:
            if not connection.wait_greeted(min(until_ns, time.monotonic_ns() + _GREETING_NS)):
                raise Unreachable("what listens there says nothing: is it rankclock?")  # noqa: TRY301
            connection.send(self._hello)
            # Rank 0 may be busy starting: it answers before its own deadline or not at all.
            for message in connection.wait(until_ns):
                self._guest.handle_message(message)
        except ConnectionLost as error:
            connection.sock.close()
            raise Unreachable(str(error)) from None
        except DecodeError as error:
            connection.sock.close()
            if not connection.channel.greeted:
                raise Unreachable(f"what listens there is not rankclock: {error}") from None
            raise UserError(f"rank 0 at {self._place.meeting} cannot be understood: {error}") from None
        except BaseException:
            connection.sock.close()
            raise
        if self._guest.joined_wait_ms is not None:
            return connection
        connection.sock.close()
        refused, self._guest.refused = self._guest.refused, None
        if refused is None:
            raise Unreachable("rank 0 did not answer")
        why = f"rank 0 at {self._place.meeting} refuses this rank: {refused.message}"
        if len(self._place.meeting.ports) > 1:
            raise Unreachable(why)  # another job may have the first port of the row, and ours the next
        raise _error(End(code=refused.code, message=why))


def _error(end: End) -> RankclockError:
    """The error whose exit code says how the meeting ended."""
    kinds: dict[ExitCode, type[RankclockError]] = {
        ExitCode.BAD_INPUT: UserError,
        ExitCode.HOST_LACKS: HostError,
        ExitCode.OUR_FAULT: InternalError,
    }
    return kinds.get(end.code, PeerError)(end.message)


def _allow_open_files(world_size: int) -> None:
    """Raise the soft limit of open files to what a connection for each rank needs. Raises HostError."""
    needed = world_size + 128
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= needed or soft == resource.RLIM_INFINITY:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise HostError(f"rank 0 may open {hard} files, and {world_size} ranks need {needed}: raise `ulimit -n`")
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
