"""The meeting of ranks as rank 0 sees it, driven by hand: who is let in, who is turned away, how it ends."""

from __future__ import annotations

from typing import Any

import pytest

from rankclock.errors import DecodeError, ExitCode
from rankclock.timebase import NS_PER_S
from rankclock.training.environment import Launcher, MeetingPoint, Place
from rankclock.training.guest import Guest, hello
from rankclock.training.meeting import STRANGER_NS, Close, Meeting, Send

POINT = MeetingPoint(host="gpu0", ports=(29333,))


def place(rank: int | None, world_size: int = 3, **more: Any) -> Place:
    fields: dict[str, Any] = {"launcher": Launcher.OPTIONS, "job": "verify j", "meeting": POINT, **more}
    return Place(rank=rank, world_size=world_size, **fields)


def meeting_of(rank: int | None = 0, world_size: int = 3, **more: Any) -> Meeting:
    return Meeting(
        place(rank, world_size, **more), host="gpu0", pid=100, salt=b"s" * 32, until_ns=60 * NS_PER_S, timeout_s=60.0
    )


def come(meeting: Meeting, connection: int, who: Place, *, host: str | None = None, now_ns: int = 0) -> list[Any]:
    meeting.handle_connected(connection, address=f"10.0.0.{connection}", own_address="10.0.0.100", now_ns=now_ns)
    name = host or f"gpu{connection}"
    return meeting.handle_message(connection, hello(who, host=name, pid=connection), now_ns)


def messages_to(actions: list[Any], connection: int) -> list[dict[str, Any]]:
    return [action.message for action in actions if isinstance(action, Send) and action.connection == connection]


def test_all_ranks_are_welcomed_once_the_last_has_come() -> None:
    meeting = meeting_of()
    assert [m["type"] for m in messages_to(come(meeting, 2, place(2)), 2)] == ["joined"]
    assert meeting.roster is None
    actions = come(meeting, 1, place(1))
    assert [m["type"] for m in messages_to(actions, 1)] == ["joined", "welcome"]
    assert [m["type"] for m in messages_to(actions, 2)] == ["welcome"]
    assert meeting.roster is not None
    assert [(m.rank, m.host, m.address) for m in meeting.roster] == [
        (0, "gpu0", "10.0.0.100"),
        (1, "gpu1", "10.0.0.1"),
        (2, "gpu2", "10.0.0.2"),
    ]


def test_arrivals_get_their_ranks_in_the_order_of_their_names() -> None:
    meeting = meeting_of(rank=None)
    come(meeting, 1, place(None), host="zeta")
    actions = come(meeting, 2, place(None), host="alpha")
    assert messages_to(actions, 1)[-1]["rank"] == 2
    assert messages_to(actions, 2)[-1]["rank"] == 1


def test_a_rank_on_rank_0s_own_host_is_reached_where_rank_0_is() -> None:
    meeting = meeting_of()
    meeting.handle_connected(1, address="127.0.0.1", own_address="127.0.0.1", now_ns=0)
    meeting.handle_message(1, hello(place(1), host="gpu0", pid=7), 0)
    come(meeting, 2, place(2))
    assert meeting.roster is not None
    assert [m.address for m in meeting.roster] == ["10.0.0.100", "10.0.0.100", "10.0.0.2"]


@pytest.mark.parametrize(
    ("who", "says"),
    [
        (place(1, job="verify k"), "it is of job 'verify k', here meets job 'verify j'"),
        (place(1, world_size=8), "it counts 8 ranks, rank 0 counts 3"),
        (place(0), "rank 0 is here already, from gpu0 (pid 100)"),
        (place(2), "rank 2 is here already, from gpu2 (pid 2)"),
        (place(3), "there is no rank 3 in a world of 3"),
        (place(None), "some ranks have a --rank and others have none"),
    ],
)
def test_who_does_not_belong_is_turned_away_with_the_reason_and_the_others_go_on(who: Place, says: str) -> None:
    meeting = meeting_of()
    come(meeting, 2, place(2))
    actions = come(meeting, 9, who)
    (refused,) = messages_to(actions, 9)
    assert refused["type"] == "refused"
    assert refused["code"] == ExitCode.BAD_INPUT
    assert says in refused["message"]
    assert Close(connection=9) in actions
    assert meeting.ended is None
    come(meeting, 1, place(1))
    assert meeting.roster is not None


