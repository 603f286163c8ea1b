"""What chronyd's report says of the system clock: pure, from one reading.

The traps (measured on chronyd 4.3): not synchronised it reports a root delay and dispersion of 1 s, which are
constants; with `local` and no source it reports a perfect clock; after all sources are lost it goes on saying
"synchronised" for very long. Each gives a state of its own here, and none of the three a confident bound.
"""

from __future__ import annotations

from rankclock.node.chronyd import ChronydReading
from rankclock.node.claim import Claim
from rankclock.timebase import NS_PER_S, Offset, SyncState, format_span_ns
from rankclock.wire.chrony import LEAP_UNSYNCHRONISED, REFID_LOCAL, SourceData, SourceMode, SourceState, refid_text

__all__ = ["judge_chrony"]

METHOD = "chronyd's own estimate (tracking)"
STALE_AFTER_POLLS = 8
"""An update is late when this many update intervals have passed: reach, 8 bits, is empty then too."""

MIN_STALE_NS = 8 * NS_PER_S
"""Below this the fuzz of up to 1 s in the time of the last update would decide."""

MAX_SLEW_PPB = 100_000_000
"""More than chronyd's largest slew (83,333 ppm): how fast its remaining correction can change while it is read."""

_ASSUMPTIONS = (
    "the server's time is right within its own root dispersion",
    "the one-way delays differ by no more than the round trip (root delay / 2)",
    "the oscillator wanders less than chronyd's skew + maxclockerror (1 ppm by default)",
)


def judge_chrony(reading: ChronydReading) -> Claim:
    """The clock as chronyd sees it now; its offset is that of the system clock from the root of its source."""
    tracking, sources = reading.tracking, reading.sources or ()
    if tracking.leap == LEAP_UNSYNCHRONISED or tracking.refid == 0:
        return Claim.without_offset(
            SyncState.UNSYNCHRONISED,
            "chronyd is not synchronised (its root delay and dispersion of 1 s are constants then)",
            *_why_no_source(reading.sources),
            method=METHOD,
        )
    if tracking.refid == REFID_LOCAL:
        return Claim.without_offset(
            SyncState.FREE_RUNNING,
            f"chronyd serves its own clock ('local', stratum {tracking.stratum}): its zeros are no offset and no bound",
            *_why_no_source(reading.sources),
            method=METHOD,
        )
    selected = next((source for source in sources if source.state == SourceState.SELECTED), None)
    source = tracking.address.text or refid_text(tracking.refid)
    if selected is not None:
        source = selected.name
    claim = Claim(
        state=SyncState.SYNCHRONISED,
        source=source,
        offset=_offset(reading, source),
        reasons=(f"follows {source}, stratum {tracking.stratum}, last update {_age_text(reading)} ago",),
    )
    if selected is not None and selected.mode == SourceMode.REFCLOCK:
        claim = claim.because("a reference clock's own error is not in chronyd's bound")
    coasting = _why_coasting(reading, selected)
    return claim.because(coasting, state=SyncState.HOLDOVER) if coasting else claim


def _age_ns(reading: ChronydReading) -> int:
    # The reported instant is up to 1 s too early on purpose, so this is never too small but for the reading's own span.
    return max(reading.at_real_ns - reading.tracking.ref_time_ns, 0)


def _age_text(reading: ChronydReading) -> str:
    return format_span_ns(_age_ns(reading))


def _offset(reading: ChronydReading, source: str) -> Offset:
    tracking = reading.tracking
    # While the clock is slewed, the correction changes between question and answer; settled, this is next to nothing.
    read_ns = min(
        abs(tracking.offset_ns), (reading.after_raw_ns - reading.before_raw_ns) * MAX_SLEW_PPB // 1_000_000_000 + 1
    )
    return Offset.around(
        tracking.offset_ns,
        tracking.root_distance_ns + read_ns,
        reference=f"root behind {source}",
        method=METHOD,
        assumptions=_ASSUMPTIONS,
        at_raw_ns=(reading.before_raw_ns + reading.after_raw_ns) // 2,
        age_ns=_age_ns(reading),
    )


def _why_coasting(reading: ChronydReading, selected: SourceData | None) -> str | None:
    """Why the clock runs on without its source, None where it does not."""
    if reading.sources is not None:
        if not any(source.reach for source in reading.sources):
            return "no source answers any more: chronyd coasts on its last frequency"
        if selected is None:
            return "no source is selected: chronyd coasts on its last frequency"
    interval_ns = round(reading.tracking.last_update_interval_s * NS_PER_S)
    if selected is not None:
        interval_ns = max(interval_ns, round(2.0**selected.poll * NS_PER_S))
    limit_ns = max(STALE_AFTER_POLLS * interval_ns, MIN_STALE_NS)
    if _age_ns(reading) > limit_ns:
        return f"no update for {_age_text(reading)}, {STALE_AFTER_POLLS} intervals are {format_span_ns(limit_ns)}"
    return None


def _why_no_source(sources: tuple[SourceData, ...] | None) -> tuple[str, ...]:
    """One clause a source that is not followed, the first few."""
    if sources is None:
        return ("its sources could not be listed",)
    if not sources:
        return ("it has no sources",)
    return tuple(_clause(source) for source in sources[:4])


def _clause(source: SourceData) -> str:
    if source.state == SourceState.FALSETICKER:
        return f"source {source.name} disagrees with the others (falseticker)"
    if source.state == SourceState.JITTERY:
        return f"source {source.name} is too variable"
    if not source.reach:
        return f"source {source.name} does not answer"
    return f"source {source.name} answers (reach {source.reach:o}) but is not usable yet (state '{source.mark}')"
