"""`rankclock verify`: are the clocks of all ranks of a job within a threshold of one another?"""

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
from rankclock.errors import RankclockError

if TYPE_CHECKING:
    from rankclock.training.job import Verdict
    from rankclock.training.verify import Verification

__all__ = ["verify"]


def verify(
    *,
    threshold: Annotated[str, typer.Option("--threshold", help="How far two clocks may be apart.")] = "1ms",
    seconds: Seconds = 2.0,
    hosts: Hosts = None,
    rank: Rank = None,
    world_size: WorldSize = None,
    rendezvous: RendezvousPoint = None,
    job: Job = None,
    timeout_s: Timeout = 60.0,
    probe_port: ProbePort = 0,
    as_json: Json = False,
) -> int:
    """Measure how far the clocks of a job's ranks are apart, from inside the job; pass or fail against a threshold.

    Every rank runs it, and all exit alike: 0 every pair is within the threshold, 1 one is beyond, 4 cannot be told.
    Rank 0 prints. Launchers change exit codes (torchrun turns 4 into 1): the verdict also stands on stdout.

    \b
    Examples:
      torchrun --nnodes 4 --nproc-per-node 8 ... --no-python rankclock verify
      srun --ntasks-per-node 1 rankclock verify --threshold 100us
      mpirun -np 16 rankclock verify --rendezvous gpu001:29333
      pdsh -w 'gpu[001-004]' rankclock verify --hosts 'gpu[001-004]'
    """
    from rankclock.training.job import JobOptions, ask_all, find_seat
    from rankclock.training.verify import judge

    threshold_ns = span_ns("--threshold", threshold)
    if disabled("verify", as_json):
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
    seat = find_seat(options, os.environ, purpose="verify")
    try:
        verdict = ask_all(seat, options, os.environ, lambda measured: judge(measured, threshold_ns))
    except RankclockError as error:
        if seat.hosting:
            failed("verify", error, as_json)
        raise
    if verdict.found is not None:
        _show(verdict, as_json)
    return verdict.exit_code


def _show(verdict: Verdict[Verification], as_json: bool) -> None:
    from rankclock.cli.output import out, print_json
    from rankclock.training.tables import verification_table

    assert verdict.found is not None
    if as_json:
        print_json(verdict.found.to_json())
        return
    table = verification_table(verdict.found)
    if table is not None:
        out().print(table)
    say_verdict("verify", verdict.line)
