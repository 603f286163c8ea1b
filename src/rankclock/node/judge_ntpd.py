"""What ntpd's variables say of the system clock: pure, from one reading.

The traps (measured on ntpsec 1.2.2): without a drift file ntpd says leap 0 after some seconds, then measures the
oscillator's frequency for minutes without steering, its `offset` frozen meanwhile; a step behind its back is a spike
that it does not follow for minutes; with the local clock driver or in orphan mode it follows itself; after all servers
are lost it goes on saying "leap 0". None of them is called synchronised here with a bound that leaves that out.
"""

from __future__ import annotations

from rankclock.node.claim import Claim
from rankclock.node.ntpd import NtpdPeer, NtpdReading
from rankclock.timebase import NS_PER_S, NS_PER_US, Offset, SyncState, format_offset_ns, format_span_ns
from rankclock.wire.ntp_control import LEAP_ALARM, STRATUM_UNSYNCHRONISED, PeerSelection, PeerVariables, SystemEvent

__all__ = ["METHOD", "judge_ntpd"]

METHOD = "ntpd's own estimate (control mode 6)"
LATE_AFTER_POLLS = 9
"""The clock filter holds 8 samples and takes the best one only if it is new: an update may be 8 polls apart."""

MIN_LATE_NS = 30 * NS_PER_S
"""ntpd keeps 2 s between packets whatever minpoll says; with minpoll 0 updates were up to 15 s apart."""

PRINTED_TO_NS = NS_PER_US
"""ntpd prints root delay and dispersion in ms with three digits: both together are rounded by less than this."""

_LOCAL_REFIDS = {"LOCL", "LCL", "LOCAL(0)"}
_LOCAL_ADDRESS = "127.127.1."
_REFERENCE_CLOCK = "127.127."
_ORPHAN_REFID = "127.0.0.1"

_ASSUMPTIONS = (
    "the server's time is right within its own root dispersion",
    "the one-way delays differ by no more than the round trip (root delay / 2)",
    "the oscillator wanders less than 15 ppm from the frequency that ntpd found (ntpd's PHI)",
)


def judge_ntpd(reading: NtpdReading) -> Claim:
    """The clock as ntpd sees it now; its offset is that of the system clock from the root of its source."""
    system = reading.system
    if LEAP_ALARM in (reading.status.leap, system.leap) or (system.stratum or 0) >= STRATUM_UNSYNCHRONISED:
        why = f"ntpd is not synchronised (leap alarm, refid {system.refid or 'unknown'})"
        return Claim.without_offset(SyncState.UNSYNCHRONISED, why, *_why_no_source(reading), method=METHOD)
    alone = _why_alone(reading)
    if alone:
        return Claim.without_offset(SyncState.FREE_RUNNING, alone, *_why_no_source(reading), method=METHOD)
    idle = _why_not_steering(reading)
    if idle:
        return Claim.without_offset(SyncState.UNSYNCHRONISED, idle, method=METHOD, source=_source(reading))
    offset = _offset(reading)
    if offset is None:
        why = "ntpd did not give its offset, root delay and root dispersion as numbers"
        return Claim.without_offset(SyncState.UNKNOWN, why, method=METHOD, source=_source(reading))
    stratum = "?" if system.stratum is None else system.stratum
    claim = Claim(
        state=SyncState.SYNCHRONISED,
        source=_source(reading),
        offset=offset,
        reasons=(f"follows {_source(reading)}, stratum {stratum}, last update {format_span_ns(offset.age_ns)} ago",),
    )
    if claim.source.startswith(_REFERENCE_CLOCK):
        claim = claim.because("a reference clock's own error is not in ntpd's bound")
    if "unsync" in (system.kernel_flags or ()):
        claim = claim.because("the kernel's clock says unsynchronised though ntpd does not")
    refused = _why_refused(reading)
    if refused:
        return claim.because(refused, state=SyncState.UNSYNCHRONISED)
    coasting = _why_coasting(reading, offset.age_ns)
    return claim.because(coasting, state=SyncState.HOLDOVER) if coasting else claim


def _source(reading: NtpdReading) -> str:
    followed = reading.followed
    if followed and followed.variables and followed.variables.address:
        return followed.variables.address
    return reading.system.refid


def _why_alone(reading: NtpdReading) -> str | None:
    """Why ntpd's reference is its own clock, None where it is another."""
    system, followed = reading.system, reading.followed
    address = followed.variables.address if followed and followed.variables else ""
    local = system.refid.strip(".").upper() in _LOCAL_REFIDS or system.refid.startswith(_LOCAL_ADDRESS)
    if local or address.startswith(_LOCAL_ADDRESS):
        return f"ntpd follows its own clock (local clock driver, stratum {system.stratum}): its zeros are no offset"
    if system.refid == _ORPHAN_REFID and followed is None:
        return f"ntpd serves its own clock (orphan mode, stratum {system.stratum}): its zeros are no offset"
    return None


