"""CLOCK_REALTIME followed through CLOCK_MONOTONIC_RAW: what one read while the other read this.

Kernel packet stamps are REALTIME, which daemons step and slew by up to 83,333 ppm; only RAW can carry a bound that
ages by a drift rate. Bracketed readings (RAW, REAL, RAW) give REALTIME's lead over RAW at many instants. Between two
readings the lead lies in the hull of both neighbours, each carried on at the rates seen around: that holds for one
step of any size in the gap, for any rate inside the range seen, and for a slew hidden in the gap. Decides where a step
happened, and what RAW instant a REALTIME stamp is. Refuses a stamp with a step near it: a value, never a guess.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from rankclock.clockmath.exchange import Stamp

__all__ = ["ASSUMPTION", "KERNEL_RATE_LIMIT_PPB", "Lead", "Reading", "RealtimeTrack", "Step", "Untranslated"]

ASSUMPTION = "CLOCK_REALTIME does not go out and back between two readings of it"

KERNEL_RATE_LIMIT_PPB = 101_000_000
"""adjtimex takes ticks of 9,000 to 11,000 µs and 500 ppm on top: a lead that moves faster than this was stepped."""

STRETCH_NS = 1_000_000
STRETCH_PER_GAP = 10
"""A rate is taken over 1 ms, and over ten times the gap that it bridges: its doubt, the width of two readings over that
stretch, then adds a tenth of a reading's width. Where there is less, over what there is."""

NEAR_NS = 2_000_000
"""The best guess of the lead is the median over the readings within 2 ms: one alone is off by up to half its width."""

NEAR_READINGS = 8

WIDE_GAP_NS = 5_000_000
"""Up to here, what a rate of 100 ppm that nobody saw moves the lead by is no more than a reading's own width."""