def test_who_comes_when_all_are_here_is_told_so() -> None:
    meeting = meeting_of(rank=None, world_size=2)
    come(meeting, 1, place(None, world_size=2))
    (refused,) = messages_to(come(meeting, 2, place(None, world_size=2)), 2)
    assert "all 2 hosts are here already" in refused["message"]


def test_missing_ranks_are_named_at_the_deadline_and_all_who_came_are_told() -> None:
    meeting = meeting_of(world_size=5, hosts=("a", "b", "c", "d", "e"))
    come(meeting, 2, place(2, world_size=5))
    come(meeting, 9, place(1, world_size=8))
    assert meeting.handle_time(60 * NS_PER_S - 1) == []
    actions = meeting.handle_time(60 * NS_PER_S)
    assert meeting.ended is not None
    assert meeting.ended.code is ExitCode.CANNOT_TELL
    assert "only 2 of 5 ranks came within 60 s" in meeting.ended.message
    assert "missing rank 1 (b), rank 3 (d), rank 4 (e)" in meeting.ended.message
    assert "turned away: rank 1 (gpu9) at 10.0.0.9: it counts 8 ranks" in meeting.ended.message
    assert messages_to(actions, 2) == [{"type": "end", "code": 4, "message": meeting.ended.message}]


def test_many_missing_ranks_are_folded_into_a_range() -> None:
    meeting = meeting_of(world_size=1000)
    meeting.handle_time(60 * NS_PER_S)
    assert meeting.ended is not None
    assert "missing rank [1-999]" in meeting.ended.message


def test_late_ranks_learn_how_it_ended() -> None:
    meeting = meeting_of()
    meeting.handle_time(60 * NS_PER_S)
    (refused,) = messages_to(come(meeting, 1, place(1), now_ns=61 * NS_PER_S), 1)
    assert refused["code"] == ExitCode.CANNOT_TELL
    assert "the meeting has ended: only 1 of 3 ranks came" in refused["message"]


@pytest.mark.parametrize("when", ["joining", "between rounds", "in a round"])
def test_a_rank_that_dies_ends_the_meeting_for_all(when: str) -> None:
    meeting = meeting_of()
    come(meeting, 1, place(1))
    if when != "joining":
        come(meeting, 2, place(2))
    if when == "in a round":
        meeting.begin_round("mine", until_ns=70 * NS_PER_S, timeout_s=10.0)
        meeting.handle_message(1, {"type": "value", "round": 0, "value": 1}, 0)
    actions = meeting.handle_closed(1)
    assert meeting.ended is not None
    assert meeting.ended.code is ExitCode.CANNOT_TELL
    assert "rank 1 (gpu1) left before the end" in meeting.ended.message
    if when != "joining":
        assert messages_to(actions, 2)[0]["type"] == "end"
    assert messages_to(actions, 1) == []


def full_meeting() -> Meeting:
    meeting = meeting_of()
    come(meeting, 1, place(1))
    come(meeting, 2, place(2))
    return meeting


def test_a_round_collects_in_rank_order_and_answers_each_rank() -> None:
    meeting = full_meeting()
    meeting.handle_message(2, {"type": "value", "round": 0, "value": "c"}, 0)
    meeting.begin_round("a", until_ns=10 * NS_PER_S, timeout_s=10.0)
    assert meeting.collected is None
    meeting.handle_message(1, {"type": "value", "round": 0, "value": None}, 0)
    assert meeting.collected == ["a", None, "c"]
    actions = meeting.reply([10, 11, 12])
    assert messages_to(actions, 2) == [{"type": "reply", "round": 0, "value": 12}]
    assert meeting.collected is None
    assert meeting.next_deadline_ns is None


def test_a_silent_rank_is_named_at_the_rounds_deadline() -> None:
    meeting = full_meeting()
    meeting.begin_round("a", until_ns=10 * NS_PER_S, timeout_s=10.0)
    meeting.handle_message(1, {"type": "value", "round": 0, "value": 1}, 0)
    assert meeting.next_deadline_ns == 10 * NS_PER_S
    meeting.handle_time(10 * NS_PER_S)
    assert meeting.ended is not None
    assert meeting.ended.message == "no answer within 10 s from rank 2 (gpu2)"


