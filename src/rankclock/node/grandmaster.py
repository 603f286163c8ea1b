"""What a running ptp4l would announce as grandmaster: read it, and set it, over its read-write socket.

The only place that changes anything in ptp4l. Hops are 0: the message never leaves the machine. What was set is read
back; ptp4l forgets it when it restarts.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

from rankclock.errors import DecodeError, PeerError
from rankclock.node.fact import why_not
from rankclock.wire.ptp_data_sets import (
    DataSet,
    DefaultDataSet,
    GrandmasterSettings,
    PortIdentity,
    PortProperties,
    Timestamping,
)
from rankclock.wire.ptp_management import ANY_PORT, Action, ManagementError, ManagementMessage

__all__ = ["Grandmaster", "read_write_socket"]

_READ_WRITE = ("/var/run/ptp/ptp4l", "/var/run/ptp4l")
_MAX_MESSAGE = 2048


def read_write_socket() -> str:
    """Where ptp4l takes settings when nothing else is said: the first place that exists, else the older one."""
    return next((path for path in _READ_WRITE if Path(path).exists()), _READ_WRITE[-1])


class Grandmaster:
    """One conversation at a time with the ptp4l at a socket. Every method raises PeerError, one line, for silence."""

    def __init__(self, path: str, *, domain: int, timeout_s: float = 0.5) -> None:
        self._path = path
        self._domain = domain
        self._timeout_s = timeout_s
        self._sequence = 0
        self._me = PortIdentity(clock=os.urandom(8), port=os.getpid() & 0xFFFF)

    def stamps_in_hardware(self) -> bool:
        """Whether its ports stamp in hardware: only then it keeps the PTP time scale."""
        answers = self._call(PortProperties)
        kinds = {item.timestamping for item in answers if isinstance(item, PortProperties)}
        if not kinds:
            raise PeerError(f"{self._path}: ptp4l does not tell how its ports stamp")
        return Timestamping.SOFTWARE not in kinds

    def settings(self) -> GrandmasterSettings:
        """What it would announce now."""
        return self._one(self._call(GrandmasterSettings))

    def set(self, settings: GrandmasterSettings) -> None:
        """Announce this from now on. Raises PeerError where ptp4l refuses, or keeps something else."""
        self._call(GrandmasterSettings, value=settings)
        kept = self.settings()
        if kept != settings:
            raise PeerError(f"{self._path}: ptp4l keeps {kept} instead of {settings}")

    def _one(self, answers: list[object]) -> GrandmasterSettings:
        for item in answers:
            if isinstance(item, GrandmasterSettings):
                return item
        raise PeerError(f"{self._path}: ptp4l refuses: {answers[0] if answers else 'no answer'}")

    def _call(self, kind: type[DataSet], value: DataSet | None = None) -> list[object]:
        deadline = time.monotonic() + self._timeout_s
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as link:
                link.bind("")
                link.settimeout(self._timeout_s)
                link.connect(self._path)
                ports = self._ask(link, DefaultDataSet, None, deadline)
                count = max((item.number_ports for item in ports if isinstance(item, DefaultDataSet)), default=1)
                wanted = count if kind is PortProperties else 1
                return self._ask(link, kind, value, deadline, wanted=wanted)
        except TimeoutError:
            raise PeerError(
                f"{self._path}: ptp4l does not answer in domain {self._domain} within {self._timeout_s:g} s"
            ) from None
        except OSError as error:
            raise PeerError(f"{self._path}: ptp4l cannot be asked: {why_not(error)}") from None

    def _ask(
        self, link: socket.socket, kind: type[DataSet], value: DataSet | None, deadline: float, *, wanted: int = 1
    ) -> list[object]:
        self._sequence = self._sequence + 1 & 0xFFFF
        asked = ManagementMessage.get(kind, domain=self._domain, source=self._me, sequence=self._sequence)
        if value is not None:
            asked = ManagementMessage(
                domain=self._domain,
                source=self._me,
                sequence=self._sequence,
                action=Action.SET,
                tlv=value,
                target=ANY_PORT,
            )
        link.send(asked.encode())
        answers: list[object] = []
        while len(answers) < wanted:
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                raise TimeoutError
            link.settimeout(remaining_s)
            try:
                message = ManagementMessage.decode(link.recv(_MAX_MESSAGE))
            except DecodeError:  # nothing that ptp4l writes: the answer may still come
                continue
            if message.sequence == self._sequence and message.target.clock == self._me.clock:
                if isinstance(message.tlv, ManagementError):
                    raise PeerError(f"{self._path}: ptp4l refuses: {message.tlv}")
                answers.append(message.tlv)
        return answers
