"""Whatever stands in a file, reading it is a record or a DecodeError; whatever an offset holds survives."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rankclock.errors import DecodeError
from rankclock.report.codec import decode, encode
from rankclock.report.record import Host, RunRecord, Sample
from rankclock.timebase import Offset

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
BASE = RunRecord(title="t", created_utc="", command="", reference="r", host=Host(kernel="", cores=1, versions={}))
KEYS = sorted(BASE.to_json())
SPANS = st.integers(min_value=-(1 << 62), max_value=(1 << 62) - 1)


@st.composite
def offsets(draw: st.DrawFn) -> Offset:
    if draw(st.booleans()):
        return Offset.unknown(draw(st.text(min_size=1, max_size=9)), reference="r", method=draw(st.text(max_size=9)))
    lo_ns, estimate_ns, hi_ns = sorted(draw(st.tuples(SPANS, SPANS, SPANS)))
    return Offset(
        lo_ns=lo_ns,
        estimate_ns=estimate_ns,
        hi_ns=hi_ns,
        reference="r",
        method=draw(st.text(max_size=9)),
        assumptions=tuple(draw(st.lists(st.text(max_size=5), max_size=3))),
        at_raw_ns=draw(st.none() | SPANS),
        age_ns=draw(st.integers(min_value=0, max_value=1 << 60)),
    )


@settings(max_examples=150, deadline=None)
@given(value=JSON, key=st.sampled_from(KEYS))
def test_any_json_in_any_field_is_a_record_or_a_decode_error(value: Any, key: str) -> None:
    for document in (value, {**BASE.to_json(), key: value}):
        try:
            record = RunRecord.from_json(document)
        except DecodeError:
            continue
        assert RunRecord.from_json(record.to_json()) == record


@settings(max_examples=150, deadline=None)
@given(measured=offsets(), claimed=st.none() | offsets(), t_s=st.floats(allow_nan=False, allow_infinity=False))
def test_a_sample_survives_json(measured: Offset, claimed: Offset | None, t_s: float) -> None:
    sample = Sample(t_s=t_s, phase="p", measured=measured, claimed=claimed, true_ns=None)
    assert decode(Sample, json.loads(json.dumps(encode(sample))), "sample") == sample
