"""The ranks of a job become one clock each: who shares a clock, who runs its prober, who is the reference.

Ranks that share a clock (identity, see `mesh.clocks`) and can share memory have one prober among them, the child of the
lowest of them; the others read what it publishes. The reference is the clock of rank 0; its successors are the next
three. Once all are connected nothing of the meeting is left: probers talk to probers, ranks read memory.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from time import monotonic_ns
from typing import Any

from rankclock.clockmath.realtime import Reading
from rankclock.errors import PeerError, RankclockError
from rankclock.mesh import Prober
from rankclock.mesh.clocks import clock_identity, read_clocks
from rankclock.mesh.share import ShareReader
from rankclock.node.kernel import read_adjtimex
from rankclock.timebase import NS_PER_S
from rankclock.training.measurement import JobClock, group_by_clock
from rankclock.training.peers import SUCCESSORS, choose_peers
from rankclock.training.rendezvous import Rendezvous

__all__ = ["PERIOD_S", "Membership", "join_job"]

PERIOD_S = 5.0
"""From burst to burst once started: a line through the last minute of bursts holds to a microsecond for a minute."""

MOST_ASKERS = 128
"""No clock is asked by many more (`peers`): the reference's buffer holds some 250 datagrams, thirty hosts' bursts."""

_TIMESCALE = ("reference", "successors", "anchor", "share", "period_s", "spread_ms")

USUAL_TICK_US = 10_000
MOST_RATE_PPB = 500_000
PPB = 1e9

RESTARTS = 3
RESTART_APART_NS = 10 * NS_PER_S


@dataclass(slots=True, kw_only=True)
class Membership:
    """This rank's place among the clocks of the job. prober: where this rank runs it, None where it only reads."""

    rank: int
    world_size: int
    job: str
    host: str
    node: str
    clock_id: str
    reference: str
    share: ShareReader
    prober: Prober | None = None
    task: dict[str, Any] = field(default_factory=dict)
    _restarts: int = 0
    _restarted_ns: int = 0

    def look_after(self) -> list[str]:
        """Start the prober again where it ended; what there is to say of it. Never raises."""
        prober = self.prober
        if prober is None or prober.alive:
            return []
        if self._restarts == RESTARTS:
            return [f"the prober of this host ended {RESTARTS + 1} times and is not started again"]
        if monotonic_ns() - self._restarted_ns < RESTART_APART_NS and self._restarts:
            return []
        self._restarts, self._restarted_ns = self._restarts + 1, monotonic_ns()
        try:
            prober.close()
            self.prober = Prober.start(node=self.node, bind=f"{self.task['host']}:{prober.port}")
            _connect(self.prober, {**self.task, "share": str(self.share.path)})
        except RankclockError as error:
            return [f"the prober of this host ended and cannot be started again: {error}"]
        return [f"the prober of this host ended and was started again ({self._restarts} of {RESTARTS})"]

    def close(self) -> None:
        """End the prober, where it is this rank's."""
        if self.prober is not None:
            self.prober.close()


