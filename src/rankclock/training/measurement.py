"""The clocks of a job measured from inside it: one prober a clock, a few seconds of probes, all pairs at one instant.

Decides which ranks share a clock (they claim the same identity, and their readings agree) and so need one prober among
them. Refuses nothing of what was measured: what could not be measured is unknown in the result, with the reason.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from rankclock.clockmath.realtime import Reading
from rankclock.cluster.measured import MeasuredPath
from rankclock.errors import DecodeError, PeerError
from rankclock.mesh import NodeReport, Prober
from rankclock.mesh.clocks import clock_identity, read_clocks
from rankclock.timebase import NS_PER_MS
from rankclock.training.peers import choose_peers
from rankclock.training.rendezvous import Rendezvous
from rankclock.training.roster import Member

if TYPE_CHECKING:
    from rankclock.mesh.matrix import PairwiseOffsets

__all__ = ["JobClock", "Measurement", "group_by_clock", "measure"]

SAME_CLOCK_NS = NS_PER_MS
"""REALTIME - RAW of two ranks that share a clock, read within the same second, differ less (a slew of 500 ppm gives
0.5 ms). Ranks that are parted wrongly cost one prober more and nothing else: the matrix joins them again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobClock:
    """One clock of the job. name: its host's, with a rank where hosts of one name have several clocks."""

    name: str
    host: str
    address: str
    ranks: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        """A JSON object with every field."""
        return {"name": self.name, "host": self.host, "address": self.address, "ranks": list(self.ranks)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What rank 0 knows in the end. stamps: clock name to 'kernel' or 'user', who stamped its datagrams.
    paths: each way that was probed, with what was lost on it."""

    world_size: int
    clocks: tuple[JobClock, ...]
    offsets: PairwiseOffsets
    stamps: dict[str, str]
    seconds: float
    paths: tuple[MeasuredPath, ...] = ()


def measure(meeting: Rendezvous, *, seconds: float, timeout_s: float, probe_port: int = 0) -> Measurement | None:
    """Measure all clocks of the job; called by all ranks, the result is rank 0's (None at the others).

    `timeout_s` is how long any rank is waited for. Raises what ended the meeting.
    """
    clocks: list[JobClock] = []

    def group(values: list[Any]) -> list[Any]:
        clocks.extend(group_by_clock(meeting.roster, values))
        bind = f"{'[::]' if any(':' in clock.address for clock in clocks) else '0.0.0.0'}:{probe_port}"
        replies: list[Any] = [None] * meeting.world_size
        for clock in clocks:
            replies[clock.ranks[0]] = {"node": clock.name, "bind": bind}
        return replies

    def connect(ports: list[Any]) -> list[Any]:
        chosen = choose_peers(len(clocks), Random(meeting.key))
        # Rank 0's word on how long to probe holds for all; one clock alone has nothing to probe.
        for_s = seconds if len(clocks) > 1 else 0.0
        replies: list[dict[str, Any]] = [{"for_s": for_s, "peers": {}} for _ in range(meeting.world_size)]
        for clock, peers in zip(clocks, chosen, strict=True):
            replies[clock.ranks[0]]["peers"] = {
                clocks[peer].name: [clocks[peer].address, ports[clocks[peer].ranks[0]]] for peer in peers
            }
        return replies

    reading = read_clocks()
    mine = [clock_identity(), [reading.raw_before_ns, reading.real_ns, reading.raw_after_ns]]
    part = meeting.exchange(mine, group, timeout_s=timeout_s)
    with contextlib.ExitStack() as stack:
        report = None
        prober = stack.enter_context(Prober.start(node=part["node"], bind=part["bind"])) if part else None
        task = meeting.exchange(prober.port if prober else None, connect, timeout_s=timeout_s)
        if prober is not None:
            addresses = {name: (str(host), int(port)) for name, (host, port) in task["peers"].items()}
            prober.connect(peers=addresses, key=meeting.key)
        meeting.idle(task["for_s"])
        if prober is not None:
            report = prober.report().to_json()
        reports = meeting.gather(report, timeout_s=timeout_s)
    return None if reports is None else _combine(meeting.world_size, clocks, reports, seconds)


def group_by_clock(roster: Sequence[Member], values: Sequence[Any]) -> list[JobClock]:
    """The clocks of a job, in the order of their lowest ranks. `values`: each rank's [identity, [RAW, REALTIME, RAW]].

    Raises PeerError where a rank's value is no such thing.
    """
    groups: list[tuple[str, Reading, list[Member]]] = []
    for member, value in zip(roster, values, strict=True):
        identity, reading = _identity(member, value)
        for known, first, members in groups:
            apart_ns = (reading.lead_lo_ns + reading.lead_hi_ns - first.lead_lo_ns - first.lead_hi_ns) // 2
            if known == identity and abs(apart_ns) <= SAME_CLOCK_NS:
                members.append(member)
                break
        else:
            groups.append((identity, reading, [member]))
    hosts = [members[0].host for _, _, members in groups]
    return [
        JobClock(
            name=members[0].host if hosts.count(members[0].host) == 1 else f"{members[0].host}.rank{members[0].rank}",
            host=members[0].host,
            address=members[0].address,
            ranks=tuple(member.rank for member in members),
        )
        for _, _, members in groups
    ]


def _identity(member: Member, value: Any) -> tuple[str, Reading]:
    try:
        identity, (before_ns, real_ns, after_ns) = value
        reading = Reading(raw_before_ns=int(before_ns), real_ns=int(real_ns), raw_after_ns=int(after_ns))
    except (TypeError, ValueError) as error:
        raise PeerError(f"{member} did not give its clock's identity and a reading: {error}") from None
    return str(identity), reading


def _combine(world_size: int, clocks: Sequence[JobClock], reports: Sequence[Any], seconds: float) -> Measurement:
    from rankclock.mesh.matrix import pairwise  # numpy: only where reports are combined

    parsed = []
    for clock in clocks:
        try:
            parsed.append(NodeReport.from_json(reports[clock.ranks[0]]))
        except DecodeError as error:
            raise PeerError(f"the report of {clock.name} cannot be read: {error}") from None
    return Measurement(
        world_size=world_size,
        clocks=tuple(clocks),
        offsets=pairwise(parsed),
        stamps={report.node: report.stamps for report in parsed},
        seconds=seconds,
        paths=tuple(
            MeasuredPath(
                local=report.node,
                peer=edge.peer,
                sent=edge.sent,
                answered=edge.answered,
                round_trip_ns=edge.min_rtt_ns,
            )
            for report in parsed
            for edge in report.edges
        ),
    )
