"""Clock offsets out of the collectives in traces, where nobody recorded the clocks: bounds that hold, and an estimate.

The bounds follow from what every kind of collective really guarantees; the point inside them rests on collectives
ending at about the same time everywhere, and is labelled so. Says which clocks the data leave unbounded, which ranks
contradict the others, and what was left out. Refuses to join clocks that the traces show to be different.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from rankclock.errors import UserError
from rankclock.timebase import Offset, format_span_ns
from rankclock.traces.bounds_lp import MAX_RATE_PPM, BoundProblem, Conflict
from rankclock.traces.clock_segments import Recovering, Segment
from rankclock.traces.digest import TraceDigest
from rankclock.traces.estimate import LEAST_SIDE
from rankclock.traces.flight_recorder import UNBOUNDED
from rankclock.traces.matching import Matches, match
from rankclock.traces.timemap import Alignment, Piece, RankMap

__all__ = ["METHOD", "WANDER_PER_S", "ClockSolution", "Recovery", "recover"]

METHOD = "recovered from collectives by linear programming"
ESTIMATE = "the estimate inside the bounds: collectives end at about the same time on all ranks"

WANDER_PER_S = 3e-8
"""How fast a crystal's rate may change: 0.03 ppm a second covered all simulated random walks."""

MISPAIRED_SHARE = 0.02
"""Collectives that may be left out as mispaired or misread; with more, a whole clock is at fault."""

CONTRADICTED_SHARE = 0.05
"""Ranks of one clock contradict each other in fewer collectives than this, if that clock is stepped."""

MOST_OF_WINDOW = 0.5
"""A step of more than this part of a trace mixes up what was before it and what behind."""

MAX_ATTEMPTS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockSolution:
    """One host clock. offset: local - reference in the middle of the window. rate_ppb: (lo, estimate, hi)."""

    name: str
    ranks: tuple[int, ...]
    offset: Offset
    rate_ppb: tuple[float, float, float] | None
    collectives: int
    steps: tuple[tuple[int, int], ...]
    """Breaks seen: local time, and by how much the estimate jumps there."""
    smallest_step_ns: int | None
    """A smaller step, or one beside fewer than three collectives, may not be seen; None where none would be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """What the collectives say of the clocks. inconsistent: ranks whose stamps no line explains, and why."""

    alignment: Alignment
    clocks: tuple[ClockSolution, ...]
    inconsistent: Mapping[int, str]
    used: int
    left_out: Mapping[str, int]
    problems: tuple[str, ...]
    assumptions: tuple[str, ...]
    rows: int


def recover(
    digests: Mapping[int, TraceDigest],
    *,
    one_clock_per_host: bool = True,
    broadcast_root: int | None = None,
    wander_per_s: float = WANDER_PER_S,
) -> Recovery:
    """Bounds and estimates of every rank's clock against that of the first clock that was not stepped."""
    if len(digests) < 2:
        raise UserError("clocks are recovered from what ranks did together: give the traces of at least two ranks")
    matches = match(digests, broadcast_root=broadcast_root)
    problems = list(matches.problems)
    clock_of, names = _clocks(digests, matches, one_clock_per_host, problems)
    make = partial(Recovering, digests, matches, clock_of, len(names), wander_per_s=wander_per_s)
    state = _state(make, clock_of, names, problems)
    problem, excluded = _consistent(state, names, problems)
    assumptions = [*matches.assumptions, ESTIMATE, f"crystals change their rate by at most {wander_per_s:g} per second"]
    if one_clock_per_host and len(set(clock_of.values())) < len(digests):
        assumptions.append("ranks with the same host_name share one clock")
    assumptions += _unseen_steps(state, names)
    solver = _Solver(state, problem, names, excluded, tuple(assumptions))
    maps = {rank: solver.rank_map(rank) for rank in digests}
    reference = names[0]
    alignment = Alignment(reference=reference, method=METHOD, ranks=maps, problems=tuple(problems))
    left_out = Counter(matches.left_out)
    if state.dropped:
        left_out["collectives that contradict all others"] += len(state.dropped)
    return Recovery(
        alignment=alignment,
        clocks=tuple(solver.solution(clock) for clock in range(len(names))),
        inconsistent={rank: excluded[clock] for rank, clock in clock_of.items() if clock in excluded},
        used=state.constraining,
        left_out=dict(left_out),
        problems=tuple(problems),
        assumptions=tuple(assumptions),
        rows=problem.rows,
    )


def _state(
    make: Callable[[], Recovering], clock_of: dict[int, int], names: list[str], problems: list[str]
) -> Recovering:
    """Clocks with their breaks. The reference is the first clock without any; `clock_of` and `names` are reordered."""
    state = make()
    state.break_lines()
    steady = state.steady_clocks
    if len(names) == 2 and len(steady) < 2:
        problems.append(
            f"{names[0]} or {names[1]} was stepped: of two clocks it cannot be told which; time is that of {names[0]}"
        )
    if 0 in steady or not steady:
        return state
    other = steady[0]
    problems.append(f"{names[0]} was stepped or changed its rate: time is that of {names[other]}")
    names[0], names[other] = names[other], names[0]
    swapped = {0: other, other: 0}
    clock_of.update({rank: swapped.get(clock, clock) for rank, clock in clock_of.items()})
    state = make()
    state.break_lines()
    return state


