"""Protobuf's wire format as we write and read it, held to the reference library's codec."""

from __future__ import annotations

from google.protobuf.internal import decoder, encoder
from hypothesis import given, settings
from hypothesis import strategies as st

from rankclock.errors import DecodeError
from rankclock.traces import protobuf
from rankclock.traces.read_pftrace import PftraceReader, is_pftrace

FIELDS = st.lists(
    st.one_of(
        st.tuples(st.integers(1, 2000), st.integers(0, 2**64 - 1)),
        st.tuples(st.integers(1, 2000), st.binary(max_size=300)),
    ),
    max_size=8,
)


@given(value=st.integers(0, 2**64 - 1))
def test_numbers_are_written_as_the_reference_library_writes_them(value: int) -> None:
    out = bytearray()
    encoder._EncodeVarint(out.extend, value)  # type: ignore[attr-defined]
    assert protobuf.varint(value) == bytes(out)
    assert protobuf.number_at(bytes(out), 0) == decoder._DecodeVarint(memoryview(bytes(out)), 0)  # type: ignore[attr-defined]


@given(value=st.integers(2**28, 2**63), more=st.integers(2**28, 2**63))
def test_stamps_are_written_as_any_number(value: int, more: int) -> None:
    stamps = protobuf.Stamps()
    assert [stamps.varint(one) for one in (value, more, value)] == list(map(protobuf.varint, (value, more, value)))


@given(fields=FIELDS)
def test_fields_read_back_as_written(fields: list[tuple[int, int | bytes]]) -> None:
    text = b"".join(
        protobuf.integer(field, value) if isinstance(value, int) else protobuf.data(field, value)
        for field, value in fields
    )
    assert list(protobuf.fields(text)) == fields


@given(text=st.binary(max_size=400))
def test_any_bytes_are_fields_or_one_precise_error(text: bytes) -> None:
    try:
        list(protobuf.fields(text))
    except DecodeError as error:
        assert "byte" in str(error)


@settings(max_examples=200, deadline=None)
@given(packets=st.lists(FIELDS, max_size=6), tail=st.binary(max_size=20), cut=st.integers(1, 64))
def test_a_reader_of_native_traces_answers_any_packets(
    packets: list[list[tuple[int, int | bytes]]], tail: bytes, cut: int
) -> None:
    text = b""
    for fields in packets:
        # Numbers of fields as trace packets have them, with values of any kind.
        parts = [
            protobuf.integer(field % 62 + 1, value) if isinstance(value, int) else protobuf.data(field % 62 + 1, value)
            for field, value in fields
        ]
        text += protobuf.nested(1, *parts)
    text += tail
    is_pftrace(text)
    reader = PftraceReader(text[at : at + cut] for at in range(0, len(text), cut))
    events = sum(len(batch.events) for batch in reader)
    assert reader.read == events
    assert reader.lost == sum(reader.reasons.values())
