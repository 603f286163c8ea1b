"""Instants, offsets with their doubt, and judgements on them. Pure: no clock is read here."""

from rankclock.timebase.clock_state import ClockState, SyncState
from rankclock.timebase.instants import (
    NS_PER_MS,
    NS_PER_S,
    NS_PER_US,
    TAI_MINUS_UTC_2017_S,
    format_offset_ns,
    format_span_ns,
)
from rankclock.timebase.offset import DEFAULT_DRIFT_BOUND_PPB, Judgement, Offset

__all__ = [
    "DEFAULT_DRIFT_BOUND_PPB",
    "NS_PER_MS",
    "NS_PER_S",
    "NS_PER_US",
    "TAI_MINUS_UTC_2017_S",
    "ClockState",
    "Judgement",
    "Offset",
    "SyncState",
    "format_offset_ns",
    "format_span_ns",
]
