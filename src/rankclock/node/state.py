"""The state of this node's CLOCK_REALTIME, from what its owner claims: one ClockState, with a bound or unknown.

Finds who steers the clock, asks that daemon, and for phc2sys (which nobody can ask) compares the PHC with the system
clock itself and adds what ptp4l says of the PHC. Never takes the kernel's maxerror for a bound: phc2sys, ptp4l and
timesyncd write 0 there. `measured` is unknown here: that is for the mesh to say.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace

from rankclock.errors import PeerError
from rankclock.node import kernel
from rankclock.node.chronyd import endpoints_of, read_chronyd
from rankclock.node.claim import Claim
from rankclock.node.daemons import Owners, chronyd_leaves_clock_alone, find_owners
from rankclock.node.fact import why_not
from rankclock.node.judge_chrony import METHOD as CHRONY_METHOD
from rankclock.node.judge_chrony import judge_chrony
from rankclock.node.judge_ntpd import METHOD as NTPD_METHOD
from rankclock.node.judge_ntpd import judge_ntpd
from rankclock.node.judge_ptp import METHOD as PTP_METHOD
from rankclock.node.judge_ptp import describe_role, judge_ptp
from rankclock.node.judge_timesyncd import METHOD as TIMESYNCD_METHOD
from rankclock.node.judge_timesyncd import judge_timesyncd, judge_without_bus
from rankclock.node.linuxptp_options import Phc2sysOptions, phc2sys_options, ptp4l_options
from rankclock.node.nics import phc_index_of
from rankclock.node.ntpd import read_ntpd
from rankclock.node.phc import PhcReading, read_phc
from rankclock.node.processes import Process, ProcessTable, read_processes
from rankclock.node.ptp4l import Ptp4lReading, read_ptp4l
from rankclock.node.timesyncd import last_synchronised, read_timesyncd
from rankclock.timebase import NS_PER_MS, NS_PER_S, ClockState, Offset, SyncState, format_offset_ns
from rankclock.wire.ptp_data_sets import PortState

__all__ = ["ptp4l_behind", "read_clock_state"]

PHC2SYS_SETTLED_NS = NS_PER_MS
"""phc2sys has no state to ask for; farther than this from the PHC it has not done its work."""

NO_METHOD = "no daemon to ask"
_UNMEASURED = "not measured: that takes a peer"


def read_clock_state(node: str | None = None, *, timeout_s: float = 1.0) -> ClockState:
    """What the daemons of this machine claim of its system clock. Asks for at most a few timeouts; raises nothing."""
    name = node or socket.gethostname()
    try:
        table = read_processes()
        owners = find_owners(table)
        claim = _claim(table, owners, timeout_s)
    except OSError as error:
        owners = Owners(steering=(), evidence=(), blind_spot=why_not(error))
        claim = Claim.without_offset(SyncState.UNKNOWN, f"could not look: {why_not(error)}", method=NO_METHOD)
    claim = _with_kernel(claim, owners.names)
    owner: str | None = "+".join(owners.names) or None
    if owner is None and owners.blind_spot:
        owner = "?"
    return ClockState(
        node=name,
        state=claim.state,
        owner=owner,
        source=claim.source,
        claimed=claim.offset,
        measured=Offset.unknown(_UNMEASURED, reference=claim.offset.reference, method="none"),
        reasons=claim.reasons,
    )


def _claim(table: ProcessTable, owners: Owners, timeout_s: float) -> Claim:
    if len(owners.names) > 1:
        why = f"{' and '.join(owners.names)} both steer the clock: neither's claim holds"
        return Claim.without_offset(SyncState.UNKNOWN, why, method=NO_METHOD)
    if not owners.steering:
        return _claim_of_nobody(table, owners, timeout_s)
    name, process = owners.steering[0]
    ask = _ASK.get(name)
    if process.stopped:
        why = f"{name} (pid {process.pid}) is stopped by a signal: nobody steers the clock now"
        claim = _claim_of_phc2sys(table, process, timeout_s) if name == "phc2sys" else None
        if claim and claim.offset.known:  # that comparison is our own, whoever steers
            return claim.because(why, state=SyncState.FREE_RUNNING)
        return Claim.without_offset(SyncState.FREE_RUNNING, why, method=NO_METHOD)
    if ask is None:
        why = f"{name} steers the clock; it cannot be asked here, and the kernel's maxerror is no bound under it"
        return Claim.without_offset(SyncState.UNKNOWN, why, method=NO_METHOD)
    return ask(table, process, timeout_s)


def _claim_of_nobody(table: ProcessTable, owners: Owners, timeout_s: float) -> Claim:
    """No daemon is seen to steer: a chronyd with -x may still know; where processes are hidden one may still answer."""
    watching = [p for p in table.running("chronyd") if chronyd_leaves_clock_alone(p.argv)]
    if watching and not watching[0].stopped:
        claim = _claim_of_chronyd(watching[0], timeout_s)
        if claim.state in (SyncState.SYNCHRONISED, SyncState.HOLDOVER):
            claim = claim.because("chronyd runs with -x: it watches the clock, nobody steers it")
            return replace(claim, state=SyncState.FREE_RUNNING)
        return claim
    if owners.blind_spot:
        return _claim_of_hidden(owners.blind_spot, timeout_s)
    return Claim.without_offset(
        SyncState.FREE_RUNNING, "no daemon steers the clock", *owners.evidence[:3], method=NO_METHOD
    )


def _claim_of_hidden(blind_spot: str, timeout_s: float) -> Claim:
    """Processes are hidden: what answers here may steer the clock."""
    readers: tuple[Callable[[], Claim], ...] = (
        lambda: judge_chrony(read_chronyd(timeout_s=timeout_s)),
        lambda: judge_ntpd(read_ntpd(timeout_s=timeout_s)),
    )
    for read in readers:
        with contextlib.suppress(PeerError):
            return read().because(f"who steers is unknown: {blind_spot}")
    return Claim.without_offset(SyncState.UNKNOWN, blind_spot, method=NO_METHOD)


def _claim_of_chronyd(process: Process, timeout_s: float) -> Claim:
    try:
        return judge_chrony(read_chronyd(endpoints_of(process.argv), timeout_s=timeout_s))
    except PeerError as error:
        return Claim.without_offset(SyncState.UNKNOWN, str(error), method=CHRONY_METHOD)


def _claim_of_owning_chronyd(table: ProcessTable, process: Process, timeout_s: float) -> Claim:
    """With what a ptp4l does here beside it: a grandmaster is fed by the system clock."""
    clauses = []
    for other in table.running("ptp4l"):
        try:
            clauses.append(describe_role(_read(other, timeout_s)))
        except PeerError as error:
            clauses.append(str(error))
    return _claim_of_chronyd(process, timeout_s).because(*clauses)


def _claim_of_ntpd(_table: ProcessTable, _process: Process, timeout_s: float) -> Claim:
    try:
        return judge_ntpd(read_ntpd(timeout_s=timeout_s))
    except PeerError as error:
        return Claim.without_offset(SyncState.UNKNOWN, str(error), method=NTPD_METHOD)


def _claim_of_timesyncd(_table: ProcessTable, _process: Process, timeout_s: float) -> Claim:
    try:
        return judge_timesyncd(read_timesyncd(timeout_s=timeout_s))
    except PeerError as error:
        silent = str(error)
    try:
        return judge_without_bus(silent, last_synchronised(), now_ns=kernel.realtime_ns())
    except OSError as error:
        why = f"{silent}; its file in /run cannot be seen either: {why_not(error)}"
        return Claim.without_offset(SyncState.UNKNOWN, why, method=TIMESYNCD_METHOD)


# ---- PTP ----


def _read(process: Process, timeout_s: float) -> Ptp4lReading:
    options = ptp4l_options(process.argv)
    return read_ptp4l(options.sockets, domain=options.domain, sdo=options.sdo, timeout_s=timeout_s / 2)


def _claim_of_ptp4l(_table: ProcessTable, process: Process, timeout_s: float) -> Claim:
    """ptp4l with software stamps steers CLOCK_REALTIME itself."""
    try:
        reading = _read(process, timeout_s)
    except PeerError as error:
        return Claim.without_offset(SyncState.UNKNOWN, str(error), method=PTP_METHOD)
    claim = judge_ptp(reading, clock_now_ns=reading.at_real_ns, software=True)
    properties = reading.time_properties
    if properties is not None and properties.ptp_timescale:
        offset_s = properties.current_utc_offset_s
        claim = claim.because(f"the grandmaster announces TAI: this clock is led {offset_s} s away from UTC")
    return claim


def _claim_of_phc2sys(table: ProcessTable, process: Process, timeout_s: float) -> Claim:
    """CLOCK_REALTIME against the PHC, by the ioctl, plus the PHC against its grandmaster, by ptp4l."""
    options = phc2sys_options(process.argv)
    readings: list[Ptp4lReading] = []
    silence = "no ptp4l runs here: what its source follows cannot be told"
    stopped = [p for p in table.running("ptp4l") if p.stopped]
    for candidate in table.running("ptp4l"):
        if candidate.stopped:
            silence = f"ptp4l (pid {candidate.pid}) is stopped by a signal: the PHC runs on by itself"
            continue
        try:
            readings.append(_read(candidate, timeout_s))
        except PeerError as error:
            silence = str(error)
    reading = ptp4l_behind(options, readings, _phc_of)
    if reading is None and readings:
        why = f"{len(readings)} ptp4l run here; which of them steers the PHC that phc2sys follows cannot be told"
        return Claim.without_offset(SyncState.UNKNOWN, why, method=PTP_METHOD)
    if reading is None:
        state = SyncState.FREE_RUNNING if stopped or "no ptp4l runs" in silence else SyncState.UNKNOWN
        return Claim.without_offset(state, silence, method=PTP_METHOD)
    try:
        device = _source_device(options, reading)
        phc = read_phc(device)
    except (OSError, LookupError) as error:
        why = why_not(error) if isinstance(error, OSError) else str(error.args[0])
        claim = judge_ptp(reading, clock_now_ns=None, software=False)
        return claim.because(f"the PHC that phc2sys follows could not be read: {why}")
    return _through_phc(options, reading, phc, device)


def ptp4l_behind(
    options: Phc2sysOptions, readings: Sequence[Ptp4lReading], phc_of: Callable[[str], int | None]
) -> Ptp4lReading | None:
    """The ptp4l that steers what phc2sys follows: the only one, or the only one that has that PHC, or that domain.

    None where several might. phc_of: the PHC index of an interface, None where it has none.
    """
    if len(readings) <= 1:
        return readings[0] if readings else None
    if options.source:
        wanted = options.source.removeprefix("/dev/ptp")
        index = int(wanted) if wanted.isdecimal() else phc_of(options.source)
        having = [one for one in readings if index in {phc_of(item.interface) for item in one.properties}]
        return having[0] if index is not None and len(having) == 1 else None
    same = [one for one in readings if one.domain == options.domain]
    return same[0] if len(same) == 1 else None


def _phc_of(interface: str) -> int | None:
    try:
        return phc_index_of(interface)
    except OSError:
        return None


def _source_device(options: Phc2sysOptions, reading: Ptp4lReading) -> str:
    """The PHC that phc2sys takes as its source. Raises LookupError or OSError where it cannot be told."""
    if options.source.startswith("/dev/"):
        return options.source
    interfaces = [options.source] if options.source else _client_interfaces(reading)
    indices = {phc_index_of(interface) for interface in interfaces} - {None}
    if len(indices) != 1:
        raise LookupError(f"the interfaces {', '.join(interfaces) or '(none)'} have {len(indices)} PHCs, not one")
    return f"/dev/ptp{indices.pop()}"


def _client_interfaces(reading: Ptp4lReading) -> Sequence[str]:
    """The interface of the client port; where ptp4l may not tell, or no port is one, all that could be."""
    clients = reading.in_state(PortState.SLAVE, PortState.UNCALIBRATED)
    named = [reading.interface_of(port) for port in clients]
    known = [name for name in named if name]
    if known:
        return known
    return [item.interface for item in reading.properties] or _stamping_interfaces()


def _stamping_interfaces() -> list[str]:
    found = []
    for _, name in socket.if_nameindex():
        try:
            if phc_index_of(name) is not None:
                found.append(name)
        except OSError:
            continue
    return found


_ASK: dict[str, Callable[[ProcessTable, Process, float], Claim]] = {
    "chronyd": _claim_of_owning_chronyd,
    "ntpd": _claim_of_ntpd,
    "systemd-timesyncd": _claim_of_timesyncd,
    "ptp4l": _claim_of_ptp4l,
    "phc2sys": _claim_of_phc2sys,
}


def _through_phc(options: Phc2sysOptions, reading: Ptp4lReading, phc: PhcReading, device: str) -> Claim:
    phc_at_reading_ns = phc.phc_ns - (phc.at_raw_ns - reading.at_raw_ns)
    of_phc = judge_ptp(reading, clock_now_ns=phc_at_reading_ns, software=False)
    ahead_s, timescale = _phc_ahead_of_utc_s(options, reading)
    residual_ns = ahead_s * NS_PER_S - phc.minus_realtime_ns  # CLOCK_REALTIME - (PHC - TAI offset)
    link = f"the system clock is {format_offset_ns(residual_ns)} from {device} (read within ±{phc.width_ns // 2} ns)"
    reasons = (link, timescale)
    if not phc.advances:
        why = f"{device} stands still: neither it nor what follows it keeps time"
        return Claim.without_offset(SyncState.UNSYNCHRONISED, why, *reasons, method=PTP_METHOD)
    if not of_phc.offset.known:
        return of_phc.because(*reasons)
    claim = replace(of_phc.because(*reasons), offset=_moved(of_phc.offset, residual_ns, -(-phc.width_ns // 2)))
    if abs(residual_ns) > PHC2SYS_SETTLED_NS and claim.state is SyncState.SYNCHRONISED:
        return claim.because("phc2sys has not brought the system clock to the PHC", state=SyncState.UNSYNCHRONISED)
    return claim


def _phc_ahead_of_utc_s(options: Phc2sysOptions, reading: Ptp4lReading) -> tuple[int, str]:
    """PHC - UTC in whole seconds, as the grandmaster announces it, and the clause that says so."""
    properties = reading.time_properties
    if properties is None:
        return 0, "ptp4l did not tell its timescale: the PHC is taken for UTC"
    if not properties.ptp_timescale:
        return 0, "the grandmaster announces an arbitrary timescale: the PHC is taken for UTC"
    offset_s = properties.current_utc_offset_s
    clause = f"the PHC keeps TAI = UTC + {offset_s} s as announced"
    if options.offset_s is not None and options.offset_s != -offset_s:
        clause += f", but phc2sys was started with -O {options.offset_s}"
    return offset_s, clause


def _moved(offset: Offset, by_ns: int, wider_ns: int) -> Offset:
    """The sum of an offset and a second leg that is known within ±wider_ns."""
    assert offset.lo_ns is not None
    assert offset.hi_ns is not None
    assert offset.estimate_ns is not None
    return replace(
        offset,
        lo_ns=offset.lo_ns + by_ns - wider_ns,
        hi_ns=offset.hi_ns + by_ns + wider_ns,
        estimate_ns=offset.estimate_ns + by_ns,
        method="ptp4l's own estimate (management) + PHC against CLOCK_REALTIME (ioctl)",
    )


# ---- the kernel's flags ----


def _with_kernel(claim: Claim, owners: Sequence[str]) -> Claim:
    """Says where the kernel's flags contradict the claim: other tools believe them."""
    if claim.state in (SyncState.SYNCHRONISED, SyncState.UNKNOWN):
        return claim
    try:
        timex = kernel.read_adjtimex()
    except OSError as error:
        return claim.because(f"adjtimex: {os.strerror(error.errno or 0).lower()}")
    if not timex.synchronised:
        return claim
    writer = " and ".join(owners) or "somebody"
    return claim.because(
        f"the kernel still says synchronised, maxerror {timex.maxerror_us} µs: {writer} wrote that, it is no bound"
    )
