"""Writes docs/reference/cli.md from the commands' own help; with --check it only says whether the page is up to date.

The page holds what `rankclock VERB --help` prints and nothing else, so it says nothing that the program does not.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from typer.testing import CliRunner

from rankclock.cli import main

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "cli.md"
COMMAND = ".venv/bin/python scripts/cli_reference.py"
WIDTH = "100"
HEAD = f"""# Commands

Made from the commands' own help by `{COMMAND}`. Do not edit this page by hand.

What every command has in common: results go to standard output, progress and messages to standard error; `--json`
prints one JSON document; the exit codes are those of [one table](exit-codes.md).
"""


def verbs() -> list[tuple[str, ...]]:
    """Every command as the words behind `rankclock`, in the order of its help."""
    found: list[tuple[str, ...]] = [(verb,) for verb in main.VERBS]
    for group in main.GROUPS:
        found.append((group,))
        app = import_module(f"rankclock.cli.{group}").app
        found += [(group, command.name or command.callback.__name__) for command in app.registered_commands]
    return found


def help_of(words: tuple[str, ...]) -> str:
    """What `rankclock WORDS --help` prints. Raises RuntimeError where that fails."""
    environment = {"COLUMNS": WIDTH, "TERMINAL_WIDTH": WIDTH, "NO_COLOR": "1"}
    result = CliRunner().invoke(main.app, [*words, "--help"], prog_name="rankclock", env=environment)
    if result.exit_code != 0:
        raise RuntimeError(f"rankclock {' '.join(words)} --help ended with {result.exit_code}: {result.output}")
    return "\n".join(line.rstrip() for line in result.stdout.strip().splitlines())


def page() -> str:
    """The whole page."""
    parts = [HEAD, f"```text\n{help_of(())}\n```\n"]
    for words in verbs():
        level = "#" * (len(words) + 1)
        parts.append(f"{level} rankclock {' '.join(words)}\n\n```text\n{help_of(words)}\n```\n")
    return "\n".join(parts)


def run(arguments: list[str]) -> int:
    """Write the page, or check it. 0: done, or up to date; 1: out of date; 2: wrong use."""
    if arguments not in ([], ["--check"]):
        print(f"usage: {COMMAND} [--check]", file=sys.stderr)
        return 2
    text = page()
    if not arguments:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
        print(f"{PAGE} is out of date; run: {COMMAND}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
