"""`rankclock probe`: the facts of this machine, or the script that collects them elsewhere."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from rankclock.cli.output import out, print_json
from rankclock.errors import ExitCode

__all__ = ["probe"]


def probe(
    *,
    node: Annotated[str | None, typer.Option("--node", help="The name to give this machine.")] = None,
    script: Annotated[
        bool, typer.Option("--script", help="Print the probe as one file for `ssh NODE python3 -`.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Show what this machine has for time keeping: clocks, NICs, daemons, who steers the clock. Changes nothing.

    What could not be seen is "unknown", with the reason.

    \b
    Examples:
      rankclock probe --json > facts/$(hostname).json
      rankclock probe --script | ssh gpu001 python3 - > facts/gpu001.json
    """
    if script:
        from rankclock.fleet.pack import probe_script

        sys.stdout.write(probe_script())
        return ExitCode.OK
    from rankclock.node.facts import collect_facts

    found = collect_facts(node)
    if as_json:
        print_json(found)
    else:
        _show(found)
    return ExitCode.OK


def _show(found: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=str(found["node"]), title_justify="left")
    for head in ("fact", "value", "read from"):
        table.add_column(head, overflow="fold")
    for key, fact in found["facts"].items():
        value = f"unknown: {fact['why']}" if fact["value"] is None else _words(fact["value"])
        table.add_row(*(Text(part) for part in (key, value, fact["source"])))
    out().print(table)


def _words(value: Any) -> str:
    """A value for people: fields as `name value`, lists with commas, null as unknown."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {_words(item)}" for name, item in value.items())
    if isinstance(value, list):
        return ", ".join(_words(item) for item in value) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "unknown" if value is None else str(value)
