"""Clusters in, decision, tree and files out: each folder here with a case.json is one case.

case.json: {"cluster": path from the repository's root or "cluster.yaml", "protocol": null, "why": "..."}; facts.json
(optional): [{"nodes": "gpu[1-4]", "facts": {"nic.eth0": {...}}}]; expected/: what must come out, compared byte by byte.
A new case needs a folder, and `RANKCLOCK_UPDATE_GOLDEN=1 pytest tests/golden`; then read what it wrote.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from rankclock.cluster import Cluster, Facts, fold, load_cluster
from rankclock.cluster.hostlist import expand
from rankclock.configs import RenderedNode, manifest_of, read_rendered, render, write_rendered
from rankclock.planning import Owner, Plan, Role, Scheme, decision_text, make_plan, plan_text

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CASES = sorted(path.parent for path in HERE.glob("*/case.json"))


def facts_of(case: Path) -> dict[str, Facts]:
    path = case / "facts.json"
    found = {}
    for group in json.loads(path.read_text()) if path.exists() else []:
        for node in expand(group["nodes"]):
            facts = {key: {"value": value, "why": None, "source": "golden"} for key, value in group["facts"].items()}
            found[node] = Facts.from_json(
                {"schema": "rankclock-facts/1", "node": node, "collected_at_ns": 0, "facts": facts}
            )
    return found


def made_from(case: Path) -> tuple[Cluster, dict[str, Facts], Plan, dict[str, RenderedNode]]:
    asked = json.loads((case / "case.json").read_text())
    local = case / asked["cluster"]
    cluster = load_cluster(local if local.exists() else ROOT / asked["cluster"])
    facts = facts_of(case)
    plan = make_plan(cluster, facts, asked["protocol"])
    return cluster, facts, plan, render(plan, cluster, facts) if plan.usable else {}


def files_text(nodes: dict[str, RenderedNode]) -> str:
    """Every file once, with the nodes that have it: their own name in it reads NODE."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name, node in nodes.items():
        for path, text in node.files.items():
            groups.setdefault((path, text.replace(name, "NODE")), []).append(name)
        services = "".join(f"tier {service.tier}: {' '.join(service.argv)}\n" for service in node.services)
        groups.setdefault(("services", f"{services}masked: {' '.join(node.masks)}\n"), []).append(name)
    parts = [f"===== {fold(names)}: {path}\n{text}" for (path, text), names in groups.items()]
    return "\n".join(parts)


