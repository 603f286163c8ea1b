"""The table of tolerances and the margins that a bound leaves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankclock.cli.budget import budget
from rankclock.diagnosis.budget import Bound, Standing, make_budget, margin_text
from rankclock.diagnosis.tolerances import TOLERANCES, TRAINING, Against, Direction, Verified, broken_by
from rankclock.errors import UserError
from rankclock.timebase import Offset

S = 10**9
EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.yaml"))


def hosts(bound_ns: int | None) -> Bound:
    return Bound(against=Against.HOSTS, bound_ns=bound_ns, source="test")


def test_every_row_says_what_reads_the_clock_and_where_its_limit_comes_from() -> None:
    assert len({one.component for one in TOLERANCES}) == len(TOLERANCES)
    for one in TOLERANCES:
        assert one.breaks_at_ns > 0
        assert one.reads
        assert one.effect
        assert one.source
        assert one.verified in Verified


def test_the_rows_of_training_itself_come_largest_first() -> None:
    limits = [one.breaks_at_ns for one in TRAINING]
    assert limits == sorted(limits, reverse=True)
    assert {one.component for one in TRAINING} >= {
        "torchrun c10d rendezvous",
        "TensorBoard",
        "order of logs and traces",
    }


def test_what_breaks_depends_on_the_sign_of_the_offset() -> None:
    def components(offset_ns: int) -> dict[str, bool]:
        offset = Offset.around(offset_ns, 1000, reference="others", method="test")
        return {one.tolerance.component: one.certain for one in broken_by(offset)}

    assert components(-16 * S)["torchrun c10d rendezvous"]
    assert "torchrun c10d rendezvous" not in components(16 * S)
    assert components(16 * S)["Dynolog start time"]
    assert components(0) == {}


def test_a_bound_that_reaches_a_limit_is_not_certain_and_an_unknown_offset_breaks_nothing() -> None:
    offset = Offset.around(-14 * S, 2 * S, reference="others", method="test")
    found = {one.tolerance.component: one.certain for one in broken_by(offset)}
    assert found["torchrun c10d rendezvous"] is False
    assert broken_by(Offset.unknown("nobody measured", reference="others", method="test")) == ()


def test_a_budget_names_what_breaks_first_and_what_has_no_bound() -> None:
    made = make_budget("test", [hosts(50_000)])
    assert made.first is not None
    assert made.first.tolerance.component == "straggler reports from traces"
    assert made.first.standing is Standing.NARROW
    assert margin_text(made.first) == "50.0 µs of 100 µs, 2.0 times"
    utc = [margin for margin in made.margins if margin.tolerance.against is Against.UTC]
    assert utc
    assert all(margin.standing is Standing.UNKNOWN for margin in utc)


def test_without_a_bound_nothing_is_called_safe() -> None:
    made = make_budget("test", [hosts(None)])
    assert made.first is None
    assert made.count(Standing.SAFE) == 0


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**13), st.integers(0, 10**13))
def test_a_wider_bound_never_makes_anything_safer(narrow: int, wide: int) -> None:
    narrow, wide = sorted((narrow, wide))
    order = [Standing.SAFE, Standing.NARROW, Standing.BREAKS, Standing.UNKNOWN]
    before = {m.tolerance.component: m.standing for m in make_budget("a", [hosts(narrow)]).margins}
    after = {m.tolerance.component: m.standing for m in make_budget("b", [hosts(wide)]).margins}
    assert all(order.index(after[name]) >= order.index(before[name]) for name in before)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_have_a_budget(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = budget(path, as_json=True, bound=None, utc_bound=None, measured=None)
    made = json.loads(capsys.readouterr().out)
    if path.stem == "aws-16":
        assert (code, made["breaks_first"]) == (4, None), "no figure is known for a provider's network"
        return
    assert code in (0, 1)
    assert made["breaks_first"] == "straggler reports from traces"


def test_a_measured_file_gives_the_farthest_end_of_all_intervals(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    offset = Offset.around(-30_000, 5_000, reference="b", method="test").to_json()
    path = tmp_path / "measured.jsonl"
    path.write_text(json.dumps({"schema": "rankclock-measured/1", "node": "a", "peer": "b", "offset": offset}) + "\n")
    assert budget(None, bound=None, utc_bound=None, measured=path, as_json=True) == 0
    rows = json.loads(capsys.readouterr().out)["margins"]
    assert {row["bound_ns"] for row in rows if row["against"] == "hosts"} == {35_000}


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "no measured offset"), ("{}", ":1: expected an object"), ("[", ":1: no JSON object")],
)
def test_a_file_without_measured_offsets_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "measured.jsonl"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        budget(None, bound=None, utc_bound=None, measured=path)


def test_two_bounds_at_once_are_refused() -> None:
    with pytest.raises(UserError, match="which bound counts"):
        budget(Path("x.yaml"), bound="1ms", utc_bound=None, measured=None)


def test_directions_are_those_that_an_offset_can_have() -> None:
    assert {one.direction for one in TOLERANCES} == set(Direction)
