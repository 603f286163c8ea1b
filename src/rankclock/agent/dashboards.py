"""Grafana dashboards: a whole cluster, a rack, a node. Tables of panels; the JSON that Grafana imports is made of them.

An offset is always drawn with its bounds. What is unknown is a gap and a number of its own, never a zero.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["DASHBOARDS", "Dashboard", "Panel", "dashboard_json", "queries_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel. queries: (legend, PromQL). `width` of 24 columns."""

    title: str
    queries: tuple[tuple[str, str], ...]
    about: str
    kind: Literal["timeseries", "stat", "table", "state-timeline"] = "timeseries"
    unit: str = "s"
    width: int = 12
    height: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """variables: name and the query of its values."""

    title: str
    variables: tuple[tuple[str, str], ...]
    panels: tuple[Panel, ...]


def _band(prefix: str, match: str, legend: str) -> tuple[tuple[str, str], ...]:
    return (
        (legend, f"rankclock_{prefix}_seconds{{{match}}}"),
        (f"{legend} lower", f"rankclock_{prefix}_lower_seconds{{{match}}}"),
        (f"{legend} upper", f"rankclock_{prefix}_upper_seconds{{{match}}}"),
    )


def _panels_of_many(match: str) -> tuple[Panel, ...]:
    """What a cluster and a rack show alike."""
    worst = f"topk(10, rankclock:cluster_worst_seconds{{{match}}})"
    return (
        Panel(
            title="Clocks by state",
            kind="stat",
            unit="none",
            width=12,
            queries=(("{{state}}", f"sum by (state) (rankclock_clock_state{{{match}}})"),),
            about="Every state counts, unknown too.",
        ),
        Panel(
            title="Offsets to peers: beyond, within, cannot be told",
            kind="stat",
            unit="none",
            queries=(
                ("within", f"count(rankclock:cluster_within{{{match}}}) or vector(0)"),
                ("beyond", f"count(rankclock:cluster_beyond{{{match}}}) or vector(0)"),
                ("cannot be told", f"count(rankclock:cluster_cannot_tell{{{match}}}) or vector(0)"),
            ),
            about="Beyond only where the whole interval is; what cannot be told is neither good nor bad.",
        ),
        Panel(
            title="Farthest from a peer, at most",
            queries=(("{{node}}", worst),),
            about="The far end of the widest interval of each node, measured by probes: the offset is not more.",
        ),
        Panel(
            title="Claimed offsets",
            queries=(("{{node}}", f"rankclock_claimed_offset_seconds{{{match}}}"),),
            about="What daemons say of themselves, against the root of their source.",
        ),
        Panel(
            title="Claim and measurement contradict",
            unit="none",
            queries=(("{{node}}", f"rankclock_mesh_disagrees{{{match}}}"),),
            about="1: the daemon is content and at least half of its peers are measured elsewhere.",
        ),
        Panel(
            title="Usable sources",
            unit="none",
            queries=(("{{node}}", f"rankclock_sources_usable{{{match}}}"),),
            about="Fewer than three cannot outvote one that lies.",
        ),
        *_panels_of_events(match),
    )


def _panels_of_events(match: str) -> tuple[Panel, ...]:
    return (
        Panel(
            title="Clocks set in the last hour",
            unit="none",
            queries=(("{{node}}", f"increase(rankclock_clock_steps_total{{{match}}}[1h])"),),
            about="Steps of CLOCK_REALTIME. Slews are none.",
        ),
        Panel(
            title="Grandmasters that are followed",
            unit="none",
            queries=(
                (
                    "domain {{domain}}: {{grandmaster}}",
                    f"count by (domain, grandmaster) (rankclock:ptp_following{{{match}}})",
                ),
            ),
            about="More than one in a domain, for longer than a takeover takes, is a fault.",
        ),
        Panel(
            title="Alerts",
            kind="table",
            unit="none",
            width=24,
            queries=(("", 'ALERTS{alertname=~"Rankclock.*"}'),),
            about="Pending and firing.",
        ),
        Panel(
            title="Nodes",
            kind="table",
            unit="none",
            width=24,
            queries=(("", f"rankclock_clock_info{{{match}}}"),),
            about="Who steers each clock, and whom that follows.",
        ),
    )


