"""The terminal's tables: the page's numbers, readable without colours, markup in names left alone."""

from __future__ import annotations

import io
import re
from dataclasses import replace

from rich.console import Console, RenderableType

from rankclock.report.record import Check, RunRecord
from rankclock.report.text import (
    checks_table,
    errors_table,
    figures_table,
    headline_text,
    left_out_text,
    matrix_table,
    status_table,
    takeover_table,
)
from rankclock.report.words import offset_words


def _shown(*things: RenderableType | None) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=240, color_system=None)
    for thing in things:
        console.print(thing)
    return stream.getvalue()


def test_the_status_table_shows_claim_measurement_and_truth_side_by_side(run: RunRecord) -> None:
    shown = _shown(status_table(run.plans[1], reference="upstream"))
    for standing in run.plans[1].standings:
        (line,) = (line for line in shown.splitlines() if line.lstrip().startswith(standing.state.node + " "))
        assert offset_words(standing.state.claimed) in line
        assert offset_words(standing.state.measured) in line
        assert standing.state.state.value in line


def test_where_the_truth_is_not_known_there_is_no_column_for_it(run: RunRecord) -> None:
    plan = replace(run.plans[1], standings=tuple(replace(s, true_ns=None) for s in run.plans[1].standings))
    assert "true" not in _shown(status_table(plan, reference="upstream"))


def test_an_unknown_is_printed_as_unknown(run: RunRecord) -> None:
    shown = _shown(status_table(run.plans[0], reference="upstream"))
    (gpu5,) = (line for line in shown.splitlines() if line.lstrip().startswith("gpu5"))
    assert "nobody" in gpu5
    assert "unknown" in gpu5
    nobody_read = replace(run.plans[0], standings=())
    assert _shown(status_table(nobody_read, reference="upstream")).count("unknown") == len(nobody_read.nodes) - 1


def test_a_miss_is_said_in_words_also_without_colours(run: RunRecord) -> None:
    standing = replace(run.plans[1].standings[4], true_ns=99_000)
    plan = replace(run.plans[1], standings=(standing,))
    assert "misses the truth" in _shown(status_table(plan, reference="upstream"))
    matrix = run.matrices[1]
    truths = [list(row) for row in matrix.true_ns or ()]
    truths[0][1] = 10**9
    assert "misses the truth" in _shown(matrix_table(replace(matrix, true_ns=tuple(map(tuple, truths)))))


def test_the_matrix_ends_with_limit_and_verdict(run: RunRecord) -> None:
    shown = _shown(matrix_table(run.matrices[0]))
    assert "limit 1.00 ms: beyond" in shown
    assert len(re.findall(r"20\.0 s ± \d+ ns beyond", shown)) == 10  # gpu5 against five others, both ways
    assert "limit 1.00 ms: within" in _shown(matrix_table(run.matrices[1]))


def test_the_other_tables_say_what_the_record_holds(run: RunRecord) -> None:
    shown = _shown(
        headline_text(run),
        checks_table(run),
        errors_table(run),
        takeover_table(run),
        figures_table(run),
        left_out_text(run),
    )
    assert "Every measured bound contained the truth" in shown
    assert "time1 was killed; time2 took over in 1.40 s" in shown
    assert "Left out: agreement with UTC: this machine has no network" in shown
    assert "two-way, user stamps" in shown
    assert "PTP settled" in _shown(errors_table(run, lambda _, sample: sample.phase))
    assert takeover_table(replace(run, takeover=None)) is None
    assert _shown(left_out_text(replace(run, left_out=()))) == "Left out: nothing.\n"


def test_square_brackets_in_names_are_not_markup(run: RunRecord) -> None:
    record = replace(run, checks=(Check(name="[red]gpu[001-032][/nope]", passed=None, detail="[/]"),))
    shown = _shown(checks_table(record), headline_text(record))
    assert shown.count("[red]gpu[001-032][/nope]") == 2
