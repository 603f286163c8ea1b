"""`rankclock agent`: the service that watches one node, and the files that go with it."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from rankclock.cli.output import err, out, print_json
from rankclock.errors import ExitCode, HostError, UserError

__all__ = ["app"]

app = typer.Typer(help="Watch this node's clock: metrics for Prometheus, a status page, health.", add_completion=False)

Config = Annotated[Path | None, typer.Option("--config", "-c", help="The agent's configuration file (YAML).")]


@app.callback(invoke_without_command=True)
def agent(context: typer.Context, config: Config = None) -> int:
    """Watch this node's clock until ended: read its daemons, measure against peers, serve what was found.

    Without a configuration file: on 127.0.0.1 port 4911, nobody probed. Pages: /metrics /status /healthz /readyz and /
    for people. SIGHUP reads the file again.

    \b
    Examples:
      rankclock agent --config /etc/rankclock/agent.yaml
      rankclock agent files -o monitoring/
    """
    if context.invoked_subcommand is None:
        if find_spec("prometheus_client") is None:
            raise HostError("the agent needs prometheus-client: pip install 'rankclock[agent]'")
        words = [sys.executable, "-m", "rankclock.agent", *([str(config)] if config is not None else [])]
        # Replaced, not called: this process has loaded the command line, which the service would carry for ever.
        os.execv(sys.executable, words)
    return ExitCode.OK


@app.command()
def check(
    config: Annotated[Path, typer.Argument(help="The configuration file.")],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print the settings as JSON.")] = False,
) -> int:
    """Check a configuration file and the files that it names.

    \b
    Example:
      rankclock agent check /etc/rankclock/agent.yaml
    """
    from rankclock.agent.config import load_settings

    settings = load_settings(config)
    if as_json:
        value = settings.to_json()
        if value["probe"] is not None:
            value["probe"]["key_hex"] = "(not shown)"
        print_json(value)
    else:
        peers = len(settings.probe.peers) if settings.probe else 0
        out().print(f"{config}: fine: node {settings.node}, {peers} peers, class {settings.clock_class.value}")
    return ExitCode.OK


@app.command()
def password(
    name: Annotated[str, typer.Argument(help="The user's name.")],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Make a line of the agent's users file. The password is read from standard input.

    \b
    Example:
      rankclock agent password prometheus >> /etc/rankclock/users
    """
    from rankclock.agent.users import password_line

    if sys.stdin.isatty():
        err().print(f"Password of {name}, then Enter:")
    line = password_line(name, sys.stdin.readline().rstrip("\r\n"))
    if as_json:
        print_json({"user": name, "line": line})
    else:
        sys.stdout.write(line + "\n")
    return ExitCode.OK


@app.command()
def files(
    output: Annotated[Path, typer.Option("--output", "-o", help="A folder for them; it may exist.")],
    *,
    cluster: Annotated[
        Path | None,
        typer.Option("--cluster", help="Also an agent.yaml a node of it, and targets."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Write what monitoring needs: alert and recording rules, dashboards, runbooks, examples, a systemd unit.

    \b
    Example:
      rankclock agent files -o monitoring/ --cluster cluster.yaml
    """
    from rankclock.agent.files import write_files
    from rankclock.cluster import load_cluster

    try:
        written = write_files(output, load_cluster(cluster) if cluster else None)
    except OSError as error:
        raise UserError(f"{output}: cannot write there: {error.strerror}") from None
    if as_json:
        print_json([str(path) for path in written])
    else:
        out().print(f"{len(written)} files in {output}", markup=False)
    return ExitCode.OK


@app.command("clock-class")
def clock_class(
    *,
    domain: Annotated[int, typer.Option("--domain", min=0, max=255, help="ptp4l's domainNumber.")] = 0,
    socket: Annotated[str | None, typer.Option("--socket", help="ptp4l's read-write socket.")] = None,
    refid: Annotated[
        list[str] | None, typer.Option("--refid", help="chronyd's pulse of a receiver; PPS0 where not given.")
    ] = None,
    holdover: Annotated[
        str, typer.Option("--holdover", help="Class 7 after the pulse is gone, while chronyd's bound is below this.")
    ] = "100us",
    once: Annotated[bool, typer.Option("--once", help="Look, tell ptp4l, print, end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --once: print JSON.")] = False,
) -> int:
    """Keep what this grandmaster announces true: class 6 while its receiver's pulse is followed, else worse at once.

    Runs until ended, and takes the claim back then. With --once exit 4 where ptp4l could not be told.

    \b
    Example:
      rankclock agent clock-class --domain 0 --refid PPS0
    """
    from rankclock.agent.class_keeper import ClassKeeper, ClassSettings
    from rankclock.agent.clock_class import keep_clock_class, look_once
    from rankclock.cluster.duration import parse_duration_ns
    from rankclock.errors import DecodeError
    from rankclock.node.grandmaster import Grandmaster, read_write_socket

    try:
        bound_ns = parse_duration_ns(holdover)
    except DecodeError as error:
        raise UserError(f"--holdover: {error}") from None
    settings = ClassSettings(refids=tuple(refid or ("PPS0",)), holdover_bound_ns=bound_ns)
    grandmaster = Grandmaster(socket or read_write_socket(), domain=domain)
    if not once:
        keep_clock_class(grandmaster, settings, lambda line: err().print(line, markup=False))
        return ExitCode.OK
    line, verdict = look_once(ClassKeeper(settings), grandmaster)
    if as_json:
        print_json(
            {
                "schema": "rankclock-clock-class/1",
                "announced": verdict is not None,
                "clock_class": verdict.clock_class if verdict else None,
                "clock_accuracy": verdict.settings.quality.accuracy if verdict else None,
                "why": verdict.why if verdict else line,
            }
        )
    else:
        out().print(line, markup=False)
    return ExitCode.OK if verdict is not None else ExitCode.CANNOT_TELL
