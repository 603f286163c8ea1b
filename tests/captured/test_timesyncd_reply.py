"""What a real bus and timesyncd sent, replayed to the reader, against what busctl printed; and a bus that is ill."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rankclock.errors import PeerError
from rankclock.node.timesyncd import TimesyncdReading, read_timesyncd

CAPTURED = json.loads((Path(__file__).parent / "wire/timesyncd.json").read_text(encoding="utf-8"))
LET_IN, HELLO, ACQUIRED, PROPERTIES = (bytes.fromhex(text) for text in CAPTURED["received"])
SHOWN = {name: value["data"] for name, value in CAPTURED["busctl"].items()}


def error_reply(name: bytes, serial: int) -> bytes:
    """An error in answer to call `serial`, by the specification."""
    fields = b"\x04\x01s\x00" + struct.pack("<I", len(name)) + name + b"\x00"
    fields += bytes(-len(fields) % 8) + b"\x05\x01u\x00" + struct.pack("<I", serial)
    return struct.pack("<BBBBIII", ord("l"), 3, 1, 1, 0, 3, len(fields)) + fields + bytes(-len(fields) % 8)


UNKNOWN_SERVICE = error_reply(b"org.freedesktop.DBus.Error.ServiceUnknown", 2)


@contextmanager
def bus(folder: Path, *said: bytes, piece: int = 65_536) -> Iterator[str]:
    """A bus that answers each of what comes in with the next of `said`, `piece` octets at a time."""
    path = str(folder / "bus")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen(1)

        def serve() -> None:
            link, _ = listener.accept()
            link.settimeout(2)
            with link, contextlib.suppress(OSError):
                for answer in said:
                    asked = link.recv(4096)
                    if asked == b"BEGIN\r\n":  # the call comes by itself
                        link.recv(4096)
                    for at in range(0, len(answer), piece):
                        link.sendall(answer[at : at + piece])
                        time.sleep(0.0001 if piece < 100 else 0)
                link.recv(4096)
                link.recv(4096)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield path
        thread.join(5)


def read(folder: Path, *said: bytes, piece: int = 65_536) -> TimesyncdReading:
    with bus(folder, *said, piece=piece) as path:
        began = time.monotonic()
        try:
            return read_timesyncd(path, timeout_s=0.5)
        finally:
            assert time.monotonic() - began < 1


def test_what_was_captured_says_where_it_comes_from() -> None:
    assert "systemd-timesyncd 252" in CAPTURED["provenance"]["package"]


@pytest.mark.parametrize("piece", [65_536, 7])
def test_the_properties_are_what_busctl_prints_in_whatever_pieces_they_come(tmp_path: Path, piece: int) -> None:
    found = read(tmp_path, LET_IN, HELLO + ACQUIRED, PROPERTIES, piece=piece)
    assert found.server == ".".join(map(str, SHOWN["ServerAddress"][1]))
    assert found.poll_ns == SHOWN["PollIntervalUSec"] * 1000
    exchange, shown = found.exchange, SHOWN["NTPMessage"]
    assert exchange is not None
    assert (exchange.leap, exchange.stratum) == (shown[0], shown[3])
    assert [exchange.root_delay_ns, exchange.root_dispersion_ns] == [1000 * shown[5], 1000 * shown[6]]
    instants = [exchange.sent_ns, exchange.received_ns, exchange.replied_ns, exchange.came_ns]
    assert instants == [1000 * number for number in shown[8:12]]
    assert (exchange.spike, exchange.packets) == (shown[12], shown[13])
    assert exchange.offset_ns == pytest.approx(-3_000_000, abs=100_000), "the captured clock was 3 ms behind"


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ((), r"within 0\.5 s"),
        ((b"REJECTED EXTERNAL\r\n",), "does not let us in"),
        ((b"x" * 5000,), "no answer to AUTH"),
        ((LET_IN, b"garbage that is no message"), "not the beginning of one"),
        ((LET_IN, HELLO, PROPERTIES[:200]), r"within 0\.5 s"),
        ((LET_IN, HELLO, UNKNOWN_SERVICE), "ServiceUnknown"),
        (
            (LET_IN, HELLO, PROPERTIES.replace(b"(uuuuittayttttbtt)", b"(uuuuittayttttb)tt")),
            "systemd-timesyncd on the bus",
        ),
    ],
    ids=["silence", "rejected", "no line", "garbage", "cut", "not there", "another signature"],
)
def test_a_bus_that_is_ill_is_a_peer_error_in_time(tmp_path: Path, said: tuple[bytes, ...], why: str) -> None:
    with pytest.raises(PeerError, match=why):
        read(tmp_path, *said)


def test_no_bus_is_said(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match="no such file or directory"):
        read_timesyncd(str(tmp_path / "none"))
