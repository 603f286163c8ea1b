"""`rankclock status`: how the clocks stand, worst first: what daemons claim, and in a lab the truth beside it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankclock.cli.output import out, print_json
from rankclock.errors import ExitCode, UserError
from rankclock.timebase import SyncState

if TYPE_CHECKING:
    from rankclock.fleet.status_table import StatusRow

__all__ = ["status"]

NOT_MEASURED = "not measured: `rankclock verify` and `rankclock demo` measure between nodes"


def status(
    cluster_file: Annotated[
        Path | None, typer.Argument(help="Cluster file: its nodes are asked by ssh.", metavar="[CLUSTER]")
    ] = None,
    *,
    lab: Annotated[str | None, typer.Option("--lab", help="Ask the nodes of this running lab.")] = None,
    agents: Annotated[str | None, typer.Option("--agents", help="Ask these agents: gpu[001-032]:4911,time1.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Show every clock: who steers it, whom it follows, its state, and the offset ± bound that its daemon claims.

    Without a file or a lab: this machine. Exit 0 where every clock is synchronised, 1 where one is not, 4 where one
    cannot be read.

    \b
    Examples:
      rankclock status
      rankclock status cluster.yaml
      rankclock status --lab lab --json
      rankclock status --agents gpu[001-032]:4911
    """
    from rankclock.fleet.status_table import row_json, worst_first

    if sum(given is not None for given in (lab, cluster_file, agents)) > 1:
        raise UserError("give a cluster file, --lab or --agents, not both")
    if agents is not None:
        rows = worst_first(_agent_rows(agents))
    else:
        rows = worst_first(_lab_rows(lab) if lab is not None else _rows(cluster_file))
    if as_json:
        print_json([row_json(row) for row in rows])
    else:
        _show(rows)
    states = {row.state.state for row in rows}
    if states - {SyncState.SYNCHRONISED, SyncState.UNKNOWN}:
        return ExitCode.CHECK_FAILED
    return ExitCode.CANNOT_TELL if SyncState.UNKNOWN in states else ExitCode.OK


def _rows(cluster_file: Path | None) -> list[StatusRow]:
    from rankclock.cli.reach import transports_of
    from rankclock.fleet.collect import collect_states
    from rankclock.fleet.status_table import StatusRow
    from rankclock.node.state import read_clock_state

    if cluster_file is None:
        return [StatusRow(state=read_clock_state(None))]
    return [StatusRow(state=state) for state in collect_states(transports_of(cluster_file, None)).values()]


def _agent_rows(agents: str) -> list[StatusRow]:
    """What agents claim and measure."""
    from rankclock.agent.client import agent_addresses, ask_agents
    from rankclock.fleet.status_table import StatusRow

    return [StatusRow(state=status.state) for status in ask_agents(agent_addresses(agents))]


def _lab_rows(name: str) -> list[StatusRow]:
    """Claims of a lab's nodes, and the true offset from the lab's reference at the instant of each claim."""
    from rankclock.fleet.collect import collect_states
    from rankclock.fleet.status_table import StatusRow
    from rankclock.fleet.transport import InLab
    from rankclock.lab import Lab

    lab = Lab.attach(name)
    names = [node.name for node in lab.scenario.cluster.nodes]
    states = collect_states({node: InLab(lab=lab, node=node) for node in names})
    return [
        StatusRow(state=state, truth_ns=lab.true_offset_ns(node, lab.reference, at_raw_ns=state.claimed.at_raw_ns))
        for node, state in states.items()
    ]


def _show(rows: list[StatusRow]) -> None:
    from rich.table import Table
    from rich.text import Text

    from rankclock.fleet.status_table import COLUMNS, MISSES_TRUTH, cells

    with_truth = any(row.truth_ns is not None for row in rows)
    with_roles = any(row.role for row in rows)
    shown = [
        index
        for index, column in enumerate(COLUMNS)
        if (column != "truth" or with_truth) and (column != "role" or with_roles)
    ]
    table = Table()
    for index in shown:
        table.add_column(COLUMNS[index], overflow="fold")
    for row in rows:
        texts = cells(row)
        table.add_row(
            *(Text(texts[index], style="bold red" if MISSES_TRUTH in texts[index] else "") for index in shown)
        )
    out().print(table)
    for row in rows:
        for reason in row.state.reasons:
            out().print(f"{row.state.node}: {reason}", markup=False)
