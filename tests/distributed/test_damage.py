"""What bad clocks do to real stacks, and that it does not happen with rankclock."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from benchmarks.damage import BEHIND_NS, rotate, scenario, start_job

from rankclock.lab import Lab, Scenario

pytestmark = pytest.mark.torch


@pytest.mark.lab
def test_a_host_20_s_behind_splits_the_world_and_preflight_refuses_the_start(
    lab_of: Callable[[Scenario], Lab], tmp_path: Path
) -> None:
    lab = lab_of(scenario(BEHIND_NS))
    alone = start_job(lab, preflight=False, folder=tmp_path)
    assert alone[0].trained_alone, alone
    assert alone[0].code == 0, "nobody is told"
    checked = start_job(lab, preflight=True, folder=tmp_path)
    assert [agent.code for agent in checked] == [1, 1]
    assert all("REFUSED" in agent.text and "n1 is 20.0 s ahead of n2" in agent.text for agent in checked)
    assert not any("TRAINED" in agent.text for agent in checked)


@pytest.mark.lab
def test_hosts_whose_clocks_agree_start_after_the_preflight(lab_of: Callable[[Scenario], Lab], tmp_path: Path) -> None:
    lab = lab_of(scenario(behind_ns=-300_000))
    agents = start_job(lab, preflight=True, folder=tmp_path)
    assert [agent.code for agent in agents] == [0, 0], agents
    assert "TRAINED with WORLD_SIZE 2" in agents[0].text + agents[1].text


def test_the_trainers_rotation_keeps_what_was_just_saved_only_with_the_guard(tmp_path: Path) -> None:
    assert rotate(tmp_path) == {"saved": [10, 20], "without": [10, 20], "with": [30, 40]}
