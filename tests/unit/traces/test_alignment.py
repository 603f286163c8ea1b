"""Traces with recorded clocks: every stamp's truth lies inside its bound, in whatever form they are written."""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zstandard

from rankclock.errors import ExitCode, UserError
from rankclock.timebase.clock_record import ClockEvent, ClockHeader, ClockLine, ClockRecord
from rankclock.traces.align import align, find_records, read_records
from rankclock.traces.archive import MANIFEST, manifest, write_archive
from rankclock.traces.happens_before import check_order
from rankclock.traces.read import by_rank, read_files
from rankclock.traces.recover import recover
from rankclock.traces.rewrite import common_base_ns, merged, rewritten, write_rewritten
from rankclock.traces.stragglers import find_stragglers
from rankclock.traces.synthetic import START_TRUE_NS, HostClock, Job, SyntheticJob, write_traces
from rankclock.wire.clock_record import METADATA_KEY, encode_header, encode_line, encode_object, file_name

S, MS = 10**9, 10**6


def recorded(job: SyntheticJob, rank: int, *, seed: int, every_ns: int = S // 5, bound_ns: int = 2_000) -> ClockRecord:
    """What a rank clock would have recorded: intervals that contain the truth, not centred on it."""
    clock, chance = job.clock_of(rank), random.Random(seed * 1000 + rank)
    lines, before = [], None
    for after_ns in range(-2 * S, 4 * S, every_ns):
        true_ns = START_TRUE_NS + after_ns
        offset_ns = clock.offset_at(true_ns)
        left_ns = chance.randrange(2 * bound_ns)
        stepped = clock.step_at_ns is not None and before is not None and before < clock.step_at_ns <= after_ns
        line = ClockLine(
            real_ns=true_ns + offset_ns,
            raw_ns=true_ns,
            lo_ns=offset_ns - left_ns,
            hi_ns=offset_ns + 2 * bound_ns - left_ns,
            est_ns=offset_ns + bound_ns - left_ns,
            rate_ppb=float(clock.rate_ppb),
            event=ClockEvent.STEP if stepped else None,
        )
        lines.append(line)
        before = after_ns
    header = ClockHeader(
        job="job", rank=rank, host=f"h{job.host_of(rank)}", clock_id=f"c{job.host_of(rank)}", reference="truth",
        growth_ppb=1_000,
    )  # fmt: skip
    return ClockRecord(header=header, lines=tuple(lines))


def performed(tmp_path: Path, *, inside: bool = False, **options: Any) -> tuple[SyntheticJob, list[Path]]:
    """A job's traces, with its clock records inside them or beside them."""
    job = SyntheticJob(Job(**options))
    paths = list(write_traces(job, tmp_path))
    for rank in range(job.job.ranks):
        record = recorded(job, rank, seed=job.job.seed)
        if inside:
            (path,) = [path for path in paths if f"{rank}" in path.name]
            value = json.loads(path.read_text())
            path.write_text(json.dumps({**value, METADATA_KEY: encode_object(record)}))
        else:
            text = encode_header(record.header) + "".join(map(encode_line, record.lines))
            (tmp_path / file_name(rank)).write_text(text, encoding="utf-8")
    return job, paths


def true_starts(job: SyntheticJob, rank: int) -> dict[int, int]:
    """Of the rank's communication spans: the stamp in the trace to true time. Stamps are off by less than 1 µs."""
    clock = job.clock_of(rank)
    return {span.start_ns + clock.offset_at(span.start_ns): span.start_ns for span in job.spans[rank]}


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_every_stamps_truth_lies_inside_its_bound(tmp_path: Path, inside: bool, seed: int) -> None:
    job, paths = performed(tmp_path, inside=inside, ranks=4, ranks_per_host=2, seed=seed)
    digests = by_rank(read_files(paths))
    alignment = align(digests, read_records(find_records(paths)))
    assert (alignment.reference, alignment.problems) == ("truth", ())
    checked = 0
    for rank in digests:
        for local_ns, true_ns in true_starts(job, rank).items():
            found = alignment.ranks[rank].offset_at(local_ns)
            assert found is not None
            assert found[0] <= local_ns - true_ns <= found[2]
            assert found[2] - found[0] < 10_000
            checked += 1
    assert checked > 100


def test_a_step_inside_the_window_widens_every_bound_by_it_and_is_said(tmp_path: Path) -> None:
    job, paths = performed(tmp_path, ranks=2, ranks_per_host=1, one_step_ns=3 * MS, steps=30, seed=3)
    stepped = [rank for rank in (0, 1) if job.clock_of(rank).step_at_ns is not None]
    digests = by_rank(read_files(paths))
    alignment = align(digests, read_records(find_records(paths)))
    assert stepped
    for rank in stepped:
        assert any("smears" in note for note in alignment.ranks[rank].notes)
        for local_ns, true_ns in true_starts(job, rank).items():
            found = alignment.ranks[rank].offset_at(local_ns)
            assert found is not None
            assert found[0] <= local_ns - true_ns <= found[2]
            assert found[2] - found[0] > 6 * MS
    assert any("smears" in problem for problem in alignment.problems)


def test_a_rank_without_a_record_is_unknown_with_the_way_out(tmp_path: Path) -> None:
    _, paths = performed(tmp_path, ranks=2, ranks_per_host=1)
    (tmp_path / file_name(1)).unlink()
    alignment = align(by_rank(read_files(paths)), read_records(find_records(paths)))
    assert alignment.ranks[0].known
    assert not alignment.ranks[1].known
    assert "rankclock trace recover" in alignment.ranks[1].unknown_why


def test_records_of_another_job_share_no_cluster_time(tmp_path: Path) -> None:
    _, paths = performed(tmp_path, ranks=3, ranks_per_host=1)
    path = tmp_path / file_name(2)
    path.write_text(path.read_text().replace('"job": "job"', '"job": "older"').replace('"job":"job"', '"job":"older"'))
    alignment = align(by_rank(read_files(paths)), read_records(find_records(paths)))
    assert [alignment.ranks[rank].known for rank in range(3)] == [True, True, False]
    assert "another job" in alignment.ranks[2].unknown_why


def test_a_record_from_another_time_says_nothing(tmp_path: Path) -> None:
    job, paths = performed(tmp_path, ranks=2, ranks_per_host=1)
    old = recorded(job, 1, seed=0)
    lines = [encode_line(line) for line in old.lines if line.raw_ns < START_TRUE_NS - 1_500_000_000]
    moved = [json.loads(line) for line in lines]
    for line in moved:
        line["real_ns"] -= 3600 * S
        line["raw_ns"] -= 3600 * S
    text = encode_header(old.header) + "".join(json.dumps(line) + "\n" for line in moved)
    (tmp_path / file_name(1)).write_text(text, encoding="utf-8")
    alignment = align(by_rank(read_files(paths)), read_records(find_records(paths)))
    assert alignment.ranks[1].unknown_why == "it was read after the record ends"


def test_a_damaged_record_is_one_line_with_its_place(tmp_path: Path) -> None:
    _, paths = performed(tmp_path, ranks=2, ranks_per_host=1)
    path = tmp_path / file_name(1)
    path.write_text(path.read_text().replace('"lo_ns"', '"low_ns"', 1))
    with pytest.raises(UserError, match=r"rank1\.jsonl: not a clock record: line 2"):
        read_records(find_records(paths))


# ---- what is written ----


def stamps(trace: dict[str, Any]) -> list[int]:
    base_ns = trace["baseTimeNanoseconds"]
    return [base_ns + round(event["ts"] * 1000) for event in trace["traceEvents"] if event.get("ph") == "X"]


def test_a_rewritten_trace_differs_in_its_stamps_alone_and_they_are_cluster_time(tmp_path: Path) -> None:
    job, paths = performed(tmp_path, ranks=2, ranks_per_host=1, seed=5)
    digests = by_rank(read_files(paths))
    alignment = align(digests, read_records(find_records(paths)))
    base_ns = common_base_ns(digests)
    for rank, digest in digests.items():
        before = json.loads(digest.path.read_text())
        after = json.loads(b"".join(rewritten(digest, alignment.ranks[rank], alignment, base_ns)))
        assert after.pop("rankclock_alignment")["rank"] == rank
        truth = true_starts(job, rank)
        for local_ns, cluster_ns in zip(stamps(before), stamps(after), strict=True):
            found = alignment.ranks[rank].offset_at(local_ns)
            assert found is not None
            assert abs(local_ns - cluster_ns - found[1]) <= 1
            near = min(truth, key=lambda stamp, local_ns=local_ns: abs(stamp - local_ns))
            if abs(near - local_ns) < 500:
                assert abs(cluster_ns - truth[near]) < 10_000 + 1_000
        for trace in (before, after):
            trace.pop("baseTimeNanoseconds")
            for event in trace["traceEvents"]:
                event.pop("ts", None)
        assert before == after


def test_several_processes_rewrite_the_same_and_say_the_same_of_what_they_refuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, paths = performed(tmp_path, ranks=2, ranks_per_host=1)
    digests = by_rank(read_files(paths))
    alignment = align(digests, [recorded(job, rank, seed=4) for rank in range(2)])
    monkeypatch.setattr("rankclock.traces.processes.SEVERAL_PROCESSES_FROM", 0)
    for jobs in (1, 2):
        (tmp_path / str(jobs)).mkdir()
        write_rewritten(digests, alignment, tmp_path / str(jobs), jobs=jobs)
    for rank in range(2):
        name = f"rank{rank}.json"
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()
    nested = paths[1].read_bytes().replace(b'"args": {', b'"args": {"ts": 1.000, ', 1)
    paths[1].write_bytes(nested)
    damaged = by_rank(read_files(paths))
    with pytest.raises(UserError, match="inside of arguments"):
        write_rewritten(damaged, alignment, tmp_path / "2", jobs=2)


def test_a_trace_in_cluster_time_is_never_corrected_twice(tmp_path: Path) -> None:
    job, paths = performed(tmp_path, inside=True, ranks=2, ranks_per_host=1, seed=5)
    digests = by_rank(read_files(paths))
    first = align(digests)
    again = tmp_path / "again"
    again.mkdir()
    for rank, digest in digests.items():
        pieces = rewritten(digest, first.ranks[rank], first, common_base_ns(digests))
        (again / f"rank{rank}.json").write_bytes(b"".join(pieces))
    written = by_rank(read_files(sorted(again.iterdir())))
    # The clock records are in them still, and beside them.
    second = align(written, [recorded(job, rank, seed=5) for rank in digests])
    assert second.reference == first.reference == "truth"
    for rank, digest in written.items():
        assert digest.first_ns is not None
        found = second.ranks[rank].offset_at(digest.first_ns)
        bound_ns = digest.aligned["bound_ns"]
        assert found == (-bound_ns, 0, bound_ns)
    mixed = align({0: written[0], 1: digests[1]})
    assert mixed.ranks[0].offset_at(written[0].first_ns or 0) == second.ranks[0].offset_at(written[0].first_ns or 0)
    assert mixed.ranks[1] == first.ranks[1]
    other = replace(written[0], aligned={**written[0].aligned, "reference": "another"})
    assert "of another reference" in align({0: other, 1: written[1]}).ranks[1].unknown_why
    silent = replace(written[0], aligned={"reference": "truth"})
    assert "states no bound" in align({0: silent}).ranks[0].unknown_why


def test_a_merged_trace_has_every_event_once_and_keeps_the_ranks_apart(tmp_path: Path) -> None:
    _, paths = performed(tmp_path, ranks=4, ranks_per_host=2, seed=6)
    digests = by_rank(read_files(paths))
    alignment = align(digests, read_records(find_records(paths)))
    whole = json.loads(b"".join(merged(digests, alignment, common_base_ns(digests))))
    labels = [event for event in whole["traceEvents"] if event["name"] in ("process_labels", "process_sort_index")]
    ours = [event for event in labels if str(event["args"]).count("rank") or event["name"] == "process_sort_index"]
    count = sum(len(json.loads(path.read_text())["traceEvents"]) for path in paths)
    assert len(whole["traceEvents"]) - count <= len(ours)
    assert {one["rank"] for one in whole["rankclock_alignment"]["ranks"]} == set(range(4))
    assert all(one["bound_ns"] < 10_000 for one in whole["rankclock_alignment"]["ranks"])
    by_process: dict[int, int] = {}
    for event in whole["traceEvents"]:
        by_process[event["pid"]] = by_process.get(event["pid"], 0) + 1
    assert len(by_process) >= 4


def test_an_archive_holds_the_traces_as_they_are_and_one_offset_each(tmp_path: Path) -> None:
    job, paths = performed(tmp_path, ranks=2, ranks_per_host=1, max_rate_ppb=100, seed=7)
    out = tmp_path / "aligned.zip"
    done = rankclock("align", *map(str, paths), "-o", str(out))
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(out) as archive:
        said = json.loads(archive.read(MANIFEST))["perfetto_manifest"]
        assert archive.read("rank0.json") == paths[0].read_bytes()
    assert said["version"] == 1
    assert [one["path"] for one in said["files"]] == ["rank0.json", "rank1.json"]
    (clocks,) = [one["clocks"] for one in said["files"] if "clocks" in one]
    bases = [json.loads(path.read_text())["baseTimeNanoseconds"] for path in paths]
    # At one true instant file 0 reads t0 = true + offset0 - base0: Perfetto places file 1's T at T + offset_ns.
    at = START_TRUE_NS + 200 * MS
    own = [at + job.clock_of(rank).offset_at(at) - bases[rank] for rank in (0, 1)]
    assert clocks["sync_to"] == {"file": "rank0.json"}
    assert abs(own[0] - own[1] - clocks["offset_ns"]) <= 2 * said["attributes"]["rankclock.bound_ns"]


@pytest.mark.parametrize("packing", ["gz", "zst"])
def test_packed_traces_lie_unpacked_in_an_archive_since_entries_speak_of_members(tmp_path: Path, packing: str) -> None:
    _, paths = performed(tmp_path, inside=True, ranks=2, ranks_per_host=1, max_rate_ppb=100, seed=7)
    texts = [path.read_bytes() for path in paths]
    packed = []
    for path, text in zip(paths, texts, strict=True):
        packed.append(path.with_name(f"{path.name}.{packing}"))
        packed[-1].write_bytes(gzip.compress(text) if packing == "gz" else zstandard.compress(text))
    out = tmp_path / "aligned.zip"
    done = rankclock("align", *map(str, packed), "-o", str(out))
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(out) as archive:
        assert archive.testzip() is None
        files = json.loads(archive.read(MANIFEST))["perfetto_manifest"]["files"]
        assert [archive.read(one["path"]) for one in files] == texts
    assert out.stat().st_size < sum(map(len, texts)) / 2


def test_a_tar_holds_the_same_as_a_zip_with_packed_traces_unpacked(tmp_path: Path) -> None:
    job, paths = performed(tmp_path, ranks=2, ranks_per_host=1, max_rate_ppb=100)
    texts = [path.read_bytes() for path in paths]
    paths[1].write_bytes(gzip.compress(texts[1]))
    digests = by_rank(read_files(paths))
    alignment = align(digests, [recorded(job, rank, seed=3) for rank in range(2)])
    said = write_archive(tmp_path / "a.tar", digests, alignment, {0: "rank0.json", 1: "rank1.json"}, tar=True)
    with tarfile.open(tmp_path / "a.tar") as archive:
        members = {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]
    assert json.loads(members.pop(MANIFEST)) == said
    assert members == {"rank0.json": texts[0], "rank1.json": texts[1]}


def test_nothing_in_an_archive_lies_before_the_zero_of_its_timeline(tmp_path: Path) -> None:
    """Perfetto drops such events: the file's time that reads most is taken, and where none does, it is said."""
    _, paths = performed(tmp_path, inside=True, ranks=2, ranks_per_host=1, max_rate_ppb=100, seed=7)
    digests = by_rank(read_files(paths))
    alignment = align(digests)
    for first, second in ((0, 5 * MS), (5 * MS, 0), (300 * MS, 300 * MS)):
        moved = {
            rank: replace(digest, base_ns=(digest.first_ns or 0) - at_ns)
            for (rank, digest), at_ns in zip(digests.items(), (first, second), strict=True)
        }
        try:
            said = manifest(moved, alignment, {0: "a", 1: "b"})["perfetto_manifest"]["files"]
        except UserError as error:
            assert "before its 0" in str(error)
            assert (first, second) != (300 * MS, 300 * MS)
            continue
        for entry, digest in zip(said, moved.values(), strict=True):
            starts_ns = (digest.first_ns or 0) - (digest.base_ns or 0)
            assert starts_ns + entry.get("clocks", {"offset_ns": 0})["offset_ns"] >= 0


def test_an_archive_is_refused_where_the_clocks_drift_more_than_their_bounds(tmp_path: Path) -> None:
    _, paths = performed(tmp_path, ranks=2, ranks_per_host=1, max_rate_ppb=200_000, steps=40, seed=8)
    digests = by_rank(read_files(paths))
    alignment = align(digests, read_records(find_records(paths)))
    with pytest.raises(UserError, match="use --format rewritten or merged"):
        manifest(digests, alignment, {0: "a", 1: "b"})


def test_nested_stamps_and_lists_without_an_end_are_refused_and_nothing_is_left(tmp_path: Path) -> None:
    _, paths = performed(tmp_path, ranks=2, ranks_per_host=1)
    text = paths[0].read_text()
    for damage, why in (
        (text.replace('"args": {', '"args": {"ts": 5, ', 1), "inside of arguments"),
        (text[:-400], "end"),
    ):
        paths[0].write_text(damage)
        done = rankclock("align", *map(str, paths), "--format", "merged", "-o", str(tmp_path / "m.json"))
        assert done.returncode == 2, done.stderr
        assert why in done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert not list(tmp_path.glob("*m.json*"))


# ---- order and stragglers ----


def test_aligned_collectives_are_in_order_and_unaligned_ones_are_not(tmp_path: Path) -> None:
    job, paths = performed(tmp_path, ranks=4, ranks_per_host=1, seed=9)
    assert max(abs(clock.offset_ns) for clock in job.clocks) > 10 * MS
    digests = by_rank(read_files(paths))
    good = check_order(digests, align(digests, read_records(find_records(paths))))
    assert (good.violated, good.exit_code) == (0, ExitCode.OK)
    assert good.held > 20
    wrong = {rank: recorded(_JobWith(job, HostClock()), rank, seed=1) for rank in digests}
    bad = check_order(digests, align(digests, list(wrong.values())))
    assert bad.violated > 10
    assert bad.exit_code is ExitCode.CHECK_FAILED
    assert "before rank" in bad.lines()[1]


class _JobWith:
    """A job whose records lie: every host is said to have this clock."""

    def __init__(self, job: SyntheticJob, clock: HostClock) -> None:
        self._job, self._clock = job, clock

    def clock_of(self, _rank: int) -> HostClock:
        return self._clock

    def host_of(self, rank: int) -> int:
        return self._job.host_of(rank)


@pytest.mark.parametrize("late_ms", [1, 5, 20])
def test_a_planted_straggler_is_named_with_its_amount_though_clocks_are_250_ms_apart(
    tmp_path: Path, late_ms: int
) -> None:
    _, paths = performed(
        tmp_path, ranks=4, ranks_per_host=1, steps=20, jitter=0.002, max_offset_ns=250 * MS,
        straggler={2: late_ms * MS}, seed=late_ms,
    )  # fmt: skip
    digests = by_rank(read_files(paths))
    report = find_stragglers(digests, align(digests, read_records(find_records(paths))))
    assert report.exit_code is ExitCode.CHECK_FAILED
    named = [group for group in report.groups if group.named is not None]
    assert {group.named for group in named} == {2}
    assert any(abs((group.late_median_ns or 0) - late_ms * MS) < 0.4 * late_ms * MS for group in named)
    assert not any(group.disagree for group in named)
    assert 'rank="2"' in report.prometheus()
    assert f"rank {2} is waited for" in "\n".join(report.lines())


@pytest.mark.parametrize("seed", range(5))
def test_nobody_is_named_in_a_balanced_job(tmp_path: Path, seed: int) -> None:
    _, paths = performed(tmp_path, ranks=4, ranks_per_host=1, steps=20, jitter=0.05, seed=seed)
    digests = by_rank(read_files(paths))
    report = find_stragglers(digests, align(digests, read_records(find_records(paths))))
    assert [group.named for group in report.groups] == [None] * len(report.groups)


def test_bounds_larger_than_the_effect_name_nobody(tmp_path: Path) -> None:
    """The same straggler through recovered clocks whose bounds are wide: refused or right, never wrong."""
    _, paths = performed(tmp_path, ranks=4, ranks_per_host=1, steps=20, straggler={2: 1 * MS}, jitter=0.002, seed=2)
    digests = by_rank(read_files(paths))
    report = find_stragglers(digests, recover(digests).alignment)
    assert all(group.named in (None, 2) for group in report.groups)


# ---- the commands ----


def rankclock(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "rankclock", "trace", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)


def test_the_commands_answer_in_text_and_json(tmp_path: Path) -> None:
    _, paths = performed(tmp_path, ranks=2, ranks_per_host=1, straggler={1: 5 * MS}, steps=12, seed=4)
    names = list(map(str, paths))
    for command, schema in (
        ("info", "rankclock-trace-info/1"),
        ("align", "rankclock-alignment/1"),
        ("recover", "rankclock-alignment/1"),
        ("stragglers", "rankclock-stragglers/1"),
        ("check", "rankclock-trace-check/1"),
    ):
        text = rankclock(command, *names)
        value = rankclock(command, *names, "--json")
        assert text.returncode == value.returncode, (command, text.stderr, value.stderr)
        assert "Traceback" not in text.stderr + value.stderr
        assert json.loads(value.stdout)["schema"] == schema
        assert text.stdout.strip()


def test_wrong_use_is_one_line(tmp_path: Path) -> None:
    _, paths = performed(tmp_path, ranks=2, ranks_per_host=1)
    for arguments in (
        ("align", str(tmp_path / "missing.json")),
        ("align", str(paths[0]), "--clock", str(tmp_path / "nowhere.jsonl")),
        ("align", *map(str, paths), "-o", str(tmp_path / "x"), "--format", "csv"),
        ("align", *map(str, paths), "-o", str(tmp_path / "no/such/folder/x.zip")),
        ("recover", str(paths[0])),
        ("info", str(tmp_path)),
        ("align", str(paths[0]), "--rank", "other.json=1"),
    ):
        done = rankclock(*arguments)
        assert done.returncode in (2, 3), arguments
        assert len(done.stderr.splitlines()) == 1, done.stderr
        assert "Traceback" not in done.stderr
