"""`rankclock preflight`: before torchrun starts, are the hosts' clocks close enough for a job to start at all?"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from rankclock.cli.job_options import (
    Hosts,
    Job,
    Json,
    ProbePort,
    Rank,
    RendezvousPoint,
    Seconds,
    Timeout,
    WorldSize,
    disabled,
    failed,
    say_verdict,
    span_ns,
)
from rankclock.errors import RankclockError, UserError

if TYPE_CHECKING:
    from rankclock.training.job import Verdict
    from rankclock.training.preflight import Preflight

__all__ = ["preflight"]


def preflight(
    *,
    refuse: Annotated[str, typer.Option("--refuse", help="Apart by this or more: a job may split.")] = "10s",
    error: Annotated[str, typer.Option("--error", help="Apart by this or more: data may be lost.")] = "1s",
    warn: Annotated[str, typer.Option("--warn", help="Apart by this or more: logs and traces mix.")] = "10ms",
    seconds: Seconds = 1.0,
    hosts: Hosts = None,
    rank: Rank = None,
    world_size: WorldSize = None,
    rendezvous: RendezvousPoint = None,
    job: Job = None,
    timeout_s: Timeout = 60.0,
    probe_port: ProbePort = 0,
    as_json: Json = False,
) -> int:
    """Refuse to start a job on hosts whose clocks are too far apart; run it on every host at once, before torchrun.

    All hosts come to the same answer and exit alike: 0 fine or a warning, 1 refused or an error, 4 cannot be told (a
    host that does not answer is named). It needs not know which host is right: each is compared with the clock in the
    middle. Without --rank the host at the rendezvous address is the first, the others come as they come.

    \b
    Examples:
      rankclock preflight --rendezvous gpu001:29333 --hosts 4 && torchrun --nnodes 4 --rdzv-backend c10d ...
      rankclock preflight --hosts 'gpu[001-004]' && torchrun ...
      srun --ntasks-per-node 1 rankclock preflight
    """
    from rankclock.training.job import JobOptions, ask_all, find_seat
    from rankclock.training.preflight import Limits, judge_start

    limits = Limits(
        refuse_ns=span_ns("--refuse", refuse), error_ns=span_ns("--error", error), warn_ns=span_ns("--warn", warn)
    )
    if not limits.warn_ns <= limits.error_ns <= limits.refuse_ns:
        raise UserError(f"expected --warn <= --error <= --refuse, found {warn}, {error}, {refuse}")
    if disabled("preflight", as_json):
        return 0
    options = JobOptions(
        hosts=hosts,
        rank=rank,
        world_size=world_size,
        rendezvous=rendezvous,
        job=job,
        seconds=seconds,
        timeout_s=timeout_s,
        probe_port=probe_port,
    )
    seat = find_seat(options, os.environ, purpose="preflight", may_arrive=True)
    try:
        verdict = ask_all(seat, options, os.environ, lambda measured: judge_start(measured, limits))
    except RankclockError as fault:
        failed("preflight", fault, as_json)
        raise
    _show(verdict, as_json)
    return verdict.exit_code


def _show(verdict: Verdict[Preflight], as_json: bool) -> None:
    """The table where it was judged; the line on every host: each has a log of its own."""
    from rankclock.cli.output import out, print_json
    from rankclock.training.tables import hosts_table

    if verdict.found is None:
        if as_json:
            own = {"exit_code": int(verdict.exit_code), "line": verdict.line, "odd": verdict.odd}
            print_json({"schema": "rankclock-preflight/1", **own})
        else:
            say_verdict("preflight", verdict.line)
        return
    if as_json:
        print_json({**verdict.found.to_json(), "odd": verdict.odd})
        return
    if len(verdict.found.hosts) > 1:
        out().print(hosts_table(verdict.found))
    for note in verdict.found.notes:
        out().print(f"({note})")
    say_verdict("preflight", verdict.line)
