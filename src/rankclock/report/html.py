"""The report of a run: one HTML file that opens from a disk, without a network, and prints.

Decides what the page says and in which order: verdict first, then pictures, then the numbers behind them. Refuses to
load anything from anywhere (a content security policy in the page forbids it too) and to show an offset without its
bound. Every text that comes from a file is escaped by the template engine. plotly is needed, and imported only here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from rankclock.errors import HostError
from rankclock.report import plots, words
from rankclock.report.record import Matrix, PlanNode, PlanRecord, RunRecord, Standing
from rankclock.report.summary import (
    ErrorRow,
    error_rows,
    matrix_misses,
    measured_coverage,
    reach,
    takeover_rows,
    worst_pair,
)
from rankclock.report.tree import draw_tree
from rankclock.report.verdict import headline, tiles
from rankclock.timebase import Judgement, Offset, format_span_ns

__all__ = ["render_html", "write_html"]

TEMPLATES = Path(__file__).parent / "templates"
MATRIX_NAMES = 40
"""Clocks in a drawn matrix: more cells than this cannot be read on a page; the record holds them all."""
BEYOND_ALL_NS = 1 << 63
SHADES = 5
"""Steps of colour from 'far inside the threshold' to 'at it', a decade each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One cell of the heat map."""

    css: str
    estimate: str
    bound: str
    note: str
    details: str


def render_html(record: RunRecord) -> str:
    """The whole page as text. Raises HostError where plotly is not installed."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        offset=_unbroken,
        details=words.offset_details,
        span=lambda span_ns: words.span_words(span_ns).replace(" ", "\u00a0"),
        signed=lambda offset_ns: words.signed_words(offset_ns).replace(" ", "\u00a0"),
        count=words.count,
    )
    return environment.get_template("report.html.j2").render(
        record=record,
        coverage=measured_coverage(record),
        headline=headline(record),
        tiles=tiles(record),
        plans=[_plan_view(plan, record) for plan in record.plans],
        matrices=[_matrix_view(matrix) for matrix in record.matrices],
        takeover=record.takeover,
        takeover_rows=takeover_rows(record),
        error_tables=_error_tables(record),
        percent=words.percent,
        panels=(offset_panels := plots.offset_panels(record)),
        nodes=len({series.node for series in record.series}),
        takeover_panels=(takeover_panels := plots.takeover_panels(record)),
        data=_embedded(_plot_data(record, offset_panels, takeover_panels)),
        style=Markup((TEMPLATES / "report.css").read_text(encoding="utf-8")),
        script=Markup((TEMPLATES / "report.js").read_text(encoding="utf-8")),
        plotly=Markup(_plotly_source()) if offset_panels else Markup(""),
    )


def _unbroken(offset: Offset) -> str:
    """The number with its bound on one line."""
    return words.offset_words(offset).replace(" ", "\u00a0")


def write_html(path: Path, record: RunRecord) -> None:
    """Write the page. Raises HostError where the folder cannot be written, or plotly is missing."""
    page = render_html(record)
    try:
        path.write_text(page, encoding="utf-8", errors="replace")
    except OSError as error:
        raise HostError(f"cannot write {path}: {error.strerror}; choose a folder that can be written") from error


def _plotly_source() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise HostError(
            "plotly is not installed and the HTML report needs it; install it with: pip install 'rankclock[report]'"
        ) from error
    # The one sequence that would end the script element early.
    return str(get_plotlyjs()).replace("</script", "<\\/script")


