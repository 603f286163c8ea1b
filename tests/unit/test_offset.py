"""An offset never loses its doubt."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankclock.timebase import Judgement, Offset

NS = st.integers(-(10**15), 10**15)


@st.composite
def offsets(draw: st.DrawFn) -> Offset:
    lo_ns, estimate_ns, hi_ns = sorted((draw(NS), draw(NS), draw(NS)))
    return Offset(lo_ns=lo_ns, hi_ns=hi_ns, estimate_ns=estimate_ns, reference="ref", method="test")


def test_an_estimate_without_bounds_is_refused() -> None:
    with pytest.raises(ValueError, match="bounds and an estimate"):
        Offset(lo_ns=None, hi_ns=None, estimate_ns=0, reference="ref", method="test")


def test_an_unknown_offset_says_why_and_is_never_within() -> None:
    unknown = Offset.unknown("no answer", reference="ref", method="test")
    assert not unknown.known
    assert unknown.bound_ns is None
    assert unknown.judge(10**18) is Judgement.CANNOT_TELL
    with pytest.raises(ValueError, match="says why"):
        Offset(lo_ns=None, hi_ns=None, estimate_ns=None, reference="ref", method="test")


@pytest.mark.parametrize(
    ("lo_ns", "hi_ns", "judgement"),
    [
        (-1000, 1000, Judgement.WITHIN),
        (-1001, 0, Judgement.CANNOT_TELL),
        (1000, 2000, Judgement.CANNOT_TELL),
        (1001, 2000, Judgement.BEYOND),
        (-2000, -1001, Judgement.BEYOND),
        (-5000, 5000, Judgement.CANNOT_TELL),
    ],
)
def test_a_judgement_needs_the_whole_interval(lo_ns: int, hi_ns: int, judgement: Judgement) -> None:
    offset = Offset(lo_ns=lo_ns, hi_ns=hi_ns, estimate_ns=(lo_ns + hi_ns) // 2, reference="ref", method="test")
    assert offset.judge(1000) is judgement


@given(offsets(), st.integers(1, 10**12))
def test_a_judgement_agrees_with_every_truth_in_the_interval(offset: Offset, threshold_ns: int) -> None:
    assert offset.lo_ns is not None and offset.hi_ns is not None
    verdicts = {abs(truth_ns) <= threshold_ns for truth_ns in (offset.lo_ns, offset.hi_ns)}
    judgement = offset.judge(threshold_ns)
    if judgement is Judgement.WITHIN:
        assert verdicts == {True}
    if judgement is Judgement.BEYOND:
        assert verdicts == {False}


@given(offsets(), NS, st.integers(0, 10**12), st.integers(0, 500_000))
def test_an_aged_bound_holds_whatever_drifted_in(
    offset: Offset, truth_ns: int, by_ns: int, drift_bound_ppb: int
) -> None:
    if not offset.contains(truth_ns):
        return
    drifted_ns = by_ns * drift_bound_ppb // 1_000_000_000
    later = offset.aged(by_ns, drift_bound_ppb=drift_bound_ppb)
    assert later.contains(truth_ns + drifted_ns) and later.contains(truth_ns - drifted_ns)
    assert later.age_ns == by_ns


@given(offsets(), NS)
def test_the_reversed_offset_contains_the_reversed_truth(offset: Offset, truth_ns: int) -> None:
    assert offset.contains(truth_ns) == offset.reversed(reference="local").contains(-truth_ns)


@given(offsets())
def test_json_keeps_an_offset_whole(offset: Offset) -> None:
    assert Offset.from_json(offset.to_json()) == offset
