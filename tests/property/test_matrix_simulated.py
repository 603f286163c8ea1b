"""Reports of many simulated hosts combined: every pair's bound holds the truth at the common instant."""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankclock.errors import DecodeError
from rankclock.mesh.matrix import PairwiseOffsets, pairwise
from rankclock.mesh.report import NodeReport
from rankclock.simulate.probing import Path, Simulation
from rankclock.timebase import Offset

S = 1_000_000_000
Simulate = Callable[..., tuple[Simulation, list[NodeReport]]]


def check(simulation: Simulation, found: PairwiseOffsets) -> list[Offset]:
    """Every known offset holds the truth, both ways round; the known ones."""
    known = []
    for (local, reference), offset in found.offsets.items():
        if offset.known:
            assert offset.at_raw_ns is not None
            truth = simulation.true_offset_ns(local, reference, offset.at_raw_ns)
            assert offset.contains(truth)
            assert found.offset(reference, local).contains(-truth)
            known.append(offset)
    return known


@pytest.mark.parametrize("seed", range(4))
def test_a_full_mesh_of_five_knows_all_pairs_at_one_instant(simulate_mesh: Simulate, seed: int) -> None:
    simulation, reports = simulate_mesh(seed, 5)
    found = pairwise(reports)
    known = check(simulation, found)
    assert len(known) == 10
    assert not found.suspects
    assert all((offset.bound_ns or 0) < 8_000 for offset in known)
    assert found.closure_error_ns is not None
    assert found.closure_error_ns < 500
    true_ns = {
        simulation.hosts["h0"].crystal.true_at(offset.at_raw_ns or 0)
        for (one, _), offset in found.offsets.items()
        if one == "h0"
    }
    assert len(true_ns) == 1


@pytest.mark.parametrize("seed", range(4))
def test_a_sparse_mesh_reaches_all_pairs_over_hosts_that_it_names(simulate_mesh: Simulate, seed: int) -> None:
    simulation, reports = simulate_mesh(seed, 6, peers_of=lambda index: [0] if index else [1])
    found = pairwise(reports)
    known = check(simulation, found)
    assert len(known) == 15
    through = found.offset("h2", "h5")
    assert through.method.endswith("over h0")
    assert "these hosts, which lie between, tell the truth: h0" in through.assumptions


def test_on_asymmetric_and_busy_paths_all_bounds_hold(simulate_mesh: Simulate) -> None:
    def path(chance: random.Random) -> Path:
        return Path(delay_ns=chance.choice((2_000, 60_000, 2_000_000)), busy_share=chance.random(), loss=0.2)

    for seed in range(3):
        simulation, reports = simulate_mesh(seed, 4, path=path)
        assert len(check(simulation, pairwise(reports))) >= 5


@pytest.mark.parametrize("rate_ppb", [80_000_000, 300_000])
def test_while_clocks_are_stepped_and_slewed_the_bounds_still_hold(
    simulate_mesh: Simulate, change: Any, rate_ppb: int
) -> None:
    for seed in range(3):
        changes = [
            change("h1", 2 * S + seed * 71_000_000, rate_ppb=rate_ppb),
            change("h2", 2_310_000_000, step_ns=-3 * S),
        ]
        simulation, reports = simulate_mesh(seed, 4, changes=changes)
        check(simulation, pairwise(reports))


def test_a_silent_node_and_a_node_nobody_reaches_are_unknown_with_the_reason(simulate_mesh: Simulate) -> None:
    simulation, reports = simulate_mesh(1, 4, peers_of=lambda index: [] if index == 3 else [0] if index else [1])
    found = pairwise(reports, silent=("h9",))
    check(simulation, found)
    assert found.offset("h0", "h9").unknown_why == "h9 gave no report"
    assert found.offset("h0", "h3").unknown_why == "no path of measurements joins them"
    worst = found.worst()
    assert worst is not None
    assert not found.offsets[worst].known


def test_reports_in_another_order_say_the_same_of_every_pair(simulate_mesh: Simulate) -> None:
    simulation, reports = simulate_mesh(2, 4)
    check(simulation, pairwise(reports[1:] + reports[:1]))
    assert (
        pairwise(reports).to_json()
        == pairwise([NodeReport.from_json(report.to_json()) for report in reports]).to_json()
    )


def test_a_two_faced_node_is_named_and_the_others_keep_their_bounds(simulate_mesh: Simulate) -> None:
    simulation, reports = simulate_mesh(3, 5)
    two_faced = []
    for index, report in enumerate(reports):
        edges = []
        for edge in report.edges:
            if "h4" in (report.node, edge.peer):
                other = index if edge.peer == "h4" else int(edge.peer[1])
                assert edge.raw is not None
                moved = dataclasses.replace(
                    edge.raw, base_ns=edge.raw.base_ns + 30_000 * other * (1 if edge.peer == "h4" else -1)
                )
                edges.append(dataclasses.replace(edge, raw=moved))
            else:
                edges.append(edge)
        two_faced.append(dataclasses.replace(report, edges=tuple(edges)))
    found = pairwise(two_faced)
    assert [suspect.nodes for suspect in found.suspects] == [("h4",)]
    assert len(check(simulation, found)) == 6
    assert "h4 contradict one another" in (found.offset("h1", "h4").unknown_why or "")


def test_the_same_identity_with_other_readings_is_another_clock(simulate_mesh: Simulate) -> None:
    simulation, reports = simulate_mesh(4, 3)
    same = [dataclasses.replace(report, clock_id="5" * 16) for report in reports]
    found = pairwise(same)
    assert len(check(simulation, found)) == 3
    assert all(offset.method != "both read the same clock" for offset in found.offsets.values())


def test_two_processes_that_read_one_clock_are_zero_apart(simulate_mesh: Simulate) -> None:
    simulation, reports = simulate_mesh(5, 3)
    twin = dataclasses.replace(reports[1], node="twin", edges=())
    found = pairwise([*reports, twin])
    offset = found.offset("twin", "h1")
    assert (offset.lo_ns, offset.hi_ns, offset.method) == (0, 0, "both read the same clock")
    across = found.offset("twin", "h2")
    assert across.at_raw_ns is not None
    assert across.contains(simulation.true_offset_ns("h1", "h2", across.at_raw_ns))


def test_a_node_that_reports_twice_is_refused(simulate_mesh: Simulate) -> None:
    _, reports = simulate_mesh(1, 2)
    with pytest.raises(ValueError, match="one report a node"):
        pairwise([*reports, reports[0]])
    with pytest.raises(ValueError, match="one report a node"):
        pairwise([])


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(json_values)
def test_what_is_no_report_raises_decode_error_only(value: Any) -> None:
    with pytest.raises(DecodeError):
        NodeReport.from_json(value)


@pytest.fixture(scope="module")
def a_report(simulate_mesh: Simulate) -> NodeReport:
    return simulate_mesh(6, 2)[1][0]


@given(data=st.data())
def test_a_report_with_one_field_replaced_decodes_or_raises_decode_error(
    a_report: NodeReport, data: st.DataObject
) -> None:
    value = a_report.to_json()
    edge = value["edges"][0]
    target = data.draw(st.sampled_from([value, edge, edge["raw"], edge["offset"]]))
    target[data.draw(st.sampled_from(sorted(target)))] = data.draw(json_values)
    with contextlib.suppress(DecodeError):
        NodeReport.from_json(value)
