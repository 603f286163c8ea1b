"""Facts of a node: an unknown fact is neither yes nor no."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rankclock.cluster import Facts, NicFacts, load_facts
from rankclock.errors import DecodeError, UserError


def facts_object(node: str = "gpu1", **facts: Any) -> dict[str, Any]:
    return {
        "schema": "rankclock-facts/1",
        "node": node,
        "collected_at_ns": 1_764_547_200_000_000_000,
        "facts": {key: {"value": value, "why": None, "source": "here"} for key, value in facts.items()},
    }


CAPABLE = {"tx_hardware": True, "rx_hardware": True, "raw_hardware": True, "phc_index": 0}


@pytest.mark.parametrize(
    ("change", "capable"),
    [
        ({}, True),
        ({"phc_index": -1}, False),
        ({"rx_hardware": False}, False),
        ({"rx_hardware": None}, None),
        ({"phc_index": None}, None),
        ({"rx_hardware": None, "tx_hardware": False}, False),
        ({"phc_index": True}, None),
    ],
)
def test_a_nic_is_capable_only_where_everything_was_seen(change: dict[str, Any], capable: bool | None) -> None:
    facts = Facts.from_json(facts_object(**{"nic.eth0": CAPABLE | change}))
    nic = facts.nic("eth0")
    assert nic is not None
    assert nic.hardware_stamps is capable


def test_what_was_not_collected_is_unknown_with_a_reason() -> None:
    facts = Facts.from_json(facts_object())
    assert not facts.get("kernel").known
    assert facts.get("kernel").why
    assert facts.nic("eth0") is None
    assert facts.flag("cap_sys_time") is None
    assert NicFacts().hardware_stamps is None
    assert NicFacts().software_stamps is None


def test_a_daemon_that_is_not_installed_has_no_version() -> None:
    facts = Facts.from_json(facts_object(**{"daemon.ptp4l": {"version": "none"}, "daemon.chronyd": {"version": "4.3"}}))
    assert facts.daemon_version("ptp4l") is None
    assert facts.daemon_version("chronyd") == "4.3"


def test_facts_survive_a_round_trip() -> None:
    facts = Facts.from_json(facts_object(**{"nic.eth0": CAPABLE, "cap_sys_time": False}))
    assert Facts.from_json(json.loads(json.dumps(facts.to_json()))) == facts


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        facts_object() | {"schema": "rankclock-facts/2"},
        facts_object() | {"node": ""},
        facts_object() | {"collected_at_ns": True},
        facts_object() | {"facts": []},
        facts_object() | {"facts": {"kernel": "6.1"}},
        facts_object() | {"facts": {"kernel": {"value": None, "why": None, "source": ""}}},
        facts_object() | {"facts": {"kernel": {"value": 1, "why": 3, "source": ""}}},
    ],
)
def test_what_is_no_facts_object_is_refused(value: Any) -> None:
    with pytest.raises(DecodeError):
        Facts.from_json(value)


def test_facts_are_read_from_a_folder_a_list_or_lines(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.json").write_text(json.dumps(facts_object(name)))
    assert sorted(load_facts(tmp_path)) == ["a", "b"]
    both = [facts_object("a"), facts_object("b")]
    (tmp_path / "list").write_text(json.dumps(both))
    (tmp_path / "lines").write_text("\n".join(json.dumps(one) for one in both))
    assert load_facts(tmp_path / "list") == load_facts(tmp_path / "lines") == load_facts(tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "no facts"),
        ("[" * 100_000, "no facts"),
        ('{"schema": "x"}', "expected schema rankclock-facts/1"),
        (json.dumps([facts_object("a"), facts_object("a")]), "given twice"),
    ],
)
def test_a_broken_facts_file_is_one_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "facts.json"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        load_facts(path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
