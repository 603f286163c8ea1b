"""Who this process is in its job: rank, world size, and where the ranks meet.

Decides from a mapping of variables and from what the user gave, nothing else: torchrun, Open MPI, PMI launchers, Slurm,
an indexed Kubernetes job, or plain options. The innermost launcher wins (torchrun inside srun is torchrun). Two sources
that speak of the same world size and disagree on the rank are refused: one of them is left over from somewhere else.

Where the ranks meet: `--rendezvous`, then RANKCLOCK_RENDEZVOUS, then MASTER_ADDR with the ports after MASTER_PORT, then
what the launcher tells. MASTER_PORT itself belongs to the launcher's store and is never used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from rankclock.cluster.hostlist import expand
from rankclock.errors import DecodeError, UserError

__all__ = [
    "DEFAULT_PORT",
    "MAX_WORLD_SIZE",
    "PORT_CANDIDATES",
    "Given",
    "Launcher",
    "MeetingPoint",
    "Place",
    "launched",
    "parse_meeting_point",
    "read_place",
]

DEFAULT_PORT = 29_333
"""Where ranks meet when nobody names a port: below Linux's ephemeral ports, clear of torchrun's own 29400 and 29500."""

PORT_CANDIDATES = 4
"""How many ports in a row are tried where the port is derived: torchrun takes MASTER_PORT from the ephemeral ports,
and the next one may be somebody's outgoing connection."""

MAX_WORLD_SIZE = 65_536
"""Each rank is one TCP connection at rank 0."""

_SLURM_FIRST_PORT, _SLURM_JOBS = 20_000, 2_000
"""Slurm jobs get PORT_CANDIDATES ports each in 20000..27999, so that jobs that share a host rarely meet."""


