"""The meeting under any order of events: nothing raises, nobody is seated wrongly, everybody hears the same end."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rankclock.timebase import NS_PER_S
from rankclock.training.environment import Launcher, MeetingPoint, Place
from rankclock.training.guest import hello
from rankclock.training.meeting import Meeting, Send

WORLD = 4
SCALARS = st.none() | st.booleans() | st.integers(-5, 1 << 70) | st.floats(allow_nan=False) | st.text(max_size=5)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=2), max_leaves=4)
KINDS = st.sampled_from(["hello", "value", "fail", "bye", "end", "welcome", ""])


def place(rank: int | None, *, world_size: int = WORLD, job: str = "j") -> Place:
    point = MeetingPoint(host="h", ports=(1,))
    return Place(launcher=Launcher.OPTIONS, job=job, rank=rank, world_size=world_size, meeting=point)


def hellos() -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(
        lambda rank, size, job: hello(place(rank, world_size=size, job=job), host="host", pid=1),
        st.none() | st.integers(-1, WORLD + 1),
        st.sampled_from([WORLD, WORLD, WORLD, 8]),
        st.sampled_from(["j", "j", "j", "other"]),
    )


GARBAGE = st.fixed_dictionaries(
    {"type": KINDS | SCALARS},
    optional=dict.fromkeys(("rank", "round", "value", "code", "message", "host", "pid", "job", "world_size"), VALUES),
)
GOOD_VALUE = st.builds(lambda number: {"type": "value", "round": number, "value": 1}, st.integers(0, 2))
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("connected"), st.integers(0, 6), st.none()),
        st.tuples(st.just("message"), st.integers(0, 6), hellos() | GARBAGE | GOOD_VALUE),
        st.tuples(st.just("closed"), st.integers(0, 6), st.none()),
        st.tuples(st.just("broken"), st.integers(0, 6), st.none()),
        st.tuples(st.just("round"), st.just(0), st.none()),
        st.tuples(st.just("time"), st.integers(0, 20), st.none()),
    ),
    max_size=60,
)


@settings(max_examples=200, deadline=None)
@given(events=EVENTS, arrivals=st.booleans())
def test_no_order_of_events_breaks_the_meeting(events: list[Any], arrivals: bool) -> None:
    meeting = Meeting(
        place(None if arrivals else 0), host="h0", pid=0, salt=b"", until_ns=60 * NS_PER_S, timeout_s=60.0
    )
    connected: set[int] = set()
    now_ns = 0
    ends: list[dict[str, Any]] = []
    for kind, number, message in events:
        actions: list[Any] = []
        if kind == "connected" and number not in connected:
            connected.add(number)
            actions = meeting.handle_connected(
                number, address=f"10.0.0.{number}", own_address="10.0.0.9", now_ns=now_ns
            )
        elif kind == "message" and number in connected:
            actions = meeting.handle_message(number, message, now_ns)
        elif kind == "closed" and number in connected:
            connected.discard(number)
            actions = meeting.handle_closed(number)
        elif kind == "broken" and number in connected:
            actions = meeting.handle_broken(number, "garbage")
        elif kind == "round" and meeting.roster is not None and meeting.ended is None:
            if meeting.collected is not None:
                actions = meeting.reply([0] * WORLD)
            else:
                actions = meeting.begin_round(0, until_ns=now_ns + NS_PER_S, timeout_s=1.0)
        elif kind == "time":
            now_ns += number * NS_PER_S
            actions = meeting.handle_time(now_ns)
        ends += [a.message for a in actions if isinstance(a, Send) and a.message["type"] == "end"]
        if meeting.roster is not None:
            assert [member.rank for member in meeting.roster] == list(range(WORLD))
    assert len({(end["code"], end["message"]) for end in ends}) <= 1
    if ends:
        assert meeting.ended is not None
        assert ends[0]["message"] == meeting.ended.message
    if now_ns >= 60 * NS_PER_S and meeting.roster is None:
        meeting.handle_time(now_ns)
        assert meeting.ended is not None
