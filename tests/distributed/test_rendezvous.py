"""Ranks as real processes that meet over loopback. Whoever dies, lies, freezes or does not belong: nobody hangs, and
all who belong together end alike."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from typing import Any

import pytest

from rankclock.errors import ExitCode, RankclockError, UserError
from rankclock.training.environment import Launcher, MeetingPoint, Place
from rankclock.training.rendezvous import Rendezvous, meet, read_key_file

FORK = multiprocessing.get_context("fork")
KEY, OTHER_KEY = b"k" * 32, b"o" * 32

Work = Callable[[Rendezvous], Any]


@pytest.fixture
def port() -> int:
    """A port that was free a moment ago, and no outgoing connection will take."""
    for candidate in range(21_000 + os.getpid() % 1000 * 8, 32_000):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", candidate))
            except OSError:
                continue
            return candidate
    raise AssertionError("no port is free")


def place(rank: int | None, world_size: int, port: int, *, job: str = "j", ports: int = 1) -> Place:
    point = MeetingPoint(host="127.0.0.1", ports=tuple(range(port, port + ports)))
    return Place(launcher=Launcher.OPTIONS, job=job, rank=rank, world_size=world_size, meeting=point)


@dataclass
class Rank:
    """A rank in a process of its own: what it said at each point, and how it ended."""

    process: ForkProcess
    pipe: Connection
    said: list[Any] = field(default_factory=list)

    def hear(self, timeout_s: float = 20) -> Any:
        assert self.pipe.poll(timeout_s), f"pid {self.process.pid} says nothing"
        self.said.append(self.pipe.recv())
        return self.said[-1]

    def end(self, timeout_s: float = 20) -> Any:
        """Its last word: ('done', value) or ('error', exit code, message)."""
        last = self.hear(timeout_s)
        while last[0] == "at":
            last = self.hear(timeout_s)
        self.process.join(timeout_s)
        assert self.process.exitcode is not None, "a rank hangs"
        return last

    def kill(self, number: int = signal.SIGKILL) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)


def start(who: Place, work: Work, *, timeout_s: float = 10, shared: bytes | None = None, **more: Any) -> Rank:
    ours, theirs = FORK.Pipe()

    def main() -> None:
        try:
            with meet(who, timeout_s=timeout_s, shared=shared, **more) as meeting:
                theirs.send(("at", "met"))
                value = work(meeting)
            theirs.send(("done", value))
        except RankclockError as error:
            theirs.send(("error", error.exit_code, str(error)))

    process = FORK.Process(target=main, daemon=True)
    process.start()
    return Rank(process, ours)


@contextmanager
def all_ended(*ranks: Rank) -> Iterator[None]:
    try:
        yield
    finally:
        for rank in ranks:
            if rank.process.is_alive():
                rank.process.kill()
            rank.process.join(5)


def talk(meeting: Rendezvous) -> Any:
    everybody = meeting.all_gather({"from": meeting.rank}, timeout_s=5)
    word = meeting.broadcast(f"word of {meeting.rank}", timeout_s=5)
    return [value["from"] for value in everybody], word, meeting.key


@pytest.mark.parametrize("world_size", [1, 2, 4, 6])
@pytest.mark.parametrize("shared", [None, KEY])
def test_all_ranks_hear_all_and_share_a_key(world_size: int, shared: bytes | None, port: int) -> None:
    ranks = [start(place(rank, world_size, port), talk, shared=shared) for rank in reversed(range(world_size))]
    with all_ended(*ranks):
        ends = [rank.end() for rank in ranks]
    assert [end[0] for end in ends] == ["done"] * world_size
    assert {tuple(end[1][0]) for end in ends} == {tuple(range(world_size))}
    assert {end[1][1] for end in ends} == {"word of 0"}
    (key,) = {end[1][2] for end in ends}
    assert len(key) == 32
    assert key not in (KEY, bytes(32))


def test_two_meetings_never_have_the_same_key(port: int) -> None:
    keys = set()
    for _ in range(2):
        rank = start(place(0, 1, port), talk, shared=KEY)
        keys.add(rank.end()[1][2])
    assert len(keys) == 2


def test_arrivals_get_ranks_of_their_own(port: int) -> None:
    who = place(None, 4, port)
    ranks = [start(who, talk, hosting=number == 0) for number in range(4)]
    with all_ended(*ranks):
        ends = [rank.end() for rank in ranks]
    assert all(end[1][0] == [0, 1, 2, 3] for end in ends)


def wait_then_gather(meeting: Rendezvous) -> Any:
    meeting.idle(1.5)
    return meeting.all_gather(meeting.rank, timeout_s=5)


@pytest.mark.parametrize("victim", [0, 1, 2])
@pytest.mark.parametrize("moment", ["while others are missing", "while time passes", "while others answer"])
def test_a_rank_that_is_killed_ends_the_meeting_for_all_at_once(victim: int, moment: str, port: int) -> None:
    def work(meeting: Rendezvous) -> Any:
        if moment == "while time passes":
            meeting.idle(30)
        elif meeting.rank == victim:
            time.sleep(30)
        return meeting.all_gather(meeting.rank, timeout_s=30)

    world_size = 4 if moment == "while others are missing" else 3
    ranks = [start(place(rank, world_size, port), work, timeout_s=4) for rank in range(3)]
    with all_ended(*ranks):
        if moment == "while others are missing":
            time.sleep(0.4)
        else:
            assert [rank.hear() for rank in ranks] == [("at", "met")] * 3
            time.sleep(0.1)
        killed_s = time.monotonic()
        ranks[victim].kill()
        ends = [rank.end() for number, rank in enumerate(ranks) if number != victim]
        took_s = time.monotonic() - killed_s
    assert {end[:2] for end in ends} == {("error", ExitCode.CANNOT_TELL)}
    (message,) = {end[2] for end in ends}
    assert message.startswith(f"rank {victim} ")
    assert "left before the end" in message
    assert took_s < 2


def test_a_frozen_rank_is_named_at_the_deadline_and_learns_of_it_when_it_thaws(port: int) -> None:
    def work(meeting: Rendezvous) -> Any:
        if meeting.rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        return meeting.all_gather(0, timeout_s=1)

    ranks = [start(place(rank, 3, port), work) for rank in range(3)]
    with all_ended(*ranks):
        ends = [ranks[0].end(), ranks[2].end()]
        ranks[1].kill(signal.SIGCONT)
        ends.append(ranks[1].end())
    assert {end[0] for end in ends} == {"error"}
    assert {end[1] for end in ends} == {ExitCode.CANNOT_TELL}
    assert "no answer within 1 s from rank 1" in ends[0][2]
    assert len({end[2] for end in ends}) == 1


def test_an_error_in_one_rank_ends_all_with_its_exit_code(port: int) -> None:
    def work(meeting: Rendezvous) -> Any:
        if meeting.rank == 2:
            raise UserError("this rank was given nonsense")
        return meeting.all_gather(0, timeout_s=5)

    ranks = [start(place(rank, 3, port), work) for rank in range(3)]
    with all_ended(*ranks):
        ends = [rank.end() for rank in ranks]
    assert {end[1] for end in ends} == {ExitCode.BAD_INPUT}
    assert all("this rank was given nonsense" in end[2] for end in ends)
    assert ends[0][2].startswith("rank 2 (")


def test_a_missing_rank_is_named_to_all_who_came(port: int) -> None:
    ranks = [start(place(rank, 4, port), talk, timeout_s=1) for rank in (0, 1, 3)]
    with all_ended(*ranks):
        ends = [rank.end() for rank in ranks]
    assert {end[:2] for end in ends} == {("error", ExitCode.CANNOT_TELL)}
    assert {end[2] for end in ends} == {"only 3 of 4 ranks came within 1 s: missing rank 2"}


def test_without_rank_0_the_others_give_up_at_their_deadline(port: int) -> None:
    rank = start(place(1, 2, port), talk, timeout_s=0.6)
    started_s = time.monotonic()
    with all_ended(rank):
        _, code, message = rank.end()
    assert code is ExitCode.CANNOT_TELL
    assert "rank 0 could not be reached" in message
    assert "Connection refused" in message
    assert time.monotonic() - started_s < 3


GARBAGE = [
    b"",
    b"GET / HTTP/1.1\r\nHost: gpu1\r\n\r\n",
    b"\x00\x00\x00\x00",
    b"\xff" * 64,
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    (40).to_bytes(4, "big") + b'{"schema":"rankclock-meeting/1"',
    (2).to_bytes(4, "big") + b"{}",
    os.urandom(100_000),
]


def test_garbage_on_the_port_disturbs_nobody(port: int) -> None:
    rank0 = start(place(0, 2, port), talk)
    with all_ended(rank0):
        held = []
        for junk in GARBAGE:
            stranger = connect_when_open(port)
            with suppress(OSError):  # it may be thrown out while it still talks
                stranger.sendall(junk)
            held.append(stranger)
        rank1 = start(place(1, 2, port), talk)
        with all_ended(rank1):
            assert rank0.end()[0] == "done"
            assert rank1.end()[0] == "done"
        for stranger in held:
            stranger.close()


def connect_when_open(port: int) -> socket.socket:
    until_s = time.monotonic() + 5
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=5)
        except ConnectionRefusedError:
            assert time.monotonic() < until_s
            time.sleep(0.02)


@pytest.mark.parametrize(
    ("stranger", "says"),
    [
        ({"job": "other"}, "it is of job 'other', here meets job 'j'"),
        ({"world_size": 3}, "it counts 3 ranks, rank 0 counts 2"),
        ({"rank": 5, "world_size": 2}, "there is no rank 5"),
        ({"rank": None}, "some ranks have a --rank and others have none"),
        ({"shared": OTHER_KEY}, "RANKCLOCK_KEY_FILE must hold the same bytes"),
        ({"shared": None}, "this process has none"),
    ],
)
def test_who_does_not_belong_is_refused_at_once_and_the_job_goes_on(
    stranger: dict[str, Any], says: str, port: int
) -> None:
    asked = {"rank": 1, "world_size": 2, "job": "j", "shared": KEY, **stranger}
    who = place(asked["rank"], asked["world_size"], port, job=asked["job"])
    rank0 = start(place(0, 2, port), talk, shared=KEY)
    odd = start(who, talk, shared=asked["shared"])
    with all_ended(rank0, odd):
        _, code, message = odd.end(5)
        assert code is ExitCode.BAD_INPUT
        assert says in message
        rank1 = start(place(1, 2, port), talk, shared=KEY)
        with all_ended(rank1):
            assert rank0.end()[0] == "done"
            assert rank1.end()[0] == "done"


def test_the_same_rank_twice_is_refused_and_told_who_the_first_is(port: int) -> None:
    rank0 = start(place(0, 3, port), talk)
    first = start(place(1, 3, port), talk)
    with all_ended(rank0, first):
        time.sleep(0.5)
        second = start(place(1, 3, port), talk)
        with all_ended(second):
            _, code, message = second.end(5)
        assert code is ExitCode.BAD_INPUT
        assert f"rank 1 is here already, from {socket.gethostname()} (pid {first.process.pid})" in message
        last = start(place(2, 3, port), talk)
        with all_ended(last):
            assert [rank.end()[0] for rank in (rank0, first, last)] == ["done"] * 3


def test_a_taken_port_is_one_line_for_rank_0(port: int) -> None:
    with socket.create_server(("127.0.0.1", port)):
        rank0 = start(place(0, 2, port), talk)
        with all_ended(rank0):
            _, code, message = rank0.end(5)
    assert code is ExitCode.HOST_LACKS
    assert f"port {port}: Address already in use" in message


def test_a_row_of_ports_steps_over_what_others_have_taken(port: int) -> None:
    """As with torchrun: the port after the store's may be somebody's connection, or another job's rank 0."""
    other_job = start(place(0, 2, port + 1, job="other"), talk)
    with socket.create_server(("127.0.0.1", port)) as silent, all_ended(other_job):
        stop = threading.Event()
        answerer = threading.Thread(target=answer_with_junk, args=(silent, stop))
        answerer.start()
        try:
            time.sleep(0.3)
            ranks = [start(place(rank, 2, port, ports=4), talk) for rank in range(2)]
            with all_ended(*ranks):
                assert [rank.end()[0] for rank in ranks] == ["done"] * 2
        finally:
            stop.set()
            answerer.join()