def _unseen_steps(state: Recovering, names: list[str]) -> list[str]:
    """What is assumed of steps that would not be seen."""
    smallest = {clock: state.smallest_step_ns(clock) for clock in range(len(names))}
    seen = [step_ns for step_ns in smallest.values() if step_ns is not None]
    lines = []
    if seen:
        lines.append(
            f"no clock was stepped by less than {format_span_ns(max(seen))}, or with fewer than {LEAST_SIDE} "
            "collectives before or behind it, which is not seen"
        )
    if len(seen) < len(names):
        few = ", ".join(names[clock] for clock, step_ns in smallest.items() if step_ns is None)
        lines.append(f"not stepped at all, which too few collectives would show: {few}")
    return lines


def _clocks(
    digests: Mapping[int, TraceDigest], matches: Matches, share: bool, problems: list[str]
) -> tuple[dict[int, int], list[str]]:
    """The clock of every rank, and the clocks' names. Ranks of a host share one unless their spans show otherwise."""
    keys = {rank: digest.host if share and digest.host else f"rank {rank}" for rank, digest in digests.items()}
    for host in {key for key in keys.values() if list(keys.values()).count(key) > 1}:
        ranks = [rank for rank, key in keys.items() if key == host]
        if _contradict(matches, ranks):
            problems.append(
                f"ranks {', '.join(map(str, ranks))} all say host {host}, but their spans contradict one clock: "
                "each is taken as a clock of its own"
            )
            keys.update({rank: f"rank {rank} on {host}" for rank in ranks})
    names = list(dict.fromkeys(keys.values()))
    return {rank: names.index(key) for rank, key in keys.items()}, names


def _contradict(matches: Matches, ranks: list[int]) -> bool:
    """Whether collectives end on one of these ranks before they begin on another, by more than stamps may err.

    A clock stepped back makes those so that it was stepped in, one for each of the few streams.
    """
    inside = np.isin(matches.rank, [matches.ranks.index(rank) for rank in ranks])
    count = len(matches.collectives)
    latest = np.full(count, np.iinfo(np.int64).min)
    earliest = np.full(count, np.iinfo(np.int64).max)
    starts, ends = inside & matches.enters, inside & matches.waits
    np.maximum.at(latest, matches.collective[starts], (matches.start_ns - matches.slack_ns)[starts])
    np.minimum.at(earliest, matches.collective[ends], (matches.end_ns + matches.slack_ns)[ends])
    shared = (latest > np.iinfo(np.int64).min) & (earliest < np.iinfo(np.int64).max)
    return int((latest > earliest).sum()) > max(2.0, CONTRADICTED_SHARE * int(shared.sum()))


def _consistent(state: Recovering, names: list[str], problems: list[str]) -> tuple[BoundProblem, dict[int, str]]:
    """A problem that has a solution, after leaving out as little as possible of what contradicts the rest."""
    excluded = _beyond_order(state, names, problems)
    allowed = max(1, int(MISPAIRED_SHARE * state.constraining))
    for _ in range(MAX_ATTEMPTS):
        problem = state.problem(without_clocks=set(excluded))
        found = _contradictions(problem, state)
        if not found:
            break
        guilty = {conflict.collective for conflict in found}
        if len(state.dropped | guilty) <= allowed:
            state.leave_out(state.dropped | guilty)
            continue
        clock = _most_in_conflict(found, state)
        worst = max(conflict.needed_us for conflict in found)
        excluded[clock] = (
            f"its spans contradict the others' by up to {format_span_ns(int(worst * 1000))} in "
            f"{len(guilty)} collectives, whatever its offset and rate"
        )
        problems.append(f"{names[clock]}: {excluded[clock]}; it is left out")
    else:
        problem = state.problem(without_clocks=set(range(len(names))))
        excluded = dict.fromkeys(range(1, len(names)), "too many ranks contradict each other to tell which are right")
        problems.append("the collectives contradict each other too often to tell anything of the clocks")
    if state.dropped:
        problems.append(f"{len(state.dropped)} collectives contradict all others (mispaired or misread): left out")
    return problem, excluded


def _beyond_order(state: Recovering, names: list[str], problems: list[str]) -> dict[int, str]:
    """Clocks whose breaks cannot be placed: too many, or steps so far that the stamps' order says nothing any more."""
    excluded = {}
    for clock in range(1, len(names)):
        first, last = state.window(clock)
        farthest = max((abs(jump_ns) for _, jump_ns in state.steps_of(clock)), default=0)
        if clock in state.unplaced:
            excluded[clock] = "it was stepped or changed its rate, and its stamps do not show where"
        elif farthest > MOST_OF_WINDOW * (last - first):
            excluded[clock] = f"it was stepped by {format_span_ns(farthest)}, too far for its trace to show where"
        if clock in excluded:
            problems.append(f"{names[clock]}: {excluded[clock]}; it is left out")
    return excluded


