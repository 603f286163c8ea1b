"""The main job, end to end, on labs: NTP and preflight on one, hardware PTP and a dead grandmaster on another.

Decides what the demo shows and what it must show to pass: every measured bound contains the truth, preflight refuses
the node that is 20 s wrong, verify passes once repaired, the backup takes over, this machine's clock is left alone.
"""

from __future__ import annotations

import datetime
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from rankclock.cluster.model import NodeKind
from rankclock.demo.hosts import HostClock, this_host
from rankclock.demo.ranks import ask_ranks, matrix_of
from rankclock.demo.stage import Stage
from rankclock.demo.takeover import kill_grandmaster
from rankclock.demo.timeline import Timeline
from rankclock.demo.watch import Watch
from rankclock.errors import ExitCode, UserError
from rankclock.lab import Lab, Scenario
from rankclock.planning import Role
from rankclock.report.record import Check, Matrix, PlanRecord, RunRecord, Series, Takeover
from rankclock.timebase import NS_PER_MS, NS_PER_S

__all__ = ["MIN_SAMPLES", "run_lab"]

MIN_SAMPLES = 1000
"""Fewer measured bounds than this prove little about coverage."""

WRONG_NS = 10 * NS_PER_S
"""A node that starts farther off than this is the one that preflight has to refuse."""

VERIFY_THRESHOLD_NS = NS_PER_MS


@dataclass(slots=True)
class _Gathered:
    """What the run has shown so far."""

    plans: list[PlanRecord] = field(default_factory=list)
    series: list[Series] = field(default_factory=list)
    matrices: list[Matrix] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    takeover: Takeover | None = None

    def check(self, name: str, passed: bool, detail: str) -> None:
        self.checks.append(Check(name=name, passed=passed, detail=detail))


def run_lab(scenario: Scenario, timeline: Timeline, *, name: str, out: Path) -> RunRecord:
    """Runs the demo; rendered files go into `out`. Raises HostError where this machine cannot hold a lab."""
    reference = _reference(scenario)
    gathered, host_clock = _Gathered(), HostClock()
    _ntp(scenario, reference, timeline, gathered, out / "ntp")
    _ptp(scenario, reference, timeline, gathered, out / "ptp")
    gathered.check("this machine's clock was left alone", *host_clock.untouched())
    _check_coverage(gathered)
    return RunRecord(
        title=f"rankclock demo: {scenario.cluster.name}, {len(scenario.cluster.nodes)} nodes",
        created_utc=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        command=f"rankclock demo {name}".strip(),
        reference=reference,
        host=this_host(),
        phases=timeline.phases(),
        plans=tuple(gathered.plans),
        series=_merged(gathered.series),
        matrices=tuple(gathered.matrices),
        events=timeline.events(),
        takeover=gathered.takeover,
        checks=tuple(gathered.checks),
    )


def _reference(scenario: Scenario) -> str:
    sources = [node.name for node in scenario.cluster.nodes if node.kind is NodeKind.SOURCE]
    if not sources:
        raise UserError(
            "the demo needs a node of kind `source`: its clock is the truth that the others are held against"
        )
    return sources[0]


def _started(stack: ExitStack, scenario: Scenario, reference: str, timeline: Timeline) -> tuple[Lab, Watch]:
    """A lab that is up and watched. Each node probes the reference, the next of its rack, and a server."""
    lab = stack.enter_context(Lab.up(scenario))
    timeline.tell(f"lab up: {len(scenario.cluster.nodes)} nodes, each with a clock of its own")
    watch = Watch(lab, timeline, reference=reference)
    names = [node.name for node in scenario.cluster.nodes if node.name != reference]
    watch.start({name: (names[0], names[index - 1]) for index, name in enumerate(names) if index > 0})
    return lab, watch


def _training(scenario: Scenario) -> list[str]:
    return [node.name for node in scenario.cluster.nodes if node.kind is NodeKind.TRAINING]


# ---- the two halves ----


def _ntp(scenario: Scenario, reference: str, timeline: Timeline, gathered: _Gathered, out: Path) -> None:
    """NTP on all nodes but the wrong one; preflight refuses; the node is repaired; verify passes."""
    wrong = [name for name in _training(scenario) if abs(scenario.clocks_of(name).offset_ns) >= WRONG_NS]
    ranks = _training(scenario)
    with ExitStack() as stack:
        with timeline.phase("NTP: lab, assess, plan, render"):
            lab, watch = _started(stack, scenario, reference, timeline)
            stage = Stage.prepare(lab, timeline, watch, protocol="ntp", out=out)
        with timeline.phase("NTP: apply tier by tier"):
            settled = stage.apply(leave_stopped=wrong)
            gathered.check("NTP: every node within its budget", settled, "measured for five seconds, tier by tier")
        with timeline.phase("preflight before the repair"):
            answer = ask_ranks(lab, "preflight", ranks)
            timeline.tell(answer.line, event=True)
            title = "preflight: before the repair"
            gathered.matrices.append(matrix_of(answer, lab, timeline, title=title, threshold_ns=WRONG_NS))
            refused = answer.exit_code == ExitCode.CHECK_FAILED
            gathered.check(f"preflight refuses {', '.join(wrong)}", refused == bool(wrong), answer.line)
        with timeline.phase("repair, and verify"):
            stage.start(wrong)
            repaired = stage.settle(wrong, what="repair")
            gathered.check(
                "the wrong node is repaired by its own chronyd", repaired, ", ".join(wrong) or "none was wrong"
            )
            answer = ask_ranks(lab, "preflight", ranks)
            gathered.check("preflight lets the job start", answer.exit_code == ExitCode.OK, answer.line)
            _verify(lab, ranks, timeline, gathered, "verify: NTP")
        watch.look()
        gathered.plans.append(stage.record())
        gathered.series += watch.series()


