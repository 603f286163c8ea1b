"""Traces that go onto cluster time where they are recorded: nothing is lost, nothing waits, nothing fails."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import time
from pathlib import Path

import pytest

from rankclock.timebase.clock_record import ClockHeader, ClockLine, ClockRecord
from rankclock.traces.align import align
from rankclock.traces.digest import CLOCK_KEY
from rankclock.traces.read import by_rank, read_files
from rankclock.traces.ready import ClusterTimeTraces
from rankclock.traces.synthetic import START_TRUE_NS, Job, SyntheticJob, write_traces
from rankclock.wire.clock_record import encode_object

S, BOUND_NS = 10**9, 3_000


class Window:
    """What the handler sees of a profiler: a window that can be exported."""

    def __init__(self, trace: Path) -> None:
        self._trace = trace

    def export_chrome_trace(self, path: str) -> None:
        shutil.copyfile(self._trace, path)


def traces_with_records(folder: Path, *, known: bool = True) -> tuple[SyntheticJob, list[Path]]:
    job = SyntheticJob(Job(ranks=2, ranks_per_host=1, seed=3))
    paths = list(write_traces(job, folder))
    for rank, path in enumerate(paths):
        clock, lines = job.clock_of(rank), []
        for at_ns in range(-2 * S, 4 * S, S // 5):
            offset_ns = clock.offset_at(START_TRUE_NS + at_ns)
            lo, est, hi = (offset_ns - BOUND_NS, offset_ns, offset_ns + BOUND_NS) if known else (None, None, None)
            real_ns = START_TRUE_NS + at_ns + offset_ns
            rate = float(clock.rate_ppb)
            lines.append(
                ClockLine(real_ns=real_ns, raw_ns=at_ns, lo_ns=lo, hi_ns=hi, est_ns=est, rate_ppb=rate)
            )  # fmt: skip
        header = ClockHeader(job="j", rank=rank, host=f"h{rank}", clock_id=f"c{rank}", reference="r", growth_ppb=1_000)
        trace = json.loads(path.read_text())
        path.write_text(json.dumps({CLOCK_KEY: encode_object(ClockRecord(header=header, lines=tuple(lines))), **trace}))
    return job, paths


def test_every_window_appears_in_cluster_time_and_aligns_without_an_offset(tmp_path: Path) -> None:
    _, paths = traces_with_records(tmp_path)
    out = tmp_path / "out"
    for rank, path in enumerate(paths):
        handler = ClusterTimeTraces(out, rank=rank, keep_original=rank == 1)
        for _ in range(2):
            handler(Window(path))
        assert handler.wait(60)
    names = sorted(path.name for path in out.iterdir())
    kept = ["rank1.0.local.json", "rank1.1.local.json"]
    assert names == sorted(["rank0.0.json", "rank0.1.json", "rank1.0.json", "rank1.1.json", *kept])
    assert all((out / name).read_bytes() == paths[1].read_bytes() for name in kept)
    before = by_rank(read_files(paths))
    after = by_rank(read_files([out / "rank0.0.json", out / "rank1.0.json"]))
    alignment = align(after)
    for rank, digest in after.items():
        assert digest.first_ns is not None
        found = align(before).ranks[rank].offset_at(before[rank].first_ns or 0)
        assert found is not None
        assert abs(((before[rank].first_ns or 0) - digest.first_ns) - found[1]) <= 1
        assert alignment.ranks[rank].offset_at(digest.first_ns) == (
            -digest.aligned["bound_ns"],
            0,
            digest.aligned["bound_ns"],
        )


def test_a_restarted_worker_writes_over_nothing(tmp_path: Path) -> None:
    _, paths = traces_with_records(tmp_path)
    for _ in range(2):
        handler = ClusterTimeTraces(tmp_path / "out", rank=0)
        handler(Window(paths[0]))
        assert handler.wait(60)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["rank0.0.json", "rank0.1.json"]


def test_where_the_clock_is_unknown_the_local_trace_stays_and_the_log_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, paths = traces_with_records(tmp_path, known=False)
    handler = ClusterTimeTraces(tmp_path / "out", rank=0)
    with caplog.at_level(logging.WARNING, "rankclock"):
        handler(Window(paths[0]))
        assert handler.wait(60)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["rank0.0.local.json"]
    (said,) = caplog.messages
    assert "rank0.0.local.json stays in local time" in said
    assert "no cluster time" in said
    assert "\n" not in said


def test_a_folder_that_cannot_be_written_fails_no_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _, paths = traces_with_records(tmp_path)
    (tmp_path / "file").write_text("in the way")
    handler = ClusterTimeTraces(tmp_path / "file" / "traces")
    with caplog.at_level(logging.WARNING, "rankclock"):
        handler(Window(paths[0]))
    assert "not brought onto cluster time" in caplog.text
    assert handler.wait(1)


def test_the_handler_returns_before_the_work_is_done(tmp_path: Path) -> None:
    """The other process is held back by a pipe in the place of the trace: whoever waited for it would hang here."""
    handler = ClusterTimeTraces(tmp_path, rank=0)

    class Held:
        def export_chrome_trace(self, path: str) -> None:
            os.mkfifo(path)

    handler(Held())
    assert not handler.wait(0.2)
    deadline = time.monotonic() + 60
    while not handler.wait(0.1) and time.monotonic() < deadline:
        with contextlib.suppress(OSError):  # nobody reads at the moment
            os.close(os.open(tmp_path / "rank0.0.local.json", os.O_WRONLY | os.O_NONBLOCK))
    assert handler.wait(0)
