"""The run record: a round trip loses nothing, and a broken file is one precise error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rankclock.errors import DecodeError, HostError, UserError
from rankclock.report.record import (
    Check,
    Event,
    Figure,
    Host,
    LeftOut,
    Matrix,
    Phase,
    PlanNode,
    PlanRecord,
    RunRecord,
    Sample,
    Series,
    Standing,
    Takeover,
    read_record,
    write_record,
)
from rankclock.timebase import ClockState, Judgement, Offset, SyncState

KNOWN = Offset.around(120, 900, reference="upstream", method="two-way, kernel stamps", at_raw_ns=5, age_ns=7)
UNKNOWN = Offset.unknown("no answer", reference="upstream", method="two-way, kernel stamps")
STATE = ClockState(
    node="gpu1",
    state=SyncState.SYNCHRONISED,
    owner="chronyd",
    source="10.80.0.11",
    claimed=KNOWN,
    measured=UNKNOWN,
    reasons=("reference fresh",),
)
SERIES = Series(
    node="gpu1",
    reference="upstream",
    samples=(
        Sample(t_s=1.5, phase="ntp", measured=KNOWN, claimed=UNKNOWN, true_ns=100),
        Sample(t_s=2, phase="ntp", measured=UNKNOWN, claimed=KNOWN, claimed_true_ns=-3),
    ),
)
RECORD = RunRecord(
    title="a run",
    created_utc="2026-12-01T05:00:00Z",
    command="rankclock demo",
    reference="upstream",
    host=Host(kernel="6.1", cores=2, versions={"chronyd": "4.3"}),
    phases=(Phase(name="ntp", started_s=0.0, ended_s=9.5), Phase(name="ptp", started_s=9.5)),
    plans=(
        PlanRecord(
            protocol="ntp",
            tree="upstream\n└── gpu1",
            decision=("fewer than 8 nodes: NTP",),
            nodes=(
                PlanNode(node="gpu1", role="client", upstream=("upstream",), owner="chronyd", tier=1, budget_ns=None),
            ),
            standings=(Standing(state=STATE, true_ns=4),),
            standings_at_s=8.0,
        ),
    ),
    series=(SERIES,),
    matrices=(
        Matrix(
            title="before",
            names=("gpu1", "gpu2"),
            cells=((KNOWN, UNKNOWN), (UNKNOWN, KNOWN)),
            threshold_ns=1_000_000,
            verdict=Judgement.CANNOT_TELL,
            t_s=3.0,
            true_ns=((0, None), (7, 0)),
        ),
    ),
    events=(Event(t_s=4.0, node="time1", text="killed"),),
    takeover=Takeover(killed_s=4.0, old="time1", new=None, taken_over_s=None, paths=(SERIES,)),
    figures=(Figure(name="samples", value=1000.0, unit="", command="rankclock demo"),),
    checks=(Check(name="coverage", passed=None, detail="no truth here"),),
    left_out=(LeftOut(what="hardware PTP", why="no namespaces"),),
)


def _changed(path: list[Any], value: Any) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(json.dumps(RECORD.to_json()))
    place: Any = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return document


def test_a_record_survives_the_round_trip_through_a_file(tmp_path: Path) -> None:
    write_record(tmp_path / "run.json", RECORD)
    assert read_record(tmp_path / "run.json") == RECORD


def test_the_record_of_a_run_that_did_nothing_is_readable() -> None:
    empty = RunRecord(title="", created_utc="", command="", reference="", host=Host(kernel="", cores=1, versions={}))
    assert RunRecord.from_json(empty.to_json()) == empty
    assert RunRecord.from_json({**empty.to_json(), "phases": []}).phases == ()


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (["schema"], "rankclock-run/9", "rankclock-run/9"),
        (["extra"], 1, "'extra'"),
        (["host"], None, "record.host: expected dict, found NoneType"),
        (["host", "cores"], "2", "record.host.cores: expected int, found str"),
        (["host", "cores"], True, "record.host.cores: expected int, found bool"),
        (["host", "cores"], 1 << 70, "record.host.cores"),
        (["phases", 1, "started_s"], float("inf"), r"record.phases[1].started_s"),
        (["series", 0, "samples", 0, "measured", "lo_ns"], 0.5, "series[0].samples[0].measured.lo_ns"),
        (["series", 0, "samples", 0, "measured", "lo_ns"], 10**9, "inside its bounds"),
        (["series", 0, "reference"], "time1", "holds a measurement against 'upstream'"),
        (["plans", 0, "standings", 0, "state", "state"], "perfect", "'perfect'"),
        (["plans", 0, "nodes", 0], {"node": "gpu1"}, "'role' is missing"),
        (["matrices", 0, "names"], ["gpu1"], "not 1 x 1"),
        (["matrices", 0, "true_ns"], [[0]], "true_ns is not 2 x 2"),
        (["events"], "none", "record.events: expected list, found str"),
    ],
)
def test_a_field_that_is_wrong_is_named(path: list[Any], value: Any, said: str) -> None:
    with pytest.raises(DecodeError) as raised:
        RunRecord.from_json(_changed(path, value))
    assert said in str(raised.value)


def test_a_missing_part_is_named() -> None:
    document = RECORD.to_json()
    del document["host"]
    with pytest.raises(DecodeError, match="'host' is missing"):
        RunRecord.from_json(document)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff\xfe", b"[" * 100_000, b'{"schema": "rankclock-run/1"}'])
def test_a_file_that_is_no_record_is_one_line_that_names_it(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.json"
    path.write_bytes(content)
    with pytest.raises(UserError) as raised:
        read_record(path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_missing_file_and_a_missing_folder_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        read_record(tmp_path / "none.json")
    with pytest.raises(HostError, match="choose a folder"):
        write_record(tmp_path / "none" / "run.json", RECORD)


def test_samples_covers_the_series_and_the_paths_of_the_takeover() -> None:
    assert len(list(RECORD.samples())) == 4
