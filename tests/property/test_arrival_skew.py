"""Step skew and the check at the start: nobody is named who was not last, and the truth is inside what is said."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankclock.clockmath.arrival_skew import Arrival, StepBoard, judge_step
from rankclock.timebase import NS_PER_MS, Judgement, Offset
from rankclock.training.start_check import compare_at_start

spans = st.integers(0, 10**8)
doubts = st.integers(0, 10**6)


@st.composite
def steps(draw: st.DrawFn) -> tuple[dict[int, int], dict[int, Arrival]]:
    """True arrivals, and intervals that contain them."""
    truth = draw(st.dictionaries(st.integers(0, 63), spans, min_size=2, max_size=8))
    seen = {}
    for rank, at_ns in truth.items():
        lo_ns, hi_ns = at_ns - draw(doubts), at_ns + draw(doubts)
        seen[rank] = Arrival(lo_ns=lo_ns, est_ns=draw(st.integers(lo_ns, hi_ns)), hi_ns=hi_ns)
    return truth, seen


@given(steps())
def test_a_rank_that_is_named_was_the_last_and_the_spread_is_within_its_bound(
    step: tuple[dict[int, int], dict[int, Arrival]],
) -> None:
    truth, seen = step
    skew = judge_step(7, seen)
    if skew.late is not None:
        assert all(truth[skew.late] > at_ns for rank, at_ns in truth.items() if rank != skew.late)
    spread_ns = max(truth.values()) - min(truth.values())
    assert abs(spread_ns - skew.spread_ns) <= skew.bound_ns
    assert min(skew.waits_ns.values()) == 0


@given(steps())
def test_arrivals_that_touch_name_nobody(step: tuple[dict[int, int], dict[int, Arrival]]) -> None:
    _, seen = step
    wide = {rank: Arrival(lo_ns=-(10**12), est_ns=one.est_ns, hi_ns=10**12) for rank, one in seen.items()}
    assert judge_step(1, wide).late is None


@given(steps())
def test_an_arrival_survives_its_way_to_another_rank(step: tuple[dict[int, int], dict[int, Arrival]]) -> None:
    for arrival in step[1].values():
        assert Arrival.from_json(arrival.to_json()) == arrival


@pytest.mark.parametrize("value", [None, [], [1, 2, 3], [3, 2, 1, None], ["a", 1, 2, None], {"lo": 1}])
def test_what_is_no_arrival_is_refused(value: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        Arrival.from_json(value)


def test_the_board_judges_a_step_once_all_ranks_have_spoken_in_any_order() -> None:
    board = StepBoard(2)
    early = Arrival(lo_ns=0, est_ns=5, hi_ns=10)
    late = Arrival(lo_ns=100, est_ns=105, hi_ns=110)
    assert board.add(0, [(1, early), (2, late), (3, None)]) == []
    assert [one.late for one in board.add(1, [(2, early), (1, late), (3, late)])] == [0, 1]
    summary = board.summary()
    assert (summary.steps, summary.unknown, summary.untold) == (2, 1, 0)
    assert dict(summary.late) == {0: 1, 1: 1}
    assert dict(summary.waited_ns) == {0: 100, 1: 100}
    assert summary.lines()[1].endswith("the others waited 100 ns in all")


def test_without_a_complete_step_the_skew_is_unknown() -> None:
    assert StepBoard(2).summary().lines() == ["step skew: unknown (0 steps without every rank's arrival)"]


def test_steps_that_stay_open_do_not_pile_up() -> None:
    board = StepBoard(2)
    board.add(0, [(step, None) for step in range(10_500)])
    assert board.summary().unknown == 500


# ---- the start ----


def offset(estimate_ns: int, bound_ns: int) -> Offset:
    return Offset.around(estimate_ns, bound_ns, reference="n1", method="test")


offsets = st.dictionaries(
    st.integers(0, 15),
    st.tuples(st.integers(-(10**7), 10**7), st.integers(0, 10**6)),
    min_size=2,
    max_size=6,
)


@given(offsets, st.data())
def test_the_verdict_at_the_start_is_never_wrong(said: dict[int, tuple[int, int]], data: st.DataObject) -> None:
    truth = {rank: data.draw(st.integers(mid - bound, mid + bound)) for rank, (mid, bound) in said.items()}
    verdict = compare_at_start({rank: offset(*one) for rank, one in said.items()}, NS_PER_MS)
    apart_ns = max(truth.values()) - min(truth.values())
    assert not (verdict.judgement is Judgement.WITHIN and apart_ns > NS_PER_MS)
    assert not (verdict.judgement is Judgement.BEYOND and apart_ns <= NS_PER_MS)


def test_a_rank_whose_clock_is_unknown_can_not_be_within_but_others_can_be_beyond() -> None:
    assert compare_at_start({0: offset(0, 10), 1: None}, NS_PER_MS).judgement is Judgement.CANNOT_TELL
    far = compare_at_start({0: offset(0, 10), 1: None, 2: offset(-2 * NS_PER_MS, 10)}, NS_PER_MS)
    assert far.judgement is Judgement.BEYOND
    assert far.line == "clocks BEYOND 1.00 ms: rank 0 is +2.00 ms from rank 2 (±20 ns), of 3 ranks"
    assert "ranks 1 unknown" in compare_at_start({0: offset(0, 10), 1: None}, NS_PER_MS).line


def test_one_rank_alone_is_fine() -> None:
    assert compare_at_start({0: offset(0, 10)}, NS_PER_MS).judgement is Judgement.WITHIN
