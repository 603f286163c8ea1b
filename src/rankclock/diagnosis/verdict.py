"""Evidence to an answer: every rule is asked, findings that others explain are left out, one verdict of six is given.

Refuses to be surer than its evidence: a symptom without a cause is 'cannot-tell', and nothing at all is 'cannot-tell'
too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from rankclock.diagnosis.evidence import Evidence, Quote, Span
from rankclock.diagnosis.finding import Finding, Rule, Severity
from rankclock.diagnosis.not_enough import not_enough
from rankclock.diagnosis.readings import read_values
from rankclock.diagnosis.rules import RULES
from rankclock.errors import ExitCode

__all__ = ["Answer", "diagnose"]

SHOWN_UNRECOGNISED = 50

_ORDER = (Severity.FAULT, Severity.RISK, Severity.DEGRADED, Severity.UNKNOWN, Severity.EXPLAINED, Severity.HEALTHY)
"""What wins: something wrong, then a symptom that nobody explains, then an explanation, then health."""

_EXIT = {
    Severity.FAULT: ExitCode.CHECK_FAILED,
    Severity.RISK: ExitCode.CHECK_FAILED,
    Severity.DEGRADED: ExitCode.CHECK_FAILED,
    Severity.UNKNOWN: ExitCode.CANNOT_TELL,
    Severity.EXPLAINED: ExitCode.OK,
    Severity.HEALTHY: ExitCode.OK,
}
_SURE = 0.5
"""A finding less sure than this does not make a verdict, except where there is no other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the doctor says."""

    verdict: Severity
    findings: tuple[Finding, ...]
    values: dict[str, Any]
    recognised: tuple[Span, ...]
    unrecognised: tuple[Quote, ...]
    unrecognised_count: int
    skipped: int

    @property
    def exit_code(self) -> ExitCode:
        """0 healthy or no clock fault, 1 fault, risk or degraded, 4 cannot tell."""
        return _EXIT[self.verdict]

    def to_json(self) -> dict[str, Any]:
        """The answer as one JSON object."""
        return {
            "verdict": self.verdict.value,
            "findings": [finding.to_json() for finding in self.findings],
            "values": self.values,
            "recognised": [span.to_json() for span in self.recognised],
            "unrecognised": [quote.to_json() for quote in self.unrecognised],
        }


def diagnose(evidence: Evidence, rules: Iterable[Rule] = RULES) -> Answer:
    """Ask every rule and put the answer together."""
    found = [Finding(rule=rule, draft=one) for rule in rules for one in rule.check(evidence)]
    found = _without_explained(found)
    found.sort(key=lambda finding: (_ORDER.index(finding.severity), -finding.draft.confidence))
    verdict = _verdict(found)
    if verdict is Severity.UNKNOWN and not any(finding.severity is Severity.UNKNOWN for finding in found):
        found.append(not_enough(evidence))
    values = read_values(evidence)
    for finding in reversed(found):
        values.update(finding.draft.values)
    return Answer(
        verdict=verdict,
        findings=tuple(found),
        values=values,
        recognised=tuple(_spans(evidence)),
        unrecognised=tuple(evidence.unrecognised[:SHOWN_UNRECOGNISED]),
        unrecognised_count=len(evidence.unrecognised),
        skipped=evidence.skipped,
    )


def _without_explained(found: list[Finding]) -> list[Finding]:
    """Leave out what another finding accounts for. A finding cannot be explained by one that is itself explained."""
    explained: set[str] = set()
    for finding in sorted(found, key=lambda f: (_ORDER.index(f.severity), -f.draft.confidence)):
        if finding.id not in explained and finding.severity is not Severity.HEALTHY:
            explained |= finding.explains
    return [finding for finding in found if finding.id not in explained]


def _verdict(found: list[Finding]) -> Severity:
    sure = [finding for finding in found if finding.draft.confidence >= _SURE] or found
    for severity in _ORDER:
        if any(finding.severity is severity for finding in sure):
            return severity
    return Severity.UNKNOWN


def _spans(evidence: Evidence) -> Iterable[Span]:
    pieces = [(item.source, item.kind, item.first, item.last, 1) for item in evidence.items]
    for series in evidence.series:
        lines = [sample.line for sample in series.samples]
        pieces.append((series.source, f"offsets of {series.name}", lines[0], lines[-1], series.count))
    order = {source: index for index, source in enumerate(evidence.sources)}
    pieces.sort(key=lambda piece: (order.get(piece[0], 0), piece[2]))
    for (source, kind), group in groupby(pieces, key=lambda piece: piece[:2]):
        members = list(group)
        yield Span(
            kind=kind,
            source=source,
            first=members[0][2],
            last=max(member[3] for member in members),
            count=sum(member[4] for member in members),
        )
