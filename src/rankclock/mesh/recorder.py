"""The history of one clock as it is written: which readings become lines, and what each line may promise.

A line says how fast CLOCK_REALTIME gained on cluster time until the next line, and how far off that may be. Both
are known only afterwards: a line is held back until the readings behind it are in, and every one of them fits. Where a
reading does not fit (the clock is slewed at another rate) the line ends at the reading before. What a bend between two
readings can hide is added to the bounds of both lines. So lines come every second on a clock that runs evenly, and ten
times a second on one that is being slewed. Pure: readings and relations in, lines out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from rankclock.clockmath.realtime import KERNEL_RATE_LIMIT_PPB, Reading
from rankclock.clockmath.relation import Relation
from rankclock.timebase.clock_record import ClockEvent, ClockLine

__all__ = ["GROWTH_PPB", "Recorder"]

GROWTH_PPB = 1_000
"""What a line promises where it can: the header of a record states it once."""

LEAD_GROWTH_PPB = 500
"""The part of it that CLOCK_REALTIME may have: over a second half a microsecond, twice what a reading is unsure of."""

LINE_NS = 1_000_000_000
READING_APART_NS = 90_000_000
NARROW_NS = 1_000
PATIENCE_NS = 250_000_000
"""Readings are taken every tenth of a second, narrow ones; after a quarter of a second any will do."""

NS_PER_S = 1e9
PPB = 1e9


@dataclass(frozen=True, slots=True)
class _Anchor:
    """A reading that becomes a line. pad_ns: what a bend before it may hide. chord_ppb: the lead's rate before it."""

    reading: Reading
    event: ClockEvent | None
    detail: str
    pad_ns: int
    chord_ppb: float | None


