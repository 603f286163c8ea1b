"""How far apart the ranks' clocks are when training starts, from what every rank's clock says of itself. Pure.

Each rank gives its own offset from cluster time. Two ranks differ by the difference of their offsets; the verdict is
that of the worst pair: within, beyond, or cannot be told.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rankclock.errors import ExitCode, RankclockError
from rankclock.timebase import Judgement, Offset, format_offset_ns, format_span_ns

__all__ = ["ClocksApart", "StartVerdict", "compare_at_start"]


class ClocksApart(RankclockError):
    """Two ranks' clocks are farther apart than was allowed, and the user asked to stop then."""

    exit_code = ExitCode.CHECK_FAILED


@dataclass(frozen=True, slots=True, kw_only=True)
class StartVerdict:
    """judgement of the worst pair; line: one sentence for the log, the same on all ranks."""

    judgement: Judgement
    line: str


def compare_at_start(offsets: Mapping[int, Offset | None], threshold_ns: int) -> StartVerdict:
    """The verdict over all ranks' offsets from cluster time; None where a rank's clock was unknown."""
    limit = format_span_ns(threshold_ns)
    bounds = {
        rank: (one.lo_ns, one.hi_ns, one.estimate_ns)
        for rank, one in offsets.items()
        if one is not None and one.lo_ns is not None and one.hi_ns is not None and one.estimate_ns is not None
    }
    unknown = sorted(set(offsets) - set(bounds))
    ranks = f"{len(offsets)} ranks"
    if len(bounds) >= 2:
        ahead = max(bounds, key=lambda rank: bounds[rank][2])
        behind = min(bounds, key=lambda rank: bounds[rank][2])
        estimate_ns = bounds[ahead][2] - bounds[behind][2]
        lo_ns, hi_ns = bounds[ahead][0] - bounds[behind][1], bounds[ahead][1] - bounds[behind][0]
        pair = f"rank {ahead} is {format_offset_ns(estimate_ns)} from rank {behind}"
        pair += f" (±{format_span_ns(max(hi_ns - estimate_ns, estimate_ns - lo_ns))})"
        if max(one[0] for one in bounds.values()) - min(one[1] for one in bounds.values()) > threshold_ns:
            return StartVerdict(judgement=Judgement.BEYOND, line=f"clocks BEYOND {limit}: {pair}, of {ranks}")
        if (
            not unknown
            and max(one[1] for one in bounds.values()) - min(one[0] for one in bounds.values()) <= threshold_ns
        ):
            return StartVerdict(judgement=Judgement.WITHIN, line=f"clocks within {limit}: at most {pair}, of {ranks}")
    elif len(offsets) == 1 and not unknown:
        return StartVerdict(judgement=Judgement.WITHIN, line="one rank: its clock agrees with itself")
    why = f"ranks {', '.join(map(str, unknown[:8]))} unknown" if unknown else f"{pair} is no answer"
    return StartVerdict(judgement=Judgement.CANNOT_TELL, line=f"clocks CANNOT BE TOLD at {limit}: {why}, of {ranks}")
