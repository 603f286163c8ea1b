"""Traces read by the workers of a dask scheduler give what reading here gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from distributed import LocalCluster
from rankclock.errors import UserError
from rankclock.traces.read import read_files
from rankclock.traces.recover import recover
from rankclock.traces.synthetic import Job, SyntheticJob, write_traces


def test_workers_of_a_dask_scheduler_read_the_same_and_say_the_same_of_bad_files(tmp_path: Path) -> None:
    paths = write_traces(SyntheticJob(Job(ranks=3, ranks_per_host=1)), tmp_path)
    cluster = LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None, protocol="tcp://")
    with cluster:
        address = cluster.scheduler_address
        there = read_files(paths, scheduler=address)
        with pytest.raises(UserError, match="cannot be read"):
            read_files([*paths, tmp_path / "missing.json"], scheduler=address)
    here = read_files(paths)
    for one, other in zip(here, there, strict=True):
        (mine,), (theirs,) = one.traces, other.traces
        assert (mine.path, mine.rank, mine.read, mine.first_ns) == (
            theirs.path,
            theirs.rank,
            theirs.read,
            theirs.first_ns,
        )
        assert np.array_equal(mine.collectives.start_ns, theirs.collectives.start_ns)
    digests = {file.traces[0].rank or 0: file.traces[0] for file in there}
    assert not recover(digests).inconsistent
