"""How good a grandmaster is right now, from what its chronyd follows: clockClass, accuracy, time source, flags.

Class 6 only while a receiver's pulse is followed, 7 after that while chronyd's own bound stays small, else 248. Worse
is said at once, better only after the pulse has been followed for a while. Refuses to claim the PTP time scale for
software stamps (clients would be 37 s off), and a bound smaller than chronyd's. Pure.

Classes: IEEE 1588-2019 table 4. Codes of accuracy: table 5.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from rankclock.timebase import NS_PER_S, NS_PER_US, TAI_MINUS_UTC_2017_S
from rankclock.wire.chrony import SourceData, SourceMode, SourceState, Tracking
from rankclock.wire.ptp_data_sets import (
    FREQUENCY_TRACEABLE,
    LEAP59,
    LEAP61,
    PTP_TIMESCALE,
    TIME_TRACEABLE,
    UTC_OFFSET_VALID,
    ClockQuality,
    GrandmasterSettings,
    accuracy_code,
)

__all__ = ["ClassKeeper", "ClassSettings", "GrandmasterClass", "Verdict"]


class GrandmasterClass(IntEnum):
    """clockClass as this program uses it."""

    LOCKED = 6
    HOLDOVER = 7
    DEFAULT = 248


_GNSS, _NTP, _OSCILLATOR = 0x20, 0x50, 0xA0
_UNKNOWN_ACCURACY = 0xFE
_VARIANCE_LOCKED, _VARIANCE_UNKNOWN = 0x4E5D, 0xFFFF
_LEAP_INSERT, _LEAP_DELETE, _LEAP_UNSYNCHRONISED = 1, 2, 3
_MISSED_POLLS = 3
"""A pulse that was not seen for three polls is lost: chronyd itself waits for eight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassSettings:
    """refids: reference clocks that count as a primary reference. holdover_bound_ns: how far off 7 may be.

    steady_ns: how long the pulse is followed before 6 is said. phc_apart_ns: what phc2sys adds between both clocks.
    """

    refids: tuple[str, ...] = ("PPS0",)
    holdover_bound_ns: int = 100 * NS_PER_US
    steady_ns: int = 30 * NS_PER_S
    phc_apart_ns: int = NS_PER_US


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What to announce, and why."""

    settings: GrandmasterSettings
    why: str

    @property
    def clock_class(self) -> int:
        """clockClass."""
        return self.settings.quality.clock_class


class ClassKeeper:
    """Feed it what chronyd says, once a second or so."""

    def __init__(self, settings: ClassSettings) -> None:
        self._settings = settings
        self._followed_since_ns: int | None = None
        self._was_locked = False

    def handle_reading(
        self, tracking: Tracking, sources: tuple[SourceData, ...], *, hardware: bool, now_ns: int
    ) -> Verdict:
        """chronyd answered at now_ns (any steady clock). hardware: whether ptp4l's ports stamp in hardware."""
        bound_ns = abs(tracking.offset_ns) + tracking.root_distance_ns
        bound_ns += self._settings.phc_apart_ns if hardware else 0
        synchronised = tracking.leap != _LEAP_UNSYNCHRONISED and tracking.root_dispersion_s > 0
        selected = next((item for item in sources if item.state == SourceState.SELECTED), None)
        leap = {_LEAP_INSERT: LEAP61, _LEAP_DELETE: LEAP59}.get(tracking.leap, 0)
        if selected is not None and synchronised and self._is_pulse(selected) and _fresh(selected):
            return self._pulse(selected.name, bound_ns, leap, hardware=hardware, now_ns=now_ns)
        self._followed_since_ns = None
        if selected is not None and not self._is_pulse(selected):
            self._was_locked = False
            why = f"chronyd follows {selected.name}"
            source = _NTP if selected.mode != SourceMode.REFCLOCK else _OSCILLATOR
            return self._worse(why, source, bound_ns if synchronised else None, leap, hardware=hardware)
        if self._was_locked and synchronised and bound_ns <= self._settings.holdover_bound_ns:
            why = f"the pulse is gone; chronyd's bound is {bound_ns} ns"
            quality = ClockQuality(
                clock_class=GrandmasterClass.HOLDOVER, accuracy=accuracy_code(bound_ns), variance=_VARIANCE_LOCKED
            )
            return Verdict(settings=_settings(quality, _GNSS, leap, traceable=True, hardware=hardware), why=why)
        why = "the pulse is gone for too long" if self._was_locked else "chronyd follows no receiver"
        self._was_locked = False
        return self._worse(why, _OSCILLATOR, bound_ns if synchronised else None, leap, hardware=hardware)

    def handle_silence(self, why: str, *, hardware: bool) -> Verdict:
        """chronyd did not answer: nothing is known of this clock, so nothing is claimed."""
        self._followed_since_ns, self._was_locked = None, False
        return self._worse(why, _OSCILLATOR, None, 0, hardware=hardware)

    def _is_pulse(self, source: SourceData) -> bool:
        return source.mode == SourceMode.REFCLOCK and source.name in self._settings.refids

    def _pulse(self, name: str, bound_ns: int, leap: int, *, hardware: bool, now_ns: int) -> Verdict:
        if self._followed_since_ns is None:
            self._followed_since_ns = now_ns
        if now_ns - self._followed_since_ns < self._settings.steady_ns and not self._was_locked:
            seconds = self._settings.steady_ns // NS_PER_S
            why = f"chronyd follows {name}, and not yet for {seconds} s"
            return self._worse(why, _GNSS, bound_ns, leap, hardware=hardware)
        self._was_locked = True
        quality = ClockQuality(
            clock_class=GrandmasterClass.LOCKED, accuracy=accuracy_code(bound_ns), variance=_VARIANCE_LOCKED
        )
        settings = _settings(quality, _GNSS, leap, traceable=True, hardware=hardware)
        return Verdict(settings=settings, why=f"chronyd follows {name} within {bound_ns} ns")

    def _worse(self, why: str, source: int, bound_ns: int | None, leap: int, *, hardware: bool) -> Verdict:
        accuracy = _UNKNOWN_ACCURACY if bound_ns is None else accuracy_code(bound_ns)
        quality = ClockQuality(clock_class=GrandmasterClass.DEFAULT, accuracy=accuracy, variance=_VARIANCE_UNKNOWN)
        return Verdict(settings=_settings(quality, source, leap, traceable=False, hardware=hardware), why=why)


def _fresh(source: SourceData) -> bool:
    return source.has_sample and source.since_sample_s <= _MISSED_POLLS * 2.0**source.poll


def _settings(
    quality: ClockQuality, time_source: int, leap: int, *, traceable: bool, hardware: bool
) -> GrandmasterSettings:
    flags = leap
    if hardware:
        # With software stamps ptp4l serves UTC: to call that the PTP time scale puts every client 37 s off.
        flags |= PTP_TIMESCALE | (UTC_OFFSET_VALID if traceable else 0)
    if traceable:
        flags |= TIME_TRACEABLE | FREQUENCY_TRACEABLE
    return GrandmasterSettings(quality=quality, utc_offset_s=TAI_MINUS_UTC_2017_S, flags=flags, time_source=time_source)
