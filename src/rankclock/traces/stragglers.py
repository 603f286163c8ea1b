"""Who everybody waits for: arrivals at the collectives of traces on one timeline, and what the waiting costs.

Only symmetric kinds make ranks wait for each other. In a collective a rank is last only where its whole interval lies
behind those of all others; a rank is named only where it is last far more often than chance and costs more than all
others together. Refuses to name anybody where the bounds are as large as the effect. Beside it stands an answer that
needs no clock: who comes last spends the shortest time inside; where the two disagree, that is said.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rankclock.clockmath.arrival_skew import Arrival, StepSkew, judge_step
from rankclock.errors import ExitCode
from rankclock.timebase import NS_PER_S, format_span_ns
from rankclock.traces.digest import TraceDigest
from rankclock.traces.kinds import SYMMETRIC
from rankclock.traces.matching import Matches, match
from rankclock.traces.spans import NO_END, Ints
from rankclock.traces.timemap import Alignment

__all__ = ["GroupSkew", "StragglerReport", "find_stragglers"]

CHANCE_SIGMAS = 4.0
"""How far the count of a named rank lies above chance: one balanced job in 30,000 does so by itself."""

LEAST_COLLECTIVES = 8
AGREE_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSkew:
    """The collectives of one process group. named: the rank that the others wait for, None where none can be named.

    last: rank to how often it surely was last. caused_ns, waited_ns: rank to the waiting that it caused and had.
    own_ns: of the named rank's lateness, the median part that it did not bring along from an earlier wait.
    without_clock: the rank that the durations alone name.
    """

    group: str
    ranks: int
    collectives: int
    untold: int
    spread_median_ns: int
    bound_median_ns: int
    late_median_ns: int | None
    own_median_ns: int | None
    transfer_median_ns: int
    last: Mapping[int, int]
    caused_ns: Mapping[int, int]
    waited_ns: Mapping[int, int]
    by_step: Mapping[int, Mapping[int, int]]
    trend_ns_per_s: float | None
    named: int | None
    why_not: str
    without_clock: int | None

    def to_json(self) -> dict[str, Any]:
        """A JSON object; ranks and steps are strings there."""
        return {
            "group": self.group,
            "ranks": self.ranks,
            "collectives": self.collectives,
            "untold": self.untold,
            "spread_median_ns": self.spread_median_ns,
            "bound_median_ns": self.bound_median_ns,
            "late_median_ns": self.late_median_ns,
            "own_median_ns": self.own_median_ns,
            "transfer_median_ns": self.transfer_median_ns,
            "last": _named(self.last),
            "caused_ns": _named(self.caused_ns),
            "waited_ns": _named(self.waited_ns),
            "by_step": {str(step): _named(counts) for step, counts in self.by_step.items()},
            "trend_ns_per_s": self.trend_ns_per_s,
            "named": self.named,
            "why_not": self.why_not,
            "without_clock": self.without_clock,
            "disagree": self.disagree,
        }

    @property
    def disagree(self) -> bool:
        """Whether the clocks and the durations name two ranks."""
        return self.named is not None and self.without_clock is not None and self.named != self.without_clock

    @property
    def waited_rank_s(self) -> float:
        """The waiting of all ranks: GPU-seconds where a rank has one GPU."""
        return sum(self.waited_ns.values()) / NS_PER_S

    def lines(self) -> list[str]:
        """For people."""
        head = f"group {self.group or '?'}: {self.collectives} collectives of {self.ranks} ranks, arrivals apart "
        head += f"{format_span_ns(self.spread_median_ns)} (median, ±{format_span_ns(self.bound_median_ns)}), "
        head += f"transfer {format_span_ns(self.transfer_median_ns)}; {self.waited_rank_s:.3g} rank-seconds waited"
        found = [head]
        if self.named is not None:
            late, own = format_span_ns(self.late_median_ns or 0), format_span_ns(self.own_median_ns or 0)
            caused = format_span_ns(self.caused_ns[self.named])
            count = f"{self.last[self.named]} of {self.collectives}"
            found.append(
                f"  rank {self.named} is waited for: last in {count}, by {late} (its own: {own}), {caused} in all"
            )
        else:
            found.append(f"  nobody is named: {self.why_not}")
        if self.disagree:
            found.append(f"  the durations alone name rank {self.without_clock}: clocks or stamps are to be doubted")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglerReport:
    """Of all groups. unknown: collectives left out because some rank's cluster time is unknown there."""

    groups: tuple[GroupSkew, ...]
    unknown: int
    left_out: Mapping[str, int]
    method: str
    reference: str

    @property
    def exit_code(self) -> ExitCode:
        """A straggler, none, or nothing that could be told."""
        if any(group.named is not None for group in self.groups):
            return ExitCode.CHECK_FAILED
        told = any(group.untold < group.collectives for group in self.groups)
        return ExitCode.OK if told else ExitCode.CANNOT_TELL

    def lines(self) -> list[str]:
        """For people."""
        found = [line for group in self.groups for line in group.lines()]
        if self.unknown:
            found.append(f"{self.unknown} collectives left out: the cluster time of a rank is unknown there")
        return found or ["no collective that ranks wait for each other in"]

    def to_json(self) -> dict[str, Any]:
        """A JSON object, schema 'rankclock-stragglers/1'."""
        return {
            "schema": "rankclock-stragglers/1",
            "method": self.method,
            "reference": self.reference,
            "groups": [group.to_json() for group in self.groups],
            "unknown": self.unknown,
            "left_out": dict(self.left_out),
        }

    def prometheus(self) -> str:
        """In Prometheus' text format."""
        lines = []
        for name, what in (("caused", "that others waited for it"), ("waited", "that it waited for others")):
            metric = f"rankclock_trace_{name}_seconds_total"
            lines += [
                f"# HELP {metric} Time of a rank {what}, over all collectives traced.",
                f"# TYPE {metric} counter",
            ]
            for group in self.groups:
                for rank, span_ns in sorted((group.caused_ns if name == "caused" else group.waited_ns).items()):
                    label = group.group.replace("\\", "").replace('"', "").replace("\n", " ")
                    lines.append(f'{metric}{{group="{label}",rank="{rank}"}} {span_ns / NS_PER_S:.9g}')
        return "\n".join(lines) + "\n"


