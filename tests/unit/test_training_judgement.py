"""What verify and preflight make of offsets: three answers, the odd host, and what its clock breaks."""

from __future__ import annotations

import itertools
import json
import socket
from math import isqrt
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from rankclock.diagnosis.tolerances import TRAINING, Direction, broken_by
from rankclock.errors import ExitCode, PeerError, UserError
from rankclock.mesh.matrix import PairwiseOffsets
from rankclock.timebase import NS_PER_MS, NS_PER_S, NS_PER_US, Judgement, Offset
from rankclock.training.measurement import JobClock, Measurement, group_by_clock
from rankclock.training.peers import FULL_MESH_UP_TO, choose_peers
from rankclock.training.preflight import Level, Limits, Preflight, judge_start
from rankclock.training.roster import Member
from rankclock.training.tables import hosts_table, verification_table, worst_table
from rankclock.training.verify import Verification, format_limit, judge
from rankclock.training.whoami import is_own_address, own_index


def measured(*clocks_ns: int, bound_ns: int = 2_000, unknown: tuple[tuple[int, int], ...] = ()) -> Measurement:
    """Clocks h0, h1, ... that are off from a common time by so much, each pair known to within a bound."""
    names = [f"h{number}" for number in range(len(clocks_ns))]
    offsets = {}
    for one, two in itertools.combinations(range(len(names)), 2):
        if (one, two) in unknown:
            offset = Offset.unknown("no answer to any probe", reference=names[two], method="test")
        else:
            apart_ns = clocks_ns[one] - clocks_ns[two]
            offset = Offset.around(apart_ns, bound_ns, reference=names[two], method="test")
        offsets[names[one], names[two]] = offset
    pairwise = PairwiseOffsets(
        nodes=tuple(names),
        reference="h0",
        raw_ns=dict.fromkeys(names, 0),
        offsets=offsets,
        suspects=(),
        closure_error_ns=None,
    )
    clocks = tuple(
        JobClock(name=name, host=name, address=f"10.0.0.{rank}", ranks=(rank,)) for rank, name in enumerate(names)
    )
    return Measurement(
        world_size=len(names), clocks=clocks, offsets=pairwise, stamps=dict.fromkeys(names, "kernel"), seconds=2.0
    )


def text_of(table: object) -> str:
    console = Console(width=200, record=True, file=None, no_color=True)
    with console.capture() as captured:
        console.print(table)
    return captured.get()


# ---- verify ----


def verified(*clocks_ns: int, threshold_ns: int = NS_PER_MS, **more: object) -> Verification:
    return judge(measured(*clocks_ns, **more), threshold_ns)  # type: ignore[arg-type]


def test_all_pairs_inside_the_threshold_with_their_bounds_are_within() -> None:
    found = verified(0, 997_000, 500_000)
    assert (found.judgement, found.exit_code) == (Judgement.WITHIN, ExitCode.OK)
    assert found.line == "within 1 ms: 3 clocks of 3 ranks; worst pair: h0 is 997 µs behind h1 (±2.00 µs)"


def test_a_bound_that_reaches_over_the_threshold_cannot_be_told() -> None:
    found = verified(0, 999_000)
    assert (found.judgement, found.exit_code) == (Judgement.CANNOT_TELL, ExitCode.CANNOT_TELL)
    assert found.line.startswith("CANNOT BE TOLD at 1 ms: h0 is 999 µs behind h1 (±2.00 µs); 1 of 1 pairs")


def test_one_pair_beyond_outweighs_pairs_that_nobody_knows() -> None:
    found = verified(0, 3 * NS_PER_MS, 0, unknown=((0, 2),))
    assert (found.judgement, found.exit_code) == (Judgement.BEYOND, ExitCode.CHECK_FAILED)
    assert found.worst == ("h0", "h1")
    assert "2 of 3 pairs of 3 clocks of 3 ranks are beyond" in found.line


