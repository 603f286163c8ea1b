"""Time stamp statistics by netlink: the real kernel's answers here, and a driver's counters by the kernel's header."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankclock.errors import DecodeError
from rankclock.node.stamp_statistics import stamp_statistics
from rankclock.wire.ethtool_netlink import StampStatistics, decode_family, decode_statistics, family_request


def attribute(number: int, data: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(data), number) + data + bytes(-len(data) % 4)


def answer(attributes: bytes, *, sequence: int = 2) -> bytes:
    return struct.pack("=IHHII", 20 + len(attributes), 30, 0, sequence, 0) + struct.pack("=BBxx", 26, 1) + attributes


def test_the_kernel_here_answers_and_a_driver_that_does_not_count_is_unknown_not_zero() -> None:
    fact = stamp_statistics("lo")
    assert fact.value is None
    assert fact.why


def test_an_interface_that_is_not_there_is_said() -> None:
    fact = stamp_statistics("nothere0")
    assert fact.value is None
    assert "no such device" in (fact.why or "") or "no ethtool netlink family" in (fact.why or "")


def test_the_real_kernel_numbers_the_family_that_every_kernel_has() -> None:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 16) as link:
        link.settimeout(2)
        link.send(family_request("nlctrl", sequence=9))
        assert decode_family(link.recv(65_536), sequence=9) == 0x10
        link.send(family_request("no-such-family", sequence=10))
        with pytest.raises(OSError, match="refused"):
            decode_family(link.recv(65_536), sequence=10)


def test_counters_of_32_and_64_bits_are_read_and_what_is_not_counted_is_none() -> None:
    counters = attribute(1, struct.pack("=Q", 2**40)) + attribute(2, struct.pack("=I", 7)) + attribute(99, b"abcd")
    found = decode_statistics(answer(attribute(1, b"") + attribute(6 | 0x8000, counters)), sequence=2)
    assert found == StampStatistics(tx_stamped=2**40, tx_lost=7, tx_errors=None, tx_onestep_unconfirmed=None)


def test_an_answer_without_statistics_is_none() -> None:
    assert decode_statistics(answer(attribute(5, struct.pack("=I", 0))), sequence=2) is None


@given(st.binary(max_size=80), st.booleans())
@settings(max_examples=150)
def test_any_octets_are_statistics_or_an_error_that_is_declared(data: bytes, framed: bool) -> None:
    with suppress(DecodeError, OSError):
        decode_statistics(answer(data) if framed else data, sequence=2)
    with suppress(DecodeError, OSError):
        decode_family(answer(data) if framed else data, sequence=2)
