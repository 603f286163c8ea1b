"""Whether traces on one timeline keep the order that collectives promise: nobody leaves before all have entered.

Only symmetric kinds promise it (all-reduce, all-gather, reduce-scatter, all-to-all, barrier). Stamps are intervals: an
end surely before another rank's start is a violation; what the bounds leave open is counted as such.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rankclock.errors import ExitCode
from rankclock.timebase import format_span_ns
from rankclock.traces.digest import TraceDigest
from rankclock.traces.kinds import SYMMETRIC
from rankclock.traces.matching import Matches, match
from rankclock.traces.spans import NO_END, Ints
from rankclock.traces.timemap import Alignment

__all__ = ["Order", "check_order"]

SHOWN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """How many collectives hold, are open, or are violated. worst: (what, early rank, late rank, by how much)."""

    held: int
    open: int
    violated: int
    untested: int
    worst: tuple[tuple[str, int, int, int], ...]

    @property
    def exit_code(self) -> ExitCode:
        """Violated, open, or fine; nothing tested is nothing told."""
        if self.violated:
            return ExitCode.CHECK_FAILED
        return ExitCode.CANNOT_TELL if self.open or not self.held else ExitCode.OK

    def lines(self) -> list[str]:
        """For people."""
        head = f"{self.held} collectives in order, {self.violated} violated, {self.open} cannot be told"
        found = [head + (f", {self.untested} of kinds that promise nothing" if self.untested else "")]
        for what, early, late, by_ns in self.worst:
            found.append(f"{what}: rank {early} left at least {format_span_ns(by_ns)} before rank {late} entered")
        return found

    def to_json(self) -> dict[str, Any]:
        """A JSON object, schema 'rankclock-trace-check/1'."""
        return {
            "schema": "rankclock-trace-check/1",
            "held": self.held,
            "open": self.open,
            "violated": self.violated,
            "untested": self.untested,
            "worst": [
                {"collective": what, "left": early, "entered": late, "at_least_ns": by_ns}
                for what, early, late, by_ns in self.worst
            ],
        }


def check_order(digests: Mapping[int, TraceDigest], alignment: Alignment) -> Order:
    """Test every matched collective. Spans whose cluster time is unknown leave it open."""
    matches = match(digests)
    lo_start, hi_start, lo_end, hi_end, known = _in_cluster_time(matches, alignment)
    held = still_open = untested = 0
    violated: list[tuple[str, int, int, int]] = []
    for collective, part in matches.parts():
        ranks = matches.rank[part]
        if collective.kind not in SYMMETRIC or len(ranks) < 2:
            untested += 1
            continue
        enters, waits = matches.enters[part], matches.waits[part]
        if not known[part].all() or not enters.any() or not waits.any():
            still_open += 1
            continue
        late, early = int(np.argmax(lo_start[part])), int(np.argmin(hi_end[part]))
        by_ns = int(lo_start[part][late] - hi_end[part][early])
        if by_ns > 0:
            what = f"{collective.kind.value} {collective.group} #{collective.sequence}".replace("  ", " ")
            violated.append((what, matches.ranks[int(ranks[early])], matches.ranks[int(ranks[late])], by_ns))
        elif lo_end[part].min() >= hi_start[part].max():
            held += 1
        else:
            still_open += 1
    violated.sort(key=lambda one: -one[3])
    return Order(held=held, open=still_open, violated=len(violated), untested=untested, worst=tuple(violated[:SHOWN]))


def _in_cluster_time(
    matches: Matches, alignment: Alignment
) -> tuple[Ints, Ints, Ints, Ints, np.ndarray[Any, np.dtype[np.bool_]]]:
    """Of every entry: bounds of its start and of its end in cluster time, and whether both are known."""
    size = len(matches.rank)
    lo_start, hi_start, lo_end, hi_end = (np.zeros(size, dtype=np.int64) for _ in range(4))
    known = np.zeros(size, dtype=bool)
    for place, rank in enumerate(matches.ranks):
        mine = matches.rank == place
        if not alignment.ranks[rank].known or not mine.any():
            continue
        slack = matches.slack_ns[mine]
        ended = matches.end_ns[mine] != NO_END
        ends = np.where(ended, matches.end_ns[mine], matches.start_ns[mine])
        start, end = alignment.ranks[rank].to_cluster(matches.start_ns[mine]), alignment.ranks[rank].to_cluster(ends)
        lo_start[mine], hi_start[mine] = start.lo_ns - slack, start.hi_ns + slack
        lo_end[mine], hi_end[mine] = end.lo_ns - slack, end.hi_ns + slack
        known[mine] = start.known & end.known & ended
    return lo_start, hi_start, lo_end, hi_end, known
