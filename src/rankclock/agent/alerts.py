"""The alerts: one table, from which the rules for Prometheus, the runbooks and the page of the reference are made.

Offsets are judged with three values: beyond only where the whole interval is beyond the limit. What cannot be told does
not alert (a path with a long round trip would, for ever); a clock that nobody can read does. Every rule leaves out
nodes in maintenance. Needs Prometheus 2.42 (keep_firing_for), agents scraped as job "rankclock".
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

__all__ = ["ALERTS", "RECORDINGS", "Alert", "reference_page", "rules_yaml", "runbook"]

_WORKED_ON = " unless on (node) (rankclock_maintenance == 1)"
_SAME = "on (node, instance, job, domain)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One rule. expr without the maintenance clause where `per_node`. meaning, look, act: its runbook."""

    name: str
    expr: str
    for_: str
    severity: str
    summary: str
    meaning: str
    look: tuple[str, ...]
    act: str
    not_when: str
    keep: str = "5m"
    per_node: bool = field(default=True)

    @property
    def whole_expr(self) -> str:
        """The expression with its maintenance clause."""
        return f"({self.expr}){_WORKED_ON}" if self.per_node else self.expr


RECORDINGS: tuple[tuple[str, str], ...] = (
    (
        "rankclock:utc_beyond",
        'rankclock_claimed_offset_lower_seconds > ignoring (scope) rankclock_offset_limit_seconds{scope="utc"}'
        ' or rankclock_claimed_offset_upper_seconds < ignoring (scope) -rankclock_offset_limit_seconds{scope="utc"}',
    ),
    (
        "rankclock:utc_within",
        'rankclock_claimed_offset_upper_seconds <= ignoring (scope) rankclock_offset_limit_seconds{scope="utc"}'
        " and rankclock_claimed_offset_lower_seconds >= ignoring (scope)"
        ' -rankclock_offset_limit_seconds{scope="utc"}',
    ),
    (
        "rankclock:cluster_beyond",
        "rankclock_mesh_offset_lower_seconds > ignoring (scope, peer) group_left ()"
        ' rankclock_offset_limit_seconds{scope="cluster"}'
        " or rankclock_mesh_offset_upper_seconds < ignoring (scope, peer) group_left ()"
        ' -rankclock_offset_limit_seconds{scope="cluster"}',
    ),
    (
        "rankclock:cluster_within",
        "rankclock_mesh_offset_upper_seconds <= ignoring (scope, peer) group_left ()"
        ' rankclock_offset_limit_seconds{scope="cluster"}'
        " and rankclock_mesh_offset_lower_seconds >= ignoring (scope, peer) group_left ()"
        ' -rankclock_offset_limit_seconds{scope="cluster"}',
    ),
    (
        "rankclock:utc_cannot_tell",
        "rankclock_claimed_offset_known unless rankclock:utc_beyond unless rankclock:utc_within",
    ),
    (
        "rankclock:cluster_cannot_tell",
        "rankclock_mesh_offset_known unless rankclock:cluster_beyond unless rankclock:cluster_within",
    ),
    (
        "rankclock:cluster_worst_seconds",
        # The larger of |lower| and |upper| is half their distance plus what their middle is off.
        "max without (peer) ((rankclock_mesh_offset_upper_seconds - rankclock_mesh_offset_lower_seconds) / 2"
        " + abs(rankclock_mesh_offset_upper_seconds + rankclock_mesh_offset_lower_seconds) / 2)",
    ),
    (
        "rankclock:ptp_following",
        f'rankclock_ptp_info and {_SAME} (rankclock_ptp_port_state{{state=~"SLAVE|MASTER"}} == 1)',
    ),
)
"""Name, expression. `_beyond`, `_within`, `_cannot_tell`: one of the three exists for each offset."""

_AGENT = "curl -s http://127.0.0.1:4911/status"

