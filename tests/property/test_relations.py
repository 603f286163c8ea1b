"""Relations of clocks: carried on, chained and agreed on, they hold the truth of simulated oscillators."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from rankclock.clockmath.relation import Agreement, Disagreement, Relation, agree
from rankclock.simulate.clocks import Oscillator

S = 1_000_000_000
WANDER = 30


def crystal(chance: random.Random) -> Oscillator:
    """Within ±200 ppm, wandering as hard as the stated bound for two of them allows: 15 ppb each second."""
    rate = chance.uniform(-200_000, 200_000)
    made = Oscillator(starts_at_ns=chance.randrange(10**15), rate_ppb=rate)
    for knot in range(1, 400):
        rate += chance.choice([-1, 1]) * WANDER / 2 / 4 * chance.random()
        made.set_rate(knot * S // 4, rate)
    return made


def offset_ns(one: Oscillator, two: Oscillator, local_ns: int) -> int:
    return local_ns - two.raw_at(one.true_at(local_ns))


def measured(one: Oscillator, two: Oscillator, true_ns: int, chance: random.Random) -> Relation:
    """What a prober may know at an instant: bounds and a range of rates, the truth anywhere inside."""
    at_ns = one.raw_at(true_ns)
    truth_ns = offset_ns(one, two, at_ns)
    ahead = offset_ns(one, two, at_ns + S // 20) - truth_ns
    rate = ahead * 20.0
    lo_ns, hi_ns = truth_ns - chance.randrange(1, 3_000), truth_ns + chance.randrange(1, 3_000)
    slowest, fastest = rate - chance.uniform(25, 500), rate + chance.uniform(25, 500)
    return Relation(
        at_ns=at_ns,
        lo_ns=lo_ns,
        hi_ns=hi_ns,
        est_ns=chance.randint(lo_ns, hi_ns),
        slowest_ppb=slowest,
        fastest_ppb=fastest,
        rate_ppb=chance.uniform(slowest, fastest),
        wander_ppb_per_s=WANDER,
    )


def holds(way: Relation, one: Oscillator, two: Oscillator, local_ns: int) -> bool:
    lo_ns, hi_ns = way.bounds_at(local_ns)
    return lo_ns - 2 <= offset_ns(one, two, local_ns) <= hi_ns + 2  # both clocks are read in whole ns


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(-40, 40))
def test_a_relation_carried_on_holds_the_truth_both_ways(seed: int, after_s: int) -> None:
    chance = random.Random(seed)
    one, two = crystal(chance), crystal(chance)
    way = measured(one, two, 45 * S, chance)
    at_ns = one.raw_at((45 + after_s) * S)
    assert holds(way, one, two, at_ns)
    assert holds(way.at(at_ns), one, two, at_ns)
    assert holds(way.at(one.raw_at(50 * S)).at(at_ns), one, two, at_ns)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 30), st.integers(0, 20))
def test_relations_chained_over_a_third_clock_hold_the_truth(seed: int, onward_at_s: int, after_s: int) -> None:
    chance = random.Random(seed)
    local, peer, root = crystal(chance), crystal(chance), crystal(chance)
    edge = measured(local, peer, 40 * S, chance)
    onward = measured(peer, root, (20 + onward_at_s) * S, chance)
    both = edge.then(onward)
    assert both.at_ns == edge.at_ns
    assert holds(both, local, root, local.raw_at((40 + after_s) * S))
    assert both.lo_ns <= both.est_ns <= both.hi_ns


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(3, 7), st.integers(0, 3))
def test_a_majority_that_tells_the_truth_is_found_and_the_liars_are_named(seed: int, honest: int, liars: int) -> None:
    chance = random.Random(seed)
    one, two = crystal(chance), crystal(chance)
    ways = [measured(one, two, 40 * S, chance) for _ in range(honest)]
    liars = min(liars, honest - 1)
    for _ in range(liars):
        by_ns = chance.choice([-1, 1]) * chance.randrange(20_000, 10**7)
        lie = measured(one, two, 40 * S, chance)
        ways.insert(
            chance.randrange(len(ways) + 1),
            Relation(
                at_ns=lie.at_ns,
                lo_ns=lie.lo_ns + by_ns,
                hi_ns=lie.hi_ns + by_ns,
                est_ns=lie.est_ns + by_ns,
                slowest_ppb=lie.slowest_ppb,
                fastest_ppb=lie.fastest_ppb,
                rate_ppb=lie.rate_ppb,
                wander_ppb_per_s=lie.wander_ppb_per_s,
            ),
        )
    agreed = agree(ways)
    assert isinstance(agreed, Agreement)
    assert holds(agreed.relation, one, two, one.raw_at(40 * S))
    assert holds(agreed.relation, one, two, one.raw_at(55 * S))
    assert len(agreed.odd) == liars
    assert all(abs(ways[index].est_ns - agreed.relation.est_ns) > 5_000 for index in agreed.odd)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 3))
def test_where_as_many_say_this_as_that_nobody_is_believed(seed: int, each: int) -> None:
    chance = random.Random(seed)
    one, two, other = crystal(chance), crystal(chance), crystal(chance)
    ways = [measured(one, two, 40 * S, chance) for _ in range(each)]
    ways += [measured(one, other, 40 * S, chance) for _ in range(each)]
    answer = agree(ways)
    assert isinstance(answer, Disagreement)
    assert answer.by_ns > 0


def test_one_way_alone_is_what_it_says() -> None:
    chance = random.Random(1)
    way = measured(crystal(chance), crystal(chance), 40 * S, chance)
    assert agree([way]) == Agreement(relation=way, odd=())


def test_a_clock_that_defines_the_time_has_no_doubt_at_any_distance() -> None:
    own = Relation.itself(5 * S, -123, rate_ppb=1_000.0)
    assert own.at(65 * S).bounds_at(65 * S) == (-123 + 60_000, -123 + 60_000)
