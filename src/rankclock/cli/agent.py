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
