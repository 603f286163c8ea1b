"""`rankclock serve`: one page for a cluster: the time tree, measured pairs, recent history."""

from __future__ import annotations

from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankclock.cli.output import err, print_json
from rankclock.errors import ExitCode, HostError, UserError

if TYPE_CHECKING:
    from rankclock.agent.cluster_view import View

__all__ = ["serve"]


def serve(
    cluster_file: Annotated[
        Path | None, typer.Argument(help="Cluster file: tells whose address is whose.", metavar="[CLUSTER]")
    ] = None,
    *,
    agents: Annotated[str, typer.Option("--agents", help="Agents to ask: gpu[001-032]:4911,time1 and so on.")],
    listen: Annotated[str, typer.Option("--listen", help="Loopback ADDRESS:PORT of the page.")] = "127.0.0.1:4912",
    every: Annotated[float, typer.Option("--every", help="Seconds from one look to the next.")] = 5.0,
    as_json: Annotated[bool, typer.Option("--json", help="Look once, print the page's data, end.")] = False,
) -> int:
    """Serve a page that shows the time tree of a cluster, live: every clock with its offset and bound, all measured
    pairs, the last hour. Works without a network; listens on loopback (put a proxy with users before it for others).

    \b
    Example:
      rankclock serve cluster.yaml --agents gpu[001-032]:4911
    """
    import time

    from rankclock.agent.client import agent_addresses, ask_agents

    host, port = _listen(listen)
    if not 0.1 <= every <= 3600:
        raise UserError(f"--every is 0.1 to 3600 seconds, found {every:g}")
    addresses = agent_addresses(agents)
    view = _view(cluster_file)
    if as_json:
        view.handle_look(ask_agents(addresses), time.time())
        print_json(view.to_json())
        return ExitCode.OK
    for module in ("starlette", "uvicorn", "plotly"):
        if find_spec(module) is None:
            raise HostError(f"the page needs {module}: pip install 'rankclock[serve]'")
    import uvicorn

    from rankclock.agent.cluster_server import cluster_app

    err().print(f"http://{listen}/ shows {len(addresses)} agents; Ctrl-C ends", markup=False)
    config = uvicorn.Config(
        cluster_app(addresses, view, every_s=every), host=host, port=port, log_level="error", access_log=False
    )
    server = uvicorn.Server(config)
    try:
        server.run()
    except SystemExit:  # uvicorn's way to say that it could not listen; its log line says why
        raise HostError(f"cannot listen on {listen}: choose another with --listen") from None
    return ExitCode.OK


def _listen(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    try:
        address = ip_address(host.strip("[]"))
        number = int(port)
    except ValueError:
        raise UserError(f"--listen is ADDRESS:PORT, such as 127.0.0.1:4912, found {text!r}") from None
    if not address.is_loopback or not 0 < number < 65536:
        raise UserError(f"--listen {text}: the page has no users of its own: listen on loopback, port 1 to 65535")
    return str(address), number


def _view(cluster_file: Path | None) -> View:
    from rankclock.agent.cluster_view import View
    from rankclock.cluster import load_cluster

    if cluster_file is None:
        return View({}, title="cluster")
    cluster = load_cluster(cluster_file)
    addresses = {str(nic.address.ip): node.name for node in cluster.nodes for nic in node.nics}
    return View(addresses, title=cluster.name)
