"""Clocks of a Perfetto trace: from any of them to CLOCK_REALTIME by the trace's snapshots.

As Perfetto's trace processor does it: along the shortest path of clocks that were read together, on each by the last
snapshot before the stamp (the first, where there is none before), without a slope. Refuses to guess: None where no
path leads there.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

__all__ = ["BOOTTIME", "RANK_CLOCK", "REALTIME", "Clock", "SnapshotClocks"]

REALTIME, BOOTTIME = 1, 6
RANK_CLOCK = 64
"""Clocks 64 to 127 are a packet sequence's own: each rank's events are one sequence."""

Clock = tuple[int, int]
"""(clock id, sequence whose own it is; 0 for those that all share)."""


@dataclass(slots=True)
class SnapshotClocks:
    """Takes snapshots; then turns stamps."""

    _pairs: dict[tuple[Clock, Clock], list[tuple[int, int]]] = field(default_factory=dict)
    _paths: dict[Clock, tuple[Clock, ...] | None] = field(default_factory=dict)

    @staticmethod
    def clock(number: int, sequence: int) -> Clock:
        """A clock as a packet of a sequence means it."""
        return number, sequence if RANK_CLOCK <= number < 128 else 0

    def take(self, readings: Mapping[Clock, int]) -> None:
        """Clocks read at one instant, in ns."""
        self._paths.clear()
        for one, at_one in readings.items():
            for other, at_other in readings.items():
                if one != other:
                    insort(self._pairs.setdefault((one, other), []), (at_one, at_other))

    def realtime_ns(self, clock: Clock, stamp_ns: int) -> int | None:
        """What CLOCK_REALTIME read when the clock read `stamp_ns`."""
        if clock not in self._paths:
            self._paths[clock] = self._path(clock)
        path = self._paths[clock]
        if path is None:
            return None
        for one, other in pairwise(path):
            pairs = self._pairs[one, other]
            at_one, at_other = pairs[max(bisect_right(pairs, (stamp_ns, 1 << 64)) - 1, 0)]
            stamp_ns += at_other - at_one
        return stamp_ns

    def _path(self, clock: Clock) -> tuple[Clock, ...] | None:
        reached: list[tuple[Clock, ...]] = [(clock,)]
        seen = {clock}
        for path in reached:
            if path[-1] == (REALTIME, 0):
                return path
            for one, other in self._pairs:
                if one == path[-1] and other not in seen:
                    seen.add(other)
                    reached.append((*path, other))
        return None