def _why_not_steering(reading: NtpdReading) -> str | None:
    """Why ntpd's offset does not speak of now though it says that it is synchronised."""
    if reading.status.event == SystemEvent.FREQUENCY_MODE or reading.system.frequency_ppm == 0:
        return "ntpd measures the oscillator's frequency first (no drift file): for minutes it steers nothing"
    if reading.status.event == SystemEvent.SPIKE:
        return "ntpd sees an offset that it takes for a spike: it waits for minutes before it follows"
    return None


def _why_refused(reading: NtpdReading) -> str | None:
    """Why the followed server's last sample contradicts the offset that ntpd keeps, None where it does not."""
    seen, system = _seen_of(reading.followed), reading.system
    if seen is None or system.offset_ns is None or system.root_delay_ns is None or system.root_dispersion_ns is None:
        return None
    peer_ns, doubt_ns = seen
    kept_ns = _distance_ns(system.offset_ns, system.root_delay_ns, system.root_dispersion_ns)
    if abs(peer_ns) - doubt_ns <= kept_ns:
        return None
    return f"its server was last seen {format_offset_ns(peer_ns)} away: ntpd has not followed that"


def _seen_of(followed: NtpdPeer | None) -> tuple[int, int] | None:
    """The followed server's own sample, and its doubt down to the root, in ns."""
    peer: PeerVariables | None = followed.variables if followed else None
    if peer is None or peer.offset_ns is None or peer.delay_ns is None or peer.dispersion_ns is None:
        return None
    behind_ns = _distance_ns(0, peer.root_delay_ns or 0, peer.root_dispersion_ns or 0)
    return peer.offset_ns, _distance_ns(0, peer.delay_ns, peer.dispersion_ns) + behind_ns


def _distance_ns(offset_ns: int, delay_ns: int, dispersion_ns: int) -> int:
    return abs(offset_ns) + -(-abs(delay_ns) // 2) + abs(dispersion_ns)


def _offset(reading: NtpdReading) -> Offset | None:
    """Around zero, not around ntpd's offset: since the update that it speaks of the clock was slewed towards zero, how
    far is in no variable, and past it by overshoot.
    """
    system = reading.system
    if system.offset_ns is None or system.root_delay_ns is None or system.root_dispersion_ns is None:
        return None
    reach_ns = _distance_ns(system.offset_ns, system.root_delay_ns, system.root_dispersion_ns)
    seen = _seen_of(reading.followed)
    if seen is not None:
        reach_ns = max(reach_ns, abs(seen[0]) + seen[1])
    reach_ns += PRINTED_TO_NS
    return Offset(
        lo_ns=-reach_ns,
        hi_ns=reach_ns,
        estimate_ns=system.offset_ns,
        reference=f"root behind {_source(reading)}",
        method=METHOD,
        assumptions=_ASSUMPTIONS,
        at_raw_ns=(reading.before_raw_ns + reading.after_raw_ns) // 2,
        age_ns=_age_ns(reading),
    )


def _age_ns(reading: NtpdReading) -> int:
    """Since the last update, on ntpd's own clock; 0 only where it did not say."""
    now_ns = reading.system.clock_ns or reading.at_real_ns
    reference_ns = reading.system.reference_time_ns
    return max(now_ns - reference_ns, 0) if reference_ns is not None else 0


def _why_coasting(reading: NtpdReading, age_ns: int) -> str | None:
    """Why the clock runs on without its source, None where it does not."""
    followed = reading.followed
    if reading.peers is not None:
        if not any(peer.variables is None or peer.variables.reach for peer in reading.peers):
            return "no server answers any more: ntpd coasts on its last frequency"
        if followed is None:
            return "no server is followed: ntpd coasts on its last frequency"
    if reading.system.reference_time_ns is None:
        return "ntpd does not say when it was last updated"
    poll = reading.system.time_constant or 0
    if followed and followed.variables and followed.variables.poll is not None:
        poll = followed.variables.poll
    limit_ns = max(LATE_AFTER_POLLS * round(2.0 ** min(poll, 17) * NS_PER_S), MIN_LATE_NS)
    if age_ns > limit_ns:
        return f"no update for {format_span_ns(age_ns)}, {LATE_AFTER_POLLS} polls are {format_span_ns(limit_ns)}"
    return None


def _why_no_source(reading: NtpdReading) -> tuple[str, ...]:
    """One clause a server that is not followed, the first few."""
    if reading.peers is None:
        return ("its servers could not be listed",)
    if not reading.peers:
        return ("it has no servers",)
    return tuple(_clause(peer) for peer in reading.peers[:4] if not peer.status.followed)


def _clause(peer: NtpdPeer) -> str:
    found = peer.variables
    name = f"server {found.address}" if found and found.address else f"association {peer.association}"
    if peer.status.selection is PeerSelection.FALSETICKER:
        return f"{name} disagrees with the others (falseticker)"
    if found is None:
        return f"{name} could not be read"
    if not found.reach:
        return f"{name} does not answer"
    mark = peer.status.selection.mark
    return f"{name} answers (reach {found.reach:o}) but is not followed (mark '{mark}', flash {found.flash or 0:#x})"
