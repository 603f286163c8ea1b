"""The probe datagram: round trip, and one kind of error for everything else."""

from __future__ import annotations

import dataclasses
import hmac

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankclock.errors import DecodeError
from rankclock.wire.probe import (
    DATAGRAM_BYTES,
    MAX_RECORDS,
    MAX_WIDTH_NS,
    Datagram,
    Kind,
    NotAuthenticError,
    Record,
    WireBelief,
    WireStamp,
    decode_datagram,
    encode_datagram,
    tag_of,
)

KEY = b"sixteen bytes ok"
U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)


@st.composite
def wire_stamps(draw: st.DrawFn) -> WireStamp:
    width = draw(st.integers(0, MAX_WIDTH_NS))
    likely = draw(st.integers(0, width))
    return WireStamp(earliest_ns=draw(I64), width_ns=width, estimate_after_ns=likely, kernel=draw(st.booleans()))


@st.composite
def beliefs(draw: st.DrawFn) -> WireBelief:
    below, above = draw(U32), draw(U32)
    return WireBelief(
        epoch=draw(st.integers(1, 2**16 - 1)),
        reference=draw(U64),
        hops=draw(st.integers(0, 255)),
        at_raw_ns=draw(I64),
        estimate_ns=draw(st.integers(-(2**63) + below, 2**63 - 1 - above)),
        below_ns=below,
        above_ns=above,
        rate_mppb=draw(st.integers(-(2**31), 2**31 - 1)),
        slower_mppb=draw(U32),
        faster_mppb=draw(U32),
        wander_ppb_per_s=draw(U32),
        age_ms=draw(U32),
    )


records = st.builds(Record, sequence=U32, arrival=wire_stamps(), departure=st.none() | wire_stamps())


@st.composite
def datagrams(draw: st.DrawFn) -> Datagram:
    before, after = sorted((draw(I64), draw(I64)))
    return Datagram(
        kind=draw(st.sampled_from(Kind)),
        session=draw(U64),
        sequence=draw(U32),
        sender=draw(U64),
        target=draw(U64),
        clock=draw(U64),
        raw_before_ns=before,
        real_ns=draw(I64),
        raw_after_ns=after,
        records=tuple(draw(st.lists(records, max_size=MAX_RECORDS))),
        belief=draw(st.none() | beliefs()),
    )


def a_datagram(**fields: object) -> Datagram:
    plain = Datagram(
        kind=Kind.REQUEST,
        session=1,
        sequence=2,
        sender=tag_of("a"),
        target=tag_of("b"),
        clock=3,
        raw_before_ns=10,
        real_ns=20,
        raw_after_ns=30,
    )
    return dataclasses.replace(plain, **fields)  # type: ignore[arg-type]


@given(datagrams(), st.binary(min_size=16, max_size=64))
def test_what_was_encoded_is_decoded_and_has_one_size(datagram: Datagram, key: bytes) -> None:
    data = encode_datagram(datagram, key)
    assert len(data) == DATAGRAM_BYTES
    assert decode_datagram(data, key) == datagram


@given(st.binary(max_size=400))
def test_garbage_raises_decode_error_only(data: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_datagram(data, KEY)


@given(st.binary(min_size=DATAGRAM_BYTES - 20, max_size=DATAGRAM_BYTES - 20))
def test_garbage_behind_the_right_start_raises_decode_error_only(rest: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_datagram(b"rk\x01\x01" + rest + b"\0" * 16, KEY)


@settings(max_examples=200)
@given(datagrams(), st.integers(0, DATAGRAM_BYTES * 8 - 1))
def test_a_single_flipped_bit_is_never_accepted(datagram: Datagram, bit: int) -> None:
    data = bytearray(encode_datagram(datagram, KEY))
    data[bit // 8] ^= 1 << (bit % 8)
    with pytest.raises(DecodeError):
        decode_datagram(bytes(data), KEY)


@given(st.binary(min_size=DATAGRAM_BYTES - 16 - 4, max_size=DATAGRAM_BYTES - 16 - 4))
def test_an_authentic_datagram_with_nonsense_inside_decodes_or_raises_decode_error(rest: bytes) -> None:
    body = b"rk\x01\x02" + rest
    try:
        decoded = decode_datagram(body + hmac.digest(KEY, body, "sha256")[:16], KEY)
    except DecodeError:
        return
    assert encode_datagram(decoded, KEY)[:-16] == body


def test_another_key_is_told_apart_from_garbage() -> None:
    data = encode_datagram(a_datagram(), KEY)
    with pytest.raises(NotAuthenticError, match="not made with our key"):
        decode_datagram(data, b"another key, too")


@pytest.mark.parametrize(
    "wrong",
    [
        {"sequence": 2**32},
        {"session": -1},
        {"real_ns": 2**63},
        {
            "records": (
                Record(sequence=1, arrival=WireStamp(earliest_ns=0, width_ns=0, estimate_after_ns=0, kernel=True)),
            )
            * 10
        },
        {
            "records": (
                Record(sequence=1, arrival=WireStamp(earliest_ns=0, width_ns=70_000, estimate_after_ns=0, kernel=True)),
            )
        },
        {
            "records": (
                Record(sequence=1, arrival=WireStamp(earliest_ns=0, width_ns=5, estimate_after_ns=6, kernel=True)),
            )
        },
    ],
)
def test_what_does_not_fit_the_wire_is_not_encoded(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"found|fit|expected|at most"):
        encode_datagram(a_datagram(**wrong), KEY)


def test_a_short_key_is_refused() -> None:
    with pytest.raises(ValueError, match="16 bytes or more"):
        encode_datagram(a_datagram(), b"short")