def answer_with_junk(server: socket.socket, stop: threading.Event) -> None:
    server.settimeout(0.1)
    while not stop.is_set():
        try:
            connection, _ = server.accept()
        except TimeoutError:
            continue
        with connection:
            connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")


def test_it_meets_over_ipv6(port: int) -> None:
    point = MeetingPoint(host="::1", ports=(port,))
    whos = [Place(launcher=Launcher.OPTIONS, job="j", rank=rank, world_size=2, meeting=point) for rank in range(2)]
    ranks = [start(who, lambda meeting: meeting.roster[1].address if meeting.rank == 0 else None) for who in whos]
    with all_ended(*ranks):
        assert [rank.end() for rank in ranks] == [("done", "::1"), ("done", None)]


def test_a_name_that_nobody_knows_is_said_so_at_the_deadline(port: int) -> None:
    point = MeetingPoint(host="no-such-host.invalid", ports=(port,))
    rank = start(Place(launcher=Launcher.OPTIONS, job="j", rank=1, world_size=2, meeting=point), talk, timeout_s=1)
    with all_ended(rank):
        _, code, message = rank.end()
    assert code is ExitCode.CANNOT_TELL
    assert "the name no-such-host.invalid does not resolve" in message


def test_large_values_pass(port: int) -> None:
    ranks = [
        start(place(rank, 3, port), lambda meeting: len(meeting.all_gather("x" * 3_000_000, timeout_s=10)))
        for rank in range(3)
    ]
    with all_ended(*ranks):
        assert [rank.end() for rank in ranks] == [("done", 3)] * 3


