"""Bounds along paths, estimates that close, and the odd one out."""

from __future__ import annotations

import itertools
import random

from rankclock.clockmath.closure import EdgeBound, close_mesh

BIG = 10**15


def edges_of(truth: list[int], pairs: list[tuple[int, int]], *, half_ns: int = 1_000, seed: int = 1) -> list[EdgeBound]:
    chance = random.Random(seed)
    edges = []
    for local, peer in pairs:
        true_ns = truth[local] - truth[peer]
        low, high = (chance.randrange(half_ns // 2, half_ns) for _ in range(2))
        estimate = true_ns + chance.randrange(-low // 2, high // 2)
        edges.append(EdgeBound(local=local, peer=peer, lo_ns=true_ns - low, hi_ns=true_ns + high, estimate_ns=estimate))
    return edges


def all_pairs(count: int) -> list[tuple[int, int]]:
    return list(itertools.combinations(range(count), 2))


def shifted(edge: EdgeBound, by_ns: int) -> EdgeBound:
    return EdgeBound(
        local=edge.local,
        peer=edge.peer,
        lo_ns=edge.lo_ns + by_ns,
        hi_ns=edge.hi_ns + by_ns,
        estimate_ns=edge.estimate_ns + by_ns,
    )


def test_every_pair_of_a_chain_gets_the_sum_of_the_widths_between_and_the_names_in_between() -> None:
    truth = [BIG, 5, -BIG, 77]
    closure = close_mesh(4, edges_of(truth, [(0, 1), (1, 2), (2, 3)]))
    found = closure.bound(0, 3)
    assert found is not None
    lo, hi, estimate, between = found
    assert lo <= truth[0] - truth[3] <= hi
    assert lo <= estimate <= hi
    assert between == (1, 2)
    assert 3_000 <= hi - lo <= 6_000
    assert closure.closure_error_ns is None


def test_a_pair_that_was_measured_keeps_its_own_bound_and_trusts_nobody() -> None:
    wide = EdgeBound(local=0, peer=2, lo_ns=-50_000, hi_ns=50_000, estimate_ns=0)
    closure = close_mesh(3, [*edges_of([0, 0, 0], [(0, 1), (1, 2)]), wide])
    assert closure.bound(0, 2) == (-50_000, 50_000, closure.bound(0, 2)[2], ())  # type: ignore[index]


def test_both_ends_measuring_a_pair_intersect() -> None:
    one = EdgeBound(local=0, peer=1, lo_ns=-10, hi_ns=90, estimate_ns=40)
    other = EdgeBound(local=1, peer=0, lo_ns=-50, hi_ns=50, estimate_ns=-10)
    lo, hi, estimate, between = close_mesh(2, [one, other]).bound(0, 1)  # type: ignore[misc]
    assert (lo, hi, between) == (-10, 50, ())
    assert abs(estimate - 25) <= 1


def test_loops_pull_estimates_together_and_report_what_they_disagree_by() -> None:
    edges = [
        EdgeBound(local=a, peer=b, lo_ns=-1_000, hi_ns=1_000, estimate_ns=e)
        for a, b, e in [(0, 1, 0), (1, 2, 0), (2, 0, 300)]
    ]
    closure = close_mesh(3, edges)
    assert closure.closure_error_ns == 100
    assert closure.bound(0, 1)[2] == closure.bound(1, 2)[2] == -100  # type: ignore[index]


def test_nodes_that_nothing_joins_are_unknown() -> None:
    assert close_mesh(4, edges_of([1, 2, 3, 4], [(0, 1), (2, 3)])).bound(0, 2) is None


def test_a_two_faced_node_among_four_is_named_and_only_its_offsets_are_lost() -> None:
    truth = [BIG, 2, 3_000, -4]
    edges = [shifted(e, 9_000 * e.local if e.peer == 3 else 0) for e in edges_of(truth, all_pairs(4))]
    closure = close_mesh(4, edges)
    assert [conflict.nodes for conflict in closure.conflicts] == [(3,)]
    assert 14_000 < closure.conflicts[0].by_ns < 18_000
    for local, peer in [(0, 1), (0, 2), (1, 2)]:
        lo, hi, _, _ = closure.bound(local, peer)  # type: ignore[misc]
        assert lo <= truth[local] - truth[peer] <= hi
    assert closure.bound(0, 3) is None


def test_with_three_nodes_a_contradiction_names_all_and_blames_none() -> None:
    edges = edges_of([0, 0, 0], all_pairs(3))
    closure = close_mesh(3, [*edges[:2], shifted(edges[2], 20_000)])
    assert [conflict.nodes for conflict in closure.conflicts] == [(0, 1, 2)]
    assert closure.bound(0, 1) is None


def test_one_bad_edge_among_five_costs_that_edge_and_names_both_ends() -> None:
    truth = [10, 20, 30, 40, 50]
    edges = [shifted(e, 50_000) if (e.local, e.peer) == (1, 3) else e for e in edges_of(truth, all_pairs(5))]
    closure = close_mesh(5, edges)
    assert [conflict.nodes for conflict in closure.conflicts] == [(1, 3)]
    lo, hi, _, between = closure.bound(1, 3)  # type: ignore[misc]
    assert lo <= -20 <= hi
    assert between


def test_two_ends_that_contradict_each_other_leave_the_pair_unknown() -> None:
    edge = EdgeBound(local=0, peer=1, lo_ns=0, hi_ns=10, estimate_ns=5)
    other = EdgeBound(local=1, peer=0, lo_ns=100, hi_ns=110, estimate_ns=105)
    closure = close_mesh(2, [edge, other])
    assert closure.conflicts[0].nodes == (0, 1)
    assert closure.bound(0, 1) is None


def test_a_liar_that_only_a_long_cycle_shows_is_still_found_out() -> None:
    ring = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0)]
    edges = edges_of([0] * 5, ring)
    closure = close_mesh(5, [*edges[:4], shifted(edges[4], 90_000)])
    assert closure.conflicts
    assert closure.bound(0, 1) is None or closure.conflicts[0].nodes != (0, 1)


def test_two_liars_are_both_found() -> None:
    truth = [0] * 7
    edges = []
    for e in edges_of(truth, all_pairs(7)):
        lie = 40_000 * (e.local + 1) if e.peer == 6 else 0
        lie += 30_000 * (e.local + 2) if e.peer == 5 else 0
        edges.append(shifted(e, lie))
    closure = close_mesh(7, edges)
    assert {node for conflict in closure.conflicts for node in conflict.nodes} == {5, 6}
    for local, peer in itertools.combinations(range(5), 2):
        lo, hi, _, _ = closure.bound(local, peer)  # type: ignore[misc]
        assert lo <= 0 <= hi


def test_random_meshes_always_contain_the_truth() -> None:
    for seed in range(40):
        chance = random.Random(seed)
        count = chance.randrange(2, 12)
        truth = [chance.randrange(-BIG, BIG) for _ in range(count)]
        pairs = [pair for pair in all_pairs(count) if chance.random() < 0.5]
        closure = close_mesh(count, edges_of(truth, pairs, seed=seed))
        assert not closure.conflicts
        for local, peer in all_pairs(count):
            found = closure.bound(local, peer)
            if found is not None:
                lo, hi, estimate, _ = found
                assert lo <= truth[local] - truth[peer] <= hi
                assert lo <= estimate <= hi
