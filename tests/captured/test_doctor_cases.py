"""The doctor on inputs of our own: each fault by its rule, half of it by no other, healthy output without a fault."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rankclock.diagnosis.finding import Severity
from rankclock.diagnosis.scan import read_sources
from rankclock.diagnosis.verdict import Answer, diagnose

FOLDER = Path(__file__).parent / "doctor"
WRONG = (Severity.FAULT, Severity.RISK, Severity.DEGRADED)


@dataclass(frozen=True)
class Case:
    name: str
    answers: tuple[str, ...]
    findings: tuple[str, ...]
    values: dict[str, Any]
    text: str


def cases(*, healthy: bool) -> list[Case]:
    found = []
    for path in sorted(FOLDER.glob("*.case")):
        if path.stem.startswith("healthy") is not healthy:
            continue
        for block in re.split(r"^== ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
            head, _, text = block.partition("\n--\n")
            name, *rows = head.split("\n")
            meta = [row.partition(": ")[::2] for row in rows]
            assert dict(meta)["provenance"], name
            found.append(
                Case(
                    name=f"{path.stem}:{name}",
                    answers=tuple(dict(meta)["answer"].split()),
                    findings=tuple(value for key, value in meta if key == "finding"),
                    values=dict(value.split("=", 1) for key, value in meta if key == "value"),
                    text=text.rstrip("\n") + "\n",
                )
            )
    return found


FAULTY, HEALTHY = cases(healthy=False), cases(healthy=True)


def ask(text: str) -> Answer:
    return diagnose(read_sources([("-", [text.encode()])]))


def wanted(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def parts(text: str) -> dict[str, str]:
    lines = text.split("\n")
    middle, half = len(lines) // 2, len(text) // 2
    return {
        "first lines": "\n".join(lines[:middle]),
        "last lines": "\n".join(lines[middle:]),
        "first characters": text[:half],
        "last characters": text[half:],
        "odd lines": "\n".join(lines[::2]),
        "even lines": "\n".join(lines[1::2]),
        "without the last characters": text[: int(len(text) * 0.9)],
    }


def test_there_are_more_than_sixty_faulty_and_twenty_five_healthy_inputs() -> None:
    assert len(FAULTY) >= 60
    assert sum(case.name.startswith("real:") for case in FAULTY) >= 25
    assert len(HEALTHY) >= 25


@pytest.mark.parametrize("case", FAULTY, ids=lambda case: case.name)
def test_an_input_is_diagnosed_by_its_mechanism(case: Case) -> None:
    answer = ask(case.text)
    found = {finding.id for finding in answer.findings}
    assert answer.verdict.value in case.answers, found
    assert set(case.findings) <= found
    others = {f.id for f in answer.findings if f.severity is Severity.FAULT} - set(case.findings)
    assert not others
    for name, text in case.values.items():
        value = answer.values.get(name)
        expected = wanted(text)
        if isinstance(expected, float):
            assert isinstance(value, (int, float)), (name, value)
            assert value == pytest.approx(expected, rel=2e-3), name
        else:
            assert value == expected, name


@pytest.mark.parametrize("case", FAULTY, ids=lambda case: case.name)
def test_part_of_an_input_never_leads_to_another_cause(case: Case) -> None:
    causes = {finding.id for finding in ask(case.text).findings}
    for name, text in parts(case.text).items():
        other = {finding.id for finding in ask(text).findings if finding.severity in WRONG} - causes
        assert not other, (name, other)


@pytest.mark.parametrize("case", HEALTHY, ids=lambda case: case.name)
def test_healthy_output_gives_no_fault_whole_or_cut(case: Case) -> None:
    answer = ask(case.text)
    assert answer.verdict.value in case.answers, [finding.id for finding in answer.findings]
    for name, text in {"whole": case.text, **parts(case.text)}.items():
        faults = [finding.id for finding in ask(text).findings if finding.severity is Severity.FAULT]
        assert not faults, name


@pytest.mark.parametrize("case", [*FAULTY, *HEALTHY], ids=lambda case: case.name)
def test_windows_line_ends_and_leading_spaces_change_no_answer(case: Case) -> None:
    plain = ask(case.text)
    assert ask(case.text.replace("\n", "\r\n")).verdict is plain.verdict
