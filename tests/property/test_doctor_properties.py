"""Nothing that is pasted breaks the doctor: random text, cut, shuffled and garbled output of real tools."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankclock.diagnosis.arithmetic import epoch_date, fit_ramp, nearest_wrap, tai_steps
from rankclock.diagnosis.finding import Severity
from rankclock.diagnosis.scan import read_sources
from rankclock.diagnosis.verdict import Answer, diagnose
from rankclock.wire.text.line import parse_line
from rankclock.wire.text.moment import find_moments
from rankclock.wire.text.number import duration_ns, quantity_ns, seconds_ns

CAPTURED = Path(__file__).parents[1] / "captured"
KEYS = ["verdict", "findings", "values", "recognised", "unrecognised"]
FINDING_KEYS = ["id", "title", "severity", "confidence", "cause", "evidence", "values", "next", "confirm"]


def corpus() -> list[str]:
    reports = (CAPTURED / "reports/reports.jsonl").read_text(encoding="utf-8").splitlines()
    texts = [json.loads(line)["input"] for line in reports]
    for path in sorted((CAPTURED / "doctor").glob("*.case")):
        blocks = re.split(r"^== ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
        texts.extend(block.partition("\n--\n")[2] for block in blocks)
    return texts


CORPUS = corpus()


def ask(data: bytes) -> Answer:
    answer = diagnose(read_sources([("-", [data])]))
    value = json.loads(json.dumps(answer.to_json(), allow_nan=False))
    assert list(value) == KEYS
    assert value["verdict"] in {severity.value for severity in Severity}
    assert all(list(finding) == FINDING_KEYS for finding in value["findings"])
    return answer


def garbled(text: str, chance: random.Random) -> bytes:
    """A real paste, damaged as pastes are: lines lost, doubled, cut, columns collapsed, bytes and digits changed."""
    lines = text.split("\n")
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(lines))
        line = lines[at]
        match chance.randrange(9):
            case 0:
                del lines[at]
            case 1:
                lines.insert(at, line)
            case 2:
                lines[at] = line[: chance.randrange(len(line) + 1)]
            case 3:
                lines[at] = line[chance.randrange(len(line) + 1) :]
            case 4:
                lines[at] = " ".join(line.split())
            case 5:
                lines[at] = re.sub(r"\d", lambda _: str(chance.randrange(10)), line)
            case 6:
                lines[at] = line.replace(" ", "", 3) + chr(chance.randrange(0x3000))
            case 7:
                lines.insert(chance.randrange(len(lines) + 1), chance.choice(chance.choice(CORPUS).split("\n")))
            case _:
                lines[at] = re.sub(r"\d+", lambda _: "9" * chance.randrange(1, 60), line)
        lines = lines or [""]
    return "\n".join(lines).encode("utf-8", errors="replace")[: chance.choice((None, 10, 100, 1000))]


def fuzz(seed: int, count: int) -> None:
    chance = random.Random(seed)
    for _ in range(count):
        ask(garbled(chance.choice(CORPUS), chance))


def test_a_thousand_garbled_pastes_get_an_answer() -> None:
    fuzz(20_240_518, 1_000)


@pytest.mark.slow
def test_ten_thousand_garbled_pastes_get_an_answer() -> None:
    fuzz(7, 10_000)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=400))
def test_any_bytes_get_an_answer(data: bytes) -> None:
    ask(data)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from([line for text in CORPUS for line in text.split("\n")]), max_size=30))
def test_any_mixture_of_real_lines_gets_an_answer(lines: list[str]) -> None:
    ask("\n".join(lines).encode())


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=200))
def test_a_line_keeps_its_text_and_its_body_is_the_end_of_it(text: str) -> None:
    line = parse_line(1, text)
    assert line.text.rstrip().endswith(line.body)


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="0123456789:-+TZ. ,abcdefgilmnoprstuvyJFMASOND/", max_size=80))
def test_readings_of_a_clock_never_overlap(text: str) -> None:
    ends = [0]
    for moment in find_moments(text):
        assert ends[-1] <= moment.start < moment.end
        ends.append(moment.end)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=30))
def test_numbers_are_numbers_or_none(text: str) -> None:
    for read in (duration_ns, quantity_ns, seconds_ns):
        value = read(text)
        assert value is None or isinstance(value, int)


@settings(max_examples=200, deadline=None)
@given(st.integers(30, 48), st.integers(-900, 900), st.sampled_from((1, -1)))
def test_a_roll_over_is_found_whatever_its_rest_and_sign(power: int, rest: int, sign: int) -> None:
    wrap = nearest_wrap(sign * ((1 << power) + rest), 1_000)
    assert wrap is not None
    assert (wrap.power, wrap.times, wrap.residual_ns) == (power, 1, rest)


@settings(max_examples=200, deadline=None)
@given(st.integers(-(10**9), 10**9))
def test_offsets_below_half_a_second_are_no_roll_over_and_no_date(offset: int) -> None:
    if abs(offset) < 1 << 29:
        assert nearest_wrap(offset, 1_000_000) is None
    assert epoch_date(offset) is None


@settings(max_examples=100, deadline=None)
@given(st.floats(-500, 500), st.floats(-10, 10), st.integers(3, 50))
def test_a_ramp_gives_back_its_slope(slope_ppm: float, start_s: float, count: int) -> None:
    ramp = fit_ramp([(10.0 * i, start_s + slope_ppm * 1e-6 * 10.0 * i) for i in range(count)])
    assert ramp is not None
    assert abs(ramp.slope_ppm - slope_ppm) < 1e-3


@settings(max_examples=100, deadline=None)
@given(st.sampled_from((1, -1, 2, -2)), st.floats(-0.04, 0.04))
def test_thirty_seven_seconds_are_told_from_other_offsets(times: int, rest: float) -> None:
    assert tai_steps(37 * times + rest, 0.05) == times
    assert tai_steps(37 * times + 0.2 + abs(rest), 0.05) is None


def test_a_ramp_needs_three_points_and_time_between_them() -> None:
    assert fit_ramp([(0.0, 1.0), (1.0, 2.0)]) is None
    assert fit_ramp([(0.0, 1.0), (0.0, 2.0), (0.0, 3.0)]) is None
