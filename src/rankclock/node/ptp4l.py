"""Asks a running ptp4l by PTP management messages over its unix sockets, read-only socket first, hops 0.

Only questions (GET). Answers are verified by sequence and target. A question that is not answered by every port in time
leaves `complete` unset. A ptp4l in another domain is silent by design: where the expected one does not answer, all are
tried.
"""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rankclock.errors import DecodeError, PeerError
from rankclock.node.fact import why_not
from rankclock.node.kernel import raw_ns, realtime_ns
from rankclock.wire.ptp_data_sets import (
    CurrentDataSet,
    DataSet,
    DefaultDataSet,
    ParentDataSet,
    PortDataSet,
    PortIdentity,
    PortProperties,
    PortState,
    TimeProperties,
    TimeStatus,
)
from rankclock.wire.ptp_management import Action, ManagementError, ManagementMessage

__all__ = ["Conversation", "Ptp4lReading", "default_sockets", "read_ptp4l", "with_ptp4l"]

_SOCKETS = ("/var/run/ptp/ptp4lro", "/var/run/ptp4lro", "/var/run/ptp/ptp4l", "/var/run/ptp4l")
"""Read-only ones first (linuxptp 4.0 on); the folder /var/run/ptp since the versions after 4.4."""

_MAX_MESSAGE = 2048
_MAX_PORTS = 256
_ONCE: tuple[type[DataSet], ...] = (CurrentDataSet, ParentDataSet, TimeProperties, TimeStatus)
_PER_PORT: tuple[type[DataSet], ...] = (PortDataSet, PortProperties)
_AS_SDO = (0, 1)  # 1: 802.1AS

D = TypeVar("D")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ptp4lReading:
    """What one ptp4l said. `None`: it refused or did not answer. properties: empty on a read-only socket."""

    socket: str
    domain: int
    default: DefaultDataSet
    current: CurrentDataSet | None
    parent: ParentDataSet | None
    time_properties: TimeProperties | None
    time_status: TimeStatus | None
    ports: tuple[PortDataSet, ...]
    properties: tuple[PortProperties, ...]
    refused: tuple[str, ...]
    complete: bool
    at_raw_ns: int
    at_real_ns: int

    def in_state(self, *states: PortState) -> tuple[PortDataSet, ...]:
        """The ports in one of these states."""
        return tuple(port for port in self.ports if port.port_state in states)

    def interface_of(self, port: PortDataSet) -> str | None:
        """The interface of a port, where ptp4l was allowed to say."""
        for properties in self.properties:
            if properties.port_identity == port.port_identity:
                return properties.interface
        return None


def default_sockets() -> tuple[str, ...]:
    """The sockets that exist where ptp4l puts them when nothing else is said."""
    found: dict[str, str] = {}
    for path in _SOCKETS:  # the old places may be links to the new ones
        if Path(path).exists():
            found.setdefault(str(Path(path).resolve()), path)
    return tuple(found.values())


def read_ptp4l(sockets: Sequence[str] = (), *, domain: int = 0, sdo: int = 0, timeout_s: float = 0.5) -> Ptp4lReading:
    """The clock's data sets from the first socket that answers. Raises PeerError, one line, where none does."""
    return with_ptp4l(sockets, lambda talk: talk.read(domain, sdo), timeout_s=timeout_s)


def with_ptp4l(sockets: Sequence[str], hold: Callable[[Conversation], T], *, timeout_s: float) -> T:
    """What `hold` gets from the first socket that answers. Raises PeerError, one line, where none does."""
    silent = []
    for path in sockets or default_sockets():
        for own in (_abstract, _in_folder):
            try:
                with own() as link:
                    link.connect(path)
                    return hold(Conversation(link, path, timeout_s))
            except TimeoutError:
                silent.append(f"{path}: no answer within {timeout_s:g} s, in no domain")
            except OSError as error:
                silent.append(f"{path}: {why_not(error)}")
                break
    raise PeerError(f"ptp4l does not answer ({'; '.join(dict.fromkeys(silent)) or 'no socket of it exists'})")


@contextmanager
def _abstract() -> Iterator[socket.socket]:
    """A socket with a name that the kernel makes: no file, no permissions; seen in this network namespace only."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as link:
        link.bind("")
        yield link


@contextmanager
def _in_folder() -> Iterator[socket.socket]:
    """A socket with a path, for a ptp4l in another network namespace; gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="rankclock.") as folder:
        Path(folder).chmod(0o711)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as link:
            path = Path(folder, "sock")
            link.bind(str(path))
            path.chmod(0o666)  # ptp4l may run as a user of its own
            yield link