ALERTS: tuple[Alert, ...] = (
    Alert(
        name="RankclockAgentDown",
        expr='up{job="rankclock"} == 0 unless on (instance) (last_over_time(rankclock_maintenance[1h]) == 1)',
        for_="3m",
        severity="warning",
        summary="{{ $labels.instance }}: the agent cannot be scraped, so its clock is not watched",
        meaning="Prometheus reaches no agent there. The clock may be fine or not: nobody looks.",
        look=("systemctl status rankclock-agent", "journalctl -u rankclock-agent -n 50"),
        act="Start it again; if the node is down on purpose, take it out of the targets.",
        not_when="a scrape or two fails",
        per_node=False,
    ),
    Alert(
        name="RankclockReaderFails",
        expr="rankclock_reader_up == 0",
        for_="3m",
        severity="warning",
        summary="{{ $labels.node }}: nothing was read from {{ $labels.reader }} for three periods",
        meaning="The agent runs but what it reads hangs or fails: daemons that do not answer, or its own prober.",
        look=("journalctl -u rankclock-agent -n 50", "rankclock doctor"),
        act="See what hangs (a process in state D, a full machine). The clock's state is unknown until then.",
        not_when="one reading is late",
    ),
    Alert(
        name="RankclockClockUnsynchronised",
        expr='rankclock_clock_state{state=~"unsynchronised|free-running"} == 1',
        for_="5m",
        severity="critical",
        summary="{{ $labels.node }}: the clock is {{ $labels.state }}",
        meaning="Nobody steers the clock, or its daemon follows nobody (`local` islands and own grandmasters too).",
        look=(_AGENT, "chronyc -n sources", "pmc -u -b 0 'GET PORT_DATA_SET'", "rankclock doctor"),
        act="The agent's reasons name the cause; the doctor names the next command.",
        not_when="a daemon was just restarted, or the clock is in holdover within its budget",
    ),
    Alert(
        name="RankclockClockUnknown",
        expr='rankclock_clock_state{state="unknown"} == 1 unless on (node) (rankclock_mesh_disagrees == 1)',
        for_="5m",
        severity="warning",
        summary="{{ $labels.node }}: how the clock stands cannot be told",
        meaning="Who could tell does not answer, or two daemons steer the clock at once.",
        look=(_AGENT, "rankclock probe", "rankclock doctor"),
        act="Make exactly one daemon own the clock; give the agent what its unit grants.",
        not_when="claim and measurement contradict: another alert says so",
    ),
    Alert(
        name="RankclockOffsetBeyondCluster",
        expr="count without (peer) (rankclock:cluster_beyond) * 2"
        " >= count without (peer) (rankclock_mesh_offset_known == 1)",
        for_="2m",
        severity="critical",
        summary="{{ $labels.node }}: certainly farther from at least half of its peers than the cluster allows",
        meaning="Measured: even the near end of the bound is beyond the limit (1 ms NTP, 1 µs hardware PTP, 100 µs "
        "software PTP unless configured). In a pair both fire: which of the two is off cannot be told from there.",
        look=(_AGENT, "rankclock status", "rankclock doctor"),
        act="If one node stands alone against all, its daemon or path is at fault; if many, look at their source.",
        not_when="one peer of several is off (that one's own alert fires), or the bound is too wide to tell",
    ),
    Alert(
        name="RankclockOffsetBeyondUtc",
        expr="rankclock:utc_beyond",
        for_="5m",
        severity="warning",
        summary="{{ $labels.node }}: certainly beyond the limit from the root of its source",
        meaning="The daemon itself says that the clock is off by more than its own bound explains.",
        look=("chronyc -n tracking", "pmc -u -b 0 'GET TIME_STATUS_NP'", "rankclock doctor"),
        act="It may be slewing a large correction (wait), or be unable to steer (see the doctor).",
        not_when="the root distance alone exceeds the limit: then it cannot be told",
    ),
    Alert(
        name="RankclockMeshDisagrees",
        expr="rankclock_mesh_disagrees == 1",
        for_="2m",
        severity="critical",
        summary="{{ $labels.node }}: the daemon claims what measurement contradicts",
        meaning="The clock's daemon is content, but at least half of the peers (or the reference) are measured to be "
        "elsewhere: its source lies, its path is asymmetric, or the peers are wrong together.",
        look=(_AGENT, "rankclock status", "chronyc -n sources"),
        act="Compare sources between nodes that agree and nodes that do not; remove the source that stands alone.",
        not_when="a single peer of several contradicts",
    ),
    Alert(
        name="RankclockUpdateOld",
        expr="rankclock_claimed_update_age_seconds > 2100 or (rankclock_claimed_update_age_seconds > 10"
        ' and on (node) rankclock_agent_info{class=~"ptp-.*"})',
        for_="5m",
        severity="warning",
        summary="{{ $labels.node }}: the clock's last update is {{ $value | humanizeDuration }} old",
        meaning="The daemon lives on an old measurement: two of the longest usual NTP polls (1,024 s), or many Syncs.",
        look=("chronyc -n sources", "pmc -u -b 0 'GET PORT_DATA_SET'"),
        act="Look for packet loss, a firewall, a grandmaster that stopped sending.",
        not_when="a poll interval is long by configuration but under 2,100 s",
    ),
    Alert(
        name="RankclockHoldoverTooLong",
        expr="rankclock_holdover_seconds > rankclock_holdover_budget_seconds",
        for_="0m",
        severity="critical",
        summary="{{ $labels.node }}: in holdover for {{ $value | humanizeDuration }}, longer than its budget",
        meaning="The source is lost and the clock runs on what it knew; beyond the budget its error is not bounded "
        "well enough.",
        look=(_AGENT, "chronyc -n sources", "pmc -u -b 0 'GET PARENT_DATA_SET'"),
        act="Bring a source back, or stop jobs that need the accuracy.",
        not_when="holdover is within the budget",
    ),
    Alert(
        name="RankclockFewSources",
        expr='rankclock_sources_usable < rankclock_sources_wanted and on (node) rankclock_agent_info{class="ntp"}',
        for_="15m",
        severity="warning",
        summary="{{ $labels.node }}: {{ $value }} usable source(s): no majority can outvote one that lies",
        meaning="With fewer than three sources chronyd cannot tell which is wrong.",
        look=("chronyc -n sources -v", "chronyc -n selectdata"),
        act="Add sources, or repair those that are marked ? or x. `sources_wanted: 1` where that is the plan.",
        not_when="sources are still being measured after a start",
    ),
    Alert(
        name="RankclockTwoGrandmasters",
        expr=f"count by (job, domain) (count by (job, domain, grandmaster) (rankclock:ptp_following{_WORKED_ON})) > 1",
        for_="1m",
        severity="critical",
        summary="PTP domain {{ $labels.domain }}: {{ $value }} grandmasters are followed at once",
        meaning="Nodes of one domain follow different grandmasters: the network is split, announce messages are lost "
        "one way, or a node serves itself.",
        look=("pmc -u -b 0 'GET PARENT_DATA_SET'", "pmc -u -b 0 'GET PORT_DATA_SET'", "rankclock doctor"),
        act="Compare priority1 and clockClass; see why announce messages do not pass; make clients clientOnly.",
        not_when="a takeover lasts some seconds, or a client that lost its grandmaster still shows the old one",
        per_node=False,
    ),
    Alert(
        name="RankclockGrandmasterChanged",
        expr="increase(rankclock_ptp_grandmaster_changes_total[15m]) > 0",
        for_="0m",
        severity="warning",
        summary="{{ $labels.node }}: another grandmaster was elected within 15 minutes",
        meaning="The best clock of the domain changed: the former is gone, or a better one came.",
        look=("pmc -u -b 0 'GET PARENT_DATA_SET'", "journalctl -u ptp4l -n 50"),
        act="See that the former comes back, and that offsets held (the dashboard's history).",
        not_when="an agent started and saw its first grandmaster",
        keep="0m",
    ),
    Alert(
        name="RankclockClockClassChanged",
        expr="changes(rankclock_ptp_clock_class[15m]) > 0",
        for_="0m",
        severity="warning",
        summary="{{ $labels.node }}: the grandmaster of domain {{ $labels.domain }} announces another clockClass",
        meaning="6 is locked to a primary reference, 7 holdover, 52 and 187 beyond holdover, 248 nothing known.",
        look=("pmc -u -b 0 'GET PARENT_DATA_SET'", "pmc -u -b 0 'GET TIME_PROPERTIES_DATA_SET'"),
        act="Look at the grandmaster's antenna or upstream.",
        not_when="the class stands still, whatever it is",
        keep="0m",
    ),
    Alert(
        name="RankclockClockStepped",
        expr="increase(rankclock_clock_steps_total[15m]) > 0",
        for_="0m",
        severity="warning",
        summary="{{ $labels.node }}: CLOCK_REALTIME was set",
        meaning="Somebody set the clock: a daemon's makestep, an administrator, a hypervisor. Logs and timeouts of "
        "running jobs are off by the step.",
        look=("journalctl -u chrony -n 50", "journalctl -u rankclock-agent -n 50"),
        act="Steps belong to boot only: `makestep 0.1 3`, no other program that sets the clock.",
        not_when="the clock is slewed, however fast",
        keep="0m",
    ),
    Alert(
        name="RankclockPortFaulty",
        expr='rankclock_ptp_port_state{state="FAULTY"} == 1',
        for_="2m",
        severity="warning",
        summary="{{ $labels.node }}: PTP port {{ $labels.port }} of domain {{ $labels.domain }} is FAULTY",
        meaning="ptp4l cannot use the port: no transmit time stamps, the link is down, a wrong clock for the NIC.",
        look=("journalctl -u ptp4l -n 50", "ethtool -T IFACE"),
        act="`tx_timestamp_timeout 30` for slow drivers; see the doctor for the others.",
        not_when="the port is LISTENING or UNCALIBRATED",
    ),
    Alert(
        name="RankclockUtcOffsetDiffers",
        expr="rankclock_kernel_tai_offset_seconds != 0 and on (node, instance, job)"
        " (rankclock_ptp_utc_offset_valid == 1) and on (node, instance, job)"
        " (rankclock_ptp_utc_offset_seconds != on (node, instance, job) group_left ()"
        " rankclock_kernel_tai_offset_seconds)",
        for_="10m",
        severity="warning",
        summary="{{ $labels.node }}: the kernel's TAI offset {{ $value }} s is not what the grandmaster announces",
        meaning="A leap second is missing on one side: UTC here or there is a second off.",
        look=("adjtimex --print", "pmc -u -b 0 'GET TIME_PROPERTIES_DATA_SET'"),
        act="Correct the grandmaster's currentUtcOffset, or the leap second list of the node.",
        not_when="the kernel was never told (0), or the grandmaster does not vouch for its offset",
    ),
    Alert(
        name="RankclockPeerNotMeasured",
        expr="(count by (job, peer) (rankclock_mesh_offset_known == 0)"
        " == count by (job, peer) (rankclock_mesh_offset_known))"
        ' unless on (peer) label_replace(rankclock_maintenance == 1, "peer", "$1", "node", "(.*)")',
        for_="10m",
        severity="warning",
        summary="{{ $labels.peer }}: none of its peers can measure it",
        meaning="Nobody gets answers to its probes from there.",
        look=("systemctl status rankclock-agent", "nft list ruleset"),
        act="Open the UDP port of the probes (4910), see that all agents have the same key.",
        not_when="some of its peers still measure it",
        per_node=False,
    ),
)


