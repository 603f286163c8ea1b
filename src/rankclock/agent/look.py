"""One look at this node: what its daemons claim, and what they tell besides that alerts need. Raises nothing.

Reads only. Takes as long as the daemons' timeouts at worst (`agent.worker` keeps that away from everything else).
Sources are counted all and shown up to `MAX_SHOWN`: nothing that a neighbour can send makes series without end.
"""

from __future__ import annotations

from dataclasses import dataclass

from rankclock.errors import PeerError
from rankclock.node.chronyd import endpoints_of, read_chronyd
from rankclock.node.kernel import Adjtimex, raw_ns, read_adjtimex
from rankclock.node.linuxptp_options import ptp4l_options
from rankclock.node.ntpd import NtpdPeer, read_ntpd
from rankclock.node.processes import ProcessTable, read_processes
from rankclock.node.ptp4l import Ptp4lReading, read_ptp4l
from rankclock.node.state import read_clock_state
from rankclock.timebase import NS_PER_S, ClockState, SyncState
from rankclock.wire.chrony import NO_SAMPLE_AGE_S, SourceData, SourceState
from rankclock.wire.ntp_control import PeerSelection
from rankclock.wire.ptp_data_sets import clock_text

__all__ = [
    "MAX_PORTS",
    "MAX_PTP_CLOCKS",
    "MAX_SHOWN",
    "Look",
    "PtpClock",
    "Source",
    "Sources",
    "look_at_node",
    "sources_of_timesyncd",
]

MAX_SHOWN = 16
"""More sources than anybody configures on purpose; of a pool gone wild the first are shown and all are counted."""

MAX_PTP_CLOCKS = 8
MAX_PORTS = 64

SOURCE_STATES = {
    SourceState.SELECTED: "selected",
    SourceState.COMBINED: "combined",
    SourceState.SELECTABLE: "selectable",
    SourceState.NONSELECTABLE: "unusable",
    SourceState.FALSETICKER: "falseticker",
    SourceState.JITTERY: "jittery",
}
SELECTIONS = {
    PeerSelection.SYSTEM_PEER: "selected",
    PeerSelection.PPS_PEER: "selected",
    PeerSelection.CANDIDATE: "combined",
    PeerSelection.BACKUP: "selectable",
    PeerSelection.OUTLIER: "selectable",
    PeerSelection.EXCESS: "unusable",
    PeerSelection.FALSETICKER: "falseticker",
    PeerSelection.REJECTED: "unusable",
}
USABLE = ("selected", "combined", "selectable")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One source of chronyd or ntpd. offset_ns: local - source at the last sample, None where there is none. reach: 8
    bits. age_ns: None where the daemon does not say (ntpd).
    """

    name: str
    state: str
    reach: int
    offset_ns: int | None
    bound_ns: int | None
    age_ns: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """All sources counted by state, and the first of them. root_distance_ns: of tracking, without the offset."""

    counts: dict[str, int]
    shown: tuple[Source, ...]

    @property
    def usable(self) -> int:
        """Those that agree enough to be followed."""
        return sum(self.counts.get(state, 0) for state in USABLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PtpClock:
    """One ptp4l. grandmaster: '' where it did not tell its parent. ports: number to state name."""

    domain: int
    identity: str
    grandmaster: str
    is_own_grandmaster: bool
    clock_class: int | None
    clock_accuracy: int | None
    steps_removed: int | None
    mean_path_delay_ns: int | None
    utc_offset_s: int | None
    utc_offset_valid: bool
    traceable: bool
    ports: dict[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What was seen at local CLOCK_MONOTONIC_RAW at_raw_ns. sources: None where no chronyd listed any."""

    state: ClockState
    sources: Sources | None
    ptp: tuple[PtpClock, ...]
    kernel: Adjtimex | None
    at_raw_ns: int


def look_at_node(node: str, *, timeout_s: float = 1.0) -> Look:
    """Look once."""
    state = read_clock_state(node, timeout_s=timeout_s)
    sources, timex = None, None
    ptp: tuple[PtpClock, ...] = ()
    try:
        timex = read_adjtimex()
        table = read_processes()
        silent = state.owner if state.state is SyncState.UNKNOWN else None  # not waited for twice
        sources = _sources_of(table, silent, timeout_s) or sources_of_timesyncd(state)
        ptp = () if silent in ("ptp4l", "phc2sys") else _ptp_clocks(table, timeout_s)
    except OSError:
        pass  # the state says what could not be looked at, and why
    return Look(state=state, sources=sources, ptp=ptp, kernel=timex, at_raw_ns=raw_ns())


def _sources_of(table: ProcessTable, silent: str | None, timeout_s: float) -> Sources | None:
    """chronyd's, else ntpd's."""
    found = None if silent == "chronyd" else _sources(table, timeout_s)
    return found or (None if silent == "ntpd" else _ntpd_sources(table, timeout_s))


