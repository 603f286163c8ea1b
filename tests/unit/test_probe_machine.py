"""The prober's state machine, event by event: who is answered, what is counted and dropped, what is remembered."""

from __future__ import annotations

import dataclasses

import pytest

from rankclock.clockmath.realtime import Reading
from rankclock.mesh.actions import Action, ArmTimer, Arrival, Departure, Event, Notice, Send
from rankclock.mesh.machine import ProbeMachine
from rankclock.mesh.settings import ProbeSettings
from rankclock.wire.probe import DATAGRAM_BYTES, Datagram, Kind, decode_datagram, encode_datagram, tag_of

KEY = b"the key of the job"
MS = 1_000_000
LEAD = 1_700_000_000_000_000_000
ADDRESS = ("10.0.0.9", 4910)
STEADY = ProbeSettings(start_ns=(0,))


def machine(node: str = "a", settings: ProbeSettings = STEADY, *, kernel: bool = True) -> ProbeMachine:
    made = ProbeMachine(
        node=node, clock_id="00000000000000aa", key=KEY, session=77, kernel_stamps=kernel, settings=settings
    )
    read(made, 0)
    return made


def read(one: ProbeMachine, raw_ns: int, lead_ns: int = LEAD) -> list[Action]:
    return one.handle_reading(Reading(raw_before_ns=raw_ns, real_ns=raw_ns + lead_ns + 50, raw_after_ns=raw_ns + 100))


def arrival(raw_ns: int) -> Arrival:
    return Arrival(not_before_raw_ns=raw_ns - 5_000, read_raw_ns=raw_ns, real_ns=raw_ns - 3_000 + LEAD)


def request(sequence: int = 0, *, sender: str = "b", target: str = "a", session: int = 5) -> Datagram:
    return Datagram(
        kind=Kind.REQUEST,
        session=session,
        sequence=sequence,
        sender=tag_of(sender),
        target=tag_of(target),
        clock=1,
        raw_before_ns=1,
        real_ns=2,
        raw_after_ns=3,
    )


def ask(one: ProbeMachine, datagram: Datagram, raw_ns: int, key: bytes = KEY) -> list[Action]:
    read(one, raw_ns + 100)
    return one.handle_datagram(encode_datagram(datagram, key), ADDRESS, arrival(raw_ns), raw_ns)


def sends(actions: list[Action]) -> list[Send]:
    return [action for action in actions if isinstance(action, Send)]


def test_a_request_is_answered_to_where_it_came_from_with_a_datagram_of_its_size() -> None:
    one = machine()
    (reply,) = sends(ask(one, request(), 10 * MS))
    assert reply.to == ADDRESS
    assert len(reply.data) == DATAGRAM_BYTES
    told = decode_datagram(reply.data, KEY)
    assert (told.kind, told.session, told.sequence) == (Kind.REPLY, 5, 0)
    assert (told.sender, told.target) == (tag_of("a"), tag_of("b"))
    (record,) = told.records
    assert record.arrival.kernel
    assert record.arrival.earliest_ns <= 10 * MS - 3_000 <= record.arrival.earliest_ns + record.arrival.width_ns
    assert record.departure is None


def test_replies_tell_when_the_eight_before_left() -> None:
    one = machine()
    for sequence in range(12):
        raw_ns = (10 + sequence) * MS
        (reply,) = sends(ask(one, request(sequence), raw_ns))
        read(one, raw_ns + 20_000)
        left = Departure(handed_raw_ns=raw_ns + 5_000, known_raw_ns=raw_ns + 15_000, real_ns=raw_ns + 9_000 + LEAD)
        one.handle_departure(reply.ticket, left)
    records = decode_datagram(reply.data, KEY).records
    assert [record.sequence for record in records] == list(range(3, 12))
    for record in records[:-1]:
        assert record.departure is not None
        assert record.departure.kernel
        true_ns = (10 + record.sequence) * MS + 9_000
        assert record.departure.earliest_ns <= true_ns <= record.departure.earliest_ns + record.departure.width_ns


@pytest.mark.parametrize(
    ("data", "counter"),
    [
        (b"", "garbage"),
        (b"x" * DATAGRAM_BYTES, "garbage"),
        (encode_datagram(request(), b"some other key!!"), "not authentic"),
        (encode_datagram(request(target="c"), KEY), "for another node"),
        (encode_datagram(dataclasses.replace(request(), kind=Kind.REPLY), KEY), "reply to nobody's question"),
    ],
)
def test_what_is_not_for_us_is_counted_and_gets_no_answer(data: bytes, counter: str) -> None:
    one = machine()
    read(one, 10 * MS)
    assert one.handle_datagram(data, ADDRESS, arrival(10 * MS), 10 * MS) == []
    assert one.counters == {counter: 1}


def test_a_replayed_request_gets_no_second_answer_and_an_overtaken_one_gets_its_first() -> None:
    one = machine()
    assert [len(sends(ask(one, request(n), (10 + i) * MS))) for i, n in enumerate((3, 1, 3, 1, 2, 70, 5))] == [
        1,
        1,
        0,
        0,
        1,
        1,
        0,
    ]
    assert one.counters == {"replayed request": 3}


def test_a_huge_sequence_number_costs_nothing() -> None:
    one = machine()
    assert len(sends(ask(one, request(2**32 - 1), 10 * MS))) == 1


