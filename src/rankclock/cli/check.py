"""`rankclock check`: one clock as a monitoring plugin sees it."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from rankclock.cli.output import print_json
from rankclock.errors import RankclockError

__all__ = ["check"]

SCHEMA = "rankclock-check/1"

Agent = Annotated[str | None, typer.Option("--agent", help="Ask this agent (HOST:PORT), not the daemons here.")]
Critical = Annotated[
    str | None, typer.Option("--critical", "-c", "--limit", help="The limit; by the class of clock where not given.")
]
Warning_ = Annotated[str | None, typer.Option("--warning", "-w", help="Warn where it may be farther off than this.")]


def check(
    *,
    agent: Agent = None,
    critical: Critical = None,
    warning: Warning_ = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Check this machine's clock: one line, performance data, exit 0 (OK), 1 (WARNING), 2 (CRITICAL), 3 (UNKNOWN).

    The offset is judged in both directions and with its bound: critical only where it is certainly beyond the limit,
    unknown where that cannot be told. The default limit is 1 ms under NTP, 1 us under hardware PTP, 100 us under
    software PTP. With an agent, what it measured against peers is judged too.

    \b
    Examples:
      rankclock check --critical 1ms --warning 200us
      rankclock check --agent gpu001:4911
    """
    try:
        return _check(agent, critical, warning, as_json)
    except RankclockError as error:
        line = f"CLOCK UNKNOWN - {' '.join(str(error).split())}"
        if as_json:
            print_json({"schema": SCHEMA, "level": "UNKNOWN", "exit_code": 3, "line": line, "status": None})
        else:
            sys.stdout.write(line + "\n")
        return 3


def _check(agent: str | None, critical: str | None, warning: str | None, as_json: bool) -> int:
    from rankclock.agent.client import agent_addresses, ask_agent
    from rankclock.agent.plugin import judge
    from rankclock.agent.settings import ClockClass, default_limit_ns
    from rankclock.agent.story import class_of
    from rankclock.cli.job_options import span_ns
    from rankclock.errors import UserError
    from rankclock.node.state import read_clock_state

    sources, read_age_ns, limit_ns, utc_limit_ns = None, None, None, None
    if agent is not None:
        addresses = agent_addresses(agent)
        if len(addresses) != 1:
            raise UserError(f"--agent names one agent, found {len(addresses)}: `rankclock status --agents` asks many")
        status = ask_agent(addresses[0])
        state, more = status.state, status.more
        read_age_ns = more.get("read_age_ns")
        limit_ns, utc_limit_ns = more.get("cluster_limit_ns"), more.get("utc_limit_ns")
        if more.get("sources_usable") is not None:
            sources = (int(more["sources_usable"]), int(more.get("sources_wanted", 0)))
    else:
        state = read_clock_state(None)
    if critical is not None:
        limit_ns = utc_limit_ns = span_ns("--critical", critical)
    elif limit_ns is None:
        limit_ns = default_limit_ns(class_of(state.owner, ClockClass.AUTO, ClockClass.NTP))
    verdict = judge(
        state,
        critical_ns=limit_ns,
        claimed_critical_ns=utc_limit_ns,
        warning_ns=None if warning is None else span_ns("--warning", warning),
        sources=sources,
        read_age_ns=read_age_ns,
    )
    if as_json:
        print_json(
            {
                "schema": SCHEMA,
                "level": verdict.level.name,
                "exit_code": int(verdict.level),
                "line": verdict.line,
                "status": state.to_json(),
            }
        )
    else:
        tail = f" | {verdict.performance}" if verdict.performance else ""
        sys.stdout.write(f"{verdict.line.replace('|', '/')}{tail}\n")
    return int(verdict.level)
