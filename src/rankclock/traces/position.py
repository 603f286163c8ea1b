"""Pairing spans that carry no sequence number: by kind, size and order, with the shift and the holes that fit.

Where the profiler numbered the steps, spans are paired within steps of the same number (said as an assumption).
Otherwise the instants decide: ends of one collective lie close together on all ranks, whatever the clocks' offset and
rate, so the right pairing has a tight line through (time, difference of ends) and a pairing that is off by a step does
not. Where steps are too regular for that, equal numbers of spans decide (said as an assumption). Refuses to choose
where none of these tells, where step numbers and instants contradict each other, and where many spans in a row do not
lie where the others predict them: a stepped clock and lost spans then look alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from rankclock.traces.kinds import SYMMETRIC
from rankclock.traces.spans import Ints, Token

__all__ = ["Stream", "Unpaired", "pair_by_position"]

Floats = npt.NDArray[np.float64]

MAX_SHIFT = 12
"""Spans by which one rank's record may begin later than another's."""

FEW = 4
"""With fewer pairs than this nothing is tight or loose."""

CONTRADICTED = 4.0
LUCK_PAIRS = 32
"""The pairing by step numbers is doubted where another is CONTRADICTED * (1 + LUCK_PAIRS / pairs) times tighter: of 64
ranks with 6 pairs each, 4 had another that was 4 times tighter by luck."""

CLEARER = 2.0
"""How many times looser the next best pairing must be."""

NOTHING_LOOSER_NS = 1_000
"""Differences in tightness below the stamps' own errors say nothing."""

PREDICTED_WITHIN = 0.4
"""A span belongs to the one nearest to its predicted end, within this part of the gap to the next of its kind."""

STRAYED_SPREADS = 64
"""Beyond so many times the tightness of a pairing a span's place is a surprise."""

SURPRISES = 4
"""So many surprises of one kind in a row are no outliers: the clock was stepped, or spans are missing on both sides."""

BESIDE = 5
"""Pairs to each side whose differences say what a span's difference should be, in pairing by steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """One rank's spans without sequence numbers, in order of start. spans: places in the rank's columns."""

    spans: Ints
    tokens: Sequence[Token]
    start_ns: Ints
    end_ns: Ints
    step: Ints
    """The profiler step in which each span began, -1 where none is recorded."""


@dataclass(slots=True, kw_only=True)
class Unpaired:
    """What could not be paired: spans by reason, what to tell a person, and what the rest is paired on."""

    spans: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    assumptions: list[str] = field(default_factory=list)
    strayed: dict[int, list[int]] = field(default_factory=dict)
    """By rank, spans that had a counterpart, but not where it was expected."""

    def refuse(self, rank: int, reference: int, why: str, spans: int) -> None:
        """Nothing of a rank can be paired."""
        self.spans["spans whose place among the others cannot be told"] += spans
        self.problems.append(f"rank {rank} against rank {reference}: {why}")


@dataclass(frozen=True, slots=True)
class _Fit:
    """One way to lay a stream over the reference: differences of ends follow at_ns + rate * time, this tightly."""

    shift: int
    base_ns: int
    offset_ns: float
    rate: float
    spread_ns: float
    pairs: int
    by_steps: bool = False

    def difference_at(self, end_ns: Ints) -> Ints:
        line: Ints = np.rint(self.offset_ns + self.rate * (end_ns - self.base_ns)).astype(np.int64)
        return line


Paired = list[tuple[Token, list[tuple[int, int]]]]

ALONE = "spans that no other trace has"
BY_STEPS = "profiler steps of the same number are the same step of the job"
STRAYED = (
    "in the middle many collectives do not end where the others predict it: its clock was stepped or spans are lost, "
    "which cannot be told apart without step or sequence numbers"
)


@dataclass(frozen=True, slots=True)
class _Laid:
    """For each of my spans of one class the ordinal of the reference's span that it belongs to, -1 where none."""

    ordinals: list[int]
    strayed: tuple[int, ...] = ()
    sure: bool = True