def find_stragglers(digests: Mapping[int, TraceDigest], alignment: Alignment) -> StragglerReport:
    """The report of traces whose clocks are aligned or recovered."""
    matches = match(digests)
    times = _Times(matches, alignment)
    groups: dict[tuple[str, tuple[int, ...]], _Group] = {}
    left_ns: dict[int, int] = {}
    unknown = 0
    for collective, part in matches.parts():
        if collective.kind not in SYMMETRIC or part.stop - part.start < 2:
            continue
        if not times.known[part].all():
            unknown += 1
            continue
        arrivals = times.arrivals(part)
        key = collective.group, tuple(sorted(arrivals))
        group = groups.setdefault(key, _Group(ranks=key[1]))
        group.take(arrivals, times.local_ns(part), left_ns, digests)
        left_ns |= {rank: one.left_ns for rank, one in arrivals.items() if one.left_ns is not None}
    return StragglerReport(
        groups=tuple(group.result(name) for (name, _), group in groups.items()),
        unknown=unknown,
        left_out=dict(matches.left_out),
        method=alignment.method,
        reference=alignment.reference,
    )


class _Times:
    """The entries of all matches in cluster time."""

    def __init__(self, matches: Matches, alignment: Alignment) -> None:
        self.matches = matches
        size = len(matches.rank)
        self.lo_ns, self.est_ns, self.hi_ns, self.left_ns = (np.zeros(size, dtype=np.int64) for _ in range(4))
        self.known = np.zeros(size, dtype=bool)
        for place, rank in enumerate(matches.ranks):
            mine = matches.rank == place
            if alignment.ranks[rank].known and mine.any():
                self._bring(mine, alignment, rank)

    def _bring(self, mine: np.ndarray[Any, np.dtype[np.bool_]], alignment: Alignment, rank: int) -> None:
        matches = self.matches
        ended: Ints = np.where(matches.end_ns[mine] != NO_END, matches.end_ns[mine], matches.start_ns[mine])
        start, end = alignment.ranks[rank].to_cluster(matches.start_ns[mine]), alignment.ranks[rank].to_cluster(ended)
        self.lo_ns[mine] = start.lo_ns - matches.slack_ns[mine]
        self.hi_ns[mine] = start.hi_ns + matches.slack_ns[mine]
        self.est_ns[mine], self.left_ns[mine] = start.cluster_ns, end.cluster_ns
        self.known[mine] = start.known & end.known & (matches.end_ns[mine] != NO_END)

    def local_ns(self, part: slice) -> dict[int, int]:
        """Rank to its arrival by its own clock."""
        matches = self.matches
        return {matches.ranks[int(matches.rank[i])]: int(matches.start_ns[i]) for i in range(part.start, part.stop)}

    def arrivals(self, part: slice) -> dict[int, Arrival]:
        """Rank to its arrival at one collective."""
        found = {}
        for index in range(part.start, part.stop):
            found[self.matches.ranks[int(self.matches.rank[index])]] = Arrival(
                lo_ns=int(self.lo_ns[index]),
                est_ns=int(self.est_ns[index]),
                hi_ns=int(self.hi_ns[index]),
                left_ns=int(self.left_ns[index]),
            )
        return found


