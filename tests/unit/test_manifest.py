"""A rendered folder is written whole or not at all, and read back only unchanged."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rankclock.cluster import parse_cluster
from rankclock.configs import Manifest, RenderedNode, read_manifest, read_rendered, render, write_rendered
from rankclock.errors import DecodeError, UserError
from rankclock.planning import Plan, make_plan

TEXT = """\
schema: rankclock-cluster/1
name: two
sources: [{name: up, address: 10.0.0.1}]
nodes: [{name: "gpu[1-2]", nics: [{name: eth0, address: "10.0.0.[11-12]/24", segment: lan}]}]
"""


@pytest.fixture
def made() -> tuple[Plan, dict[str, RenderedNode]]:
    cluster = parse_cluster(TEXT, "c.yaml")
    plan = make_plan(cluster)
    return plan, render(plan, cluster)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_is_written_is_what_was_rendered_with_nothing_beside_it(
    made: tuple[Plan, dict[str, RenderedNode]], tmp_path: Path
) -> None:
    plan, nodes = made
    out = tmp_path / "deep" / "out"
    manifest = write_rendered(out, nodes, plan)
    assert read_manifest(out) == manifest
    assert read_rendered(out)["gpu1"].files == nodes["gpu1"].files
    assert [path.name for path in out.parent.iterdir()] == ["out"]
    assert (out / "gpu1/etc/chrony/chrony.conf").stat().st_mode & 0o777 == 0o644
    assert manifest.tiers == 1
    assert manifest.nodes["gpu1"].assumed == ("chronyd 4.3", "ptp4l 3.1.1")


def test_writing_again_gives_the_same_bytes_and_replaces_only_our_own_folder(
    made: tuple[Plan, dict[str, RenderedNode]], tmp_path: Path
) -> None:
    plan, nodes = made
    out = tmp_path / "out"
    write_rendered(out, nodes, plan)
    before = contents(out)
    (out / "gpu1/etc/chrony/stale.conf").write_text("old")
    write_rendered(out, nodes, plan)
    assert contents(out) == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_folder_with_somebody_elses_files_is_left_alone(
    made: tuple[Plan, dict[str, RenderedNode]], tmp_path: Path
) -> None:
    plan, nodes = made
    (tmp_path / "thesis.tex").write_text("important")
    for target in (tmp_path, tmp_path / "thesis.tex"):
        with pytest.raises(UserError):
            write_rendered(target, nodes, plan)
    assert contents(tmp_path) == {"thesis.tex": b"important"}


def test_a_link_is_never_followed_to_replace_what_it_names(
    made: tuple[Plan, dict[str, RenderedNode]], tmp_path: Path
) -> None:
    plan, nodes = made
    write_rendered(tmp_path / "real", nodes, plan)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(UserError, match="no folder"):
        write_rendered(tmp_path / "link", nodes, plan)


def test_where_nothing_can_be_written_there_is_one_line_and_nothing_else(
    made: tuple[Plan, dict[str, RenderedNode]],
) -> None:
    plan, nodes = made
    with pytest.raises(UserError) as caught:
        write_rendered("/proc/no-such-place/out", nodes, plan)
    assert "choose another folder with -o" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_failure_half_way_leaves_the_old_folder_as_it_was(
    made: tuple[Plan, dict[str, RenderedNode]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, nodes = made
    out = tmp_path / "out"
    write_rendered(out, nodes, plan)
    before = contents(out)
    real_rename = Path.rename

    def fails_into_place(self: Path, target: str | os.PathLike[str]) -> Path:
        if Path(target) == out and self.name.endswith(".new"):
            raise OSError(28, "No space left on device")
        return real_rename(self, target)

    monkeypatch.setattr(Path, "rename", fails_into_place)
    with pytest.raises(UserError, match="nothing was written: No space left"):
        write_rendered(out, nodes, plan)
    assert contents(out) == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda out: (out / "gpu1/etc/chrony/chrony.conf").write_text("server evil"), "changed since it was rendered"),
        (lambda out: (out / "gpu1/etc/chrony/chrony.conf").unlink(), "No such file"),
        (lambda out: (out / "gpu1/etc/extra").write_text("x"), "not in MANIFEST.json"),
        (lambda out: (out / "MANIFEST.json").unlink(), "expected the output of rankclock render"),
        (lambda out: (out / "MANIFEST.json").write_text("{"), "not JSON"),
        (lambda out: (out / "MANIFEST.json").write_text('{"schema": "x"}'), "rankclock-manifest/1"),
    ],
)
def test_a_changed_folder_is_not_read(
    made: tuple[Plan, dict[str, RenderedNode]], tmp_path: Path, harm: object, words: str
) -> None:
    plan, nodes = made
    write_rendered(tmp_path / "out", nodes, plan)
    harm(tmp_path / "out")  # type: ignore[operator]
    with pytest.raises(UserError) as caught:
        read_rendered(tmp_path / "out")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_manifest_that_points_outside_its_folder_reads_nothing_there(
    made: tuple[Plan, dict[str, RenderedNode]], tmp_path: Path
) -> None:
    plan, nodes = made
    out = tmp_path / "out"
    manifest = write_rendered(out, nodes, plan)
    data = manifest.to_bytes().replace(b"/etc/chrony/chrony.conf", b"/../../secret")
    (tmp_path / "secret").write_bytes(nodes["gpu1"].files["/etc/chrony/chrony.conf"].encode())
    (out / "MANIFEST.json").write_bytes(data)
    with pytest.raises(UserError, match="outside"):
        read_rendered(out)


def test_a_manifest_survives_a_round_trip(made: tuple[Plan, dict[str, RenderedNode]], tmp_path: Path) -> None:
    plan, nodes = made
    manifest = write_rendered(tmp_path / "out", nodes, plan)
    assert Manifest.from_bytes(manifest.to_bytes()) == manifest
    with pytest.raises(DecodeError):
        Manifest.from_bytes(b"[]")
