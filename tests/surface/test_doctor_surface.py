"""`rankclock doctor` as scripts use it: the JSON object, the exit codes, pipes, errors in one line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rankclock.diagnosis.reference import rules_as_json, rules_as_markdown
from rankclock.diagnosis.rules import RULES

PAGE = Path(__file__).parents[2] / "docs/reference/doctor.md"
HEALTHY = b"^* time1  2   6   377    34   +112us[ +140us] +/-   11ms\n"
FAULT = b"chronyd[1]: Can't synchronise: no majority"


def doctor(*arguments: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "rankclock", "doctor", *arguments]
    return subprocess.run(command, input=data, capture_output=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("data", "verdict", "code"), [(HEALTHY, "healthy", 0), (FAULT, "fault", 1), (b"hello", "cannot-tell", 4)]
)
def test_the_verdict_is_in_the_json_and_in_the_exit_code(data: bytes, verdict: str, code: int) -> None:
    done = doctor("-", "--json", data=data)
    answer = json.loads(done.stdout)
    assert (answer["verdict"], done.returncode, done.stderr) == (verdict, code, b"")
    assert list(answer) == ["verdict", "findings", "values", "recognised", "unrecognised"]
    assert list(answer["findings"][0]) == [
        "id", "title", "severity", "confidence", "cause", "evidence", "values", "next", "confirm",
    ]  # fmt: skip
    assert list(answer["findings"][0]["evidence"][0]) == ["source", "line", "text"]


def test_the_text_answer_shows_cause_lines_and_next_command() -> None:
    done = doctor("-", data=FAULT)
    said = done.stdout.decode()
    assert said.startswith("fault\n")
    assert "| line 1: chronyd[1]: Can't synchronise: no majority" in said
    assert "next:" in said
    assert "[31m" not in said


def test_several_files_are_read_together(tmp_path: Path) -> None:
    for name, data in (("a.txt", HEALTHY), ("b.txt", FAULT)):
        (tmp_path / name).write_bytes(data)
    done = doctor("--json", str(tmp_path / "a.txt"), str(tmp_path / "b.txt"))
    assert done.returncode == 1
    assert {span["source"] for span in json.loads(done.stdout)["recognised"]} == {
        str(tmp_path / "a.txt"), str(tmp_path / "b.txt"),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["no-such-file", "."])
def test_a_file_that_cannot_be_read_is_one_line_and_exit_code_2(name: str) -> None:
    done = doctor(name)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.count(b"\n") == 1
    assert done.stderr.startswith(f"rankclock: cannot read {name!r}: ".encode())


def test_binary_rubbish_gets_an_answer() -> None:
    assert doctor("-", data=bytes(range(256)) * 50).returncode == 4


def test_rules_are_listed_as_text_and_json() -> None:
    text, data = doctor("--rules"), doctor("--rules", "--json")
    assert text.returncode == data.returncode == 0
    assert all(rule.id in text.stdout.decode() for rule in RULES)
    assert json.loads(data.stdout) == rules_as_json()


def test_the_page_of_the_reference_is_the_one_that_the_rules_give() -> None:
    assert PAGE.read_text(encoding="utf-8") == rules_as_markdown(), (
        "run: python -m rankclock.diagnosis.reference > docs/reference/doctor.md"
    )


def test_every_rule_has_an_id_of_its_own_a_title_and_says_what_it_needs() -> None:
    ids = [rule.id for rule in RULES]
    assert len(set(ids)) == len(ids)
    for rule in RULES:
        assert rule.id.replace("_", "").isalnum()
        assert rule.id == rule.id.upper()
        assert rule.title
        assert rule.needs


def test_no_rule_knows_a_report() -> None:
    """A rule may cite where a fault was seen; nothing else in the package may name an issue or a report."""
    package = Path(__file__).parents[2] / "src/rankclock"
    for path in [*(package / "diagnosis").rglob("*.py"), *(package / "wire/text").rglob("*.py")]:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            assert "reports.jsonl" not in line
            assert "/issues/" not in line, (path, number)
