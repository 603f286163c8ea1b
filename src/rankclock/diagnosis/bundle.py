"""What goes into a bundle for somebody else: the lines that were looked at and the answer, both redacted."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from rankclock.cluster.facts import Facts
from rankclock.diagnosis.evidence import Evidence, Quote
from rankclock.diagnosis.redact import Redactor
from rankclock.diagnosis.verdict import Answer
from rankclock.timebase import ClockState

__all__ = ["Bundle", "bundled"]

EVERY_LINE = 200_000
"""Up to so many lines a file keeps its line numbers by empty lines; beyond, each line carries its number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """texts: file name to redacted text. answer: the answer's object, redacted."""

    texts: dict[str, str]
    answer: Any


def bundled(evidence: Evidence, answer: Answer) -> Bundle:
    """Redact and put together. Lines keep their numbers: what was left out is an empty line."""
    redactor = Redactor(evidence)
    texts = {}
    for at, source in enumerate(evidence.sources, 1):
        lines = _lines(evidence, source)
        documents = [
            redactor.text(json.dumps(item.value.to_json(), indent=1))
            for item in evidence.items
            if item.source == source and isinstance(item.value, (Facts, ClockState)) and not item.first
        ]
        rows = [f"{number}: {redactor.text(text)}" for number, text in sorted(lines.items())]
        if max(lines, default=0) < EVERY_LINE:
            rows = [redactor.text(lines.get(number, "")) for number in range(1, max(lines, default=0) + 1)]
        texts[f"{at}.txt"] = "\n".join([*documents, *rows]) + "\n"
    names = {source: f"{number}.txt" for number, source in enumerate(evidence.sources, 1)}
    value = json.loads(redactor.text(json.dumps(answer.to_json())))
    for finding in value["findings"]:
        for quote in finding["evidence"]:
            quote["source"] = names.get(quote["source"], quote["source"])
    for span in (*value["recognised"], *value["unrecognised"]):
        span["source"] = names.get(span["source"], span["source"])
    return Bundle(texts=texts, answer=value)


def _lines(evidence: Evidence, source: str) -> dict[int, str]:
    """Every line of a source that anything was made of, by number."""
    quotes: list[Quote] = [quote for quote in evidence.unrecognised if quote.source == source]
    for series in evidence.series:
        if series.source == source:
            quotes.extend(series.quotes(sample.line for sample in series.samples))
    lines = {quote.line: quote.text for quote in quotes}
    lines.update({number: text for (name, number), text in evidence.kept_lines.items() if name == source})
    return lines
