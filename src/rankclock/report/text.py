"""The tables of a run for the terminal: the same numbers and words as the page, in rich tables.

Decides columns and colours; the numbers come from `summary` and `verdict`. Refuses to interpret markup in names and
texts that come from files: everything is `Text`. Nothing is printed here; the caller has the console.
"""

from __future__ import annotations

from collections.abc import Callable

from rich import box
from rich.table import Table
from rich.text import Text

from rankclock.report.record import Matrix, PlanRecord, RunRecord, Sample, Series, Standing
from rankclock.report.summary import Errors, error_rows, matrix_misses, takeover_rows
from rankclock.report.verdict import headline
from rankclock.report.words import count, method_kind, offset_words, signed_words, span_words
from rankclock.timebase import Judgement, Offset, SyncState

__all__ = [
    "checks_table",
    "errors_table",
    "figures_table",
    "headline_text",
    "left_out_text",
    "matrix_table",
    "status_table",
    "takeover_table",
]

GOOD, BAD, OPEN = "green", "bold red", "yellow"
MEASURED, CLAIMED = "cyan", "orange3"
"""One colour a kind, as on the page; without colours the column heads say the same."""

_STATE_STYLE = {SyncState.SYNCHRONISED: GOOD, SyncState.UNSYNCHRONISED: BAD}
_MOOD_STYLE = {"good": GOOD, "bad": BAD, "open": OPEN}
_JUDGED_STYLE = {Judgement.WITHIN: GOOD, Judgement.BEYOND: BAD, Judgement.CANNOT_TELL: OPEN}


