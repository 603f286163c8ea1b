"""Where output goes: results to stdout, progress and messages to stderr; one way to print JSON and tables."""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.console import Console

__all__ = ["err", "out", "print_json"]


def out() -> Console:
    """The console for results. Colours only where stdout is a terminal that has them (NO_COLOR is respected)."""
    return Console(file=sys.stdout, highlight=False, soft_wrap=not sys.stdout.isatty())


def err() -> Console:
    """The console for progress and messages."""
    return Console(file=sys.stderr, highlight=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """One JSON document on stdout, keys in the order given, ended by a newline."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
