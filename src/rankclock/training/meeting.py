"""The meeting of all ranks as rank 0 sees it: a state machine without I/O (`rankclock.training.guest` is the others').

Rank 0 collects one hello of every rank and then goes through rounds with them: each rank gives a value, rank 0 gives
each a reply. The roster stays with rank 0: told to all, it would grow with the square of the ranks. Decides who may
take part, and how it ends: where one rank dies, fails or stays silent beyond a deadline, all ranks end with the same
message and exit code. Refuses late, duplicate and foreign ranks with a reason, and goes on without them.

Every `handle_*` says what happened and returns what is to be done. Instants are `now_ns` of one monotonic clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any

from rankclock.cluster.hostlist import fold
from rankclock.errors import DecodeError, ExitCode
from rankclock.timebase import NS_PER_MS, NS_PER_S
from rankclock.training.environment import Place
from rankclock.training.roster import End, Member, integer_field, text_field

__all__ = ["STRANGER_NS", "Close", "Meeting", "Send"]

STRANGER_NS = 5 * NS_PER_S
"""How long a connection may stay without a hello: round trips over a bad path, not more."""

_EXTRA_STRANGERS = 64
"""Connections beyond the world size that may wait for their hello at the same time."""

_MAX_NAMED = 8
"""How many missing ranks or refused strangers a message names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Send this message on this connection."""

    connection: int
    message: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Close:
    """Close this connection once what was sent on it is out."""

    connection: int


Action = Send | Close


@dataclass(slots=True, kw_only=True)
class _Stranger:
    """A connection that has not said hello."""

    address: str
    own_address: str
    until_ns: int


@dataclass(slots=True, kw_only=True)
class _Seat:
    """A connection that is a rank. rank is None until the ranks of arrivals are given out."""

    rank: int | None
    host: str
    address: str
    own_address: str
    pid: int
    gone: bool = False
    values: list[Any] = field(default_factory=list)

    def __str__(self) -> str:
        return self.host if self.rank is None else f"rank {self.rank} ({self.host})"


class Meeting:
    """Rank 0's side. `roster` stands once all ranks came, `collected` once all gave their value of the round."""

    def __init__(self, place: Place, *, host: str, pid: int, salt: bytes, until_ns: int, timeout_s: float) -> None:
        """`salt`: random bytes from which all ranks derive the job's key. `until_ns`: when all ranks must have come,
        which is `timeout_s` after the start."""
        self._place, self._salt = place, salt
        self._until_ns: int | None = until_ns
        self._timeout_s = timeout_s
        self._me = _Seat(rank=0, host=host, address="", own_address="", pid=pid)
        self._strangers: dict[int, _Stranger] = {}
        self._seats: dict[int, _Seat] = {}
        self._by_rank = {0: self._me}
        self._turned_away: list[str] = []
        self._round = 0
        self._own_value: Any = None
        self._asked, self._given = False, 0
        self.roster: tuple[Member, ...] | None = None
        self.ended: End | None = None
        self._complete_if_all_came()

    @property
    def next_deadline_ns(self) -> int | None:
        """When `handle_time` has something to do."""
        oldest = next(iter(self._strangers.values()), None)  # all wait equally long, in the order in which they came
        deadlines = [] if oldest is None else [oldest.until_ns]
        if self._until_ns is not None and self.ended is None:
            deadlines.append(self._until_ns)
        return min(deadlines, default=None)

    @property
    def collected(self) -> list[Any] | None:
        """All ranks' values of the round that was begun, in rank order; None while one is missing."""
        if self.roster is None or not self._asked or self._given < len(self._seats):
            return None
        by_rank = {seat.rank: seat.values[0] for seat in self._seats.values()}
        return [self._own_value, *(by_rank[rank] for rank in range(1, self._place.world_size))]

    @property
    def all_gone(self) -> bool:
        """Whether every other rank has taken its leave or closed its connection."""
        return all(seat.gone for seat in self._seats.values())

    def handle_connected(self, connection: int, *, address: str, own_address: str, now_ns: int) -> list[Action]:
        """Somebody connected, from `address` to our `own_address`."""
        if len(self._strangers) >= self._place.world_size + _EXTRA_STRANGERS:
            return [Close(connection=connection)]
        self._strangers[connection] = _Stranger(address=address, own_address=own_address, until_ns=now_ns + STRANGER_NS)
        return []

    def handle_message(self, connection: int, message: dict[str, Any], now_ns: int) -> list[Action]:
        """A sealed message came in."""
        try:
            if connection in self._strangers:
                return self._hello(connection, message, now_ns)
            seat = self._seats.get(connection)
            return [] if seat is None or self.ended else self._from_member(seat, message)
        except DecodeError as error:
            return self.handle_broken(connection, str(error))

    def handle_broken(self, connection: int, why: str) -> list[Action]:
        """What came in is no message: garbage, another version, another key."""
        stranger = self._strangers.pop(connection, None)
        if stranger is not None:
            return self._turn_away(connection, stranger.address, why, ExitCode.BAD_INPUT)
        seat = self._seats.get(connection)
        if seat is None or seat.gone:
            return [Close(connection=connection)]
        seat.gone = True
        return [
            Close(connection=connection),
            *self.fail(ExitCode.CANNOT_TELL, f"{seat} sent what is no message: {why}"),
        ]

    def handle_closed(self, connection: int) -> list[Action]:
        """The other side closed, or the connection broke."""
        self._strangers.pop(connection, None)
        seat = self._seats.get(connection)
        if seat is None or seat.gone:
            return []
        seat.gone = True
        return self.fail(ExitCode.CANNOT_TELL, _left(seat))

    def handle_time(self, now_ns: int) -> list[Action]:
        """The clock reads `now_ns`: end what has waited too long."""
        actions: list[Action] = []
        for connection in [c for c, stranger in self._strangers.items() if stranger.until_ns <= now_ns]:
            stranger = self._strangers.pop(connection)
            self._turned_away.append(f"{stranger.address} said nothing")
            actions.append(Close(connection=connection))
        if self._until_ns is not None and self._until_ns <= now_ns and self.ended is None:
            actions += self.fail(ExitCode.CANNOT_TELL, self._too_late())
        return actions

    def begin_round(self, value: Any, *, until_ns: int, timeout_s: float) -> list[Action]:
        """Rank 0's own value of the next round; all others must come before `until_ns`, `timeout_s` from now."""
        self._own_value, self._asked = value, True
        self._until_ns, self._timeout_s = until_ns, timeout_s
        left = next((seat for seat in self._seats.values() if seat.gone and not seat.values), None)
        return [] if left is None else self.fail(ExitCode.CANNOT_TELL, _left(left))

    def reply(self, values: Sequence[Any]) -> list[Action]:
        """Close the round: to each rank its reply, in rank order (rank 0's own is not sent)."""
        ended_round = self._round
        self._round += 1
        self._asked, self._given, self._until_ns = False, 0, None
        actions: list[Action] = []
        for connection, seat in self._seats.items():
            assert seat.rank is not None
            del seat.values[0]
            message = {"type": "reply", "round": ended_round, "value": values[seat.rank]}
            actions.append(Send(connection=connection, message=message))
        return actions

    def fail(self, code: ExitCode, message: str) -> list[Action]:
        """End the meeting for all, if it has not ended yet."""
        if self.ended is not None:
            return []
        self.ended = End(code=code, message=message)
        end = {"type": "end", "code": int(code), "message": message}
        return [Send(connection=connection, message=end) for connection, seat in self._seats.items() if not seat.gone]

    def _hello(self, connection: int, message: dict[str, Any], now_ns: int) -> list[Action]:
        stranger = self._strangers[connection]
        if message.get("type") != "hello":
            raise DecodeError(f"a {str(message.get('type'))[:20]!r} before its hello")
        rank = integer_field(message, "rank") if message.get("rank") is not None else None
        seat = _Seat(
            rank=rank,
            host=text_field(message, "host"),
            address=stranger.address,
            own_address=stranger.own_address,
            pid=integer_field(message, "pid"),
        )
        objections = self._objections(seat, text_field(message, "job"), integer_field(message, "world_size"))
        objection = next(objections, None)
        del self._strangers[connection]
        if objection is not None:
            code = self.ended.code if self.ended else ExitCode.BAD_INPUT
            return self._turn_away(connection, f"{seat} at {stranger.address}", objection, code)
        self._seats[connection] = seat
        if seat.rank is not None:
            self._by_rank[seat.rank] = seat
        wait_ms = max((self._until_ns or now_ns) - now_ns, 0) // NS_PER_MS
        joined = Send(connection=connection, message={"type": "joined", "wait_ms": wait_ms})
        return [joined, *self._complete_if_all_came()]

    def _objections(self, seat: _Seat, job: str, world_size: int) -> Iterator[str]:
        """Why this one may not take part; nothing where it may."""
        ours = self._place
        if job != ours.job:
            yield f"it is of job {job[:80]!r}, here meets job {ours.job!r}"
        if self.ended is not None:
            yield f"the meeting has ended: {self.ended.message}"
        if world_size != ours.world_size:
            yield f"it counts {world_size} ranks, rank 0 counts {ours.world_size}"
        if (seat.rank is None) != (ours.rank is None):
            yield "some ranks have a --rank and others have none: give it to all or to none"
        if seat.rank is None:
            if self.roster is not None:
                yield f"all {world_size} hosts are here already: is one started twice, or is --hosts too small?"
            return
        if not 0 <= seat.rank < world_size:
            yield f"there is no rank {seat.rank} in a world of {world_size}"
        twin = self._by_rank.get(seat.rank)
        if twin is not None:
            yield f"rank {seat.rank} is here already, from {twin.host} (pid {twin.pid})"

    def _turn_away(self, connection: int, who: str, why: str, code: ExitCode) -> list[Action]:
        self._turned_away.append(f"{who}: {why}")
        refused = {"type": "refused", "code": int(code), "message": why}
        return [Send(connection=connection, message=refused), Close(connection=connection)]

    def _complete_if_all_came(self) -> list[Action]:
        if len(self._seats) + 1 < self._place.world_size:
            return []
        if self._place.rank is None:
            in_order = sorted(self._seats.values(), key=lambda seat: (seat.host, seat.address, seat.pid))
            for rank, seat in enumerate(in_order, start=1):
                seat.rank = rank
        self._until_ns = None
        own_address = _own_address(self._seats.values())
        self._me.address = own_address
        members = []
        for seat in (self._me, *self._seats.values()):
            assert seat.rank is not None
            # Who came over loopback sits on rank 0's host, and others reach it where they reach rank 0.
            address = own_address if _is_loopback(seat.address) else seat.address
            members.append(Member(rank=seat.rank, host=seat.host, address=address, pid=seat.pid))
        self.roster = tuple(sorted(members, key=lambda member: member.rank))
        welcome = {"type": "welcome", "salt": self._salt.hex()}
        return [
            Send(connection=connection, message={**welcome, "rank": seat.rank})
            for connection, seat in self._seats.items()
        ]

    def _from_member(self, seat: _Seat, message: dict[str, Any]) -> list[Action]:
        match message.get("type"):
            case "value" if (
                self.roster is not None and integer_field(message, "round") == self._round and not seat.values
            ):
                seat.values.append(message.get("value"))
                self._given += 1
                return []
            case "fail":
                try:
                    code = ExitCode(integer_field(message, "code"))
                except ValueError:  # DecodeError is one
                    raise DecodeError("a failure without an exit code of the table") from None
                why = text_field(message, "message")
                seat.gone = True
                return self.fail(code, f"{seat}: {why}")
            case "bye":
                seat.gone = True
                return self.fail(ExitCode.CANNOT_TELL, _left(seat)) if self._asked and not seat.values else []
        raise DecodeError(f"a {str(message.get('type'))[:20]!r} that does not fit here")

    def _too_late(self) -> str:
        within = f"within {self._timeout_s:g} s"
        if self.roster is not None:
            silent = [str(seat) for seat in self._seats.values() if not seat.values]
            return f"no answer {within} from {_some(silent)}"
        came = [self._me, *self._seats.values()]
        away = f"; turned away: {_some(self._turned_away)}" if self._turned_away else ""
        return f"only {len(came)} of {self._place.world_size} ranks came {within}: {self._missing(came)}{away}"

    def _missing(self, came: Sequence[_Seat]) -> str:
        if self._place.rank is None:
            return f"here are {_some([seat.host for seat in came])}"
        ranks = sorted(set(range(self._place.world_size)) - {seat.rank for seat in came if seat.rank is not None})
        if self._place.hosts:
            return f"missing {_some([f'rank {rank} ({self._place.hosts[rank]})' for rank in ranks])}"
        return f"missing rank {fold(str(rank) for rank in ranks)}"


def _left(seat: _Seat) -> str:
    return f"{seat} left before the end: was it killed? Look at its own output"


def _own_address(seats: Iterable[_Seat]) -> str:
    """Where others reach rank 0: the address most of them connected to, loopback only where all did."""
    addresses = [seat.own_address for seat in seats]
    reached = Counter(address for address in addresses if not _is_loopback(address))
    if reached:
        return min(reached, key=lambda address: (-reached[address], address))
    return addresses[0] if addresses else "127.0.0.1"


def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address.split("%", maxsplit=1)[0]).is_loopback
    except ValueError:
        return False


def _some(texts: Sequence[str]) -> str:
    more = len(texts) - _MAX_NAMED
    return ", ".join(texts[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
