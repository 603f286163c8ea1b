"""Are all ranks' clocks within a threshold of one another? Judges the pairwise offsets of a job.

Three answers: within (every pair is), beyond (some pair certainly is), cannot be told (anything else: a bound wider
than the threshold, a clock that nobody could measure). It judges clocks against each other; UTC is another matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rankclock.errors import ExitCode
from rankclock.timebase import Judgement, Offset, format_offset_ns, format_span_ns
from rankclock.training.measurement import Measurement

__all__ = ["EXIT_CODES", "Verification", "describe_pair", "format_limit", "format_offset", "judge"]

SCHEMA = "rankclock-verify/1"

EXIT_CODES = {
    Judgement.WITHIN: ExitCode.OK,
    Judgement.BEYOND: ExitCode.CHECK_FAILED,
    Judgement.CANNOT_TELL: ExitCode.CANNOT_TELL,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The judgement on all pairs. pairs: how many of each kind. worst: the pair that decided, None with one clock."""

    measurement: Measurement
    threshold_ns: int
    judgement: Judgement
    pairs: dict[Judgement, int]
    worst: tuple[str, str] | None

    @property
    def exit_code(self) -> ExitCode:
        """What every rank exits with."""
        return EXIT_CODES[self.judgement]

    @property
    def odd_ranks(self) -> frozenset[int]:
        """None: pairs are judged here, not hosts."""
        return frozenset()

    @property
    def line(self) -> str:
        """The verdict in one line, for people and for logs."""
        measured = self.measurement
        limit = format_limit(self.threshold_ns)
        who = f"{_count(len(measured.clocks), 'clock')} of {_count(measured.world_size, 'rank')}"
        if self.worst is None:
            return f"within {limit}: one clock ({measured.clocks[0].host}) is all that {_reads(measured.world_size)}"
        pair = describe_pair(*self.worst, measured.offsets.offset(*self.worst))
        total = sum(self.pairs.values())
        if self.judgement is Judgement.WITHIN:
            return f"within {limit}: {who}; worst pair: {pair}"
        if self.judgement is Judgement.BEYOND:
            return f"BEYOND {limit}: {pair}; {self.pairs[Judgement.BEYOND]} of {total} pairs of {who} are beyond"
        undecided = f"{self.pairs[Judgement.CANNOT_TELL]} of {total} pairs of {who} are undecided"
        return f"CANNOT BE TOLD at {limit}: {pair}; {undecided}"

    def to_json(self) -> dict[str, Any]:
        """A JSON object, schema 'rankclock-verify/1'."""
        measured = self.measurement
        worst = None
        if self.worst is not None:
            local, reference = self.worst
            worst = {
                "local": local,
                "reference": reference,
                "offset": measured.offsets.offset(local, reference).to_json(),
            }
        return {
            "schema": SCHEMA,
            "verdict": self.judgement.value,
            "exit_code": int(self.exit_code),
            "line": self.line,
            "threshold_ns": self.threshold_ns,
            "world_size": measured.world_size,
            "seconds": measured.seconds,
            "clocks": [{**clock.to_json(), "stamps": measured.stamps[clock.name]} for clock in measured.clocks],
            "pairs": {kind.value: number for kind, number in self.pairs.items()},
            "worst": worst,
            "pairwise": measured.offsets.to_json(),
            "paths": [path.to_json() for path in measured.paths],
        }


def judge(measurement: Measurement, threshold_ns: int) -> Verification:
    """The judgement on a measurement."""
    offsets = measurement.offsets.offsets
    kinds = {pair: offset.judge(threshold_ns) for pair, offset in offsets.items()}
    pairs = {kind: sum(1 for one in kinds.values() if one is kind) for kind in Judgement}
    if pairs[Judgement.BEYOND]:
        judgement = Judgement.BEYOND
    else:
        judgement = Judgement.CANNOT_TELL if pairs[Judgement.CANNOT_TELL] else Judgement.WITHIN
    deciding = [pair for pair, kind in kinds.items() if kind is judgement]
    worst = max(deciding, key=lambda pair: _size(offsets[pair], judgement), default=None)
    return Verification(
        measurement=measurement, threshold_ns=threshold_ns, judgement=judgement, pairs=pairs, worst=worst
    )


def describe_pair(local: str, reference: str, offset: Offset) -> str:
    """'gpu5 is 20.0 s behind gpu1 (±2.10 µs)', or why nobody knows."""
    if offset.estimate_ns is None or offset.bound_ns is None:
        return f"{local} against {reference} is unknown: {offset.unknown_why}"
    side = "ahead of" if offset.estimate_ns >= 0 else "behind"
    size = format_span_ns(abs(offset.estimate_ns))
    return f"{local} is {size} {side} {reference} (±{format_span_ns(offset.bound_ns)})"


def format_limit(limit_ns: int) -> str:
    """A threshold as its owner would write it: '1 ms', '1.5 s'."""
    number, unit = format_span_ns(limit_ns).split(" ")
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}"


def format_offset(offset: Offset) -> str:
    """'+12.3 µs ±0.42 µs', or 'unknown'."""
    if offset.estimate_ns is None or offset.bound_ns is None:
        return "unknown"
    return f"{format_offset_ns(offset.estimate_ns)} ±{format_span_ns(offset.bound_ns)}"


def _size(offset: Offset, judgement: Judgement) -> tuple[int, int]:
    """How much a pair speaks for the judgement: unknown before known, then the farthest end or the surest distance."""
    if offset.lo_ns is None or offset.hi_ns is None:
        return 1, 0
    surely_ns = max(offset.lo_ns, -offset.hi_ns)
    return 0, surely_ns if judgement is Judgement.BEYOND else max(offset.hi_ns, -offset.lo_ns)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _reads(world_size: int) -> str:
    return "the one rank reads" if world_size == 1 else f"all {world_size} ranks read"
