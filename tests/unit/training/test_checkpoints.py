"""Checkpoints: whole or not at all, found by step, whatever clocks say and whenever the writer is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankclock.errors import HostError, UserError
from rankclock.timebase import Offset
from rankclock.training.checkpoints import MANIFEST, complete_checkpoints, latest, prune, save
from rankclock.training.mtime_guard import restamp


class FixedClock:
    def now_ns(self) -> int:
        return 1_790_000_000_000_000_000

    def offset(self) -> Offset:
        return Offset.around(1_500, 800, reference="rank 0's host", method="test")


def write(text: str):
    def into(folder: Path) -> None:
        (folder / "adapter").mkdir()
        (folder / "adapter/weights.bin").write_text(text, encoding="utf-8")
        (folder / "state.json").write_text("{}", encoding="utf-8")

    return into


def test_a_saved_checkpoint_says_when_it_was_saved_and_how_sure_that_is(tmp_path: Path) -> None:
    path = save(tmp_path, 30, write("w"), clock=FixedClock(), extra={"loss": 0.5})
    assert path == tmp_path / "checkpoint-30"
    found = latest(tmp_path, verify=True)
    assert found is not None
    assert (found.step, found.path, found.extra) == (30, path, {"loss": 0.5})
    assert found.cluster_time_ns == FixedClock().now_ns()
    assert found.offset == FixedClock().offset()
    assert found.files.keys() == {"adapter/weights.bin", "state.json"}


def test_an_unknown_clock_is_written_as_unknown(tmp_path: Path) -> None:
    save(tmp_path, 1, write("w"))
    found = latest(tmp_path)
    assert found is not None
    assert (found.cluster_time_ns, found.offset) == (None, None)


def test_only_rank_0_writes(tmp_path: Path) -> None:
    assert save(tmp_path / "out", 5, write("w"), rank=3) is None
    assert not (tmp_path / "out").exists()


@given(steps=st.lists(st.integers(0, 10**7), min_size=1, max_size=6, unique=True), seed=st.randoms())
@settings(max_examples=20, deadline=None)
def test_the_latest_is_the_highest_step_whatever_the_mtimes_say(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int], seed
) -> None:
    parent = tmp_path_factory.mktemp("run")
    for step in steps:
        path = save(parent, step, write(str(step)))
        stamp = seed.randrange(0, 4 * 10**18)
        os.utime(path, ns=(stamp, stamp))
    found = latest(parent)
    assert found is not None
    assert found.step == max(steps)
    assert [one.step for one in complete_checkpoints(parent)] == sorted(steps)
    prune(parent, 2)
    assert [one.step for one in complete_checkpoints(parent)] == sorted(steps)[-2:]


def test_a_cut_file_or_a_missing_one_makes_a_checkpoint_incomplete(tmp_path: Path) -> None:
    save(tmp_path, 1, write("old"))
    cut = save(tmp_path, 2, write("new"))
    assert cut is not None
    (cut / "adapter/weights.bin").write_text("ne", encoding="utf-8")
    found = latest(tmp_path)
    assert found is not None
    assert found.step == 1


def test_a_flipped_byte_is_found_where_every_byte_is_asked_for(tmp_path: Path) -> None:
    save(tmp_path, 1, write("old"))
    flipped = save(tmp_path, 2, write("new"))
    assert flipped is not None
    (flipped / "adapter/weights.bin").write_text("nEw", encoding="utf-8")
    assert (cheap := latest(tmp_path)) is not None
    assert cheap.step == 2
    assert "weights.bin: expected 3 bytes of SHA-256" in (cheap.damage() or "")
    assert (thorough := latest(tmp_path, verify=True)) is not None
    assert thorough.step == 1


def test_the_same_step_saved_again_replaces_the_old_one(tmp_path: Path) -> None:
    save(tmp_path, 7, write("first"))
    save(tmp_path, 7, write("second"))
    found = latest(tmp_path, verify=True)
    assert found is not None
    assert (found.path / "adapter/weights.bin").read_text(encoding="utf-8") == "second"
    assert [entry.name for entry in tmp_path.iterdir()] == ["checkpoint-7"]


def test_a_writer_that_fails_publishes_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    def fails(folder: Path) -> None:
        (folder / "half").write_text("x", encoding="utf-8")
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        save(tmp_path, 3, fails)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": "rankclock-checkpoint/1"}', '{"schema": 3, "step": 1}'])
def test_a_damaged_manifest_is_an_incomplete_checkpoint(tmp_path: Path, text: str) -> None:
    path = save(tmp_path, 1, write("w"))
    assert path is not None
    (path / MANIFEST).write_text(text, encoding="utf-8")
    assert latest(tmp_path) is None


def test_a_manifest_of_another_step_does_not_count(tmp_path: Path) -> None:
    path = save(tmp_path, 1, write("w"))
    assert path is not None
    path.rename(tmp_path / "checkpoint-2")
    assert latest(tmp_path) is None


def test_wrong_use_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="step is 0 or more"):
        save(tmp_path, -1, write("w"))
    with pytest.raises(UserError, match="keep at least one"):
        prune(tmp_path, 0)
    with pytest.raises(UserError, match="manifest's name"):
        save(tmp_path, 1, lambda folder: (folder / MANIFEST).write_text("{}", encoding="utf-8") and None)
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(HostError, match="checkpoint 1 not published"):
        save(tmp_path / "file", 1, write("w"))


def test_other_programs_folders_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-99").mkdir()
    (tmp_path / "checkpoint-99/theirs").write_text("x", encoding="utf-8")
    for step in (1, 2, 3):
        save(tmp_path, step, write("w"))
    prune(tmp_path, 1)
    assert {entry.name for entry in tmp_path.iterdir()} == {"checkpoint-99", "checkpoint-3"}


KILLED_AT = """
import os, signal, sys
from pathlib import Path
from rankclock.training.checkpoints import save, prune
countdown = int(sys.argv[2])
def audit(event, arguments):
    global countdown
    if event in ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree"):
        countdown -= 1
        if countdown < 0: os.kill(os.getpid(), signal.SIGKILL)
