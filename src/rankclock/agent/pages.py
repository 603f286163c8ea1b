"""The agent's pages: /metrics, /healthz, /readyz, /status and / of one story. No I/O; clocks come as an argument.

/metrics is encoded once for each thing that happens (a look, a report) and again where that was a second ago. /healthz
says whether the agent itself works: a daemon that is down is not its fault. /readyz: it has an answer.
"""

from __future__ import annotations

import html
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from prometheus_client import ProcessCollector
from prometheus_client.registry import CollectorRegistry

from rankclock.agent.http_server import Answer, Request
from rankclock.agent.metrics import encode, families
from rankclock.agent.story import PATIENCE_NS, STALE_PERIODS, Story, with_age
from rankclock.agent.users import Users
from rankclock.node.gpsd import GpsdReceiver
from rankclock.timebase import NS_PER_S, Offset, SyncState, format_offset_ns, format_span_ns

__all__ = ["Clocks", "Pages", "status_json"]

METRICS_KIND = "text/plain; version=0.0.4; charset=utf-8"
FRESH_NS = NS_PER_S
"""For so long an encoded page is good: what changes without an event are flags that turn after three periods."""

_PROBES = ("/healthz", "/readyz")
_HEAD = """<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="10"><title>{node}</title>
<style>body{{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1b2a33}}
table{{border-collapse:collapse}}td,th{{text-align:left;padding:.2rem .9rem .2rem 0;vertical-align:top}}
.state{{display:inline-block;padding:.1rem .6rem;border-radius:.3rem;color:#fff;background:{colour}}}
small{{color:#5b6a73}}</style>"""
_COLOURS = {SyncState.SYNCHRONISED: "#2a7d4f", SyncState.HOLDOVER: "#a66a00"}


@dataclass(frozen=True, slots=True)
class Clocks:
    """An instant by both clocks."""

    raw_ns: int
    unix_s: float


def status_json(story: Story, now_ns: int) -> dict[str, Any]:
    """The clock's state as `rankclock status --json` has it, with what was measured of each peer and what limits it.

    An offset speaks of its at_raw_ns; age_ns says how long ago that is, or the daemon's own measurement.
    """
    standing = story.standing(now_ns)
    cluster_ns, utc_ns = story.settings.limits_ns(story.clock_class)
    details = story.details if story.fresh(story.more, now_ns) else None
    return {
        **story.state(now_ns).to_json(),
        "role": None,
        "truth_ns": None,
        "misses_truth": None,
        "agent": {
            "class": story.clock_class.value,
            "cluster_limit_ns": cluster_ns,
            "utc_limit_ns": utc_ns,
            "maintenance": story.silenced,
            "holdover_ns": story.holdover_ns(now_ns),
            "holdover_budget_ns": story.settings.holdover_budget_ns,
            "steps": story.steps if story.report else None,
            "sources_usable": story.look.sources.usable if story.look and story.look.sources else None,
            "sources_wanted": story.settings.sources_wanted,
            "read_age_ns": None if story.daemons.succeeded_ns is None else now_ns - story.daemons.succeeded_ns,
            "peers": {edge.peer: with_age(edge.offset, now_ns).to_json() for edge in story.probed} if standing else {},
            "ptp": [
                {"domain": clock.domain, "identity": clock.identity, "grandmaster": clock.grandmaster}
                for clock in (story.look.ptp if story.look else ())
            ],
            "peers_against": list(standing.against) if standing else [],
            "gps": [
                {"device": one.device, "mode": one.mode, "satellites_used": one.used, "satellites_seen": one.seen}
                for one in (details.receivers if details else ())
            ],
            "not_told": list(details.missing) if details else [],
        },
    }


