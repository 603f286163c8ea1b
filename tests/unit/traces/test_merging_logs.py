"""Logs of several ranks in one order: stamps of every launcher, unknown clocks, order that cannot be known."""

from __future__ import annotations

import json
import logging
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rankclock.errors import UserError
from rankclock.timebase.clock_record import ClockHeader, ClockLine, ClockRecord
from rankclock.traces.log_lines import Zone, rank_of_line, time_of_line
from rankclock.traces.merge_logs import LogCounts, merge_logs
from rankclock.training.log_stamps import ClusterFormatter, ClusterTime, utc_text
from rankclock.wire.clock_record import encode_header, encode_line, file_name

S, MS = 10**9, 10**6
START = 1_796_000_000 * S
OFFSETS = {0: 0, 1: 250 * MS, 2: -3 * S}
ZONE = Zone(year=2026)


@pytest.mark.parametrize(
    ("line", "text", "width_ns"),
    [
        ("2026-11-30 00:53:20,123 INFO trainer: step", "2026-11-30T00:53:20.123000000Z", MS),
        ("[INFO|trainer.py:2128] 2026-11-30 00:53:20,123 >> ***** Running", "2026-11-30T00:53:20.123000000Z", MS),
        ("[rank3]:[W1130 00:53:20.123456789 ProcessGroupNCCL.cpp:1250] x", "2026-11-30T00:53:20.000000000Z", S),
        ("I1130 00:53:20.123456 4711 torch/csrc/x.cpp:9] y", "2026-11-30T00:53:20.123456000Z", 1_000),
        ("[2026-11-30 00:53:20] gpu1:99:123 [0] NCCL INFO Bootstrap", "2026-11-30T00:53:20.000000000Z", S),
        ("2026-11-30T00:53:20.5Z done", "2026-11-30T00:53:20.500000000Z", 100 * MS),
        ("2026-11-30T08:53:20.123456+08:00 done", "2026-11-30T00:53:20.123456000Z", 1_000),
        ("1796000000.25 iteration 4", "2026-11-30T00:53:20.250000000Z", 10 * MS),
        ("[W314 00:53:20.123456789 TCPStore.cpp:125] c10 before October", "2026-03-14T00:53:20.000000000Z", S),
        ("W1130 00:53:20.123000 4711 torch/distributed/run.py:803] z", "2026-11-30T00:53:20.123000000Z", MS),
        ("[default3]:[rank11]:W1130 00:53:20.123456789 9 x.py:3] z", "2026-11-30T00:53:20.123456789Z", 1),
        ("2026/11/30 00:53:20 [error] x", "2026-11-30T00:53:20.000000000Z", S),
    ],
)
def test_stamps_of_many_writers_are_read_as_wide_as_their_last_digit(line: str, text: str, width_ns: int) -> None:
    found = time_of_line(line, ZONE)
    assert found is not None
    assert (utc_text(found.lo_ns), found.hi_ns - found.lo_ns, found.cluster) == (text, width_ns, False)


@pytest.mark.parametrize(
    "line",
    [
        *("", "no stamp", "loss 2026", "2026-13-45 99:00:00 x", "W1399 00:00:00.1 x", "12:00:01"),
        *("loading the checkpoint of 2026-11-30 00:53:20,123", "saved: 2026-11-30T00:53:20Z", "at W1130 00:53:20.1 x"),
    ],
)
def test_what_is_no_stamp_is_text(line: str) -> None:
    assert time_of_line(line, ZONE) is None


def test_a_zone_is_taken_where_the_stamp_names_none() -> None:
    found = time_of_line("2026-11-30 08:53:20,123 x", Zone(offset_s=8 * 3600, year=2026))
    assert found is not None
    assert utc_text(found.lo_ns) == "2026-11-30T00:53:20.123000000Z"


@pytest.mark.parametrize(
    ("line", "rank"),
    [
        ("[rank3]:[W1130 ...", 3),
        ("[default7]: x", None),
        ("[default7]:[rank15]: x", 15),
        ("2026-11-30T00:53:20.1Z ±2 µs rank12 INFO a: b", 12),
        ("x", None),
    ],
)
def test_ranks_are_read_from_prefixes(line: str, rank: int | None) -> None:
    assert rank_of_line(line) == rank