class Launcher(StrEnum):
    """Who started this process."""

    TORCHRUN = "torchrun"
    OPENMPI = "Open MPI"
    PMI = "PMI"
    SLURM = "Slurm"
    KUBERNETES = "Kubernetes"
    OPTIONS = "options"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeetingPoint:
    """Host of rank 0, and the ports on which it may listen, in the order in which they are tried."""

    host: str
    ports: tuple[int, ...]

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        last = f"-{self.ports[-1]}" if len(self.ports) > 1 else ""
        return f"{host}:{self.ports[0]}{last}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What the user gave as options; None where nothing.

    rank, world_size: as of `--rank` and of `--world-size` or `--hosts N`. hosts: the names of a host list, one rank
    each. own_index: this host's place in that list. rendezvous: the text of `--rendezvous`. job: the text of `--job`.
    may_arrive: whether a missing rank may be given out by order of arrival.
    """

    rank: int | None = None
    world_size: int | None = None
    hosts: tuple[str, ...] = ()
    own_index: int | None = None
    rendezvous: str | None = None
    job: str | None = None
    may_arrive: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One process's place in a job. rank is None where ranks are given out by order of arrival.

    attempt: torchrun's restart count. It is for people only: agents whose own workers did not fail do not count a
    restart (torch's elastic agent), so it differs between the ranks of one attempt.
    """

    launcher: Launcher
    job: str
    rank: int | None
    world_size: int
    meeting: MeetingPoint
    local_rank: int | None = None
    attempt: int = 0
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What one launcher's variables say.

    numbers_itself: it gave out the ranks itself and owes nothing to a launcher around it. host, port: where its rank 0
    is, where that is known.
    """

    launcher: Launcher
    job: str
    rank: int
    world_size: int | None
    rank_variable: str
    numbers_itself: bool = True
    local_rank: int | None = None
    attempt: int = 0
    host: Callable[[], str | None] = lambda: None
    port: int | None = None


def read_place(env: Mapping[str, str], given: Given | None = None) -> Place:
    """The place that variables and options describe. Raises UserError where they describe none, or two."""
    given = given or Given()
    found = _launchers(env)
    _refuse_disagreement(found)
    launcher = found[0] if found else None
    rank, world_size = _rank_and_size(given, launcher)
    job = given.job or env.get("RANKCLOCK_JOB") or (launcher.job if launcher else "rankclock")
    return Place(
        launcher=launcher.launcher if launcher else Launcher.OPTIONS,
        job=job,
        rank=rank,
        world_size=world_size,
        meeting=_meeting_point(env, given, launcher, world_size),
        local_rank=launcher.local_rank if launcher else None,
        attempt=launcher.attempt if launcher else 0,
        hosts=given.hosts,
    )


def launched(env: Mapping[str, str]) -> bool:
    """Whether any launcher that I know left its variables. Raises UserError where they are broken."""
    return bool(_launchers(env))


def parse_meeting_point(text: str, *, what: str = "--rendezvous") -> MeetingPoint:
    """'gpu1:29333', '[fd00::1]:29333', or a host alone (DEFAULT_PORT). Raises UserError."""
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%\w]+)\]|([^\s:\[\]/]+))(?::(\d{1,5}))?", text.strip())
    if match is None:
        raise UserError(
            f"{what} is {text!r}: expected HOST:PORT, such as gpu1:{DEFAULT_PORT} or [fd00::1]:{DEFAULT_PORT}"
        )
    port = int(match[3]) if match[3] else DEFAULT_PORT
    if not 1 <= port <= 65_535:
        raise UserError(f"{what} is {text!r}: a port is 1 to 65535")
    return MeetingPoint(host=match[1] or match[2], ports=(port,))


def _rank_and_size(given: Given, launcher: _Found | None) -> tuple[int | None, int]:
    named = len(given.hosts) or None
    if named and given.world_size is not None and given.world_size != named:
        raise UserError(f"--world-size is {given.world_size}, and --hosts names {named} hosts: leave out one of them")
    world_size = given.world_size if given.world_size is not None else named
    if world_size is None:
        world_size = launcher.world_size if launcher else None
    if world_size is None:
        raise UserError(
            "this process is in no job that I know (no RANK and WORLD_SIZE of torchrun, no srun step, no mpirun): "
            "start it with torchrun, srun or mpirun, or give --hosts (the same list on every host)"
        )
    if not 1 <= world_size <= MAX_WORLD_SIZE:
        raise UserError(f"the world size is {world_size}: expected 1 to {MAX_WORLD_SIZE}")
    rank = _rank(given, launcher, world_size)
    if rank is None and world_size == 1:
        rank = 0
    if rank is None and not given.may_arrive:
        raise UserError(
            f"one of {world_size} ranks, but which? Give --rank 0 to {world_size - 1}, a different one each"
        )
    if rank is not None and not 0 <= rank < world_size:
        raise UserError(f"the rank is {rank}: expected 0 to {world_size - 1} in a world of {world_size}")
    return rank, world_size


def _rank(given: Given, launcher: _Found | None, world_size: int) -> int | None:
    """The rank from `--rank`, from the host list (its first host is where the ranks meet), or from the launcher."""
    speaks = launcher if launcher and launcher.world_size in (None, world_size) else None
    if given.rank is not None:
        if speaks and speaks.rank != given.rank and world_size > 1:
            raise UserError(
                f"--rank is {given.rank}, but {speaks.launcher} says {speaks.rank_variable}={speaks.rank}: "
                "leave out --rank, or unset the variable if it is left over"
            )
        return given.rank
    if given.own_index is not None:
        return given.own_index
    return speaks.rank if speaks else None


def _refuse_disagreement(found: list[_Found]) -> None:
    for inner, outer in pairwise(found):
        same_world = inner.world_size == outer.world_size and inner.world_size not in (None, 1)
        if same_world and inner.rank != outer.rank and not inner.numbers_itself:
            raise UserError(
                f"{inner.rank_variable}={inner.rank} and {outer.rank_variable}={outer.rank} contradict each other in a "
                f"world of {inner.world_size}: unset the one that is left over"
            )


def _meeting_point(env: Mapping[str, str], given: Given, launcher: _Found | None, world_size: int) -> MeetingPoint:
    if given.rendezvous:
        return parse_meeting_point(given.rendezvous)
    if env.get("RANKCLOCK_RENDEZVOUS"):
        return parse_meeting_point(env["RANKCLOCK_RENDEZVOUS"], what="RANKCLOCK_RENDEZVOUS")
    if given.hosts:
        return MeetingPoint(host=given.hosts[0], ports=_row(DEFAULT_PORT))
    port = launcher.port if launcher and launcher.port else DEFAULT_PORT
    if env.get("MASTER_ADDR"):
        master_port = _number(env, "MASTER_PORT", most=65_535)
        return MeetingPoint(host=env["MASTER_ADDR"], ports=_after(master_port) if master_port else _row(port))
    host = launcher.host() if launcher else None
    if host is None and world_size == 1:
        host = "127.0.0.1"
    if host is None:
        raise UserError(
            f"where do the {world_size} ranks meet? Give --rendezvous HOST:PORT (the host of rank 0), "
            "or set RANKCLOCK_RENDEZVOUS or MASTER_ADDR"
        )
    return MeetingPoint(host=host, ports=_row(port))


def _row(port: int) -> tuple[int, ...]:
    return tuple(range(port, port + PORT_CANDIDATES))


def _after(master_port: int) -> tuple[int, ...]:
    """The ports after the store's, or before it where they would end above 65535."""
    if master_port + PORT_CANDIDATES <= 65_535:
        return _row(master_port + 1)
    return _row(master_port - PORT_CANDIDATES)


def _launchers(env: Mapping[str, str]) -> list[_Found]:
    """Every launcher that left its variables, innermost first."""
    readers = (_torchrun, _openmpi, _pmi, _slurm, _kubernetes)
    return [found for reader in readers if (found := reader(env)) is not None]