@dataclass(slots=True, kw_only=True)
class _Group:
    """What is collected of one process group."""

    ranks: tuple[int, ...]
    skews: list[StepSkew] = field(default_factory=list)
    own_ns: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    at_ns: list[int] = field(default_factory=list)
    transfer_ns: list[int] = field(default_factory=list)
    shortest: Counter[int] = field(default_factory=Counter)
    by_step: dict[int, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))

    def take(
        self,
        arrivals: dict[int, Arrival],
        local_ns: dict[int, int],
        left_ns: dict[int, int],
        digests: Mapping[int, TraceDigest],
    ) -> None:
        """One collective. left_ns: when each rank left the one before, for telling its own lateness from inherited."""
        skew = judge_step(len(self.skews), arrivals)
        self.skews.append(skew)
        last = max(arrivals, key=lambda rank: arrivals[rank].est_ns)
        self.at_ns.append(arrivals[last].est_ns)
        durations = {rank: (one.left_ns or one.est_ns) - one.est_ns for rank, one in arrivals.items()}
        self.transfer_ns.append(durations[last])
        self.shortest[min(durations, key=lambda rank: durations[rank])] += 1
        if skew.late is None:
            return
        gaps = {rank: one.est_ns - left_ns[rank] for rank, one in arrivals.items() if rank in left_ns}
        others = [gap for rank, gap in gaps.items() if rank != skew.late]
        if skew.late in gaps and others:
            own_ns = gaps[skew.late] - int(np.median(others))
            self.own_ns[skew.late].append(min(max(own_ns, 0), skew.late_by_ns))
        step = _step_of(digests[skew.late], local_ns[skew.late])
        if step is not None:
            self.by_step[step][skew.late] += 1

    def result(self, name: str) -> GroupSkew:
        """The judgement of the group."""
        last = Counter(skew.late for skew in self.skews if skew.late is not None)
        caused: Counter[int] = Counter()
        waited: Counter[int] = Counter()
        for skew in self.skews:
            waited.update(skew.waits_ns)
            if skew.late is not None:
                caused[skew.late] += sum(skew.waits_ns.values())
        named, why_not = self._name(last, caused)
        late = [skew.late_by_ns for skew in self.skews if skew.late == named] if named is not None else []
        own = self.own_ns.get(named, []) if named is not None else []
        return GroupSkew(
            group=name,
            ranks=len(self.ranks),
            collectives=len(self.skews),
            untold=sum(1 for skew in self.skews if skew.late is None),
            spread_median_ns=_median([skew.spread_ns for skew in self.skews]),
            bound_median_ns=_median([skew.bound_ns for skew in self.skews]),
            late_median_ns=_median(late) if late else None,
            own_median_ns=_median(own) if own else None,
            transfer_median_ns=_median(self.transfer_ns),
            last=dict(last),
            caused_ns=dict(caused),
            waited_ns=dict(waited),
            by_step={step: dict(counts) for step, counts in sorted(self.by_step.items())},
            trend_ns_per_s=self._trend(),
            named=named,
            why_not=why_not,
            without_clock=self._shortest(),
        )

    def _name(self, last: Counter[int], caused: Counter[int]) -> tuple[int | None, str]:
        count, size = len(self.skews), len(self.ranks)
        if count < LEAST_COLLECTIVES:
            return None, f"{count} collectives are too few ({LEAST_COLLECTIVES} are needed)"
        told = sum(last.values())
        if not told:
            return None, "arrivals are closer together than the bounds of the clocks: refused"
        rank, often = last.most_common(1)[0]
        chance = told / size
        if often <= chance + CHANCE_SIGMAS * math.sqrt(told * (size - 1)) / size:
            return None, f"rank {rank} was last most often, {often} of {told}: no more than chance allows"
        if 2 * caused[rank] <= sum(caused.values()):
            return None, f"rank {rank} was last most often, but cost less than the others together"
        return rank, ""

    def _shortest(self) -> int | None:
        """The rank that was inside for the shortest time in most collectives; None where there is none."""
        if len(self.skews) < LEAST_COLLECTIVES:
            return None
        rank, often = self.shortest.most_common(1)[0]
        return rank if often > AGREE_SHARE * len(self.skews) else None

    def _trend(self) -> float | None:
        """How the spread grows with time, by a robust line; None with too few collectives."""
        if len(self.skews) < LEAST_COLLECTIVES or self.at_ns[-1] == self.at_ns[0]:
            return None
        half = len(self.skews) // 2
        spreads, times = [skew.spread_ns for skew in self.skews], np.array(self.at_ns, dtype=np.float64) / NS_PER_S
        rise_s = float(np.median(times[half:]) - np.median(times[:half]))
        return (float(np.median(spreads[half:])) - float(np.median(spreads[:half]))) / rise_s if rise_s > 0 else None


def _step_of(digest: TraceDigest, local_ns: int) -> int | None:
    """The profiler's step that an instant of the rank's own time lies in; None where there is none."""
    at = bisect_right(digest.steps, local_ns, key=lambda step: step[1]) - 1
    return digest.steps[at][0] if at >= 0 and local_ns <= digest.steps[at][2] else None


def _median(values: list[int]) -> int:
    return int(np.median(values)) if values else 0


def _named(values: Mapping[int, int]) -> dict[str, int]:
    return {str(key): value for key, value in sorted(values.items())}
