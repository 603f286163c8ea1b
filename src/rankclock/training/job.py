"""From options and environment to one answer on every rank: join the job, measure its clocks, judge, agree.

The connecting part of `rankclock verify` and `rankclock preflight`. Every rank gets the same `Verdict`; rank 0 also
gets what it rests on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

from rankclock.cluster.hostlist import expand
from rankclock.errors import DecodeError, ExitCode, PeerError, UserError
from rankclock.training.clock import DISABLE_VARIABLE
from rankclock.training.environment import MAX_WORLD_SIZE, Given, Place, read_place
from rankclock.training.measurement import Measurement, measure
from rankclock.training.rendezvous import meet, read_key_file
from rankclock.training.whoami import is_own_address, own_index

__all__ = ["DISABLE_VARIABLE", "JobOptions", "Judged", "Seat", "Verdict", "ask_all", "find_seat"]

MAX_SECONDS = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """The options of a command that all ranks run. hosts: a host list, or how many hosts there are.

    seconds: how long to probe. timeout_s: how long any rank is waited for. probe_port: this host's UDP port, 0 for any.
    """

    hosts: str | None = None
    rank: int | None = None
    world_size: int | None = None
    rendezvous: str | None = None
    job: str | None = None
    seconds: float = 2.0
    timeout_s: float = 60.0
    probe_port: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Where this process sits: its place, and whether it is the one that the others come to."""

    place: Place
    hosting: bool


class Judged(Protocol):
    """What a judgement has in common: `rankclock.training.verify` and `.preflight` have one each."""

    @property
    def exit_code(self) -> ExitCode:
        """What every rank exits with."""

    @property
    def line(self) -> str:
        """The answer in one line."""

    @property
    def odd_ranks(self) -> frozenset[int]:
        """The ranks whose own clock is off from a majority."""


Found = TypeVar("Found", bound=Judged)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict(Generic[Found]):
    """The answer, the same on every rank; `found` is what it rests on, at rank 0 only. odd: this rank's own clock is
    off from a majority."""

    rank: int
    exit_code: ExitCode
    line: str
    odd: bool
    found: Found | None


def find_seat(options: JobOptions, env: Mapping[str, str], *, purpose: str, may_arrive: bool = False) -> Seat:
    """Where this process sits, from options and environment. `purpose` keeps the meetings of two commands apart.

    Raises UserError.
    """
    _check(options)
    names, count = _hosts(options.hosts)
    if count is not None and options.world_size not in (None, count):
        raise UserError(f"--hosts is {count} and --world-size is {options.world_size}: leave out one of them")
    index, not_found = None, None
    if names and options.rank is None:
        try:
            index = own_index(names)
        except UserError as error:
            not_found = error  # a launcher may know the rank
    given = Given(
        rank=options.rank,
        world_size=count if count is not None else options.world_size,
        hosts=names,
        own_index=index,
        rendezvous=options.rendezvous,
        job=options.job,
        may_arrive=may_arrive and not names,
    )
    try:
        place = read_place(env, given)
    except UserError:
        if not_found is not None:
            raise not_found from None
        raise
    place = replace(place, job=f"{purpose} {place.job}")
    hosting = place.rank == 0 or (place.rank is None and is_own_address(place.meeting.host))
    return Seat(place=place, hosting=hosting)


def ask_all(
    seat: Seat, options: JobOptions, env: Mapping[str, str], judge: Callable[[Measurement], Found]
) -> Verdict[Found]:
    """Meet all ranks, measure, judge at rank 0, tell all. Raises what ended the meeting: the same on all ranks."""
    shared = read_key_file(env)
    with meet(seat.place, timeout_s=options.timeout_s, shared=shared, hosting=seat.hosting) as meeting:
        measured = measure(meeting, seconds=options.seconds, timeout_s=options.timeout_s, probe_port=options.probe_port)
        found = judge(measured) if measured is not None else None

        def tell(_values: list[Any]) -> list[Any]:
            assert found is not None
            odd = found.odd_ranks
            return [[int(found.exit_code), found.line, rank in odd] for rank in range(meeting.world_size)]

        exit_code, line, odd = _verdict(meeting.exchange(None, tell, timeout_s=options.timeout_s))
        return Verdict(rank=meeting.rank, exit_code=exit_code, line=line, odd=odd, found=found)


def _verdict(value: Any) -> tuple[ExitCode, str, bool]:
    try:
        code, line, odd = value
        return ExitCode(code), str(line), bool(odd)
    except (TypeError, ValueError):
        raise PeerError(f"rank 0 sent no verdict but {str(value)[:80]!r}") from None


def _hosts(text: str | None) -> tuple[tuple[str, ...], int | None]:
    """The names of a host list, or a number of hosts."""
    if text is None:
        return (), None
    if text.strip().isdecimal() and len(text.strip()) <= 9:
        return (), int(text)
    try:
        names = expand(text, limit=MAX_WORLD_SIZE)
    except DecodeError as error:
        raise UserError(f"--hosts: {error}") from None
    twice = next((name for name in names if names.count(name) > 1), None) if len(set(names)) < len(names) else None
    if twice is not None:
        raise UserError(f"--hosts names {twice} twice")
    return names, None


def _check(options: JobOptions) -> None:
    if not 0 < options.seconds <= MAX_SECONDS:
        raise UserError(f"--seconds is {options.seconds:g}: expected more than 0 and at most {MAX_SECONDS:g}")
    if not 0 < options.timeout_s <= MAX_SECONDS:
        raise UserError(f"--timeout is {options.timeout_s:g}: expected more than 0 and at most {MAX_SECONDS:g} s")
    if not 0 <= options.probe_port <= 65_535:
        raise UserError(f"--probe-port is {options.probe_port}: expected 0 to 65535")