def test_a_node_that_asks_too_often_is_not_answered_until_it_has_waited() -> None:
    one = machine(settings=ProbeSettings(request_burst=4, requests_per_s=10))
    answered = [len(sends(ask(one, request(n), 10 * MS + n * 1_000))) for n in range(6)]
    assert answered == [1, 1, 1, 1, 0, 0]
    assert len(sends(ask(one, request(9, sender="z"), 11 * MS))) == 1
    assert len(sends(ask(one, request(7), 10 * MS + 6_000 + 200 * MS))) == 1
    assert one.counters == {"asked too often": 2}


def test_requesters_beyond_the_limit_push_out_the_one_that_was_silent_longest() -> None:
    one = machine(settings=ProbeSettings(sessions=3))
    for index in range(10):
        assert len(sends(ask(one, request(0, sender=f"s{index}", session=index), (10 + index) * MS))) == 1
    assert len(one._responder._sessions) == 3
    assert len(one._responder._buckets) == 3


def asked(one: ProbeMachine, now_ns: int = 0) -> list[Send]:
    one.handle_peers({"b": ("10.0.0.2", 4910)}, now_ns)
    return sends(one.handle_timer(now_ns))


def reply_to(probe: Send, *, clock: int = 9, raw_ns: int = 5_000 * MS) -> bytes:
    told = decode_datagram(probe.data, KEY)
    return encode_datagram(
        dataclasses.replace(
            told,
            kind=Kind.REPLY,
            sender=told.target,
            target=told.sender,
            clock=clock,
            raw_before_ns=raw_ns,
            real_ns=raw_ns + LEAD,
            raw_after_ns=raw_ns + 100,
        ),
        KEY,
    )


def test_a_burst_is_pairs_back_to_back_and_one_that_collects_later() -> None:
    one = machine()
    burst = asked(one)
    assert len(burst) == 8
    assert [decode_datagram(probe.data, KEY).sequence for probe in burst] == list(range(8))
    assert sends(one.handle_timer(14 * MS)) == []
    assert len(sends(one.handle_timer(15 * MS))) == 1


def test_without_kernel_stamps_each_probe_waits_for_the_answer_to_the_one_before() -> None:
    one = machine(kernel=False)
    (first,) = asked(one)
    read(one, MS)
    came = Arrival(not_before_raw_ns=0, read_raw_ns=MS - 10, real_ns=None)
    (second,) = sends(one.handle_datagram(reply_to(first), first.to, came, MS))
    assert decode_datagram(second.data, KEY).sequence == 1
    (third,) = sends(one.handle_timer(11 * MS))
    assert decode_datagram(third.data, KEY).sequence == 2


def test_a_reply_counts_once_and_only_to_an_open_probe() -> None:
    one = machine()
    probe = asked(one)[0]
    for raw_ns in (MS, 2 * MS):
        read(one, raw_ns + 100)
        one.handle_datagram(reply_to(probe), probe.to, arrival(raw_ns), raw_ns)
    assert one.counters == {"late or repeated reply": 1}


def test_a_peer_with_another_clock_than_before_is_noticed_and_its_past_forgotten() -> None:
    one = machine()
    first, second, *_ = asked(one)
    read(one, MS)
    one.handle_datagram(reply_to(first), first.to, arrival(MS), MS)
    read(one, 2 * MS)
    (notice,) = one.handle_datagram(reply_to(second, clock=10), second.to, arrival(2 * MS), 2 * MS)
    assert isinstance(notice, Notice)
    assert (notice.event, notice.about) == (Event.PEER_CLOCK_REPLACED, "b")
    edge = one.report(3 * MS, stamps="kernel").edges[0]
    assert edge.peer_clock_id == f"{10:016x}"
    assert edge.raw is None


def test_after_a_suspend_of_an_hour_one_burst_is_sent_and_not_thousands() -> None:
    one = machine()
    asked(one)
    later = 3_600_000 * MS
    read(one, later)
    total = sum(len(sends(one.handle_timer(later + i * MS))) for i in range(20))
    collecting_of_the_first, burst, collecting = 1, 8, 1
    assert total == collecting_of_the_first + burst + collecting


def test_the_timer_is_armed_for_what_is_due_first_and_never_later_than_the_next_reading() -> None:
    one = machine()
    (armed,) = one.handle_peers({}, 0)
    assert armed == ArmTimer(at_ns=100 * MS)
    (armed,) = one.handle_peers({"b": ("10.0.0.2", 1), "a": ("10.0.0.1", 1)}, 5)
    assert armed == ArmTimer(at_ns=5)
    assert len(one.report(6, stamps="kernel").edges) == 1


def test_peers_that_stay_keep_what_was_measured_and_others_are_dropped() -> None:
    one = machine()
    asked(one)
    one.handle_peers({"b": ("10.0.0.3", 4911), "c": ("10.0.0.4", 1)}, MS)
    edges = {edge.peer: edge for edge in one.report(2 * MS, stamps="kernel").edges}
    assert set(edges) == {"b", "c"}
    assert edges["b"].sent == 9
    one.handle_peers({}, 3 * MS)
    assert one.report(4 * MS, stamps="kernel").edges == ()
    assert sends(one.handle_timer(2_000 * MS)) == []


def test_an_own_step_is_a_notice() -> None:
    one = machine()
    read(one, 100 * MS)
    (notice,) = read(one, 200 * MS, lead_ns=LEAD - 3_000 * MS)
    assert isinstance(notice, Notice)
    assert notice.event is Event.CLOCK_STEPPED


def test_what_the_kernel_did_not_take_is_counted_and_not_waited_for() -> None:
    one = machine()
    probe = asked(one)[0]
    one.handle_unsent(probe.ticket)
    one.handle_departure(probe.ticket, Departure(handed_raw_ns=0, known_raw_ns=1, real_ns=None))
    assert one.counters == {"could not be sent": 1}
