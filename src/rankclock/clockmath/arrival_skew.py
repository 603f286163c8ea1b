"""Who arrives last at the places of each step where ranks meet, and how long the others wait for it. Pure.

Arrivals are intervals of cluster time. A rank is named late in a step only where its whole interval lies behind those
of all others: the effect is larger than the doubt. What cannot be told is counted as such, not shared out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rankclock.timebase import format_span_ns

__all__ = ["FORWARD", "GRADIENTS", "SCHEMA", "Arrival", "SkewSummary", "StepBoard", "StepSkew", "judge_step"]

SCHEMA = "rankclock-step-skew/1"
GRADIENTS, FORWARD = "gradients", "forward"
"""The places: the gradient exchange; the entry of a forward pass that broadcasts buffers."""

MAX_OPEN_STEPS = 10_000
"""Steps that wait for some rank's word; the oldest are given up and counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """When one rank had its last gradient of a step ready, in cluster time. left_ns: estimate of when its exchange was
    over, None where nobody looked.
    """

    lo_ns: int
    est_ns: int
    hi_ns: int
    left_ns: int | None = None

    def to_json(self) -> list[int | None]:
        """As it goes from rank to rank."""
        return [self.lo_ns, self.est_ns, self.hi_ns, self.left_ns]

    @classmethod
    def from_json(cls, value: Any) -> Arrival:
        """The inverse. Raises ValueError or TypeError where it is none."""
        lo_ns, est_ns, hi_ns, left_ns = value
        if not int(lo_ns) <= int(est_ns) <= int(hi_ns):
            raise ValueError(f"an arrival's estimate lies inside its bounds: {value}")
        return cls(
            lo_ns=int(lo_ns), est_ns=int(est_ns), hi_ns=int(hi_ns), left_ns=None if left_ns is None else int(left_ns)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSkew:
    """One step. spread_ns, bound_ns: last arrival - first arrival, and by how much that may be wrong.

    late: the rank that all others surely waited for; None where it cannot be told. late_by_ns: after the second last,
    by the estimates. waits_ns: of each rank for the last one.
    """

    step: int
    spread_ns: int
    bound_ns: int
    late: int | None
    late_by_ns: int
    waits_ns: Mapping[int, int]


def judge_step(step: int, arrivals: Mapping[int, Arrival]) -> StepSkew:
    """The skew of a step of at least two ranks."""
    ordered = sorted(arrivals, key=lambda rank: arrivals[rank].est_ns)
    first, last = arrivals[ordered[0]], arrivals[ordered[-1]]
    second = arrivals[ordered[-2]]
    spread_ns = last.est_ns - first.est_ns
    largest_ns = max(one.hi_ns for one in arrivals.values()) - min(one.lo_ns for one in arrivals.values())
    least_ns = max(one.lo_ns for one in arrivals.values()) - min(one.hi_ns for one in arrivals.values())
    surely = all(arrivals[rank].hi_ns < last.lo_ns for rank in ordered[:-1])
    return StepSkew(
        step=step,
        spread_ns=spread_ns,
        bound_ns=max(largest_ns - spread_ns, spread_ns - max(least_ns, 0)),
        late=ordered[-1] if surely else None,
        late_by_ns=last.est_ns - second.est_ns,
        waits_ns={rank: last.est_ns - arrivals[rank].est_ns for rank in ordered},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SkewSummary:
    """All steps so far. late: rank to steps in which it surely was last; caused_ns: rank to what the others waited for
    it in those, in rank-ns. waited_ns: rank to its own waiting. untold: steps in which no rank could be named.
    """

    steps: int
    untold: int
    unknown: int
    spread_median_ns: int | None
    spread_max_ns: int | None
    late: Mapping[int, int]
    caused_ns: Mapping[int, int]
    waited_ns: Mapping[int, int]

    def to_json(self) -> dict[str, Any]:
        """A JSON object; ranks are strings there."""
        return {
            "steps": self.steps,
            "untold": self.untold,
            "unknown": self.unknown,
            "spread_median_ns": self.spread_median_ns,
            "spread_max_ns": self.spread_max_ns,
            "late": {str(rank): count for rank, count in self.late.items()},
            "caused_ns": {str(rank): span for rank, span in self.caused_ns.items()},
            "waited_ns": {str(rank): span for rank, span in self.waited_ns.items()},
        }

    def lines(self) -> list[str]:
        """For people: nothing named that was not sure."""
        if self.steps == 0:
            return [f"step skew: unknown ({self.unknown} steps without every rank's arrival)"]
        head = f"step skew over {self.steps} steps: median {format_span_ns(self.spread_median_ns or 0)}, largest "
        head += format_span_ns(self.spread_max_ns or 0)
        found = [head]
        for rank, count in sorted(self.late.items(), key=lambda item: -self.caused_ns[item[0]]):
            waited = format_span_ns(self.caused_ns[rank])
            found.append(f"rank {rank} was last in {count} of {self.steps} steps; the others waited {waited} in all")
        if self.untold:
            found.append(f"in {self.untold} steps nobody can be named: arrivals closer together than their bounds")
        return found


@dataclass(slots=True)
class StepBoard:
    """Collects arrivals of all ranks, in any order, and judges each step once it is complete."""

    world_size: int
    _open: dict[int, dict[int, Arrival | None]] = field(default_factory=dict)
    _spreads_ns: list[int] = field(default_factory=list)
    _late: Counter[int] = field(default_factory=Counter)
    _caused_ns: Counter[int] = field(default_factory=Counter)
    _waited_ns: Counter[int] = field(default_factory=Counter)
    _untold: int = 0
    _unknown: int = 0

    def add(self, rank: int, arrivals: Iterable[tuple[int, Arrival | None]]) -> list[StepSkew]:
        """One rank's steps; None where its clock was unknown. Gives the steps that this completes."""
        done = []
        for step, arrival in arrivals:
            waiting = self._open.setdefault(step, {})
            waiting[rank] = arrival
            if len(waiting) < self.world_size:
                continue
            del self._open[step]
            known = {one: found for one, found in waiting.items() if found is not None}
            if len(known) < self.world_size or self.world_size < 2:
                self._unknown += 1
            else:
                done.append(judge_step(step, known))
        while len(self._open) > MAX_OPEN_STEPS:
            del self._open[min(self._open)]
            self._unknown += 1
        for skew in done:
            self._take(skew)
        return done

    def _take(self, skew: StepSkew) -> None:
        self._spreads_ns.append(skew.spread_ns)
        self._waited_ns.update(skew.waits_ns)
        if skew.late is None:
            self._untold += 1
        else:
            self._late[skew.late] += 1
            self._caused_ns[skew.late] += sum(skew.waits_ns.values())

    def summary(self) -> SkewSummary:
        """What stands so far."""
        spreads = sorted(self._spreads_ns)
        return SkewSummary(
            steps=len(spreads),
            untold=self._untold,
            unknown=self._unknown,
            spread_median_ns=spreads[len(spreads) // 2] if spreads else None,
            spread_max_ns=spreads[-1] if spreads else None,
            late=dict(self._late),
            caused_ns=dict(self._caused_ns),
            waited_ns=dict(self._waited_ns),
        )
