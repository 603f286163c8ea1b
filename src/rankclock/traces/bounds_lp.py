"""Hard bounds on offset and rate of every clock from what collectives allow, by linear programming (HiGHS).

Each collective has one instant m: whoever is waited for has started by then, whoever waits ends after it. That gives
two rows a clock and collective, S - theta(S) <= m <= E - theta(E). m is eliminated: a start and an end of one
collective make a row, and of the many pairs only those are given to the solver that its answers would violate (cutting
planes), so a problem of 100,000 rows stays at a few hundred. A row too few only widens a bound, never makes it wrong.

Decides which bounds exist: where nothing holds a clock on one side it is unbounded there, and stays so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import highspy
import numpy as np
import numpy.typing as npt

from rankclock.errors import InternalError
from rankclock.traces.spans import Ints

__all__ = ["BoundProblem", "Conflict", "Side"]

Floats = npt.NDArray[np.float64]

US = 1000.0
BOX_US = 1e9
"""Offsets are sought within ±1000 s of the rough ones; what reaches that is unbounded."""

MAX_RATE_PPM = 200_000.0
"""Two kernels that slew at their limit (±100,000 ppm each) part no faster."""

VIOLATED_US = 1e-3
"""A row violated by less than 1 ns is not worth adding; bounds are widened by as much."""

CUTS_A_ROUND = 200
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
    """Rows that no lines can satisfy together: by how much each must give, which clocks and collective it ties."""

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
        self._collectives = collectives
        self._wander = wander_per_s
        stamps = np.concatenate([starts.local_ns, ends.local_ns])
        self.at_ns = int(stamps.min() // 2 + stamps.max() // 2) if len(stamps) else 0
        self._starts, self._ends = _Stamps(starts, self.at_ns), _Stamps(ends, self.at_ns)
        self._cut_start: list[int] = []
        self._cut_end: list[int] = []
        self._known: set[tuple[int, int]] = set()
        self._at_s: float = 0.0
        self._solver = _solver(clocks, reference)

    @property
    def rows(self) -> int:
        """Rows given to the solver so far."""
        return len(self._cut_start)

    def ask(self, clock: int, at_ns: int) -> tuple[float | None, float | None]:
        """The least and greatest offset (ns, against the rough one) of a clock at an instant; None where unbounded.

        at_ns: local time less the clock's rough offset. Raises ValueError where no lines satisfy all rows.
        """
        self._move((at_ns - self.at_ns) / 1e9)
        costs = (1.0, self._at_s)
        low, high = (self._optimum(clock, costs, sign) for sign in (1.0, -1.0))
        return _outwards(low, -1), _outwards(high, 1)

    def ask_rate(self, clock: int) -> tuple[float, float]:
        """The least and greatest rate of a clock against the reference, in ppb."""
        self._move(0.0)
        low, high = (self._optimum(clock, (0.0, 1.0), sign) for sign in (1.0, -1.0))
        limit = MAX_RATE_PPM
        return (-limit if low is None else low) * 1000, (limit if high is None else high) * 1000

    def conflicts(self) -> list[Conflict]:
        """The rows to blame where no lines satisfy all: those that give way when as little as possible gives way."""
        elastic = _solver(self._clocks, self._reference)
        columns = 2 * self._clocks
        for index, (terms, limit) in enumerate(self._rows(0)):
            elastic.addVar(0.0, highspy.kHighsInf)
            elastic.changeColCost(columns + index, 1.0)
            places = np.array([*terms, columns + index], dtype=np.int32)
            elastic.addRow(limit, highspy.kHighsInf, len(places), places, np.array([*terms.values(), 1.0]))
        elastic.run()
        if elastic.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            raise InternalError("the solver could not find which rows contradict each other")
        given = np.array(elastic.getSolution().col_value)[columns:]
        return [
            Conflict(
                needed_us=float(given[index]),
                starter=int(self._starts.clock[self._cut_start[index]]),
                ender=int(self._ends.clock[self._cut_end[index]]),
                collective=int(self._starts.collective[self._cut_start[index]]),
            )
            for index in np.flatnonzero(given > VIOLATED_US).tolist()
        ]

    def _move(self, at_s: float) -> None:
        """Ask about another instant from now on: stamps farther from it say less."""
        if at_s == self._at_s:
            return
        self._at_s = at_s
        for index, (_, limit) in enumerate(self._rows(0)):
            self._solver.changeRowBounds(index, limit, highspy.kHighsInf)

    def _rows(self, first: int) -> Iterator[tuple[dict[int, float], float]]:
        """Rows from `first` on, as theta_starter(S) - theta_ender(E) >= S - E, with the wander taken off."""
        begun, ended = self._strayed(self._starts.at_s), self._strayed(self._ends.at_s)
        for start, end in zip(self._cut_start[first:], self._cut_end[first:], strict=True):
            terms: dict[int, float] = {}
            for stamps, place, sign in ((self._starts, start, 1.0), (self._ends, end, -1.0)):
                clock = int(stamps.clock[place])
                if clock != self._reference:
                    terms[2 * clock] = terms.get(2 * clock, 0.0) + sign
                    terms[2 * clock + 1] = terms.get(2 * clock + 1, 0.0) + sign * float(stamps.at_s[place])
            limit = self._starts.local_us[start] - begun[start] - self._ends.local_us[end] - ended[end]
            yield terms, float(limit)

    def _strayed(self, at_s: Floats) -> Floats:
        strayed: Floats = self._wander * 1e6 * (at_s - self._at_s) ** 2 / 2
        return strayed

    def _optimum(self, clock: int, costs: tuple[float, float], sign: float) -> float | None:
        """The optimum of costs·(offset, rate) of one clock over all rows; None where it is unbounded."""
        if clock == self._reference:
            return 0.0
        for place, cost in enumerate(costs):
            self._solver.changeColCost(2 * clock + place, sign * cost)
        try:
            for _ in range(MAX_ROUNDS):
                self._solver.run()
                status = self._solver.getModelStatus()
                if status == highspy.HighsModelStatus.kInfeasible:
                    raise ValueError("no lines satisfy all collectives")
                if status != highspy.HighsModelStatus.kOptimal:
                    raise InternalError(f"the solver ended with {self._solver.modelStatusToString(status)}")
                lines = np.array(self._solver.getSolution().col_value)
                if not self._add_violated(lines):
                    break
        finally:
            for place in range(2):
                self._solver.changeColCost(2 * clock + place, 0.0)
        offset, rate = lines[2 * clock], lines[2 * clock + 1]
        if abs(offset) > 0.999 * BOX_US:
            return None
        return float(costs[0] * offset + costs[1] * rate)

    def _add_violated(self, lines: Floats) -> int:
        """Give the solver the worst rows that its lines violate; how many."""
        begun = self._starts.corrected(lines) - self._strayed(self._starts.at_s)
        ended = self._ends.corrected(lines) + self._strayed(self._ends.at_s)
        latest = _extreme(begun, self._starts.collective, self._collectives)
        earliest = _extreme(-ended, self._ends.collective, self._collectives)
        both = np.flatnonzero((latest >= 0) & (earliest >= 0))
        excess = begun[latest[both]] - ended[earliest[both]]
        worst = both[np.argsort(-excess, kind="stable")][: int(min(CUTS_A_ROUND, (excess > VIOLATED_US).sum()))]
        first = len(self._cut_start)
        for collective in worst.tolist():
            pair = int(latest[collective]), int(earliest[collective])
            if pair not in self._known:
                self._known.add(pair)
                self._cut_start.append(pair[0])
                self._cut_end.append(pair[1])
        for terms, limit in self._rows(first):
            places = np.array(list(terms), dtype=np.int32)
            self._solver.addRow(limit, highspy.kHighsInf, len(places), places, np.array(list(terms.values())))
        return len(self._cut_start) - first


class _Stamps:
    """One side's stamps in µs and seconds around the middle, and what lines make of them."""

    def __init__(self, side: Side, at_ns: int) -> None:
        self.clock, self.collective = side.clock, side.collective
        self.local_us: Floats = (side.local_ns - at_ns) / US
        self.at_s: Floats = (side.local_ns - at_ns) / 1e9

    def corrected(self, lines: Floats) -> Floats:
        """Cluster time in µs."""
        return self.local_us - lines[2 * self.clock] - lines[2 * self.clock + 1] * self.at_s


def _extreme(values: Floats, group: Ints, groups: int) -> Ints:
    """The place of the greatest value of each group (sorted), -1 for empty groups."""
    order = np.lexsort((values, group))
    places = np.full(groups, -1, dtype=np.int64)
    places[group[order]] = order
    return places


def _solver(clocks: int, reference: int) -> highspy.Highs:
    """Two columns a clock: offset (µs) and rate (ppm); the reference's are fixed at zero."""
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    solver.setOptionValue("presolve", "off")  # keeps the basis, from which the next question is a few steps away
    solver.setOptionValue("solver", "simplex")
    for clock in range(clocks):
        for limit in (BOX_US, MAX_RATE_PPM):
            bound = 0.0 if clock == reference else limit
            solver.addVar(-bound, bound)
    return solver


def _outwards(value_us: float | None, direction: int) -> float | None:
    return None if value_us is None else value_us * US + direction * VIOLATED_US * US
