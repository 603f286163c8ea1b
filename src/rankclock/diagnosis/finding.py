"""What a rule is and what it says. A rule names a mechanism, never a report; it may say nothing, and often does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from rankclock.diagnosis.evidence import Evidence, Item, Quote

__all__ = ["Draft", "Finding", "Rule", "Severity", "draft"]

Value = Any
"""A JSON value: text, number, yes or no, null, or a list of them."""

QUOTED = 8
"""Lines that one finding shows; more of the same convince nobody further."""


class Severity(StrEnum):
    """What a finding means for the verdict.

    FAULT, RISK, DEGRADED: something is wrong, may go wrong, is worse than it could be. EXPLAINED: it looks like a clock
    fault and is none. HEALTHY: evidence that a clock is well. UNKNOWN: a symptom whose cause this evidence does not
    tell.
    """

    FAULT = "fault"
    RISK = "risk"
    DEGRADED = "degraded"
    EXPLAINED = "not-a-clock-fault"
    HEALTHY = "healthy"
    UNKNOWN = "cannot-tell"


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What a rule found, without the rule's own name. explains: rules whose findings this one accounts for."""

    severity: Severity
    confidence: float
    cause: str
    evidence: tuple[Quote, ...]
    values: Mapping[str, Value] = field(default_factory=dict)
    next: tuple[str, ...] = ()
    confirm: str = ""
    explains: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One fault. needs: what must have been pasted. arithmetic: the number that gives it away, '' where none does.

    explains: rules whose findings are consequences of this one, always.
    """

    id: str
    title: str
    needs: str
    check: Callable[[Evidence], Iterable[Draft]]
    arithmetic: str = ""
    reference: str = ""
    explains: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a rule found."""

    rule: Rule
    draft: Draft

    @property
    def id(self) -> str:
        """The rule's id."""
        return self.rule.id

    @property
    def severity(self) -> Severity:
        """What it means for the verdict."""
        return self.draft.severity

    @property
    def explains(self) -> frozenset[str]:
        """Rules whose findings this one accounts for."""
        return self.rule.explains | self.draft.explains

    def to_json(self) -> dict[str, Value]:
        """The object in the answer."""
        return {
            "id": self.rule.id,
            "title": self.rule.title,
            "severity": self.draft.severity.value,
            "confidence": round(self.draft.confidence, 2),
            "cause": self.draft.cause,
            "evidence": [quote.to_json() for quote in self.draft.evidence],
            "values": dict(self.draft.values),
            "next": list(self.draft.next),
            "confirm": self.draft.confirm,
        }


def draft(
    severity: Severity,
    confidence: float,
    cause: str,
    evidence: Sequence[Item[Any] | Quote],
    *,
    values: Mapping[str, Value] | None = None,
    next: Sequence[str] = (),
    confirm: str = "",
    explains: Iterable[str] = (),
) -> Draft:
    """A draft whose evidence is given as pieces or quotes; the same line is shown once."""
    quotes = dict.fromkeys(piece.quote if isinstance(piece, Item) else piece for piece in evidence)
    return Draft(
        severity=severity,
        confidence=max(0.0, min(1.0, confidence)),
        cause=cause,
        evidence=tuple(quotes)[:QUOTED],
        values=values or {},
        next=tuple(next),
        confirm=confirm,
        explains=frozenset(explains),
    )
