"""What is written opens in Perfetto's own trace processor, with every event where it belongs."""

from __future__ import annotations

import gzip
import json
import os
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.perfetto.trace_processor import ask
from tests.unit.traces.test_alignment import performed, recorded

from rankclock.errors import UserError
from rankclock.traces.align import align
from rankclock.traces.archive import MANIFEST, write_archive
from rankclock.traces.digest import TraceDigest
from rankclock.traces.read import by_rank, read_files
from rankclock.traces.rewrite import common_base_ns, merged, rewritten
from rankclock.traces.synthetic import SyntheticJob
from rankclock.traces.timemap import Alignment

STEPS = "select name, ts, dur from slice where name glob 'ProfilerStep#*' order by name, ts"
PROBLEMS = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"
BOUND_NS = 5_000


def aligned(folder: Path) -> tuple[SyntheticJob, dict[int, TraceDigest], Alignment]:
    job, paths = performed(folder, ranks=2, ranks_per_host=1, max_rate_ppb=100)
    digests = by_rank(read_files(paths))
    return job, digests, align(digests, [recorded(job, rank, seed=1) for rank in range(2)])


def in_truth(job: SyntheticJob, *ranks: int) -> list[tuple[str, int]]:
    return sorted((f"ProfilerStep#{number}", start) for rank in ranks for number, start, _ in job.steps[rank])


def assert_near(rows: list[dict[str, Any]], truth: list[tuple[str, int]], base_ns: int) -> None:
    assert [row["name"] for row in rows] == [name for name, _ in truth]
    assert all(abs(row["ts"] + base_ns - true_ns) <= BOUND_NS for row, (_, true_ns) in zip(rows, truth, strict=True))


def test_rewritten_traces_open_and_stand_in_cluster_time(tmp_path: Path) -> None:
    job, digests, alignment = aligned(tmp_path)
    base_ns = common_base_ns(digests)
    out = tmp_path / "rank1.json"
    out.write_bytes(b"".join(rewritten(digests[1], alignment.ranks[1], alignment, base_ns)))
    steps, problems = ask(out, STEPS, PROBLEMS)
    assert problems == []
    assert_near(steps, in_truth(job, 1), base_ns)


def test_a_merged_trace_opens_with_all_events_of_all_ranks_in_cluster_time(tmp_path: Path) -> None:
    job, digests, alignment = aligned(tmp_path)
    base_ns = common_base_ns(digests)
    out = tmp_path / "merged.json"
    out.write_bytes(b"".join(merged(digests, alignment, base_ns)))
    steps, problems, (count,) = ask(out, STEPS, PROBLEMS, "select count(*) as n from slice where dur >= 0")
    assert problems == []
    # Instants are slices without length there.
    assert count["n"] == sum(digest.valid_spans + digest.phases.get("i", 0) for digest in digests.values())
    assert_near(steps, in_truth(job, 0, 1), base_ns)


@pytest.mark.parametrize("form", ["zip", "tar"])
def test_an_archive_opens_with_every_trace_in_it(tmp_path: Path, form: str) -> None:
    job, digests, alignment = aligned(tmp_path)
    out = tmp_path / f"all.{form}"
    write_archive(out, digests, alignment, {rank: f"rank{rank}.json" for rank in digests}, tar=form == "tar")
    steps, problems, files = ask(out, STEPS, PROBLEMS, "select name, trace_type from __intrinsic_trace_file")
    assert problems == []
    # v52 puts a slash before a tar's names; later versions, which read manifests, do not.
    assert {row["name"].strip("/") for row in files if row["trace_type"] == "json"} >= {"rank0.json", "rank1.json"}
    assert len(steps) == sum(len(job.steps[rank]) for rank in range(2))


def test_an_archive_of_packed_traces_opens(tmp_path: Path) -> None:
    job, paths = performed(tmp_path, ranks=2, ranks_per_host=1, max_rate_ppb=100)
    for path in paths:
        path.write_bytes(gzip.compress(path.read_bytes()))
    digests = by_rank(read_files(paths))
    out = tmp_path / "all.zip"
    write_archive(out, digests, align(digests, [recorded(job, rank, seed=1) for rank in range(2)]), {0: "a", 1: "b"})
    steps, problems = ask(out, STEPS, PROBLEMS)
    assert problems == [] and len(steps) == sum(len(job.steps[rank]) for rank in range(2))


def test_the_manifest_keeps_every_rule_of_perfettos_reference(tmp_path: Path) -> None:
    _, digests, alignment = aligned(tmp_path)
    write_archive(tmp_path / "all.zip", digests, alignment, {rank: f"rank{rank}.json" for rank in digests})
    with zipfile.ZipFile(tmp_path / "all.zip") as archive:
        members, text = set(archive.namelist()), archive.read(MANIFEST)
    # It is known by how it begins, white space aside; what is said of a field that is not known is ignored.
    assert b"".join(text[:60].split()).startswith(b'{"perfetto_manifest"')
    (manifest,) = json.loads(text).values()
    assert manifest.keys() == {"version", "files", "attributes"} and manifest["version"] == 1
    paths = [entry["path"] for entry in manifest["files"]]
    assert set(paths) == members - {MANIFEST} and len(paths) == len(set(paths))
    names = [entry["machine"]["name"] for entry in manifest["files"]]
    assert all(names) and len(names) == len(set(names))
    pinned = [entry["clocks"] for entry in manifest["files"] if "clocks" in entry]
    assert len(pinned) == len(paths) - 1
    for clocks in pinned:
        # Without "clock": the file has none, and is pinned to the other's own timeline.
        assert clocks.keys() == {"sync_to", "offset_ns"} and clocks["sync_to"].keys() == {"file"}
        assert clocks["sync_to"]["file"] in paths
        assert isinstance(clocks["offset_ns"], int) and abs(clocks["offset_ns"]) < 2**63
    assert all(key and isinstance(value, str | int) for key, value in manifest["attributes"].items())


def test_more_than_perfetto_reads_in_a_zip_is_refused_with_the_way_out(tmp_path: Path) -> None:
    _, digests, alignment = aligned(tmp_path)
    large = {rank: replace(digest, size=1_500_000_000) for rank, digest in digests.items()}
    with pytest.raises(UserError, match=r"name the output \.tar"):
        write_archive(tmp_path / "all.zip", large, alignment, {rank: f"rank{rank}.json" for rank in digests})


@pytest.mark.skipif("TRACE_PROCESSOR_SHELL" not in os.environ, reason="needs a trace processor that knows manifests")
def test_the_archives_manifest_brings_the_ranks_together(tmp_path: Path) -> None:
    job, digests, alignment = aligned(tmp_path)
    out = tmp_path / "all.zip"
    write_archive(out, digests, alignment, {rank: f"rank{rank}.json" for rank in digests})
    (steps,) = ask(out, STEPS)
    # The archive's zero is a file's own: all that counts is that the same shift holds for every step of both ranks.
    shifts = [row["ts"] - true_ns for row, (_, true_ns) in zip(steps, in_truth(job, 0, 1), strict=True)]
    assert max(shifts) - min(shifts) <= 2 * BOUND_NS
