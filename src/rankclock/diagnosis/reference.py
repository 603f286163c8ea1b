"""The rules as a list for people, as data, and as a page of the reference: all from the one table."""

from __future__ import annotations

from typing import Any

from rankclock.diagnosis.rules import RULES, THEMES

__all__ = ["rules_as_json", "rules_as_markdown", "rules_as_text"]


def rules_as_json() -> list[dict[str, Any]]:
    """One object a rule."""
    return [
        {
            "id": rule.id,
            "title": rule.title,
            "theme": theme,
            "needs": rule.needs,
            "arithmetic": rule.arithmetic,
            "reference": rule.reference,
        }
        for theme, rules in THEMES.items()
        for rule in rules
    ]


def rules_as_text() -> str:
    """Themes and rules, one line a rule."""
    width = max(len(rule.id) for rule in RULES)
    lines = []
    for theme, rules in THEMES.items():
        lines.append(theme)
        lines.extend(f"  {rule.id:<{width}}  {rule.title}" for rule in rules)
    return "\n".join(lines)


def rules_as_markdown() -> str:
    """The page docs/reference/doctor.md."""
    parts = [_HEAD]
    for theme, rules in THEMES.items():
        parts.append(f"\n## {theme}\n")
        for rule in rules:
            parts.append(f"### `{rule.id}`\n")
            parts.append(f"{rule.title}.\n")
            rows = [("Needs", rule.needs), ("Arithmetic", rule.arithmetic), ("Reference", rule.reference)]
            parts.append("\n".join(f"* {name}: {text}" for name, text in rows if text) + "\n")
    return "\n".join(parts)


_HEAD = """# What the doctor knows

This page is generated from the rules: `python -m rankclock.diagnosis.reference > docs/reference/doctor.md`.

`rankclock doctor` reads pasted output, logs, configurations, error messages, facts and clock states, and asks every
rule below. A rule names a mechanism. It says what it found, how sure it is, which lines show it, what to run next and
how to confirm; numbers that give a fault away (a power of two of nanoseconds, 37 s, Unix time as an offset, a pinned
frequency) are worked out and shown.

## The answer

```json
{"verdict": "fault", "findings": [{"id": "...", "title": "...", "severity": "fault", "confidence": 0.9, "cause": "...",
  "evidence": [{"source": "-", "line": 3, "text": "..."}], "values": {}, "next": ["..."], "confirm": "..."}],
 "values": {}, "recognised": [], "unrecognised": []}
```

| verdict | meaning | exit code |
|---|---|---|
| `fault` | something is wrong | 1 |
| `risk` | nothing has failed yet, something will | 1 |
| `degraded` | worse than it could be | 1 |
| `not-a-clock-fault` | it looks like a fault of a clock and is none | 0 |
| `healthy` | evidence that the clock is well, and none against it | 0 |
| `cannot-tell` | a symptom without a cause, or nothing that tells; the next command is named | 4 |

A finding that another one explains is left out. `values` holds every number read or worked out, its unit in its name;
offsets are local minus reference, except where a name says how a tool prints it (`offset_ms` of ntpq is server minus
local). `unrecognised` lists lines that no reader knew.
"""

if __name__ == "__main__":
    print(rules_as_markdown(), end="")