def pair_by_position(streams: Mapping[int, Stream]) -> tuple[Paired, Unpaired]:
    """Collectives as (token, [(rank, span), ...]), each of at least two ranks; and what was left over."""
    unpaired = Unpaired()
    reference = max(streams, key=lambda rank: len(streams[rank].spans))
    classes = {rank: _classes(stream) for rank, stream in streams.items()}
    slots: dict[tuple[Token, int], list[tuple[int, int]]] = {}
    base = streams[reference]
    for token, places in classes[reference].items():
        for ordinal, place in enumerate(places):
            slots[token, ordinal] = [(reference, int(base.spans[place]))]
    for rank in streams:
        if rank == reference:
            continue
        fit, why = _best_fit(base, classes[reference], streams[rank], classes[rank])
        if fit is None:
            unpaired.refuse(rank, reference, why, len(streams[rank].spans))
            continue
        if why and not (fit.by_steps and why in unpaired.assumptions):
            unpaired.assumptions.append(why if fit.by_steps else f"rank {rank} against rank {reference}: {why}")
        laid = {
            token: _laid(base, classes[reference].get(token, []), streams[rank], places, fit)
            for token, places in classes[rank].items()
        }
        if not all(placed.sure for placed in laid.values()):
            unpaired.refuse(rank, reference, STRAYED, len(streams[rank].spans))
            continue
        spans = streams[rank].spans
        unpaired.strayed[rank] = [int(spans[place]) for placed in laid.values() for place in placed.strayed]
        for token, placed in laid.items():
            unpaired.spans[ALONE] += placed.ordinals.count(-1)
            for place, ordinal in zip(classes[rank][token], placed.ordinals, strict=True):
                if ordinal >= 0:
                    slots[token, ordinal].append((rank, int(spans[place])))
    paired = [(token, entries) for (token, _), entries in slots.items() if len(entries) > 1]
    unpaired.spans[ALONE] += len(slots) - len(paired)
    return paired, unpaired


def _classes(stream: Stream) -> dict[Token, list[int]]:
    """Places by token, in order."""
    classes: dict[Token, list[int]] = {}
    for place, token in enumerate(stream.tokens):
        classes.setdefault(token, []).append(place)
    return classes


def _best_fit(
    base: Stream, base_classes: Mapping[Token, list[int]], stream: Stream, classes: Mapping[Token, list[int]]
) -> tuple[_Fit | None, str]:
    """The pairing to take and what it rests on beside the instants ('' if on nothing); or None and why."""
    shared = [token for token in classes if token in base_classes and token.kind in SYMMETRIC]
    if not shared:
        return None, "no symmetric collective in common"
    longest = max(shared, key=lambda token: min(len(classes[token]), len(base_classes[token])))
    same_counts = all(len(classes[token]) == len(base_classes[token]) for token in shared)
    mine, theirs = classes[longest], base_classes[longest]
    my_ends, their_ends = stream.end_ns[mine], base.end_ns[theirs]
    few = min(len(mine), len(theirs))
    fits = []
    for shift in range(-MAX_SHIFT, MAX_SHIFT + 1):
        first, last = max(0, -shift), min(len(theirs), len(mine) - shift)
        if (last - first) * 2 > few:
            fits.append(_fit(my_ends[first + shift : last + shift], their_ends[first:last], shift))
    fits.sort(key=lambda fit: fit.spread_ns)
    looser_ns = CLEARER * fits[0].spread_ns + NOTHING_LOOSER_NS
    numbered = _same_steps(stream.step[mine], base.step[theirs])
    if len(numbered):
        fit = _fit(my_ends[numbered[:, 0]], their_ends[numbered[:, 1]], 0)
        best = fits[0]
        tighter = CONTRADICTED * (1 + LUCK_PAIRS / best.pairs)
        if few >= FEW and fit.spread_ns > tighter * best.spread_ns + NOTHING_LOOSER_NS:
            return None, f"step numbers and instants contradict each other (a shift by {best.shift} fits better)"
        return replace(fit, by_steps=True), BY_STEPS
    if few >= FEW:
        fits = [fit for fit in fits if fit.spread_ns < looser_ns]
        if len(fits) == 1:
            return fits[0], ""
    plain = next((fit for fit in fits if fit.shift == 0), None)
    if same_counts and plain is not None:
        return plain, "in order, since both have equally many; the instants alone do not exclude a shift"
    rivals = " and ".join(f"{fit.shift}" for fit in fits[:2])
    return None, (
        f"shifts by {rivals} collectives fit about equally well; "
        "step numbers (a profiler schedule) or sequence numbers (a flight recorder dump) would tell"
    )


def _same_steps(mine: Ints, theirs: Ints) -> Ints:
    """Pairs (mine, theirs) of ordinals of one class: the k-th of a step that both records have equally many of."""
    by_step: tuple[dict[int, list[int]], dict[int, list[int]]] = ({}, {})
    for places, steps in zip(by_step, (mine, theirs), strict=True):
        for ordinal, step in enumerate(steps.tolist()):
            places.setdefault(step, []).append(ordinal)
    pairs = [
        pair
        for step, ordinals in by_step[0].items()
        if step >= 0 and len(ordinals) == len(by_step[1].get(step, []))
        for pair in zip(ordinals, by_step[1][step], strict=True)
    ]
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def _fit(mine: Ints, theirs: Ints, shift: int) -> _Fit:
    """The line through the differences of ends laid over each other so."""
    differences, count, base_ns = mine - theirs, len(mine), int(theirs[0])
    if count < FEW:
        return _Fit(shift, base_ns, float(np.median(differences)), 0.0, float(np.ptp(differences)), count)
    # A hole in one record moves all later differences by a period: increments see it once, a line everywhere.
    steps = np.diff(theirs).astype(float)
    increments = np.diff(differences).astype(float)
    rate = float(np.median(increments / np.maximum(steps, 1.0)))
    strayed = float(np.median(np.abs(increments - rate * steps)))
    offsets = differences - rate * (theirs - base_ns)
    return _Fit(shift, base_ns, _densest(offsets, strayed), rate, strayed, count)


