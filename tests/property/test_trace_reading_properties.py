"""Reading Chrome traces: exact times, every layout, and under damage nothing is lost in silence."""

from __future__ import annotations

import gzip
import json
import random
from contextlib import suppress
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankclock.errors import DecodeError
from rankclock.traces.digest import digest_file
from rankclock.traces.microseconds import MAX_NS, ns_of_text, text_of_ns
from rankclock.traces.read_chrome import ChromeReader
from rankclock.traces.synthetic import Job, SyntheticJob, write_traces


@given(st.integers(-MAX_NS, MAX_NS))
def test_every_nanosecond_survives_the_way_to_microseconds_and_back(time_ns: int) -> None:
    assert ns_of_text(text_of_ns(time_ns)) == time_ns


@given(
    st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**15), max_value=10**15, places=7),
    st.sampled_from(["", '"']),
)
def test_a_number_of_any_notation_is_read_like_a_decimal_would_be(value: Decimal, quote: str) -> None:
    exact = (abs(value) * 1000).quantize(Decimal(1), rounding=ROUND_HALF_UP)
    expected = -int(exact) if value < 0 else int(exact)
    for text in (f"{value:f}", f"{value:e}"):
        assert ns_of_text(f"{quote}{text}{quote}".encode()) == expected


@given(st.binary(max_size=30))
def test_bytes_that_are_no_number_raise_decode_error_and_nothing_else(text: bytes) -> None:
    with suppress(DecodeError):
        assert abs(ns_of_text(text)) <= MAX_NS


def test_a_huge_exponent_is_refused_without_computing_it() -> None:
    for text in (b"1e999", b"9" * 60, b"1e-999999"):
        with pytest.raises(DecodeError):
            ns_of_text(text)
    assert ns_of_text(b"1e-999") == 0


names = st.text(max_size=20)
events = st.fixed_dictionaries(
    {
        "ph": st.sampled_from(["X", "i", "M", "s", "f", "C"]),
        "name": names,
        "ts": st.integers(0, 10**13).map(lambda ns: ns / 1000),
    },
    optional={
        "cat": names,
        "dur": st.integers(0, 10**9),
        "pid": st.one_of(st.integers(-1, 10), names),
        "tid": st.integers(0, 10),
        "args": st.recursive(
            st.one_of(st.integers(0, 2**64 - 1), names, st.none(), st.booleans()),
            lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(names, inner, max_size=3)),
            max_leaves=6,
        ),
    },
)
layouts = st.sampled_from([{"indent": 2}, {"separators": (",", ":")}, {"separators": (" , ", " : ")}, {"indent": 0}])


