"""May a job start on these hosts? Judges the offsets between their clocks before torchrun's rendezvous can be split.

Refuses from 10 s on (torchrun's c10d rendezvous counts a node dead whose clock is 10 to 15 s behind, and starts without
it), fails from 1 s on (TensorBoard drops what a host behind writes), warns from 10 ms on. Names for each host what its
clock breaks. It needs not know which host is right: hosts are compared with the clock in the middle, and it says
whether a majority stands behind that clock. UTC is another matter: all may be wrong together.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from rankclock.diagnosis.tolerances import Broken, broken_by
from rankclock.errors import ExitCode
from rankclock.timebase import NS_PER_MS, NS_PER_S, Judgement, Offset
from rankclock.training.measurement import JobClock, Measurement
from rankclock.training.verify import describe_pair, format_limit

__all__ = ["HostFinding", "Level", "Limits", "Preflight", "judge_start"]

SCHEMA = "rankclock-preflight/1"


class Level(StrEnum):
    """The answer, from good to bad; `cannot be told` stands between a warning and an error."""

    FINE = "fine"
    WARN = "warn"
    CANNOT_TELL = "cannot be told"
    ERROR = "error"
    REFUSE = "refused"


EXIT_CODES = {
    Level.FINE: ExitCode.OK,
    Level.WARN: ExitCode.OK,
    Level.CANNOT_TELL: ExitCode.CANNOT_TELL,
    Level.ERROR: ExitCode.CHECK_FAILED,
    Level.REFUSE: ExitCode.CHECK_FAILED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How far two hosts may be apart."""

    refuse_ns: int = 10 * NS_PER_S
    error_ns: int = NS_PER_S
    warn_ns: int = 10 * NS_PER_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFinding:
    """One clock against the one it was compared with (`offset.reference`). odd: it is certainly beyond the error limit
    of it, and a majority is not."""

    clock: JobClock
    offset: Offset
    broken: tuple[Broken, ...]
    odd: bool

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {
            **self.clock.to_json(),
            "offset": self.offset.to_json(),
            "odd": self.odd,
            "breaks": [{**one.tolerance.to_json(), "certain": one.certain} for one in self.broken],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
    """The answer for all hosts. middle: the clock in the middle. majority: how many clocks certainly are within the
    error limit of it (itself too), where they are more than half; 0 where there is no majority."""

    measurement: Measurement
    limits: Limits
    level: Level
    middle: str
    majority: int
    worst: tuple[str, str] | None
    hosts: tuple[HostFinding, ...]
    notes: tuple[str, ...] = field(default=())

    @property
    def exit_code(self) -> ExitCode:
        """What every host exits with."""
        return EXIT_CODES[self.level]

    @property
    def odd_ranks(self) -> frozenset[int]:
        """The ranks of the hosts whose own clock is off from the majority."""
        return frozenset(rank for host in self.hosts if host.odd for rank in host.clock.ranks)

    @property
    def line(self) -> str:
        """The verdict in one line."""
        clocks = len(self.measurement.clocks)
        if self.worst is None:
            return f"fine: one clock ({self.middle}), nothing was compared between hosts"
        offset = self.measurement.offsets.offset(*self.worst)
        pair = describe_pair(*self.worst, offset)
        limits = self.limits
        match self.level:
            case Level.REFUSE:
                return f"REFUSED: {self._whose()}; {pair}: from {format_limit(limits.refuse_ns)} on a job may split"
            case Level.ERROR:
                limit = format_limit(limits.error_ns)
                return f"ERROR: {self._whose()}; {pair}: from {limit} on data of a host behind may be dropped"
            case Level.CANNOT_TELL:
                return f"CANNOT BE TOLD: {pair}; the limit is {format_limit(limits.error_ns)}"
            case Level.WARN:
                possible = "" if offset.judge(limits.warn_ns) is Judgement.BEYOND else "may be "
                return f"warning: {pair}: {possible}beyond {format_limit(limits.warn_ns)}, logs and traces mix"
        return f"fine: {clocks} clocks within {format_limit(limits.warn_ns)}; worst pair: {pair}"

    def to_json(self) -> dict[str, Any]:
        """A JSON object, schema 'rankclock-preflight/1'."""
        return {
            "schema": SCHEMA,
            "verdict": self.level.value,
            "exit_code": int(self.exit_code),
            "line": self.line,
            "limits": {
                "refuse_ns": self.limits.refuse_ns,
                "error_ns": self.limits.error_ns,
                "warn_ns": self.limits.warn_ns,
            },
            "middle": self.middle,
            "majority": self.majority,
            "worst": list(self.worst) if self.worst else None,
            "hosts": [host.to_json() for host in self.hosts],
            "notes": list(self.notes),
            "pairwise": self.measurement.offsets.to_json(),
            "paths": [path.to_json() for path in self.measurement.paths],
        }

    def _whose(self) -> str:
        odd = [host.clock.name for host in self.hosts if host.odd]
        if not odd:
            return "which clock is wrong cannot be told from here (no majority agrees)"
        return f"the clock of {', '.join(odd)} is off from the other {self.majority}"


def judge_start(measurement: Measurement, limits: Limits) -> Preflight:
    """The answer for a measurement."""
    offsets = measurement.offsets.offsets
    level, worst = Level.FINE, measurement.offsets.worst()
    for candidate, limit_ns in (
        (Level.REFUSE, limits.refuse_ns),
        (Level.ERROR, limits.error_ns),
    ):
        beyond = [pair for pair, offset in offsets.items() if offset.judge(limit_ns) is Judgement.BEYOND]
        if beyond:
            level, worst = candidate, max(beyond, key=lambda pair: _surely_ns(offsets[pair]))
            break
    else:
        if any(offset.judge(limits.error_ns) is Judgement.CANNOT_TELL for offset in offsets.values()):
            level = Level.CANNOT_TELL
        elif any(offset.judge(limits.warn_ns) is not Judgement.WITHIN for offset in offsets.values()):
            level = Level.WARN
    middle = _middle(measurement)
    near = 1 + sum(
        measurement.offsets.offset(clock.name, middle).judge(limits.error_ns) is Judgement.WITHIN
        for clock in measurement.clocks
        if clock.name != middle
    )
    majority = near if 2 * near > len(measurement.clocks) else 0
    return Preflight(
        measurement=measurement,
        limits=limits,
        level=level,
        middle=middle,
        majority=majority,
        worst=worst,
        hosts=_findings(measurement, limits, middle=middle, majority=majority),
        notes=_notes(measurement, middle=middle, majority=majority),
    )


def _findings(measurement: Measurement, limits: Limits, *, middle: str, majority: int) -> tuple[HostFinding, ...]:
    """Each clock against the middle one, or against the one farthest from it where no majority agrees."""
    findings = []
    for clock in measurement.clocks:
        others = [other.name for other in measurement.clocks if other.name != clock.name]
        if majority and clock.name != middle:
            against: str | None = middle
        elif majority:
            against = None
        else:
            candidates = ((_surely_ns(measurement.offsets.offset(clock.name, other)), other) for other in others)
            against = max(candidates, default=(0, None))[1]
        if against is None:
            offset = Offset(lo_ns=0, hi_ns=0, estimate_ns=0, reference=clock.name, method="it is the middle clock")
        else:
            offset = measurement.offsets.offset(clock.name, against)
        odd = bool(majority) and offset.judge(limits.error_ns) is Judgement.BEYOND
        findings.append(HostFinding(clock=clock, offset=offset, broken=broken_by(offset), odd=odd))
    return tuple(findings)


def _notes(measurement: Measurement, *, middle: str, majority: int) -> tuple[str, ...]:
    clocks = len(measurement.clocks)
    notes = []
    if clocks < measurement.world_size:
        notes.append(f"{measurement.world_size} processes read {clocks} clock{'' if clocks == 1 else 's'}")
    if majority:
        notes.append(f"compared with {middle}, the clock in the middle: {majority} of {clocks} clocks are with it")
    elif clocks > 1:
        notes.append("no majority of the clocks agrees: each is compared with the one farthest from it")
    notes.append("offsets between hosts only: whether they agree with UTC was not asked")
    return tuple(notes)


def _middle(measurement: Measurement) -> str:
    """The clock with as many clocks behind as ahead of it (the lower one of two), by their likeliest offsets."""
    reference = measurement.offsets.reference
    behind: list[tuple[int, str]] = []
    for clock in measurement.clocks:
        estimate_ns = 0
        if clock.name != reference:
            known = measurement.offsets.offset(clock.name, reference).estimate_ns
            if known is None:
                continue
            estimate_ns = known
        behind.append((estimate_ns, clock.name))
    return sorted(behind)[(len(behind) - 1) // 2][1]


def _surely_ns(offset: Offset) -> int:
    """How far apart two clocks are at least; -1 where that is unknown."""
    if offset.lo_ns is None or offset.hi_ns is None:
        return -1
    return max(offset.lo_ns, -offset.hi_ns, 0)
