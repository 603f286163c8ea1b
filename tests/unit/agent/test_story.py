"""Claim beside measurement, and what follows from both over time: pure, no clock is read."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankclock.agent.combine import combine, contradicts, stand
from rankclock.agent.look import Look, PtpClock
from rankclock.agent.settings import ClockClass, ProbeSettings, Settings
from rankclock.agent.story import Story, class_of
from rankclock.mesh.report import EdgeReport, NodeReport
from rankclock.timebase import NS_PER_MS, NS_PER_S, ClockState, Offset, SyncState

PROBE = ProbeSettings(
    bind="0.0.0.0:4910", key_hex="00" * 16, peers={f"n{i}": (f"10.0.0.{i}", 4910) for i in range(2, 6)}
)


def offset(estimate_ns: int, bound_ns: int = 10_000, reference: str = "root") -> Offset:
    return Offset.around(estimate_ns, bound_ns, reference=reference, method="test", at_raw_ns=0)


def state(claimed: Offset, sync: SyncState = SyncState.SYNCHRONISED, **more: object) -> ClockState:
    unmeasured = Offset.unknown("not measured", reference="none", method="none")
    plain = ClockState(
        node="n1", state=sync, owner="chronyd", source="time1", claimed=claimed, measured=unmeasured, reasons=("why",)
    )
    return replace(plain, **more)  # type: ignore[arg-type]


def edge(peer: str, measured: Offset | None) -> EdgeReport:
    known = measured or Offset.unknown("no answer", reference=peer, method="probes")
    return EdgeReport(
        peer=peer, peer_clock_id="", offset=known, raw=None, raw_estimate_ns=None, raw_rate_ppb=None, min_rtt_ns=20_000,
        sent=9, answered=9 if measured else 0,
    )  # fmt: skip


def look(of: ClockState, at_ns: int = 0, ptp: tuple[PtpClock, ...] = ()) -> Look:
    return Look(state=of, sources=None, ptp=ptp, kernel=None, at_raw_ns=at_ns)


def report(edges: tuple[EdgeReport, ...], at_ns: int = 0, steps: int = 0) -> NodeReport:
    counters = {"own clock stepped": steps} if steps else {}
    return NodeReport(
        node="n1", clock_id="x", stamps="kernel", made_at_raw_ns=at_ns, readings=(), edges=edges, counters=counters
    )


def story(**more: object) -> Story:
    return Story(settings=Settings(node="n1", probe=PROBE, **more))  # type: ignore[arg-type]


# ---- disagreement ----


def test_a_client_of_a_liar_is_not_called_synchronised_by_its_neighbours() -> None:
    lied_to = state(offset(0))
    edges = [edge("n2", offset(3 * NS_PER_S)), edge("n3", offset(3 * NS_PER_S)), edge("n4", offset(0))]
    standing = stand(lied_to.claimed, edges, reference="", limit_ns=NS_PER_MS)
    assert (standing.against, standing.disagrees) == (("n2", "n3"), True)
    seen = combine(lied_to, standing)
    assert seen.state is SyncState.UNKNOWN
    assert "2 of 3 peers measured contradict" in seen.reasons[0]
    assert seen.claimed == lied_to.claimed, "the claim is shown, beside what refutes it"


def test_one_odd_peer_of_three_is_said_and_changes_nothing() -> None:
    edges = [edge("n2", offset(3 * NS_PER_S)), edge("n3", offset(0)), edge("n4", offset(0))]
    seen = combine(state(offset(0)), stand(offset(0), edges, reference="", limit_ns=NS_PER_MS))
    assert seen.state is SyncState.SYNCHRONISED
    assert any("from n2" in reason for reason in seen.reasons)


def test_an_odd_peer_does_not_speak_for_all_however_well_it_was_measured() -> None:
    edges = [
        edge("n2", offset(3 * NS_PER_S, bound_ns=1)),
        edge("n3", offset(7)),
        edge("n4", offset(8, 99_999)),
    ]
    assert stand(offset(0), edges, reference="", limit_ns=NS_PER_MS).shown.estimate_ns == 7


def test_the_named_reference_alone_refutes_a_claim() -> None:
    edges = [edge("n2", offset(3 * NS_PER_S)), edge("n3", offset(0)), edge("n4", offset(0))]
    standing = stand(offset(0), edges, reference="n2", limit_ns=NS_PER_MS)
    assert standing.disagrees
    assert standing.shown.estimate_ns == 3 * NS_PER_S


def test_silent_peers_and_wide_bounds_refute_nothing() -> None:
    edges = [edge("n2", None), edge("n3", offset(3 * NS_PER_MS, bound_ns=5 * NS_PER_MS))]
    standing = stand(offset(0), edges, reference="", limit_ns=NS_PER_MS)
    assert (standing.disagrees, standing.silent) == (False, ("n2",))
    assert not stand(offset(0), [edge("n2", None)], reference="n2", limit_ns=NS_PER_MS).disagrees


def test_measurement_never_makes_a_clock_synchronised() -> None:
    for sync in SyncState:
        if sync is not SyncState.SYNCHRONISED:
            seen = combine(state(offset(0), sync), stand(offset(0), [edge("n2", offset(0))], reference="", limit_ns=1))
            assert seen.state is sync


@settings(max_examples=200, deadline=None)
@given(
    root=st.integers(-(10**12), 10**12),
    peer_off=st.integers(-(10**6), 10**6),
    claim_error=st.integers(-(10**5), 10**5),
    measure_error=st.integers(-(10**5), 10**5),
)
def test_a_true_claim_is_never_contradicted_by_a_peer_within_the_limit(
    root: int, peer_off: int, claim_error: int, measure_error: int
) -> None:
    """here - root = `root`; peer - root = `peer_off`; both intervals hold the truth, wherever their estimates are."""
    claimed = offset(root + claim_error, bound_ns=10**5)
    measured = offset(root - peer_off + measure_error, bound_ns=10**5)
    assert not contradicts(claimed, measured, 10**6)


# ---- time ----


def test_a_look_that_is_too_old_is_no_answer() -> None:
    told = story()
    told.handle_look(look(state(offset(0))), took_ns=1, now_ns=0)
    assert told.state(33 * NS_PER_S).state is SyncState.SYNCHRONISED
    late = told.state(33 * NS_PER_S + 1)
    assert (late.state, late.claimed.known, late.owner) == (SyncState.UNKNOWN, False, "?")
    assert "last look 33.0 s ago" in late.reasons[0]


def test_a_hanging_daemon_is_said_once_looked_for_three_periods() -> None:
    told = story()
    told.handle_look(look(state(offset(0))), took_ns=1, now_ns=0)
    assert any("no end" in line for line in told.handle_look_failed("no end within 8 s", 40 * NS_PER_S))
    assert "no end within 8 s" in told.state(40 * NS_PER_S).reasons[0]
    assert told.daemons.failures == 1


def test_a_measurement_that_is_too_old_stands_for_nothing() -> None:
    told = story()
    told.handle_look(look(state(offset(0)), at_ns=40 * NS_PER_S), took_ns=1, now_ns=40 * NS_PER_S)
    told.handle_report(report((edge("n2", offset(3 * NS_PER_S)),)), took_ns=1, now_ns=0)
    assert told.standing(40 * NS_PER_S) is None
    assert told.state(40 * NS_PER_S).state is SyncState.SYNCHRONISED


def test_an_offset_that_is_handed_out_later_is_older_and_speaks_of_the_same_instant() -> None:
    told = story()
    told.handle_look(look(state(offset(5))), took_ns=1, now_ns=0)
    seen = told.state(7 * NS_PER_S).claimed
    assert (seen.age_ns, seen.at_raw_ns, seen.estimate_ns, seen.bound_ns) == (7 * NS_PER_S, 0, 5, 10_000)


def test_holdover_is_timed_from_its_first_look_and_ends_with_it() -> None:
    told = story()
    told.handle_look(look(state(offset(0), SyncState.HOLDOVER), at_ns=5), took_ns=1, now_ns=5)
    told.handle_look(look(state(offset(0), SyncState.HOLDOVER), at_ns=100), took_ns=1, now_ns=100)
    assert told.holdover_ns(105) == 100
    told.handle_look_failed("hangs", 10**12)
    assert told.holdover_ns(10**12) > 0, "who cannot be seen may be in holdover still"
    told.handle_look(look(state(offset(0)), at_ns=10**12), took_ns=1, now_ns=10**12)
    assert told.holdover_ns(10**12 + 5) == 0


def ptp_clock(grandmaster: str) -> PtpClock:
    return PtpClock(
        domain=0, identity="own", grandmaster=grandmaster, is_own_grandmaster=False, clock_class=6, clock_accuracy=0x21,
        steps_removed=1, mean_path_delay_ns=500, utc_offset_s=37, utc_offset_valid=True, traceable=True,
        ports={1: "SLAVE"},
    )  # fmt: skip


def test_a_grandmaster_changed_when_another_is_named_not_when_the_first_is_or_none() -> None:
    told = story()
    for grandmaster in ("a", "a", "", "a"):
        told.handle_look(look(state(offset(0)), ptp=(ptp_clock(grandmaster),)), took_ns=1, now_ns=0)
    assert told.grandmaster_changes == 0
    said = told.handle_look(look(state(offset(0)), ptp=(ptp_clock("b"),)), took_ns=1, now_ns=0)
    assert told.grandmaster_changes == 1
    assert "domain 0: grandmaster b, before a" in said


def test_steps_are_counted_on_when_the_prober_is_started_again() -> None:
    told = story()
    assert told.handle_report(report((), steps=2), took_ns=1, now_ns=0) == ["CLOCK_REALTIME was stepped"]
    told.handle_prober_started()
    assert told.handle_report(report((), steps=0), took_ns=1, now_ns=0) == []
    told.handle_report(report((), steps=1), took_ns=1, now_ns=0)
    assert told.steps == 3


def test_peers_that_are_no_longer_configured_are_not_judged() -> None:
    told = story()
    told.handle_look(look(state(offset(0))), took_ns=1, now_ns=0)
    told.handle_report(report((edge("gone", offset(3 * NS_PER_S)),)), took_ns=1, now_ns=0)
    assert told.state(0).state is SyncState.SYNCHRONISED


@pytest.mark.parametrize(
    ("owner", "configured", "wanted"),
    [
        ("chronyd", ClockClass.AUTO, ClockClass.NTP),
        ("phc2sys", ClockClass.AUTO, ClockClass.PTP_HARDWARE),
        ("ptp4l", ClockClass.AUTO, ClockClass.PTP_SOFTWARE),
        ("systemd-timesyncd", ClockClass.AUTO, ClockClass.NTP),
        (None, ClockClass.AUTO, ClockClass.PTP_HARDWARE),  # its phc2sys died: still what it was
        ("chronyd+ptp4l", ClockClass.AUTO, ClockClass.PTP_HARDWARE),
        ("chronyd", ClockClass.PTP_HARDWARE, ClockClass.PTP_HARDWARE),
    ],
)
def test_the_class_is_as_configured_else_by_the_owner_else_as_before(
    owner: str | None, configured: ClockClass, wanted: ClockClass
) -> None:
    assert class_of(owner, configured, ClockClass.PTP_HARDWARE) is wanted
