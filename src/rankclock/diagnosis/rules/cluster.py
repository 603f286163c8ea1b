"""What several nodes or ranks show together: whom they follow, and what their rank clocks recorded during the job."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations, pairwise

from rankclock.clockmath.history import ClockHistory
from rankclock.diagnosis.evidence import Evidence, Item
from rankclock.diagnosis.finding import Draft, Rule, Severity, draft
from rankclock.timebase import NS_PER_MS, ClockState, Offset, SyncState, format_offset_ns, format_span_ns
from rankclock.timebase.clock_record import ClockEvent, ClockRecord

__all__ = ["RULES"]

APART_NS = NS_PER_MS
"""Between ranks: the default threshold of `rankclock verify`."""

PTP_OWNERS = ("phc2sys", "ptp4l")


def _grandmasters(evidence: Evidence) -> Iterator[Draft]:
    followers: dict[str, list[Item[ClockState]]] = defaultdict(list)
    for item in evidence.all(ClockState):
        state = item.value
        if state.owner in PTP_OWNERS and state.source and state.state is SyncState.SYNCHRONISED:
            followers[state.source].append(item)
    if len(followers) < 2:
        return
    groups = [f"{source} ({_names([one.value.node for one in items])})" for source, items in followers.items()]
    yield draft(
        Severity.FAULT,
        0.85,
        f"the nodes follow {len(followers)} grandmasters: {'; '.join(groups)}. Each group keeps its own time.",
        [items[0] for items in followers.values()],
        values={"grandmasters": len(followers), "nodes": sum(len(items) for items in followers.values())},
        next=("pmc -u -b 1 'GET PARENT_DATA_SET' on one node of each group", "compare domain, transport and network"),
        confirm="all nodes name one grandmaster",
    )


def _some_are_out(evidence: Evidence) -> Iterator[Draft]:
    """Most nodes are well and some are not: named together, apart from what each one's own findings say."""
    states = evidence.all(ClockState)
    well = [item for item in states if item.value.state is SyncState.SYNCHRONISED]
    out = [item for item in states if item.value.state in (SyncState.UNSYNCHRONISED, SyncState.FREE_RUNNING)]
    if len(states) < 3 or not out or len(well) < len(out):
        return
    reasons = out[0].value.reasons
    yield draft(
        Severity.FAULT,
        0.8,
        f"{len(out)} of {len(states)} nodes are not synchronised while {len(well)} are: "
        f"{_names([item.value.node for item in out])}" + (f" ({reasons[0]})" if reasons else "") + ".",
        out[:4],
        values={"nodes": len(states), "unsynchronised": len(out)},
        next=(f"rankclock doctor on {out[0].value.node}",),
        confirm="rankclock status: all synchronised",
    )


def _stepped(evidence: Evidence) -> Iterator[Draft]:
    for item in evidence.all(ClockRecord):
        record = item.value
        for before, after in pairwise(record.lines):
            if after.event is not ClockEvent.STEP:
                continue
            by_ns = None
            if before.est_ns is not None and after.est_ns is not None:
                by_ns = after.est_ns - before.est_ns
            rank = record.header.rank
            size = "by an unknown amount" if by_ns is None else f"by {format_offset_ns(by_ns)}"
            yield draft(
                Severity.FAULT,
                0.95,
                f"CLOCK_REALTIME of rank {rank} ({record.header.host}) was stepped {size} while the job ran: stamps "
                "of its logs and traces from before and after do not fit together.",
                [item],
                values={"rank": rank, "host": record.header.host, "step_ns": by_ns, "at_real_ns": after.real_ns},
                next=(
                    f"journalctl on {record.header.host} of the time daemon about then",
                    "rankclock logs merge and rankclock trace align take the step out",
                ),
                confirm="the daemon's log names the step",
            )


def _apart(evidence: Evidence) -> Iterator[Draft]:
    jobs: dict[str, list[Item[ClockRecord]]] = defaultdict(list)
    for item in evidence.all(ClockRecord):
        if item.value.header.rank is not None and any(line.known for line in item.value.lines):
            jobs[item.value.header.job].append(item)
    for items in jobs.values():
        at_ns = min(max(line.real_ns for line in item.value.lines if line.known) for item in items)
        offsets = [(item, _offset(item.value, at_ns)) for item in items]
        known = [(item, offset) for item, offset in offsets if offset.known]
        if len(known) >= 2:
            yield _pair(known)


