"""The doctor answers real public reports: the right verdict and numbers, and from half a report no other cause."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rankclock.diagnosis.finding import Severity
from rankclock.diagnosis.scan import read_sources
from rankclock.diagnosis.verdict import Answer, diagnose

REPORTS = [
    report
    for line in (Path(__file__).parent / "reports" / "reports.jsonl").read_text(encoding="utf-8").splitlines()
    if (report := json.loads(line))["kind"] != "trace"
]
TOLERANCES = ("tol_s", "tol_ppm")
IN_PROSE_ONLY = {"C44": ("kept",)}
WRONG = (Severity.FAULT, Severity.RISK, Severity.DEGRADED)

MUST_NOT_SAY = {
    "C03": ("firewall", "IGMP"),
    "C04": ("second time daemon", "two grandmasters"),
    "C08": ("step_threshold",),
    "C09": (" -p ",),
    "C18": ("try again", "retry"),
    "C19": ("ptp4l -H",),
    "C33": ("4.3 s skew",),
    "C52": ("an error",),
    "C55": ("switch",),
    "C57": ("card is faulty", "broken card"),
    "C58": ("unreachable",),
    "C62": ("server is down", "server down"),
    "C66": ("makestep",),
    "C68": ("clock is wrong",),
    "C69": ("is unsynchronised", "not synchronised"),
    "C71": ("servers are down",),
}
"""Words that a wrong answer would have; what the reports' must_not means, as far as words can say it."""


def ask(text: str) -> Answer:
    return diagnose(read_sources([("-", [text.encode()])]))


def same(expected: Any, found: Any, tolerance: float) -> bool:
    if isinstance(expected, bool) or not isinstance(expected, (int, float)):
        return bool(expected == found)
    return isinstance(found, (int, float)) and abs(found - expected) <= max(tolerance, abs(expected) * 2e-3)


def halves(text: str) -> dict[str, str]:
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


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report["id"])
def test_a_report_gets_a_right_verdict_and_the_numbers_of_its_diagnosis(report: dict[str, Any]) -> None:
    answer = ask(report["input"])
    expected = report["expect"]
    assert answer.verdict.value in expected["answer"], [finding.id for finding in answer.findings]
    tolerance = max((float(expected["values"].get(name, 0.0)) for name in TOLERANCES), default=0.0)
    for name, value in expected["values"].items():
        if name in TOLERANCES or name in IN_PROSE_ONLY.get(report["id"], ()):
            continue
        assert same(value, answer.values.get(name), tolerance), (name, value, answer.values.get(name))


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report["id"])
def test_nothing_of_what_a_report_forbids_is_said(report: dict[str, Any]) -> None:
    answer = ask(report["input"])
    said = " ".join(
        " ".join((finding.draft.cause, *finding.draft.next)).lower()
        for finding in answer.findings
        if finding.severity is answer.verdict
    )
    for words in MUST_NOT_SAY.get(report["id"], ()):
        assert words.lower() not in said


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report["id"])
def test_half_of_a_report_leads_to_cannot_tell_or_to_the_same_cause(report: dict[str, Any]) -> None:
    causes = {finding.id for finding in ask(report["input"]).findings}
    for name, half in halves(report["input"]).items():
        answer = ask(half)
        other = {finding.id for finding in answer.findings if finding.severity in WRONG} - causes
        assert not other, (name, other)
        if answer.verdict is not Severity.UNKNOWN:
            assert answer.findings, name
            assert {f.id for f in answer.findings if f.severity is answer.verdict} & causes or answer.verdict.value in (
                report["expect"]["answer"]
            ), (name, answer.verdict)


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report["id"])
def test_every_line_of_a_report_is_recognised_or_named(report: dict[str, Any]) -> None:
    answer = ask(report["input"])
    named = {quote.line for quote in answer.unrecognised}
    spans = [(span.first, span.last) for span in answer.recognised]
    for number, line in enumerate(report["input"].split("\n"), 1):
        bare = line.strip().strip("=-")
        if bare and not bare.startswith(("remote ", "MS Name", "[")):
            assert number in named or any(first <= number <= last for first, last in spans), (number, line)