def _densest(values: Floats, width: float) -> float:
    """The middle of the stretch where most values lie: where a hole was, others lie a period away."""
    ordered = np.sort(values)
    reach = np.searchsorted(ordered, ordered + 8 * max(width, NOTHING_LOOSER_NS), side="right")
    start = int(np.argmax(reach - np.arange(len(ordered))))
    return float(np.median(ordered[start : reach[start]]))


def _laid(base: Stream, theirs: list[int], stream: Stream, mine: list[int], fit: _Fit) -> _Laid:
    if not theirs:
        return _Laid([-1] * len(mine))
    if fit.by_steps:
        return _laid_by_steps(base, theirs, stream, mine)
    return _laid_by_instants(base, theirs, stream, mine, fit)


def _laid_by_steps(base: Stream, theirs: list[int], stream: Stream, mine: list[int]) -> _Laid:
    """The k-th of a step with the k-th, but where the ends of that pair lie apart as no neighbouring pair's do."""
    pairs = _same_steps(stream.step[mine], base.step[theirs])
    ordinals = [-1] * len(mine)
    their_ends = base.end_ns[theirs]
    differences = stream.end_ns[mine][pairs[:, 0]] - their_ends[pairs[:, 1]]
    order = np.sort(their_ends)
    spread = float(np.median(np.abs(np.diff(differences)))) if len(pairs) > 1 else 0.0
    for index, (own, other) in enumerate(pairs.tolist()):
        # Two spans lost in one step, one here and another there, leave equal numbers that do not belong together.
        place = int(np.searchsorted(order, their_ends[other]))
        near = [abs(int(order[at]) - int(their_ends[other])) for at in (place - 1, place + 1) if 0 <= at < len(order)]
        beside = differences[max(0, index - BESIDE) : index], differences[index + 1 : index + 1 + BESIDE]
        strayed = [abs(int(differences[index]) - float(np.median(side))) for side in beside if len(side)]
        limit = min(PREDICTED_WITHIN * min(near, default=0), STRAYED_SPREADS * (spread + NOTHING_LOOSER_NS))
        if not near or not strayed or min(strayed) <= limit:
            ordinals[own] = other
    astray = [mine[own] for own in pairs[:, 0].tolist() if ordinals[own] < 0]
    return _Laid(ordinals, tuple(astray))


def _laid_by_instants(base: Stream, theirs: list[int], stream: Stream, mine: list[int], fit: _Fit) -> _Laid:
    ends = base.end_ns[theirs]
    expected = ends + fit.difference_at(ends)
    found = stream.end_ns[mine]
    order = np.argsort(expected)
    expected_sorted = expected[order]
    gaps = np.diff(expected_sorted)
    reach = np.full(len(expected), np.iinfo(np.int64).max // 4)
    if len(gaps):
        reach = (PREDICTED_WITHIN * np.minimum(np.r_[gaps[0], gaps], np.r_[gaps, gaps[-1]])).astype(np.int64)
    right = (
        np.clip(np.searchsorted(expected_sorted, found), 1, len(expected) - 1)
        if len(expected) > 1
        else np.zeros(len(found), dtype=np.int64)
    )
    left = np.maximum(right - 1, 0)
    nearest = np.where(np.abs(found - expected_sorted[left]) <= np.abs(found - expected_sorted[right]), left, right)
    distance = np.abs(found - expected_sorted[nearest])
    taken: dict[int, int] = {}
    result = [-1] * len(mine)
    for index in np.argsort(distance, kind="stable").tolist():
        slot = int(nearest[index])
        if distance[index] <= reach[slot] and slot not in taken:
            taken[slot] = index
            result[index] = int(order[slot])
    within = (found >= expected_sorted[0]) & (found <= expected_sorted[-1])
    surprising = within & (distance > STRAYED_SPREADS * (fit.spread_ns + NOTHING_LOOSER_NS))
    runs = np.convolve(surprising.astype(np.int64), np.ones(SURPRISES, dtype=np.int64), mode="valid")
    strayed = [mine[index] for index in np.flatnonzero(surprising).tolist() if result[index] < 0]
    return _Laid(result, tuple(strayed), sure=not len(runs) or int(runs.max()) < SURPRISES)
