"""Every alert rule, both ways, by Prometheus's own test tool: it fires, and is silent on known false alarms."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rankclock.agent.alerts import ALERTS, RECORDINGS, rules_yaml
from rankclock.agent.files import write_files
from rankclock.agent.metrics import METRICS

Series = dict[str, str]
N1 = 'node="n1",instance="n1:1",job="rankclock"'
N2 = 'node="n2",instance="n2:1",job="rankclock"'


def limits(node: str, limit: str = "1e-3") -> Series:
    return {f'rankclock_offset_limit_seconds{{{node},scope="{scope}"}}': f"{limit}x60" for scope in ("cluster", "utc")}


def claim(node: str, lower: str, upper: str) -> Series:
    return {
        f"rankclock_claimed_offset_known{{{node}}}": "1x60",
        f"rankclock_claimed_offset_lower_seconds{{{node}}}": f"{lower}x60",
        f"rankclock_claimed_offset_upper_seconds{{{node}}}": f"{upper}x60",
    }


def mesh(node: str, peer: str, lower: str, upper: str) -> Series:
    more = f'{node},peer="{peer}"'
    return {
        f"rankclock_mesh_offset_known{{{more}}}": "1x60",
        f"rankclock_mesh_offset_lower_seconds{{{more}}}": f"{lower}x60",
        f"rankclock_mesh_offset_upper_seconds{{{more}}}": f"{upper}x60",
    }


def ptp(node: str, grandmaster: str, port_state: str) -> Series:
    return {
        f'rankclock_ptp_info{{{node},domain="0",identity="{node[6:8]}",grandmaster="{grandmaster}"}}': "1x60",
        f'rankclock_ptp_port_state{{{node},domain="0",port="1",state="{port_state}"}}': "1x60",
    }


WORKED_ON = {f"rankclock_maintenance{{{N1}}}": "1x60"}
OFF = {**limits(N1), **claim(N1, "0.002", "0.003")}
APART = {**limits(N1), **mesh(N1, "n2", "-0.003", "-0.002"), **mesh(N1, "n3", "-0.003", "-0.002")}


@dataclass(frozen=True)
class Case:
    """Series with which an alert fires on `labels` at 20 minutes; known false alarms, with which it does not."""

    fires: Series
    quiet: tuple[Series, ...]
    labels: str = N1
    more: str = ""


CASES: dict[str, Case] = {
    "RankclockAgentDown": Case(
        {f"up{{{N1}}}": "0x60"},
        ({f"up{{{N1}}}": "1x38 0x2 1x20"}, {f"up{{{N1}}}": "0x60", **WORKED_ON}),
    ),
    "RankclockReaderFails": Case(
        {f'rankclock_reader_up{{{N1},reader="daemons"}}': "0x60"},
        ({f'rankclock_reader_up{{{N1},reader="daemons"}}': "1x38 0x2 1x20"},),
        more=',reader="daemons"',
    ),
    "RankclockClockUnsynchronised": Case(
        {f'rankclock_clock_state{{{N1},state="free-running"}}': "1x60"},
        (
            {f'rankclock_clock_state{{{N1},state="unsynchronised"}}': "0x36 1x4 0x20"},  # a daemon was restarted
            {f'rankclock_clock_state{{{N1},state="holdover"}}': "1x60"},
            {f'rankclock_clock_state{{{N1},state="free-running"}}': "1x60", **WORKED_ON},
        ),
        more=',state="free-running"',
    ),
    "RankclockClockUnknown": Case(
        {f'rankclock_clock_state{{{N1},state="unknown"}}': "1x60"},
        (
            {f'rankclock_clock_state{{{N1},state="unknown"}}': "1x60", f"rankclock_mesh_disagrees{{{N1}}}": "1x60"},
            {f'rankclock_clock_state{{{N1},state="unknown"}}': "1x60", **WORKED_ON},
        ),
        more=',state="unknown"',
    ),
    "RankclockOffsetBeyondCluster": Case(
        APART,
        (
            # A peer of three is off: its own alert says so. Then: a round trip too long to tell. Then: within.
            {**limits(N1), **mesh(N1, "n2", "0.1", "0.2"), **mesh(N1, "n3", "0", "0"), **mesh(N1, "n4", "0", "0")},
            {**limits(N1), **mesh(N1, "n2", "-0.015", "0.025")},
            {**limits(N1), **mesh(N1, "n2", "-1e-6", "9e-4")},
            {**APART, **WORKED_ON},
        ),
    ),
    "RankclockOffsetBeyondUtc": Case(
        OFF,
        (
            {**limits(N1), **claim(N1, "-0.02", "0.03")},  # over the Internet: the root distance alone is 25 ms
            {**limits(N1), **claim(N1, "-9e-4", "-8e-4")},
            {**OFF, **WORKED_ON},
        ),
    ),
    "RankclockMeshDisagrees": Case(
        {f"rankclock_mesh_disagrees{{{N1}}}": "1x60"},
        (
            {f"rankclock_mesh_disagrees{{{N1}}}": "0x60", f"rankclock_mesh_peers_against{{{N1}}}": "1x60"},
            {f"rankclock_mesh_disagrees{{{N1}}}": "1x60", **WORKED_ON},
        ),
    ),
    "RankclockUpdateOld": Case(
        {
            f"rankclock_claimed_update_age_seconds{{{N1}}}": "30x60",
            f'rankclock_agent_info{{{N1},class="ptp-hardware"}}': "1x60",
        },
        (
            {  # the longest usual poll of NTP is 1,024 s
                f"rankclock_claimed_update_age_seconds{{{N1}}}": "1030x60",
                f'rankclock_agent_info{{{N1},class="ntp"}}': "1x60",
            },
        ),
    ),
    "RankclockHoldoverTooLong": Case(
        {f"rankclock_holdover_seconds{{{N1}}}": "0+30x60", f"rankclock_holdover_budget_seconds{{{N1}}}": "600x60"},
        ({f"rankclock_holdover_seconds{{{N1}}}": "0+10x60", f"rankclock_holdover_budget_seconds{{{N1}}}": "600x60"},),
    ),
    "RankclockFewSources": Case(
        {
            f"rankclock_sources_usable{{{N1}}}": "1x60",
            f"rankclock_sources_wanted{{{N1}}}": "3x60",
            f'rankclock_agent_info{{{N1},class="ntp"}}': "1x60",
        },
        (
            {  # just started
                f"rankclock_sources_usable{{{N1}}}": "3x20 0x20 3x20",
                f"rankclock_sources_wanted{{{N1}}}": "3x60",
                f'rankclock_agent_info{{{N1},class="ntp"}}': "1x60",
            },
            {  # a chronyd beside PTP has one on purpose
                f"rankclock_sources_usable{{{N1}}}": "1x60",
                f"rankclock_sources_wanted{{{N1}}}": "3x60",
                f'rankclock_agent_info{{{N1},class="ptp-hardware"}}': "1x60",
            },
        ),
    ),
    "RankclockTwoGrandmasters": Case(
        {**ptp(N1, "gm1", "SLAVE"), **ptp(N2, "gm2", "SLAVE")},
        (
            {**ptp(N1, "gm1", "SLAVE"), **ptp(N2, "gm1", "MASTER")},
            {**ptp(N1, "gm1", "LISTENING"), **ptp(N2, "gm2", "SLAVE")},  # lost its grandmaster and shows the old one
            {**ptp(N1, "gm1", "SLAVE"), **ptp(N2, "gm2", "SLAVE"), f"rankclock_maintenance{{{N1}}}": "1x60"},
        ),
        labels='job="rankclock"',
        more=',domain="0"',
    ),
    "RankclockGrandmasterChanged": Case(
        {f"rankclock_ptp_grandmaster_changes_total{{{N1}}}": "0x30 1x30"},
        ({f"rankclock_ptp_grandmaster_changes_total{{{N1}}}": "3x60"},),
    ),
    "RankclockClockClassChanged": Case(
        {f'rankclock_ptp_clock_class{{{N1},domain="0"}}': "6x30 7x30"},
        ({f'rankclock_ptp_clock_class{{{N1},domain="0"}}': "248x60"},),
        more=',domain="0"',
    ),
    "RankclockClockStepped": Case(
        {f"rankclock_clock_steps_total{{{N1}}}": "0x30 1x30"},
        (
            {f"rankclock_clock_steps_total{{{N1}}}": "2x60"},
            {f"rankclock_clock_steps_total{{{N1}}}": "0x30 1x30", **WORKED_ON},
        ),
    ),
    "RankclockPortFaulty": Case(
        {f'rankclock_ptp_port_state{{{N1},domain="0",port="1",state="FAULTY"}}': "1x60"},
        (
            {f'rankclock_ptp_port_state{{{N1},domain="0",port="1",state="FAULTY"}}': "0x60"},
            {f'rankclock_ptp_port_state{{{N1},domain="0",port="1",state="LISTENING"}}': "1x60"},
        ),
        more=',domain="0",port="1",state="FAULTY"',
    ),
    "RankclockUtcOffsetDiffers": Case(
        {
            f"rankclock_kernel_tai_offset_seconds{{{N1}}}": "37x60",
            f'rankclock_ptp_utc_offset_seconds{{{N1},domain="0"}}': "36x60",
            f'rankclock_ptp_utc_offset_valid{{{N1},domain="0"}}': "1x60",
        },
        (
            {
                f"rankclock_kernel_tai_offset_seconds{{{N1}}}": "0x60",  # nobody told the kernel
                f'rankclock_ptp_utc_offset_seconds{{{N1},domain="0"}}': "37x60",
                f'rankclock_ptp_utc_offset_valid{{{N1},domain="0"}}': "1x60",
            },
            {
                f"rankclock_kernel_tai_offset_seconds{{{N1}}}": "37x60",
                f'rankclock_ptp_utc_offset_seconds{{{N1},domain="0"}}': "0x60",  # nobody vouches for it
                f'rankclock_ptp_utc_offset_valid{{{N1},domain="0"}}': "0x60",
            },
            {
                f"rankclock_kernel_tai_offset_seconds{{{N1}}}": "37x60",
                f'rankclock_ptp_utc_offset_seconds{{{N1},domain="0"}}': "37x60",
                f'rankclock_ptp_utc_offset_valid{{{N1},domain="0"}}': "1x60",
            },
        ),
    ),
    "RankclockPeerNotMeasured": Case(
        {f'rankclock_mesh_offset_known{{{node},peer="n3"}}': "0x60" for node in (N1, N2)},
        (
            {
                f'rankclock_mesh_offset_known{{{N1},peer="n3"}}': "0x60",
                f'rankclock_mesh_offset_known{{{N2},peer="n3"}}': "1x60",
            },
            {
                f'rankclock_mesh_offset_known{{{N2},peer="n1"}}': "0x60",
                **WORKED_ON,
            },
        ),
        labels='job="rankclock"',
        more=',peer="n3"',
    ),
}  # fmt: skip


def labels_of(text: str) -> dict[str, str]:
    return dict(re.findall(r'(\w+)="([^"]*)"', text))


def scenario(series: Series, alert: str, expected: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "interval": "30s",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": [{"eval_time": "20m", "alertname": alert, "exp_alerts": expected}],
    }


def promtool(daemon: Callable[[str], Path], folder: Path, scenarios: list[dict[str, Any]]) -> str:
    """What promtool says of scenarios, '' where all hold."""
    (folder / "rules.yml").write_text(rules_yaml(), encoding="utf-8")
    tests = {"rule_files": ["rules.yml"], "evaluation_interval": "30s", "tests": scenarios}
    (folder / "tests.yml").write_text(json.dumps(tests), encoding="utf-8")
    done = subprocess.run(
        [daemon("promtool"), "test", "rules", "tests.yml"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout + done.stderr if done.returncode else ""


def test_every_alert_has_a_case_and_every_metric_that_rules_name_exists() -> None:
    assert {alert.name for alert in ALERTS} == set(CASES)
    text = rules_yaml()
    known = {f"rankclock_{spec.name}" for spec in METRICS}
    assert set(re.findall(r"rankclock_[a-z_]+", text)) <= known
    assert set(re.findall(r"rankclock:[a-z_]+", text)) <= {name for name, _ in RECORDINGS}


@pytest.fixture(scope="module")
def what_fires(daemon: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> str:
    """What promtool finds for each fault when it is told to expect nothing."""
    tests = [scenario(case.fires, name, []) for name, case in CASES.items()]
    return promtool(daemon, tmp_path_factory.mktemp("fires"), tests)


@pytest.mark.parametrize("name", sorted(CASES))
def test_the_alert_fires_on_its_fault_with_its_labels(name: str, what_fires: str) -> None:
    case = CASES[name]
    found = re.search(rf"alertname: {name}, time.*?got:(.*?)(?=alertname: |\Z)", what_fires, flags=re.DOTALL)
    assert found, what_fires
    for label, value in labels_of(case.labels + case.more).items():
        assert f'{label}="{value}"' in found[1], what_fires


def test_no_alert_fires_on_known_false_alarms(daemon: Callable[[str], Path], tmp_path: Path) -> None:
    quiet = [scenario(series, name, []) for name, case in CASES.items() for series in case.quiet]
    assert promtool(daemon, tmp_path, quiet) == ""


def test_an_offset_is_beyond_within_or_cannot_be_told_and_never_two_of_them(
    daemon: Callable[[str], Path], tmp_path: Path
) -> None:
    offsets = [("0.002", "0.003"), ("-0.003", "-0.002"), ("-1e-3", "1e-3"), ("-2e-3", "5e-4"), ("-2", "2")]
    wanted = ["beyond", "beyond", "within", "cannot_tell", "cannot_tell"]
    series: Series = {}
    for number, (lower, upper) in enumerate(offsets):
        node = f'node="n{number}",instance="n{number}:1",job="rankclock"'
        series |= {**limits(node), **claim(node, lower, upper), **mesh(node, "p", lower, upper)}
    tests = []
    for scope in ("cluster", "utc"):
        for answer in ("beyond", "within", "cannot_tell"):
            expected = sorted(f"n{number}" for number, want in enumerate(wanted) if want == answer)
            expr = f"count by (node) (rankclock:{scope}_{answer})"
            samples = [{"labels": f'{{node="{node}"}}', "value": 1} for node in expected]
            tests.append({"expr": expr, "eval_time": "5m", "exp_samples": samples})
    one = {
        "interval": "30s",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": tests,
    }
    assert promtool(daemon, tmp_path, [one]) == ""


def test_the_examples_pass_the_checks_of_the_programs_that_read_them(
    daemon: Callable[[str], Path], tmp_path: Path
) -> None:
    write_files(tmp_path, None)
    checks = [
        [daemon("promtool"), "check", "rules", "prometheus/rankclock.rules.yml"],
        [daemon("promtool"), "check", "config", "--syntax-only", "prometheus/prometheus.yml"],
        [daemon("amtool"), "check-config", "alertmanager/alertmanager.yml"],
    ]
    for command in checks:
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    for alert in ALERTS:
        assert alert.meaning in (tmp_path / f"runbooks/{alert.name}.md").read_text(encoding="utf-8")