_NODE = 'node="$node"'
DASHBOARDS: dict[str, Dashboard] = {
    "rankclock-cluster": Dashboard(title="rankclock: cluster", variables=(), panels=_panels_of_many('job="rankclock"')),
    "rankclock-rack": Dashboard(
        title="rankclock: rack",
        variables=(("rack", "label_values(rankclock_agent_info, rack)"),),
        panels=_panels_of_many('rack="$rack"'),
    ),
    "rankclock-node": Dashboard(
        title="rankclock: node",
        variables=(("node", "label_values(rankclock_agent_info, node)"),),
        panels=(
            Panel(
                title="State",
                kind="state-timeline",
                unit="none",
                queries=(("{{state}}", f"rankclock_clock_state{{{_NODE}}}"),),
                about="One of five; unknown is one of them.",
            ),
            Panel(
                title="Who steers, whom it follows",
                kind="table",
                unit="none",
                queries=(("", f"rankclock_clock_info{{{_NODE}}}"),),
                about="Exactly one program may steer.",
            ),
            Panel(
                title="Claimed offset and its bounds",
                queries=(
                    *_band("claimed_offset", _NODE, "claimed"),
                    ("limit", f'rankclock_offset_limit_seconds{{{_NODE},scope="utc"}}'),
                ),
                about="Local minus the root of the source, as the daemon says.",
            ),
            Panel(
                title="Measured offsets to peers and their bounds",
                queries=(
                    *_band("mesh_offset", _NODE, "{{peer}}"),
                    ("limit", f'rankclock_offset_limit_seconds{{{_NODE},scope="cluster"}}'),
                ),
                about="Local minus peer, by probes; the bounds are hard.",
            ),
            Panel(
                title="Round trips to peers",
                queries=(("{{peer}}", f"rankclock_mesh_round_trip_seconds{{{_NODE}}}"),),
                about="No measurement bounds an offset better than this.",
            ),
            Panel(
                title="Frequency",
                unit="none",
                queries=(("{{node}}", f"rankclock_kernel_frequency_ratio{{{_NODE}}}"),),
                about="How fast the clock is made to run: the oscillator's error, with the sign turned.",
            ),
            Panel(
                title="Sources: offset at the last sample",
                queries=(("{{source}}", f"rankclock_source_offset_seconds{{{_NODE}}}"),),
                about="Of the first 16 sources.",
            ),
            Panel(
                title="Sources: share of polls answered",
                unit="percentunit",
                queries=(("{{source}}", f"rankclock_source_reach_ratio{{{_NODE}}}"),),
                about="Of the last eight. An answer may still be refused.",
            ),
            Panel(
                title="PTP ports",
                kind="state-timeline",
                unit="none",
                queries=(("{{domain}} / {{port}} {{state}}", f"rankclock_ptp_port_state{{{_NODE}}} == 1"),),
                about="SLAVE: follows. MASTER on a client: it serves itself.",
            ),
            Panel(
                title="PTP grandmaster",
                kind="table",
                unit="none",
                queries=(("", f"rankclock_ptp_info{{{_NODE}}}"),),
                about="As each ptp4l names it; without a port in SLAVE that may be an old one.",
            ),
            Panel(
                title="PTP path delay to the parent",
                queries=(("domain {{domain}}", f"rankclock_ptp_path_delay_seconds{{{_NODE}}}"),),
                about="The offset is not known better than its asymmetry.",
            ),
            Panel(
                title="PTP clockClass of the grandmaster",
                unit="none",
                queries=(("domain {{domain}}", f"rankclock_ptp_clock_class{{{_NODE}}}"),),
                about="6: locked to a primary reference.",
            ),
            Panel(
                title="Holdover against its budget",
                queries=(
                    ("in holdover", f"rankclock_holdover_seconds{{{_NODE}}}"),
                    ("budget", f"rankclock_holdover_budget_seconds{{{_NODE}}}"),
                ),
                about="For how long the clock has run without its source.",
            ),
            Panel(
                title="Reading: how long it takes",
                queries=(("{{reader}}", f"rankclock_reader_duration_seconds{{{_NODE}}}"),),
                about="Of the agent itself.",
            ),
        ),
    ),
}


def queries_of(dashboard: Dashboard) -> tuple[str, ...]:
    """Every query of every panel, variables not yet filled in."""
    return tuple(query for panel in dashboard.panels for _, query in panel.queries)


def dashboard_json(name: str) -> str:
    """The JSON that Grafana imports (schema 39: Grafana 10 and later)."""
    dashboard = DASHBOARDS[name]
    value = {
        "uid": name,
        "title": dashboard.title,
        "tags": ["rankclock", "time"],
        "timezone": "utc",
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [_source(), *(_variable(*pair) for pair in dashboard.variables)]},
        "panels": _laid_out(dashboard.panels),
    }
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def _source() -> dict[str, Any]:
    return {"name": "source", "type": "datasource", "query": "prometheus", "label": "Prometheus"}


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "datasource": _DATASOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
    }


_DATASOURCE = {"type": "prometheus", "uid": "${source}"}


def _laid_out(panels: tuple[Panel, ...]) -> list[dict[str, Any]]:
    """From left to right, then down, 24 columns."""
    found, x, y, row = [], 0, 0, 0
    for number, panel in enumerate(panels, 1):
        if x + panel.width > 24:
            x, y, row = 0, y + row, 0
        found.append(_panel(number, panel, x, y))
        x, row = x + panel.width, max(row, panel.height)
    return found


def _panel(number: int, panel: Panel, x: int, y: int) -> dict[str, Any]:
    instant = panel.kind in ("stat", "table")
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": _DATASOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.height},
        "fieldConfig": {"defaults": {"unit": panel.unit, "custom": {"spanNulls": False}}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _DATASOURCE,
                "expr": query,
                "legendFormat": legend,
                "instant": instant,
                "range": not instant,
                "format": "table" if panel.kind == "table" else "time_series",
            }
            for index, (legend, query) in enumerate(panel.queries)
        ],
    }
