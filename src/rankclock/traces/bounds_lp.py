"""Hard bounds on offset and rate of every clock from what collectives allow, by linear programming (HiGHS).

Each collective has one instant m: whoever is waited for has started by then, whoever waits ends after it. That gives
two rows a clock and collective, S - theta(S) <= m <= E - theta(E). Only those are given to the solver that its answers
would violate (cutting planes), so most rows of a large problem are never looked at by it. A row too few only widens a
bound, never makes it wrong.

Decides which bounds exist: where nothing holds a clock on one side it is unbounded there, and stays so.
"""

from __future__ import annotations

from dataclasses import dataclass

import highspy
import numpy as np
import numpy.typing as npt

from rankclock.errors import InternalError
from rankclock.traces.spans import Ints

__all__ = ["BoundProblem", "Conflict", "Side"]

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

US = 1000.0
BOX_US = 1e9
"""Offsets are sought within ±1000 s of the rough ones; what reaches that is unbounded."""

MAX_RATE_PPM = 200_000.0
"""Two kernels that slew at their limit (±100,000 ppm each) part no faster."""

VIOLATED_US = 1e-3
"""A row violated by less than 1 ns is not worth adding; bounds are widened by as much."""

CUTS_A_ROUND = 2_000
MAX_ROUNDS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """Starts (or ends) that constrain, one per collective and clock, sorted by collective.

    local_ns: the stamp less the clock's rough offset, its slack already taken off (starts) or put on (ends).
    """

    collective: Ints
    clock: Ints
    local_ns: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """A collective that no lines can satisfy together with the others: by how much it must give, whom it ties."""

    needed_us: float
    starter: int
    ender: int
    collective: int


