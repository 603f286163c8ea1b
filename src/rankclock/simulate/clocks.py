"""Clocks in virtual time with known truth: a free oscillator (CLOCK_MONOTONIC_RAW) and a CLOCK_REALTIME on top of it.

True time is integer nanoseconds of the simulation. Everything is piecewise linear and computed in whole nanoseconds,
cut off as a kernel cuts off. Chance comes from the generator that the caller gives.
"""

from __future__ import annotations

import random
from bisect import bisect_right

__all__ = ["Oscillator", "VirtualRealtime"]

PPB = 1_000_000_000
NS_PER_S = 1_000_000_000


class Oscillator:
    """A crystal: its reading against true time, with a rate that changes at knots."""

    def __init__(self, *, starts_at_ns: int, rate_ppb: float, true_ns: int = 0) -> None:
        self._true: list[int] = [true_ns]
        self._raw: list[int] = [starts_at_ns]
        self._rate: list[int] = [round(rate_ppb)]

    @classmethod
    def wandering(
        cls,
        chance: random.Random,
        *,
        starts_at_ns: int,
        rate_ppb: float,
        for_s: int,
        walk_ppb: float = 10.0,
        knots_per_s: int = 4,
    ) -> Oscillator:
        """One whose rate walks at random, by `walk_ppb` per square root of a second."""
        crystal = cls(starts_at_ns=starts_at_ns, rate_ppb=rate_ppb)
        rate = rate_ppb
        for knot in range(1, for_s * knots_per_s + 1):
            rate += chance.gauss(0, walk_ppb / knots_per_s**0.5)
            crystal.set_rate(knot * NS_PER_S // knots_per_s, rate)
        return crystal

    def set_rate(self, true_ns: int, rate_ppb: float) -> None:
        """From true_ns on it runs rate_ppb fast; after all changes made so far."""
        if true_ns <= self._true[-1]:
            raise ValueError(f"rates change in order of time: {true_ns} is not after {self._true[-1]}")
        raw_ns = self.raw_at(true_ns)
        self._true.append(true_ns)
        self._raw.append(raw_ns)
        self._rate.append(round(rate_ppb))

    def raw_at(self, true_ns: int) -> int:
        """What it reads."""
        knot = max(bisect_right(self._true, true_ns) - 1, 0)
        since_ns = true_ns - self._true[knot]
        return self._raw[knot] + since_ns + since_ns * self._rate[knot] // PPB

    def true_at(self, raw_ns: int) -> int:
        """When it reads `raw_ns`: the first whole nanosecond at which it does."""
        knot = max(bisect_right(self._raw, raw_ns) - 1, 0)
        since_ns = raw_ns - self._raw[knot]
        return self._true[knot] + -(-since_ns * PPB // (PPB + self._rate[knot]))


class VirtualRealtime:
    """CLOCK_REALTIME on top of an oscillator: stepped and slewed at instants."""

    def __init__(self, crystal: Oscillator, *, real_ns: int, rate_ppb: int = 0) -> None:
        self._crystal = crystal
        self._true: list[int] = [0]
        self._raw: list[int] = [crystal.raw_at(0)]
        self._real: list[int] = [real_ns]
        self._rate: list[int] = [rate_ppb]

    def change(self, true_ns: int, *, step_ns: int = 0, rate_ppb: int | None = None) -> None:
        """At true_ns: jump by step_ns, and gain rate_ppb on the oscillator from there on."""
        if true_ns <= self._true[-1]:
            raise ValueError(f"changes come in order of time: {true_ns} is not after {self._true[-1]}")
        real_ns = self.real_at(true_ns)
        self._true.append(true_ns)
        self._raw.append(self._crystal.raw_at(true_ns))
        self._real.append(real_ns + step_ns)
        self._rate.append(self._rate[-1] if rate_ppb is None else rate_ppb)

    def real_at(self, true_ns: int) -> int:
        """What it reads."""
        part = max(bisect_right(self._true, true_ns) - 1, 0)
        since_ns = self._crystal.raw_at(true_ns) - self._raw[part]
        return self._real[part] + since_ns + since_ns * self._rate[part] // PPB