def test_an_unknown_pair_is_never_fine() -> None:
    found = verified(0, 0, 0, unknown=((1, 2),))
    assert found.judgement is Judgement.CANNOT_TELL
    assert "h1 against h2 is unknown: no answer to any probe" in found.line


def test_one_clock_is_within_and_says_that_nothing_was_compared() -> None:
    found = verified(0)
    assert found.judgement is Judgement.WITHIN
    assert "one clock (h0) is all that the one rank reads" in found.line
    assert verification_table(found) is None


@settings(max_examples=60)
@given(
    clocks_ns=st.lists(st.integers(-3 * NS_PER_MS, 3 * NS_PER_MS), min_size=2, max_size=6),
    bound_ns=st.integers(0, 2 * NS_PER_MS),
)
def test_a_certain_verdict_is_never_wrong(clocks_ns: list[int], bound_ns: int) -> None:
    found = verified(*clocks_ns, bound_ns=bound_ns)
    spread_ns = max(clocks_ns) - min(clocks_ns)
    if found.judgement is Judgement.WITHIN:
        assert spread_ns <= NS_PER_MS
    if found.judgement is Judgement.BEYOND:
        assert spread_ns > NS_PER_MS
    assert sum(found.pairs.values()) == len(clocks_ns) * (len(clocks_ns) - 1) // 2


def test_up_to_16_clocks_are_a_matrix_and_more_are_their_worst_pairs() -> None:
    few = text_of(verification_table(verified(*range(16))))
    assert "row - column" in few
    many = verified(*range(0, 17 * NS_PER_MS, NS_PER_MS))
    assert "farthest apart" in text_of(verification_table(many))
    worst = text_of(worst_table(many.measurement, NS_PER_MS))
    assert worst.count("beyond") == 10
    assert "-16.0 ms ±2.00 µs" in worst


def test_the_answer_is_json_with_the_whole_matrix() -> None:
    value = json.loads(json.dumps(verified(0, 5 * NS_PER_MS).to_json()))
    assert (value["schema"], value["verdict"], value["exit_code"]) == ("rankclock-verify/1", "beyond", 1)
    assert value["worst"]["offset"]["estimate_ns"] == -5 * NS_PER_MS
    assert len(value["pairwise"]["offsets"]) == 1


@pytest.mark.parametrize(
    ("limit_ns", "text"), [(NS_PER_MS, "1 ms"), (1_500_000, "1.5 ms"), (10 * NS_PER_S, "10 s"), (100_000, "100 µs")]
)
def test_limits_read_as_their_owner_wrote_them(limit_ns: int, text: str) -> None:
    assert format_limit(limit_ns) == text


# ---- preflight ----


def started(*clocks_ns: int, limits: Limits | None = None, **more: object) -> Preflight:
    return judge_start(measured(*clocks_ns, **more), limits or Limits())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("apart_ns", "level", "code"),
    [
        (0, Level.FINE, 0),
        (9 * NS_PER_MS, Level.FINE, 0),
        (11 * NS_PER_MS, Level.WARN, 0),
        (900 * NS_PER_MS, Level.WARN, 0),
        (1_100 * NS_PER_MS, Level.ERROR, 1),
        (9_900 * NS_PER_MS, Level.ERROR, 1),
        (10_100 * NS_PER_MS, Level.REFUSE, 1),
        (3600 * NS_PER_S, Level.REFUSE, 1),
    ],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_the_level_follows_the_distance_whichever_host_is_off(
    apart_ns: int, level: Level, code: int, sign: int
) -> None:
    found = started(0, 0, sign * apart_ns)
    assert (found.level, found.exit_code) == (level, code)


def test_the_odd_host_is_named_though_it_is_the_reference_itself() -> None:
    found = started(-20 * NS_PER_S, 0, 1000, 2000, 3000, 500)
    assert [host.clock.name for host in found.hosts if host.odd] == ["h0"]
    assert found.majority == 5
    assert found.line.startswith("REFUSED: the clock of h0 is off from the other 5; ")
    breaks = [one.tolerance.component for host in found.hosts if host.odd for one in host.broken]
    assert "torchrun c10d rendezvous" in breaks
    assert all(not host.broken for host in found.hosts if not host.odd)


