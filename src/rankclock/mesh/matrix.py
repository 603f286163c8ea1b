"""Reports of many nodes combined: every pair's REALTIME offset at one common instant, and who contradicts whom.

Bounds of pairs that probed each other are their own; others combine along the path of least width, and say which hosts
they trust. A contradiction (a negative cycle) proves a lie or a broken stamp: the host in most conflicts is named and
left out, and its offsets are unknown, not wrong. Two nodes count as one clock where they claim the same identity *and*
their readings agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rankclock.clockmath.closure import Closure, EdgeBound, close_mesh
from rankclock.clockmath.exchange import Stamp
from rankclock.clockmath.realtime import Lead, Reading, RealtimeTrack
from rankclock.mesh.report import EdgeReport, NodeReport
from rankclock.timebase import Offset

__all__ = ["PairwiseOffsets", "Suspect", "pairwise"]

SCHEMA = "rankclock-pairwise/1"
METHOD = "two-way probes, combined at one instant"
SAME_CLOCK = "both read the same clock"
NS_PER_S = 1_000_000_000

TRIED = 40
TRIED_APART_NS = 47_000_000
"""Common instants that are tried: forty in two seconds, not in step with readings every 20 or 100 ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A host, or hosts among themselves, whose measurements contradict others' by `conflict_ns`, in `conflicts` cycles
    of two or three hosts."""

    nodes: tuple[str, ...]
    conflicts: int
    conflict_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PairwiseOffsets:
    """offset(a, b) = REALTIME of a - REALTIME of b, all at one instant.

    raw_ns: what each node's RAW read at that instant, None where that is not known. offsets: of pairs in the order of
    `nodes`. closure_error_ns: how far the worst edge's estimate is from the combined
    ones; None where no loop checks anything.
    """

    nodes: tuple[str, ...]
    reference: str
    raw_ns: Mapping[str, int | None]
    offsets: Mapping[tuple[str, str], Offset]
    suspects: tuple[Suspect, ...]
    closure_error_ns: int | None

    def offset(self, local: str, reference: str) -> Offset:
        """REALTIME of `local` minus REALTIME of `reference`. Raises KeyError for a node that is not in `nodes`."""
        if (local, reference) in self.offsets:
            return self.offsets[local, reference]
        mirrored = self.offsets[reference, local].reversed(reference=reference)
        return replace(mirrored, at_raw_ns=self.raw_ns[local]) if mirrored.known else mirrored

    @property
    def at_raw_ns(self) -> int | None:
        """The common instant on the reference's RAW."""
        return self.raw_ns[self.reference]

    def worst(self) -> tuple[str, str] | None:
        """The pair with the largest |offset| that is possible; a pair with an unknown offset is worse than any."""
        return max(self.offsets, key=lambda pair: _badness(self.offsets[pair]), default=None)

    def to_json(self) -> dict[str, Any]:
        """A JSON object, schema 'rankclock-pairwise/1'."""
        return {
            "schema": SCHEMA,
            "nodes": list(self.nodes),
            "reference": self.reference,
            "raw_ns": dict(self.raw_ns),
            "offsets": [
                {"local": local, "reference": reference, "offset": offset.to_json()}
                for (local, reference), offset in self.offsets.items()
            ],
            "suspects": [
                {"nodes": list(one.nodes), "conflicts": one.conflicts, "conflict_ns": one.conflict_ns}
                for one in self.suspects
            ],
            "closure_error_ns": self.closure_error_ns,
        }


def pairwise(reports: Sequence[NodeReport], *, silent: Sequence[str] = ()) -> PairwiseOffsets:
    """Combine reports; the first's node is the reference. `silent`: nodes that gave no report: their pairs are unknown.

    All ranks that combine the same reports in the same order get the same answer. Raises ValueError where a node
    reports twice or none does.
    """
    names = [report.node for report in reports]
    if not names or len(set(names)) != len(names):
        raise ValueError(f"one report a node is expected, found {names}")
    return _Combination(reports).result(tuple(silent))


