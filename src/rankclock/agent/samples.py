"""A story's present state as samples: name, label values, number. Pure; `agent.metrics` says what each name means."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from rankclock.agent.details import Details
from rankclock.agent.look import Look
from rankclock.agent.story import Reader, Story
from rankclock.mesh.report import EdgeReport
from rankclock.node.kernel import Adjtimex
from rankclock.timebase import NS_PER_S, Offset, SyncState
from rankclock.wire.ptp_data_sets import PortState

__all__ = ["Sample", "samples_of"]

_LABEL_CHARACTERS = 128
"""Longer than any name of ours: a label value is for finding things, not for carrying texts."""

_PORT_STATES = tuple(state.name for state in PortState)


class Sample(NamedTuple):
    """One sample without the label `node`."""

    name: str
    labels: tuple[str, ...]
    value: float


def samples_of(
    story: Story, *, now_ns: int, now_unix_s: float, started_unix_s: float, version: str
) -> Iterator[Sample]:
    """Everything there is to say now."""
    yield Sample("agent_info", (version, story.clock_class.value), 1)
    yield Sample("agent_start_timestamp_seconds", (), started_unix_s)
    yield Sample("maintenance", (), story.silenced)
    state = story.state(now_ns)
    for each in SyncState:
        yield Sample("clock_state", (each.value,), each is state.state)
    yield Sample("clock_info", (_label(state.owner or "nobody"), _label(state.source)), 1)
    yield Sample("clock_source_changes_total", (), story.source_changes)
    yield from _offset("claimed_offset", (), state.claimed)
    if state.claimed.known:
        yield Sample("claimed_offset_info", (_label(state.claimed.reference), _label(state.claimed.method)), 1)
        looked_ns = story.look.state.claimed.age_ns if story.look else 0
        yield Sample("claimed_update_age_seconds", (), looked_ns / NS_PER_S)
    yield from _mesh(story, now_ns)
    for scope, limit_ns in zip(("cluster", "utc"), story.settings.limits_ns(story.clock_class), strict=True):
        yield Sample("offset_limit_seconds", (scope,), limit_ns / NS_PER_S)
    yield Sample("holdover_seconds", (), story.holdover_ns(now_ns) / NS_PER_S)
    yield Sample("holdover_budget_seconds", (), story.settings.holdover_budget_ns / NS_PER_S)
    yield Sample("sources_wanted", (), story.settings.sources_wanted)
    if story.look is not None and story.fresh(story.daemons, now_ns):
        yield from _looked(story, story.look)
    if story.details is not None and story.fresh(story.more, now_ns):
        yield from _detailed(story.details)
    yield Sample("reader_period_seconds", (), story.settings.read_every_ns / NS_PER_S)
    yield from _reader("daemons", story.daemons, story, now_ns, now_unix_s)
    yield from _reader("details", story.more, story, now_ns, now_unix_s)
    if story.settings.probe is not None:
        yield from _reader("mesh", story.mesh, story, now_ns, now_unix_s)


def _label(text: str) -> str:
    return text[:_LABEL_CHARACTERS]


def _offset(name: str, labels: tuple[str, ...], offset: Offset) -> Iterator[Sample]:
    yield Sample(f"{name}_known", labels, offset.known)
    if offset.estimate_ns is None or offset.lo_ns is None or offset.hi_ns is None:
        return
    yield Sample(f"{name}_seconds", labels, offset.estimate_ns / NS_PER_S)
    yield Sample(f"{name}_lower_seconds", labels, offset.lo_ns / NS_PER_S)
    yield Sample(f"{name}_upper_seconds", labels, offset.hi_ns / NS_PER_S)


def _mesh(story: Story, now_ns: int) -> Iterator[Sample]:
    if story.report is None:
        return
    yield Sample("clock_steps_total", (), story.steps)
    for edge in story.probed:
        yield from _edge(edge, fresh=story.fresh(story.mesh, now_ns))
    standing = story.standing(now_ns)
    if standing is not None and standing.measured and story.fresh(story.daemons, now_ns):
        yield Sample("mesh_disagrees", (), standing.disagrees)
        yield Sample("mesh_peers_against", (), len(standing.against))


def _edge(edge: EdgeReport, *, fresh: bool) -> Iterator[Sample]:
    peer = (edge.peer,)
    yield Sample("mesh_probes_total", peer, edge.sent)
    yield Sample("mesh_answers_total", peer, edge.answered)
    if not fresh:
        yield Sample("mesh_offset_known", peer, 0)
        return
    yield from _offset("mesh_offset", peer, edge.offset)
    if edge.offset.known and edge.min_rtt_ns is not None:
        yield Sample("mesh_round_trip_seconds", peer, edge.min_rtt_ns / NS_PER_S)


def _looked(story: Story, look: Look) -> Iterator[Sample]:
    if look.sources is not None:
        for state, count in look.sources.counts.items():
            yield Sample("sources", (state,), count)
        yield Sample("sources_usable", (), look.sources.usable)
        for source in look.sources.shown:
            name = (_label(source.name),)
            yield Sample("source_reach_ratio", name, source.reach.bit_count() / 8)
            if source.offset_ns is not None and source.bound_ns is not None:
                yield Sample("source_offset_seconds", name, source.offset_ns / NS_PER_S)
                yield Sample("source_bound_seconds", name, source.bound_ns / NS_PER_S)
            if source.age_ns is not None:
                yield Sample("source_sample_age_seconds", name, source.age_ns / NS_PER_S)
    yield from _ptp(look)
    if look.ptp:
        yield Sample("ptp_grandmaster_changes_total", (), story.grandmaster_changes)
    if look.kernel is not None:
        yield from _kernel(look.kernel)


def _known(name: str, labels: tuple[str, ...], value: float | None) -> Iterator[Sample]:
    """Nothing where nothing was told: an absent series, never a zero."""
    if value is not None:
        yield Sample(name, labels, value)


def _detailed(details: Details) -> Iterator[Sample]:
    for source, extra in details.sources.items():
        name = (_label(source),)
        yield from _known("source_authenticated", name, extra.authenticated)
        yield from _known("source_nts_cookies", name, extra.nts_cookies)
        if extra.stamps is not None:
            yield Sample("source_stamps_info", (*name, *extra.stamps), 1)
    for counter, counts in (("requests", details.served), ("drops", details.dropped)):
        for kind, count in counts.items():
            yield Sample(f"server_{counter}_total", (kind,), count)
    for receiver in details.receivers:
        device = (_label(receiver.device),)
        yield from _known("gps_fix", device, None if receiver.mode is None else receiver.mode >= 2)
        yield from _known("gps_satellites_used", device, receiver.used)
        yield from _known("gps_satellites_seen", device, receiver.seen)
    for waits in details.waits:
        for kind, count in waits.counts.items():
            yield Sample("ptp_port_waits_total", (str(waits.domain), str(waits.port), kind), count)
    for (domain, state), count in details.masters.items():
        yield Sample("ptp_unicast_masters", (str(domain), state), count)
    for interface, stamps in details.nics.items():
        name = (_label(interface),)
        yield from _known("nic_stamps_stamped_total", name, stamps.stamped)
        yield from _known("nic_stamps_lost_total", name, stamps.lost)
        yield from _known("nic_stamps_errors_total", name, stamps.errors)


def _ptp(look: Look) -> Iterator[Sample]:
    for clock in look.ptp:
        domain = (str(clock.domain),)
        yield Sample("ptp_info", (*domain, clock.identity, clock.grandmaster), 1)
        yield Sample("ptp_is_grandmaster", domain, clock.is_own_grandmaster)
        if clock.clock_class is not None:
            yield Sample("ptp_clock_class", domain, clock.clock_class)
        if clock.steps_removed is not None:
            yield Sample("ptp_steps_removed", domain, clock.steps_removed)
        if clock.mean_path_delay_ns:  # 0: none was measured
            yield Sample("ptp_path_delay_seconds", domain, clock.mean_path_delay_ns / NS_PER_S)
        if clock.utc_offset_s is not None:
            yield Sample("ptp_utc_offset_seconds", domain, clock.utc_offset_s)
            yield Sample("ptp_utc_offset_valid", domain, clock.utc_offset_valid)
            yield Sample("ptp_time_traceable", domain, clock.traceable)
        for port, state in clock.ports.items():
            for each in _PORT_STATES:
                yield Sample("ptp_port_state", (*domain, str(port), each), each == state)


def _kernel(kernel: Adjtimex) -> Iterator[Sample]:
    yield Sample("kernel_synchronised", (), kernel.synchronised)
    # A tick of 10,000 µs is the nominal one; what it is off counts beside the frequency.
    yield Sample("kernel_frequency_ratio", (), kernel.freq_ppb / 1e9 + (kernel.tick_us - 10_000) / 10_000)
    yield Sample("kernel_tai_offset_seconds", (), kernel.tai_s)
    yield Sample("kernel_maximum_error_seconds", (), kernel.maxerror_us / 1e6)


def _reader(name: str, reader: Reader, story: Story, now_ns: int, now_unix_s: float) -> Iterator[Sample]:
    label = (name,)
    yield Sample("reader_up", label, story.fresh(reader, now_ns))
    yield Sample("reader_failures_total", label, reader.failures)
    if reader.succeeded_ns is not None:
        ago_s = (now_ns - reader.succeeded_ns) / NS_PER_S
        yield Sample("reader_last_success_timestamp_seconds", label, round(now_unix_s - ago_s, 3))
        yield Sample("reader_duration_seconds", label, reader.took_ns / NS_PER_S)