def rules_yaml() -> str:
    """The rules file. JSON strings are YAML strings: nothing needs another way of quoting."""
    lines = [
        '# Made by `rankclock agent files`. Needs Prometheus 2.42; agents are scraped as job "rankclock".',
        "groups:",
        "  - name: rankclock",
        "    rules:",
    ]
    for name, expr in RECORDINGS:
        lines += [f"      - record: {json.dumps(name)}", f"        expr: {json.dumps(expr)}"]
    for alert in ALERTS:
        lines += [
            f"      - alert: {alert.name}",
            f"        expr: {json.dumps(alert.whole_expr)}",
            f"        for: {alert.for_}",
            f"        keep_firing_for: {alert.keep}",
            "        labels:",
            f"          severity: {alert.severity}",
            "        annotations:",
            f"          summary: {_text(alert.summary)}",
            f"          description: {_text(alert.meaning)}",
            f"          runbook: runbooks/{alert.name}.md",
        ]
    return "\n".join(lines) + "\n"


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def runbook(alert: Alert) -> str:
    """One page for whoever is woken."""
    commands = "\n".join(f"    {command}" for command in alert.look)
    return (
        f"# {alert.name}\n\n{alert.severity}, after {alert.for_}.\n\n**What it means.** {alert.meaning}\n\n"
        f"**Look.**\n\n{commands}\n\n**Do.** {alert.act}\n\n**It does not fire when** {alert.not_when}.\n"
    )


def reference_page() -> str:
    """docs/reference/alerts.md."""
    parts = [
        "# Alerts",
        "Made from the agent's own table by `scripts/agent_reference.py`. Do not edit this page by hand.",
        "Every rule leaves out nodes in maintenance. An offset alerts only where the whole interval is beyond the "
        "limit; what cannot be told is recorded (`rankclock:utc_cannot_tell`, `rankclock:cluster_cannot_tell`) and "
        "shown on the dashboards, and alerts nobody.",
    ]
    for alert in ALERTS:
        parts.append(runbook(alert).replace("# ", "## ", 1).rstrip())
        parts.append(f"```text\n{alert.whole_expr}\n```")
    return "\n\n".join(parts) + "\n"
