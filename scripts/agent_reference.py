"""Writes docs/reference/metrics.md and docs/reference/alerts.md from the agent's tables; with --check only compares."""

from __future__ import annotations

import sys
from pathlib import Path

from rankclock.agent import alerts, metrics

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "reference"
COMMAND = ".venv/bin/python scripts/agent_reference.py"


def pages() -> dict[Path, str]:
    """Each page and its text."""
    return {FOLDER / "metrics.md": metrics.reference_page(), FOLDER / "alerts.md": alerts.reference_page()}


def run(arguments: list[str]) -> int:
    """Write the pages, or check them. 0: done, or up to date; 1: out of date."""
    stale = [path for path, text in pages().items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if "--check" in arguments:
        for path in stale:
            print(f"{path} is out of date; run: {COMMAND}", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        path.write_text(pages()[path], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
