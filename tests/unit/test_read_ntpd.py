"""read_ntpd against a port that misbehaves: it ends in time, and takes nothing for an answer that is none."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from rankclock.errors import PeerError
from rankclock.node.ntpd import NtpdReading, read_ntpd
from rankclock.wire.ntp_control import SYSTEM_NAMES, ControlMessage, Opcode

SYSTEM = b"leap=0, stratum=2, rootdelay=1.000, rootdisp=2.000, refid=10.0.0.1, peer=7, offset=0.5, frequency=1.0"
PEER = b"srcadr=10.0.0.1, hpoll=6, reach=0xff, delay=0.2, offset=0.5, dispersion=1.0"
Answers = Callable[[ControlMessage], list[bytes]]


def answer(question: ControlMessage, data: bytes, *, status: int = 0x0615, **more: bool) -> ControlMessage:
    return ControlMessage(
        opcode=question.opcode,
        sequence=question.sequence,
        association=question.association,
        status=status,
        data=data,
        response=True,
        **more,
    )


def right(question: ControlMessage) -> list[bytes]:
    if question.opcode == Opcode.READ_STATUS:
        return [answer(question, b"\x00\x07\x96\x1a").encode()]
    return [answer(question, PEER if question.association else SYSTEM).encode()]


@contextmanager
def served(answers: Answers) -> Iterator[tuple[str, int]]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        link.bind(("127.0.0.1", 0))
        link.settimeout(0.1)
        over = threading.Event()

        def serve() -> None:
            while not over.is_set():
                try:
                    data, asker = link.recvfrom(4096)
                except TimeoutError:
                    continue
                for reply in answers(ControlMessage.decode(data)):
                    link.sendto(reply, asker)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield link.getsockname()
        finally:
            over.set()
            thread.join()


def read(answers: Answers, timeout_s: float = 0.3) -> NtpdReading:
    with served(answers) as address:
        began = time.monotonic()
        try:
            return read_ntpd([address], timeout_s=timeout_s)
        finally:
            assert time.monotonic() - began < timeout_s + 0.5


def test_a_right_answer_is_read() -> None:
    found = read(right)
    assert (found.system.offset_ns, found.system.root_dispersion_ns) == (-500_000, 2_000_000)
    assert found.followed is not None
    assert found.followed.variables is not None
    assert found.followed.variables.address == "10.0.0.1"


def test_garbage_cut_and_foreign_replies_before_the_answer_are_dropped() -> None:
    chance = random.Random(5)

    def noisy(question: ControlMessage) -> list[bytes]:
        (whole,) = right(question)
        foreign = answer(question, b"leap=3").encode()
        other = foreign[:2] + ((question.sequence + 1) % 65536).to_bytes(2, "big") + foreign[4:]
        return [b"", chance.randbytes(60), whole[:13], other, question.encode(), whole]

    assert read(noisy).system.leap == 0


@pytest.mark.parametrize(
    "answers",
    [
        lambda _question: [],
        lambda _question: [b"\x26"],
        lambda question: [question.encode()],  # its own question back
        lambda question: [answer(question, b"leap=0", more=True).encode()],  # and never the rest
        lambda question: [answer(question, b"", status=0x0700, error=True).encode()],
    ],
    ids=["silence", "an octet", "an echo", "half an answer", "prohibited"],
)
def test_without_an_answer_it_is_a_peer_error_in_time(answers: Answers) -> None:
    with pytest.raises(PeerError, match="ntpd does not answer"):
        read(answers)


def test_a_version_without_one_of_the_names_is_asked_for_all() -> None:
    def older(question: ControlMessage) -> list[bytes]:
        if question.data == ",".join(SYSTEM_NAMES).encode():
            return [answer(question, b"", status=0x0500, error=True).encode()]
        return right(question)

    assert read(older).system.stratum == 2


def test_peers_that_do_not_answer_leave_the_system_variables_standing() -> None:
    found = read(lambda question: right(question) if question.association == 0 else [])
    assert found.system.leap == 0
    assert [peer.variables for peer in found.peers or ()] == [None]
