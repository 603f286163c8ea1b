"""The command line: one typer app, one file a verb, and the only place where an error becomes an exit code."""

from __future__ import annotations

import os
import sys
import traceback
from importlib import import_module

import typer
from typer.exceptions import TyperException

from rankclock import __version__
from rankclock.errors import ExitCode, RankclockError

__all__ = ["app", "run"]

app = typer.Typer(
    name="rankclock",
    help="Every rank on one clock: plan, deploy, watch and measure the clocks of a training cluster.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

VERBS: tuple[str, ...] = (
    "demo",
    "probe",
    "assess",
    "plan",
    "render",
    "lint",
    "status",
    "check",
    "watch",
    "serve",
    "preflight",
    "verify",
    "doctor",
    "budget",
)
"""Verbs in the order of the main job. Each is a module of this package with a function of the same name."""

GROUPS: tuple[str, ...] = ("inventory", "agent", "lab", "trace", "logs")
"""Verbs that have verbs of their own: modules with a typer app named `app`."""

INTERRUPTED, READER_GONE = 130, 141
"""128 and the signal, as shells count."""

for _verb in VERBS:
    app.command(_verb)(getattr(import_module(f"rankclock.cli.{_verb}"), _verb))
for _group in GROUPS:
    app.add_typer(import_module(f"rankclock.cli.{_group}").app, name=_group)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
) -> None:
    if version:
        typer.echo(f"rankclock {__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _say(message: str) -> None:
    one_line = " ".join(message.split())
    sys.stderr.write(f"rankclock: {one_line}\n")


def _call() -> int:
    try:
        result = app(prog_name="rankclock", standalone_mode=False)
    except RankclockError as error:
        _say(str(error))
        return error.exit_code
    except TyperException as error:
        _say(error.format_message())
        return ExitCode.BAD_INPUT
    except typer.Abort:
        result = INTERRUPTED
    except SystemExit:  # typer's way to say that the reader of stdout is gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return READER_GONE
    if result == INTERRUPTED:  # typer's way to say Ctrl-C
        _say("interrupted")
    return result if isinstance(result, int) else ExitCode.OK


def run() -> None:
    """The console script. Every error is one line on stderr; a traceback only where RANKCLOCK_TRACEBACK is set."""
    try:
        code = _call()
    except Exception as error:
        if os.environ.get("RANKCLOCK_TRACEBACK"):
            traceback.print_exc()
        _say(f"our fault: {type(error).__name__}: {error} (RANKCLOCK_TRACEBACK=1 shows where; please report it)")
        code = ExitCode.OUR_FAULT
    sys.exit(int(code))