def join_job(meeting: Rendezvous, *, timeout_s: float, period_s: float = PERIOD_S) -> Membership:
    """Form the clocks of a job; called by all ranks. Raises what ended the meeting, HostError where this host fails."""
    clocks: list[JobClock] = []

    def group(values: list[Any]) -> list[Any]:
        clocks.extend(group_by_clock(meeting.roster, [value[:2] for value in values]))
        replies: list[Any] = [None] * meeting.world_size
        for index, clock in enumerate(clocks):
            host = "[::]" if any(":" in one.address for one in clocks) else "0.0.0.0"
            for rank in clock.ranks:
                replies[rank] = {"node": clock.name, "host": host, "leads": rank == clock.ranks[0], "first": index == 0}
        return replies

    def connect(values: list[Any]) -> list[Any]:
        return _tasks(clocks, values, Random(meeting.key), meeting.world_size)

    reading = read_clocks()
    identity = clock_identity()
    mine = [_sharing_identity(identity), [reading.raw_before_ns, reading.real_ns, reading.raw_after_ns]]
    part = meeting.exchange(mine, group, timeout_s=timeout_s)
    prober, path = None, None
    try:
        if part["leads"]:
            path = ShareReader.create()
            prober = Prober.start(node=part["node"], bind=f"{part['host']}:0")
        task = meeting.exchange([prober.port, str(path)] if prober else None, connect, timeout_s=timeout_s)
        task |= {"key": meeting.key.hex(), "host": part["host"], "period_s": period_s, "anchor": {}}
        if part["first"]:
            task["anchor"] = _anchor(reading)
        if prober is not None:
            _connect(prober, task)
        share = ShareReader.open(Path(task["share"]))
        # All have opened what they share before its name goes.
        meeting.exchange(None, lambda values: values, timeout_s=timeout_s)
    except BaseException:
        if prober is not None:
            prober.close()
        raise
    finally:
        if path is not None:
            path.unlink(missing_ok=True)
    return Membership(
        rank=meeting.rank,
        world_size=meeting.world_size,
        job=meeting.job.removeprefix("clock "),
        host=socket.gethostname(),
        node=part["node"],
        clock_id=identity,
        reference=task["reference"],
        share=share,
        prober=prober,
        task=task,
    )


def _tasks(clocks: Sequence[JobClock], values: Sequence[Any], chance: Random, world_size: int) -> list[Any]:
    """What each rank needs to know, in rank order."""
    chosen = choose_peers(len(clocks), chance)
    names = [clock.name for clock in clocks]
    replies: list[Any] = [None] * world_size
    for clock, peers in zip(clocks, chosen, strict=True):
        told = values[clock.ranks[0]]
        if not isinstance(told, list) or len(told) != 2:
            raise PeerError(f"rank {clock.ranks[0]} ({clock.host}) gave no port of its prober but {str(told)[:60]!r}")
        task = {
            "reference": names[0],
            "successors": names[1 : 1 + SUCCESSORS],
            "share": told[1],
            "spread_ms": min(len(clocks), MOST_ASKERS),
        }
        for rank in clock.ranks:
            replies[rank] = dict(task)
        replies[clock.ranks[0]]["peers"] = {
            names[peer]: [clocks[peer].address, values[clocks[peer].ranks[0]][0]] for peer in peers
        }
    return replies


def _connect(prober: Prober, task: dict[str, Any]) -> None:
    prober.connect(
        peers={name: (str(host), int(port)) for name, (host, port) in task["peers"].items()},
        key=bytes.fromhex(task["key"]),
        timescale={name: task[name] for name in _TIMESCALE},
    )


def _anchor(reading: Reading) -> dict[str, Any]:
    """Cluster time as this clock defines it: it begins as CLOCK_REALTIME reads now, runs as that was told to run (so it
    stays near UTC where a daemon has found the right rate), and never follows it again."""
    raw_ns = (reading.raw_before_ns + reading.raw_after_ns) // 2
    anchor = {"anchor_raw_ns": raw_ns, "anchor_ns": raw_ns - reading.real_ns}
    try:
        kernel = read_adjtimex()
    except OSError:  # some sandboxes forbid even to look
        return anchor
    real_ppb = ((1 + kernel.freq_ppb / PPB) * kernel.tick_us / USUAL_TICK_US - 1) * PPB
    if abs(real_ppb) > MOST_RATE_PPB:  # a slew in progress, no rate found
        return anchor
    return {**anchor, "anchor_rate_ppb": -real_ppb / (1 + real_ppb / PPB)}


def _sharing_identity(clock_id: str) -> str:
    """The clock, and what memory is shared: ranks of one host in containers of their own need a prober each."""
    try:
        memory = str(Path("/proc/self/ns/mnt").readlink())
    except OSError:
        memory = "unknown"
    return f"{clock_id} {memory} {os.getuid()}"