class Recorder:
    """One clock's lines. Every `take_*` gives the lines that are complete by it, oldest first."""

    def __init__(self) -> None:
        self._relation: Relation | None = None
        self._open: _Anchor | None = None
        self._since: list[Reading] = []
        self._newest: Reading | None = None
        self._next_event: tuple[ClockEvent, str] = (ClockEvent.START, "")
        self._lost = False
        self._wait_from_ns: int | None = None

    def take_relation(
        self, relation: Relation | None, *, event: ClockEvent | None = None, detail: str = ""
    ) -> list[ClockLine]:
        """Local RAW - cluster time as it is known now, None where it is not. `event`: it is another cluster time."""
        was, lines = self._relation, []
        if event is not None:
            lines = self._flush()
            self._next_event, self._lost = (event, detail), False
        if relation is None and was is not None:
            lines = self._flush()
            lines += self._lose(detail)
        elif relation is not None and was is None and self._lost:
            self._next_event, self._lost = (ClockEvent.RETURNED, detail), False
        self._relation = relation
        return lines

    def take_reading(self, reading: Reading, *, stepped: bool = False) -> list[ClockLine]:
        """The clocks were read; `stepped`: CLOCK_REALTIME was certainly set since the reading before."""
        lines: list[ClockLine] = []
        if stepped and self._open is not None:
            lines = self._flush()
            self._next_event = ClockEvent.STEP, ""
        elif not self._wanted(reading):
            self._newest = reading
            return []
        self._newest = reading
        if self._relation is None:
            return lines
        if self._open is None:
            self._begin(reading)
            return lines
        return lines + self._extend(reading)

    def finish(self) -> list[ClockLine]:
        """All that is held back."""
        return self._flush()

    def _begin(self, reading: Reading) -> None:
        """Open the first line of a stretch, at the first narrow reading, or at any after a while."""
        if self._wait_from_ns is None:
            self._wait_from_ns = reading.raw_before_ns
        if reading.width_ns > NARROW_NS and reading.raw_before_ns - self._wait_from_ns < PATIENCE_NS:
            return
        event, detail = self._next_event
        self._next_event = ClockEvent.GAP, ""
        self._open, self._since, self._wait_from_ns = _Anchor(reading, event, detail, reading.width_ns, None), [], None

    def _wanted(self, reading: Reading) -> bool:
        last = self._since[-1] if self._since else self._open.reading if self._open else None
        if last is None:
            return True
        apart_ns = reading.raw_before_ns - last.raw_after_ns
        narrow = reading.width_ns <= NARROW_NS
        return apart_ns >= (READING_APART_NS if narrow else PATIENCE_NS)

    def _extend(self, reading: Reading) -> list[ClockLine]:
        """One more reading behind the open line: it fits, completes the line, or shows that the line ended before."""
        lines = []
        assert self._open is not None
        if self._since and not self._fits(reading):
            # It bent behind the last reading that fits, or already before that one and too little to be seen.
            last = self._since.pop()
            if self._since:
                lines.append(self._close(self._since[-1]))
            self._since = [last]
            lines.append(self._close(last, beyond=reading))
        self._since.append(reading)
        if _middle(reading) - _middle(self._open.reading) >= LINE_NS:
            lines.append(self._close(reading))
        return lines

    def _fits(self, end: Reading) -> bool:
        """Whether all readings between lie near the straight line from the open one to `end`."""
        assert self._open is not None
        start = self._open.reading
        chord = _chord_ppb(start, end)
        for reading in self._since:
            for anchor in (start, end):
                after_ns = _middle(reading) - _middle(anchor)
                moved = chord * after_ns / PPB
                grown = LEAD_GROWTH_PPB * abs(after_ns) / PPB
                # Whole numbers first: a lead has 19 digits, and floats 16.
                if anchor.lead_lo_ns - reading.lead_hi_ns > grown - moved:
                    return False
                if anchor.lead_hi_ns - reading.lead_lo_ns < -grown - moved:
                    return False
        return True

    def _close(self, end: Reading, *, beyond: Reading | None = None) -> ClockLine:
        """The open line is complete: it reaches to `end`, the last of those since, which opens the next.

        beyond: the reading behind it that did not fit.
        """
        anchor = self._open
        assert anchor is not None
        chord = _chord_ppb(anchor.reading, end)
        # What fits may be off by the widths of two readings: the one that shows it, and the end that it is held to.
        pad_ns = sum(sorted(reading.width_ns for reading in (anchor.reading, *self._since, end))[-2:])
        event = anchor.event
        if len(self._since) <= 1:
            # Nothing was read in between, and it may have bent or been set by a little anywhere: the rates before, over
            # and behind it differ by that over the gap, or by half of it where a neighbour bent as well.
            rates = [chord, anchor.chord_ppb or 0.0]
            rates += [] if beyond is None else [_chord_ppb(end, beyond)]
            gap_ns = _middle(end) - _middle(anchor.reading)
            bend_ns = round(2 * (max(rates) - min(rates)) * gap_ns / PPB)
            if bend_ns > 4 * pad_ns and event is None:
                event = ClockEvent.SLEW
            pad_ns = max(pad_ns, bend_ns)
        line = self._line(replace(anchor, event=event, pad_ns=max(anchor.pad_ns, pad_ns)), chord, end)
        self._open = _Anchor(end, None, "", pad_ns, chord)
        self._since = []
        return line

    def _flush(self) -> list[ClockLine]:
        """Close what is open at the last reading that fits: what follows does not belong to it."""
        lines: list[ClockLine] = []
        if self._open is None:
            return lines
        if self._since:
            lines.append(self._close(self._since[-1]))
        lines.append(self._line(self._open, self._open.chord_ppb, self._open.reading))
        self._open, self._since = None, []
        return lines

    def _lose(self, why: str) -> list[ClockLine]:
        self._lost = True
        if self._newest is None:
            return []
        return [
            ClockLine(
                real_ns=self._newest.real_ns,
                raw_ns=_middle(self._newest),
                lo_ns=None,
                hi_ns=None,
                est_ns=None,
                event=ClockEvent.LOST,
                detail=why,
            )
        ]

    def _line(self, anchor: _Anchor, chord_ppb: float | None, until: Reading) -> ClockLine:
        """REALTIME - cluster time = (REALTIME - RAW) + (RAW - cluster time), both at the instant of the reading."""
        way, at = self._relation, anchor.reading
        assert way is not None
        raw_ns = _middle(at)
        lo_ns, hi_ns = way.bounds_at(raw_ns)
        lo_ns, hi_ns = lo_ns + at.lead_lo_ns - anchor.pad_ns, hi_ns + at.lead_hi_ns + anchor.pad_ns
        estimate_ns = at.real_ns - raw_ns + way.estimate_at(raw_ns)
        farthest_s = max(abs(_middle(until) - way.at_ns), abs(raw_ns - way.at_ns)) / NS_PER_S
        doubt = max(way.fastest_ppb - way.rate_ppb, way.rate_ppb - way.slowest_ppb)
        growth = LEAD_GROWTH_PPB + doubt + way.wander_ppb_per_s * farthest_s
        rate = None
        if chord_ppb is None:  # one reading alone says nothing of the rate
            growth = KERNEL_RATE_LIMIT_PPB
        else:
            # Stamps are CLOCK_REALTIME: rates count in its seconds, which a slew makes up to a tenth longer or shorter.
            stretch = 1 + chord_ppb / PPB
            rate, growth = round((chord_ppb + way.rate_ppb) / stretch, 3), growth / stretch
        return ClockLine(
            real_ns=at.real_ns,
            raw_ns=raw_ns,
            lo_ns=lo_ns,
            hi_ns=hi_ns,
            est_ns=min(max(estimate_ns, lo_ns), hi_ns),
            rate_ppb=rate,
            event=anchor.event,
            growth_ppb=math.ceil(growth) if growth > GROWTH_PPB else None,
            detail=anchor.detail,
        )


def _middle(reading: Reading) -> int:
    return (reading.raw_before_ns + reading.raw_after_ns) // 2


def _chord_ppb(start: Reading, end: Reading) -> float:
    """The mean rate at which REALTIME gained on RAW."""
    gained_ns = (end.real_ns - _middle(end)) - (start.real_ns - _middle(start))
    return gained_ns * PPB / max(_middle(end) - _middle(start), 1)
