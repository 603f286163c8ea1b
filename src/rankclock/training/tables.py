"""What rank 0 prints: the matrix of a job's clocks, its worst pairs, the hosts of a preflight and what they break."""

from __future__ import annotations

from rich import box
from rich.table import Table
from rich.text import Text

from rankclock.timebase import Judgement, Offset, format_offset_ns, format_span_ns
from rankclock.training.measurement import Measurement
from rankclock.training.peers import FULL_MESH_UP_TO
from rankclock.training.preflight import Preflight
from rankclock.training.verify import Verification, format_offset

__all__ = ["hosts_table", "matrix_table", "verification_table", "worst_table"]

WORST_PAIRS = 10

_STYLES = {Judgement.WITHIN: "green", Judgement.BEYOND: "red", Judgement.CANNOT_TELL: "yellow"}


def verification_table(found: Verification) -> Table | None:
    """The matrix up to 16 clocks, the worst pairs beyond; nothing for one clock."""
    if found.worst is None:
        return None
    if len(found.measurement.clocks) <= FULL_MESH_UP_TO:
        return matrix_table(found.measurement, found.threshold_ns)
    return worst_table(found.measurement, found.threshold_ns)


def matrix_table(measured: Measurement, threshold_ns: int) -> Table:
    """Row minus column: positive where the row's clock is ahead. The bound stands under each offset."""
    table = Table(title="row - column (positive: the row's clock is ahead)", box=box.SIMPLE, title_justify="left")
    table.add_column("clock", no_wrap=True)
    table.add_column("ranks", no_wrap=True)
    for clock in measured.clocks:
        table.add_column(clock.name, justify="right", no_wrap=True)
    for row in measured.clocks:
        cells = []
        for column in measured.clocks:
            if row.name == column.name:
                cells.append(Text("·\n"))
                continue
            offset = measured.offsets.offset(row.name, column.name)
            cells.append(Text(_two_lines(offset), style=_STYLES[offset.judge(threshold_ns)]))
        table.add_row(row.name, _ranks(row.ranks), *cells)
    return table


def worst_table(measured: Measurement, threshold_ns: int) -> Table:
    """The pairs that may be farthest apart."""
    table = Table(title=f"the {WORST_PAIRS} pairs that may be farthest apart", box=box.SIMPLE, title_justify="left")
    for name in ("clock", "against", "offset ± bound", "verdict"):
        table.add_column(name, no_wrap=True)
    pairs = sorted(measured.offsets.offsets.items(), key=lambda item: _farthest_ns(item[1]), reverse=True)
    for (local, reference), offset in pairs[:WORST_PAIRS]:
        verdict = offset.judge(threshold_ns)
        table.add_row(local, reference, format_offset(offset), Text(verdict.value, style=_STYLES[verdict]))
    return table


def hosts_table(found: Preflight) -> Table:
    """Each host's clock, the farthest first, and what it breaks."""
    table = Table(box=box.SIMPLE)
    for name in ("host", "offset ± bound", "against", "breaks"):
        table.add_column(name, no_wrap=name != "breaks")
    by_distance = sorted(found.hosts, key=lambda host: _farthest_ns(host.offset), reverse=True)
    for host in by_distance[: FULL_MESH_UP_TO if len(by_distance) > FULL_MESH_UP_TO else None]:
        lines = [
            f"{one.tolerance.component}{'' if one.certain else ' (perhaps)'}: {one.tolerance.effect}"
            for one in host.broken
        ]
        against = "" if host.offset.reference == host.clock.name else host.offset.reference
        style = _STYLES[host.offset.judge(found.limits.warn_ns)]
        text = Text(format_offset(host.offset) if against else "the middle", style=style)
        table.add_row(host.clock.name, text, against, "\n".join(lines) or "nothing")
    return table


def _two_lines(offset: Offset) -> str:
    if offset.estimate_ns is None or offset.bound_ns is None:
        return "unknown\n"
    return f"{format_offset_ns(offset.estimate_ns)}\n±{format_span_ns(offset.bound_ns)}"


def _ranks(ranks: tuple[int, ...]) -> str:
    """'0-7' where they follow one another, '0,2,...' otherwise."""
    if len(ranks) > 1 and ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"{ranks[0]}-{ranks[-1]}"
    return ",".join(map(str, ranks[:4])) + (",…" if len(ranks) > 4 else "")


def _farthest_ns(offset: Offset) -> float:
    if offset.lo_ns is None or offset.hi_ns is None:
        return float("inf")
    return max(offset.hi_ns, -offset.lo_ns)
