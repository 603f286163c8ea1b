"""The numbers behind every report: counts, percentiles, the worst pair, the way through a takeover."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankclock.report.plots import DRAWN_SAMPLES, compressed_core_ns, offset_panels, takeover_panels
from rankclock.report.record import Matrix, PlanNode, RunRecord, Sample, Series
from rankclock.report.summary import (
    claimed_errors,
    error_rows,
    measured_coverage,
    measured_errors,
    percentile,
    takeover_rows,
    worst_pair,
)
from rankclock.report.tree import lay_out
from rankclock.report.verdict import headline, tiles
from rankclock.report.words import offset_details, percent
from rankclock.timebase import Judgement, Offset


def _offset(estimate_ns: int, bound_ns: int = 10, reference: str = "upstream") -> Offset:
    return Offset.around(estimate_ns, bound_ns, reference=reference, method="m")


UNKNOWN = Offset.unknown("silent", reference="upstream", method="m")


def _sample(
    measured: Offset, true_ns: int | None, claimed: Offset = UNKNOWN, claimed_true_ns: int | None = None
) -> Sample:
    return Sample(
        t_s=1.0, phase="p", measured=measured, claimed=claimed, true_ns=true_ns, claimed_true_ns=claimed_true_ns
    )


def test_percentiles_are_values_that_occurred() -> None:
    assert percentile([], 50) is None
    assert percentile([7], 99) == 7
    assert percentile(range(1, 101), 99) == 99
    assert percentile(range(1, 101), 50) == 50
    assert percentile([1, 2, 3], 50) == 2


@given(values=st.lists(st.integers(0, 10**9), min_size=1), share=st.integers(1, 100))
def test_at_least_the_stated_share_does_not_exceed_a_percentile(values: list[int], share: int) -> None:
    found = percentile(values, share)
    assert found in values
    assert sum(value <= (found or 0) for value in values) * 100 >= share * len(values)


def test_errors_bounds_and_coverage_are_counted_apart_for_measured_and_claimed() -> None:
    samples = [
        _sample(_offset(5), 0, claimed=_offset(100, 1), claimed_true_ns=0),
        _sample(_offset(50), 0, claimed=_offset(3, 8), claimed_true_ns=None),
        _sample(UNKNOWN, 0),
        _sample(_offset(-7), None),
    ]
    measured, claimed = measured_errors(samples), claimed_errors(samples)
    assert (measured.samples, measured.unknown, measured.checked, measured.contained) == (4, 1, 2, 1)
    assert (measured.median_ns, measured.p99_ns, measured.bound_median_ns) == (5, 50, 10)
    assert (claimed.unknown, claimed.checked, claimed.contained, claimed.median_ns) == (2, 1, 0, 100)
    assert claimed.bound_p99_ns == 8


def test_a_sample_without_a_claim_is_not_an_unknown_claim() -> None:
    errors = claimed_errors([Sample(t_s=0.0, phase="p", measured=_offset(1)), _sample(_offset(1), 0)])
    assert (errors.samples, errors.unknown) == (1, 1)


def test_a_node_that_probed_several_peers_has_one_picture_and_one_way_through_the_takeover(run: RunRecord) -> None:
    peer = tuple(
        replace(s, measured=replace(s.measured, reference="gpu1"), claimed=None) for s in run.series[4].samples
    )
    series = (Series(node=run.series[4].node, reference="gpu1", samples=peer), *run.series)
    record = replace(run, series=series)
    assert [panel["reference"] for panel in offset_panels(record)] == ["upstream"] * len(run.series)
    assert sorted(row.node for row in takeover_rows(record)) == sorted(series.node for series in run.series)
    only_peer = replace(run, series=series[:1])
    assert offset_panels(only_peer)[0]["claimed"]["estimate"][0] is None


def test_an_unknown_is_not_counted_as_a_bound_that_held() -> None:
    unknown = measured_errors([_sample(UNKNOWN, 3)])
    assert (unknown.checked, unknown.contained, unknown.median_ns) == (0, 0, None)


def test_the_simulated_run_is_covered_and_counts_add_up(run: RunRecord) -> None:
    coverage = measured_coverage(run)
    assert coverage.misses == ()
    assert coverage.checked == coverage.contained
    assert coverage.checked + coverage.unknown == coverage.samples
    assert coverage.samples > 4_000
    rows = error_rows(run, lambda series, _: (series.node,))
    assert sum(row.measured.samples for row in rows) == sum(1 for _ in run.samples())


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_other_simulated_runs_are_covered_too(simulate: Callable[[int], RunRecord], seed: int) -> None:
    assert measured_coverage(simulate(seed)).misses == ()


def test_a_miss_names_node_place_and_distance(lying_run: RunRecord) -> None:
    (miss,) = measured_coverage(lying_run).misses
    assert (miss.node, miss.reference) == ("gpu2", "upstream")
    assert miss.by_ns == 88_000
    assert headline(lying_run).mood == "bad"
    assert any(tile.mood == "bad" and "contain the truth" in tile.label for tile in tiles(lying_run))


def test_the_worst_pair_counts_the_bound_and_leaves_unknowns_out() -> None:
    zero = _offset(0, 0)
    cells = ((zero, _offset(100, 10), UNKNOWN), (_offset(-50, 90), zero, zero), (UNKNOWN, zero, zero))
    matrix = Matrix(title="m", names=("a", "b", "c"), cells=cells, threshold_ns=1, verdict=Judgement.CANNOT_TELL)
    assert (worst_pair(matrix) or ())[:2] == ("b", "a")
    blind = replace(matrix, cells=((zero, UNKNOWN, UNKNOWN),) * 3)
    assert worst_pair(replace(blind, names=("a",), cells=((zero,),))) is None


def test_a_takeover_row_says_until_when_a_node_was_surely_outside_its_budget(run: RunRecord) -> None:
    assert run.takeover is not None
    killed_s = run.takeover.killed_s
    samples = tuple(
        replace(_sample(_offset(estimate_ns), estimate_ns), t_s=killed_s + after_s)
        for after_s, estimate_ns in ((-1, 0), (0.5, 900), (1, 60_000), (2, 70_000), (3, 50_005), (4, 100))
    )
    paths = (Series(node="gpu1", reference="upstream", samples=samples),)
    (row,) = takeover_rows(replace(run, takeover=replace(run.takeover, paths=paths)))
    assert row.budget_ns == 50_000
    assert row.beyond_s == 2.0  # at 3 s the interval reaches back into the budget
    assert row.worst is not None
    assert row.worst.estimate_ns == 70_000
    assert row.worst_true_ns == 70_000
    assert takeover_rows(replace(run, takeover=None)) == ()


def test_the_killed_node_is_unknown_after_the_kill(run: RunRecord) -> None:
    row = next(row for row in takeover_rows(run) if row.node == "time1")
    assert row.worst is None
    assert row.unknown == row.samples > 0


def test_a_share_is_never_rounded_to_all_or_nothing() -> None:
    assert percent(9_999, 10_000) == "99.9 %"
    assert percent(1, 10_000) == "0.1 %"
    assert (percent(3, 3), percent(0, 3), percent(0, 0)) == ("100 %", "0 %", "none")


def test_the_details_of_an_offset_name_reference_method_age_and_assumptions() -> None:
    offset = Offset.around(1, 2, reference="r", method="two-way", age_ns=1_500_000_000, assumptions=("no lies",))
    assert offset_details(offset) == "against r; two-way; 1.50 s old; assumes no lies"
    assert offset_details(UNKNOWN) == "silent (m)"


def test_thinning_keeps_every_miss_and_says_how_many_were_drawn(run: RunRecord) -> None:
    series = run.series[0]
    many = tuple(replace(sample, t_s=n * 0.01) for n, sample in enumerate(series.samples * 8))
    wrong = replace(many[1234], measured=_offset(10**9), true_ns=0)
    long = replace(series, samples=(*many[:1234], wrong, *many[1235:]))
    (panel,) = offset_panels(replace(run, series=(long,)))
    assert panel["samples"] == len(many)
    assert panel["drawn"] <= DRAWN_SAMPLES + 1
    assert sum(panel["missed"]) == 1


def test_takeover_pictures_count_time_from_the_kill(run: RunRecord) -> None:
    panels = takeover_panels(run)
    assert len(panels) == len(run.series)
    assert all(panel["t"][0] < 0 < panel["t"][-1] for panel in panels)


def test_the_compressed_scale_is_linear_where_a_usual_node_spends_its_time(run: RunRecord) -> None:
    core_ns = compressed_core_ns(offset_panels(run))
    assert 1_000 <= core_ns <= 20_000
    assert compressed_core_ns([]) == 100


def _node(name: str, *upstream: str) -> PlanNode:
    return PlanNode(node=name, role="r", upstream=upstream, owner=None, tier=0, budget_ns=None)


def test_children_stand_right_of_their_upstream_and_nobody_stands_on_another(run: RunRecord) -> None:
    for plan in run.plans:
        boxes = {found.name: found for found in lay_out(plan.nodes)}
        assert set(boxes) == {node.node for node in plan.nodes}
        assert len({(found.column, found.row) for found in boxes.values()}) == len(boxes)
        for node in plan.nodes:
            if node.upstream:
                assert boxes[node.node].column == boxes[node.upstream[0]].column + 1


def test_a_plan_that_goes_in_a_circle_is_still_drawn_whole() -> None:
    boxes = lay_out((_node("a", "c"), _node("b", "a"), _node("c", "b"), _node("d", "d"), _node("e", "outside")))
    assert {found.name for found in boxes} == {"a", "b", "c", "d", "e", "outside"}