def _contradictions(problem: BoundProblem, state: Recovering) -> list[Conflict]:
    """The rows to blame where the problem has no solution; none where it has one."""
    try:
        for index in range(len(state.segments)):
            problem.ask(index, problem.at_ns)
    except ValueError:
        return problem.conflicts()
    return []


def _most_in_conflict(found: list[Conflict], state: Recovering) -> int:
    """The clock that most of the conflict hangs on; never the reference, against which nothing would be left."""
    blame: Counter[int] = Counter()
    for conflict in found:
        for segment in (conflict.starter, conflict.ender):
            blame[state.segments[segment].clock] += int(conflict.needed_us * 1000) + 1
    del blame[0]
    return blame.most_common(1)[0][0]


class _Solver:
    """Asks the problem for each clock's bounds and puts them into maps and offsets."""

    def __init__(
        self,
        state: Recovering,
        problem: BoundProblem,
        names: list[str],
        excluded: Mapping[int, str],
        assumptions: tuple[str, ...],
    ) -> None:
        self._state, self._problem, self._names = state, problem, names
        self._excluded, self._assumptions = excluded, assumptions
        self._pieces: dict[int, tuple[tuple[Piece, ...], str]] = {}

    def rank_map(self, rank: int) -> RankMap:
        """The map of one rank: that of its clock."""
        clock = self._state.clock_of[rank]
        if clock not in self._pieces:
            self._pieces[clock] = self._solve(clock)
        pieces, why = self._pieces[clock]
        digest = self._state.digests[rank]
        return RankMap(
            rank=rank,
            host=digest.host or "",
            pieces=pieces,
            method=METHOD,
            assumptions=self._assumptions,
            notes=digest.notes,
            unknown_why=why,
        )

    def solution(self, clock: int) -> ClockSolution:
        """The clock's offset in the middle of its window, and its rate."""
        state = self._state
        ranks = tuple(rank for rank, mine in state.clock_of.items() if mine == clock)
        rank_map = self.rank_map(ranks[0])
        segments = [index for index, segment in enumerate(state.segments) if segment.clock == clock]
        first, last = state.window(clock)
        rate = None
        if rank_map.known and len(segments) == 1:
            low, high = self._problem.ask_rate(segments[0])
            estimate = state.segments[segments[0]].rate * 1e9
            unlimited = high - low > MAX_RATE_PPM * 1000
            rate = None if unlimited else (low, float(np.clip(estimate, low, high)), high)
        return ClockSolution(
            name=self._names[clock],
            ranks=ranks,
            offset=rank_map.offset((first + last) // 2, reference=self._names[0]),
            rate_ppb=rate,
            collectives=state.count_of(clock),
            steps=tuple(state.steps_of(clock)),
            smallest_step_ns=state.smallest_step_ns(clock),
        )

    def _solve(self, clock: int) -> tuple[tuple[Piece, ...], str]:
        state = self._state
        if clock in self._excluded:
            return (), self._excluded[clock]
        if clock == 0 and len([segment for segment in state.segments if segment.clock == 0]) == 1:
            first, last = state.window(0)
            return (Piece(start_ns=first, end_ns=last, at_start=(0, 0, 0), at_end=(0, 0, 0)),), ""
        if not state.connected[clock]:
            return (), "no collective in common with the reference's ranks"
        pieces: list[Piece] = []
        for index, segment in enumerate(state.segments):
            if segment.clock == clock:
                found, why = self._segment(index, segment)
                if why:
                    return (), why
                pieces.extend(found)
        return tuple(pieces), ""

    def _segment(self, index: int, segment: Segment) -> tuple[list[Piece], str]:
        knots = segment.knots()
        values = []
        for at_ns in knots:
            low, high = self._problem.ask(index, at_ns - segment.rough_ns)
            if low is None or high is None:
                return [], self._unbounded(segment, low, high)
            bounds = segment.rough_ns + int(np.floor(low)), segment.rough_ns + int(np.ceil(high))
            estimate = min(max(segment.estimate_at(at_ns), bounds[0]), bounds[1])
            values.append((bounds[0], estimate, bounds[1]))
        pieces = []
        for place in range(len(knots) - 1):
            if knots[place] < knots[place + 1]:
                piece = Piece(
                    start_ns=knots[place],
                    end_ns=knots[place + 1],
                    at_start=values[place],
                    at_end=values[place + 1],
                    marked=segment.mark(knots[place], knots[place + 1]),
                )
                pieces.append(piece)
        return pieces, ""

    def _unbounded(self, segment: Segment, low: float | None, high: float | None) -> str:
        if low is None and high is None:
            only_created = any(
                UNBOUNDED in self._state.digests[rank].notes
                for rank, clock in self._state.clock_of.items()
                if clock == segment.clock
            )
            return UNBOUNDED if only_created else "unbounded: no collective holds its clock on either side"
        side, value = ("below", low) if high is None else ("above", high)
        assert value is not None
        limit = f"{'>=' if high is None else '<='} {format_span_ns(segment.rough_ns + int(value))}"
        return f"unbounded on one side: its clock is only held from {side} (offset {limit})"
