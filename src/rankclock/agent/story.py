"""What the agent knows: the last look, the last report of the prober, and what changed over time. No I/O, no clock.

Events come in as `handle_*` with the instant `now_ns` (CLOCK_MONOTONIC_RAW); what there is to say of them comes back as
log lines. `state()` is the answer: a look that is too old, or one that hangs, is no answer, and the state is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from rankclock.agent.combine import Standing, combine, stand
from rankclock.agent.details import Details
from rankclock.agent.look import Look
from rankclock.agent.settings import ClockClass, Settings
from rankclock.mesh.report import EdgeReport, NodeReport
from rankclock.timebase import NS_PER_S, ClockState, Offset, SyncState, format_span_ns

__all__ = ["PATIENCE_NS", "STALE_PERIODS", "Reader", "Story", "class_of", "with_age"]

STALE_PERIODS = 3
"""A look is made every period; when this many have passed without one, looking hangs."""

PATIENCE_NS = NS_PER_S
"""How much longer than a period a look may take: a daemon that does not answer is waited for, about a second."""

_CLASSES = {"phc2sys": ClockClass.PTP_HARDWARE, "ptp4l": ClockClass.PTP_SOFTWARE}


def class_of(owner: str | None, configured: ClockClass, before: ClockClass) -> ClockClass:
    """The class of a clock: as configured, else by its owner; a clock without one keeps the class that it had."""
    if configured is not ClockClass.AUTO:
        return configured
    if owner is None or owner == "?" or "+" in owner:
        return before
    return _CLASSES.get(owner, ClockClass.NTP)


def with_age(offset: Offset, now_ns: int) -> Offset:
    """The same interval, of the same instant, handed out later: only its age has grown."""
    if offset.at_raw_ns is None:
        return offset
    return replace(offset, age_ns=max(offset.age_ns, now_ns - offset.at_raw_ns))


@dataclass(slots=True, kw_only=True)
class Reader:
    """How reading something goes. succeeded_ns: RAW instant of the last success, None before the first."""

    succeeded_ns: int | None = None
    took_ns: int = 0
    failures: int = 0
    why: str = "not read yet"


@dataclass(slots=True, kw_only=True)
class Story:
    """See the module. revision counts up with every change, so that a page made of it can be kept until then."""

    settings: Settings
    look: Look | None = None
    details: Details | None = None
    report: NodeReport | None = None
    daemons: Reader = field(default_factory=Reader)
    mesh: Reader = field(default_factory=Reader)
    more: Reader = field(default_factory=Reader)
    clock_class: ClockClass = ClockClass.NTP
    grandmaster_changes: int = 0
    source_changes: int = 0
    steps: int = 0
    silenced: bool = False
    revision: int = 0
    holdover_since_ns: int | None = None
    _grandmasters: dict[int, str] = field(default_factory=dict)
    _source: str = ""
    _steps_before: int = 0
    _said: SyncState | None = None

    # ---- what happens ----

    def handle_look(self, look: Look, *, took_ns: int, now_ns: int) -> list[str]:
        """A look was made."""
        self.revision += 1
        self.look = look
        self.daemons = replace(self.daemons, succeeded_ns=look.at_raw_ns, took_ns=took_ns, why="")
        self.clock_class = class_of(look.state.owner, self.settings.clock_class, self.clock_class)
        said = self._grandmasters_now(look)
        if look.state.source and look.state.source != self._source:
            if self._source:
                self.source_changes += 1
                said.append(f"follows {look.state.source}, no longer {self._source}")
            self._source = look.state.source
        return [*said, *self._changed(now_ns)]

    def handle_look_failed(self, why: str, now_ns: int) -> list[str]:
        """A look took too long, or broke."""
        self.revision += 1
        self.daemons.failures += 1
        self.daemons.why = why
        return [f"the daemons could not be read: {why}", *self._changed(now_ns)]

    def handle_details(self, details: Details, *, took_ns: int, now_ns: int) -> list[str]:
        """What daemons tell beside the state was read."""
        self.revision += 1
        self.details = details
        self.more = replace(self.more, succeeded_ns=now_ns, took_ns=took_ns, why="")
        return []

    def handle_details_failed(self, why: str) -> list[str]:
        """That took too long, or broke."""
        self.revision += 1
        self.more.failures += 1
        self.more.why = why
        return [f"what daemons tell beside their state could not be read: {why}"]

    def handle_report(self, report: NodeReport, *, took_ns: int, now_ns: int) -> list[str]:
        """The prober told what it measured."""
        self.revision += 1
        self.report = report
        self.mesh = replace(self.mesh, succeeded_ns=report.made_at_raw_ns, took_ns=took_ns, why="")
        steps = self._steps_before + report.counters.get("own clock stepped", 0)
        said = ["CLOCK_REALTIME was stepped"] if steps > self.steps else []
        self.steps = max(steps, self.steps)
        return [*said, *self._changed(now_ns)]

    def handle_report_failed(self, why: str, now_ns: int) -> list[str]:
        """The prober did not answer, or ended."""
        self.revision += 1
        self.mesh.failures += 1
        self.mesh.why = why
        return [f"nothing is measured: {why}", *self._changed(now_ns)]

    def handle_prober_started(self) -> None:
        """A new prober counts from zero again."""
        self._steps_before = self.steps

    def handle_maintenance(self, silenced: bool) -> list[str]:
        """Somebody began or ended maintenance."""
        if silenced == self.silenced:
            return []
        self.silenced = silenced
        self.revision += 1
        return ["maintenance begins: alerts are silent" if silenced else "maintenance ends: alerts are back"]

    def handle_settings(self, settings: Settings) -> None:
        """The configuration was read again."""
        self.revision += 1
        self.settings = settings
        self.clock_class = class_of(None, settings.clock_class, self.clock_class)

    # ---- what follows ----

    def fresh(self, reader: Reader, now_ns: int) -> bool:
        """Whether what a reader brought is of now."""
        period_ns = self.settings.details_every_ns if reader is self.more else self.settings.read_every_ns
        limit_ns = STALE_PERIODS * (period_ns + PATIENCE_NS)
        return reader.succeeded_ns is not None and now_ns - reader.succeeded_ns <= limit_ns

    @property
    def probed(self) -> tuple[EdgeReport, ...]:
        """What was measured of each peer that is configured now."""
        probe = self.settings.probe
        if probe is None or self.report is None:
            return ()
        return tuple(edge for edge in self.report.edges if edge.peer in probe.peers)

    def standing(self, now_ns: int) -> Standing | None:
        """How the node stands to its peers; None where nobody is probed or the measurement is old."""
        probe = self.settings.probe
        if probe is None or not probe.peers or self.look is None or not self.fresh(self.mesh, now_ns):
            return None
        limit_ns, _ = self.settings.limits_ns(self.clock_class)
        return stand(self.look.state.claimed, self.probed, reference=probe.reference, limit_ns=limit_ns)

    def state(self, now_ns: int) -> ClockState:
        """The clock's state now."""
        if self.look is None or not self.fresh(self.daemons, now_ns):
            return self._not_seen(now_ns)
        state = combine(self.look.state, self.standing(now_ns))
        return replace(state, claimed=with_age(state.claimed, now_ns), measured=with_age(state.measured, now_ns))

    def holdover_ns(self, now_ns: int) -> int:
        """For how long the clock has been in holdover; 0 where it is not."""
        return 0 if self.holdover_since_ns is None else max(now_ns - self.holdover_since_ns, 0)

    def _not_seen(self, now_ns: int) -> ClockState:
        why = self.daemons.why or "the last look is too old"
        if self.daemons.succeeded_ns is not None:
            why = f"{why} (last look {format_span_ns(now_ns - self.daemons.succeeded_ns)} ago)"
        unknown = Offset.unknown(why, reference="none", method="none")
        standing = self.standing(now_ns)
        return ClockState(
            node=self.settings.node,
            state=SyncState.UNKNOWN,
            owner="?",
            source="",
            claimed=unknown,
            measured=standing.shown if standing else unknown,
            reasons=(why,),
        )

    def _changed(self, now_ns: int) -> list[str]:
        if self.look is None and not self.daemons.failures:
            return []  # nothing was tried yet
        state = self.state(now_ns)
        if state.state is SyncState.HOLDOVER:
            self.holdover_since_ns = now_ns if self.holdover_since_ns is None else self.holdover_since_ns
        elif state.state is not SyncState.UNKNOWN:  # who cannot be seen may be in holdover still
            self.holdover_since_ns = None
        if state.state is self._said:
            return []
        self._said = state.state
        return [f"the clock is {state.state.value}: {'; '.join(state.reasons[:3])}"]

    def _grandmasters_now(self, look: Look) -> list[str]:
        said = []
        for clock in look.ptp:
            before = self._grandmasters.get(clock.domain)
            if not clock.grandmaster or clock.grandmaster == before:
                continue
            self._grandmasters[clock.domain] = clock.grandmaster
            if before is not None:
                self.grandmaster_changes += 1
                said.append(f"domain {clock.domain}: grandmaster {clock.grandmaster}, before {before}")
        return said
