"""`rankclock assess`: which way of keeping time suits this cluster, question by question."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rankclock.cli.output import out, print_json
from rankclock.cli.plan_input import ClusterFile, FactsPlace, Json, MeasuredFile, ProtocolAsked, measured_paths, planned
from rankclock.errors import ExitCode, UserError

if TYPE_CHECKING:
    from rankclock.cluster import Cluster, Facts
    from rankclock.cluster.measured import MeasuredPath

__all__ = ["assess"]


def assess(
    cluster_file: ClusterFile,
    *,
    facts: FactsPlace = None,
    protocol: ProtocolAsked = None,
    measured: MeasuredFile = None,
    why_not: Annotated[
        str | None, typer.Option("--why-not", help="ntp, ptp or hybrid: all that stands in its way here.")
    ] = None,
    as_json: Json = False,
) -> int:
    """Choose between NTP and PTP: every question with its answer, the evidence, and what would change it.

    Unknown facts never count as a yes. Exit 0 where a way was found, 1 where what was asked for cannot be.

    \b
    Example: rankclock assess examples/no-phc-16.yaml --why-not ptp
    """
    from rankclock.planning import decision_text
    from rankclock.planning.codec import to_plain

    cluster, known, plan = planned(cluster_file, facts, protocol, measured)
    decision = plan.decision
    if why_not is not None:
        return _why_not(cluster, known, why_not, measured_paths(measured), as_json=as_json)
    if as_json:
        print_json({"schema": "rankclock-decision/1", "cluster": plan.cluster, **to_plain(decision)})
    else:
        out().print(decision_text(decision), end="", markup=False)
    return ExitCode.OK if decision.scheme is not None else ExitCode.CHECK_FAILED


def _why_not(
    cluster: Cluster, facts: dict[str, Facts], protocol: str, paths: tuple[MeasuredPath, ...], *, as_json: bool
) -> int:
    """Exit 0 where the questions lead to it, 1 where something stands in its way."""
    from rankclock.planning import why_not

    if protocol not in ("ntp", "ptp", "hybrid"):
        raise UserError(f"--why-not {protocol!r:.40}: expected ntp, ptp or hybrid")
    lines = why_not(cluster, protocol, facts, paths=paths)
    if as_json:
        value = {"schema": "rankclock-why-not/1", "cluster": cluster.name, "protocol": protocol, "because": list(lines)}
        print_json(value)
    else:
        for line in lines or (f"the questions lead to {protocol}: nothing stands in its way",):
            out().print(line, markup=False)
    return ExitCode.CHECK_FAILED if lines else ExitCode.OK
