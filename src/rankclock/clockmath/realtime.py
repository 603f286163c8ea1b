"""CLOCK_REALTIME followed through CLOCK_MONOTONIC_RAW: what one read while the other read this.

Kernel packet stamps are REALTIME, which daemons step and slew by up to 83,333 ppm; only RAW can carry a bound that
ages by a drift rate. Bracketed readings (RAW, REAL, RAW) give REALTIME's lead over RAW at many instants; between two of
them the lead is bounded by both, carried on at the rates seen around. Decides where a step happened, and what RAW
instant a REALTIME stamp is. Refuses a stamp with a step near it: a value, never a guess.

What the bounds assume (`ASSUMPTION`): between two neighbouring readings REALTIME steps at most once, and otherwise does
not go out and back faster than the rates seen in the gaps around.
"""

from __future__ import annotations

from dataclasses import dataclass

from rankclock.clockmath.exchange import Stamp

__all__ = ["ASSUMPTION", "Lead", "Reading", "RealtimeTrack", "Step", "Untranslated"]

ASSUMPTION = "CLOCK_REALTIME does not go out and back between two readings of it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Three clock reads in a row: RAW, REALTIME, RAW. The REALTIME value was true at a RAW instant inside the two."""

    raw_before_ns: int
    real_ns: int
    raw_after_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lead:
    """REALTIME - RAW of one clock, in [lo_ns, hi_ns], when RAW was in [at_earliest_ns, at_latest_ns]."""

    at_earliest_ns: int
    at_latest_ns: int
    lo_ns: int
    hi_ns: int


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
    """The readings of one clock, newest last, bounded in number."""

    def add(self, reading: Reading) -> Step | None:
        """Take a reading in; says whether CLOCK_REALTIME was stepped since the one before."""
        raise NotImplementedError

    def lead(self, raw: Stamp) -> Lead | None:
        """REALTIME - RAW at a RAW instant known to lie in `raw`; None outside the readings kept."""
        raise NotImplementedError

    def raw_of(self, real_ns: int, *, window: Stamp) -> Stamp | Untranslated:
        """The RAW instant at which CLOCK_REALTIME read `real_ns`, which causality places inside `window`."""
        raise NotImplementedError
