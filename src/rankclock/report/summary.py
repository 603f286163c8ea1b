"""What a run record says, in numbers: coverage, errors, widths, the worst pair, the path through a takeover.

Decides how the numbers of every report are computed, once, for pages and terminals alike. Refuses to mix: measured
and claimed are counted apart, an unknown is counted as unknown and never as covered, and a sample without a truth is
not scored. Percentiles are nearest-rank: a value that really occurred.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rankclock.report.record import Matrix, RunRecord, Sample, Series
from rankclock.timebase import Offset

__all__ = [
    "Coverage",
    "ErrorRow",
    "Errors",
    "Miss",
    "TakeoverRow",
    "claimed_errors",
    "error_rows",
    "main_series",
    "matrix_misses",
    "measured_coverage",
    "measured_errors",
    "percentile",
    "reach",
    "takeover_rows",
    "takeover_window",
    "worst_pair",
]

BEFORE_KILL_S = 8.0
AFTER_TAKEOVER_S = 15.0
"""How much of the run around a kill is the takeover: enough to see the clocks quiet before it and after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Miss:
    """A measured bound that does not contain the truth: a fault of ours, named so that it can be found."""

    node: str
    reference: str
    where: str
    offset: Offset
    true_ns: int

    @property
    def by_ns(self) -> int:
        """How far outside the interval the truth lies."""
        lo_ns, hi_ns = self.offset.lo_ns or 0, self.offset.hi_ns or 0
        return max(lo_ns - self.true_ns, self.true_ns - hi_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How many measured bounds there were, how many could be checked against a truth, and which ones failed."""

    samples: int
    unknown: int
    checked: int
    misses: tuple[Miss, ...]

    @property
    def contained(self) -> int:
        """How many bounds held the truth."""
        return self.checked - len(self.misses)


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Errors of many offsets against the truth, and their bounds. Everything in ns; None where nothing was scored."""

    samples: int
    unknown: int
    checked: int
    contained: int
    median_ns: int | None
    p99_ns: int | None
    bound_median_ns: int | None
    bound_p99_ns: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRow:
    """One line of the error table."""

    label: tuple[str, ...]
    measured: Errors
    claimed: Errors


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeoverRow:
    """One node's way through the loss of its source.

    worst: the measured offset whose estimate was farthest from zero since the kill, worst_s after it; None where none
    was measured.
    beyond_s: how long after the kill the node was last surely outside its budget; None where it never was.
    """

    node: str
    worst: Offset | None
    worst_s: float | None
    worst_true_ns: int | None
    budget_ns: int | None
    beyond_s: float | None
    unknown: int
    samples: int


def percentile(values: Iterable[int], percent: float) -> int | None:
    """The nearest-rank percentile: the smallest value that at least `percent` of the values do not exceed."""
    ordered = sorted(values)
    if not ordered:
        return None
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(0, int(rank) - 1)]


def measured_coverage(record: RunRecord) -> Coverage:
    """Every measured bound of the run (samples, standings, pairs) against the truth where the run knows it."""
    bounds = list(_measured_bounds(record))
    scored = [bound for bound in bounds if bound[3].known and bound[4] is not None]
    return Coverage(
        samples=len(bounds),
        unknown=sum(not offset.known for _, _, _, offset, _ in bounds),
        checked=len(scored),
        misses=tuple(
            Miss(node=node, reference=reference, where=where, offset=offset, true_ns=true_ns)
            for node, reference, where, offset, true_ns in scored
            if true_ns is not None and not offset.contains(true_ns)
        ),
    )


def _measured_bounds(record: RunRecord) -> Iterable[tuple[str, str, str, Offset, int | None]]:
    """(node, reference, where, measured, truth) of everything that was measured."""
    for series, sample in record.samples():
        yield series.node, series.reference, f"{sample.t_s:.2f} s, {sample.phase}", sample.measured, sample.true_ns
    for plan in record.plans:
        for standing in plan.standings:
            measured = standing.state.measured
            where = f"state under the {plan.protocol.upper()} plan"
            yield standing.state.node, measured.reference, where, measured, standing.true_ns
    for matrix in record.matrices:
        for one, other, cell, true_ns in _pairs(matrix):
            yield one, other, matrix.title, cell, true_ns


def _pairs(matrix: Matrix) -> Iterable[tuple[str, str, Offset, int | None]]:
    for row, one in enumerate(matrix.names):
        for column, other in enumerate(matrix.names):
            if row != column:
                true_ns = matrix.true_ns[row][column] if matrix.true_ns else None
                yield one, other, matrix.cells[row][column], true_ns


def matrix_misses(matrix: Matrix) -> tuple[Miss, ...]:
    """The pairs of a matrix whose bound does not contain the truth."""
    return tuple(
        Miss(node=one, reference=other, where=matrix.title, offset=cell, true_ns=true_ns)
        for one, other, cell, true_ns in _pairs(matrix)
        if true_ns is not None and not cell.contains(true_ns)
    )


