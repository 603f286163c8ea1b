"""`rankclock lab`: clusters on this machine that live until they are ended."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankclock.cli.output import err, out, print_json

if TYPE_CHECKING:
    from rankclock.lab import Lab
    from rankclock.lab.registry import Kept

__all__ = ["app"]

app = typer.Typer(
    help="A training cluster on this machine: namespaces, real daemons, clocks whose truth is known. Needs no root.",
    no_args_is_help=True,
)

LabName = Annotated[str | None, typer.Option("--name", help="Which lab; not needed where there is only one.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def up(
    scenario: Annotated[Path, typer.Argument(help="A scenario file (schema rankclock-lab/1).")],
    name: Annotated[str | None, typer.Option("--name", help="What to call it; the cluster's name by default.")] = None,
    as_json: Json = False,
) -> None:
    """Start a lab; it lives until `rankclock lab down`.

    Example: rankclock lab up examples/lab.yaml
    """
    from rankclock.lab import Lab, load_scenario

    loaded = load_scenario(scenario)
    name = name or loaded.cluster.name
    started_s = time.monotonic()
    lab = Lab.up(loaded, tied=False, name=name)
    took_s = time.monotonic() - started_s
    if loaded.events:
        _start_player(name)
    nodes = [node.name for node in loaded.cluster.nodes]
    lab.down()
    if as_json:
        print_json({"schema": "rankclock-lab-up/1", "name": name, "nodes": nodes, "took_s": round(took_s, 3)})
        return
    out().print(f"lab {name} is up: {len(nodes)} nodes in {took_s:.2f} s")
    err().print(
        f"enter one with: rankclock lab shell {nodes[0]} --name {name}\nend it with:   rankclock lab down {name}"
    )


def _start_player(name: str) -> None:
    from rankclock.lab.registry import one_of

    log = one_of(name).folder / "log" / "events.log"
    with log.open("ab") as file:
        subprocess.Popen(
            [sys.executable, "-m", "rankclock.lab.player", name],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            cwd="/",
        )


@app.command()
def apply(
    folder: Annotated[Path, typer.Argument(help="What `rankclock render` has written.")],
    name: LabName = None,
    settle_s: Annotated[
        float, typer.Option(help="A tier is right once it has been within the accuracy so long.")
    ] = 5.0,
    timeout_s: Annotated[float, typer.Option(help="How long a tier may take.")] = 90.0,
    as_json: Json = False,
) -> None:
    """Start the rendered services in a lab, tier by tier, and tell how well the clocks do.

    Example: rankclock render examples/lab.yaml -o out/ && rankclock lab apply out/
    """
    from rankclock.configs.manifest import read_rendered
    from rankclock.errors import ExitCode
    from rankclock.lab import Lab
    from rankclock.lab.apply import apply as apply_in_lab
    from rankclock.lab.registry import one_of
    from rankclock.timebase import format_span_ns

    nodes = read_rendered(folder)
    kept = one_of(name)
    lab = Lab.attach(kept.name)
    accuracy_ns = lab.scenario.cluster.require.accuracy_ns
    tiers = apply_in_lab(
        lab,
        nodes,
        accuracy_ns=accuracy_ns,
        settle_s=settle_s,
        timeout_s=timeout_s,
        logs=kept.folder / "log",
        progress=err().print,
    )
    lab.down()
    if as_json:
        print_json({"schema": "rankclock-lab-apply/1", "lab": kept.name, "tiers": [asdict(tier) for tier in tiers]})
    else:
        for tier in tiers:
            state = "within" if tier.settled else "NOT within"
            worst = "no clock" if tier.worst_ns is None else f"worst true offset {format_span_ns(tier.worst_ns)}"
            out().print(
                f"tier {tier.tier}: {', '.join(tier.nodes) or '-'}: {state} {format_span_ns(accuracy_ns)} "
                f"after {tier.took_s:.1f} s, {worst}"
            )
    if not all(tier.settled for tier in tiers):
        raise typer.Exit(ExitCode.CHECK_FAILED)


@app.command()
def down(
    name: Annotated[str | None, typer.Argument(help="Which lab; not needed where there is only one.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="End all labs.")] = False,
    as_json: Json = False,
) -> None:
    """End a lab: every process, namespace, mount and file of it is gone.

    Example: rankclock lab down
    """
    from rankclock.lab import Lab
    from rankclock.lab.registry import kept_labs, one_of, tidy

    names = [kept.name for kept in kept_labs()] if everything else [one_of(name).name]
    for each in names:
        Lab.attach(each).end()
    _await_gone(set(names))
    tidy()
    if as_json:
        print_json({"schema": "rankclock-lab-down/1", "ended": names})
    else:
        out().print(f"ended: {', '.join(names) or 'none was up'}")


def _await_gone(names: set[str]) -> None:
    """The outer process removes the lab's folder just after the last process is dead."""
    from rankclock.errors import HostError
    from rankclock.lab.registry import kept_labs

    deadline = time.monotonic() + 5
    while names & {kept.name for kept in kept_labs()}:
        if time.monotonic() > deadline:
            raise HostError(f"lab {', '.join(sorted(names))} has not ended within 5 s")
        time.sleep(0.02)