class _Combination:
    """The steps from reports to offsets, over node numbers."""

    def __init__(self, reports: Sequence[NodeReport]) -> None:
        self._reports = reports
        self._number = {report.node: number for number, report in enumerate(reports)}
        self._tracks = [RealtimeTrack(report.readings) for report in reports]
        self._same = [self._first_of_same_clock(number) for number in range(len(reports))]
        self._raw = self._follow(reports[0].made_at_raw_ns)
        rough = close_mesh(len(reports), self._edges([0] * len(reports)))
        self._doubt = [_doubt(rough, number) for number in range(len(reports))]
        self._raw = self._best_instant()
        self._closure = close_mesh(len(reports), self._edges(self._doubt))
        self._leads = [self._lead(number, at_ns) for number, at_ns in enumerate(self._raw)]

    def result(self, silent: tuple[str, ...]) -> PairwiseOffsets:
        """All pairs."""
        nodes = tuple(report.node for report in self._reports) + tuple(
            name for name in silent if name not in self._number
        )
        offsets = {
            (local, peer): self._offset(local, peer) for index, local in enumerate(nodes) for peer in nodes[index + 1 :]
        }
        suspects = tuple(
            Suspect(
                nodes=tuple(self._reports[number].node for number in conflict.nodes),
                conflicts=conflict.cycles,
                conflict_ns=conflict.by_ns,
            )
            for conflict in self._closure.conflicts
        )
        return PairwiseOffsets(
            nodes=nodes,
            reference=self._reports[0].node,
            raw_ns={**dict.fromkeys(silent), **dict(zip(self._number, self._raw, strict=True))},
            offsets=offsets,
            suspects=suspects,
            closure_error_ns=self._closure.closure_error_ns,
        )

    def _first_of_same_clock(self, number: int) -> int:
        """The lowest-numbered node with the same clock: same identity, and a REALTIME that leads RAW by the same."""
        mine = self._reports[number]
        for other in range(number):
            if self._reports[other].clock_id == mine.clock_id and _agree(self._tracks[other], mine.readings):
                return other
        return number

    # ---- one instant on all RAW clocks ----

    def _best_instant(self) -> list[int | None]:
        """What each node's RAW reads at the common instant; None where no path of measurements leads there.

        The instant: of those in the last seconds before the first node ended its readings, the one at which readings
        and probes together bound best: just after a burst a bound is twice as narrow as just before the next.
        """
        back_ns = 0
        for raw_ns, doubt_ns, report in zip(self._raw, self._doubt, self._reports, strict=True):
            if raw_ns is not None and report.readings:
                back_ns = max(back_ns, raw_ns - report.readings[-1].raw_before_ns + 2 * doubt_ns + 1)
        end_ns = self._reports[0].made_at_raw_ns - back_ns
        tried = [self._follow(end_ns - step * TRIED_APART_NS) for step in range(TRIED)]
        return min(tried, key=self._badness)

    def _badness(self, raw: list[int | None]) -> tuple[int, int]:
        """(nodes without a lead, sum of the widths of all leads and edges) were this the common instant."""
        leads = [self._lead(number, at_ns) for number, at_ns in enumerate(raw) if at_ns is not None]
        width_ns = sum(lead.hi_ns - lead.lo_ns for lead in leads if lead is not None)
        for at_ns, report in zip(raw, self._reports, strict=True):
            for edge in report.edges:
                if edge.raw is not None and at_ns is not None:
                    lo_ns, hi_ns = edge.raw.offset_at(at_ns)
                    width_ns += hi_ns - lo_ns
        return leads.count(None), width_ns

    def _follow(self, raw_ns: int) -> list[int | None]:
        """Each node's RAW when the reference's read raw_ns, along estimates, quickest exchanges first."""
        raw: list[int | None] = [None] * len(self._reports)
        raw[0] = raw_ns
        waiting = [0]
        while waiting:
            here = waiting.pop(0)
            at_ns = raw[here]
            assert at_ns is not None
            for there, local_is_here, edge in self._neighbours(here):
                if raw[there] is None:
                    raw[there] = at_ns - _likely(edge, at_ns) if local_is_here else _ahead(edge, at_ns)
                    waiting.append(there)
        return raw

    def _neighbours(self, here: int) -> list[tuple[int, bool, EdgeReport | None]]:
        """(node, whether `here` is the edge's local end, edge), narrowest first; None: it is the same clock."""
        found: list[tuple[int, bool, EdgeReport | None]] = [
            (number, True, None)
            for number in range(len(self._reports))
            if number != here and self._same[number] == self._same[here]
        ]
        measured: list[tuple[int, bool, EdgeReport]] = []
        for number, report in enumerate(self._reports):
            for edge in report.edges:
                peer = self._number.get(edge.peer)
                if edge.raw is None or peer is None or here not in (number, peer):
                    continue
                measured.append((peer if number == here else number, number == here, edge))
        return found + sorted(measured, key=lambda item: _width_ns(item[2]))

    # ---- bounds ----

    def _edges(self, doubt: Sequence[int]) -> list[EdgeBound]:
        """Each measured edge at the common instant, widened by how far that instant is in doubt on its local clock."""
        edges = []
        for number, report in enumerate(self._reports):
            for edge in report.edges:
                peer, at_ns = self._number.get(edge.peer), self._raw[number]
                if edge.raw is None or peer is None or peer == number or at_ns is None:
                    continue
                lo_ns, hi_ns = edge.raw.offset_at(at_ns)
                fastest_ppb = max(abs(rate) for rate in edge.raw.rate_ppb())
                strayed_ns = round(fastest_ppb * doubt[number] / NS_PER_S + 0.5)
                edges.append(
                    EdgeBound(
                        local=number,
                        peer=peer,
                        lo_ns=lo_ns - strayed_ns,
                        hi_ns=hi_ns + strayed_ns,
                        estimate_ns=min(max(_likely(edge, at_ns), lo_ns), hi_ns),
                    )
                )
        for number, first in enumerate(self._same):
            if first != number:
                edges.append(EdgeBound(local=number, peer=first, lo_ns=0, hi_ns=0, estimate_ns=0))
        return edges

    def _lead(self, number: int, at_ns: int | None) -> Lead | None:
        """REALTIME - RAW of a node when its RAW reads at_ns, give or take the doubt of the common instant there."""
        if at_ns is None:
            return None
        doubt_ns = 2 * self._doubt[number]
        return self._tracks[number].lead(Stamp.between(at_ns - doubt_ns, at_ns + doubt_ns))

    def _offset(self, local: str, peer: str) -> Offset:
        for name in (local, peer):
            if name not in self._number:
                return Offset.unknown(f"{name} gave no report", reference=peer, method=METHOD)
        one, two = self._number[local], self._number[peer]
        at_ns = self._raw[one]
        if self._same[one] == self._same[two]:
            return Offset(lo_ns=0, hi_ns=0, estimate_ns=0, reference=peer, method=SAME_CLOCK, at_raw_ns=at_ns)
        bound = self._closure.bound(one, two)
        if bound is None or at_ns is None:
            return Offset.unknown(self._why_unknown(one, two), reference=peer, method=METHOD)
        own, other = self._leads[one], self._leads[two]
        if own is None or other is None:
            name = local if own is None else peer
            why = f"{name} did not read its clocks around the common instant"
            return Offset.unknown(why, reference=peer, method=METHOD)
        lo_ns = own.lo_ns - other.hi_ns + bound[0]
        hi_ns = own.hi_ns - other.lo_ns + bound[1]
        estimate_ns = own.estimate_ns - other.estimate_ns + bound[2]
        between = ", ".join(self._reports[number].node for number in bound[3])
        trust = (f"these hosts, which lie between, tell the truth: {between}",) if between else ()
        return Offset(
            lo_ns=lo_ns,
            hi_ns=hi_ns,
            estimate_ns=min(max(estimate_ns, lo_ns), hi_ns),
            reference=peer,
            method=METHOD + (f", over {between}" if between else ""),
            assumptions=self._assumptions(one, two) + trust,
            at_raw_ns=at_ns,
            age_ns=max(self._reports[one].made_at_raw_ns - at_ns, 0),
        )

    def _assumptions(self, one: int, two: int) -> tuple[str, ...]:
        """Those of the edges that either end measured itself."""
        edges = [edge for number in (one, two) for edge in self._reports[number].edges if edge.offset.known]
        return edges[0].offset.assumptions if edges else ()

    def _why_unknown(self, one: int, two: int) -> str:
        for conflict in self._closure.conflicts:
            blamed = {one, two} & set(conflict.nodes)
            if blamed and (len(conflict.nodes) == 1 or len(blamed) == 2):
                names = " and ".join(self._reports[number].node for number in conflict.nodes)
                return f"measurements of {names} contradict one another by {conflict.by_ns} ns"
        reasons = [
            edge.offset.unknown_why
            for here, there in ((one, two), (two, one))
            for edge in self._reports[here].edges
            if edge.peer == self._reports[there].node and edge.offset.unknown_why
        ]
        return reasons[0] if reasons else "no path of measurements joins them"


