"""What assess, plan and render share: cluster file, facts, the protocol asked for, and how a plan ends a command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankclock.cli.output import err
from rankclock.errors import ExitCode, UserError

if TYPE_CHECKING:
    from rankclock.cluster import Cluster, Facts
    from rankclock.cluster.measured import MeasuredPath
    from rankclock.planning import Plan

__all__ = [
    "ClusterFile",
    "FactsPlace",
    "Json",
    "MeasuredFile",
    "ProtocolAsked",
    "exit_code",
    "measured_paths",
    "planned",
]

ClusterFile = Annotated[
    Path, typer.Argument(help="Cluster file, or lab scenario (its cluster is taken).", metavar="CLUSTER")
]
FactsPlace = Annotated[
    Path | None,
    typer.Option(
        "--facts", help="Facts of the nodes: a file, or a folder of .json files (rankclock probe writes them)."
    ),
]
ProtocolAsked = Annotated[
    str | None, typer.Option("--protocol", help="auto, ntp or ptp; overrides what the cluster file asks for.")
]
MeasuredFile = Annotated[
    Path | None,
    typer.Option("--measured", help="What preflight --json or verify --json wrote: round trips, loss."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def planned(
    cluster_file: Path, facts_place: Path | None, protocol: str | None, measured: Path | None = None
) -> tuple[Cluster, dict[str, Facts], Plan]:
    """Load everything and plan. Raises UserError."""
    from rankclock.cluster import Protocol, load_cluster, load_facts
    from rankclock.planning import make_plan

    if protocol is not None and protocol not in list(Protocol):
        raise UserError(f"--protocol {protocol!r:.40}: expected {', '.join(Protocol)}")
    cluster = load_cluster(cluster_file)
    facts = load_facts(facts_place) if facts_place is not None else {}
    strangers = sorted(set(facts) - set(cluster.by_name))
    if facts and len(strangers) == len(facts):
        raise UserError(
            f"{facts_place}: facts of {strangers[0]!r} and no node of {cluster_file}: expected its nodes' facts"
        )
    if strangers:
        err().print(
            f"facts of {len(strangers)} nodes that are not in {cluster_file} are not used, such as {strangers[0]}"
        )
    return cluster, facts, make_plan(cluster, facts, protocol, paths=measured_paths(measured))


def measured_paths(measured: Path | None) -> tuple[MeasuredPath, ...]:
    """The paths of a file that was given. Raises UserError."""
    from rankclock.cluster.load import load_measured

    return load_measured(measured) if measured is not None else ()


def exit_code(plan: Plan) -> ExitCode:
    """0: everybody has a role and the accuracy is reached; 1: it cannot be; 4: it cannot be told beforehand."""
    from rankclock.planning import Reach

    if not plan.usable:
        return ExitCode.CHECK_FAILED
    return ExitCode.CANNOT_TELL if plan.reach is Reach.CANNOT_TELL else ExitCode.OK