PPB = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Three clock reads in a row: RAW, REALTIME, RAW. The REALTIME value was true at a RAW instant inside the two."""

    raw_before_ns: int
    real_ns: int
    raw_after_ns: int

    @property
    def width_ns(self) -> int:
        """How long the three reads took: the doubt of the lead."""
        return self.raw_after_ns - self.raw_before_ns

    @property
    def lead_lo_ns(self) -> int:
        """The least lead of REALTIME that the reads allow; each of them cut off less than 1 ns."""
        return self.real_ns - self.raw_after_ns - 1

    @property
    def lead_hi_ns(self) -> int:
        """The greatest lead of REALTIME that the reads allow."""
        return self.real_ns - self.raw_before_ns + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Lead:
    """REALTIME - RAW of one clock lies in [lo_ns, hi_ns]; `estimate_ns` is the best guess inside."""

    lo_ns: int
    hi_ns: int
    estimate_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """CLOCK_REALTIME was set, by lo_ns to hi_ns, between two RAW instants."""

    after_raw_ns: int
    before_raw_ns: int
    lo_ns: int
    hi_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Untranslated:
    """A REALTIME stamp that no RAW instant could be given, and why."""

    why: str


class RealtimeTrack:
    """The readings of one clock, newest last, the last `keep` of them."""

    def __init__(self, readings: Iterable[Reading] = (), *, keep: int = 2048) -> None:
        self._keep = keep
        self._readings: list[Reading] = []
        self._before: list[int] = []
        self._after: list[int] = []
        self._steps: list[Step] = []
        self._last_rates: tuple[tuple[int, int], tuple[int, int]] | None = None
        for reading in readings:
            self.add(reading)

    @property
    def readings(self) -> tuple[Reading, ...]:
        """Those kept, oldest first."""
        return tuple(self._readings)

    @property
    def newest(self) -> Reading | None:
        """The latest reading, if there is any."""
        return self._readings[-1] if self._readings else None

    def add(self, reading: Reading) -> Step | None:
        """Take a reading in; says whether CLOCK_REALTIME was certainly stepped since the one before.

        A reading that is older than the newest (a datagram that was overtaken) is not taken.
        """
        step = None
        if self._readings:
            last = self._readings[-1]
            if reading.raw_before_ns < last.raw_after_ns:
                return None
            step = _step_between(last, reading)
            if step is not None:
                self._steps.append(step)
        self._readings.append(reading)
        self._before.append(reading.raw_before_ns)
        self._after.append(reading.raw_after_ns)
        if len(self._readings) > 2 * self._keep:
            self._forget()
        return step

    def stepped_within(self, earliest_raw_ns: int, latest_raw_ns: int) -> bool:
        """Whether a step may have happened between two RAW instants."""
        return any(
            step.after_raw_ns < latest_raw_ns and step.before_raw_ns > earliest_raw_ns for step in reversed(self._steps)
        )

    def lead(self, raw: Stamp) -> Lead | None:
        """REALTIME - RAW at a RAW instant known to lie in `raw`; None outside the readings kept."""
        left = bisect_right(self._before, raw.earliest_ns) - 1
        right = bisect_left(self._after, raw.latest_ns)
        if left < 0 or right >= len(self._readings):
            return None
        left, right = min(left, right), max(left, right)
        rates = self._rates_around(left, right, near_a_reading=False)
        lo_ns, hi_ns = self._hull(left, right, rates, raw.earliest_ns, raw.latest_ns)
        likely_ns = self._likely(left, right, rates, (raw.earliest_ns + raw.latest_ns) // 2)
        return Lead(lo_ns=lo_ns, hi_ns=hi_ns, estimate_ns=min(max(likely_ns, lo_ns), hi_ns))

    def raw_of(self, real_ns: int, *, window: Stamp) -> Stamp | Untranslated:
        """The RAW instant at which CLOCK_REALTIME read `real_ns`, which causality places inside `window`."""
        first = bisect_right(self._before, window.earliest_ns) - 1
        last = bisect_left(self._after, window.latest_ns)
        if first < 0 or last >= len(self._readings):
            return Untranslated(why="no reading of the clocks before it, or none after it")
        if self.stepped_within(self._before[first], self._after[last]):
            return Untranslated(why="CLOCK_REALTIME was stepped near it")
        # Without a step REALTIME only runs forward: the readings that it lies between are found by REALTIME itself.
        first = max(first, bisect_right(self._readings, real_ns, first, last + 1, key=_real) - 1)
        last = min(last, bisect_left(self._readings, real_ns + 1, first, last + 1, key=_real))
        earliest_ns = max(window.earliest_ns, self._before[first])
        latest_ns = min(window.latest_ns, self._after[last])
        rates = self._rates_for_stamps(first, last)
        # The second pass starts from an interval as wide as the lead's doubt over the gap, not as the gap.
        for _ in range(2):
            if earliest_ns > latest_ns:
                break
            lo_ns, hi_ns = self._hull(first, last, rates, earliest_ns, latest_ns)
            earliest_ns = max(earliest_ns, real_ns - hi_ns)
            latest_ns = min(latest_ns, real_ns + 1 - lo_ns)
        if earliest_ns > latest_ns:
            return Untranslated(why="CLOCK_REALTIME cannot have read it then: the stamp is of another clock")
        estimate_ns = real_ns - self._likely(first, last, rates, (earliest_ns + latest_ns) // 2)
        return Stamp(
            earliest_ns=earliest_ns,
            latest_ns=latest_ns,
            estimate_ns=min(max(estimate_ns, earliest_ns), latest_ns),
        )

    def _hull(self, left: int, right: int, rates: tuple[int, int], earliest_ns: int, latest_ns: int) -> tuple[int, int]:
        """(lo, hi) of the lead: the hull of the readings left..right, each carried on to [earliest, latest]."""
        slowest, fastest = rates
        lows_ns, highs_ns = [], []
        for reading in self._readings[left : right + 1]:
            first_ns, last_ns = earliest_ns - reading.raw_after_ns, latest_ns - reading.raw_before_ns
            corners = (slowest * first_ns, slowest * last_ns, fastest * first_ns, fastest * last_ns)
            lows_ns.append(reading.lead_lo_ns + min(corners) // PPB)
            highs_ns.append(reading.lead_hi_ns - (-max(corners) // PPB))
        return min(lows_ns), max(highs_ns)

    def _likely(self, left: int, right: int, rates: tuple[int, int], at_ns: int) -> int:
        """The most likely lead at a RAW instant: the median over near readings, carried there at the likely rate."""
        rate = sum(rates) // 2
        first = max(bisect_left(self._before, at_ns - NEAR_NS), left - NEAR_READINGS)
        end = min(bisect_right(self._before, at_ns + NEAR_NS), right + NEAR_READINGS)
        near = self._readings[first:end] or self._readings[left : right + 1]
        narrowest = sorted(near, key=_width)[:NEAR_READINGS]
        leads = []
        for reading in narrowest:
            middle_ns = (reading.raw_before_ns + reading.raw_after_ns) // 2
            leads.append(reading.real_ns - middle_ns + rate * (at_ns - middle_ns) // PPB)
        leads.sort()
        middle = len(leads) // 2
        return leads[middle] if len(leads) % 2 else (leads[middle - 1] + leads[middle]) // 2

    def _rates_for_stamps(self, first: int, last: int) -> tuple[int, int]:
        """`_rates_around`, remembered: the stamps of a whole burst lie in one gap."""
        gap = self._before[first], self._after[last]
        if self._last_rates is None or self._last_rates[0] != gap:
            self._last_rates = gap, self._rates_around(first, last, near_a_reading=True)
        return self._last_rates[1]

    def _rates_around(self, left: int, right: int, *, near_a_reading: bool) -> tuple[int, int]:
        """The range, in ppb, of the rates that the lead may have had between the readings left and right.

        From long stretches before and after. Over a wide gap the rate may have changed since: the gap itself and its
        neighbours count too, unless they agree with the long stretches and the instant asked for is next to a reading,
        where a difference too small to be seen moves nothing.
        """
        gap_ns = self._after[right] - self._before[left]
        start, end = self._without_step(left, right)
        wanted_ns = max(STRETCH_NS, STRETCH_PER_GAP * gap_ns)
        stretches = self._stretches(start, left, right, end, wanted_ns)
        if not stretches:
            return -KERNEL_RATE_LIMIT_PPB, KERNEL_RATE_LIMIT_PPB
        long_enough = [pair for pair in stretches if _span_ns(pair) >= wanted_ns]
        rates = [_rate_between(*pair) for pair in long_enough or [max(stretches, key=_span_ns)]]
        lowest, highest = min(lo for lo, _ in rates), max(hi for _, hi in rates)
        if gap_ns < WIDE_GAP_NS:
            return lowest, highest
        neighbours = self._stretches(start, left, right, end, gap_ns)
        near = [_rate_between(*pair) for pair in neighbours if _span_ns(pair) >= gap_ns // 2]
        if left < right:
            near.append(_rate_between(self._readings[left], self._readings[right]))
        if near_a_reading and all(lo <= highest and hi >= lowest for lo, hi in near):
            return lowest, highest
        middles = [(lo + hi) // 2 for lo, hi in near + rates]
        spread = max(middles) - min(middles)
        lowest = min([lowest, *(lo for lo, _ in near)]) - spread
        highest = max([highest, *(hi for _, hi in near)]) + spread
        return max(lowest, -KERNEL_RATE_LIMIT_PPB), min(highest, KERNEL_RATE_LIMIT_PPB)

    def _without_step(self, left: int, right: int) -> tuple[int, int]:
        """The first and the last reading that no certain step parts from the gap between left and right."""
        start, end = 0, len(self._readings) - 1
        for step in self._steps:
            if step.before_raw_ns <= self._before[left]:
                start = max(start, bisect_left(self._before, step.before_raw_ns))
            if step.after_raw_ns >= self._after[right]:
                end = min(end, bisect_right(self._after, step.after_raw_ns) - 1)
        return start, end

    def _stretches(self, start: int, left: int, right: int, end: int, wanted_ns: int) -> list[tuple[Reading, Reading]]:
        """Pairs of readings that span wanted_ns, or what there is, before `left` and after `right`."""
        first = max(bisect_right(self._after, self._before[left] - wanted_ns) - 1, start)
        last = min(bisect_left(self._before, self._after[right] + wanted_ns), end)
        pairs = ((first, left), (right, last))
        return [(self._readings[one], self._readings[two]) for one, two in pairs if one < two]

    def _forget(self) -> None:
        drop = len(self._readings) - self._keep
        del self._readings[:drop], self._before[:drop], self._after[:drop]
        self._steps = [step for step in self._steps if step.before_raw_ns >= self._before[0]]


def _real(reading: Reading) -> int:
    return reading.real_ns


def _width(reading: Reading) -> int:
    return reading.width_ns


def _span_ns(pair: tuple[Reading, Reading]) -> int:
    return pair[1].raw_before_ns - pair[0].raw_after_ns


def _step_between(earlier: Reading, later: Reading) -> Step | None:
    """The step that two neighbouring readings prove: the lead moved farther than the kernel can slew it."""
    lo_ns = later.lead_lo_ns - earlier.lead_hi_ns
    hi_ns = later.lead_hi_ns - earlier.lead_lo_ns
    slewed_ns = (later.raw_after_ns - earlier.raw_before_ns) * KERNEL_RATE_LIMIT_PPB // PPB + 1
    if -slewed_ns <= hi_ns and lo_ns <= slewed_ns:
        return None
    return Step(after_raw_ns=earlier.raw_before_ns, before_raw_ns=later.raw_after_ns, lo_ns=lo_ns, hi_ns=hi_ns)


def _rate_between(earlier: Reading, later: Reading) -> tuple[int, int]:
    """The least and greatest mean rate of the lead between two readings, in ppb, within what the kernel can do."""
    least_ns = later.lead_lo_ns - earlier.lead_hi_ns
    most_ns = later.lead_hi_ns - earlier.lead_lo_ns
    shortest_ns = max(later.raw_before_ns - earlier.raw_after_ns, 1)
    longest_ns = later.raw_after_ns - earlier.raw_before_ns
    lo = least_ns * PPB // (shortest_ns if least_ns < 0 else longest_ns)
    hi = -(-most_ns * PPB // (shortest_ns if most_ns > 0 else longest_ns))
    return max(lo, -KERNEL_RATE_LIMIT_PPB), min(hi, KERNEL_RATE_LIMIT_PPB)
