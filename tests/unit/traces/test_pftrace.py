"""Native Perfetto traces: what Perfetto's own code reads in ours, and what we read in those of others."""

from __future__ import annotations

import json
import random
import zlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.unknown_fields import UnknownFieldSet
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos
from tests.perfetto.trace_processor import ask
from tests.unit.traces.test_alignment import performed, recorded

from rankclock.errors import UserError
from rankclock.traces.align import align
from rankclock.traces.archive import write_archive
from rankclock.traces.digest import TraceDigest
from rankclock.traces.inspect import inspect_file
from rankclock.traces.pftrace import pftrace
from rankclock.traces.read import by_rank, read_files
from rankclock.traces.rewrite import rewritten
from rankclock.traces.synthetic import Job, SyntheticJob, write_traces
from rankclock.traces.timemap import Alignment, Piece, RankMap

MS = 10**6
BASE_NS = 1_790_000_000_000_000_000


def one_trace(folder: Path, events: list[dict[str, Any]], *, rank: int = 0) -> tuple[Path, Counter[str]]:
    """Events of one rank, whose clock is right, as a native trace; and what had no place in it."""
    source = folder / f"rank{rank}.json"
    source.write_text(json.dumps({"baseTimeNanoseconds": BASE_NS, "traceEvents": events}))
    digests = by_rank(read_files([source]))
    left_out: Counter[str] = Counter()
    out = folder / "out.pftrace"
    out.write_bytes(b"".join(pftrace(digests, right_clocks(digests), left_out)))
    return out, left_out


def right_clocks(digests: Mapping[int, TraceDigest]) -> Alignment:
    around = (-1_000, 0, 1_000)
    maps = {}
    for rank, digest in digests.items():
        assert digest.first_ns is not None and digest.last_ns is not None
        piece = Piece(start_ns=digest.first_ns, end_ns=digest.last_ns, at_start=around, at_end=around)
        maps[rank] = RankMap(rank=rank, host="", pieces=(piece,), method="known")
    return Alignment(reference="truth", method="known", ranks=maps)


def span(name: str, start_us: float, length_us: float, **more: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "c", "name": name, "pid": 1, "tid": 1, "ts": start_us, "dur": length_us, **more}


def test_perfetto_puts_every_event_of_drifting_clocks_where_it_was_in_truth(tmp_path: Path) -> None:
    job, paths = performed(tmp_path, ranks=3, ranks_per_host=1, max_rate_ppb=50_000)
    digests = by_rank(read_files(paths))
    alignment = align(digests, [recorded(job, rank, seed=1) for rank in range(3)])
    out = tmp_path / "all.pftrace"
    out.write_bytes(b"".join(pftrace(digests, alignment)))
    slices, problems, said = ask(
        out,
        "select process.name as process, slice.name as name, slice.ts as ts from slice join thread_track on "
        "slice.track_id = thread_track.id join thread using(utid) join process using(upid) "
        "where slice.name glob 'ProfilerStep#*'",
        "select name, value from stats where severity in ('error', 'data_loss') and value > 0",
        "select int_value as bound_ns from args where flat_key = 'debug.args.rankclock_alignment.bound_ns'",
    )
    assert problems == []
    truth = {(rank, f"ProfilerStep#{number}"): start for rank in range(3) for number, start, _ in job.steps[rank]}
    found = {(int(row["process"].split(":")[0].removeprefix("rank ")), row["name"]): row["ts"] for row in slices}
    assert found.keys() == truth.keys()
    worst_ns = max(abs(found[key] - truth[key]) for key in truth)
    assert worst_ns <= max(row["bound_ns"] for row in said) < 10_000


