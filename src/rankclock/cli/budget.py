"""`rankclock budget`: what breaks at which clock error, and how much room this cluster's bound leaves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankclock.cli.output import out, print_json
from rankclock.errors import DecodeError, ExitCode, UserError

if TYPE_CHECKING:
    from rankclock.diagnosis.budget import Bound, Budget

__all__ = ["budget"]


def budget(
    cluster_file: Annotated[
        Path | None, typer.Argument(metavar="[CLUSTER]", help="Cluster file: its plan's bound is taken.")
    ] = None,
    bound: Annotated[
        str | None, typer.Option("--bound", help="How far two hosts may be apart at most, such as 50us.")
    ] = None,
    utc_bound: Annotated[
        str | None, typer.Option("--utc-bound", help="How far a host may be from UTC at most; --bound if not given.")
    ] = None,
    measured: Annotated[
        Path | None, typer.Option("--measured", help="Measured offsets, one rankclock-measured/1 object a line.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Show what breaks first in a training stack at which clock error, against a stated, planned or measured bound.

    Exit code: 0 everything has room, 1 the bound reaches a limit, 4 there is no bound to judge by.

    \b
    Example: rankclock budget examples/qlora-ptp-32.yaml
             rankclock budget --bound 2ms --utc-bound 20ms
    """
    from rankclock.diagnosis.budget import Standing, make_budget

    given = [place for place in (cluster_file, bound, measured) if place is not None]
    if len(given) > 1:
        raise UserError("give one of CLUSTER, --bound and --measured: which bound counts?")
    name, bounds = _bounds(cluster_file, bound, utc_bound, measured)
    made = make_budget(name, bounds)
    if as_json:
        print_json(made.to_json())
    else:
        _print(made)
    if made.first is None:
        return int(ExitCode.CANNOT_TELL)
    return int(ExitCode.CHECK_FAILED if made.count(Standing.BREAKS) else ExitCode.OK)


def _bounds(
    cluster_file: Path | None, bound: str | None, utc_bound: str | None, measured: Path | None
) -> tuple[str, list[Bound]]:
    from rankclock.diagnosis.budget import Bound
    from rankclock.diagnosis.tolerances import Against

    hosts_ns, source, utc_ns = None, "nobody says", None
    name = "no bound"
    if cluster_file is not None:
        name, hosts_ns, utc_ns = _planned(cluster_file)
        source = f"the plan of {cluster_file}"
    elif measured is not None:
        name, hosts_ns = str(measured), _measured(measured)
        source = f"measured, {measured}"
    elif bound is not None:
        name, hosts_ns, source = f"bound {bound}", _span("--bound", bound), "stated"
        utc_ns = hosts_ns
    if utc_bound is not None:
        utc_ns = _span("--utc-bound", utc_bound)
    return name, [
        Bound(against=Against.HOSTS, bound_ns=hosts_ns, source=source),
        Bound(against=Against.UTC, bound_ns=utc_ns, source="stated" if utc_bound else source),
    ]


def _span(option: str, text: str) -> int:
    from rankclock.cluster.duration import parse_duration_ns

    try:
        return parse_duration_ns(text)
    except DecodeError as error:
        raise UserError(f"{option}: {error}") from None


def _planned(cluster_file: Path) -> tuple[str, int | None, int | None]:
    """(cluster, bound between the worst pair, bound of the worst node to the plan's reference)."""
    from rankclock.cluster import load_cluster
    from rankclock.planning import make_plan

    plan = make_plan(load_cluster(cluster_file))
    totals = [role.budget.total_ns for role in plan.roles.values()]
    known = [total for total in totals if total is not None]
    # One node whose budget is unknown, and nobody can say how far the worst one is from UTC.
    return plan.cluster, plan.worst_pair_ns, max(known) if known and len(known) == len(totals) else None


def _measured(path: Path) -> int:
    """The farthest end of all intervals in a file of measured offsets. Raises UserError with file and line."""
    worst: int | None = None
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {str(path)!r}: {getattr(error, 'strerror', None) or error}") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        offset = _offset(path, number, line)
        lo, hi = offset.get("lo_ns"), offset.get("hi_ns")
        if isinstance(lo, int) and isinstance(hi, int):
            worst = max(worst or 0, abs(lo), abs(hi))
    if worst is None:
        raise UserError(f"{path}: no measured offset in it: expected rankclock-measured/1 objects, one a line")
    return worst


def _offset(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise UserError(f"{path}:{number}: no JSON object: expected rankclock-measured/1, one a line") from None
    offset = value.get("offset") if isinstance(value, dict) else None
    if not isinstance(offset, dict) or value.get("schema") != "rankclock-measured/1":
        raise UserError(f"{path}:{number}: expected an object of schema rankclock-measured/1 with an offset")
    return offset


def _print(made: Budget) -> None:
    from rich.table import Table

    from rankclock.diagnosis.budget import Standing, margin_text
    from rankclock.timebase import format_span_ns

    console = out()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("component", "breaks at", "clock", "against", "room", "", "effect"):
        table.add_column(heading, overflow="fold")
    for margin in made.margins:
        tolerance = margin.tolerance
        table.add_row(
            tolerance.component,
            format_span_ns(tolerance.breaks_at_ns),
            tolerance.direction.value,
            tolerance.against.value,
            margin_text(margin),
            margin.standing.value,
            tolerance.effect,
        )
    console.print(table)
    first = made.first
    if first is None:
        console.print("No bound to judge by: give CLUSTER, --bound or --measured.", markup=False)
        return
    said = {standing: made.count(standing) for standing in Standing}
    console.print(
        f"{made.name}: {first.tolerance.component} breaks first ({margin_text(first)}); {said[Standing.SAFE]} safe, "
        f"{said[Standing.NARROW]} narrow, {said[Standing.BREAKS]} can break, {said[Standing.UNKNOWN]} without a bound",
        markup=False,
    )