def test_our_own_formatter_is_read_back_with_its_bound() -> None:
    class Clock:
        rank = 5

        def window(self) -> tuple[int, int]:
            return START + 1_000, START + 4_000

    record = logging.LogRecord("job", logging.WARNING, "f", 1, "loss is nan", None, None)
    ClusterTime(Clock()).filter(record)
    line = ClusterFormatter().format(record)
    found = time_of_line(line, ZONE)
    assert found is not None
    assert found.cluster
    assert found.lo_ns <= START + 1_000
    assert found.hi_ns >= START + 4_000
    assert rank_of_line(line) == 5


def record_of(rank: int) -> ClockRecord:
    """A clock that is OFFSETS[rank] ahead, known to ±2 µs."""
    offset_ns = OFFSETS[rank]
    lines = tuple(
        ClockLine(
            real_ns=START + at * S + offset_ns,
            raw_ns=at * S,
            lo_ns=offset_ns - 2_000,
            hi_ns=offset_ns + 2_000,
            est_ns=offset_ns,
            rate_ppb=0.0,
        )
        for at in range(-5, 65)
    )
    header = ClockHeader(job="j", rank=rank, host="h", clock_id="c", reference="r", growth_ppb=100)
    return ClockRecord(header=header, lines=lines)


def write_logs(folder: Path, *, seed: int, count: int = 200) -> list[tuple[int, int]]:
    """Lines of three ranks at known true times, written with each rank's own clock; gives (true ns, rank)."""
    chance = random.Random(seed)
    truth = sorted((START + chance.randrange(60 * S), chance.randrange(3)) for _ in range(count))
    for rank, offset_ns in OFFSETS.items():
        lines = []
        for at_ns, who in truth:
            if who == rank:
                local = utc_text(at_ns + offset_ns)
                lines.append(f"{local[:10]} {local[11:26].replace('.', ',')} INFO true={at_ns}\n  a second line\n")
        (folder / f"rank{rank}.log").write_text("".join(lines), encoding="utf-8")
        text = encode_header(record_of(rank).header) + "".join(map(encode_line, record_of(rank).lines))
        (folder / file_name(rank)).write_text(text, encoding="utf-8")
    return truth


@pytest.mark.parametrize("seed", range(3))
def test_merged_lines_are_in_true_order_wherever_they_are_not_marked(tmp_path: Path, seed: int) -> None:
    truth = write_logs(tmp_path, seed=seed)
    counts = LogCounts()
    paths = [tmp_path / f"rank{rank}.log" for rank in OFFSETS]
    records = [record_of(rank) for rank in OFFSETS]
    merged = list(merge_logs(paths, records, ranks={}, zone=ZONE, counts=counts))
    assert (counts.entries, counts.lines, counts.unknown_clock) == (len(truth), 2 * len(truth), 0)
    latest = 0
    for line in merged:
        true_ns = int(line.text.split("true=")[1].split("\n")[0])
        assert line.lo_ns <= true_ns <= line.hi_ns
        assert line.unsure or true_ns >= latest
        assert line.text.endswith("  a second line")
        latest = max(latest, true_ns)
    assert counts.unsure < len(truth) / 10


def test_lines_that_are_closer_together_than_their_stamps_can_tell_are_marked(tmp_path: Path) -> None:
    (tmp_path / "rank0.log").write_text("2026-11-30 00:53:25 a\n", encoding="utf-8")
    (tmp_path / "rank1.log").write_text("2026-11-30 00:53:25,400 b\n", encoding="utf-8")
    paths = [tmp_path / "rank0.log", tmp_path / "rank1.log"]
    merged = list(merge_logs(paths, [record_of(0), record_of(1)], ranks={}, zone=ZONE, counts=LogCounts()))
    assert [line.unsure for line in merged] == [False, True]


def test_a_rank_within_a_node_counts_from_the_rank_that_is_given(tmp_path: Path) -> None:
    path = tmp_path / "node1.log"
    text = "2026-11-30 00:53:25,100 INFO {}\n"
    path.write_text("".join(f"[default{n}]:{text.format(n)}" for n in range(2)), encoding="utf-8")
    records = [record_of(1), record_of(2)]
    with pytest.raises(UserError, match="rank within a node"):
        list(merge_logs([path], records, ranks={}, zone=ZONE, counts=LogCounts()))
    merged = list(merge_logs([path], records, ranks={path: 1}, zone=ZONE, counts=LogCounts()))
    assert [line.rank for line in merged] == [1, 2]