class Pages:
    """Answers requests. `clocks` reads the clocks."""

    def __init__(self, story: Story, clocks: Callable[[], Clocks], *, users: Users | None = None) -> None:
        self.story = story
        self.users = users
        self._clocks = clocks
        self._started = clocks()
        self._pages: dict[str, Callable[[Clocks], Answer]] = {
            "/metrics": lambda now: Answer(kind=METRICS_KIND, body=self._metrics(now)),
            "/status": self._status,
            "/healthz": self._health,
            "/readyz": self._ready,
            "/": lambda now: Answer(kind="text/html; charset=utf-8", body=self._page(now).encode()),
        }
        self._process = ProcessCollector(registry=CollectorRegistry())
        self._encoded: tuple[int, int, bytes] | None = None

    def answer(self, request: Request) -> Answer:
        """Any request. Probes of the machine's own supervisor come without a password: they learn one word."""
        if (
            self.users is not None
            and request.path not in _PROBES
            and not self.users.allow(request.headers.get("authorization", ""))
        ):
            challenge = (("WWW-Authenticate", 'Basic realm="rankclock"'),)
            return Answer(status=401, body=b"a user and password are needed\n", headers=challenge)
        page = self._pages.get(request.path)
        return page(self._clocks()) if page else Answer(status=404, body=" ".join(self._pages).encode() + b"\n")

    def healthy(self, now_ns: int) -> bool:
        """Whether looks come in; the first one may take as long as a later one may be late."""
        if self.story.look is not None:
            return self.story.fresh(self.story.daemons, now_ns)
        return now_ns - self._started.raw_ns <= STALE_PERIODS * (self.story.settings.read_every_ns + PATIENCE_NS)

    def _health(self, now: Clocks) -> Answer:
        return _word(self.healthy(now.raw_ns), "healthy", "looking at the daemons hangs")

    def _ready(self, _now: Clocks) -> Answer:
        return _word(self.story.look is not None, "ready", "no look was made yet")

    def _status(self, now: Clocks) -> Answer:
        body = json.dumps(status_json(self.story, now.raw_ns), ensure_ascii=False).encode() + b"\n"
        return Answer(kind="application/json", body=body)

    def _metrics(self, now: Clocks) -> bytes:
        kept = self._encoded
        if kept is not None and kept[0] == self.story.revision and now.raw_ns - kept[1] < FRESH_NS:
            return kept[2]
        own = families(
            self.story, now_ns=now.raw_ns, now_unix_s=now.unix_s, started_unix_s=round(self._started.unix_s, 3)
        )
        body = encode((*own, *self._process.collect()))
        self._encoded = (self.story.revision, now.raw_ns, body)
        return body

    def _page(self, now: Clocks) -> str:
        story, state = self.story, self.story.state(now.raw_ns)
        standing = story.standing(now.raw_ns)
        peers = [(edge.peer, with_age(edge.offset, now.raw_ns)) for edge in story.probed] if standing else []
        rows = [
            ("Steered by", state.owner or "nobody"),
            ("Follows", state.source or "nobody"),
            ("Claimed by the daemon", _words(state.claimed)),
            *((f"Measured against {peer}", _words(offset)) for peer, offset in peers),
            ("Class and limits", _limits(story)),
        ]
        if story.look is not None and story.look.sources is not None:
            rows.append(("Sources", f"{story.look.sources.usable} usable, {story.settings.sources_wanted} wanted"))
        if story.details is not None and story.fresh(story.more, now.raw_ns):
            rows += [(f"Receiver {one.device}", _receiver(one)) for one in story.details.receivers]
        if story.silenced:
            rows.append(("Maintenance", "alerts of this node are silent"))
        table = "".join(f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>" for name, value in rows)
        reasons = "".join(f"<li>{html.escape(reason)}</li>" for reason in state.reasons)
        colour = _COLOURS.get(state.state, "#b3261e")
        node = html.escape(state.node)
        return (
            _HEAD.format(node=node, colour=colour)
            + f'<h1>{node} <span class="state">{state.state.value}</span></h1><table>{table}</table>'
            + f"<h2>Why</h2><ul>{reasons}</ul><small>offset = local - reference; the bound is on both sides and holds "
            + 'under the method\'s assumptions. <a href="status">JSON</a>, <a href="metrics">metrics</a></small>\n'
        )


def _word(good: bool, word: str, otherwise: str) -> Answer:
    return Answer(status=200 if good else 503, body=(word if good else otherwise).encode() + b"\n")


def _receiver(receiver: GpsdReceiver) -> str:
    fix = "unknown" if receiver.mode is None else "fix" if receiver.mode >= 2 else "no fix"
    return f"{fix}, {'?' if receiver.used is None else receiver.used} satellites used"


def _limits(story: Story) -> str:
    cluster_ns, utc_ns = story.settings.limits_ns(story.clock_class)
    return (
        f"{story.clock_class.value}: {format_span_ns(cluster_ns)} inside the cluster, {format_span_ns(utc_ns)} to UTC"
    )


def _words(offset: Offset) -> str:
    if offset.estimate_ns is None or offset.bound_ns is None:
        return f"unknown: {offset.unknown_why}"
    text = f"{format_offset_ns(offset.estimate_ns)} ± {format_span_ns(offset.bound_ns)} from {offset.reference}"
    return f"{text}, {format_span_ns(offset.age_ns)} old, by {offset.method}"