def test_every_packet_is_what_perfettos_protos_describe(tmp_path: Path) -> None:
    out, _ = one_trace(tmp_path, [span("outer", 1.5, 10), span("inner", 2.001, 3, args={"External id": 7})])
    trace = protos.Trace.FromString(out.read_bytes())
    parts = [*trace.packet, *(packet.track_event for packet in trace.packet)]
    assert all(len(UnknownFieldSet(part)) == 0 for part in parts)
    snapshots = [packet for packet in trace.packet if packet.HasField("clock_snapshot")]
    assert {clock.clock_id for packet in snapshots for clock in packet.clock_snapshot.clocks} == {1, 64}
    assert all(packet.clock_snapshot.primary_trace_clock == 1 for packet in snapshots)
    begun = [packet for packet in trace.packet if packet.track_event.type == protos.TrackEvent.TYPE_SLICE_BEGIN]
    assert [packet.timestamp for packet in begun] == [BASE_NS + 1_500, BASE_NS + 2_001]
    assert json.loads(begun[1].track_event.debug_annotations[0].legacy_json_value) == {"External id": 7}


def test_spans_nest_by_time_and_those_that_overlap_go_beside(tmp_path: Path) -> None:
    events = [
        span("child-first-in-file", 10, 5),
        span("parent", 10, 20),
        span("ends-with-parent", 25, 5),
        span("overlaps", 28, 10),
        span("behind", 38, 1),
        span("nothing", 38, 0),
    ]
    out, left_out = one_trace(tmp_path, events)
    rows, problems = ask(
        out,
        "select s.name as name, s.ts as ts, s.dur as dur, p.name as parent from slice s "
        "left join slice p on s.parent_id = p.id where s.category = 'c'",
        "select name from stats where severity in ('error', 'data_loss') and value > 0",
    )
    assert problems == [] and not left_out
    assert {row["name"]: (row["ts"] - BASE_NS, row["dur"], row["parent"]) for row in rows} == {
        "child-first-in-file": (10_000, 5_000, "parent"),
        "parent": (10_000, 20_000, None),
        "ends-with-parent": (25_000, 5_000, "parent"),
        "overlaps": (28_000, 10_000, None),
        "behind": (38_000, 1_000, None),
        "nothing": (38_000, 0, "behind"),
    }


def test_every_kind_of_event_has_a_place_or_is_counted(tmp_path: Path) -> None:
    here = {"pid": 1, "tid": 1, "cat": "c"}
    events = [
        {**here, "ph": "B", "name": "pair", "ts": 1},
        {**here, "ph": "E", "ts": 4},
        {**here, "ph": "E", "ts": 5},
        {**here, "ph": "b", "name": "async", "id": 3, "ts": 2},
        {**here, "ph": "e", "name": "async", "id": 3, "ts": 9},
        {**here, "ph": "i", "name": "now", "ts": 3},
        {**here, "ph": "C", "name": "memory", "ts": 3, "args": {"bytes": 12, "share": 0.5}},
        span("launch", 20, 2),
        {**span("kernel", 30, 5), "tid": 7},
        {**here, "ph": "s", "id": 99, "name": "ac2g", "ts": 20},
        {**here, "ph": "f", "id": 99, "name": "ac2g", "ts": 30, "tid": 7, "bp": "e"},
        {**here, "ph": "O", "name": "object", "ts": 3},
        {**here, "ph": "M", "name": "process_name", "args": {"name": "python"}},
        span("no-duration", 40, -1),
        {**span("never-ended", 50, 1), "ph": "B"},
    ]
    out, left_out = one_trace(tmp_path, events)
    assert left_out == {"an end without a beginning": 1, "phase 'O'": 1}
    spans, counters, flows, problems = ask(
        out,
        "select name, dur from slice where category = 'c' order by ts",
        "select t.name as name, c.value as value from counter c join counter_track t on c.track_id = t.id",
        "select a.name as begins, b.name as ends from flow join slice a on slice_out = a.id "
        "join slice b on slice_in = b.id",
        "select name, value from stats where severity in ('error', 'data_loss') and value > 0",
    )
    assert [(row["name"], row["dur"]) for row in spans] == [
        ("pair", 3_000), ("async", 7_000), ("now", 0), ("launch", 2_000), ("kernel", 5_000), ("no-duration", 0),
        ("never-ended", 0),
    ]  # fmt: skip
    assert {row["name"]: row["value"] for row in counters} == {"memory bytes": 12, "memory share": 0.5}
    assert [(row["begins"], row["ends"]) for row in flows] == [("launch", "kernel")]
    assert problems == []


