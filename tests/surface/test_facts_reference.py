"""Every key and field of the facts stands in docs/reference/facts.md, and what stands there is collected."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from rankclock.node.facts import collect_facts

REFERENCE = Path(__file__).parents[2] / "docs/reference/facts.md"


def sections() -> dict[str, str]:
    """Heading to text."""
    parts = re.split(r"^#+ (.*)$", REFERENCE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {heading.strip("`"): text for heading, text in zip(parts[1::2], parts[2::2], strict=True)}


def named(section: str) -> set[str]:
    """What the first column of a section's table names."""
    found = set()
    for line in sections()[section].splitlines():
        if line.startswith("| `"):
            found |= set(re.findall(r"`([^`]+)`", line.split("|")[1]))
    return found


@pytest.fixture(scope="module")
def facts() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = collect_facts("here")["facts"]
    return found


def test_every_key_collected_is_documented_and_every_documented_one_collected(facts: dict[str, dict[str, Any]]) -> None:
    documented = {key for key in named("Keys") if "<" not in key}
    collected = {key for key in facts if "." not in key}
    assert collected == documented
    families = {key.partition(".")[0] for key in facts if "." in key}
    assert families <= {key.partition(".")[0] for key in named("Keys") if "<" in key}


@pytest.mark.parametrize("family", ["nic.<name>", "daemon.<name>"])
def test_every_field_of_a_family_is_documented_both_ways(facts: dict[str, dict[str, Any]], family: str) -> None:
    prefix = family.partition("<")[0]
    objects = [fact["value"] for key, fact in facts.items() if key.startswith(prefix) and fact["value"] is not None]
    if family == "nic.<name>" and not objects:
        pytest.skip("this machine has loopback only")
    assert objects
    assert {field for value in objects for field in value} == named(family)


def test_each_fact_says_its_source_and_an_unknown_one_why(facts: dict[str, dict[str, Any]]) -> None:
    for key, fact in facts.items():
        assert fact.keys() == {"value", "why", "source"}, key
        assert fact["source"], key
        assert fact["value"] is not None or fact["why"], key