class Conversation:
    """Questions and answers over one connected socket, all before one deadline."""

    def __init__(self, link: socket.socket, path: str, timeout_s: float) -> None:
        self.link = link
        self.path = path
        self.timeout_s = timeout_s
        self.deadline = time.monotonic() + timeout_s
        self.me = PortIdentity(clock=os.urandom(8), port=os.getpid() & 0xFFFF)
        self.sequence = 0

    def read(self, domain: int, sdo: int) -> Ptp4lReading:
        """What its state is judged by. Raises TimeoutError."""
        default, domain, asked, answers = self.ask_all(domain, sdo, _ONCE, _PER_PORT)
        at_raw_ns, at_real_ns = raw_ns(), realtime_ns()
        refused = [str(tlv) for tlvs in answers.values() for tlv in tlvs if isinstance(tlv, ManagementError)]
        return Ptp4lReading(
            socket=self.path,
            domain=domain,
            default=default,
            current=_first(answers, CurrentDataSet),
            parent=_first(answers, ParentDataSet),
            time_properties=_first(answers, TimeProperties),
            time_status=_first(answers, TimeStatus),
            ports=tuple(_of(answers, PortDataSet)),
            properties=tuple(_of(answers, PortProperties)),
            refused=tuple(dict.fromkeys(refused)),
            complete=all(_done(answers[sequence], count) for sequence, (_, count) in asked.items()),
            at_raw_ns=at_raw_ns,
            at_real_ns=at_real_ns,
        )

    def ask_all(
        self, domain: int, sdo: int, once: Sequence[type[DataSet]], per_port: Sequence[type[DataSet]]
    ) -> tuple[DefaultDataSet, int, dict[int, tuple[type[DataSet], int]], dict[int, list[object]]]:
        """The default data set, the domain that answers; what was asked and what came, by sequence. Or TimeoutError."""
        found = self._default(((domain, sdo),), self.timeout_s / 2) or self._default(
            [(number, kind) for kind in _AS_SDO for number in range(256)], self.timeout_s / 2
        )
        if found is None:
            raise TimeoutError
        default, domain, sdo = found
        self.deadline = time.monotonic() + self.timeout_s
        ports = min(default.number_ports, _MAX_PORTS)
        wanted = {**dict.fromkeys(once, 1), **dict.fromkeys(per_port, ports)}
        asked = {self._ask(kind, domain, sdo): (kind, count) for kind, count in wanted.items()}
        return default, domain, asked, self._collect(asked)

    def _default(self, candidates: Iterable[tuple[int, int]], wait_s: float) -> tuple[DefaultDataSet, int, int] | None:
        """The default data set from the one domain and profile that answers."""
        self.deadline = time.monotonic() + wait_s
        asked: dict[int, tuple[int, int]] = {}
        for domain, sdo in candidates:
            asked[self._ask(DefaultDataSet, domain, sdo)] = (domain, sdo)
        with contextlib.suppress(TimeoutError):
            while True:
                message = self._receive()
                if message.sequence in asked and isinstance(message.tlv, DefaultDataSet):
                    return (message.tlv, *asked[message.sequence])
        return None

    def _ask(self, kind: type[DataSet], domain: int, sdo: int) -> int:
        self.sequence += 1
        message = ManagementMessage.get(kind, domain=domain, source=self.me, sequence=self.sequence, sdo=sdo)
        self.link.settimeout(max(self.deadline - time.monotonic(), 0.001))
        self.link.send(message.encode())
        return self.sequence

    def _receive(self) -> ManagementMessage:
        """The next answer to us. Raises TimeoutError."""
        while True:
            remaining_s = self.deadline - time.monotonic()
            if remaining_s <= 0:
                raise TimeoutError
            self.link.settimeout(remaining_s)
            data = self.link.recv(_MAX_MESSAGE)
            with contextlib.suppress(DecodeError):
                message = ManagementMessage.decode(data)
                if message.action in (Action.RESPONSE, Action.ACKNOWLEDGE) and message.target.clock == self.me.clock:
                    return message

    def _collect(self, asked: dict[int, tuple[type[DataSet], int]]) -> dict[int, list[object]]:
        """What came for each sequence, until every question has all its answers or a refusal, or the time is up."""
        answers: dict[int, list[object]] = {sequence: [] for sequence in asked}
        with contextlib.suppress(TimeoutError):
            while not all(_done(answers[sequence], count) for sequence, (_, count) in asked.items()):
                message = self._receive()
                if message.sequence in answers:
                    answers[message.sequence].append(message.tlv)
        return answers


def _done(got: list[object], count: int) -> bool:
    return len(got) >= count or any(isinstance(tlv, ManagementError) for tlv in got)


def _of(answers: dict[int, list[object]], kind: type[D]) -> list[D]:
    return [tlv for got in answers.values() for tlv in got if isinstance(tlv, kind)]


def _first(answers: dict[int, list[object]], kind: type[D]) -> D | None:
    return next(iter(_of(answers, kind)), None)