def test_what_is_written_reads_back_the_same_and_is_never_corrected_twice(tmp_path: Path) -> None:
    job, paths = performed(tmp_path, ranks=2, ranks_per_host=1)
    digests = by_rank(read_files(paths))
    alignment = align(digests, [recorded(job, rank, seed=1) for rank in range(2)])
    out = tmp_path / "all.pftrace"
    out.write_bytes(b"".join(pftrace(digests, alignment)))
    again = by_rank(read_files([out]))
    for rank, digest in again.items():
        before = digests[rank]
        assert (digest.form, digest.lost, digest.valid_spans) == ("pftrace", 0, before.valid_spans)
        assert (digest.host, dict(digest.groups), len(digest.steps)) == (before.host, dict(before.groups), 10)
        assert len(digest.collectives) == len(before.collectives)
    twice = align(again)
    assert twice.problems == () and twice.reference == alignment.reference
    for rank in again:
        at = twice.ranks[rank].offset_at(again[rank].first_ns or 0)
        assert at is not None and at[1] == 0
        truth = {number: start for number, start, _ in job.steps[rank]}
        assert all(abs(start - truth[number]) <= at[2] for number, start, _ in again[rank].steps)


def test_native_traces_are_aligned_into_a_native_trace_and_refused_elsewhere(tmp_path: Path) -> None:
    paths = [tmp_path / f"rank{rank}.pftrace" for rank in range(2)]
    for path in paths:
        path.write_bytes(sdk_trace(packed=False))
    digests = by_rank(read_files(paths))
    alignment = right_clocks(digests)
    out = tmp_path / "all.pftrace"
    out.write_bytes(b"".join(pftrace(digests, alignment)))
    (rows,) = ask(out, "select name, ts, dur from slice where name glob 'gloo*'")
    assert [(row["name"], row["ts"], row["dur"]) for row in rows] == [("gloo:all_reduce", BASE_NS + 3_000, 4_000)] * 2
    with pytest.raises(UserError, match="use --format pftrace"):
        write_archive(tmp_path / "a.zip", digests, alignment, {0: "a", 1: "b"})
    with pytest.raises(UserError, match="use --format pftrace"):
        list(rewritten(digests[0], alignment.ranks[0], alignment, 0))


def test_a_clock_that_was_set_back_is_refused_with_the_way_out(tmp_path: Path) -> None:
    job, paths = performed(tmp_path, ranks=2, ranks_per_host=1, one_step_ns=-80 * MS)
    digests = by_rank(read_files(paths))
    alignment = align(digests, [recorded(job, rank, seed=1) for rank in range(2)])
    with pytest.raises(UserError, match=r"set back .* use --format rewritten or merged"):
        list(pftrace(digests, alignment))


def sdk_trace(*, packed: bool) -> bytes:
    """As Perfetto's SDK writes it: an incremental clock of a sequence, tied to BOOTTIME, and that to REALTIME."""
    trace = protos.Trace()
    system = trace.packet.add(trusted_packet_sequence_id=1)
    for clock, at in ((6, 5_000_000_000), (1, BASE_NS)):
        system.clock_snapshot.clocks.add(clock_id=clock, timestamp=at)
    begin = trace.packet.add(trusted_packet_sequence_id=2, sequence_flags=1)
    begin.trace_packet_defaults.timestamp_clock_id = 64
    begin.trace_packet_defaults.track_event_defaults.track_uuid = 77
    begin.clock_snapshot.clocks.add(clock_id=64, timestamp=9, is_incremental=True, unit_multiplier_ns=1000)
    begin.clock_snapshot.clocks.add(clock_id=6, timestamp=5_000_000_000)
    thread = trace.packet.add(trusted_packet_sequence_id=2).track_descriptor
    thread.uuid, thread.thread.pid, thread.thread.tid, thread.thread.thread_name = 77, 12, 34, "main"
    for kind, ticks in ((1, 3), (2, 4)):
        packet = trace.packet.add(trusted_packet_sequence_id=2, sequence_flags=2, timestamp=ticks)
        packet.track_event.type = kind
        if kind == 1:
            packet.interned_data.event_names.add(iid=5, name="gloo:all_reduce")
            packet.interned_data.event_categories.add(iid=6, name="user_annotation")
            packet.track_event.name_iid = 5
            packet.track_event.category_iids.append(6)
            packet.track_event.debug_annotations.add(name="Input Dims", string_value="[[128]]")
    text = bytes(trace.SerializeToString())
    if packed:
        outer = protos.Trace()
        outer.packet.add(compressed_packets=zlib.compress(text))
        text = bytes(outer.SerializeToString())
    return text


