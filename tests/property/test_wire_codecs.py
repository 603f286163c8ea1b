"""Decoders take any octets: they give a value that encodes to the same octets, or raise DecodeError, nothing else."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankclock.errors import DecodeError
from rankclock.wire import chrony, ntp
from rankclock.wire.layout import Record
from rankclock.wire.ptp_data_sets import (
    DATA_SETS,
    ClockQuality,
    PortIdentity,
    PortProperties,
    PortServiceStats,
    PortStats,
    UnicastMaster,
    UnicastMasterTable,
    interval_ns,
)
from rankclock.wire.ptp_management import ManagementError, ManagementMessage, UnknownTlv

U64 = st.integers(0, 2**64 - 1)
CENTURY_NS = 100 * 365 * 86_400 * 10**9

# ---- NTP ----


@given(st.integers(-10 * CENTURY_NS, 10 * CENTURY_NS), st.integers(-CENTURY_NS // 2, CENTURY_NS // 2))
def test_an_instant_survives_an_ntp_timestamp_in_any_era(unix_ns: int, apart_ns: int) -> None:
    assert ntp.unix_ns_from_ntp(ntp.ntp_from_unix_ns(unix_ns), near_unix_ns=unix_ns + apart_ns) == unix_ns


@given(U64, st.integers(-10 * CENTURY_NS, 10 * CENTURY_NS))
def test_the_era_of_an_ntp_timestamp_is_the_nearest(timestamp: int, near_ns: int) -> None:
    unix_ns = ntp.unix_ns_from_ntp(timestamp, near_unix_ns=near_ns)
    assert abs(unix_ns - near_ns) <= 2**31 * 10**9 + 10**9
    lost = (ntp.ntp_from_unix_ns(unix_ns) - timestamp) % 2**64
    assert min(lost, 2**64 - lost) <= 2  # 2^-32 s are 0.23 ns: rounding to whole ns costs up to 0.5 ns


@given(st.binary(max_size=200))
@settings(max_examples=300)
def test_any_octets_are_an_ntp_packet_that_encodes_back_or_a_decode_error(data: bytes) -> None:
    with suppress(DecodeError):
        assert ntp.NtpPacket.decode(data).encode() == data


_EXTENSIONS = st.builds(
    ntp.ExtensionField,
    kind=st.integers(0, 0xFFFF),
    body=st.integers(6, 20).flatmap(lambda words: st.binary(min_size=4 * words, max_size=4 * words)),
)


@given(
    st.builds(
        ntp.NtpPacket,
        leap=st.integers(0, 3),
        version=st.just(4),
        mode=st.sampled_from(ntp.NtpMode),
        stratum=st.integers(0, 255),
        poll=st.integers(-128, 127),
        precision=st.integers(-128, 127),
        root_delay=st.integers(0, 2**32 - 1),
        root_dispersion=st.integers(0, 2**32 - 1),
        reference_id=st.binary(min_size=4, max_size=4),
        reference_timestamp=U64,
        origin_timestamp=U64,
        receive_timestamp=U64,
        transmit_timestamp=U64,
        extensions=st.lists(_EXTENSIONS, max_size=3).map(tuple),
        mac=st.sampled_from((b"", bytes(4), b"k" * 20, b"k" * 24)),
    )
)
def test_an_ntp_packet_with_extension_fields_and_mac_survives_the_wire(packet: ntp.NtpPacket) -> None:
    assert ntp.NtpPacket.decode(packet.encode()) == packet


# ---- chrony ----


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_chrony_float_keeps_24_bits(value: float) -> None:
    again = chrony.float_from_wire(chrony.float_to_wire(value))
    largest, smallest = math.ldexp(2**24 - 1, 63 - 25), math.ldexp(1, -64 - 25)
    if abs(value) >= largest:
        assert again == math.copysign(largest, value)
    else:
        assert abs(again - value) <= max(abs(value) * 2**-23, smallest)


@given(st.integers(0, 2**32 - 1))
def test_every_chrony_float_on_the_wire_is_a_number_that_encodes_to_its_equal(word: int) -> None:
    value = chrony.float_from_wire(word)
    assert chrony.float_from_wire(chrony.float_to_wire(value)) == value


@pytest.mark.parametrize("command", chrony.COMMANDS, ids=lambda command: command.name)
@given(data=st.binary(max_size=220), sequence=st.integers(0, 2**32 - 1))
@settings(max_examples=40)
def test_any_octets_are_a_chrony_reply_or_a_decode_error(command: chrony.Command, data: bytes, sequence: int) -> None:
    with suppress(DecodeError):
        chrony.decode_reply(command, data, sequence=sequence)
    head = chrony.encode_reply(command, None, sequence=sequence)[:20]
    for number in (*command.replies, 99):
        with suppress(DecodeError):
            forged = head[:6] + number.to_bytes(2, "big") + bytes(8) + head[16:] + bytes(8) + data
            chrony.decode_reply(command, forged, sequence=sequence)


def _values_of(record: type[Record]) -> st.SearchStrategy[Record]:
    """Records whose every octet is drawn, so that every field takes any value it has on the wire."""
    size = record.layout().size

    def decoded(data: bytes) -> Record | None:
        try:
            return record.from_wire(data)
        except DecodeError:  # a timespec with a second's worth of ns
            return None

    return st.binary(min_size=size, max_size=size).map(decoded).filter(lambda value: value is not None)  # type: ignore[return-value]


@pytest.mark.parametrize("command", chrony.COMMANDS, ids=lambda command: command.name)
@given(data=st.data(), sequence=st.integers(0, 2**32 - 1))
@settings(max_examples=40)
def test_a_chrony_report_survives_the_wire(command: chrony.Command, data: Any, sequence: int) -> None:
    for report in command.replies.values():
        value = data.draw(_values_of(report))
        wire = chrony.encode_reply(command, value, sequence=sequence)
        again = chrony.decode_reply(command, wire, sequence=sequence)
        assert again.to_wire() == value.to_wire()
        assert len(wire) <= command.request_octets, "chronyd would refuse the request as too short"
        for name in report.layout().names:
            kept = getattr(value, name)
            assert getattr(again, name) == kept


@given(st.sampled_from(chrony.COMMANDS), st.integers(0, 2**32 - 1), st.integers(0, 2**31 - 1), st.binary(min_size=16))
def test_a_chrony_request_says_what_it_asks(command: chrony.Command, sequence: int, index: int, packed: bytes) -> None:
    every: dict[str, Any] = {"index": index, "address": chrony.ChronyAddress(family=2, packed=packed[:16])}
    arguments = {name: every[name] for name in command.arguments.names}
    wire = chrony.encode_request(command, sequence=sequence, **arguments)
    assert len(wire) == command.request_octets
    assert chrony.decode_request(wire) == (command, sequence, arguments)


@given(st.binary(max_size=60))
def test_any_octets_are_a_chrony_request_or_a_decode_error(data: bytes) -> None:
    with suppress(DecodeError):
        chrony.decode_request(data)


@given(st.integers(1, 2**16 - 1), st.integers(0, 2**32 - 1), st.integers(1, 2**32 - 1))
def test_a_chrony_reply_to_another_question_is_refused(status: int, sequence: int, apart: int) -> None:
    report = chrony.NumberOfSources(count=3)
    wire = chrony.encode_reply(chrony.N_SOURCES, report, sequence=sequence)
    with pytest.raises(DecodeError, match="sequence"):
        chrony.decode_reply(chrony.N_SOURCES, wire, sequence=(sequence + apart) % 2**32 or (sequence + 1) % 2**32)
    with pytest.raises(DecodeError, match="command"):
        chrony.decode_reply(chrony.ACTIVITY, wire, sequence=sequence)
    refusal = chrony.encode_reply(chrony.N_SOURCES, None, sequence=sequence, status=status)
    with pytest.raises(chrony.CommandRefused, match="N_SOURCES") as refused:
        chrony.decode_reply(chrony.N_SOURCES, refusal, sequence=sequence)
    assert refused.value.status == status


# ---- PTP management ----

_PORTS = st.builds(PortIdentity, clock=st.binary(min_size=8, max_size=8), port=st.integers(0, 0xFFFF))


_SERVICE = [item.name for item in fields(PortServiceStats) if item.name != "port_identity"]


def _data_sets() -> st.SearchStrategy[Any]:
    fixed = [_values_of(kind) for kind in DATA_SETS.values() if issubclass(kind, Record)]
    properties = st.builds(
        PortProperties,
        port_identity=_PORTS,
        port_state=st.integers(0, 255),
        timestamping=st.integers(0, 255),
        interface=st.text(max_size=20).filter(lambda name: len(name.encode("utf-8", "ignore")) == len(name.encode())),
    )
    counts = st.lists(U64, min_size=16, max_size=16).map(tuple)
    stats = st.builds(PortStats, port_identity=_PORTS, received=counts, sent=counts)
    service = st.builds(PortServiceStats, port_identity=_PORTS, **dict.fromkeys(_SERVICE, U64))
    octet = st.integers(0, 255)
    master = st.builds(
        UnicastMaster,
        port_identity=_PORTS,
        quality=st.builds(ClockQuality, clock_class=octet, accuracy=octet, variance=st.integers(0, 0xFFFF)),
        selected=st.booleans(),
        port_state=octet,
        priority1=octet,
        priority2=octet,
        protocol=st.integers(0, 0xFFFF),
        address=st.binary(max_size=16),
    )
    table = st.builds(UnicastMasterTable, masters=st.lists(master, max_size=4).map(tuple))
    return st.one_of(*fixed, properties, stats, service, table)


_TLVS = st.one_of(
    _data_sets(),
    st.builds(UnknownTlv, management_id=st.integers(0xC100, 0xFFFF), data=st.binary(max_size=40)),
    st.builds(
        ManagementError,
        error_id=st.integers(0, 0xFFFF),
        management_id=st.integers(0, 0xFFFF),
        display=st.binary(max_size=20),
    ),
)


@given(
    st.builds(
        ManagementMessage,
        domain=st.integers(0, 255),
        source=_PORTS,
        target=_PORTS,
        sequence=st.integers(0, 0xFFFF),
        action=st.integers(0, 15),
        sdo=st.integers(0, 15),
        hops=st.integers(0, 255),
        tlv=_TLVS,
    )
)
@settings(max_examples=200)
def test_a_management_message_survives_the_wire(message: ManagementMessage) -> None:
    assert ManagementMessage.decode(message.encode()) == message


@given(st.binary(max_size=160))
@settings(max_examples=120)
def test_any_octets_are_a_management_message_or_a_decode_error(data: bytes) -> None:
    with suppress(DecodeError):
        ManagementMessage.decode(data)
    header = b"\x0d\x02" + (48 + len(data)).to_bytes(2, "big") + bytes(44)
    for number in (*DATA_SETS, 0x3000):
        tlv = b"\x00\x01" + (2 + len(data)).to_bytes(2, "big") + number.to_bytes(2, "big")
        for forged in (header + data, header[:2] + (54 + len(data)).to_bytes(2, "big") + header[4:] + tlv + data):
            with suppress(DecodeError):
                ManagementMessage.decode(forged)


def test_a_question_goes_to_every_port_of_this_clock_and_never_further() -> None:
    me = PortIdentity(clock=b"rankcloc", port=7)
    wire = ManagementMessage.get(DATA_SETS[0xC000], domain=24, source=me, sequence=9).encode()
    assert wire[34:44] == b"\xff" * 10
    assert wire[44:46] == b"\x00\x00", "hops: ptp4l would send the question out of its network ports"
    assert wire[4] == 24
    assert wire[48:] == bytes.fromhex("00010002c000")


@given(st.integers(-(2**63), 2**63 - 1))
def test_a_time_interval_rounds_to_the_nearest_ns(scaled: int) -> None:
    assert abs(interval_ns(scaled) * 2**16 - scaled) <= 2**15


def test_the_clock_quality_keeps_its_three_fields() -> None:
    quality = DATA_SETS[0xC001].from_wire(bytes.fromhex("06214e5d00253c20"))
    assert quality.quality == ClockQuality(clock_class=6, accuracy=0x21, variance=0x4E5D)  # type: ignore[union-attr]
