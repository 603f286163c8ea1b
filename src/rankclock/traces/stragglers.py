"""Who everybody waits for: arrivals at the collectives of traces on one timeline, and what the waiting costs.

Only symmetric kinds make ranks wait for each other. In a collective a rank is last only where its whole interval lies
behind those of all others; a step is a rank's only where it surely caused more waiting than any other can have. Named
is who has more steps than chance explains, and whose lateness is its own: not brought along from another group's wait.
Refuses to name anybody where the bounds are as large as the effect. Beside it stands an answer that needs no clock: who
comes last spends the shortest time inside; where the two disagree, that is said.
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

__all__ = ["GroupSkew", "StragglerReport", "binomial_tail", "find_stragglers"]

CHANCE = 1e-4
"""A balanced group gives one of its ranks as many steps as a named one has with at most this probability."""

LEAST_COLLECTIVES = 8
OWN_SHARE = 0.5
"""A rank whose own part of its lateness is smaller only passes on what another group made it wait for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSkew:
    """The collectives of one process group. named: the rank that the others wait for, None where none can be named.

    missing: members whose arrivals are not in the traces, who may be later than all. incomplete: collectives left out
    because some other member's part is not in its trace. steps: independent occasions: the profiler's steps, else
    collectives that do not overlap. won: rank to the steps in which it surely caused more waiting than any other rank.
    waited_range_ns: least and most that all ranks together waited. last: rank to how often it surely was last.
    caused_ns, waited_ns: rank to the waiting that it caused and had.
    late_median_ns: the named rank's largest lateness in a step that it won, in the median; own_median_ns: the part of
    it that the rank did not bring along from an earlier wait.
    without_clock: the rank that the durations alone name. history, for pictures: of each collective the cluster time,
    last arrival - first arrival, the bound of that, and who surely was last.
    """

    group: str
    ranks: int
    missing: tuple[int, ...]
    collectives: int
    incomplete: int
    untold: int
    steps: int
    won: Mapping[int, int]
    spread_median_ns: int
    bound_median_ns: int
    late_median_ns: int | None
    own_median_ns: int | None
    transfer_median_ns: int
    last: Mapping[int, int]
    caused_ns: Mapping[int, int]
    waited_ns: Mapping[int, int]
    waited_range_ns: tuple[int, int]
    by_step: Mapping[int, Mapping[int, int]]
    trend_ns_per_s: float | None
    named: int | None
    why_not: str
    without_clock: int | None
    history: tuple[tuple[int, int, int, int | None], ...] = field(repr=False)

    def to_json(self) -> dict[str, Any]:
        """A JSON object; ranks and steps are strings there."""
        return {
            "group": self.group,
            "ranks": self.ranks,
            "missing": list(self.missing),
            "collectives": self.collectives,
            "incomplete": self.incomplete,
            "untold": self.untold,
            "steps": self.steps,
            "won": _named(self.won),
            "spread_median_ns": self.spread_median_ns,
            "bound_median_ns": self.bound_median_ns,
            "late_median_ns": self.late_median_ns,
            "own_median_ns": self.own_median_ns,
            "transfer_median_ns": self.transfer_median_ns,
            "last": _named(self.last),
            "caused_ns": _named(self.caused_ns),
            "waited_ns": _named(self.waited_ns),
            "waited_range_ns": list(self.waited_range_ns),
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
        least_s, most_s = (span_ns / NS_PER_S for span_ns in self.waited_range_ns)
        head += f"transfer {format_span_ns(self.transfer_median_ns)}; {self.waited_rank_s:.3g} rank-seconds waited "
        found = [head + f"(between {least_s:.3g} and {most_s:.3g})"]
        if self.named is not None:
            late, own = format_span_ns(self.late_median_ns or 0), format_span_ns(self.own_median_ns or 0)
            caused = format_span_ns(self.caused_ns[self.named])
            found.append(
                f"  rank {self.named} is waited for: it surely causes most waiting in {self.won[self.named]} "
                f"of {self.steps} steps, late by {late} (its own: {own}), {caused} in all"
            )
        else:
            found.append(f"  nobody is named: {self.why_not}")
        if self.missing:
            found.append(
                f"  arrivals of {len(self.missing)} members are not in the traces, they may be later than all: "
                f"{self._absent}"
            )
        if self.incomplete:
            found.append(f"  {self.incomplete} collectives left out: a traced rank's part of them is not in its trace")
        if self.disagree:
            found.append(f"  the durations alone name rank {self.without_clock}: clocks or stamps are to be doubted")
        elif self.named is None and self.without_clock is not None:
            found.append(
                f"  without any clock: rank {self.without_clock} has the shortest durations, as who is last has"
            )
        return found

    @property
    def _absent(self) -> str:
        return ", ".join(map(str, self.missing[:8])) + (", ..." if len(self.missing) > 8 else "")


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
    groups: dict[_GroupKey, _Group] = {}
    for collective, part in matches.parts():
        if collective.kind in SYMMETRIC and part.stop - part.start >= 2:
            group = groups.setdefault((collective.group, collective.members), _Group(members=collective.members))
            group.ranks.update(times.ranks(part))
    unknown = 0
    for collective, part in matches.parts():
        if collective.kind not in SYMMETRIC or part.stop - part.start < 2:
            continue
        group = groups[collective.group, collective.members]
        if set(times.ranks(part)) != group.ranks:
            group.incomplete += 1
        elif not times.known[part].all():
            unknown += 1
        else:
            group.take(times, part, digests)
    return StragglerReport(
        groups=tuple(group.result(name) for (name, _), group in groups.items() if group.skews),
        unknown=unknown,
        left_out=dict(matches.left_out),
        method=alignment.method,
        reference=alignment.reference,
    )


_GroupKey = tuple[str, tuple[int, ...] | None]
_Step = tuple[bool, int]
"""Whether the profiler numbered it, and its number."""


class _Times:
    """The entries of all matches in cluster time. own_ns: by each rank's own clock, what it spent since the last
    communication that made it wait was over, without what it spent in other communication; -1 where there was none.
    """

    def __init__(self, matches: Matches, alignment: Alignment) -> None:
        self.matches = matches
        size = len(matches.rank)
        self.lo_ns, self.est_ns, self.hi_ns, self.left_ns = (np.zeros(size, dtype=np.int64) for _ in range(4))
        self.own_ns: Ints = np.full(size, -1, dtype=np.int64)
        self.known = np.zeros(size, dtype=bool)
        for place, rank in enumerate(matches.ranks):
            mine = matches.rank == place
            self._own(np.flatnonzero(mine))
            if alignment.ranks[rank].known and mine.any():
                self._bring(mine, alignment, rank)

    def _own(self, mine: np.ndarray[Any, np.dtype[np.intp]]) -> None:
        starts, ends, waits = self.matches.start_ns[mine], self.matches.end_ns[mine], self.matches.waits[mine]
        exits = np.sort(ends[waits])
        place = np.searchsorted(exits, starts, side="right") - 1
        begun = place >= 0
        since = exits[place[begun]]
        others = ~waits & (ends != NO_END)
        order = np.argsort(ends[others], kind="stable")
        inside = np.concatenate([[0], np.cumsum((ends - starts)[others][order])])
        until = ends[others][order]
        spent = inside[np.searchsorted(until, starts[begun], side="right")]
        spent -= inside[np.searchsorted(until, since, side="right")]
        self.own_ns[mine[begun]] = np.maximum(starts[begun] - since - spent, 0)

    def _bring(self, mine: np.ndarray[Any, np.dtype[np.bool_]], alignment: Alignment, rank: int) -> None:
        matches = self.matches
        ended: Ints = np.where(matches.end_ns[mine] != NO_END, matches.end_ns[mine], matches.start_ns[mine])
        start, end = alignment.ranks[rank].to_cluster(matches.start_ns[mine]), alignment.ranks[rank].to_cluster(ended)
        self.lo_ns[mine] = start.lo_ns - matches.slack_ns[mine]
        self.hi_ns[mine] = start.hi_ns + matches.slack_ns[mine]
        self.est_ns[mine], self.left_ns[mine] = start.cluster_ns, end.cluster_ns
        self.known[mine] = start.known & end.known & (matches.end_ns[mine] != NO_END)

    def ranks(self, part: slice) -> list[int]:
        """Who took part in one collective, in the order of its entries."""
        return [self.matches.ranks[place] for place in self.matches.rank[part].tolist()]

    def waiting(self, part: slice) -> tuple[int, int]:
        """The least and the most that all ranks together waited in one collective."""
        lo_ns, hi_ns = self.lo_ns[part], self.hi_ns[part]
        least, most = np.maximum(_of_others(lo_ns) - hi_ns, 0), np.maximum(_of_others(hi_ns) - lo_ns, 0)
        return int(least.sum()), int(most.sum())

    def causable(self, part: slice) -> dict[int, int]:
        """Rank to the most waiting that it can have caused in one collective: only of those who may have been last."""
        lo_ns, hi_ns = self.lo_ns[part], self.hi_ns[part]
        ordered = np.sort(lo_ns)
        before = np.searchsorted(ordered, hi_ns, side="left")
        # Instants of 19 digits do not add up in 64 bits: counted from the first.
        sums = np.concatenate([[0], np.cumsum(ordered - ordered[0])])
        most = before * (hi_ns - ordered[0]) - sums[before] - (hi_ns - lo_ns)
        may = np.flatnonzero(hi_ns >= ordered[-1]).tolist()
        return {self.matches.ranks[int(self.matches.rank[part.start + place])]: int(most[place]) for place in may}

    def overlaps(self, part: slice, before: slice) -> bool:
        """Whether some rank entered one collective before it had left another, of the same ranks."""
        ends = dict(zip(self.ranks(before), self.matches.end_ns[before].tolist(), strict=True))
        starts = dict(zip(self.ranks(part), self.matches.start_ns[part].tolist(), strict=True))
        return any(start_ns < ends[rank] for rank, start_ns in starts.items())

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
    """What is collected of one process group. caused_ns: step to rank to the waiting that it surely caused there.

    may_ns: step to rank to the most that it can have caused.
    late_ns: step to rank to its largest lateness there and its own part of that, -1 where nothing tells.
    """

    members: tuple[int, ...] | None
    ranks: set[int] = field(default_factory=set)
    incomplete: int = 0
    skews: list[StepSkew] = field(default_factory=list)
    late_ns: dict[_Step, dict[int, tuple[int, int]]] = field(default_factory=lambda: defaultdict(dict))
    at_ns: list[int] = field(default_factory=list)
    transfer_ns: list[int] = field(default_factory=list)
    waiting_ns: list[tuple[int, int]] = field(default_factory=list)
    by_step: dict[int, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    caused_ns: dict[_Step, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    may_ns: dict[_Step, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    shortest: dict[_Step, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    _before: tuple[slice, _Step] | None = None

    def take(self, times: _Times, part: slice, digests: Mapping[int, TraceDigest]) -> None:
        """One collective with all its traced ranks."""
        arrivals = times.arrivals(part)
        skew = judge_step(len(self.skews), arrivals)
        self.skews.append(skew)
        last = max(arrivals, key=lambda rank: arrivals[rank].est_ns)
        self.at_ns.append(arrivals[last].est_ns)
        durations = {rank: (one.left_ns or one.est_ns) - one.est_ns for rank, one in arrivals.items()}
        self.transfer_ns.append(durations[last])
        self.waiting_ns.append(times.waiting(part))
        ranks = times.ranks(part)
        number = _step_of(digests[last], int(times.matches.start_ns[part][ranks.index(last)]))
        step = self._step(times, part, number)
        shortest = min(durations, key=lambda rank: durations[rank])
        self.shortest[step][shortest] += sum(durations.values()) - len(durations) * durations[shortest]
        self.may_ns[step].update(times.causable(part))
        if skew.late is None:
            return
        # Where a rank is surely last, the least waiting is the waiting for it.
        self.caused_ns[step][skew.late] += self.waiting_ns[-1][0]
        if number is not None:
            self.by_step[number][skew.late] += 1
        own = dict(zip(ranks, times.own_ns[part].tolist(), strict=True))
        others = [span_ns for rank, span_ns in own.items() if rank != skew.late and span_ns >= 0]
        mine_ns = -1
        if own[skew.late] >= 0 and others:
            mine_ns = min(max(own[skew.late] - int(np.median(others)), 0), skew.late_by_ns)
        largest = self.late_ns[step].get(skew.late, (-1, -1))
        self.late_ns[step][skew.late] = max(largest, (skew.late_by_ns, mine_ns))

    def _step(self, times: _Times, part: slice, number: int | None) -> _Step:
        """Collectives in flight together have one cause: they are one occasion, though no step is recorded."""
        step: _Step = (True, number) if number is not None else (False, len(self.skews))
        if number is None and self._before is not None and times.overlaps(part, self._before[0]):
            step = self._before[1]
        self._before = part, step
        return step

    def result(self, name: str) -> GroupSkew:
        """The judgement of the group."""
        last = Counter(skew.late for skew in self.skews if skew.late is not None)
        caused: Counter[int] = Counter()
        waited: Counter[int] = Counter()
        for skew in self.skews:
            waited.update(skew.waits_ns)
            if skew.late is not None:
                caused[skew.late] += sum(skew.waits_ns.values())
        won = Counter(rank for step in self.may_ns for rank in self._winner(step))
        named, why_not = self._name(won, last)
        late, own = self._lateness(named) if named is not None else ([], [])
        return GroupSkew(
            group=name,
            ranks=len(self.ranks),
            missing=tuple(sorted(set(self.members or ()) - self.ranks)),
            collectives=len(self.skews),
            incomplete=self.incomplete,
            steps=len(self.may_ns),
            won=dict(won),
            untold=sum(1 for skew in self.skews if skew.late is None),
            spread_median_ns=_median([skew.spread_ns for skew in self.skews]),
            bound_median_ns=_median([skew.bound_ns for skew in self.skews]),
            late_median_ns=_median(late) if late else None,
            own_median_ns=_median(own) if own else None,
            transfer_median_ns=_median(self.transfer_ns),
            last=dict(last),
            caused_ns=dict(caused),
            waited_ns=dict(waited),
            waited_range_ns=(sum(least for least, _ in self.waiting_ns), sum(most for _, most in self.waiting_ns)),
            by_step={step: dict(counts) for step, counts in sorted(self.by_step.items())},
            trend_ns_per_s=self._trend(),
            named=named,
            why_not=why_not,
            without_clock=self._shortest(),
            history=tuple(
                (at_ns, skew.spread_ns, skew.bound_ns, skew.late)
                for at_ns, skew in zip(self.at_ns, self.skews, strict=True)
            ),
        )

    def _winner(self, step: _Step) -> list[int]:
        """Who surely caused more of a step's waiting than any other can have: one rank or none, whatever the bounds."""
        if not self.caused_ns[step]:
            return []
        rank, caused_ns = self.caused_ns[step].most_common(1)[0]
        others = [may_ns for other, may_ns in self.may_ns[step].items() if other != rank]
        return [rank] if caused_ns > max(others, default=0) else []

    def _name(self, won: Counter[int], last: Counter[int]) -> tuple[int | None, str]:
        count, steps = len(self.skews), len(self.may_ns)
        if count < LEAST_COLLECTIVES:
            return None, f"{count} collectives are too few ({LEAST_COLLECTIVES} are needed)"
        if not last:
            return None, "arrivals are closer together than the bounds of the clocks: refused"
        rank, often = won.most_common(1)[0] if won else (-1, 0)
        if not self._beyond_chance(often):
            most = f"; rank {rank} did in {often}, as chance allows" if often else ""
            return None, f"no rank surely caused the most waiting in many of the {steps} steps{most}"
        why_not = self._inherited(rank)
        return (None if why_not else rank), why_not

    def _inherited(self, rank: int) -> str:
        """Why the rank's lateness may not be its own; empty where it is."""
        late, own = self._lateness(rank)
        if not own:
            return f"rank {rank} is last most often; whether by its own doing, its trace does not tell"
        if _median(own) >= OWN_SHARE * _median(late):
            return ""
        return (
            f"rank {rank} is last by {format_span_ns(_median(late))} in most of {len(late)} steps, but brings that "
            f"along from an earlier wait (its own: {format_span_ns(_median(own))}): look at the other groups"
        )

    def _lateness(self, rank: int) -> tuple[list[int], list[int]]:
        """Of the steps that the rank won: its largest lateness, and its own part of that where it can be told."""
        found = [self.late_ns[step][rank] for step in self.may_ns if rank in self._winner(step)]
        return [late_ns for late_ns, _ in found], [own_ns for _, own_ns in found if own_ns >= 0]

    def _beyond_chance(self, often: int) -> bool:
        """Whether a balanced group hardly gives any of its ranks that many steps. Who surely won did win: no bias."""
        size = len(self.ranks)
        return size * binomial_tail(often, len(self.may_ns), 1 / size) < CHANCE

    def _shortest(self) -> int | None:
        """The rank that the others waited for if all left together, as their durations tell; None by chance."""
        if len(self.skews) < LEAST_COLLECTIVES:
            return None
        most = Counter(
            rank for counts in self.shortest.values() for rank in counts if 2 * counts[rank] > counts.total()
        )
        rank, often = most.most_common(1)[0] if most else (-1, 0)
        return rank if self._beyond_chance(often) else None

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


def _of_others(values: Ints) -> Ints:
    """For each entry the largest of all others."""
    largest, second = np.partition(values, -2)[[-1, -2]] if len(values) > 1 else (values[0], values[0])
    found: Ints = np.where(np.arange(len(values)) == int(np.argmax(values)), second, largest)
    return found


def binomial_tail(least: int, trials: int, chance: float) -> float:
    """The probability of `least` successes or more in `trials`, each with `chance` in (0, 1)."""
    yes, no = math.log(chance), math.log1p(-chance)
    total = math.lgamma(trials + 1)
    logs = (
        total - math.lgamma(hits + 1) - math.lgamma(trials - hits + 1) + hits * yes + (trials - hits) * no
        for hits in range(max(least, 0), trials + 1)
    )
    return min(math.fsum(math.exp(one) for one in logs), 1.0)


def _median(values: list[int]) -> int:
    return int(np.median(values)) if values else 0


def _named(values: Mapping[int, int]) -> dict[str, int]:
    return {str(key): value for key, value in sorted(values.items())}