@pytest.mark.parametrize("packed", [False, True])
def test_traces_of_perfettos_sdk_are_read_with_their_incremental_clocks(tmp_path: Path, packed: bool) -> None:
    path = tmp_path / "rank3.pftrace"
    path.write_bytes(sdk_trace(packed=packed))
    (digest,) = read_files([path])[0].traces
    assert (digest.rank, digest.realtime, digest.valid_spans, digest.lost) == (3, True, 1, 0)
    # 3 ticks of 1000 ns after the snapshot, which stands at tick 9; then 4 more.
    assert (digest.first_ns, digest.last_ns) == (BASE_NS + 3_000, BASE_NS + 7_000)
    assert digest.collectives.tokens[0].size == 128
    (rows,) = ask(path, "select name, dur from slice")
    assert [(row["name"], row["dur"]) for row in rows] == [("gloo:all_reduce", 4_000)]


def test_stamps_that_nothing_ties_to_realtime_stay_relative_and_that_is_said(tmp_path: Path) -> None:
    trace = protos.Trace()
    for kind, at in ((1, 1_000), (2, 5_000)):
        trace.packet.add(timestamp=at).track_event.type = kind
    path = tmp_path / "rank0.pftrace"
    path.write_bytes(trace.SerializeToString())
    (finding,) = inspect_file(path)
    assert finding.values["start_utc"] is None and finding.values["span_us"] == 4.0
    assert any("no snapshot ties" in message for message in finding.messages)


def test_damaged_native_traces_are_answered_and_their_losses_counted(tmp_path: Path) -> None:
    source = write_traces(SyntheticJob(Job(ranks=1, steps=2)), tmp_path)
    digests = by_rank(read_files(source))
    whole = b"".join(pftrace(digests, right_clocks(digests)))
    chance = random.Random(4)
    path = tmp_path / "damaged.rank0.pftrace"
    for _ in range(60):
        text = bytearray(whole)
        for _ in range(chance.randrange(1, 6)):
            text[chance.randrange(len(text))] ^= 1 << chance.randrange(8)
        path.write_bytes(text[: chance.randrange(100, len(text))] if chance.random() < 0.5 else text)
        findings = inspect_file(path)
        lost = sum(finding.values["lost"] for finding in findings)
        assert lost == sum(findings[0].values.get("lost_by_reason", {}).values())
    cut = whole[: len(whole) // 2]
    path.write_bytes(cut)
    (finding,) = inspect_file(path)
    assert finding.verdict == "usable with loss" and finding.values["lost"] == 1
    assert any("cut at byte" in message for message in finding.messages)


def test_the_command_writes_a_native_trace_and_says_what_has_no_place_in_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from rankclock.cli.trace import recover

    paths = write_traces(SyntheticJob(Job(ranks=2, ranks_per_host=1)), tmp_path)
    text = paths[0].read_text()
    paths[0].write_text(text.replace('"ph": "i"', '"ph": "O"'))
    out = tmp_path / "all.pftrace.gz"
    assert recover(paths, output=out, form="pftrace") == 0
    assert "left out: 1 with phase 'O'" in capsys.readouterr().err
    findings = inspect_file(out)
    assert [finding.verdict for finding in findings] == ["ok", "ok"]
    assert [finding.values["aligned"] for finding in findings] == [True, True]
