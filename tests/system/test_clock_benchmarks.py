"""The benchmarks of the rank clock, short: they run, every bound holds, and the goals are met with room to spare."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankclock.lab import Lab, Scenario

ROOT = Path(__file__).parents[2]


def bench(name: str, *arguments: str) -> Any:
    """What `python -m benchmarks.NAME --json` prints; it exits with 1 where a bound did not hold."""
    command = [sys.executable, "-m", f"benchmarks.{name}", *arguments, "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def namespaces(lab_of: Callable[[Scenario], Lab], flat: Callable[..., Scenario]) -> None:
    """Skipped where this machine forbids namespaces or has no compiler, with that as the reason."""
    lab_of(flat(1))


@pytest.mark.lab
def test_under_clocks_of_known_truth_every_window_holds_it(namespaces: None) -> None:
    found = bench("clock_truth", "--seconds", "3", "--settle", "4")
    rows = found["phases"]
    for row in [*rows.values(), found["past"]]:
        assert row["held"] == row["windows"] > 100
    assert rows["idle"]["error_median_ns"] <= 500
    assert rows["idle"]["bound_median_ns"] <= 5_000
    assert rows["two hogs, a saturating flow"]["error_median_ns"] <= 5_000
    assert found["steps"]["told"] == found["steps"]["done"]


@pytest.mark.slow
@pytest.mark.lab
@pytest.mark.torch
def test_other_methods_are_ten_and_three_times_worse_in_the_same_run(namespaces: None) -> None:
    found = bench("clock_methods", "--rounds", "8")
    ours = found["rank clock"]["error_median_ns"]
    assert ours * 10 <= found["barrier + all_gather"]["error_median_ns"]
    assert ours * 3 <= found["one exchange"]["error_median_ns"]
    assert all(ours <= one["error_median_ns"] for one in found.values())


def test_sixty_four_hosts_know_cluster_time_within_a_second_and_few_rounds() -> None:
    (row,) = bench("mesh_scale", "64")
    assert row["known"] == row["held"] == 64
    assert row["converged_ms"] < 1_000
    assert row["rounds"] <= row["rounds_allowed"]


@pytest.mark.slow
def test_asking_the_time_costs_at_most_five_times_what_the_system_clock_costs() -> None:
    assert bench("clock_cost")["now_ns()"]["times"] <= 5
