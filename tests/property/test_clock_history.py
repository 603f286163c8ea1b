"""Past stamps in cluster time: whatever was done to CLOCK_REALTIME, the bound of the history holds the truth."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from rankclock.clockmath.history import ClockHistory, offset_at
from rankclock.clockmath.realtime import Reading, RealtimeTrack
from rankclock.clockmath.relation import Relation
from rankclock.mesh.recorder import Recorder
from rankclock.simulate.clocks import Oscillator, VirtualRealtime
from rankclock.timebase.clock_record import ClockEvent, ClockHeader, ClockLine

S, MS = 1_000_000_000, 1_000_000
HEADER = ClockHeader(job="j", rank=0, host="h", clock_id="c", reference="ref", growth_ppb=1_000)
RUN_S = 8
APART_MS = 250


@dataclass
class Run:
    """A clock, what was recorded of it, and cluster time: the true time of the simulation, from 1970 on."""

    crystal: Oscillator
    realtime: VirtualRealtime
    lines: list[ClockLine] = field(default_factory=list)

    def truth_ns(self, true_ns: int) -> int:
        return self.realtime.real_at(true_ns) - cluster_ns(true_ns)


def cluster_ns(true_ns: int) -> int:
    return 1_790_000_000 * S + true_ns


def relation_at(run: Run, true_ns: int, chance: random.Random, doubt_ns: int) -> Relation:
    """What a prober may know of RAW - cluster time: hard bounds of a few microseconds, a rate within half a ppm."""
    raw_ns = run.crystal.raw_at(true_ns)
    truth_ns = raw_ns - cluster_ns(true_ns)
    ahead_ns = run.crystal.raw_at(true_ns + MS) - raw_ns - MS
    rate = ahead_ns * 1_000.0
    lo_ns, hi_ns = truth_ns - chance.randrange(1, doubt_ns), truth_ns + chance.randrange(1, doubt_ns)
    return Relation(
        at_ns=raw_ns,
        lo_ns=lo_ns,
        hi_ns=hi_ns,
        est_ns=chance.randint(lo_ns, hi_ns),
        slowest_ppb=rate - 2_000,
        fastest_ppb=rate + 2_000,
        rate_ppb=rate + chance.uniform(-300, 300),
        wander_ppb_per_s=30,
    )


def record(run: Run, seed: int, *, doubt_ns: int = 2_000) -> ClockHistory:
    """Read the clocks ten times a second, as the prober does, some readings wide, and write the history."""
    chance = random.Random(seed)
    recorder, track = Recorder(), RealtimeTrack()
    at_ns, next_relation_ns = 1 * MS, 0
    while at_ns < RUN_S * S:
        if at_ns >= next_relation_ns:
            run.lines += recorder.take_relation(relation_at(run, at_ns, chance, doubt_ns))
            next_relation_ns = at_ns + 2 * S
        wide = chance.random() < 0.05
        first_ns = at_ns + (chance.randrange(5_000) if wide else chance.randrange(60, 200))
        second_ns = first_ns + (chance.randrange(5_000) if wide else chance.randrange(60, 200))
        reading = Reading(
            raw_before_ns=run.crystal.raw_at(at_ns),
            real_ns=run.realtime.real_at(first_ns),
            raw_after_ns=run.crystal.raw_at(second_ns),
        )
        stepped = track.add(reading) is not None
        run.lines += recorder.take_reading(reading, stepped=stepped)
        at_ns = second_ns + (chance.randrange(20_000) if chance.random() < 0.3 else chance.randrange(95, 106) * MS)
    run.lines += recorder.finish()
    return ClockHistory(HEADER, run.lines)


changes = st.tuples(
    st.integers(1, RUN_S * 1000 - 1),
    st.sampled_from([0, 0, 1_000, -1_000, 50_000, -300_000, 3 * S, -3 * S, 20 * S, -20 * S, -400 * MS]),
    st.none() | st.sampled_from([0, 100, -5_000, 40_000, -100_000, 500_000, 83_000_000, -83_000_000]),
)


def run_with(seed: int, what: list[tuple[int, int, int | None]]) -> Run:
    chance = random.Random(seed)
    crystal = Oscillator.wandering(
        chance, starts_at_ns=chance.randrange(10**15), rate_ppb=chance.uniform(-1e5, 1e5), for_s=RUN_S + 1
    )
    realtime = VirtualRealtime(
        crystal, real_ns=cluster_ns(0) + chance.randrange(-20 * S, 20 * S), rate_ppb=chance.randrange(-(10**5), 10**5)
    )
    for at_ms, step_ns, rate_ppb in apart(what):
        realtime.change(at_ms * MS, step_ns=step_ns, rate_ppb=rate_ppb)
    return Run(crystal, realtime)


def apart(what: list[tuple[int, int, int | None]]) -> list[tuple[int, int, int | None]]:
    """Changes that readings every tenth of a second can tell from one another: none goes out and back unseen."""
    kept: list[tuple[int, int, int | None]] = []
    for one in sorted(what, key=lambda one: one[0]):
        if not kept or one[0] - kept[-1][0] >= APART_MS:
            kept.append(one)
    return kept


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.lists(changes, max_size=4))
def test_a_stamp_of_any_instant_has_the_true_offset_in_its_bound(
    seed: int, what: list[tuple[int, int, int | None]]
) -> None:
    run = run_with(seed, what)
    history = record(run, seed)
    chance = random.Random(seed + 1)
    instants = [chance.randrange(RUN_S * S) for _ in range(40)]
    instants += [min(abs(at_ms * MS + chance.randrange(-200, 200) * MS), RUN_S * S) for at_ms, _, _ in what * 10]
    first_ns, last_ns = (run.crystal.true_at(history.lines[index].raw_ns) for index in (0, -1))
    for true_ns in instants:
        if not first_ns <= true_ns <= last_ns:
            continue
        offset = history.offset_at_real(run.realtime.real_at(true_ns))
        truth_ns = run.truth_ns(true_ns)
        assert offset.contains(truth_ns), (true_ns, what, truth_ns, offset)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.lists(changes, max_size=3))
def test_a_stamp_that_no_line_covers_yet_is_bounded_by_a_reading_of_now(
    seed: int, what: list[tuple[int, int, int | None]]
) -> None:
    # A step that a slew undoes by now is out and back, and cannot be seen from here: one of the two at a time.
    what = [(at_ms, step_ns, None if step_ns else rate_ppb) for at_ms, step_ns, rate_ppb in what]
    run = run_with(seed, what)
    lines = record(run, seed).lines
    chance = random.Random(seed + 2)
    for _ in range(10):
        known = lines[: chance.randrange(2, len(lines))]
        last_ns = run.crystal.true_at(known[-1].raw_ns)
        # A line is written when the reading that it reaches to has been taken.
        written_ns = run.crystal.true_at(lines[len(known)].raw_ns)
        now_ns = written_ns + chance.randrange(1_000, S)
        if sum(last_ns < at_ms * MS <= now_ns for at_ms, _, _ in apart(what)) > 1:
            continue  # one change may hide between a line and now, not two that undo each other
        truth_ns = run.truth_ns(now_ns)
        live = ClockLine(
            real_ns=run.realtime.real_at(now_ns),
            raw_ns=run.crystal.raw_at(now_ns),
            lo_ns=truth_ns - chance.randrange(2_000),
            hi_ns=truth_ns + chance.randrange(2_000),
            est_ns=truth_ns,
        )
        at_ns = chance.randint(last_ns, now_ns)
        offset = offset_at(ClockHistory(HEADER, known), live, run.realtime.real_at(at_ns))
        assert offset.contains(run.truth_ns(at_ns)), (last_ns, now_ns, at_ns, what, run.truth_ns(at_ns), offset)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32))
def test_a_clock_left_alone_is_known_to_a_few_microseconds_everywhere(seed: int) -> None:
    run = run_with(seed, [])
    history = record(run, seed)
    assert len(history) <= RUN_S + 3, "a line a second is enough"
    for true_ns in range(S // 2, (RUN_S - 1) * S, S // 7):
        offset = history.offset_at_real(run.realtime.real_at(true_ns))
        assert offset.bound_ns is not None
        assert offset.bound_ns < 12_000
        assert history.to_cluster_ns(run.realtime.real_at(true_ns)) is not None


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32), st.integers(2_000, 6_000))
def test_a_stamp_read_twice_covers_both_instants(seed: int, at_ms: int) -> None:
    run = run_with(seed, [(at_ms, -1 * S, None)])
    history = record(run, seed)
    before_ns = at_ms * MS - 200 * MS
    real_ns = run.realtime.real_at(before_ns)
    again_ns = next(ns for ns in range(at_ms * MS, at_ms * MS + 2 * S, MS) if run.realtime.real_at(ns) >= real_ns)
    offset = history.offset_at_real(real_ns)
    assert offset.contains(run.truth_ns(before_ns))
    later = history.offset_at_real(run.realtime.real_at(again_ns))
    assert later.contains(run.truth_ns(again_ns))
    assert any("both sides" in text for text in offset.assumptions)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32), st.integers(2_000, 6_000))
def test_a_stamp_that_no_clock_ever_showed_is_unknown(seed: int, at_ms: int) -> None:
    run = run_with(seed, [(at_ms, 10 * S, None)])
    history = record(run, seed)
    assert [line.event for line in history.lines].count(ClockEvent.STEP) == 1
    skipped = run.realtime.real_at(at_ms * MS) - 5 * S
    offset = history.offset_at_real(skipped)
    assert not offset.known
    assert offset.unknown_why is not None
    assert "stepped over" in offset.unknown_why


def test_beyond_its_lines_a_record_says_nothing_after_a_minute() -> None:
    run = run_with(1, [])
    history = record(run, 1)
    last = history.last
    assert last is not None
    near, far = history.offset_at_real(last.real_ns + 5 * S), history.offset_at_real(last.real_ns + 61 * S)
    assert near.known
    assert not far.known
    assert not history.offset_at_real(history.lines[0].real_ns - 61 * S).known
    assert ClockHistory(HEADER).offset_at_real(0).unknown_why == "nothing has been recorded yet"


def test_old_lines_are_forgotten_and_the_rest_still_answers() -> None:
    run = run_with(2, [(3_000, -2 * S, None)])
    history = record(run, 2)
    lines = history.lines
    history.forget_before(lines[-3].raw_ns)
    assert len(history) == len(history.lines) == 3
    assert history.offset_at_real(lines[-2].real_ns).known
    history.forget_before(lines[-1].raw_ns + S)
    assert history.lines == lines[-1:]


def test_while_the_clock_was_lost_nothing_is_known() -> None:
    run = run_with(3, [])
    known = record(run, 3).lines[:4]
    lost = ClockLine(
        real_ns=known[-1].real_ns + S,
        raw_ns=known[-1].raw_ns + S,
        lo_ns=None,
        hi_ns=None,
        est_ns=None,
        event=ClockEvent.LOST,
    )
    history = ClockHistory(HEADER, [*known, lost])
    assert history.offset_at_real(known[-2].real_ns).known
    assert not history.offset_at_real(lost.real_ns).known
    assert not history.offset_at_real(lost.real_ns + 5 * S).known