@settings(max_examples=150, deadline=None)
@given(
    items=st.lists(events, min_size=1, max_size=12),
    layout=layouts,
    bare=st.booleans(),
    escaped=st.booleans(),
    piece=st.integers(1, 200),
    beside=st.lists(st.tuples(names.filter(lambda name: name != "traceEvents"), names), max_size=3),
)
def test_any_layout_cut_into_any_pieces_gives_the_same_events(
    *,
    items: list[dict[str, object]],
    layout: dict[str, object],
    bare: bool,
    escaped: bool,
    piece: int,
    beside: list[tuple[str, str]],
) -> None:
    document: object = items if bare else {**dict(beside), "traceEvents": items, "traceName": "x"}
    text = json.dumps(document, ensure_ascii=escaped, **layout).encode("utf-8", "surrogatepass")  # type: ignore[arg-type]
    reader = ChromeReader(text[at : at + piece] for at in range(0, len(text), piece))
    read = [event for batch in reader for event in batch.events]
    assert [event.ph for event in read] == [item["ph"] for item in items]
    assert reader.lost == 0 and not reader.losses
    if escaped:
        assert [event.name for event in read] == [item["name"] for item in items]
    for event, item in zip(read, items, strict=True):
        assert ns_of_text(bytes(event.ts)) == ns_of_text(json.dumps(item["ts"]).encode())
    if not bare:
        assert reader.documents[0].values["traceName"] == "x"
        assert text[reader.documents[0].events_end or 0 :][:1] == b"]"


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400), st.integers(1, 64))
def test_garbage_never_raises(text: bytes, piece: int) -> None:
    reader = ChromeReader(text[at : at + piece] for at in range(0, len(text), piece))
    list(reader)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.sampled_from([b'{"ph":"X","ts":', b"1", b"}", b",", b"[", b"]", b'"', b"{", b':"traceEvents"', b"\\"]),
        max_size=40,
    )
)
def test_almost_json_never_raises_and_always_ends(parts: list[bytes]) -> None:
    reader = ChromeReader(iter([b"".join(parts)]))
    list(reader)
    reader = ChromeReader(iter([b'{"traceEvents":[', *parts]))
    list(reader)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A file like Kineto's, of 8 ranks' job: about 60 kB, 223 events."""
    folder = tmp_path_factory.mktemp("whole")
    job = SyntheticJob(Job(ranks=2, steps=10, backend="nccl", seed=5))
    return write_traces(job, folder, padding=2)[0].read_bytes()


def _found(path: Path) -> tuple[int, int]:
    digest = digest_file(path)
    return sum(trace.read for trace in digest.traces), sum(trace.lost for trace in digest.traces)


def _count(text: bytes) -> int:
    return len(json.loads(text)["traceEvents"])


def _flipped(text: bytes, draw: random.Random) -> bytes:
    at = draw.randrange(len(text))
    return text[:at] + bytes([text[at] ^ (1 << draw.randrange(8))]) + text[at + 1 :]


def _enlarged(text: bytes, draw: random.Random) -> bytes:
    parts = text.split(b'"ts": ')
    which = draw.randrange(1, len(parts))
    rest = parts[which].lstrip(b"0123456789.")
    huge = draw.choice([b"9" * 30, b"1e300", b"-1e300", b"18446744073709551616", b"NaN", b"Infinity", b"1e-400"])
    return b'"ts": '.join([*parts[:which], huge + rest, *parts[which + 1 :]])


@pytest.mark.parametrize("seed", range(60))
def test_a_flipped_bit_loses_at_most_its_neighbours_and_the_counts_add_up(
    seed: int, whole: bytes, tmp_path: Path
) -> None:
    draw = random.Random(seed)
    text = _flipped(whole, draw)
    path = tmp_path / "flipped.json"
    path.write_bytes(text)
    read, lost = _found(path)
    assert read + lost == _count(whole)
    assert lost <= 2


@pytest.mark.parametrize("seed", range(50))
def test_a_cut_file_gives_all_whole_events_before_the_cut_and_says_that_it_was_cut(
    seed: int, whole: bytes, tmp_path: Path
) -> None:
    cut = random.Random(seed).randrange(2000, len(whole) - 60)
    path = tmp_path / "cut.json"
    path.write_bytes(whole[:cut])
    digest = digest_file(path)
    (trace,) = digest.traces
    # Events that had begun before the cut: each has one "ph", and one more may have lost it to the cut.
    begun = whole[:cut].count(b'"ph"')
    ended = whole[:cut].count(b"\n  }")
    assert trace.read == ended - (1 if whole[:cut].rstrip().endswith(b"]") else 0)
    assert trace.read + trace.lost in (begun, begun + 1)
    assert any("cut" in note for note in digest.notes) or trace.lost


@pytest.mark.parametrize("seed", range(40))
def test_a_huge_or_impossible_time_is_no_time_and_the_event_is_still_counted(
    seed: int, whole: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "huge.json"
    path.write_bytes(_enlarged(whole, random.Random(seed)))
    digest = digest_file(path)
    (trace,) = digest.traces
    assert trace.read + trace.lost == _count(whole)
    assert trace.no_time + sum(trace.zero_time.values()) <= 2
    assert trace.first_ns is not None and trace.last_ns is not None
    assert trace.last_ns - trace.first_ns < 10**10


@pytest.mark.parametrize("seed", range(30))
def test_a_doubled_file_is_two_documents_and_both_are_read(seed: int, whole: bytes, tmp_path: Path) -> None:
    draw = random.Random(seed)
    path = tmp_path / "doubled.json"
    path.write_bytes(whole + draw.choice([b"", b"\n", b"\0\0", b" "]) + whole)
    digest = digest_file(path)
    assert [trace.read for trace in digest.traces] == [_count(whole)] * 2
    assert all(trace.documents == 2 and not trace.lost for trace in digest.traces)


@pytest.mark.parametrize("seed", range(30))
def test_a_damaged_gzip_file_gives_what_could_be_unpacked(seed: int, whole: bytes, tmp_path: Path) -> None:
    draw = random.Random(seed)
    packed = gzip.compress(whole, 6, mtime=0)
    cut = draw.randrange(len(packed) // 2, len(packed) - 1)
    damaged = packed[:cut] if seed % 2 else _flipped(packed, draw)
    path = tmp_path / "damaged.json.gz"
    path.write_bytes(damaged)
    digest = digest_file(path)
    read = sum(trace.read for trace in digest.traces)
    lost = sum(trace.lost for trace in digest.traces)
    if read + lost != _count(whole) or lost:
        assert digest.notes or lost
