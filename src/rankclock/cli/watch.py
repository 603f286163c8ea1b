"""`rankclock watch`: the status of many nodes, again and again, worst first."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from rankclock.cli.output import out
from rankclock.errors import ExitCode, UserError

if TYPE_CHECKING:
    from rich.table import Table

    from rankclock.agent.client import AgentStatus

__all__ = ["watch"]

SHOWN = 40


def watch(
    *,
    agents: Annotated[str, typer.Option("--agents", help="Agents to ask: gpu[001-032]:4911,time1 and so on.")],
    every: Annotated[float, typer.Option("--every", help="Seconds from one look to the next.")] = 2.0,
    count: Annotated[int, typer.Option("--count", help="Looks until it ends; 0: until it is interrupted.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON line a look.")] = False,
) -> int:
    """Show the clocks of many nodes live, worst first: what is claimed, what is measured, and why.

    \b
    Example:
      rankclock watch --agents gpu[001-032]:4911
    """
    from rich.live import Live

    from rankclock.agent.client import agent_addresses, ask_agents

    if not 0.1 <= every <= 3600:
        raise UserError(f"--every is 0.1 to 3600 seconds, found {every:g}")
    addresses = agent_addresses(agents)
    looks = 0
    with Live(console=out(), auto_refresh=False, transient=False) as live:
        while True:
            began_s = time.monotonic()
            found = ask_agents(addresses)
            looks += 1
            if as_json:
                sys.stdout.write(json.dumps([status.state.to_json() for status in found], ensure_ascii=False) + "\n")
                sys.stdout.flush()
            else:
                live.update(_table(found), refresh=True)
            if looks == count:
                return ExitCode.OK
            time.sleep(max(every - (time.monotonic() - began_s), 0))


def _table(found: list[AgentStatus]) -> Table:
    from rich.table import Table
    from rich.text import Text

    from rankclock.fleet.status_table import StatusRow, cells, worst_first

    rows = worst_first(StatusRow(state=status.state) for status in found)
    states = [row.state.state.value for row in rows]
    title = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    table = Table(title=f"{len(rows)} clocks: {title}", title_justify="left")
    for column in ("node", "owner", "source", "state", "claimed", "measured", "why"):
        table.add_column(column, overflow="fold")
    for row in rows[:SHOWN]:
        node, _, owner, source, state, claimed, measured, _ = cells(row)
        why = row.state.reasons[0] if row.state.reasons else ""
        table.add_row(*(Text(text) for text in (node, owner, source, state, claimed, measured, why)))
    if len(rows) > SHOWN:
        table.caption = f"and {len(rows) - SHOWN} better ones"
    return table