def sources_of_timesyncd(state: ClockState) -> Sources | None:
    """timesyncd follows one server, whatever its list holds: one that is usable while it answers, and no majority."""
    if state.owner != "systemd-timesyncd" or not state.source:
        return None
    name = "selected" if state.state is SyncState.SYNCHRONISED else "unusable"
    return Sources(counts={**dict.fromkeys(SOURCE_STATES.values(), 0), name: 1}, shown=())


def _ntpd_sources(table: ProcessTable, timeout_s: float) -> Sources | None:
    running = table.running("ntpd")
    if not running or running[0].stopped:
        return None
    try:
        peers = read_ntpd(timeout_s=timeout_s).peers
    except PeerError:
        return None
    if peers is None:
        return None
    counts = dict.fromkeys(SOURCE_STATES.values(), 0)
    shown: dict[str, Source] = {}
    for peer in peers:
        state = SELECTIONS[peer.status.selection]
        counts[state] += 1
        name = peer.variables.address if peer.variables else ""
        if name and len(shown) < MAX_SHOWN:
            shown.setdefault(name, _ntpd_source(name, state, peer))
    return Sources(counts=counts, shown=tuple(shown.values()))


def _ntpd_source(name: str, state: str, peer: NtpdPeer) -> Source:
    """A peer that never answered has an offset of 0 that means nothing."""
    found = peer.variables
    assert found is not None
    sampled = bool(found.reach) and found.delay_ns is not None and found.dispersion_ns is not None
    bound_ns = (found.delay_ns or 0) // 2 + (found.dispersion_ns or 0) if sampled else None
    return Source(
        name=name,
        state=state,
        reach=(found.reach or 0) & 0xFF,
        offset_ns=found.offset_ns if sampled else None,
        bound_ns=bound_ns,
        age_ns=None,
    )


def _sources(table: ProcessTable, timeout_s: float) -> Sources | None:
    running = table.running("chronyd")
    if running and running[0].stopped:
        return None
    if not running and not table.blind_spot:
        return None
    try:
        reading = read_chronyd(endpoints_of(running[0].argv if running else ()), timeout_s=timeout_s)
    except PeerError:
        return None
    if reading.sources is None:
        return None
    counts = dict.fromkeys(SOURCE_STATES.values(), 0)
    for source in reading.sources:
        counts[_state_of(source)] = counts.get(_state_of(source), 0) + 1
    shown: dict[str, Source] = {}
    for source in reading.sources:
        if len(shown) < MAX_SHOWN:
            shown.setdefault(source.name, _source(source))  # a source configured twice is one label value
    return Sources(counts=counts, shown=tuple(shown.values()))


def _state_of(source: SourceData) -> str:
    return SOURCE_STATES.get(SourceState(source.state), "unusable") if source.state in set(SourceState) else "unusable"


def _source(source: SourceData) -> Source:
    """chronyd shows a source without a sample as zeros of age 2^32 - 1: those are not passed on."""
    sampled = source.since_sample_s != NO_SAMPLE_AGE_S
    return Source(
        name=source.name,
        state=_state_of(source),
        reach=source.reach & 0xFF,
        offset_ns=round(source.latest_s * NS_PER_S) if sampled else None,
        bound_ns=round(source.latest_err_s * NS_PER_S) if sampled else None,
        age_ns=source.since_sample_s * NS_PER_S if sampled else None,
    )


def _ptp_clocks(table: ProcessTable, timeout_s: float) -> tuple[PtpClock, ...]:
    found: dict[int, PtpClock] = {}
    for process in table.running("ptp4l")[:MAX_PTP_CLOCKS]:
        if process.stopped:
            continue
        options = ptp4l_options(process.argv)
        try:
            reading = read_ptp4l(options.sockets, domain=options.domain, sdo=options.sdo, timeout_s=timeout_s / 2)
        except PeerError:
            continue
        found.setdefault(reading.domain, _ptp_clock(reading))
    return tuple(found.values())


def _ptp_clock(reading: Ptp4lReading) -> PtpClock:
    own, parent, current = reading.default.clock_identity, reading.parent, reading.current
    properties = reading.time_properties
    return PtpClock(
        domain=reading.domain,
        identity=clock_text(own),
        grandmaster=clock_text(parent.gm_identity) if parent else "",
        is_own_grandmaster=parent is not None and parent.gm_identity == own,
        clock_class=parent.gm_quality.clock_class if parent else None,
        clock_accuracy=parent.gm_quality.accuracy if parent else None,
        steps_removed=current.steps_removed if current else None,
        mean_path_delay_ns=current.mean_path_delay_ns if current else None,
        utc_offset_s=properties.current_utc_offset_s if properties else None,
        utc_offset_valid=bool(properties and properties.utc_offset_valid),
        traceable=bool(properties and properties.time_traceable),
        ports={port.port_identity.port: port.state_name for port in reading.ports[:MAX_PORTS]},
    )