def _torchrun(env: Mapping[str, str]) -> _Found | None:
    rank, world_size = _number(env, "RANK"), _number(env, "WORLD_SIZE", most=MAX_WORLD_SIZE)
    run_id = env.get("TORCHELASTIC_RUN_ID")
    if rank is None and run_id is None:
        return None  # WORLD_SIZE alone is what some schedulers set for a whole job
    if rank is None or world_size is None:
        missing = "RANK" if rank is None else "WORLD_SIZE"
        raise UserError(f"torchrun's variables are incomplete: {missing} is missing; set both RANK and WORLD_SIZE")
    master = f"{env.get('MASTER_ADDR', '')}:{env.get('MASTER_PORT', '')}"
    return _Found(
        launcher=Launcher.TORCHRUN,
        job=f"torchrun {run_id} {master}" if run_id is not None else f"RANK {master}",
        rank=rank,
        world_size=world_size,
        rank_variable="RANK",
        # Without the run id a script exported RANK, as a copy of what the launcher around it said.
        numbers_itself=run_id is not None,
        local_rank=_number(env, "LOCAL_RANK"),
        attempt=_number(env, "TORCHELASTIC_RESTART_COUNT") or 0,
    )


def _openmpi(env: Mapping[str, str]) -> _Found | None:
    rank, world_size = _number(env, "OMPI_COMM_WORLD_RANK"), _number(env, "OMPI_COMM_WORLD_SIZE", most=MAX_WORLD_SIZE)
    if rank is None or world_size is None:
        return None
    all_here = _number(env, "OMPI_COMM_WORLD_LOCAL_SIZE") == world_size
    return _Found(
        launcher=Launcher.OPENMPI,
        job=f"mpi {env.get('PMIX_NAMESPACE', '')}",
        rank=rank,
        world_size=world_size,
        rank_variable="OMPI_COMM_WORLD_RANK",
        local_rank=_number(env, "OMPI_COMM_WORLD_LOCAL_RANK"),
        host=lambda: "127.0.0.1" if all_here else None,
    )


def _pmi(env: Mapping[str, str]) -> _Found | None:
    rank, world_size = _number(env, "PMI_RANK"), _number(env, "PMI_SIZE", most=MAX_WORLD_SIZE)
    if rank is None or world_size is None:
        return None
    all_here = _number(env, "MPI_LOCALNRANKS") == world_size
    return _Found(
        launcher=Launcher.PMI,
        job=f"pmi {env.get('PMI_JOBID', '')}",
        rank=rank,
        world_size=world_size,
        rank_variable="PMI_RANK",
        local_rank=_number(env, "MPI_LOCALRANKID"),
        host=lambda: "127.0.0.1" if all_here else None,
    )


def _slurm(env: Mapping[str, str]) -> _Found | None:
    """A task of an srun step. A batch script has SLURM_PROCID=0 too, but no step id: it is no rank."""
    rank, step = _number(env, "SLURM_PROCID"), env.get("SLURM_STEP_ID")
    if rank is None or step is None:
        return None
    world_size = _number(env, "SLURM_STEP_NUM_TASKS", most=MAX_WORLD_SIZE)
    if world_size is None:
        world_size = _number(env, "SLURM_NTASKS", most=MAX_WORLD_SIZE)
    if world_size is None:
        raise UserError("Slurm's variables are incomplete: SLURM_NTASKS is missing; start this with srun")
    job = env.get("SLURM_JOB_ID", "0")
    nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST") or env.get("SLURM_NODELIST")
    offset = int(job) % _SLURM_JOBS if re.fullmatch(r"\d{1,20}", job, re.ASCII) else 0
    return _Found(
        launcher=Launcher.SLURM,
        job=f"slurm {job}.{step}",
        rank=rank,
        world_size=world_size,
        rank_variable="SLURM_PROCID",
        local_rank=_number(env, "SLURM_LOCALID"),
        # Task 0 of a step is on the first node of its list.
        host=lambda: _first_host(nodes) if nodes else None,
        port=_SLURM_FIRST_PORT + PORT_CANDIDATES * offset,
    )


def _first_host(nodes: str) -> str:
    try:
        return expand(nodes)[0]
    except DecodeError as error:
        raise UserError(f"Slurm's node list {nodes!r} cannot be read: {error}; give --rendezvous HOST:PORT") from None


def _kubernetes(env: Mapping[str, str]) -> _Found | None:
    """A pod of an indexed Job: it knows its index, not how many there are."""
    rank = _number(env, "JOB_COMPLETION_INDEX")
    if rank is None:
        return None
    return _Found(
        launcher=Launcher.KUBERNETES,
        job="kubernetes",
        rank=rank,
        world_size=None,
        rank_variable="JOB_COMPLETION_INDEX",
    )


def _number(env: Mapping[str, str], name: str, *, most: int = MAX_WORLD_SIZE - 1) -> int | None:
    text = env.get(name)
    if text is None or text == "":
        return None
    if not re.fullmatch(r"\d{1,9}", text, re.ASCII) or int(text) > most:
        raise UserError(f"the variable {name} is {text!r}: expected a whole number from 0 to {most}")
    return int(text)
