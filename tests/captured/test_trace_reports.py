"""Traces that people posted because a tool failed on them: our answer, and what it must not be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rankclock.traces.inspect import Finding, inspect_file

REPORTS = [
    json.loads(line) for line in (Path(__file__).parent / "traces/reports.jsonl").read_text("utf-8").splitlines()
]
BY_ID = {report["id"]: report for report in REPORTS}

SAME_VERDICT = {"parse": ("ok", "ok with warning")}
"""The reporters' word for it and ours."""


def answer(report: dict[str, Any], folder: Path) -> Finding:
    path = folder / "posted.json"
    path.write_text(report["input"], "utf-8")
    (finding,) = inspect_file(path)
    return finding


@pytest.mark.parametrize("name", [report["id"] for report in REPORTS if report["kind"] == "trace"])
def test_the_verdict_is_the_reporters(name: str, tmp_path: Path) -> None:
    report = BY_ID[name]
    expected = report["expect"]["verdict"]
    assert answer(report, tmp_path).verdict in SAME_VERDICT.get(expected, (expected,))


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("C45", ("valid_X", "zero_ts_X", "zero_ts_flow", "span_us", "start_utc")),
        ("C48", ("rank", "start_utc")),
        ("C83", ("self_us",)),
    ],
)
def test_the_values_are_the_reporters(name: str, ours: tuple[str, ...], tmp_path: Path) -> None:
    finding = answer(BY_ID[name], tmp_path)
    for key in ours:
        assert finding.values[key] == BY_ID[name]["expect"]["values"][key]


def test_events_at_zero_do_not_make_the_trace_begin_in_1970(tmp_path: Path) -> None:
    finding = answer(BY_ID["C45"], tmp_path)
    assert finding.values["start_ns"] == 1615207264505000 * 1000
    assert any("2 events at time 0" in message for message in finding.messages)


def test_an_unescaped_quote_is_named_with_its_place_and_the_other_event_is_read(tmp_path: Path) -> None:
    finding = answer(BY_ID["C46"], tmp_path)
    assert (finding.values["read"], finding.values["lost"]) == (1, 1)
    assert any("line 1, byte 16" in message and "quote" in message for message in finding.messages)


def test_a_rank_that_nobody_states_is_unknown_and_said_so(tmp_path: Path) -> None:
    finding = answer(BY_ID["C48"], tmp_path)
    assert finding.values["rank"] is None and finding.values["longest_us"] == 7933
    assert any("rank unknown" in message for message in finding.messages)
    assert any("1970" in message for message in finding.messages)


def test_a_control_character_loses_nothing(tmp_path: Path) -> None:
    finding = answer(BY_ID["C80"], tmp_path)
    assert (finding.values["read"], finding.values["lost"]) == (1, 0)
    assert any("control characters" in message for message in finding.messages)


def test_the_display_unit_does_not_change_the_unit_of_times(tmp_path: Path) -> None:
    finding = answer(BY_ID["C82"], tmp_path)
    assert finding.values["start_ns"] == 1_236_000
    assert finding.values["longest_us"] == 13_837_451
    assert any("writer meant ns" in message for message in finding.messages)


def test_a_negative_self_time_is_an_artefact_and_no_clock_fault(tmp_path: Path) -> None:
    finding = answer(BY_ID["C83"], tmp_path)
    assert all("backwards" not in message or "no clock ran backwards" in message for message in finding.messages)
