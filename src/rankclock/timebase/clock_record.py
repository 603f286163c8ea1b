"""The clock record of one rank: its clock against cluster time, line by line. Values only (`wire.clock_record` codes
them, `clockmath.history` answers from them).

offset = local CLOCK_REALTIME - cluster time, as everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

__all__ = ["ClockEvent", "ClockHeader", "ClockLine", "ClockRecord"]


class ClockEvent(StrEnum):
    """What a line may say besides its numbers.

    All but START, SLEW and END part the record: between the line before and this one nothing runs on as it did.
    """

    START = "start"
    SLEW = "slew"
    STEP = "step"
    REFERENCE = "reference"
    LOST = "lost"
    RETURNED = "returned"
    GAP = "gap"
    END = "end"

    @property
    def parts(self) -> bool:
        """Whether the line begins a new stretch."""
        return self not in (ClockEvent.START, ClockEvent.SLEW, ClockEvent.END)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockHeader:
    """Whose clock it is. reference: the clock that cluster time runs on, as of the first line.

    growth_ppb: how far the rate may be from a line's rate_ppb until the next line, and within reach before and after.
    rank: None where the clock belongs to no rank.
    """

    job: str
    rank: int | None
    host: str
    clock_id: str
    reference: str
    growth_ppb: int

    def __post_init__(self) -> None:
        if self.growth_ppb < 0:
            raise ValueError(f"a growth is not negative: {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockLine:
    """At local CLOCK_REALTIME real_ns, when CLOCK_MONOTONIC_RAW read raw_ns, the offset lay in [lo_ns, hi_ns].

    est_ns: the best guess; None for all three where nothing was known. rate_ppb: how fast the local clock gained on
    cluster time, None where that was not known. growth_ppb: in place of the header's, where given. detail: for people.
    """

    real_ns: int
    raw_ns: int
    lo_ns: int | None
    hi_ns: int | None
    est_ns: int | None
    rate_ppb: float | None = None
    event: ClockEvent | None = None
    growth_ppb: int | None = None
    detail: str = ""

    def __post_init__(self) -> None:
        if self.lo_ns is None or self.hi_ns is None or self.est_ns is None:
            if (self.lo_ns, self.hi_ns, self.est_ns) != (None, None, None):
                raise ValueError(f"a line has bounds and an estimate, or none of them: {self}")
        elif not self.lo_ns <= self.est_ns <= self.hi_ns:
            raise ValueError(f"an estimate lies inside its bounds: {self}")
        if self.growth_ppb is not None and self.growth_ppb < 0:
            raise ValueError(f"a growth is not negative: {self}")

    @property
    def known(self) -> bool:
        """Whether the offset was known."""
        return self.est_ns is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockRecord:
    """A header and its lines in order of raw_ns. torn: the last line was cut off, as when its writer was killed."""

    header: ClockHeader
    lines: tuple[ClockLine, ...] = field(default=())
    torn: bool = False