def test_records_of_two_jobs_share_no_cluster_time(tmp_path: Path) -> None:
    write_logs(tmp_path, seed=1, count=5)
    other = replace(record_of(1), header=replace(record_of(1).header, job="another"))
    with pytest.raises(UserError, match="clock records of 2 jobs"):
        list(merge_logs([tmp_path / "rank0.log"], [record_of(0), other], ranks={}, zone=ZONE, counts=LogCounts()))
    # One that knows nothing stands in nobody's way: it may not even know its job.
    empty = replace(other, lines=())
    assert list(merge_logs([tmp_path / "rank0.log"], [record_of(0), empty], ranks={}, zone=ZONE, counts=LogCounts()))


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "rankclock", "logs", "merge", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)


def test_the_command_merges_by_the_records_beside_the_logs(tmp_path: Path) -> None:
    truth = write_logs(tmp_path, seed=9, count=30)
    done = command(*(str(tmp_path / f"rank{rank}.log") for rank in OFFSETS), "--year", "2026")
    assert done.returncode == 0, done.stderr
    order = [int(line.split("true=")[1]) for line in done.stdout.splitlines() if "true=" in line]
    assert len(order) == len(truth)
    assert done.stderr.startswith("60 lines, 30 stamped")


def test_a_rank_without_a_record_stands_by_its_own_clock_marked(tmp_path: Path) -> None:
    write_logs(tmp_path, seed=9, count=30)
    (tmp_path / file_name(2)).unlink()
    done = command(*(str(tmp_path / f"rank{rank}.log") for rank in OFFSETS))
    assert done.returncode == 4
    assert "clocks unknown: ranks [2]" in done.stderr
    assert all("? rank2" in line for line in done.stdout.splitlines() if "rank2" in line)


@pytest.mark.parametrize(
    ("name", "text", "options", "why"),
    [
        ("some.log", "2026-11-30 00:53:25 a\n", (), "no rank in the file's name or its lines"),
        ("rank0.log", "a\nb\n", (), "no line has a time stamp"),
        ("rank0.log", "2026-11-30 00:53:25 a\n", ("--zone", "CET"), "expected UTC or an offset"),
    ],
)
def test_what_cannot_be_merged_is_one_line(
    tmp_path: Path, name: str, text: str, options: tuple[str, ...], why: str
) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    done = command(str(tmp_path / name), *options)
    assert done.returncode == 2
    assert why in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_json_is_one_object_written_as_it_goes_with_the_same_entries_as_the_text(tmp_path: Path) -> None:
    for rank in range(2):
        with (tmp_path / f"rank{rank}.log").open("w") as file:
            for number in range(6_000):
                file.write(f"2026-03-14 12:{number // 100 % 60:02d}:00,{rank:03d} INFO {'x' * 2000}\n")
    files = [str(tmp_path / f"rank{rank}.log") for rank in range(2)]
    program = (
        "import sys\nfrom rankclock.__main__ import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        # A child's ru_maxrss begins at its parent's: only this is its own.
        "peak = open('/proc/self/status').read().partition('VmHWM:')[2].split()[0]\n"
        "sys.stderr.write(f'peak {peak}')\n"
    )
    peaks, outputs = [], []
    for more in ([], ["--json"]):
        argv = [sys.executable, "-c", program, "logs", "merge", *files, *more]
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
        peaks.append(int(done.stderr.rpartition("peak ")[2]))
        outputs.append(done.stdout)
    value = json.loads(outputs[1])
    assert (value["schema"], value["lines"], len(value["entries"])) == ("rankclock-logs/1", 12_000, 12_000)
    assert [entry["rank"] for entry in value["entries"]] == [
        int(line.partition("rank")[2][0]) for line in outputs[0].splitlines()
    ]
    assert peaks[1] < peaks[0] + 8_000, f"KiB, text and JSON: {peaks}"
