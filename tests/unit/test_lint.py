"""Linting what people wrote: releases, places, ranges, includes, and what daemons accept though it is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rankclock.configs.lint import dialect_of, included, lint_chrony, lint_ptp4l

ROOT = Path(__file__).parents[2]


def lint(*arguments: str) -> tuple[int, dict[str, Any]]:
    argv = [sys.executable, "-m", "rankclock", "lint", "--json", *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def at(found: list[Any]) -> list[tuple[int, bool, str]]:
    return [(one.line, one.rejected, one.what) for one in found]


@pytest.mark.parametrize(
    ("line", "version", "what"),
    [
        ("frobnicate 1", (4, 3), "chronyd knows no 'frobnicate'"),
        ("leapseclist /x", (4, 3), "chronyd 4.3 has no 'leapseclist'"),
        ("server 10.0.0.1 maxunreach 5", (4, 6), "chronyd's source options 4.6 has no 'maxunreach'"),
        ("server 10.0.0.1 minpoll 30", (4, 3), "minpoll 30: expected -7 to 24"),
        ("server 10.0.0.1 minpoll -7", (4, 2), "minpoll -7: expected -6 to 24"),
        ("server 10.0.0.1 key", (4, 3), "key: a value is missing"),
        ("server", (4, 3), "server without an address"),
        ("pool p.example iburst nonsense", (4, 3), "chronyd's source options knows no 'nonsense'"),
    ],
)
def test_what_a_chronyd_rejects_is_named_with_its_line(line: str, version: tuple[int, ...], what: str) -> None:
    text = f"# a comment\n\n{line}\nmakestep 1 3\n"
    assert at(lint_chrony(text, version)) == [(3, True, what)]


@pytest.mark.parametrize(
    "line", ["leapseclist /x", "server 10.0.0.1 maxunreach 5", "server 10.0.0.1 iburst xleave minpoll -7 maxpoll 24"]
)
def test_the_release_that_has_an_option_takes_it(line: str) -> None:
    assert lint_chrony(line, (4, 8)) == []


def test_a_minpoll_above_the_default_maxpoll_is_taken_silently_and_said() -> None:
    (found,) = lint_chrony("server 10.0.0.1 minpoll 12\n", (4, 3))
    assert (found.rejected, found.what) == (False, "minpoll 12 is above maxpoll 10 (the default)")


@pytest.mark.parametrize(
    ("text", "version", "line", "what"),
    [
        ("[global]\nclientOnly 1\n", (3, 1, 1), 2, "ptp4l 3.1.1 has no 'clientOnly'"),
        ("[global]\ndomainNumber 200\n", (3, 1, 1), 2, "domainNumber 200: expected 0 to 127"),
        ("[global]\n[eth0]\ndomainNumber 3\n", (3, 1, 1), 3, "domainNumber stands in [eth0]: ptp4l takes it in"),
        ("slaveOnly 1\n", (3, 1, 1), 1, "an option before any section"),
        ("[global]\ntime_stamping hard\n", (3, 1, 1), 2, "time_stamping hard: expected one of"),
        ("[global]\nfirstStepThreshold 1\n", (4, 2), 2, "ptp4l knows no 'firstStepThreshold'"),
    ],
)
def test_what_a_ptp4l_rejects_is_named_with_its_line(text: str, version: tuple[int, ...], line: int, what: str) -> None:
    (found,) = lint_ptp4l(text, version)
    assert (found.line, found.rejected) == (line, True)
    assert found.what.startswith(what)


def test_an_old_name_is_taken_and_said_from_the_release_that_renamed_it() -> None:
    text = "[global]\n[eth0]\nmasterOnly 1\n"
    assert lint_ptp4l(text, (3, 1, 1)) == []
    (found,) = lint_ptp4l(text, (4, 2))
    assert (found.rejected, found.do) == (False, "call it serverOnly")


def test_tables_of_masters_and_receivers_are_not_taken_for_ports() -> None:
    text = "[global]\n[unicast_master_table]\ntable_id 1\nUDPv4 10.0.0.1\n[eth0]\nunicast_master_table 1\n"
    assert lint_ptp4l(text, (3, 1, 1)) == []


@pytest.mark.parametrize(
    ("name", "text", "dialect"),
    [
        ("/etc/chrony/chrony.conf", "", "chrony"),
        ("x.conf", "[global]\npriority1 1\n", "ptp4l"),
        ("x.conf", "server a\nmakestep 1 3\nrtcsync\n", "chrony"),
        ("x.conf", "server a\nrestrict default nomodify\n", "ntp"),
        ("x.conf", "hello world\n", None),
        ("x.conf", "", None),
    ],
)
def test_a_files_dialect_is_told_by_name_or_content(name: str, text: str, dialect: str | None) -> None:
    assert dialect_of(name, text) == dialect


def test_what_a_chrony_conf_includes_is_found() -> None:
    assert included("include /a/*.conf\nconfdir /b /c\n# include /d\n") == [
        (1, "include", "/a/*.conf"), (2, "confdir", "/b"), (2, "confdir", "/c"),
    ]  # fmt: skip


def test_includes_are_read_and_marked_under_their_own_name(tmp_path: Path) -> None:
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d/more.conf").write_text("rtcsync\nnonsense 1\n", encoding="utf-8")
    main = tmp_path / "chrony.conf"
    main.write_text(f"confdir {tmp_path}/conf.d\ninclude {main}\n", encoding="utf-8")
    code, found = lint(str(main), "--chrony", "4.5")
    assert code == 1
    assert [(Path(mark["file"]).name, mark["line"]) for mark in found["marks"]] == [("more.conf", 2)]


def test_traps_that_a_daemon_accepts_are_found_by_the_doctors_rules_with_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "ptp4l.conf"
    path.write_text("[global]\ntime_stamping software\nboundary_clock_jbod 1\n", encoding="utf-8")
    code, found = lint(str(path))
    assert code == 1
    assert [(mark["line"], mark["severity"], mark["says"]) for mark in found["marks"]] == [(3, "fault", "PTP4L_CONF")]


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.stem)
def test_what_we_render_ourselves_is_never_marked(tmp_path: Path, example: Path) -> None:
    argv = [sys.executable, "-m", "rankclock", "render", str(example), "-o", str(tmp_path / "out")]
    subprocess.run(argv, check=True, capture_output=True, timeout=60)
    roles: dict[str, list[Path]] = {}
    for path in (tmp_path / "out").glob("*/etc"):
        roles.setdefault(path.parent.name.rstrip("0123456789"), []).append(path)
    for nodes in roles.values():
        kinds = (".conf", ".service", "gpsd")
        files = [str(one) for node in (nodes[0], nodes[-1]) for one in node.rglob("*") if one.name.endswith(kinds)]
        code, found = lint(*files, "--chrony", "4.3", "--linuxptp", "3.1.1")
        assert [mark for mark in found["marks"] if not may_stand(mark)] == []
        assert code in (0, 1)


def may_stand(mark: dict[str, Any]) -> bool:
    """What is true of a plan as it was asked for: few sources, servers known by their names."""
    return mark["says"] in ("TOO_FEW_SOURCES",)


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("missing.conf", (), (2, "no such file")),
        ("x.txt", (), (4, "of no kind that is known here")),
        ("chrony.conf", ("--chrony", "new"), (2, "expected a release")),
    ],
)
def test_what_cannot_be_linted_is_one_line(
    tmp_path: Path, name: str, options: tuple[str, ...], expected: tuple[int, str]
) -> None:
    for given in ("x.txt", "chrony.conf"):
        (tmp_path / given).write_text("hello\n", encoding="utf-8")
    argv = [sys.executable, "-m", "rankclock", "lint", str(tmp_path / name), *options]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == expected[0]
    assert expected[1] in done.stderr
    assert len(done.stderr.splitlines()) == 1
