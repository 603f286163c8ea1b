"""What a prober publishes to its host's ranks: whole records or none, late readers told, nothing left behind."""

from __future__ import annotations

import mmap
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankclock.clockmath.relation import Relation
from rankclock.errors import HostError
from rankclock.mesh.actions import Published
from rankclock.mesh.share import SLOTS, ShareReader, ShareWriter
from rankclock.timebase.clock_record import ClockEvent, ClockLine

NS = st.integers(-(2**62), 2**62)
RATE = st.floats(-1e6, 1e6)


@st.composite
def published(draw: st.DrawFn) -> Published:
    lo, est, hi = sorted(draw(st.tuples(NS, NS, NS)))
    slow, likely, fast = sorted(draw(st.tuples(RATE, RATE, RATE)))
    relation = Relation(
        at_ns=draw(NS),
        lo_ns=lo,
        hi_ns=hi,
        est_ns=est,
        slowest_ppb=slow,
        fastest_ppb=fast,
        rate_ppb=likely,
        wander_ppb_per_s=draw(st.integers(0, 1000)),
    )
    known = draw(st.booleans())
    line = ClockLine(
        real_ns=draw(NS),
        raw_ns=draw(NS),
        lo_ns=lo if known else None,
        hi_ns=hi if known else None,
        est_ns=est if known else None,
        rate_ppb=draw(st.none() | RATE),
        event=draw(st.none() | st.sampled_from(ClockEvent)),
        growth_ppb=draw(st.none() | st.integers(0, 10**9)),
        detail=draw(st.text("aé", max_size=10)),
    )
    small = st.integers(0, 60_000)
    return Published(
        at_raw_ns=draw(NS),
        relation=draw(st.none() | st.just(relation)),
        line=draw(st.none() | st.just(line)),
        reference=draw(st.text("xß", max_size=10)),
        epoch=draw(small),
        confirmed_raw_ns=draw(NS),
        why=draw(st.text(max_size=10)),
        hops=draw(small),
        exchanges=draw(small),
        user_stamped=draw(small),
        odd=draw(small),
    )


def plain(number: int) -> Published:
    return Published(at_raw_ns=number, relation=None, line=None, reference="r", epoch=1, confirmed_raw_ns=number)


@settings(max_examples=60)
@given(st.lists(published(), min_size=1, max_size=5))
def test_records_come_through_as_they_were(records: list[Published]) -> None:
    path = ShareReader.create()
    writer, reader = ShareWriter.open(path), ShareReader.open(path)
    path.unlink()
    for record in records:
        writer.publish(record)
    assert reader.newest() == records[-1]
    assert reader.fresh() == records
    assert reader.fresh() == []
    reader.close()
    writer.close()


def test_a_reader_that_comes_late_gets_the_newest_and_learns_how_many_it_missed() -> None:
    path = ShareReader.create()
    writer, reader = ShareWriter.open(path), ShareReader.open(path)
    path.unlink()
    for number in range(SLOTS + 100):
        writer.publish(plain(number))
    read = reader.fresh()
    assert [one.at_raw_ns for one in read] == list(range(SLOTS + 100))[-len(read) :]
    assert reader.missed == SLOTS + 100 - len(read)
    assert len(read) > SLOTS - 3


def test_a_record_that_is_being_written_is_not_read() -> None:
    path = ShareReader.create()
    writer, reader = ShareWriter.open(path), ShareReader.open(path)
    writer.publish(plain(1))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        memory[64 + 384 + 30] ^= 1
    assert reader.newest() is None
    assert reader.fresh() == []
    assert reader.missed == 1
    path.unlink()


def test_long_texts_are_cut_between_letters() -> None:
    path = ShareReader.create()
    writer, reader = ShareWriter.open(path), ShareReader.open(path)
    path.unlink()
    writer.publish(replace(plain(1), why="x" + "é" * 100))
    newest = reader.newest()
    assert newest is not None
    assert newest.why == "x" + "é" * 23


def test_the_name_may_go_and_a_new_writer_still_finds_it() -> None:
    path = ShareReader.create()
    reader = ShareReader.open(path)
    path.unlink()
    writer = ShareWriter.open(reader.path)
    writer.publish(plain(7))
    assert reader.newest() == plain(7)
    writer.close()
    again = ShareWriter.open(reader.path)
    again.publish(plain(8))
    assert [one.at_raw_ns for one in reader.fresh()] == [7, 8]


def test_what_is_no_ring_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="cannot be opened"):
        ShareReader.open(tmp_path / "nothing")
    other = tmp_path / "other"
    other.write_bytes(os.urandom(300_000))
    with pytest.raises(HostError, match="is not rankclock's"):
        ShareReader.open(other)
    (tmp_path / "short").write_bytes(b"rkshare1")
    with pytest.raises(HostError, match="cannot be opened"):
        ShareReader.open(tmp_path / "short")
