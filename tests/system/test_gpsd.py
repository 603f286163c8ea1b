"""A real gpsd with a receiver on a pseudo terminal: what is read of it with a fix, without one, and when it is hung."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
import tty
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rankclock.errors import PeerError
from rankclock.node.gpsd import GpsdReading, gps_fact, read_gpsd
from rankclock.node.processes import ProcessTable, read_processes

pytestmark = pytest.mark.lab

VIEW = (
    "GPGSV,2,1,07,04,40,083,46,05,17,308,41,09,07,344,39,12,22,228,45",
    "GPGSV,2,2,07,24,40,083,46,25,17,308,41,29,07,344,39",
)


def sentence(text: str) -> bytes:
    check = 0
    for letter in text:
        check ^= ord(letter)
    return f"${text}*{check:02X}\r\n".encode()


class Receiver:
    """Speaks NMEA 0183 on a pseudo terminal, five times a second, with or without a fix."""

    def __init__(self) -> None:
        self.ours, theirs = os.openpty()
        tty.setraw(theirs)
        self.path = os.ttyname(theirs)
        self.theirs = theirs
        Path(self.path).chmod(0o666)  # gpsd may run as a user of its own
        self.fix = True
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._speak, daemon=True)
        self._thread.start()

    def _speak(self) -> None:
        while not self._ended.wait(0.2):
            now = time.gmtime()
            clock, date = time.strftime("%H%M%S.00", now), time.strftime("%d%m%y", now)
            if self.fix:
                said = [
                    f"GPRMC,{clock},A,4807.038,N,01131.000,E,000.0,000.0,{date},,,A",
                    f"GPGGA,{clock},4807.038,N,01131.000,E,1,05,0.9,545.4,M,46.9,M,,",
                    "GPGSA,A,3,04,05,09,12,24,,,,,,,,1.5,0.9,1.2",
                ]
            else:
                said = [
                    f"GPRMC,{clock},V,,,,,,,{date},,,N",
                    f"GPGGA,{clock},,,,,0,00,,,M,,M,,",
                    "GPGSA,A,1,,,,,,,,,,,,,,,",
                ]
            with contextlib.suppress(OSError):
                os.write(self.ours, b"".join(sentence(one) for one in (*said, *VIEW)))

    def end(self) -> None:
        self._ended.set()
        self._thread.join()
        os.close(self.ours)
        os.close(self.theirs)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    one = Receiver()
    yield one
    one.end()


@pytest.fixture(scope="module")
def gpsd(
    daemon: Callable[[str], Path], receiver: Receiver
) -> Iterator[tuple[tuple[str, int], subprocess.Popen[bytes]]]:
    """In namespaces of its own: its time segments of shared memory are nobody else's, and it may set no clock."""
    program, unshare = daemon("gpsd"), shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-r", "-i", "true"], check=False, capture_output=True).returncode:
        pytest.skip("this machine forbids namespaces")
    port = free_port()
    argv = [unshare, "-r", "-i", str(program), "-N", "-n", "-b", "-S", str(port), receiver.path]
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    yield ("127.0.0.1", port), process
    process.kill()
    process.wait()


def reads(address: tuple[str, int], wanted: Callable[[GpsdReading], object]) -> GpsdReading:
    deadline = time.monotonic() + 10
    while True:
        try:
            found = read_gpsd(address)
            if wanted(found):
                return found
        except PeerError:
            found = None
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def test_a_fix_its_satellites_and_the_time_of_its_sentences_are_read(
    gpsd: tuple[tuple[str, int], subprocess.Popen[bytes]], receiver: Receiver
) -> None:
    found = reads(gpsd[0], lambda one: one.receivers and one.receivers[0].mode == 3)
    assert found.release == "3.22"
    (one,) = found.receivers
    assert (one.device, one.used, one.seen) == (receiver.path, 5, 7)
    sentence_ns = one.reports["TPV"].time_ns
    assert sentence_ns is not None
    assert abs(sentence_ns - time.time_ns()) < 5_000_000_000


def test_the_facts_find_a_running_gpsd_by_its_command_line(
    gpsd: tuple[tuple[str, int], subprocess.Popen[bytes]], receiver: Receiver
) -> None:
    reads(gpsd[0], lambda one: one.receivers and one.receivers[0].mode == 3)
    running = tuple(process for process in read_processes().processes if process.pid == gpsd[1].pid)
    fact = gps_fact(ProcessTable(processes=running, blind_spot=None))
    expected = {"device": receiver.path, "mode": 3, "satellites_used": 5, "satellites_seen": 7}
    assert fact.value == {"receivers": [expected]}
    assert gps_fact(ProcessTable(processes=(), blind_spot=None)).value == {"receivers": []}
    assert gps_fact(ProcessTable(processes=(), blind_spot="hidden")).value is None


def test_a_receiver_without_a_fix_has_none_and_uses_no_satellite(
    gpsd: tuple[tuple[str, int], subprocess.Popen[bytes]], receiver: Receiver
) -> None:
    receiver.fix = False
    try:
        found = reads(gpsd[0], lambda one: one.receivers and one.receivers[0].mode == 1)
        assert found.receivers[0].used == 0
    finally:
        receiver.fix = True


def test_a_stopped_gpsd_holds_nobody_up(gpsd: tuple[tuple[str, int], subprocess.Popen[bytes]]) -> None:
    gpsd[1].send_signal(signal.SIGSTOP)
    try:
        began = time.monotonic()
        with pytest.raises(PeerError, match="no VERSION within"):
            read_gpsd(gpsd[0], timeout_s=0.5)
        assert time.monotonic() - began < 1
    finally:
        gpsd[1].send_signal(signal.SIGCONT)


def test_nobody_there_is_said_at_once() -> None:
    began = time.monotonic()
    with pytest.raises(PeerError, match="connection refused"):
        read_gpsd(("127.0.0.1", free_port()))
    assert time.monotonic() - began < 0.5


VERSION = b'{"class":"VERSION","release":"3.99"}\r\n'
SKY = b'{"class":"SKY","device":"/dev/a","uSat":4,"nSat":9}\r\n'


@pytest.mark.parametrize(
    ("said", "receivers"),
    [
        (VERSION, {}),
        (VERSION + b"\xff\x00garbage\r\n[1,2]\r\n{}\r\n" + SKY, {"/dev/a": (4, 9)}),
        (VERSION + b'{"class":"TPV","device":7,"mode":"x"}\r\n{"class":"DEVICES","devices":[1,{"path":2}]}\r\n', {}),
        (VERSION + SKY + b'{"class":"SKY","device":"/dev/a","hdop":1.0}\r\n', {"/dev/a": (4, 9)}),
        (VERSION + b"".join(b'{"class":"TPV","device":"/dev/%d","mode":3}\r\n' % i for i in range(50)), 8),
        (VERSION + b"x" * 300_000, {}),
        (VERSION + b'{"class":"SKY","device":"/dev/a","uSat":4,"nSat', {}),
    ],
)
def test_whatever_is_said_is_a_reading_in_time(said: bytes, receivers: object) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            link, _ = server.accept()
            with link, contextlib.suppress(OSError):
                link.sendall(said)
                link.recv(100)
                time.sleep(0.5)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        began = time.monotonic()
        found = read_gpsd(server.getsockname(), timeout_s=0.3)
        assert time.monotonic() - began < 1
        thread.join()
    assert found.release == "3.99"
    if isinstance(receivers, int):
        assert len(found.receivers) == receivers
    else:
        assert {one.device: (one.used, one.seen) for one in found.receivers} == receivers
