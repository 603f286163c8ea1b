"""The straggler report as one HTML file that opens from a disk, without a network.

Decides what is drawn: of the groups that waited most, each rank's waiting, and how far apart arrivals were over time
with their bounds. Refuses to load anything from anywhere (the page's content security policy forbids it too) and to
leave out groups, ranks or collectives without saying so. plotly is needed, and imported only here.
"""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import Any

from rankclock.errors import HostError
from rankclock.timebase import NS_PER_S, format_span_ns
from rankclock.traces.stragglers import GroupSkew, StragglerReport

__all__ = ["render_page", "write_page"]

DRAWN_GROUPS = 12
DRAWN_RANKS = 100
DRAWN_COLLECTIVES = 2_000
"""More marks than pixels say nothing; the numbers of the page count all of them."""

_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 2rem auto; padding: 0 1rem; }
h1, h2 { line-height: 1.2; } h2 { margin-top: 2.5rem; } .plot { height: 20rem; } pre { white-space: pre-wrap; }
table { border-collapse: collapse; } th, td { text-align: right; padding: .2rem .7rem; border-bottom: 1px solid #8886; }
th:first-child, td:first-child { text-align: left; }
@media print { .plot { break-inside: avoid; } }
"""
_SCRIPT = """
const dark = matchMedia("(prefers-color-scheme: dark)").matches, ink = dark ? "#ddd" : "#222";
for (const [id, plot] of Object.entries(JSON.parse(document.getElementById("plots").textContent))) {
  Object.assign(plot.layout, {paper_bgcolor: "transparent", plot_bgcolor: "transparent", font: {color: ink},
    margin: {t: 40, r: 10}, legend: {orientation: "h", y: 1.2}});
  Plotly.newPlot(id, plot.data, plot.layout, {responsive: true, displaylogo: false});
}
"""
_HEADS = (
    "group",
    "ranks",
    "collectives",
    "apart (median)",
    "bound (median)",
    "waited, rank-s",
    "named",
    "without clocks",
)


def render_page(report: StragglerReport) -> str:
    """The whole page as text. Raises HostError where plotly is not installed."""
    groups = sorted(report.groups, key=lambda group: -group.waited_rank_s)
    drawn = groups[:DRAWN_GROUPS]
    plots: dict[str, Any] = {}
    sections = []
    for number, group in enumerate(drawn):
        plots[f"waits{number}"], plots[f"apart{number}"] = _waits(group), _apart(group)
        said = escape("\n".join(group.lines()))
        sections.append(
            f"<section><h2>Group {escape(group.group or '?')}</h2><pre>{said}</pre>{_left_out(group)}"
            f'<div class="plot" id="waits{number}"></div><div class="plot" id="apart{number}"></div></section>'
        )
    if len(groups) > len(drawn):
        sections.append(f"<p>Drawn are the {len(drawn)} groups that waited most, of {len(groups)}.</p>")
    unknown = f"<p>{report.unknown} collectives left out: a rank's cluster time is unknown there.</p>"
    data = json.dumps(plots, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c").replace("&", "\\u0026")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Stragglers · rankclock</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"><style>{_STYLE}</style></head><body>'
        f"<h1>Who everybody waits for</h1><p>{escape(_verdict(report))}</p>"
        f"<p>Clocks: {escape(report.method)}; reference {escape(report.reference)}.</p>"
        f"{_table(groups)}{unknown if report.unknown else ''}{''.join(sections)}"
        f'<script type="application/json" id="plots">{data}</script>'
        f"<script>{_plotly()}</script><script>{_SCRIPT}</script></body></html>\n"
    )


def write_page(path: Path, report: StragglerReport) -> None:
    """Write the page. Raises HostError where the file cannot be written, or plotly is missing."""
    page = render_page(report)
    try:
        path.write_text(page, encoding="utf-8", errors="replace")
    except OSError as error:
        raise HostError(f"cannot write {path}: {error.strerror}; choose a folder that can be written") from error


def _verdict(report: StragglerReport) -> str:
    named = [group for group in report.groups if group.named is not None]
    if named:
        return "; ".join(f"rank {one.named} holds up group {one.group or '?'}" for one in named) + "."
    if any(group.untold < group.collectives for group in report.groups):
        return "Nobody is named; each group says why."
    return "It cannot be told who was late: arrivals are closer together than the bounds of the clocks."


def _table(groups: list[GroupSkew]) -> str:
    rows = []
    for group in groups:
        cells = (
            group.group or "?",
            str(group.ranks),
            str(group.collectives),
            format_span_ns(group.spread_median_ns),
            "±" + format_span_ns(group.bound_median_ns),
            " to ".join(f"{span_ns / NS_PER_S:.3g}" for span_ns in group.waited_range_ns),
            "nobody" if group.named is None else f"rank {group.named}",
            "nobody" if group.without_clock is None else f"rank {group.without_clock}",
        )
        rows.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    head = "".join(f"<th>{name}</th>" for name in _HEADS)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _left_out(group: GroupSkew) -> str:
    said = []
    if group.ranks > DRAWN_RANKS:
        said.append(f"the {DRAWN_RANKS} ranks that caused or waited most, of {group.ranks}")
    if len(group.history) > DRAWN_COLLECTIVES:
        said.append(f"{len(_thinned(group))} of {len(group.history)} collectives")
    return f"<p>Drawn are {' and '.join(said)}.</p>" if said else ""


def _waits(group: GroupSkew) -> dict[str, Any]:
    """Per rank, what it waited and what others waited for it."""
    ranks = set(group.waited_ns) | set(group.caused_ns)
    most = sorted(ranks, key=lambda rank: -max(group.waited_ns.get(rank, 0), group.caused_ns.get(rank, 0)))
    shown = sorted(most[:DRAWN_RANKS])
    bars = [
        {
            "type": "bar",
            "name": name,
            "x": [f"rank {rank}" for rank in shown],
            "y": [values.get(rank, 0) / NS_PER_S for rank in shown],
        }
        for name, values in (("waited for others", group.waited_ns), ("others surely waited for it", group.caused_ns))
    ]
    layout = {
        "title": {"text": "Waiting of each rank"},
        "yaxis": {"title": {"text": "rank-seconds"}},
        "barmode": "group",
    }
    return {"data": bars, "layout": layout}


def _thinned(group: GroupSkew) -> tuple[tuple[int, int, int, int | None], ...]:
    return group.history[:: -(-len(group.history) // DRAWN_COLLECTIVES) or 1]


def _apart(group: GroupSkew) -> dict[str, Any]:
    """Last arrival - first arrival of each collective, with its bound; who was last where that is sure."""
    rows = _thinned(group)
    begun_ns = min((row[0] for row in rows), default=0)
    marks = {
        "type": "scatter",
        "mode": "markers",
        "name": "last arrival - first arrival",
        "x": [(row[0] - begun_ns) / NS_PER_S for row in rows],
        "y": [row[1] / 1e6 for row in rows],
        "error_y": {"type": "data", "array": [row[2] / 1e6 for row in rows], "thickness": 1, "width": 0},
        "text": ["last: cannot be told" if row[3] is None else f"last: rank {row[3]}" for row in rows],
        "marker": {"size": 5},
    }
    axes = {
        "xaxis": {"title": {"text": "s of cluster time"}},
        "yaxis": {"title": {"text": "ms"}, "rangemode": "tozero"},
    }
    return {"data": [marks], "layout": {"title": {"text": "How far apart ranks arrive"}, **axes}}


def _plotly() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise HostError(
            "plotly is not installed and the page needs it; install it with: pip install 'rankclock[report]'"
        ) from error
    # The one sequence that would end the script element early.
    return str(get_plotlyjs()).replace("</script", "<\\/script")