def _table(title: str, *heads: str) -> Table:
    table = Table(title=Text(title), box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", pad_edge=False)
    for head in heads:
        table.add_column(Text(head), overflow="fold")
    return table


def headline_text(record: RunRecord) -> Text:
    """The run's verdict in words, one sentence a line, the worst first."""
    said = headline(record)
    text = Text()
    for number, sentence in enumerate(said.sentences):
        text.append(sentence + "\n", style=_MOOD_STYLE[said.mood] if number == 0 else "")
    text.rstrip()
    return text


def status_table(plan: PlanRecord, *, reference: str) -> Table:
    """Every node of a plan: role, source, state, claimed, measured, and the truth where it is known."""
    with_truth = any(standing.true_ns is not None for standing in plan.standings)
    heads = ["node", "role", "source", "state", "claimed", f"measured against {reference}"]
    table = _table(f"{plan.protocol.upper()} plan", *heads, *(["true"] if with_truth else []))
    standings = {standing.state.node: standing for standing in plan.standings}
    for node in plan.nodes:
        standing = standings.get(node.node)
        if standing is None:
            state = "reference" if node.node == reference else "unknown"
            table.add_row(Text(node.node), Text(node.role), "", Text(state), "", "", *([""] if with_truth else []))
        else:
            table.add_row(*_status_cells(node.role, standing, with_truth))
    return table


def _status_cells(role: str, standing: Standing, with_truth: bool) -> list[Text]:
    state = standing.state
    missed = standing.true_ns is not None and not state.measured.contains(standing.true_ns)
    measured = Text(offset_words(state.measured), style=BAD if missed else MEASURED)
    if missed:
        measured.append(" misses the truth", style=BAD)
    cells = [
        Text(state.node),
        Text(role),
        Text(state.source or "nobody"),
        Text(state.state.value, style=_STATE_STYLE.get(state.state, OPEN)),
        Text(offset_words(state.claimed), style=CLAIMED),
        measured,
    ]
    return [*cells, Text(signed_words(standing.true_ns))] if with_truth else cells


def matrix_table(matrix: Matrix) -> Table:
    """Row minus column, estimate ± bound, coloured by the judgement on it; limit and verdict are the caption."""
    table = _table(matrix.title, "", *matrix.names)
    missed = {(miss.node, miss.reference) for miss in matrix_misses(matrix)}
    for one, row in zip(matrix.names, matrix.cells, strict=True):
        cells = [
            _matrix_cell(one == other, cell, matrix.threshold_ns, (one, other) in missed)
            for other, cell in zip(matrix.names, row, strict=True)
        ]
        table.add_row(Text(one, style="bold"), *cells)
    table.caption = Text(f"limit {span_words(matrix.threshold_ns)}: {matrix.verdict.value}", justify="left")
    table.caption.stylize(_JUDGED_STYLE[matrix.verdict])
    return table


def _matrix_cell(same: bool, cell: Offset, threshold_ns: int, missed: bool) -> Text:
    if same:
        return Text("-", style="dim")
    if missed:
        return Text(f"{offset_words(cell)} misses the truth", style=BAD)
    judged = cell.judge(threshold_ns)
    word = "" if judged is Judgement.WITHIN or not cell.known else f" {judged.value}"
    return Text(offset_words(cell) + word, style=_JUDGED_STYLE[judged])


def errors_table(
    record: RunRecord,
    label: Callable[[Series, Sample], str] = lambda _, sample: method_kind(sample.measured),
    *,
    title: str = "Errors and bounds",
) -> Table:
    """Errors against the truth, widths of the bounds, and how many bounds held it: measured, then claimed.

    label: what to group by; the method of measuring where not given.
    """
    parts = ("error p50, p99", "bound p50", "held the truth")
    table = _table(title, "", *(f"{kind} {part}" for kind in ("measured", "claimed") for part in parts))
    for row in error_rows(record, lambda series, sample: (label(series, sample),)):
        measured = _error_cells(row.measured, BAD if row.measured.contained < row.measured.checked else MEASURED)
        table.add_row(Text(row.label[0]), *measured, *_error_cells(row.claimed, CLAIMED))
    return table


def _error_cells(errors: Errors, style: str) -> list[Text]:
    scored = f"{span_words(errors.median_ns)}, {span_words(errors.p99_ns)}" if errors.checked else "not scored"
    held = f"{count(errors.contained)} of {count(errors.checked)}"
    return [Text(words, style=style) for words in (scored, span_words(errors.bound_median_ns), held)]


def takeover_table(record: RunRecord) -> Table | None:
    """Every node's way through the takeover; None where nothing was killed."""
    takeover = record.takeover
    if takeover is None:
        return None
    if takeover.taken_over_s is None or takeover.new is None:
        title = f"{takeover.old} was killed; nobody took over before the run ended"
    else:
        title = (
            f"{takeover.old} was killed; {takeover.new} took over in {takeover.taken_over_s - takeover.killed_s:.2f} s"
        )
    table = _table(title, "node", "farthest measured", "farthest true", "budget", "surely outside it")
    for row in takeover_rows(record):
        outside = "never" if row.beyond_s is None else f"until {row.beyond_s:.2f} s after the kill"
        if row.worst is None or row.budget_ns is None:
            outside = "cannot be told"
        table.add_row(
            Text(row.node),
            Text(offset_words(row.worst) if row.worst else "unknown", style=MEASURED),
            Text(signed_words(row.worst_true_ns)),
            Text("none" if row.budget_ns is None else span_words(row.budget_ns)),
            Text(outside),
        )
    return table


def checks_table(record: RunRecord) -> Table:
    """What the run had to show: passed, failed, or cannot be told."""
    table = _table("Checks", "check", "answer", "found")
    for check in record.checks:
        answer, style = (
            ("cannot be told", OPEN) if check.passed is None else ("passed", GOOD) if check.passed else ("failed", BAD)
        )
        table.add_row(Text(check.name), Text(answer, style=style), Text(check.detail))
    return table


def figures_table(record: RunRecord) -> Table:
    """The figures of the run, each with the command that makes it again."""
    table = _table("Figures", "figure", "value", "made by")
    for figure in record.figures:
        table.add_row(Text(figure.name), Text(f"{figure.value:.6g} {figure.unit}".rstrip()), Text(figure.command))
    return table


def left_out_text(record: RunRecord) -> Text:
    """What could not run, and why; one line each."""
    if not record.left_out:
        return Text("Left out: nothing.")
    return Text("\n".join(f"Left out: {item.what}: {item.why}" for item in record.left_out), style=OPEN)
