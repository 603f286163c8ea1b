"""Who probes whom: everybody everybody while they are few, then a reference and random others, then by leaders.

Decides only the graph. It is connected for any number of clocks, and what each clock sends stays small: every clock
probes the reference (clock 0), its first successor (clock 1) and 4 random others; beyond 128 clocks about sqrt(n)
leaders probe the reference and its successors, and every other clock probes two leaders and 4 random others.
"""

from __future__ import annotations

from math import isqrt
from random import Random

__all__ = ["FULL_MESH_UP_TO", "SUCCESSORS", "choose_peers"]

SUCCESSORS = 3
"""Clocks 1 to 3 follow when the reference is lost: who measured it itself then measures its successor at once."""

FULL_MESH_UP_TO = 16
"""As many as a matrix on a screen has: every pair measured itself, nobody in between to be trusted."""

_LEADERS_FROM = 128
_RANDOM_PEERS = 4


def choose_peers(count: int, chance: Random) -> list[list[int]]:
    """For each clock the clocks that it probes, ascending."""
    if count <= FULL_MESH_UP_TO:
        return [[other for other in range(count) if other != clock] for clock in range(count)]
    leaders = range(1, isqrt(count) + 1) if count > _LEADERS_FROM else range(0)
    chosen = []
    for clock in range(count):
        if clock == 0:
            wanted: set[int] = set()
        elif not leaders:
            wanted = {0, 1} - {clock}
        elif clock in leaders:
            wanted = set(range(1 + SUCCESSORS)) - {clock}
        else:
            wanted = set(chance.sample(leaders, 2))
        others = [other for other in range(count) if other != clock and other not in wanted]
        chosen.append(sorted(wanted | set(chance.sample(others, _RANDOM_PEERS))))
    return chosen
