"""Reports of many nodes combined: every pair's REALTIME offset at one common instant, and who contradicts whom.

Bounds of pairs that probed each other are their own; others combine along the path of least width, and say which hosts
they trust. A contradiction (a negative cycle) proves a lie or a broken stamp: the host in most conflicts is named and
left out, and its offsets are unknown, not wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rankclock.mesh.report import NodeReport
from rankclock.timebase import Offset

__all__ = ["PairwiseOffsets", "Suspect", "pairwise"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A host, or a pair of hosts, whose measurements contradict the others' by `conflict_ns`, in `conflicts` cycles."""

    nodes: tuple[str, ...]
    conflicts: int
    conflict_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PairwiseOffsets:
    """offset(a, b) = REALTIME of a - REALTIME of b, all at the instant when `reference`'s RAW read `at_raw_ns`.

    closure_error_ns: largest disagreement of an edge's estimate with the combined estimates; None without loops.
    """

    nodes: tuple[str, ...]
    reference: str
    at_raw_ns: int | None
    offsets: Mapping[tuple[str, str], Offset]
    suspects: tuple[Suspect, ...]
    closure_error_ns: int | None

    def offset(self, local: str, reference: str) -> Offset:
        """REALTIME of `local` minus REALTIME of `reference`; a node to itself is exactly zero."""
        raise NotImplementedError

    def worst(self) -> tuple[str, str] | None:
        """The pair with the largest |offset| that is possible; a pair with an unknown offset is worse than any."""
        raise NotImplementedError

    def to_json(self) -> dict[str, Any]:
        """A JSON object, schema 'rankclock-pairwise/1'."""
        raise NotImplementedError


def pairwise(reports: Sequence[NodeReport], *, silent: Sequence[str] = ()) -> PairwiseOffsets:
    """Combine reports (in any order; the first's node is the reference). `silent`: nodes that gave no report; each of
    their pairs is unknown. All ranks that combine the same reports get the same answer."""
    raise NotImplementedError
