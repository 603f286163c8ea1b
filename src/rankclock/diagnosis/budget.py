"""The skew budget: how much room each component's tolerance leaves over a bound on the clocks, and what breaks first.

A bound says how far two clocks (or a clock and UTC) may be apart at most; the margin is the limit divided by it.
Refuses to call a component safe where the bound reaches its limit, and to judge where there is no bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rankclock.diagnosis.tolerances import TOLERANCES, Against, Tolerance
from rankclock.timebase import format_span_ns

__all__ = ["Bound", "Budget", "Margin", "Standing", "make_budget", "margin_text"]

COMFORT = 3
"""A margin below this is named narrow.

A bound is a worst case, but a wandering oscillator or a lost source doubles it soon.
"""


class Standing(StrEnum):
    """How a component stands to a bound."""

    SAFE = "safe"
    NARROW = "narrow"
    BREAKS = "can break"
    UNKNOWN = "no bound"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """How far apart at most. against: other hosts, or UTC. bound_ns: None where nobody knows. source: who says so."""

    against: Against
    bound_ns: int | None
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Margin:
    """One component against the bound that concerns it.

    Ratio: limit / bound; None without a bound or with none of it.
    """

    tolerance: Tolerance
    bound: Bound
    ratio: float | None
    standing: Standing

    def to_json(self) -> dict[str, Any]:
        """The row as an object."""
        return {
            **self.tolerance.to_json(),
            "bound_ns": self.bound.bound_ns,
            "bound_source": self.bound.source,
            "margin": None if self.ratio is None else round(self.ratio, 3),
            "standing": self.standing.value,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """All components, the one that breaks first in front."""

    name: str
    margins: tuple[Margin, ...]

    @property
    def first(self) -> Margin | None:
        """What breaks first: the smallest margin; None where no bound is known."""
        known = [margin for margin in self.margins if margin.ratio is not None]
        return min(known, key=lambda margin: margin.ratio or 0.0) if known else None

    def count(self, standing: Standing) -> int:
        """How many components stand so."""
        return sum(1 for margin in self.margins if margin.standing is standing)

    def to_json(self) -> dict[str, Any]:
        """A JSON object, schema 'rankclock-budget/1'."""
        return {
            "schema": "rankclock-budget/1",
            "name": self.name,
            "breaks_first": None if self.first is None else self.first.tolerance.component,
            "margins": [margin.to_json() for margin in self.margins],
        }


def make_budget(name: str, bounds: Sequence[Bound], tolerances: Sequence[Tolerance] = TOLERANCES) -> Budget:
    """Judge every tolerance by the bound of its kind.

    Where UTC has none of its own, the component stays without one.
    """
    by_kind = {bound.against: bound for bound in bounds}
    margins = []
    for tolerance in tolerances:
        bound = by_kind.get(tolerance.against) or Bound(against=tolerance.against, bound_ns=None, source="nobody says")
        margins.append(_margin(tolerance, bound))
    margins.sort(key=lambda margin: (margin.ratio is None, margin.ratio or 0.0, -margin.tolerance.breaks_at_ns))
    return Budget(name=name, margins=tuple(margins))


def _margin(tolerance: Tolerance, bound: Bound) -> Margin:
    if bound.bound_ns is None:
        return Margin(tolerance=tolerance, bound=bound, ratio=None, standing=Standing.UNKNOWN)
    ratio = tolerance.breaks_at_ns / max(1, bound.bound_ns)
    standing = Standing.BREAKS if ratio <= 1 else Standing.NARROW if ratio < COMFORT else Standing.SAFE
    return Margin(tolerance=tolerance, bound=bound, ratio=ratio, standing=standing)


def margin_text(margin: Margin) -> str:
    """'34 µs of 100 µs, 2.9 times': how a person reads a margin."""
    if margin.bound.bound_ns is None or margin.ratio is None:
        return "no bound"
    times = (
        f"{margin.ratio:.1f}" if margin.ratio < 100 else f"{margin.ratio:.0f}" if margin.ratio < 1e5 else "over 100,000"
    )
    return f"{format_span_ns(margin.bound.bound_ns)} of {format_span_ns(margin.tolerance.breaks_at_ns)}, {times} times"