def test_a_key_file_is_read_and_a_short_or_missing_one_refused(tmp_path: Any) -> None:
    file = tmp_path / "key"
    file.write_bytes(b"0123456789abcdef0123456789abcdef\n")
    assert read_key_file({"RANKCLOCK_KEY_FILE": str(file)}) == b"0123456789abcdef0123456789abcdef"
    assert read_key_file({}) is None
    file.write_bytes(b"short\n")
    with pytest.raises(UserError, match="holds 5 bytes"):
        read_key_file({"RANKCLOCK_KEY_FILE": str(file)})
    with pytest.raises(UserError, match="No such file"):
        read_key_file({"RANKCLOCK_KEY_FILE": str(tmp_path / "none")})
    with pytest.raises(UserError, match="Is a directory"):
        read_key_file({"RANKCLOCK_KEY_FILE": str(tmp_path)})


def test_nobody_can_end_a_keyed_meeting_from_outside(port: int) -> None:
    """Somebody who can connect, and knows the protocol, but not the key."""
    rank0 = start(place(0, 2, port), talk, shared=KEY)
    with all_ended(rank0):
        stranger = connect_when_open(port)
        for message in (
            {"schema": "rankclock-meeting/1", "nonce": "00" * 16, "keyed": True},
            {"type": "fail", "code": 1, "message": "stop"},
        ):
            text = json.dumps(message).encode()
            text = text if "schema" in message else bytes(32) + text
            stranger.sendall(len(text).to_bytes(4, "big") + text)
        rank1 = start(place(1, 2, port), talk, shared=KEY)
        with all_ended(rank1):
            assert rank0.end()[0] == "done"
            assert rank1.end()[0] == "done"
        stranger.close()
