"""From a rank's own time to cluster time, with the doubt: pieces of straight lines, each with an interval.

offset = local - cluster. Decides what an instant that two pieces claim (after a backward step) becomes: the union.
Refuses to map instants outside of its pieces: they are unknown, not extrapolated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from rankclock.errors import DecodeError
from rankclock.timebase import Offset
from rankclock.traces.spans import Ints

__all__ = ["Alignment", "Mapped", "Piece", "RankMap"]

SCHEMA = "rankclock-alignment/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A stretch of local time with offsets (lo, estimate, hi) at both its ends, straight in between.

    marked: why instants in it are less sure than elsewhere ('' where they are not).
    """

    start_ns: int
    end_ns: int
    at_start: tuple[int, int, int]
    at_end: tuple[int, int, int]
    marked: str = ""

    def offset_at(self, local_ns: int) -> tuple[int, int, int]:
        """(lo, estimate, hi) at an instant; bounds are rounded outwards."""
        span, after = max(self.end_ns - self.start_ns, 1), local_ns - self.start_ns
        moved = [(last - first) * after for first, last in zip(self.at_start, self.at_end, strict=True)]
        lo = self.at_start[0] + moved[0] // span
        estimate = self.at_start[1] + (2 * moved[1] + span) // (2 * span)
        hi = self.at_start[2] - (-moved[2] // span)
        return lo, min(max(estimate, lo), hi), hi


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapped:
    """Many instants in cluster time. known: False where no piece holds the instant; the others are then 0."""

    cluster_ns: Ints
    lo_ns: Ints
    hi_ns: Ints
    known: np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMap:
    """How one rank's local time becomes cluster time. `pieces` in order of real time; '' where it is known.

    method, assumptions: what the bounds rest on. unknown_why: set exactly where there are no pieces.
    """

    rank: int
    host: str
    pieces: tuple[Piece, ...]
    method: str
    assumptions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    unknown_why: str = ""

    @property
    def known(self) -> bool:
        """Whether anything can be mapped."""
        return bool(self.pieces)

    def offset_at(self, local_ns: int) -> tuple[int, int, int] | None:
        """(lo, estimate, hi) of local - cluster; the union where several pieces hold the instant; None where none."""
        found = [piece.offset_at(local_ns) for piece in self.pieces if piece.start_ns <= local_ns <= piece.end_ns]
        if not found:
            return None
        lo, hi = min(one[0] for one in found), max(one[2] for one in found)
        return lo, found[0][1], hi

    def to_cluster(self, local_ns: Ints) -> Mapped:
        """Many instants at once (each piece is looked at once). Bounds hold for any instant, rounded outwards."""
        shape = local_ns.shape
        estimate, known = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=bool)
        lo, hi = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
        if not local_ns.size:
            return Mapped(cluster_ns=estimate, lo_ns=lo, hi_ns=hi, known=known)
        first_ns, last_ns = int(local_ns.min()), int(local_ns.max())
        for piece in self.pieces:
            if piece.end_ns < first_ns or piece.start_ns > last_ns:
                continue
            inside = (local_ns >= piece.start_ns) & (local_ns <= piece.end_ns)
            if not inside.any():
                continue
            mine = local_ns[inside]
            low, middle, high = (_line(piece, mine, index) for index in range(3))
            first = ~known[inside]
            estimate[inside] = np.where(first, mine - middle, estimate[inside])
            lo[inside] = np.where(first, mine - high - 1, np.minimum(lo[inside], mine - high - 1))
            hi[inside] = np.where(first, mine - low + 1, np.maximum(hi[inside], mine - low + 1))
            known |= inside
        return Mapped(cluster_ns=estimate, lo_ns=lo, hi_ns=hi, known=known)

    def offset(self, local_ns: int, *, reference: str) -> Offset:
        """The offset at an instant as the value that everything else uses."""
        found = self.offset_at(local_ns)
        if found is None:
            why = self.unknown_why or "no clock data at that instant"
            return Offset.unknown(why, reference=reference, method=self.method)
        lo, estimate, hi = found
        return Offset(
            lo_ns=lo,
            hi_ns=hi,
            estimate_ns=estimate,
            reference=reference,
            method=self.method,
            assumptions=self.assumptions,
        )

    def worst_bound_ns(self, first_ns: int, last_ns: int) -> int | None:
        """The largest distance of the estimate from either bound over a stretch; None where part of it is unknown."""
        worst, reached = 0, first_ns
        for piece in sorted(self.pieces, key=lambda piece: piece.start_ns):
            if piece.end_ns < first_ns or piece.start_ns > last_ns:
                continue
            if piece.start_ns > reached + 1:
                return None
            reached = max(reached, piece.end_ns)
            for at_ns in (max(piece.start_ns, first_ns), min(piece.end_ns, last_ns)):
                found = self.offset_at(at_ns)
                assert found is not None
                worst = max(worst, found[1] - found[0], found[2] - found[1])
        return worst if reached >= last_ns else None

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {
            "rank": self.rank,
            "host": self.host,
            "method": self.method,
            "assumptions": list(self.assumptions),
            "notes": list(self.notes),
            "unknown_why": self.unknown_why,
            "pieces": [
                [piece.start_ns, piece.end_ns, *piece.at_start, *piece.at_end, piece.marked] for piece in self.pieces
            ],
        }

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """The inverse of `to_json`. Raises DecodeError, nothing else."""
        try:
            return cls(
                rank=int(value["rank"]),
                host=str(value["host"]),
                method=str(value["method"]),
                assumptions=tuple(map(str, value["assumptions"])),
                notes=tuple(map(str, value["notes"])),
                unknown_why=str(value["unknown_why"]),
                pieces=tuple(_piece(item) for item in value["pieces"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DecodeError(f"not a rank's map: {type(error).__name__}: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """The maps of all ranks to one cluster time. reference: whose clock that is. problems: for a person to know."""

    reference: str
    method: str
    ranks: Mapping[int, RankMap]
    problems: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """A JSON object, schema 'rankclock-alignment/1'."""
        return {
            "schema": SCHEMA,
            "reference": self.reference,
            "method": self.method,
            "problems": list(self.problems),
            "ranks": [one.to_json() for one in self.ranks.values()],
        }

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """The inverse of `to_json`. Raises DecodeError, nothing else."""
        if not isinstance(value, dict) or value.get("schema") != SCHEMA:
            raise DecodeError(f"an alignment of schema {SCHEMA} is expected, found {str(value)[:80]!r}")
        try:
            maps = [RankMap.from_json(item) for item in value["ranks"]]
            return cls(
                reference=str(value["reference"]),
                method=str(value["method"]),
                problems=tuple(map(str, value["problems"])),
                ranks={one.rank: one for one in maps},
            )
        except (KeyError, TypeError) as error:
            raise DecodeError(f"not an alignment: {type(error).__name__}: {error}") from error


def _piece(item: Any) -> Piece:
    *numbers, marked = item
    start, end, lo0, est0, hi0, lo1, est1, hi1 = (int(number) for number in numbers)
    return Piece(start_ns=start, end_ns=end, at_start=(lo0, est0, hi0), at_end=(lo1, est1, hi1), marked=str(marked))


def _line(piece: Piece, local_ns: Ints, index: int) -> Ints:
    """One of the three lines of a piece at many instants, rounded to the nearest ns.

    Offsets may be years (a trace that counts from an unknown start), but change little over a piece: only the change is
    computed in doubles, where 2^53 ns are 104 days.
    """
    first, last = piece.at_start[index], piece.at_end[index]
    span = piece.end_ns - piece.start_ns
    if span == 0 or first == last:
        return np.full(local_ns.shape, first, dtype=np.int64)
    part = (local_ns - piece.start_ns).astype(np.float64) / span
    line: Ints = first + np.rint(part * (last - first)).astype(np.int64)
    return line
