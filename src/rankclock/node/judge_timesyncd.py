"""What systemd-timesyncd's last exchange says of the system clock: pure, from one reading.

timesyncd publishes no bound (it writes 0 to the kernel's maxerror), follows one server without a check by others, and
between exchanges, up to 34 min apart, nobody looks. The bound here is made of its last exchange: the offset that it
saw, half the round trip, the server's root delay and dispersion, and a free crystal's drift since then.
"""

from __future__ import annotations

from rankclock.node.claim import Claim
from rankclock.node.timesyncd import TimesyncdReading, TimesyncExchange
from rankclock.timebase import (
    DEFAULT_DRIFT_BOUND_PPB,
    NS_PER_MS,
    NS_PER_S,
    NS_PER_US,
    Offset,
    SyncState,
    format_offset_ns,
    format_span_ns,
)

__all__ = ["METHOD", "judge_timesyncd", "judge_without_bus"]

METHOD = "timesyncd's last exchange (D-Bus)"
LATE_AFTER_POLLS = 3
MIN_LATE_NS = 120 * NS_PER_S
LEAP_ALARM = 3
MAX_STRATUM = 15
STEPS_FROM_NS = 400 * NS_PER_MS
"""timesyncd steps the clock from this offset on; the instants of that exchange then stand on the clock before."""

_ROUNDED_NS = 2 * NS_PER_US
_ASSUMPTIONS = (
    "the one server's time is right within its own root dispersion: timesyncd checks it against no other",
    "the one-way delays differ by no more than the round trip",
    "the clock drifts less than 200 ppm from the frequency that it is given",
)


def judge_timesyncd(reading: TimesyncdReading) -> Claim:
    """The clock as timesyncd's last exchange shows it."""
    exchange = reading.exchange
    if exchange is None:
        server = reading.server or "none chosen"
        why = f"timesyncd has had no answer since it started (server: {server})"
        return Claim.without_offset(SyncState.UNSYNCHRONISED, why, method=METHOD)
    if exchange.leap == LEAP_ALARM or not 1 <= exchange.stratum <= MAX_STRATUM:
        why = f"its server is not synchronised (leap {exchange.leap}, stratum {exchange.stratum})"
        return Claim.without_offset(SyncState.UNSYNCHRONISED, why, method=METHOD, source=reading.server)
    offset = _offset(reading, exchange)
    claim = Claim(
        state=SyncState.SYNCHRONISED,
        source=reading.server,
        offset=offset,
        reasons=(
            f"follows {reading.server or '?'}, stratum {exchange.stratum}, last exchange "
            f"{format_span_ns(offset.age_ns)} ago showed {format_offset_ns(exchange.offset_ns)}",
            "timesyncd checks its one server against no other and publishes no bound",
        ),
    )
    if exchange.spike:
        return claim.because("timesyncd took its last exchange for a spike and did not follow it")
    limit_ns = max(LATE_AFTER_POLLS * (reading.poll_ns or 0), MIN_LATE_NS)
    if offset.age_ns > limit_ns:
        why = f"no answer for {format_span_ns(offset.age_ns)}, {LATE_AFTER_POLLS} polls are {format_span_ns(limit_ns)}"
        return claim.because(why, state=SyncState.HOLDOVER)
    return claim


def judge_without_bus(why: str, synchronised_at_ns: int | None, *, now_ns: int) -> Claim:
    """Without the bus there is only the file that timesyncd touches when it sets the clock: no server, no offset."""
    if synchronised_at_ns is None:
        never = "timesyncd has not synchronised the clock since boot (it left no file in /run/systemd/timesync)"
        return Claim.without_offset(SyncState.UNSYNCHRONISED, never, why, method=METHOD)
    ago = format_span_ns(max(now_ns - synchronised_at_ns, 0))
    known = f"timesyncd set the clock {ago} ago, by the file that it touches; how well cannot be seen"
    return Claim.without_offset(SyncState.UNKNOWN, known, why, method=METHOD)


def _offset(reading: TimesyncdReading, exchange: TimesyncExchange) -> Offset:
    """Around zero: since the exchange the clock was slewed towards zero, how far is in no property."""
    age_ns = reading.at_real_ns - exchange.came_ns
    if abs(exchange.offset_ns) >= STEPS_FROM_NS:  # the exchange stands on the clock before the step
        age_ns = max(age_ns, age_ns + exchange.offset_ns)
    age_ns = max(age_ns, 0)
    drift_ns = -(-age_ns * DEFAULT_DRIFT_BOUND_PPB // 1_000_000_000)
    root_ns = -(-exchange.root_delay_ns // 2) + exchange.root_dispersion_ns
    reach_ns = abs(exchange.offset_ns) + -(-abs(exchange.delay_ns) // 2) + root_ns + drift_ns + _ROUNDED_NS
    return Offset(
        lo_ns=-reach_ns,
        hi_ns=reach_ns,
        estimate_ns=exchange.offset_ns,
        reference=f"root behind {reading.server or 'its server'}",
        method=METHOD,
        assumptions=_ASSUMPTIONS,
        at_raw_ns=reading.at_raw_ns,
        age_ns=age_ns,
    )