def outputs(case: Path) -> dict[str, str]:
    _, _, plan, nodes = made_from(case)
    return {"decision.txt": decision_text(plan.decision), "plan.txt": plan_text(plan), "files.txt": files_text(nodes)}


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.name)
def test_a_case_gives_the_expected_decision_tree_and_files(case: Path) -> None:
    found = outputs(case)
    expected = case / "expected"
    if os.environ.get("RANKCLOCK_UPDATE_GOLDEN"):
        expected.mkdir(exist_ok=True)
        for name, text in found.items():
            (expected / name).write_text(text, encoding="utf-8")
    for name, text in found.items():
        assert text == (expected / name).read_text(encoding="utf-8"), f"{case.name}/expected/{name}"


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.name)
def test_every_node_of_a_case_has_one_owner_of_its_clock_and_one_of_its_phc(case: Path) -> None:
    _, _, plan, nodes = made_from(case)
    for name, node in nodes.items():
        role = plan.roles[name]
        daemons = {service.name for service in node.services}
        phc2sys = arguments(node, "phc2sys")
        hands_over = "ntpshm" in phc2sys  # to chronyd, and steers nothing itself
        from_system_clock = phc2sys[phc2sys.index("-s") + 1] == "CLOCK_REALTIME" if "-s" in phc2sys else False
        steers_realtime = {
            daemon
            for daemon in daemons
            if daemon in ("chronyd", "ntpd", "timemaster")
            or (daemon == "phc2sys" and not from_system_clock and not hands_over)
            or (daemon == "ptp4l" and role.stamps is Scheme.PTP_SOFTWARE and "free_running 1" not in ptp4l(node))
        }
        by_timemaster = "timemaster" in daemons  # which starts chronyd, and that one steers
        assert steers_realtime == ({"timemaster"} if by_timemaster else {role.owner.value}), name
        if role.stamps is Scheme.PTP_HARDWARE:
            steer_the_phc = [
                "free_running 1" not in ptp4l(node),
                from_system_clock,
                "ts2phc" in daemons,
            ]
            assert sum(steer_the_phc) == 1, f"{name}: two steer its PHC, or nobody does"
        assert ("chrony.service" in node.masks) == (role.owner is not Owner.CHRONYD or by_timemaster), name


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.name)
def test_the_known_traps_of_ptp4l_and_phc2sys_are_kept_out(case: Path) -> None:
    cluster, _, plan, nodes = made_from(case)
    for name, node in nodes.items():
        role, text = plan.roles[name], ptp4l(node)
        if not text:
            continue
        global_part, *port_parts = text.split("\n[")[1:]
        lines = [line for line in text.splitlines() if line and not line.startswith("#")]
        assert not any("#" in line for line in lines), f"{name}: a comment behind a value"
        assert "masterOnly" not in global_part, name
        assert "serverOnly" not in global_part, name
        assert all("slaveOnly" not in part and "clientOnly" not in part for part in port_parts), name
        only_client = "slaveOnly 1" in lines or "clientOnly 1" in lines
        assert only_client == (role.role is Role.ORDINARY_CLOCK), f"{name}: only ordinary clocks are client only"
        if "boundary_clock_jbod 1" in lines:
            phcs = {port.phc_index for port in role.ports}
            assert role.stamps is Scheme.PTP_HARDWARE, name
            assert len(phcs) > 1, name
            assert None not in phcs, name
        if role.stamps is Scheme.PTP_SOFTWARE:
            assert "phc2sys" not in {service.name for service in node.services}, name
            assert not any(line.startswith(("ptpTimescale", "utc_offset")) for line in lines), name
        elif role.role is Role.TRANSPARENT_CLOCK:
            assert "clock_type E2E_TC" in lines, name
            assert "phc2sys" not in {service.name for service in node.services}, name
        else:
            words = arguments(node, "phc2sys")
            assert words[words.index("-n") + 1] == str(cluster.ptp.domain), name
            assert f"domainNumber {cluster.ptp.domain}" in lines, name
            assert ("-a" in words) != ("-s" in words), name
            if "-s" in words:
                into_phc = words[words.index("-s") + 1] == "CLOCK_REALTIME"
                offset = words[words.index("-O") + 1]
                assert offset == ("37" if into_phc else "-37"), (
                    f"{name}: the PHC keeps TAI, the offset is sink - source"
                )
                assert "-w" not in words, f"{name}: -w waits for ever beside a backup's UNCALIBRATED port"
        assert not any(line.startswith("udp_ttl") for line in lines), f"{name}: multicast stays in one segment"


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.name)
def test_rendering_twice_gives_the_same_bytes_and_what_is_written_reads_back(case: Path, tmp_path: Path) -> None:
    _, _, plan, nodes = made_from(case)
    if not nodes:
        pytest.skip("this case is refused: nothing is rendered")
    _, _, again, nodes_again = made_from(case)
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == again
    assert manifest_of(nodes, plan).to_bytes() == manifest_of(nodes_again, again).to_bytes()
    write_rendered(tmp_path / "out", nodes, plan)
    back = read_rendered(tmp_path / "out")
    for name, node in nodes.items():
        assert (back[name].files, back[name].services, back[name].masks) == (node.files, node.services, node.masks)


def test_there_are_cases_of_every_scheme_and_of_refusal() -> None:
    schemes: set[Any] = set()
    for case in CASES:
        plan = made_from(case)[2]
        schemes.add(plan.scheme if plan.usable else "refused")
    assert schemes == {*Scheme, "refused"}


def ptp4l(node: RenderedNode) -> str:
    return node.files.get("/etc/linuxptp/ptp4l.conf", "")


def arguments(node: RenderedNode, daemon: str) -> tuple[str, ...]:
    return next((service.argv for service in node.services if service.name == daemon), ())