def test_two_hosts_apart_have_no_majority_and_neither_is_blamed() -> None:
    found = started(0, 20 * NS_PER_S)
    assert found.level is Level.REFUSE
    assert found.majority == 0
    assert not any(host.odd for host in found.hosts)
    assert "which clock is wrong cannot be told from here" in found.line
    broken = {host.clock.name: {one.tolerance.component for one in host.broken} for host in found.hosts}
    assert "torchrun c10d rendezvous" in broken["h0"]
    assert "torchrun exit barrier" not in broken["h0"]


def test_a_fleet_split_in_halves_has_no_majority() -> None:
    assert started(0, 0, 20 * NS_PER_S, 20 * NS_PER_S).majority == 0


def test_an_unknown_host_cannot_be_told_but_a_certain_refusal_stands() -> None:
    assert started(0, 0, 0, unknown=((0, 2), (1, 2))).level is Level.CANNOT_TELL
    assert started(0, 20 * NS_PER_S, 0, unknown=((0, 2), (1, 2))).level is Level.REFUSE


def test_a_bound_wider_than_a_second_cannot_be_told_but_one_wider_than_a_warning_only_warns() -> None:
    assert started(0, 0, bound_ns=2 * NS_PER_S).level is Level.CANNOT_TELL
    wide = started(0, 0, bound_ns=50 * NS_PER_MS)
    assert wide.level is Level.WARN
    assert "may be beyond 10 ms" in wide.line


def test_limits_can_be_moved_for_jobs_that_keep_alive_longer() -> None:
    limits = Limits(refuse_ns=40 * NS_PER_S, error_ns=40 * NS_PER_S)
    assert started(0, 20 * NS_PER_S, limits=limits).exit_code is ExitCode.OK


def test_it_says_that_utc_was_not_asked() -> None:
    assert any("UTC was not asked" in note for note in started(0, 0).notes)


def test_the_table_names_what_breaks() -> None:
    text = text_of(hosts_table(started(0, 0, -20 * NS_PER_S)))
    assert "torchrun c10d rendezvous: is counted dead" in text
    assert text.index("h2") < text.index("h1"), "the farthest comes first"


def test_the_start_is_json_too() -> None:
    value = json.loads(json.dumps(started(0, 0, -20 * NS_PER_S).to_json()))
    assert (value["schema"], value["verdict"], value["majority"]) == ("rankclock-preflight/1", "refused", 2)
    (odd,) = [host for host in value["hosts"] if host["odd"]]
    assert {"component", "breaks_at_ns", "direction", "effect", "source", "certain"} <= set(odd["breaks"][0])


# ---- tolerances ----


def broken_at(offset_ns: int, bound_ns: int = 0) -> dict[str, bool]:
    offset = Offset.around(offset_ns, bound_ns, reference="r", method="test")
    return {one.tolerance.component: one.certain for one in broken_by(offset)}


@pytest.mark.parametrize("tolerance", TRAINING, ids=lambda one: one.component)
def test_each_tolerance_breaks_at_its_limit_and_on_its_side_only(tolerance: object) -> None:
    from rankclock.diagnosis.tolerances import Tolerance

    assert isinstance(tolerance, Tolerance)
    at_ns = tolerance.breaks_at_ns
    for sign, side in ((1, Direction.AHEAD), (-1, Direction.BEHIND)):
        suffers = tolerance.direction in (side, Direction.EITHER)
        assert (tolerance.component in broken_at(sign * at_ns)) == suffers
        assert tolerance.component not in broken_at(sign * (at_ns - 1))
    assert tolerance.effect
    assert tolerance.source