def _ptp(scenario: Scenario, reference: str, timeline: Timeline, gathered: _Gathered, out: Path) -> None:
    """Hardware PTP on fresh clocks; verify; the grandmaster is killed."""
    with ExitStack() as stack:
        with timeline.phase("PTP: a fresh lab, assess, plan, render"):
            lab, watch = _started(stack, scenario, reference, timeline)
            stage = Stage.prepare(lab, timeline, watch, protocol="ptp", out=out)
        with timeline.phase("PTP: apply tier by tier"):
            settled = stage.apply()
            gathered.check("PTP: every node within its budget", settled, "measured for five seconds, tier by tier")
        with timeline.phase("PTP: verify"):
            _verify(lab, _training(scenario), timeline, gathered, "verify: PTP")
            watch.look()
            gathered.plans.append(stage.record())
        with timeline.phase("the grandmaster dies"):
            gathered.takeover = _takeover(stage, lab, watch, timeline)
            taken = gathered.takeover.taken_over_s is not None
            budgets_ns = {name: stage.budget_ns(name) for name in _followers(stage)}
            gathered.check("the backup takes over", taken, f"new grandmaster: {gathered.takeover.new}")
            within = taken and watch.settled(budgets_ns, after_s=gathered.takeover.taken_over_s or 0.0)
            gathered.check("after it every clock is within its budget", within, "measured for five seconds")
        watch.look()
        gathered.series += watch.series()


def _followers(stage: Stage) -> list[str]:
    return [name for name, role in stage.plan.roles.items() if role.role in (Role.BOUNDARY_CLOCK, Role.ORDINARY_CLOCK)]


def _takeover(stage: Stage, lab: Lab, watch: Watch, timeline: Timeline) -> Takeover:
    grandmaster = next(name for name, role in stage.plan.roles.items() if role.role is Role.GRANDMASTER)
    followers = _followers(stage)
    budgets_ns = {name: stage.budget_ns(name) for name in followers}
    return kill_grandmaster(
        lab,
        watch,
        timeline,
        grandmaster=grandmaster,
        followers=followers,
        budgets_ns=budgets_ns,
        names=stage.identities,
    )


def _verify(lab: Lab, ranks: list[str], timeline: Timeline, gathered: _Gathered, title: str) -> None:
    answer = ask_ranks(lab, "verify", ranks)
    timeline.tell(answer.line, event=True)
    gathered.matrices.append(matrix_of(answer, lab, timeline, title=title, threshold_ns=VERIFY_THRESHOLD_NS))
    gathered.check(title, answer.exit_code == ExitCode.OK, answer.line)


# ---- what it amounts to ----


def _merged(series: list[Series]) -> tuple[Series, ...]:
    """The series of both halves, one per node and reference."""
    samples: dict[tuple[str, str], list[Series]] = {}
    for one in series:
        samples.setdefault((one.node, one.reference), []).append(one)
    return tuple(
        Series(node=node, reference=reference, samples=tuple(sample for one in parts for sample in one.samples))
        for (node, reference), parts in samples.items()
    )


def _check_coverage(gathered: _Gathered) -> None:
    known = [
        (sample.measured, sample.true_ns)
        for series in gathered.series
        for sample in series.samples
        if sample.measured.known and sample.true_ns is not None
    ]
    cells = [
        (matrix.cells[row][column], matrix.true_ns[row][column])
        for matrix in gathered.matrices
        if matrix.true_ns is not None
        for row in range(len(matrix.names))
        for column in range(row)
    ]
    known += [(offset, truth_ns) for offset, truth_ns in cells if offset.known and truth_ns is not None]
    right = sum(offset.contains(truth_ns) for offset, truth_ns in known)
    detail = f"{right:,} of {len(known):,} bounds"
    gathered.check("every measured bound contains the truth", right == len(known), detail)
    gathered.check(f"at least {MIN_SAMPLES:,} bounds were held against the truth", len(known) >= MIN_SAMPLES, detail)
