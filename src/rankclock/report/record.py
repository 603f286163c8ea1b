"""The record of a run: what a demo or an experiment writes down and every report reads.

Decides how a run is stored (schema 'rankclock-run/1'): offsets stay whole `Offset` values, so that no number loses its
bound, method, age and reference on the way to a page. Refuses a record that mixes references within one series, and
anything in a file that is not exactly of the declared shape. Standard library only.

Seconds in fields ending `_s` count from the start of the run (CLOCK_MONOTONIC of the writer), never from an epoch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from rankclock.errors import DecodeError, HostError, UserError
from rankclock.report.codec import decode, encode
from rankclock.timebase import ClockState, Judgement, Offset

__all__ = [
    "SCHEMA",
    "Check",
    "Event",
    "Figure",
    "Host",
    "LeftOut",
    "Matrix",
    "Phase",
    "PlanNode",
    "PlanRecord",
    "RunRecord",
    "Sample",
    "Series",
    "Standing",
    "Takeover",
    "read_record",
    "write_record",
]

SCHEMA = "rankclock-run/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The machine that the run was made on. versions: {"chronyd": "4.3", ...}; a tool that was absent is not in it."""

    kernel: str
    cores: int
    versions: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One step of the run. ended_s is None where the run ended inside it."""

    name: str
    started_s: float
    ended_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanNode:
    """One node's place in a plan. upstream: nodes (or sources) it takes time from, the preferred one first."""

    node: str
    role: str
    upstream: tuple[str, ...]
    owner: str | None
    tier: int
    budget_ns: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How one clock stood when the plan had settled. true_ns: its true offset from `state.measured.reference`."""

    state: ClockState
    true_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRecord:
    """A plan as it was carried out. tree: the text that `rankclock plan` prints. decision: one sentence an answer.

    standings were read at `standings_at_s`; a node without one is shown as unknown.
    """

    protocol: str
    tree: str
    decision: tuple[str, ...]
    nodes: tuple[PlanNode, ...]
    standings: tuple[Standing, ...] = ()
    standings_at_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One look at one clock.

    measured: node minus the series' reference, unknown where nothing was measured.
    true_ns: the same difference as the lab knows it, at the instant that `measured` speaks of; None where nobody knows.
    claimed: what the node's daemon says of itself, against the reference that it names (often not the series'); None
    where no claim goes with this sample (it was not asked for; an unknown claim is one that was, in vain).
    claimed_true_ns: the truth against the reference that the *claim* names; None where the two cannot be compared.
    """

    t_s: float
    phase: str
    measured: Offset
    claimed: Offset | None = None
    true_ns: int | None = None
    claimed_true_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """The samples of one node against one reference, in the order taken. A node may have several series."""

    node: str
    reference: str
    samples: tuple[Sample, ...]

    def __post_init__(self) -> None:
        for sample in self.samples:
            if sample.measured.reference != self.reference:
                raise ValueError(
                    f"series {self.node} - {self.reference} holds a measurement against {sample.measured.reference!r}"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """Pairwise offsets: cells[i][j] = clock names[i] - clock names[j]. true_ns has the same shape where truth is known.

    verdict: what `verify` answered against threshold_ns (WITHIN, BEYOND, CANNOT_TELL).
    """

    title: str
    names: tuple[str, ...]
    cells: tuple[tuple[Offset, ...], ...]
    threshold_ns: int
    verdict: Judgement
    t_s: float | None = None
    true_ns: tuple[tuple[int | None, ...], ...] | None = None

    def __post_init__(self) -> None:
        size = len(self.names)
        for what, rows in (("cells", self.cells), ("true_ns", self.true_ns)):
            if rows is not None and [len(row) for row in rows] != [size] * size:
                raise ValueError(f"matrix {self.title!r}: {what} is not {size} x {size}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened. node is '' where it concerns the whole run."""

    t_s: float
    text: str
    node: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Takeover:
    """A source of time was killed. new and taken_over_s are None where nobody took over before the run ended.

    taken_over_s: when the last node followed `new`. paths: the clocks around the kill, where they were sampled more
    densely than in the run's own series (never copies of those samples: they would count twice); empty where not.
    """

    killed_s: float
    old: str
    new: str | None
    taken_over_s: float | None
    paths: tuple[Series, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number that the run produced, and the command that produces it again."""

    name: str
    value: float
    unit: str
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that the run had to show. passed is None where it cannot be told; detail says why, in words."""

    name: str
    passed: bool | None
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """One thing that could not run here, and why."""

    what: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """A whole run. created_utc: ISO 8601, for people; reference: the clock that offsets are drawn against.

    command: what to type to make such a run again.
    """

    title: str
    created_utc: str
    command: str
    reference: str
    host: Host
    phases: tuple[Phase, ...] = ()
    plans: tuple[PlanRecord, ...] = ()
    series: tuple[Series, ...] = ()
    matrices: tuple[Matrix, ...] = ()
    events: tuple[Event, ...] = ()
    takeover: Takeover | None = None
    figures: tuple[Figure, ...] = ()
    checks: tuple[Check, ...] = ()
    left_out: tuple[LeftOut, ...] = ()

    def samples(self) -> Iterator[tuple[Series, Sample]]:
        """Every sample with the series it belongs to; the takeover's own paths included."""
        for series in (*self.series, *(self.takeover.paths if self.takeover else ())):
            for sample in series.samples:
                yield series, sample

    def to_json(self) -> dict[str, Any]:
        """A JSON object, schema 'rankclock-run/1'."""
        return {"schema": SCHEMA, **encode(self)}

    @classmethod
    def from_json(cls, value: object) -> Self:
        """The inverse of `to_json`. Raises DecodeError, naming the place, for anything else."""
        if not isinstance(value, dict):
            raise DecodeError(f"a run record is a JSON object, found {type(value).__name__}")
        if value.get("schema") != SCHEMA:
            raise DecodeError(f"schema: expected {SCHEMA!r}, found {value.get('schema')!r}")
        record: Self = decode(cls, {key: item for key, item in value.items() if key != "schema"}, "record")
        return record


def write_record(path: Path, record: RunRecord) -> None:
    """Write the record as one JSON file. Raises HostError where the folder cannot be written."""
    text = json.dumps(record.to_json(), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    try:
        path.write_text(text + "\n", encoding="utf-8", errors="replace")
    except OSError as error:
        raise HostError(f"cannot write {path}: {error.strerror}; choose a folder that can be written") from error


def read_record(path: Path) -> RunRecord:
    """Read what `write_record` wrote. Raises UserError, naming the file and the place in it."""
    try:
        return RunRecord.from_json(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; give the run record that a demo wrote") from error
    except (DecodeError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise UserError(f"{path} is no run record: {error}; give a file of schema {SCHEMA!r}") from error
