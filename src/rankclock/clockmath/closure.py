"""Many pairs measured apart, put together: bounds along paths, estimates that close, and who contradicts whom.

Each edge says that the value of one node minus that of another lies in [lo, hi] (difference constraints). Bounds of any
pair follow by shortest paths: widths add along a path. A cycle of negative length proves that an edge on it lies; the
one node whose removal heals it is named and left out. Where more than one would do, it cannot be told which: the edges
among them are left out and all are named. A node that lies the same to all is not seen, and does no harm: what it tells
is its clock. Batch code: numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Closure", "Conflict", "EdgeBound", "close_mesh"]

NARROWEST_NS = 50
"""No edge weighs more than one of this width: stamps themselves are not better."""

UNBOUNDED = np.int64(1) << np.int64(60)
"""Larger than any sum of widths, and twice it still fits 64 bits."""

Matrix = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeBound:
    """value[local] - value[peer] lies in [lo_ns, hi_ns], most likely at estimate_ns; nodes are numbers from 0."""

    local: int
    peer: int
    lo_ns: int
    hi_ns: int
    estimate_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """Measurements of these nodes contradict others': one node that was left out, or several whose common edges were.

    cycles: contradictory pairs and triangles that they are in. by_ns: the largest contradiction seen.
    """

    nodes: tuple[int, ...]
    cycles: int
    by_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Closure:
    """What all edges together say of every pair.

    closure_error_ns: how far the worst edge's estimate is from the combined ones; None where no loop checks anything.
    """

    count: int
    conflicts: tuple[Conflict, ...]
    closure_error_ns: int | None
    _upper: Matrix
    _direct: Matrix
    _next: Matrix
    _estimate: tuple[int, ...]

    def bound(self, local: int, peer: int) -> tuple[int, int, int, tuple[int, ...]] | None:
        """(lo_ns, hi_ns, estimate_ns, nodes between) of value[local] - value[peer]; None where no path joins them.

        A pair that was measured itself keeps its own bound: a path through others may be narrower, but trusts them.
        """
        if local == peer:
            return 0, 0, 0, ()
        measured = self._direct[local, peer] < UNBOUNDED and self._direct[peer, local] < UNBOUNDED
        table = self._direct if measured else self._upper
        hi_ns, lo_ns = int(table[local, peer]), -int(table[peer, local])
        if max(hi_ns, -lo_ns) >= UNBOUNDED:
            return None
        guess_ns = self._estimate[local] - self._estimate[peer]
        between = () if measured else tuple(sorted(set(self._path(local, peer)) | set(self._path(peer, local))))
        return lo_ns, hi_ns, min(max(guess_ns, lo_ns), hi_ns), between

    def _path(self, start: int, end: int) -> list[int]:
        """The nodes between on the shortest path."""
        nodes = []
        here = int(self._next[start, end])
        while here != end:
            nodes.append(here)
            here = int(self._next[here, end])
        return nodes


def close_mesh(count: int, edges: Sequence[EdgeBound]) -> Closure:
    """Combine edges over `count` nodes. Edges that contradict others are left out and named."""
    kept = list(edges)
    conflicts: list[Conflict] = []
    while True:
        direct = _direct_bounds(count, kept)
        upper, following = _shortest(direct)
        if not (np.diagonal(upper) < 0).any():
            break
        conflict = _blame(direct)
        conflicts.append(conflict)
        blamed = set(conflict.nodes)
        alone = len(blamed) == 1
        kept = [
            edge
            for edge in kept
            if not (blamed & {edge.local, edge.peer} if alone else {edge.local, edge.peer} <= blamed)
        ]
    estimate, closure_error_ns = _least_squares(count, kept)
    return Closure(
        count=count,
        conflicts=tuple(conflicts),
        closure_error_ns=closure_error_ns,
        _upper=upper,
        _direct=direct,
        _next=following,
        _estimate=estimate,
    )


def _direct_bounds(count: int, edges: Sequence[EdgeBound]) -> Matrix:
    """table[i, j]: the least upper bound of value[i] - value[j] that an edge states."""
    table = np.full((count, count), UNBOUNDED, dtype=np.int64)
    np.fill_diagonal(table, 0)
    for edge in edges:
        table[edge.local, edge.peer] = min(table[edge.local, edge.peer], edge.hi_ns)
        table[edge.peer, edge.local] = min(table[edge.peer, edge.local], -edge.lo_ns)
    return table


def _shortest(direct: Matrix) -> tuple[Matrix, Matrix]:
    """Shortest paths between all pairs (Floyd, Warshall), and the next node on each."""
    count = len(direct)
    upper = direct.copy()
    following = np.tile(np.arange(count, dtype=np.int64), (count, 1))
    for middle in range(count):
        through = upper[:, middle, None] + upper[None, middle, :]
        through[(upper[:, middle, None] >= UNBOUNDED) | (upper[None, middle, :] >= UNBOUNDED)] = UNBOUNDED
        better = through < upper
        if better.any():
            upper = np.where(better, through, upper)
            following = np.where(better, following[:, middle, None], following)
        if (np.diagonal(upper) < 0).any():
            # A negative cycle: numbers only grow from here, and who is on it is known already.
            break
    return upper, following


def _blame(direct: Matrix) -> Conflict:
    """Who is responsible for a negative cycle."""
    cycles, by_ns = _contradictions(direct)
    # No pair and no triangle contradicts itself where only a longer cycle does: then it may be anyone.
    suspects = [node for node in range(len(direct)) if cycles[node]] or list(range(len(direct)))
    healing = [node for node in suspects if _heals(direct, node)]
    if not healing:
        # More than one liar: the one in most contradictions goes first, and the rest is looked at again.
        most = max(int(cycles[node]) for node in suspects)
        healing = [node for node in suspects if int(cycles[node]) == most]
    if len(healing) == 1 or not _joined(direct, healing):
        healing = healing[:1]
    by_ns = by_ns or -int(np.diagonal(_shortest(direct)[0]).min())
    return Conflict(nodes=tuple(healing), cycles=int(max(cycles[node] for node in healing)), by_ns=by_ns)


def _contradictions(direct: Matrix) -> tuple[npt.NDArray[np.int64], int]:
    """Per node the number of contradictory pairs and triangles it is in, and the largest contradiction in ns."""
    count = len(direct)
    cycles = np.zeros(count, dtype=np.int64)
    worst_ns = 0
    known = direct < UNBOUNDED
    for first in range(count):
        # around[j, k]: first -> j -> k -> first; j == k is the pair itself.
        around = direct[first, :, None] + direct + direct[None, :, first]
        negative = (around < 0) & known[first, :, None] & known & known[None, :, first]
        cycles[first] = int(negative.sum())
        if negative.any():
            worst_ns = max(worst_ns, -int(around[negative].min()))
    return cycles, worst_ns


def _heals(direct: Matrix, node: int) -> bool:
    """Whether no contradiction is left without this node."""
    rest = np.delete(np.delete(direct, node, axis=0), node, axis=1)
    return not (np.diagonal(_shortest(rest)[0]) < 0).any() if len(rest) else True


def _joined(direct: Matrix, nodes: Sequence[int]) -> bool:
    """Whether any edge runs between two of these nodes."""
    return any(direct[one, two] < UNBOUNDED for one in nodes for two in nodes if one != two)


def _least_squares(count: int, edges: Sequence[EdgeBound]) -> tuple[tuple[int, ...], int | None]:
    """Values that fit all estimates best, each edge weighed by 1 / width^2, and the largest residual."""
    base = _spanning_values(count, edges)
    if not edges:
        return tuple(base), None
    rows = np.arange(len(edges))
    local = np.array([edge.local for edge in edges])
    peer = np.array([edge.peer for edge in edges])
    # What the spanning tree leaves over is small: floats hold it exactly, RAW clocks of 10^15 ns they would not.
    rest = np.array([edge.estimate_ns - (base[edge.local] - base[edge.peer]) for edge in edges], dtype=float)
    weight = 1 / np.array([max(edge.hi_ns - edge.lo_ns, NARROWEST_NS) for edge in edges], dtype=float)
    design = np.zeros((len(edges), count))
    design[rows, local] = 1
    design[rows, peer] = -1
    solution, *_ = np.linalg.lstsq(design * weight[:, None], rest * weight, rcond=None)
    residual = np.abs(rest - design @ solution)
    loops = len(edges) > count - _components(count, edges)
    values = tuple(value + round(float(more)) for value, more in zip(base, solution, strict=True))
    return values, round(float(residual.max())) if loops else None


def _spanning_values(count: int, edges: Sequence[EdgeBound]) -> list[int]:
    """Exact values along a spanning forest of the edges; 0 at each root."""
    values: list[int | None] = [None] * count
    neighbours: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    for edge in edges:
        neighbours[edge.local].append((edge.peer, -edge.estimate_ns))
        neighbours[edge.peer].append((edge.local, edge.estimate_ns))
    for root in range(count):
        if values[root] is not None:
            continue
        values[root] = 0
        waiting = [root]
        while waiting:
            here = waiting.pop()
            for there, more_ns in neighbours[here]:
                if values[there] is None:
                    values[there] = (values[here] or 0) + more_ns
                    waiting.append(there)
    return [value or 0 for value in values]


def _components(count: int, edges: Sequence[EdgeBound]) -> int:
    root = list(range(count))

    def find(node: int) -> int:
        while root[node] != node:
            root[node] = root[root[node]]
            node = root[node]
        return node

    for edge in edges:
        root[find(edge.local)] = find(edge.peer)
    return len({find(node) for node in range(count)})
