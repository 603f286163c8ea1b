"""Trace files of many kinds: what a digest says of each, and what is refused."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
import zstandard

from rankclock.errors import HostError, UserError
from rankclock.traces import source
from rankclock.traces.digest import TraceDigest, rank_of_name
from rankclock.traces.flight_recorder import UNBOUNDED, digest_flight
from rankclock.traces.inspect import inspect_file, iso_of_ns
from rankclock.traces.kinds import Kind, kind_of_kernel, kind_of_name, peers_of_name
from rankclock.traces.profiler_table import parse_profiler_table
from rankclock.traces.read import by_rank, read_files, read_one
from rankclock.traces.spans import NO_END
from rankclock.traces.synthetic import Job, SyntheticJob, write_traces

SPAN = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 5.001, "dur": 2.5}


def one(path: Path, **more: Any) -> TraceDigest:
    (trace,) = read_one(path, **more).traces
    return trace


def written(path: Path, events: list[dict[str, Any]], **values: Any) -> Path:
    path.write_text(json.dumps({**values, "traceEvents": events}))
    return path


def test_the_same_trace_is_read_plain_and_packed(tmp_path: Path) -> None:
    (plain,) = write_traces(SyntheticJob(Job(ranks=1, steps=3)), tmp_path)
    text = plain.read_bytes()
    (tmp_path / "a.gz").write_bytes(gzip.compress(text[:5000]) + gzip.compress(text[5000:]))
    frames = zstandard.ZstdCompressor()
    (tmp_path / "a.zst").write_bytes(frames.compress(text[:5000]) + frames.compress(text[5000:]))
    digests = [one(tmp_path / name) for name in (plain.name, "a.gz", "a.zst")]
    assert [digest.packing for digest in digests] == ["plain", "gzip", "zstd"]
    assert len({(digest.read, digest.first_ns, digest.last_ns, digest.size) for digest in digests}) == 1


def test_zstd_without_its_library_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.zst"
    path.write_bytes(zstandard.compress(b"[]"))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(HostError, match="pip install zstandard"):
        read_one(path)


def test_the_base_is_added_per_file_so_that_both_sides_of_a_quarter_agree(tmp_path: Path) -> None:
    boundary = 1_798_746_264_000_000_000
    before = written(
        tmp_path / "a.json", [{**SPAN, "ts": 7889238000000.5}], baseTimeNanoseconds=boundary - 7_889_238 * 10**9
    )
    after = written(tmp_path / "b.json", [{**SPAN, "ts": 0.5}], baseTimeNanoseconds=boundary)
    assert one(before).first_ns == one(after).first_ns == boundary + 500


def test_viztracer_and_proton_state_their_base_in_their_own_places(tmp_path: Path) -> None:
    viztracer = written(
        tmp_path / "v.json", [SPAN], viztracer_metadata={"version": "1.1.1", "baseTimeNanoseconds": 10**18}
    )
    proton = written(tmp_path / "p.json", [SPAN], displayTimeUnit="us", baseTimeNanoseconds=10**18)
    assert one(viztracer).first_ns == one(proton).first_ns == 10**18 + 5001


def test_the_empty_object_that_ends_a_list_of_the_nccl_profiler_plugin_is_no_loss(tmp_path: Path) -> None:
    path = tmp_path / "nccl.rank0.json"
    coll = (
        '{"name": "AllReduce", "cat": "COLL", "ph": "%s", "id": 0, "pid": 7, "tid": 1, "ts": %f, "args": {"SeqNum": 1}}'
    )
    path.write_text(f"[\n{coll % ('b', 5.5)},\n{coll % ('e', 7.5)},\n{{}}]\n")
    (finding,) = inspect_file(path)
    assert (finding.verdict, finding.values["read"], finding.values["lost"]) == ("ok with warning", 2, 0)
    path.write_text(f'[\n{coll % ("b", 5.5)},\n{{"name": "x"}}]\n')
    (finding,) = inspect_file(path)
    assert (finding.values["read"], finding.values["lost"]) == (1, 1)


def test_a_trace_without_base_counts_from_1970_only_if_its_times_say_so(tmp_path: Path) -> None:
    assert not one(written(tmp_path / "a.json", [SPAN])).realtime
    assert one(written(tmp_path / "b.json", [{**SPAN, "ts": 1708722576381804}])).realtime


def test_a_trace_that_begins_at_zero_keeps_its_first_event(tmp_path: Path) -> None:
    trace = one(written(tmp_path / "a.json", [{**SPAN, "ts": 0}, SPAN]))
    assert (trace.first_ns, trace.valid_spans, trace.zero_time) == (0, 2, {})


def test_times_given_as_text_count_like_numbers(tmp_path: Path) -> None:
    trace = one(written(tmp_path / "a.json", [{**SPAN, "ts": "1708722576381804.123", "dur": "7.25"}]))
    assert (trace.first_ns, trace.last_ns) == (1708722576381804123, 1708722576381811373)


@pytest.mark.parametrize("duration", [-1, -0.001, None, "soon"])
def test_an_unusable_duration_leaves_the_start_usable(duration: Any, tmp_path: Path) -> None:
    trace = one(written(tmp_path / "a.json", [{**SPAN, "dur": duration}, {**SPAN, "ts": 9}]))
    assert (trace.no_duration, trace.first_ns, trace.last_ns) == (1, 5001, 11500)


def test_the_duration_that_kineto_writes_over_a_backward_step_loses_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(
        '{"traceEvents": [' + json.dumps(SPAN).replace("2.5", "-2480038.-989") + "," + json.dumps(SPAN) + "]}"
    )
    trace = one(path)
    assert (trace.read, trace.lost, trace.no_duration) == (2, 0, 1)
    assert any("backward clock step" in why for why in trace.odd)


def test_events_of_the_nccl_profiler_plugin_are_read_with_their_bare_values(tmp_path: Path) -> None:
    path = tmp_path / "nccl.txt"
    path.write_text(
        "[\n\n"
        '{"name": "KernelLaunch", "cat": "KERNEL_LAUNCH", "ph": "b", "id": 0, "pid": 39, "tid": 1, "ts": 12.5, '
        '"args": {"groupId": 0, "Stream": 0x262ca50}},\n'
        '{"name": "Send", "cat": "P2P_API", "ph": "b", "id": 0, "pid": 39, "tid": 1, "ts": 13.000000, '
        '"args": {"count": 268435456, "datatype": ncclFloat32, "GraphCaptured":0}},\n'
    )
    trace = one(path)
    assert (trace.read, trace.lost, len(trace.collectives)) == (2, 0, 0)
    assert not trace.realtime
    assert set(trace.odd) == {"hexadecimal numbers", "bare words as values"}


def test_sixty_four_bit_hashes_and_larger_are_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    event = json.dumps({**SPAN, "args": {"hash": 2**64 - 1, "larger": 2**70}})
    path.write_text(f'{{"traceEvents": [{event}, {event}], "hash": {2**64 - 1}}}')
    assert one(path).odd == {} and one(path).read == 2


@pytest.mark.parametrize(
    "name", ["rank3.json", "job.rank_3.pt.trace.json.gz", "nccl_trace_rank_3", "x.r3.json", "worker-3"]
)
def test_a_rank_is_taken_from_a_name_that_states_it(name: str) -> None:
    assert rank_of_name(name) == 3


@pytest.mark.parametrize(
    "name", ["vm_1234.1790857026000000000.pt.trace.json", "trace.json", "rank1_rank2", "frank3", "r3"]
)
def test_a_number_in_a_name_is_no_rank_unless_it_says_so(name: str) -> None:
    assert rank_of_name(name) is None


def test_the_users_word_on_a_rank_wins(tmp_path: Path) -> None:
    path = written(tmp_path / "rank1.json", [SPAN], distributedInfo={"rank": 2})
    assert (one(path).rank, one(path, rank=7).rank) == (2, 7)
    assert one(path, rank=7).rank_from == "user"


def test_two_files_of_one_rank_are_refused_and_a_file_written_twice_is_not(tmp_path: Path) -> None:
    first = written(tmp_path / "rank1.json", [SPAN])
    second = written(tmp_path / "rank1.copy.json", [{**SPAN, "ts": 7}])
    with pytest.raises(UserError, match="rank 1 again"):
        by_rank(read_files([first, second]))
    first.write_bytes(first.read_bytes() * 2)
    trace = by_rank(read_files([first]))[1]
    assert any("repeats" in note for note in trace.notes)
    first.write_bytes(first.read_bytes() + second.read_bytes())
    with pytest.raises(UserError, match="a second document"):
        by_rank(read_files([first]))


def test_an_unknown_rank_and_a_file_without_trace_are_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--rank a\.json=N"):
        by_rank([read_one(written(tmp_path / "a.json", [SPAN]))])
    (tmp_path / "b.json").write_text("{}")
    with pytest.raises(UserError, match="no trace in it"):
        by_rank([read_one(tmp_path / "b.json")])


@pytest.mark.parametrize("text", ["", "[]", "{}", "hello", '{"traceEvents": []}', "\ufeff{}", "null", "[1, 2]"])
def test_files_without_events_get_an_answer(text: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    (finding,) = inspect_file(path)
    assert finding.verdict in ("no trace", "input-error") and finding.messages
    assert finding.exit_code != 0


def test_missing_files_folders_and_forbidden_files_are_user_errors(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing", tmp_path):
        with pytest.raises(UserError):
            inspect_file(path)
    with pytest.raises(UserError, match="cannot be read"):
        source.packing_of(Path("/etc/hostname/x"))


def entry(**more: Any) -> dict[str, Any]:
    return {
        "profiling_name": "nccl:all_reduce",
        "process_group": ("0", "default_pg"),
        "collective_seq_id": 4,
        "p2p_seq_id": 0,
        "is_p2p": False,
        "time_created_ns": 1_790_000_000_000_000_000,
        "time_discovered_started_ns": 1_790_000_000_050_000_000,
        "time_discovered_completed_ns": 1_790_000_000_100_000_000,
        "input_sizes": [[2, 3]],
        "state": "completed",
        **more,
    }


def dump(entries: list[Any]) -> dict[str, Any]:
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    return {"version": "2.10", "pg_config": config, "comm_lib_version": "2.21", "entries": entries}


@pytest.mark.parametrize("form", ["json", "pickle"])
def test_a_flight_recorder_dump_is_read_in_both_forms(form: str, tmp_path: Path) -> None:
    path = tmp_path / "nccl_trace_rank_1"
    entries = [
        entry(),
        entry(profiling_name="nccl:recv 0<-1", is_p2p=True, p2p_seq_id=9, time_discovered_completed_ns=None),
        entry(time_created_ns=0),
        "damage",
    ]
    path.write_bytes(pickle.dumps(dump(entries)) if form == "pickle" else json.dumps(dump(entries)).encode())
    trace = one(path)
    assert (trace.form, trace.rank, trace.read, trace.lost) == ("flight recorder", 1, 2, 2)
    assert trace.groups == {"0": (0, 1)}
    tokens = {token.kind: token for token in trace.collectives.tokens}
    assert tokens[Kind.ALL_REDUCE].size == 6
    assert (tokens[Kind.RECV].source, tokens[Kind.RECV].destination) == (1, 0)
    assert sorted(trace.collectives.sequence.tolist()) == [4, 9]
    assert trace.collectives.end_ns.max() == NO_END


def test_a_gloo_flight_recorder_is_called_unbounded(tmp_path: Path) -> None:
    path = tmp_path / "gloo_rank0.json"
    gloo = entry(
        profiling_name="gloo:all_reduce",
        time_discovered_started_ns=0,
        time_discovered_completed_ns=0,
        state="scheduled",
        retired=True,
    )
    path.write_text(json.dumps(dump([gloo])))
    assert UNBOUNDED in digest_flight(path).notes


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch /tmp/rankclock-was-here",)


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps(Evil()),
        pickle.dumps({"entries": [Evil()]}),
        pickle.dumps(dump([]))[:-5],
        b"\x80\x04\x8c\x08builtins\x8c\x04exec\x93\x8c\x04pass\x85R.",
        b"\x80\x02]q\x00(h\x00h\x00e.",
        b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f.",
        b"\x80",
        pickle.dumps([1, 2]),
        pickle.dumps({1: 2}),
        b'{"entries": 5}',
        b'{"entries": [',
        b'{"entries": ' + b"[" * 100_000,
    ],
)
def test_a_dump_that_is_none_or_wants_to_run_something_is_refused_in_one_line(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "rank0.pickle"
    path.write_bytes(data)
    with pytest.raises(UserError) as caught:
        read_one(path)
    assert "\n" not in str(caught.value)
    assert not Path("/tmp/rankclock-was-here").exists()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("gloo:all_reduce", Kind.ALL_REDUCE),
        ("nccl:_all_gather_base", Kind.ALL_GATHER),
        ("_reduce_scatter_base", Kind.REDUCE_SCATTER),
        ("allreduce_coalesced", Kind.ALL_REDUCE),
        ("all_to_allv", Kind.ALL_TO_ALL),
        ("nccl:send 0->1", Kind.SEND),
        ("_broadcast_oop", Kind.BROADCAST),
        ("coalesced", Kind.OTHER),
        ("gloo:barrier", Kind.BARRIER),
        ("gloo:gather", Kind.GATHER),
        ("gloo:scatter", Kind.SCATTER),
        ("reduce", Kind.REDUCE),
    ],
)
def test_names_of_operations_are_understood(name: str, kind: Kind) -> None:
    assert kind_of_name(name) is kind


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", Kind.ALL_REDUCE),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)", Kind.ALL_REDUCE),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(x)", Kind.REDUCE_SCATTER),
        ("ncclDevKernel_Reduce_Sum_bf16_RING_LL(x)", Kind.REDUCE),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", Kind.OTHER),
        ("void at::native::gemm<4>(float*)", None),
    ],
)
def test_kernels_are_told_by_their_symbols(name: str, kind: Kind | None) -> None:
    assert kind_of_kernel(name) is kind


def test_peers_are_read_in_both_directions() -> None:
    assert peers_of_name("nccl:send 0->1") == peers_of_name("nccl:recv 1<-0") == (0, 1)
    assert peers_of_name("nccl:all_reduce") is None


def kernel(**args: Any) -> dict[str, Any]:
    name = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 20, "ts": 100, "dur": 9, "args": args}


def test_kernels_without_a_sequence_take_it_from_the_call_that_launched_them(tmp_path: Path) -> None:
    call = {**SPAN, "name": "record_param_comms", "args": {"External id": 5, "Seq": 77, "Process Group Name": "3"}}
    call["args"]["Collective name"] = "allreduce"
    call["args"]["In msg nelems"] = 10
    trace = one(written(tmp_path / "a.json", [kernel(**{"External id": 5}), call]))
    (token,) = trace.collectives.tokens
    assert (token.kind, token.group, token.size) == (Kind.ALL_REDUCE, "3", 10)
    assert trace.collectives.sequence.tolist() == [77]


def test_what_moves_nothing_is_no_collective(tmp_path: Path) -> None:
    empty = kernel(**{"Collective name": "all_to_allv", "In msg nelems": 0, "Out msg nelems": 0})
    uneven = kernel(
        **{"Collective name": "all_to_allv", "In msg nelems": 4, "Out msg nelems": 4, "In split size": "[4, 0]"}
    )
    even = kernel(
        **{"Collective name": "all_to_allv", "In msg nelems": 4, "Out msg nelems": 4, "In split size": "[2, 2]"}
    )
    trace = one(written(tmp_path / "a.json", [empty, uneven, even]))
    assert [token.kind for token in trace.collectives.tokens] == [Kind.OTHER, Kind.ALL_TO_ALL]


def test_the_same_thread_written_as_text_and_as_number_is_one_lane(tmp_path: Path) -> None:
    gloo = {"ph": "X", "cat": "user_annotation", "name": "gloo:all_reduce", "pid": 1, "tid": 7, "ts": 100, "dur": 9}
    trace = one(written(tmp_path / "a.json", [gloo, {**gloo, "tid": "7", "ts": 200}]))
    assert trace.collectives.lanes == ("1/7",)


def test_busy_stretches_are_the_union_of_what_computes(tmp_path: Path) -> None:
    gloo = {"ph": "X", "cat": "user_annotation", "name": "gloo:all_reduce", "pid": 1, "tid": 7, "ts": 100, "dur": 9}
    inside = {**SPAN, "tid": 7, "ts": 101, "dur": 1}
    events = [gloo, inside, {**SPAN, "ts": 10, "dur": 10}, {**SPAN, "ts": 15, "dur": 20}, {**SPAN, "ts": 50, "dur": 1}]
    trace = one(written(tmp_path / "a.json", events), busy=True)
    assert trace.busy_ns is not None
    assert trace.busy_ns.tolist() == [[10_000, 35_000], [50_000, 51_000]]


def test_a_printed_table_is_told_from_other_text() -> None:
    assert parse_profiler_table("hello  world") is None
    table = "  Name    Self CPU %      Self CPU   CPU total\n  aten::mm    3.0%    1.500ms   2ms\n  x   1%  oops  2ms\n"
    rows = parse_profiler_table(table)
    assert rows is not None and [(row.name, row.self_us) for row in rows] == [("aten::mm", 1500.0)]


def test_instants_are_printed_with_the_decimals_they_have() -> None:
    assert iso_of_ns(1_708_722_576_381_804_000) == "2024-02-23T21:09:36.381804Z"
    assert iso_of_ns(1_708_722_576_000_000_001) == "2024-02-23T21:09:36.000000001Z"


def test_several_processes_give_what_one_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = write_traces(SyntheticJob(Job(ranks=3, steps=2, ranks_per_host=1)), tmp_path)
    monkeypatch.setattr("rankclock.traces.processes.SEVERAL_PROCESSES_FROM", 0)
    alone, together = read_files(paths, jobs=1), read_files(paths, jobs=2)
    assert [file.traces[0].first_ns for file in alone] == [file.traces[0].first_ns for file in together]
    assert [file.traces[0].rank for file in together] == [0, 1, 2]


def test_a_scheduler_without_its_library_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(HostError, match="pip install distributed"):
        read_files([written(tmp_path / "a.json", [SPAN])], scheduler="tcp://127.0.0.1:1")