@app.command("list")
def list_labs(
    clocks: Annotated[bool, typer.Option("--clocks", help="With the true offset of every clock.")] = False,
    as_json: Json = False,
) -> None:
    """Show the labs that are up.

    Example: rankclock lab list --clocks
    """
    from rankclock.lab import Lab
    from rankclock.lab.registry import kept_labs, tidy

    labs: list[dict[str, Any]] = []
    for kept in kept_labs():
        lab = Lab.attach(kept.name)
        labs.append(_described(kept, lab, clocks))
        lab.down()
    if as_json:
        print_json({"schema": "rankclock-lab-list/1", "labs": labs})
        return
    for each in labs:
        out().print(f"{each['name']}: {len(each['nodes'])} nodes, up for {each['up_for_s']:.0f} s")
        for node in each["nodes"]:
            running = ", ".join(name for name, runs in node["services"].items() if runs) or "no service"
            truth = f"  {node['true_offset_ns'] / 1e3:+14.3f} µs" if clocks else ""
            out().print(f"  {node['name']:<16}{truth}  {running}")
        if clocks:
            err().print(f"offsets are true ones, to the clock of {each['reference']}")
    if not labs:
        tidy()
        err().print("no lab is up")


def _described(kept: Kept, lab: Lab, clocks: bool) -> dict[str, Any]:
    reference = lab.reference
    nodes = []
    for node in lab.scenario.cluster.nodes:
        described: dict[str, Any] = {"name": node.name, "services": lab.running_services(node.name)}
        if clocks:
            described["true_offset_ns"] = lab.true_offset_ns(node.name, reference)
        nodes.append(described)
    up_for_s = time.time() - kept.state["started_at_s"]
    return {"name": kept.name, "up_for_s": round(up_for_s, 1), "reference": reference, "nodes": nodes}


@app.command(context_settings={"allow_interspersed_args": False})
def shell(
    node: Annotated[str, typer.Argument(help="Which node.")],
    command: Annotated[list[str] | None, typer.Argument(help="What to run; a shell if nothing is given.")] = None,
    name: LabName = None,
) -> None:
    """Run a shell, or a command, inside a node, on its clock. Its exit code is passed on.

    Example: rankclock lab shell gpu5 date
    """
    from rankclock.lab import Lab
    from rankclock.lab.terminal import run_here

    lab = Lab.attach(name)
    argv = [word for i, word in enumerate(command or []) if i or word != "--"]
    code = run_here(lab, node, argv or [os.environ.get("SHELL", "/bin/sh")])
    raise typer.Exit(code)