def test_a_failure_of_one_rank_ends_all_with_its_exit_code() -> None:
    meeting = full_meeting()
    actions = meeting.handle_message(1, {"type": "fail", "code": 3, "message": "no port is free"}, 0)
    assert messages_to(actions, 2) == [{"type": "end", "code": 3, "message": "rank 1 (gpu1): no port is free"}]
    assert meeting.handle_closed(1) == []


def test_a_rank_that_says_goodbye_is_not_missed_until_it_is_needed() -> None:
    meeting = full_meeting()
    assert meeting.handle_message(1, {"type": "bye"}, 0) == []
    assert meeting.handle_closed(1) == []
    assert meeting.ended is None
    assert not meeting.all_gone
    meeting.begin_round(0, until_ns=10 * NS_PER_S, timeout_s=10.0)
    assert meeting.ended is not None
    assert "rank 1 (gpu1) left before the end" in meeting.ended.message


def test_a_rank_that_says_goodbye_in_the_middle_of_a_round_ends_it() -> None:
    meeting = full_meeting()
    meeting.begin_round(0, until_ns=10 * NS_PER_S, timeout_s=10.0)
    meeting.handle_message(1, {"type": "bye"}, 0)
    assert meeting.ended is not None


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"type": 7},
        {"type": "value", "round": 1, "value": 0},
        {"type": "value", "round": "0"},
        {"type": "fail", "code": 99, "message": "x"},
        {"type": "fail", "code": 4},
        {"type": "hello"},
    ],
)
def test_a_member_that_talks_nonsense_ends_the_meeting_and_is_named(message: dict[str, Any]) -> None:
    meeting = full_meeting()
    meeting.handle_message(1, message, 0)
    assert meeting.ended is not None
    assert "rank 1 (gpu1) sent what is no message" in meeting.ended.message


def test_who_connects_and_says_nothing_is_dropped_after_a_while() -> None:
    meeting = meeting_of()
    meeting.handle_connected(5, address="10.9.9.9", own_address="10.0.0.100", now_ns=7)
    assert meeting.next_deadline_ns == 7 + STRANGER_NS
    assert meeting.handle_time(7 + STRANGER_NS) == [Close(connection=5)]
    meeting.handle_time(60 * NS_PER_S)
    assert meeting.ended is not None
    assert "turned away: 10.9.9.9 said nothing" in meeting.ended.message


def test_a_crowd_of_strangers_is_not_let_in() -> None:
    meeting = meeting_of()
    for connection in range(67):
        assert meeting.handle_connected(connection, address="x", own_address="y", now_ns=0) == []
    assert meeting.handle_connected(67, address="x", own_address="y", now_ns=0) == [Close(connection=67)]


def test_a_world_of_one_is_complete_at_once() -> None:
    meeting = meeting_of(world_size=1)
    assert meeting.roster is not None
    assert meeting.begin_round("only", until_ns=NS_PER_S, timeout_s=1.0) == []
    assert meeting.collected == ["only"]
    assert meeting.reply(["r"]) == []


def test_a_guest_keeps_what_rank_0_says_in_order() -> None:
    guest = Guest(place(1))
    guest.handle_message({"type": "joined", "wait_ms": 5})
    guest.handle_message({"type": "welcome", "rank": 1, "salt": "00ff"})
    assert (guest.rank, guest.salt) == (1, b"\x00\xff")
    assert guest.value_message("v") == {"type": "value", "round": 0, "value": "v"}
    guest.handle_message({"type": "reply", "round": 0, "value": None})
    assert guest.has_reply
    assert guest.take_reply() is None
    assert guest.value_message("w")["round"] == 1


@pytest.mark.parametrize(
    "message",
    [
        {"type": "welcome", "rank": 2, "salt": ""},
        {"type": "welcome", "rank": 0, "salt": ""},
        {"type": "welcome", "rank": 1, "salt": "x"},
        {"type": "reply", "round": 0, "value": 1},
        {"type": "end", "code": 9, "message": ""},
        {"type": "refused", "code": 2},
        {"type": "joined", "wait_ms": 1.5},
        {"type": None},
    ],
)
def test_a_guest_refuses_what_does_not_fit(message: dict[str, Any]) -> None:
    with pytest.raises(DecodeError):
        Guest(place(1)).handle_message(message)