def _offset(record: ClockRecord, at_ns: int) -> Offset:
    """The rank's offset from cluster time at the last line that is not later than `at_ns`, or at its first."""
    lines = [line for line in record.lines if line.known]
    near = [line for line in lines if line.real_ns <= at_ns] or lines[:1]
    return ClockHistory.of(record).offset_at_real(near[-1].real_ns)


def _pair(known: list[tuple[Item[ClockRecord], Offset]]) -> Draft:
    """The pair that is farthest apart, and what can be said of it."""

    one, two = max(combinations(known, 2), key=lambda pair: abs(_apart_ns(pair[0][1], pair[1][1])[1]))
    lo_ns, estimate_ns, hi_ns = _apart_ns(one[1], two[1])
    bound_ns = max(hi_ns - estimate_ns, estimate_ns - lo_ns)
    ranks = one[0].value.header.rank, two[0].value.header.rank
    what = f"rank {ranks[0]} is {format_offset_ns(estimate_ns)} ± {format_span_ns(bound_ns)} from rank {ranks[1]}"
    values = {"ranks": list(ranks), "offset_ns": estimate_ns, "bound_ns": bound_ns, "records": len(known)}
    if lo_ns > APART_NS or hi_ns < -APART_NS:
        return draft(
            Severity.FAULT if abs(estimate_ns) > 1_000 * NS_PER_MS else Severity.DEGRADED,
            0.95,
            f"{what} by their rank clocks: stamps of their logs and traces cannot be compared as they are.",
            [one[0], two[0]],
            values=values,
            next=("rankclock logs merge; rankclock trace align", "chronyc tracking on both hosts"),
            confirm="rankclock verify",
        )
    if max(abs(lo_ns), abs(hi_ns)) <= APART_NS:
        return draft(
            Severity.HEALTHY,
            0.9,
            f"all {len(known)} ranks are within 1 ms of each other by their rank clocks; at most {what}.",
            [one[0], two[0]],
            values=values,
        )
    return draft(
        Severity.UNKNOWN,
        0.6,
        f"{what} by their rank clocks: whether that is more than 1 ms cannot be told.",
        [one[0], two[0]],
        values=values,
        next=("rankclock verify",),
    )


def _apart_ns(one: Offset, two: Offset) -> tuple[int, int, int]:
    """(lo, estimate, hi) of the one clock against the other, from their offsets to the same time."""
    bounds = one.lo_ns, one.hi_ns, one.estimate_ns, two.lo_ns, two.hi_ns, two.estimate_ns
    lo, hi, estimate, other_lo, other_hi, other_estimate = (0 if value is None else value for value in bounds)
    return lo - other_hi, estimate - other_estimate, hi - other_lo


def _names(nodes: list[str]) -> str:
    shown = ", ".join(sorted(nodes)[:6])
    return shown if len(nodes) <= 6 else f"{shown} and {len(nodes) - 6} more"


RULES = (
    Rule(
        id="SEVERAL_GRANDMASTERS_FOLLOWED",
        title="Nodes follow different grandmasters",
        needs="clock states of several nodes (rankclock status --json, rankclock doctor --cluster)",
        check=_grandmasters,
        reference="docs/how-to/doctor.md",
    ),
    Rule(
        id="SOME_NODES_OUT",
        title="Some nodes are not synchronised while the others are",
        needs="clock states of at least three nodes",
        check=_some_are_out,
        reference="docs/how-to/doctor.md",
    ),
    Rule(
        id="STEPPED_IN_JOB",
        title="A rank's clock was stepped while the job ran",
        needs="the job's clock records (rankclock-clock*.jsonl)",
        check=_stepped,
        arithmetic="offset after - offset before",
        reference="docs/how-to/rank-clock.md",
    ),
    Rule(
        id="RANKS_APART",
        title="How far ranks' clocks are apart",
        needs="clock records of at least two ranks of a job",
        check=_apart,
        arithmetic="offset of one rank - offset of the other, bounds added",
        reference="docs/how-to/rank-clock.md",
    ),
)
