"""The clock record: what is written is read back, whatever else is refused, and a torn end is forgiven and said."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankclock.errors import DecodeError
from rankclock.timebase.clock_record import ClockEvent, ClockHeader, ClockLine, ClockRecord
from rankclock.wire.clock_record import (
    decode_file,
    decode_object,
    encode_header,
    encode_line,
    encode_object,
    file_name,
)

NS = st.integers(-(2**62), 2**62)
TEXT = st.text(max_size=12)


@st.composite
def clock_lines(draw: st.DrawFn) -> ClockLine:
    bounds = sorted(draw(st.lists(NS, min_size=3, max_size=3))) if draw(st.booleans()) else [None, None, None]
    return ClockLine(
        real_ns=draw(NS),
        raw_ns=draw(NS),
        lo_ns=bounds[0],
        est_ns=bounds[1],
        hi_ns=bounds[2],
        rate_ppb=draw(st.none() | st.floats(-1e9, 1e9)),
        event=draw(st.none() | st.sampled_from(ClockEvent)),
        growth_ppb=draw(st.none() | st.integers(0, 10**9)),
        detail=draw(TEXT),
    )


@st.composite
def clock_records(draw: st.DrawFn) -> ClockRecord:
    header = ClockHeader(
        job=draw(TEXT),
        rank=draw(st.none() | st.integers(0, 10**6)),
        host=draw(TEXT),
        clock_id=draw(TEXT),
        reference=draw(TEXT),
        growth_ppb=draw(st.integers(0, 10**9)),
    )
    lines = sorted(draw(st.lists(clock_lines(), max_size=5)), key=lambda line: line.raw_ns)
    return ClockRecord(header=header, lines=tuple(lines))


def file_of(*records: ClockRecord) -> str:
    return "".join(encode_header(one.header) + "".join(map(encode_line, one.lines)) for one in records)


@settings(max_examples=40)
@given(st.lists(clock_records(), min_size=1, max_size=3))
def test_records_of_a_file_come_back_as_they_were(records: list[ClockRecord]) -> None:
    assert decode_file(file_of(*records)) == tuple(records)


@settings(max_examples=40)
@given(clock_records())
def test_a_record_in_metadata_comes_back_as_it_was(record: ClockRecord) -> None:
    assert decode_object(json.loads(json.dumps(encode_object(record)))) == record


@settings(max_examples=40)
@given(clock_records(), clock_records(), st.data())
def test_a_line_that_was_cut_off_is_forgiven_and_said(one: ClockRecord, two: ClockRecord, data: st.DataObject) -> None:
    text = file_of(one)
    last = len(text) - text[:-1].rfind("\n") - 1
    if not one.lines:
        return
    cut = text[: -data.draw(st.integers(1, last - 1))]
    whole = replace(one, lines=one.lines[:-1], torn=True)
    assert decode_file(cut) == (whole,)
    assert decode_file(cut + "\n" + file_of(two))[-1] == two


@settings(max_examples=50)
@given(st.text(max_size=60) | st.binary(max_size=60).map(lambda data: data.decode("latin-1")))
def test_any_text_is_a_record_or_one_kind_of_error(text: str) -> None:
    with pytest.raises(DecodeError):
        decode_file(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=50)
@given(clock_records(), st.data())
def test_any_field_spoilt_is_a_record_or_one_kind_of_error(record: ClockRecord, data: st.DataObject) -> None:
    value: dict[str, Any] = encode_object(record)
    target = data.draw(st.sampled_from([value, *value["lines"]]))
    target[data.draw(st.sampled_from(sorted(target)))] = data.draw(JSON)
    with contextlib.suppress(DecodeError):
        decode_object(value)


def test_a_broken_line_in_the_middle_names_its_number() -> None:
    header = ClockHeader(job="j", rank=0, host="h", clock_id="c", reference="r", growth_ppb=1)
    line = ClockLine(real_ns=1, raw_ns=1, lo_ns=0, est_ns=0, hi_ns=0)
    text = encode_header(header) + "{broken\n" + encode_line(line)
    with pytest.raises(DecodeError, match="line 2"):
        decode_file(text)


def test_each_rank_has_a_file_of_its_own() -> None:
    assert file_name(3) == "rankclock-clock.rank3.jsonl"
    assert file_name(None) == "rankclock-clock.jsonl"