class BoundProblem:
    """The rows of all collectives, and a solver that knows a growing part of them."""

    def __init__(
        self, *, clocks: int, reference: int, starts: Side, ends: Side, collectives: int, wander_per_s: float
    ) -> None:
        """wander_per_s: how fast a rate may change: t seconds from the instant asked for, a stamp strays by a*t²/2."""
        self._clocks, self._reference = clocks, reference
        stamps = np.concatenate([starts.local_ns, ends.local_ns])
        self.at_ns = int(stamps.min() // 2 + stamps.max() // 2) if len(stamps) else 0
        self._stamps = _Stamps(starts, ends, self.at_ns, collectives, wander_per_s)
        self._program = _Program(self._stamps, clocks, reference, elastic=False)

    @property
    def rows(self) -> int:
        """Rows given to the solver so far."""
        return self._program.rows

    def ask(self, clock: int, at_ns: int) -> tuple[float | None, float | None]:
        """The least and greatest offset (ns, against the rough one) of a clock at an instant; None where unbounded.

        at_ns: local time less the clock's rough offset. Raises ValueError where no lines satisfy all rows.
        """
        at_s = (at_ns - self.at_ns) / 1e9
        self._program.move(at_s)
        low, high = (self._optimum(clock, (1.0, at_s), sign) for sign in (1.0, -1.0))
        return _outwards(low, -1), _outwards(high, 1)

    def ask_rate(self, clock: int) -> tuple[float, float]:
        """The least and greatest rate of a clock against the reference, in ppb."""
        self._program.move(0.0)
        low, high = (self._optimum(clock, (0.0, 1.0), sign) for sign in (1.0, -1.0))
        limit = MAX_RATE_PPM
        return (-limit if low is None else low) * 1000, (limit if high is None else high) * 1000

    def conflicts(self) -> list[Conflict]:
        """The collectives to blame where no lines satisfy all: those that give way when as little as possible does."""
        elastic = _Program(self._stamps, self._clocks, self._reference, elastic=True)
        lines = elastic.solved()
        if lines is None:
            raise InternalError("the solver could not find which rows contradict each other")
        late, early, excess = self._stamps.worst(lines, elastic.at_s)
        return [
            Conflict(
                needed_us=float(excess[collective]),
                starter=int(self._stamps.clock[late[collective]]),
                ender=int(self._stamps.clock[early[collective]]),
                collective=collective,
            )
            for collective in np.flatnonzero(excess > VIOLATED_US).tolist()
        ]

    def _optimum(self, clock: int, costs: tuple[float, float], sign: float) -> float | None:
        """The optimum of costs·(offset, rate) of one clock over all rows; None where it is unbounded."""
        if clock == self._reference:
            return 0.0
        lines = self._program.solved({2 * clock: sign * costs[0], 2 * clock + 1: sign * costs[1]})
        if lines is None:
            raise ValueError("no lines satisfy all collectives")
        offset, rate = lines[2 * clock], lines[2 * clock + 1]
        if abs(offset) > 0.999 * BOX_US:
            return None
        return float(costs[0] * offset + costs[1] * rate)


class _Stamps:
    """Starts (sign 1) and ends (sign -1) in µs and seconds around the middle, and what lines make of them."""

    def __init__(self, starts: Side, ends: Side, at_ns: int, collectives: int, wander_per_s: float) -> None:
        local_ns = np.concatenate([starts.local_ns, ends.local_ns]) - at_ns
        self.collectives = collectives
        self.clock: Ints = np.concatenate([starts.clock, ends.clock])
        self.collective: Ints = np.concatenate([starts.collective, ends.collective])
        self.sign: Floats = np.repeat([1.0, -1.0], [len(starts.clock), len(ends.clock)])
        self.local_us: Floats = local_ns / US
        self.at_s: Floats = local_ns / 1e9
        self._wander = wander_per_s

    def limits(self, at_s: float) -> Floats:
        """Each stamp less (starts) or plus (ends) what it may have strayed since the instant asked for."""
        limits: Floats = self.local_us - self.sign * self._wander * 1e6 * (self.at_s - at_s) ** 2 / 2
        return limits

    def corrected(self, lines: Floats, at_s: float) -> Floats:
        """Cluster time in µs, strayed to the harmless side."""
        return self.limits(at_s) - lines[2 * self.clock] - lines[2 * self.clock + 1] * self.at_s

    def worst(self, lines: Floats, at_s: float) -> tuple[Ints, Ints, Floats]:
        """Per collective the latest start, the earliest end (places, -1 where none), and by how much they cross."""
        corrected = self.corrected(lines, at_s)
        begun = self.sign > 0
        late = _extreme(corrected, self.collective, begun, self.collectives)
        early = _extreme(-corrected, self.collective, ~begun, self.collectives)
        both = (late >= 0) & (early >= 0)
        excess = np.where(both, corrected[late] - corrected[early], -np.inf) if len(corrected) else np.zeros(0)
        return late, early, excess


class _Program:
    """A linear program in HiGHS: offset (µs) and rate (ppm) of every clock, the instants m, and the rows found needed.

    elastic: every collective may give way, at a cost; then there always is a solution.
    """

    def __init__(self, stamps: _Stamps, clocks: int, reference: int, *, elastic: bool) -> None:
        self._stamps, self._elastic = stamps, elastic
        self.at_s = 0.0
        self._column = np.full(stamps.collectives, -1, dtype=np.int64)
        self._columns = 2 * clocks
        self._given = np.zeros(len(stamps.clock), dtype=bool)
        self._order: list[int] = []
        self._solver = _Quiet()
        self._reference = reference
        for clock in range(clocks):
            for limit in (BOX_US, MAX_RATE_PPM):
                bound = 0.0 if clock == reference else limit
                self._solver.addVar(-bound, bound)

    @property
    def rows(self) -> int:
        """Rows given to the solver so far."""
        return len(self._order)

    def move(self, at_s: float) -> None:
        """Ask about another instant from now on: stamps farther from it say less."""
        if at_s == self.at_s:
            return
        self.at_s = at_s
        if self._order:
            limits = self._stamps.limits(at_s)[self._order]
            begun = self._stamps.sign[self._order] > 0
            infinite = np.full(len(limits), highspy.kHighsInf)
            places = np.arange(len(limits), dtype=np.int32)
            lower, upper = np.where(begun, limits, -infinite), np.where(begun, infinite, limits)
            self._solver.changeRowsBounds(len(limits), places, lower, upper)  # type: ignore[attr-defined]

    def solved(self, costs: dict[int, float] | None = None) -> Floats | None:
        """The columns at the least cost over all rows; None where no columns satisfy them."""
        costs = costs or {}
        for column, cost in costs.items():
            self._solver.changeColCost(column, cost)
        try:
            for _ in range(MAX_ROUNDS):
                self._solver.run()
                status = self._solver.getModelStatus()
                if status == highspy.HighsModelStatus.kInfeasible:
                    return None
                if status != highspy.HighsModelStatus.kOptimal:
                    raise InternalError(f"the solver ended with {self._solver.modelStatusToString(status)}")
                columns = np.array(self._solver.getSolution().col_value)
                if not self._add_violated(columns):
                    break
        finally:
            for column in costs:
                self._solver.changeColCost(column, 0.0)
        return columns

    def _add_violated(self, columns: Floats) -> int:
        """Give the solver the rows that its answer violates, the worst first; how many."""
        stamps = self._stamps
        late, early, excess = stamps.worst(columns, self.at_s)
        corrected = stamps.corrected(columns, self.at_s)
        # An instant that the solver does not know yet lies where both sides would have it.
        instant = np.where(excess > -np.inf, (corrected[late] + corrected[early]) / 2, np.nan)
        known = self._column >= 0
        instant[known] = columns[self._column[known]]
        given = columns[self._column[known] + 1] if self._elastic else 0.0
        room = np.zeros(stamps.collectives)
        room[known] = given
        over = stamps.sign * (corrected - instant[stamps.collective])
        over -= np.where(stamps.sign > 0, 0.0, room[stamps.collective])
        over = np.where(self._given | np.isnan(over), -np.inf, over)
        fresh = np.argsort(-over, kind="stable")[: min(CUTS_A_ROUND, int((over > VIOLATED_US / 2).sum()))]
        for place in fresh.tolist():
            self._give(place)
        return len(fresh)

    def _give(self, place: int) -> None:
        """One row: m + theta(S) >= S, or m + theta(E) <= E (+ what the collective gives way)."""
        stamps = self._stamps
        collective, clock = int(stamps.collective[place]), int(stamps.clock[place])
        if self._column[collective] < 0:
            self._column[collective] = self._columns
            self._solver.addVar(-highspy.kHighsInf, highspy.kHighsInf)
            self._columns += 1
            if self._elastic:
                self._solver.addVar(0.0, highspy.kHighsInf)
                self._solver.changeColCost(self._columns, 1.0)
                self._columns += 1
        terms = {int(self._column[collective]): 1.0}
        if clock != self._reference:
            terms |= {2 * clock: 1.0, 2 * clock + 1: float(stamps.at_s[place])}
        limit, begun = float(stamps.limits(self.at_s)[place]), stamps.sign[place] > 0
        if self._elastic and not begun:
            terms[int(self._column[collective]) + 1] = -1.0
        lower, upper = (limit, highspy.kHighsInf) if begun else (-highspy.kHighsInf, limit)
        columns = np.array(list(terms), dtype=np.int32)
        self._solver.addRow(lower, upper, len(columns), columns, np.array(list(terms.values())))
        self._given[place] = True
        self._order.append(place)


class _Quiet(highspy.Highs):
    """HiGHS without the banner that its own constructor prints to stdout, where our results go."""

    def __init__(self) -> None:
        super(highspy.Highs, self).__init__()
        self.setOptionValue("output_flag", False)
        self.setOptionValue("threads", 1)
        self.setOptionValue("presolve", "off")  # keeps the basis, from which the next question is a few steps away
        self.setOptionValue("solver", "simplex")


def _extreme(values: Floats, group: Ints, which: Flags, groups: int) -> Ints:
    """The place of the greatest value of each group among `which`, -1 for empty groups."""
    order = np.lexsort((values, group))
    order = order[which[order]]
    places = np.full(groups, -1, dtype=np.int64)
    places[group[order]] = order
    return places


def _outwards(value_us: float | None, direction: int) -> float | None:
    return None if value_us is None else value_us * US + direction * VIOLATED_US * US