def worst_pair(matrix: Matrix) -> tuple[str, str, Offset] | None:
    """The known pair that may be farthest apart (estimate and bound together); None where no pair is known."""
    known = [(one, other, cell) for one, other, cell, _ in _pairs(matrix) if cell.known]
    return max(known, key=lambda pair: reach(pair[2]) or 0, default=None)


def reach(offset: Offset) -> int | None:
    """How far from zero the truth may be, in ns; None where nothing is known."""
    if offset.lo_ns is None or offset.hi_ns is None:
        return None
    return max(abs(offset.lo_ns), abs(offset.hi_ns))


def measured_errors(samples: Iterable[Sample]) -> Errors:
    """Errors of what was measured."""
    return _errors([(sample.measured, sample.true_ns) for sample in samples])


def claimed_errors(samples: Iterable[Sample]) -> Errors:
    """Errors of what the daemons claimed, each against the reference that the claim names; other samples left out."""
    return _errors([(s.claimed, s.claimed_true_ns) for s in samples if s.claimed is not None])


def _errors(pairs: list[tuple[Offset, int | None]]) -> Errors:
    scored = [(o, o.estimate_ns, true_ns) for o, true_ns in pairs if o.estimate_ns is not None and true_ns is not None]
    errors_ns = [abs(estimate_ns - true_ns) for _, estimate_ns, true_ns in scored]
    bounds_ns = [o.bound_ns for o, _ in pairs if o.bound_ns is not None]
    return Errors(
        samples=len(pairs),
        unknown=sum(not offset.known for offset, _ in pairs),
        checked=len(scored),
        contained=sum(offset.contains(true_ns) for offset, _, true_ns in scored),
        median_ns=percentile(errors_ns, 50),
        p99_ns=percentile(errors_ns, 99),
        bound_median_ns=percentile(bounds_ns, 50),
        bound_p99_ns=percentile(bounds_ns, 99),
    )


def error_rows(record: RunRecord, label: Callable[[Series, Sample], tuple[str, ...]]) -> tuple[ErrorRow, ...]:
    """The error table, one row for each label, in order of first appearance.

    label: e.g. `lambda series, sample: (sample.phase, sample.measured.method)`.
    """
    groups: dict[tuple[str, ...], list[Sample]] = {}
    for series, sample in record.samples():
        groups.setdefault(label(series, sample), []).append(sample)
    return tuple(
        ErrorRow(label=key, measured=measured_errors(group), claimed=claimed_errors(group))
        for key, group in groups.items()
    )


def main_series(record: RunRecord) -> list[Series]:
    """A series a node: the one against the run's reference, or else its longest."""
    chosen: dict[str, Series] = {}
    for series in record.series:
        held = chosen.get(series.node)
        if held is None or _rank(series, record.reference) > _rank(held, record.reference):
            chosen[series.node] = series
    return list(chosen.values())


def _rank(series: Series, reference: str) -> tuple[bool, int]:
    return series.reference == reference, len(series.samples)


def takeover_window(record: RunRecord) -> tuple[float, float] | None:
    """From when to when the clocks are shown around the kill; None where nothing was killed."""
    if record.takeover is None:
        return None
    last_s = record.takeover.taken_over_s
    return record.takeover.killed_s - BEFORE_KILL_S, (last_s or record.takeover.killed_s) + AFTER_TAKEOVER_S


def takeover_rows(record: RunRecord) -> tuple[TakeoverRow, ...]:
    """Every node's way through the takeover; the node that was killed included."""
    takeover, window = record.takeover, takeover_window(record)
    if takeover is None or window is None:
        return ()
    budgets = {node.node: node.budget_ns for plan in record.plans for node in plan.nodes}
    rows = []
    for series in takeover.paths or main_series(record):
        after = [s for s in series.samples if takeover.killed_s <= s.t_s <= window[1]]
        if after:
            rows.append(_takeover_row(series.node, after, budgets.get(series.node), takeover.killed_s))
    return tuple(rows)


def _takeover_row(node: str, after: list[Sample], budget_ns: int | None, killed_s: float) -> TakeoverRow:
    worst = max((s for s in after if s.measured.known), key=lambda s: abs(s.measured.estimate_ns or 0), default=None)
    beyond = [s.t_s for s in after if budget_ns is not None and _beyond(s.measured, budget_ns)]
    return TakeoverRow(
        node=node,
        worst=worst.measured if worst else None,
        worst_s=worst.t_s - killed_s if worst else None,
        worst_true_ns=max((s.true_ns for s in after if s.true_ns is not None), key=abs, default=None),
        budget_ns=budget_ns,
        beyond_s=beyond[-1] - killed_s if beyond else None,
        unknown=sum(not s.measured.known for s in after),
        samples=len(after),
    )


def _beyond(offset: Offset, budget_ns: int) -> bool:
    return offset.known and ((offset.lo_ns or 0) > budget_ns or (offset.hi_ns or 0) < -budget_ns)
