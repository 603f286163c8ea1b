"""Whatever stands where a number is expected, an address, thousands of digits, other scripts: the doctor answers."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest

from rankclock.diagnosis.scan import read_sources
from rankclock.diagnosis.verdict import diagnose

CAPTURED = Path(__file__).parents[1] / "captured"


def texts() -> list[str]:
    """Real reports and cases, and rendered files; their first lines do."""
    found = [path.read_text(errors="replace") for path in sorted((CAPTURED / "doctor").rglob("*.case"))]
    for path in sorted((CAPTURED / "reports").rglob("*.jsonl")):
        for line in path.read_text().splitlines():
            found += [text for text in json.loads(line).values() if isinstance(text, str) and len(text) > 200]
    found += [path.read_text() for path in sorted((CAPTURED.parent / "golden").glob("*/expected/files.txt"))[::6]]
    return ["\n".join(text.splitlines()[:40]) for text in found]


NUMBER = re.compile(r"\d+(?:\.\d+)?")
INSTEAD = ("10.64.0.11", "9" * 300, "1.2.3", "٣", "-", "1e999", "²", "٣.٤.٥")


@pytest.mark.parametrize("instead", INSTEAD, ids=lambda text: text[:8])
def test_numbers_that_are_none_are_no_fault_of_ours(instead: str) -> None:
    given = texts()
    assert len(given) > 10
    for text in given:
        for every in (1, 2):  # which numbers are replaced: all, or every second one
            count = itertools.count(1)
            other = NUMBER.sub(lambda match, n=count, e=every: instead if next(n) % e == 0 else match[0], text)
            assert diagnose(read_sources([("paste", [other.encode()])])).verdict


@pytest.mark.parametrize(
    "line",
    [
        "ptp4l[1.5]: master offset {} s2 freq +1 path delay 3",
        "ptp4l[1.5]: rms {} max {} freq +1 +/- 2 delay 3 +/- 4",
        "chronyd[1]: System clock wrong by {} seconds",
        "phc2sys[1.5]: CLOCK_REALTIME phc offset {} s2 freq +0 delay {}",
        "tx_timestamp_timeout {}",
        "makestep 1 {}",
    ],
)
def test_a_number_longer_than_python_takes_is_no_fault_of_ours(line: str) -> None:
    text = line.replace("{}", "9" * 4_400)  # int() refuses more than 4,300 digits
    assert diagnose(read_sources([("paste", [text.encode()])])).verdict
