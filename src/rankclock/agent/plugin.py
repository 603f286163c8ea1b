"""The judgement of `rankclock check`, as monitoring plugins give it: a word, an exit code, performance data. Pure.

|offset| is judged with its bound and with three values: critical only where the whole interval is beyond the limit,
fine only where all of it is within. What cannot be told is UNKNOWN, which is what that code is for.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from rankclock.timebase import ClockState, Judgement, Offset, SyncState, format_offset_ns, format_span_ns

__all__ = ["Level", "Verdict", "judge"]

MAX_READ_AGE_NS = 120 * 1_000_000_000


class Level(IntEnum):
    """The exit codes of monitoring plugins."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


_WORST = (Level.CRITICAL, Level.UNKNOWN, Level.WARNING, Level.OK)
"""What is certainly wrong comes before what is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The answer. line: what a plugin prints, without the performance data."""

    level: Level
    line: str
    performance: str


def judge(
    state: ClockState,
    *,
    critical_ns: int,
    claimed_critical_ns: int | None = None,
    warning_ns: int | None = None,
    sources: tuple[int, int] | None = None,
    read_age_ns: int | None = None,
) -> Verdict:
    """critical_ns: of what was measured, and of the claim where that has no limit of its own. sources: (usable,
    wanted), None where not known. read_age_ns: how old an agent's own reading is.
    """
    limits_ns = {"claimed": claimed_critical_ns or critical_ns, "measured": critical_ns}
    found = [_of_state(state)]
    if read_age_ns is not None and read_age_ns > MAX_READ_AGE_NS:
        found.append((Level.UNKNOWN, f"the agent looked {format_span_ns(read_age_ns)} ago"))
    for name, offset in (("claimed", state.claimed), ("measured", state.measured)):
        if offset.known:
            found.append(_of_offset(name, offset, limits_ns[name], warning_ns))
    if not state.claimed.known and not state.measured.known:
        found.append((Level.UNKNOWN, f"offset unknown: {state.claimed.unknown_why}"))
    if sources is not None and sources[0] < sources[1]:
        found.append((Level.WARNING, f"{sources[0]} usable sources, {sources[1]} wanted"))
    level = next(each for each in _WORST if any(one is each for one, _ in found))
    said = "; ".join(text for _, text in found)
    return Verdict(
        level=level,
        line=f"CLOCK {level.name} - {state.node}: {said}",
        performance=_performance(state, limits_ns, warning_ns),
    )


def _of_state(state: ClockState) -> tuple[Level, str]:
    level = {
        SyncState.SYNCHRONISED: Level.OK,
        SyncState.HOLDOVER: Level.WARNING,
        SyncState.UNKNOWN: Level.UNKNOWN,
    }.get(state.state, Level.CRITICAL)
    who = f" by {state.owner}" if state.owner else ""
    why = "" if level is Level.OK or not state.reasons else f" ({state.reasons[0]})"
    return level, f"{state.state.value}{who}{why}"


def _of_offset(name: str, offset: Offset, critical_ns: int, warning_ns: int | None) -> tuple[Level, str]:
    assert offset.estimate_ns is not None
    text = f"{name} {format_offset_ns(offset.estimate_ns)} ± {format_span_ns(offset.bound_ns or 0)}"
    limit = f"limit {format_span_ns(critical_ns)}"
    match offset.judge(critical_ns):
        case Judgement.BEYOND:
            return Level.CRITICAL, f"{text}, certainly beyond the {limit}"
        case Judgement.CANNOT_TELL:
            return Level.UNKNOWN, f"{text}: whether it is within the {limit} cannot be told"
    if warning_ns is not None and offset.judge(warning_ns) is not Judgement.WITHIN:
        return Level.WARNING, f"{text}, not certainly within {format_span_ns(warning_ns)}"
    return Level.OK, f"{text}, {limit}"


def _performance(state: ClockState, limits_ns: dict[str, int], warning_ns: int | None) -> str:
    """'label'=value[unit];warn;crit as the plugin guidelines have it; the range -x:x alerts outside it."""
    warning = "" if warning_ns is None else f"{-warning_ns / 1e9:g}:{warning_ns / 1e9:g}"
    parts = []
    for name, offset in (("claimed", state.claimed), ("measured", state.measured)):
        if offset.estimate_ns is None or offset.lo_ns is None or offset.hi_ns is None:
            continue
        critical = f"{-limits_ns[name] / 1e9:g}:{limits_ns[name] / 1e9:g}"
        parts.append(f"{name}_offset={offset.estimate_ns / 1e9:.9f}s;{warning};{critical}")
        parts.append(f"{name}_lower={offset.lo_ns / 1e9:.9f}s")
        parts.append(f"{name}_upper={offset.hi_ns / 1e9:.9f}s")
        parts.append(f"{name}_age={offset.age_ns / 1e9:.3f}s")
    return " ".join(parts)
