"""What ptp4l's data sets say of the clock that it steers (the PHC, or with software stamps CLOCK_REALTIME): pure.

The traps (measured on linuxptp 3.1.1): after a grandmaster is lost a client-only clock keeps its last offset, its path
delay and gmPresent for ever, any other clock makes itself grandmaster and reports an offset of 0. Only port states and
the age of the last Sync tell. So: no offset without a port in SLAVE and a fresh Sync.
"""

from __future__ import annotations

import math

from rankclock.node.claim import Claim
from rankclock.node.ptp4l import Ptp4lReading
from rankclock.timebase import NS_PER_S, Offset, SyncState, format_offset_ns, format_span_ns
from rankclock.wire.ptp_data_sets import (
    CurrentDataSet,
    ParentDataSet,
    PortDataSet,
    PortState,
    TimeStatus,
    clock_text,
    state_name,
)

__all__ = ["METHOD", "describe_role", "fresh_within_ns", "judge_ptp"]

METHOD = "ptp4l's own estimate (management)"

LOCKED_DRIFT_PPB = 10_000
"""How far a locked clock's rate may be off between two Syncs: crystal wander and the servo's own corrections."""

SOFTWARE_STAMP_NS = 1_000
HARDWARE_STAMP_NS = 100
"""How far a stamp may be from the packet's passing: kernel and driver; NIC (granularity 8 to 40 ns, twice)."""

_FRESH_SYNCS = 4
_MIN_FRESH_NS = NS_PER_S
_FUTURE_NS = 10_000_000
"""A Sync from later than now by this much means that the clock was stepped back since."""


def fresh_within_ns(port: PortDataSet) -> int:
    """How old the last Sync of a followed grandmaster may be: 4 Sync intervals, at least 1 s."""
    log_interval = max(-10, min(port.log_sync_interval, 10))  # the field takes any octet; ptp4l takes less
    return max(_MIN_FRESH_NS, round(_FRESH_SYNCS * 2.0**log_interval * NS_PER_S))


def judge_ptp(reading: Ptp4lReading, *, clock_now_ns: int | None, software: bool) -> Claim:
    """The clock that ptp4l steers, against its parent.

    clock_now_ns: that clock at the reading's instant (the PHC, or CLOCK_REALTIME with software stamps); None where it
    could not be read, and then no offset is claimed: its age would be unknown.
    """
    slaves, parent = reading.in_state(PortState.SLAVE), reading.parent
    if not reading.ports or parent is None:
        return _nothing(SyncState.UNKNOWN, reading, "ptp4l did not tell its ports or its parent")
    if not slaves:
        return _not_following(reading, parent)
    status, current = reading.time_status, reading.current
    source = clock_text(parent.gm_identity)
    if status is None or current is None:
        return _nothing(SyncState.UNKNOWN, reading, "ptp4l did not tell its offset", source=source)
    if clock_now_ns is None:
        why = "the clock that stamps could not be read: how old ptp4l's offset is cannot be told"
        return _nothing(SyncState.UNKNOWN, reading, why, source=source)
    age_ns = clock_now_ns - status.ingress_time_ns
    why_old = _why_not_of_now(status, current, age_ns)
    if why_old:
        return _nothing(SyncState.UNSYNCHRONISED, reading, why_old, source=source)
    acted = _servo_acted(status.master_offset_ns, slaves[0], age_ns=max(age_ns, 0))
    at_sync = _at_last_sync(reading, parent, status, current, acted_ns=acted, software=software)
    return _at_reading(at_sync, slaves[0], source, age_ns=max(age_ns, 0), hops=current.steps_removed)


def _why_not_of_now(status: TimeStatus, current: CurrentDataSet, age_ns: int) -> str | None:
    """Why the numbers of a clock with a SLAVE port are old, or no measurement at all; None where they hold."""
    if status.ingress_time_ns == 0:
        return "no Sync since the grandmaster changed or the clock was stepped: ptp4l's offset is an old one"
    if current.mean_path_delay_ns <= 0:
        return f"mean path delay {current.mean_path_delay_ns} ns: no delay was measured, so no offset either"
    if age_ns < -_FUTURE_NS:
        return f"the last Sync came {format_span_ns(-age_ns)} later than now: the clock was stepped back since"
    return None


def _servo_acted(offset_ns: int, port: PortDataSet, *, age_ns: int) -> int:
    """How far the servo may have moved the clock since the last Sync, because of the offset that it showed.

    linuxptp limits its pull to the offset itself an interval (proportional 0.7, integral 0.3 of it). A Sync that came
    late shows an offset that was none, and the servo then moves a clock that was right: seen on a busy machine.
    """
    interval_ns = 2.0 ** max(-10, min(port.log_sync_interval, 10)) * NS_PER_S
    return math.ceil(abs(offset_ns) * max(1.0, age_ns / interval_ns))


