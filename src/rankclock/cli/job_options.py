"""What `verify` and `preflight` have in common: their options, and how a verdict stands on stdout."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from rankclock.errors import DecodeError, ExitCode, RankclockError, UserError

__all__ = [
    "Hosts",
    "Job",
    "Json",
    "ProbePort",
    "Rank",
    "RendezvousPoint",
    "Seconds",
    "Timeout",
    "WorldSize",
    "disabled",
    "failed",
    "say_verdict",
    "span_ns",
]

Seconds = Annotated[float, typer.Option("--seconds", help="How long to probe.")]
Hosts = Annotated[
    str | None, typer.Option("--hosts", help="A host list (gpu[001-004], the same on every host), or how many.")
]
Rank = Annotated[int | None, typer.Option("--rank", help="This process's rank, where no launcher tells it.")]
WorldSize = Annotated[int | None, typer.Option("--world-size", help="How many ranks, where no launcher tells it.")]
RendezvousPoint = Annotated[
    str | None,
    typer.Option("--rendezvous", help="HOST:PORT of rank 0, where all meet (also RANKCLOCK_RENDEZVOUS)."),
]
Job = Annotated[str | None, typer.Option("--job", help="A name that only the ranks of this job use.")]
Timeout = Annotated[float, typer.Option("--timeout", help="How many seconds any rank is waited for.")]
ProbePort = Annotated[int, typer.Option("--probe-port", help="UDP port of this host's probes, 0 for any.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def span_ns(option: str, text: str) -> int:
    """A span of time as people write it. Raises UserError."""
    from rankclock.cluster.duration import parse_duration_ns

    try:
        span = parse_duration_ns(text)
    except DecodeError as error:
        raise UserError(f"{option}: {error}") from None
    if span == 0:
        raise UserError(f"{option} is {text}: no two clocks are exactly alike")
    return span


def say_verdict(verb: str, line: str) -> None:
    """The verdict line, alike wherever it stands: logs are searched for it."""
    typer.echo(f"rankclock {verb}: {line}")


def disabled(verb: str, as_json: bool) -> bool:
    """Whether RANKCLOCK_DISABLE=1 asks for nothing to be done; says so."""
    from rankclock.cli.output import print_json
    from rankclock.training.job import DISABLE_VARIABLE

    if os.environ.get(DISABLE_VARIABLE) != "1":
        return False
    line = f"not measured: {DISABLE_VARIABLE}=1"
    if as_json:
        print_json({"schema": f"rankclock-{verb}/1", "verdict": "not measured", "exit_code": 0, "line": line})
    else:
        say_verdict(verb, line)
    return True


def failed(verb: str, error: RankclockError, as_json: bool) -> None:
    """No verdict came about: stdout says so too, since launchers keep neither exit codes nor every stderr."""
    from rankclock.cli.output import print_json

    if error.exit_code is ExitCode.CANNOT_TELL:
        verdict, line = "cannot be told", f"CANNOT BE TOLD: {error}"
    else:
        verdict, line = "failed", f"FAILED: {error}"
    if as_json:
        code = int(error.exit_code)
        print_json({"schema": f"rankclock-{verb}/1", "verdict": verdict, "exit_code": code, "line": line})
    else:
        say_verdict(verb, line)