def _embedded(value: Any) -> Markup:
    """JSON that is safe inside a script element, whatever names it holds."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)  # ASCII only: U+2028 comes escaped
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _plot_data(record: RunRecord, panels: list[dict[str, Any]], takeover: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "core_ns": plots.compressed_core_ns(panels),
        "phases": [[phase.name, phase.started_s, phase.ended_s] for phase in record.phases],
        "panels": panels,
        "takeover": takeover,
        "taken_over_s": (
            record.takeover.taken_over_s - record.takeover.killed_s
            if record.takeover is not None and record.takeover.taken_over_s is not None
            else None
        ),
    }


def _plan_view(plan: PlanRecord, record: RunRecord) -> dict[str, Any]:
    standings = {standing.state.node: standing for standing in plan.standings}
    rows = [_standing_view(node, standings.get(node.node), record.reference) for node in plan.nodes]
    return {"plan": plan, "drawing": draw_tree(plan, record.reference), "rows": rows}


def _standing_view(node: PlanNode, standing: Standing | None, reference: str) -> dict[str, Any]:
    missed = (
        standing is not None and standing.true_ns is not None and not standing.state.measured.contains(standing.true_ns)
    )
    judged = None
    if node.budget_ns is not None:
        judged = standing.state.measured.judge(node.budget_ns) if standing else Judgement.CANNOT_TELL
    return {
        "node": node,
        "standing": standing,
        "missed": missed,
        "judged": judged,
        "is_reference": node.node == reference,
    }


def _matrix_view(matrix: Matrix) -> dict[str, Any]:
    shown = _shown_names(matrix)
    missed = {(miss.node, miss.reference) for miss in matrix_misses(matrix)}
    index = {name: number for number, name in enumerate(matrix.names)}
    rows = [
        (one, [_cell(one, other, matrix, (one, other) in missed, (index[one], index[other])) for other in shown])
        for one in shown
    ]
    return {
        "matrix": matrix,
        "names": shown,
        "rows": rows,
        "left_out": len(matrix.names) - len(shown),
        "worst": worst_pair(matrix),
        "missed": len(missed),
        "threshold": format_span_ns(matrix.threshold_ns),
        "verdict_css": _JUDGED_CSS[matrix.verdict],
    }


def _shown_names(matrix: Matrix) -> tuple[str, ...]:
    """All names, or where they are too many those with the worst pairs, in their old order."""
    if len(matrix.names) <= MATRIX_NAMES:
        return matrix.names
    reach = {name: max(_reach_ns(cell) for cell in row) for name, row in zip(matrix.names, matrix.cells, strict=True)}
    worst = set(sorted(matrix.names, key=lambda name: -reach[name])[:MATRIX_NAMES])
    return tuple(name for name in matrix.names if name in worst)


def _reach_ns(offset: Offset) -> int:
    """How far from zero the truth may be; an unknown reaches beyond everything."""
    reach_ns = reach(offset)
    return BEYOND_ALL_NS if reach_ns is None else reach_ns


_JUDGED_CSS = {Judgement.WITHIN: "good", Judgement.BEYOND: "bad", Judgement.CANNOT_TELL: "open"}


def _cell(one: str, other: str, matrix: Matrix, missed: bool, at: tuple[int, int]) -> Cell:
    offset = matrix.cells[at[0]][at[1]]
    true_ns = matrix.true_ns[at[0]][at[1]] if matrix.true_ns else None
    truth = "" if true_ns is None else f"; true {words.signed_words(true_ns)}"
    details = f"{one} - {other}: {words.offset_words(offset)}; {words.offset_details(offset)}{truth}"
    if one == other:
        return Cell(css="self", estimate="same clock", bound="", note="", details=details)
    if offset.bound_ns is None or offset.estimate_ns is None:
        return Cell(css="open", estimate="unknown", bound="", note="", details=details)
    judged = offset.judge(matrix.threshold_ns)
    css = f"{_JUDGED_CSS[judged]} shade-{_shade(offset, matrix.threshold_ns)}{' missed' if missed else ''}"
    note = (
        "misses the truth" if missed else {Judgement.WITHIN: "", Judgement.BEYOND: "beyond"}.get(judged, "cannot tell")
    )
    estimate, bound = words.offset_words(offset).split(" ± ")
    return Cell(css=css, estimate=estimate, bound=f"± {bound}", note=note, details=details)


def _shade(offset: Offset, threshold_ns: int) -> int:
    reach_ns, shade = _reach_ns(offset), SHADES
    while shade > 1 and reach_ns * 10 <= threshold_ns:
        reach_ns, shade = reach_ns * 10, shade - 1
    return shade


def _error_tables(record: RunRecord) -> list[dict[str, Any]]:
    """The error tables of the page: what to group by, and the rows."""
    order = {phase.name: number for number, phase in enumerate(record.phases)}

    def by_phase(row: ErrorRow) -> tuple[int, str]:
        return order.get(row.label[0], len(order)), row.label[1]

    return [
        {
            "title": "By phase and method",
            "heads": ("phase", "measured by"),
            "rows": sorted(error_rows(record, lambda _, s: (s.phase, words.method_kind(s.measured))), key=by_phase),
        },
        {
            "title": "By node",
            "heads": ("node", "against"),
            "rows": error_rows(record, lambda series, _: (series.node, series.reference)),
        },
    ]