def _at_last_sync(
    reading: Ptp4lReading,
    parent: ParentDataSet,
    status: TimeStatus,
    current: CurrentDataSet,
    *,
    acted_ns: int,
    software: bool,
) -> Offset:
    grandmaster, hops = clock_text(parent.gm_identity), current.steps_removed
    one_hop = hops <= 1
    return Offset.around(
        status.master_offset_ns,
        abs(status.master_offset_ns)
        + acted_ns
        + current.mean_path_delay_ns
        + (SOFTWARE_STAMP_NS if software else HARDWARE_STAMP_NS),
        reference=f"grandmaster {grandmaster}" if one_hop else f"parent clock {parent.parent_port}",
        method=METHOD,
        assumptions=(
            f"one hop: to the {'grandmaster' if one_hop else f'parent; the grandmaster is {hops} hops away'}",
            "Sync took at most twice the mean path delay, transparent clocks in between corrected rightly",
            f"the servo holds the rate within {LOCKED_DRIFT_PPB // 1000} ppm between Syncs",
        ),
        at_raw_ns=reading.at_raw_ns,
    )


def _at_reading(at_sync: Offset, port: PortDataSet, grandmaster: str, *, age_ns: int, hops: int) -> Claim:
    """The offset of the last Sync brought to now, or holdover where that Sync is too old."""
    limit_ns, age = fresh_within_ns(port), format_span_ns(age_ns)
    reason = f"port {port.port_identity.port} SLAVE of {grandmaster}, {hops} hop(s), last Sync {age} ago"
    if age_ns > limit_ns:
        why = f"no Sync for {age} (limit {format_span_ns(limit_ns)}): its offset stands still"
        offset = at_sync.aged(age_ns)
        return Claim(state=SyncState.HOLDOVER, source=grandmaster, offset=offset, reasons=(reason, why))
    offset = at_sync.aged(age_ns, drift_bound_ppb=LOCKED_DRIFT_PPB)
    return Claim(state=SyncState.SYNCHRONISED, source=grandmaster, offset=offset, reasons=(reason,))


def _not_following(reading: Ptp4lReading, parent: ParentDataSet) -> Claim:
    """No port in SLAVE: what ptp4l still shows as offset is old, or zero that means nothing."""
    own = reading.default.clock_identity
    shown = _shown_offset(reading.time_status)
    states = ", ".join(f"port {port.port_identity.port} {port.state_name}" for port in reading.ports)
    grandmaster = clock_text(parent.gm_identity)
    if reading.in_state(PortState.UNCALIBRATED):
        why = f"{states}: the servo has not locked (or ptp4l only tells another program: free_running, ntpshm)"
        return _nothing(SyncState.UNSYNCHRONISED, reading, why, *shown, source=grandmaster)
    if parent.gm_identity != own:
        if reading.in_state(PortState.PASSIVE):
            return _nothing(
                SyncState.FREE_RUNNING, reading, f"{states}: {grandmaster} serves; this clock follows nobody", *shown
            )
        why = f"{states}: grandmaster {grandmaster} is lost; what ptp4l shows is from before"
        return _nothing(SyncState.HOLDOVER, reading, why, *shown)
    if reading.in_state(PortState.MASTER, PortState.PRE_MASTER):
        why = f"{states}: it is grandmaster itself and follows nobody (its offset of 0 means nothing)"
        return _nothing(SyncState.FREE_RUNNING, reading, why, *shown)
    return _nothing(SyncState.UNSYNCHRONISED, reading, f"{states}: no grandmaster heard", *shown)


def _shown_offset(status: TimeStatus | None) -> tuple[str, ...]:
    if status is None or status.master_offset_ns == 0:
        return ()
    return (f"the offset of {format_offset_ns(status.master_offset_ns)} that it still shows is not one of now",)


def _nothing(state: SyncState, reading: Ptp4lReading, *reasons: str, source: str = "") -> Claim:
    more = reasons if reading.complete else (*reasons, "not every port answered in time")
    return Claim.without_offset(state, *more, method=METHOD, source=source)


def describe_role(reading: Ptp4lReading) -> str:
    """One clause on what this ptp4l does for others, for nodes whose clock another daemon owns."""
    states = [port.port_state for port in reading.ports]
    name = f"ptp4l (domain {reading.domain})"
    if PortState.SLAVE in states:
        return f"{name}: {'boundary' if len(states) > 1 else 'ordinary'} clock"
    if states and all(state == PortState.MASTER for state in states):
        return f"{name}: grandmaster {clock_text(reading.default.clock_identity)}"
    return f"{name}: {', '.join(state_name(state) for state in states) or 'no ports'}"