def test_a_bound_across_the_limit_makes_it_perhaps() -> None:
    assert broken_at(-NS_PER_S, NS_PER_US)["TensorBoard"] is False
    assert broken_at(-2 * NS_PER_S, NS_PER_US)["TensorBoard"] is True
    assert broken_by(Offset.unknown("x", reference="r", method="m")) == ()


# ---- who shares a clock, who probes whom, who am I ----


def members(*hosts: str) -> list[Member]:
    return [Member(rank=rank, host=host, address=f"10.0.0.{rank}", pid=rank) for rank, host in enumerate(hosts)]


def test_ranks_of_one_clock_are_grouped_and_other_clocks_of_a_host_are_told_apart() -> None:
    same, other = ["c1", [100, 1_000, 110]], ["c2", [100, 1_000, 110]]
    clocks = group_by_clock(members("a", "a", "a", "b"), [same, other, same, ["c3", [0, 0, 5]]])
    assert [(clock.name, clock.ranks) for clock in clocks] == [("a.rank0", (0, 2)), ("a.rank1", (1,)), ("b", (3,))]


def test_the_same_identity_with_another_time_is_another_clock() -> None:
    """Clones of one virtual machine have one boot id."""
    clocks = group_by_clock(members("a", "b"), [["c", [0, 0, 9]], ["c", [0, 2 * NS_PER_MS, 9]]])
    assert len(clocks) == 2


@pytest.mark.parametrize("value", [None, [], ["c", [1, 2]], ["c", [3, 2, "x"]], 7])
def test_a_rank_that_gives_no_identity_is_named(value: object) -> None:
    with pytest.raises(PeerError, match=r"rank 0 \(a\) did not give"):
        group_by_clock(members("a"), [value])


@pytest.mark.parametrize("count", [1, 2, FULL_MESH_UP_TO, FULL_MESH_UP_TO + 1, 128, 129, 1000])
def test_the_graph_of_peers_joins_all_clocks_and_asks_little_of_each(count: int) -> None:
    chosen = choose_peers(count, Random(7))
    assert len(chosen) == count
    joined, waiting = {0}, [0]
    neighbours: dict[int, set[int]] = {clock: set(peers) for clock, peers in enumerate(chosen)}
    for clock, peers in enumerate(chosen):
        assert clock not in peers
        for peer in peers:
            neighbours[peer].add(clock)
    while waiting:
        for peer in neighbours[waiting.pop()] - joined:
            joined.add(peer)
            waiting.append(peer)
    assert len(joined) == count
    if count > FULL_MESH_UP_TO:
        leaders = isqrt(count) if count > 128 else 0
        assert max(len(peers) for peers in chosen[1 + leaders :]) <= 6
        assert max(len(peers) for peers in chosen) <= 8
        assert all(1 in chosen[clock] for clock in range(2, 1 + leaders)), (
            "who measures the reference measures its heir"
        )
    if count > 128:
        asked = sum(0 in peers for peers in chosen)
        assert asked < 4 * count**0.5, "the reference is asked by leaders, and a few by chance"


def test_a_host_finds_itself_by_name_then_by_address() -> None:
    name = socket.gethostname()
    assert own_index(["other.invalid", name]) == 1
    assert own_index(["gpu1", "gpu2.cluster.example"], own_name="gpu2") == 1
    assert own_index(["gpu1.a.example", "gpu2.a.example"], own_name="gpu1.a.example") == 0
    assert own_index(["192.0.2.1", "127.0.0.1"], own_name="nobody") == 1


def test_a_host_that_is_not_in_the_list_or_twice_is_refused() -> None:
    with pytest.raises(UserError, match="none of them is this host"):
        own_index(["192.0.2.1"], own_name="nobody")
    with pytest.raises(UserError, match="2 of them are this host"):
        own_index(["127.0.0.1", "::1"], own_name="nobody")


def test_own_addresses_are_told_from_others() -> None:
    assert is_own_address("127.0.0.1")
    assert not is_own_address("192.0.2.1")
    assert not is_own_address("no-such-host.invalid")