def write(folder):
    (folder / "weights.bin").write_bytes(b"2" * 1000)
    (folder / "state.json").write_text("{}")
sys.addaudithook(audit)
save(sys.argv[1], int(sys.argv[3]), write)
prune(sys.argv[1], 2)
"""


@pytest.mark.parametrize("step", [20, 30])
def test_killed_before_any_of_its_system_calls_the_writer_leaves_the_old_or_the_new(tmp_path: Path, step: int) -> None:
    """Step 20 is there already and gets replaced; 30 is new."""
    published = 0
    for countdown in range(200):
        parent = tmp_path / str(countdown)
        save(parent, 10, write("ten"))
        save(parent, 20, write("twenty"))
        argv = [sys.executable, "-c", KILLED_AT, str(parent), str(countdown), str(step)]
        done = subprocess.run(argv, check=False, capture_output=True)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        found = latest(parent, verify=True)
        assert found is not None
        assert found.step in (20, step)
        new = {"weights.bin", "state.json"}
        assert found.files.keys() == (new if "weights.bin" in found.files else {"adapter/weights.bin", "state.json"})
        published += "weights.bin" in found.files
        if done.returncode == 0:
            assert "weights.bin" in found.files
            assert json.loads((parent / f"checkpoint-{step}" / MANIFEST).read_text())["step"] == step
            break
    else:
        pytest.fail("the writer never came to its end")
    assert countdown > 8, "it was killed at many points"
    assert published > 1, "after publishing too"


# ---- the guard ----

HOUR_NS = 3600 * 10**9


def folders(parent: Path, mtimes_ns: dict[int, int]) -> None:
    for step, mtime_ns in mtimes_ns.items():
        path = parent / f"checkpoint-{step}"
        path.mkdir()
        os.utime(path, ns=(mtime_ns, mtime_ns))


def by_mtime(parent: Path) -> list[int]:
    """In the order in which a rotation by mtime would delete them."""
    found = sorted(parent.glob("checkpoint-*"), key=lambda path: path.stat().st_mtime_ns)
    return [int(path.name.partition("-")[2]) for path in found]


@given(st.dictionaries(st.integers(0, 10**6), st.integers(-48, 48), min_size=1, max_size=8))
@settings(max_examples=40, deadline=None)
def test_after_the_guard_a_new_folder_is_the_newest_and_the_others_are_in_the_order_of_their_steps(
    tmp_path_factory: pytest.TempPathFactory, hours: dict[int, int]
) -> None:
    parent = tmp_path_factory.mktemp("run")
    now_ns = parent.stat().st_mtime_ns
    folders(parent, {step: now_ns + hour * HOUR_NS for step, hour in hours.items()})
    restamp(parent)
    (parent / "checkpoint-1000001").mkdir()
    assert by_mtime(parent) == [*sorted(hours), 1000001]
    before = {path: path.stat().st_mtime_ns for path in parent.iterdir()}
    restamp(parent)
    assert restamp(parent) == []
    assert all(path.stat().st_mtime_ns <= mtime_ns for path, mtime_ns in before.items()), "only ever moved back"


def test_mtimes_in_order_are_left_as_they_are(tmp_path: Path) -> None:
    now_ns = tmp_path.stat().st_mtime_ns
    folders(tmp_path, {1: now_ns - 3 * HOUR_NS, 2: now_ns - 2 * HOUR_NS, 10: now_ns - HOUR_NS})
    (tmp_path / "checkpoint-best").mkdir()
    (tmp_path / "checkpoint-3").write_text("a file", encoding="utf-8")
    assert restamp(tmp_path) == []


def test_no_folder_no_work(tmp_path: Path) -> None:
    assert restamp(tmp_path / "nowhere") == []
    assert restamp(tmp_path) == []
    assert list(tmp_path.iterdir()) == []
