"""Stamps brought into cluster time all at once or one by one: the same bytes, or the fast way stands back."""

from __future__ import annotations

import gzip
import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rankclock.errors import UserError
from rankclock.traces.digest import TraceDigest
from rankclock.traces.read import read_one
from rankclock.traces.restamp import restamped
from rankclock.traces.rewrite import _Stamps
from rankclock.traces.timemap import Piece, RankMap

REAL = sorted((Path(__file__).parent.parent / "captured/traces").glob("torch-*.json.gz"))
BASE_NS = 1_790_000_000_000_000_000
FIRST_NS, LAST_NS = BASE_NS + 1, BASE_NS + 10**15

NUMBERS = st.one_of(
    st.integers(0, 10**15).map(str),
    st.tuples(st.integers(0, 10**12), st.text("0123456789", max_size=6)).map(lambda both: f"{both[0]}.{both[1]}"),
    st.sampled_from(
        ["0", "0.000", "00012.5", "-3.25", "1e6", "1.5E3", '"77.125"', "null", "", "1..2", "999999.9995", "9" * 30]
    ),
)
BEFORE = st.sampled_from([": ", ":", " : ", ":  ", ":\n"])
BEHIND = st.sampled_from([", ", ",", " ,", "\n", ""])
REST = st.sampled_from(
    [
        '"dur": 3.25',
        '"args": {"ts": 5}',
        '"args": {"a": "\\"ts\\": 5"}',
        '"cat": "ts"',
        '"name": "ts", "cat":"x"',
        '"id": 7',
    ]
)
PHASE = st.sampled_from(['"ph": "X"', '"ph": "M"', '"ph":"i"'])


@st.composite
def events(draw: st.DrawFn) -> bytes:
    """A stretch of events; most of one is usual, so that the fast way has work."""
    usual = st.tuples(st.integers(1, 10**13), st.integers(0, 999)).map(lambda both: f"{both[0]}.{both[1]:03d}")
    texts = []
    for _ in range(draw(st.integers(0, 12))):
        odd = draw(st.integers(0, 9)) == 0
        number, before = draw(NUMBERS if odd else usual), draw(BEFORE if odd else st.sampled_from([": ", ":"]))
        behind = draw(BEHIND if odd else st.just(", "))
        rest = draw(REST if odd else st.just('"dur": 1.000'))
        texts.append(f'{{{draw(PHASE)}, "pid": 1, "ts"{before}{number}{behind}{rest}}}')
    return ",\n".join(texts).encode()


def way(*, drift_ns: int, from_ns: int = FIRST_NS, to_ns: int = LAST_NS, base_ns: int = BASE_NS) -> _Stamps:
    pieces = tuple(
        Piece(start_ns=start, end_ns=end, at_start=(at - 9, at, at + 9), at_end=(to - 9, to, to + 9))
        for start, end, at, to in (
            (from_ns, from_ns + (to_ns - from_ns) // 2, 250_000, 250_000 + drift_ns),
            (from_ns + (to_ns - from_ns) // 2, to_ns, 250_000 + drift_ns, 250_000),
        )
    )
    found = RankMap(rank=0, host="", pieces=pieces, method="known")
    digest: TraceDigest = replace(read_one(REAL[0]).traces[0], base_ns=base_ns)
    return _Stamps(digest=digest, rank_map=found, base_ns=base_ns - 10**9)


STRAIGHT, BENT = way(drift_ns=0), way(drift_ns=7_000_000)


def assert_the_same(stamps: _Stamps, piece: bytes) -> bool:
    """Whether the fast way did it."""
    fast = restamped(piece, stamps.rank_map, own_base_ns=stamps.digest.base_ns or 0, base_ns=stamps.base_ns)
    try:
        exact = stamps.one_by_one(piece)
    except UserError:
        assert fast is None
        with pytest.raises(UserError):
            stamps.replaced(piece)
        return False
    assert fast in (None, exact)
    assert stamps.replaced(piece) == exact
    return fast is not None


@settings(max_examples=300, deadline=None)
@given(piece=events(), bent=st.booleans())
@example(piece=b'{"ph": "X", "ts": 1.001}', bent=False)
@example(piece=b'{"ph": "M", "ts": 0.0, "pid": 1},{"ph": "X", "ts": 12.5, "pid": 1}', bent=True)
@example(piece=b'{"ph": "M", "ts": 5000000000000.000, "pid": 1},{"ph": "X", "ts": 12.500, "pid": 1}', bent=True)
@example(piece=b'{"ph": "X", "cat": "ts", "ts": 12.500, "pid": 1}', bent=True)
@example(piece=b'"ts": 12.500, "ts": 13.500, "ph": 1', bent=True)
def test_both_ways_give_the_same_bytes(piece: bytes, bent: bool) -> None:
    assert_the_same(BENT if bent else STRAIGHT, piece)


def real_way(path: Path) -> tuple[_Stamps, bytes]:
    (digest,) = read_one(path).traces
    assert digest.first_ns is not None and digest.last_ns is not None and digest.events_at is not None
    stamps = way(drift_ns=40_000, from_ns=digest.first_ns, to_ns=digest.last_ns, base_ns=digest.base_ns or 0)
    text = gzip.decompress(path.read_bytes())
    return stamps, text[slice(*digest.events_at)]


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.name)
def test_traces_of_the_real_profiler_go_the_fast_way(path: Path) -> None:
    stamps, text = real_way(path)
    assert assert_the_same(stamps, text)


def test_damaged_real_traces_come_out_the_same(tmp_path: Path) -> None:
    stamps, text = real_way(REAL[0])
    chance, fast = random.Random(8), 0
    for _ in range(150):
        damaged = bytearray(text[: chance.randrange(2_000, 30_000)])
        for _ in range(chance.randrange(1, 30)):
            at = chance.randrange(len(damaged))
            if chance.random() < 0.5:
                # Near a stamp, where it matters.
                near = damaged.find(b'"ts"', at)
                at = min(max(near, 0) + chance.randrange(24), len(damaged) - 1)
            damaged[at] = (
                chance.choice(b'0123456789.,:"\\ \n{}eE-ts') if chance.random() < 0.7 else chance.randrange(256)
            )
        fast += assert_the_same(stamps, bytes(damaged))
    assert 0 < fast < 150, "both ways are tried"
