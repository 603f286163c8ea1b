"""Traces of other writers: VizTracer's own output, Proton's form, events of NCCL's profiler plugin."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

from viztracer import VizTracer

from rankclock.traces.inspect import inspect_file
from rankclock.traces.read import by_rank, read_files
from rankclock.traces.recover import recover
from rankclock.traces.rewrite import rewritten
from rankclock.traces.timemap import Alignment, Piece, RankMap


def busy(count: int) -> int:
    return sum(index * index for index in range(count))


def test_a_trace_that_viztracer_just_recorded_is_placed_on_this_machines_clock(tmp_path: Path) -> None:
    path = tmp_path / "rank5.json"
    before_ns = time.time_ns()
    with VizTracer(output_file=str(path), verbose=0):
        busy(1_000)
    after_ns = time.time_ns()
    (digest,) = read_files([path])[0].traces
    assert (digest.rank, digest.realtime, digest.lost) == (5, True, 0)
    assert digest.valid_spans > 0
    assert digest.first_ns is not None and digest.last_ns is not None
    # It ties its monotonic clock to time.time_ns() in two calls that are not one instant.
    assert before_ns - 1_000_000 <= digest.first_ns <= digest.last_ns <= after_ns + 1_000_000


def test_a_rewritten_viztracer_trace_moves_its_stamps_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    with VizTracer(output_file=str(path), verbose=0):
        busy(1_000)
    (digest,) = read_files([path])[0].traces
    assert digest.first_ns is not None and digest.last_ns is not None
    offset = (249_999_000, 250_000_000, 250_001_000)
    piece = Piece(start_ns=digest.first_ns, end_ns=digest.last_ns, at_start=offset, at_end=offset)
    found = RankMap(rank=0, host="", pieces=(piece,), method="known")
    alignment = Alignment(reference="truth", method="known", ranks={0: found})
    out = json.loads(b"".join(rewritten(digest, found, alignment, digest.base_ns or 0)))
    original = json.loads(path.read_text())
    for old, new in zip(original["traceEvents"], out["traceEvents"], strict=True):
        moved = dict(new)
        if old["ph"] != "M":
            assert round((old["ts"] - new["ts"]) * 1000) == 250_000_000
            moved["ts"] = old["ts"]
        assert moved == old


def test_protons_form_is_read_with_the_base_at_its_top(tmp_path: Path) -> None:
    path = tmp_path / "rank1.chrome_trace"
    scope = {
        "name": "matmul",
        "cat": "kernel",
        "ph": "X",
        "pid": "Core0 CTA0",
        "tid": "warp 0",
        "ts": 12.345,
        "dur": 1.5,
    }
    path.write_text(json.dumps({"traceEvents": [scope], "displayTimeUnit": "ns", "baseTimeNanoseconds": 10**18}))
    (finding,) = inspect_file(path)
    assert (finding.verdict, finding.values["rank"]) == ("ok", 1)
    assert finding.values["start_ns"] == 10**18 + 12_345


def plugin_lines(rank: int, at_us: list[tuple[float, float]], *, inside: str, algorithm: str) -> str:
    """As the plugin prints it: the collective, what is inside of it, its end; `inside` ends when it does."""
    lines = ["["]
    common = f'"pid": {70 + rank}, "tid": 1'
    for number, (start_us, end_us) in enumerate(at_us):
        args = (
            f'{{"SeqNum": {number}, "CommHash": 12715772615376301750, "Rank": {rank}, "Count": 1000, '
            '"Datatype": "ncclFloat32", "Algorithm": "ALGORITHM", "Protocol": "LL", "nMaxChannels": 2}'
        )
        head = f'"cat": "COLL", "id": {number}, {common}'
        lines.append(f'{{"name": "AllReduce", "ph": "b", {head}, "ts": {start_us:f}, "args": {args}}},')
        if inside:
            part = (
                f'"name": "{inside}", "cat": "{"GPU" if inside == "KernelCh" else "PROXY"}", "id": {number}, {common}'
            )
            lines.append(f'{{{part}, "ph": "b", "ts": {start_us + 5:f}, "args": {{"Channel": 0}}}},')
            lines.append(f'{{{part}, "ph": "e", "ts": {end_us:f}}},')
        lines.append(f'{{"name": "AllReduce", "ph": "e", {head}, "ts": {start_us + 9:f}}},')
    return "\n".join([*lines, "{}]\n"]).replace("ALGORITHM", algorithm)


def plugin_job(tmp_path: Path, *, inside: str, algorithm: str = "RING") -> tuple[dict[int, Any], float, float]:
    """Two ranks whose counters started 3 s apart; their rates differ by 0.4 %, as the plugin calibrates them."""
    chance = random.Random(6)
    shift_us, rate = 3e6, 1.004
    ranks: list[list[tuple[float, float]]] = [[], []]
    now_us = 1_000.0
    for _ in range(40):
        arrivals = [now_us + chance.random() * 300, now_us + chance.random() * 300]
        for rank, arrived_us in enumerate(arrivals):
            end_us = max(arrivals) + 50 + chance.random() * 10
            scale, start = (rate, shift_us) if rank else (1.0, 0.0)
            ranks[rank].append((start + arrived_us * scale, start + end_us * scale))
        now_us += 20_000
    paths = [tmp_path / f"nccl.rank{rank}.json" for rank in range(2)]
    for rank, path in enumerate(paths):
        path.write_text(plugin_lines(rank, ranks[rank], inside=inside, algorithm=algorithm))
    return by_rank(read_files(paths)), shift_us, rate


def test_collectives_of_nccls_plugin_bound_clocks_that_count_from_anywhere_at_any_rate(tmp_path: Path) -> None:
    for inside, algorithm in (("KernelCh", "TREE"), ("KernelCh", "NVLS"), ("Recv", "RING")):
        digests, shift_us, rate = plugin_job(tmp_path, inside=inside, algorithm=algorithm)
        assert all(len(digest.collectives) == 40 for digest in digests.values())
        found = recover(digests)
        assert not found.inconsistent and found.used == 40
        for local_us in (shift_us + 10_000 * rate, shift_us + 700_000 * rate):
            at = found.alignment.ranks[1].offset_at(round(local_us * 1000))
            assert at is not None
            true_ns = round((local_us - (local_us - shift_us) / rate) * 1000)
            assert at[0] <= true_ns <= at[2]
            assert at[2] - at[0] < 400_000


def test_collectives_whose_end_the_plugin_did_not_see_bound_nothing(tmp_path: Path) -> None:
    for inside, algorithm in (("", "RING"), ("Send", "RING"), ("Recv", "TREE")):
        digests, _, _ = plugin_job(tmp_path, inside=inside, algorithm=algorithm)
        assert all(len(digest.collectives) == 0 for digest in digests.values())
        assert all(digest.enqueued == 40 for digest in digests.values())