def _agree(track: RealtimeTrack, readings: Sequence[Reading]) -> bool:
    """Whether another process that claims this clock read the same REALTIME at the same RAW, wherever both read."""
    compared = 0
    for reading in readings:
        lead = track.lead(Stamp.between(reading.raw_before_ns, reading.raw_after_ns))
        if lead is None:
            continue
        compared += 1
        if reading.lead_lo_ns > lead.hi_ns or reading.lead_hi_ns < lead.lo_ns:
            return False
    return compared > 0


def _likely(edge: EdgeReport | None, at_ns: int) -> int:
    """local - peer of an edge's RAW clocks when local's read at_ns."""
    if edge is None or edge.raw is None or edge.raw_estimate_ns is None:
        return 0
    return edge.raw_estimate_ns + round((edge.raw_rate_ppb or 0.0) * (at_ns - edge.raw.at_ns) / NS_PER_S)


def _ahead(edge: EdgeReport | None, peer_raw_ns: int) -> int:
    """What the edge's local RAW reads when its peer's reads peer_raw_ns."""
    local_ns = peer_raw_ns + _likely(edge, edge.raw.at_ns if edge is not None and edge.raw is not None else 0)
    return peer_raw_ns + _likely(edge, local_ns)


def _width_ns(edge: EdgeReport) -> int:
    if edge.raw is None:
        return 0
    lo_ns, hi_ns = edge.raw.offset_at(edge.raw.at_ns)
    return hi_ns - lo_ns


def _doubt(closure: Closure, number: int) -> int:
    """How far the common instant may be from where a node's RAW is thought to be then."""
    bound = closure.bound(number, 0)
    return 0 if bound is None else bound[1] - bound[0]


def _badness(offset: Offset) -> tuple[int, int]:
    if offset.lo_ns is None or offset.hi_ns is None:
        return 1, 0
    return 0, max(-offset.lo_ns, offset.hi_ns)
