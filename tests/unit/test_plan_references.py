"""Plans for receivers, appliances, clouds' clocks, transparent switches, and PTP with NTP behind it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rankclock.cluster import Cluster, Facts, parse_cluster
from rankclock.cluster.load import load_measured
from rankclock.cluster.measured import MeasuredPath
from rankclock.errors import UserError
from rankclock.planning import Owner, Plan, Reach, Role, Scheme, make_plan, why_not
from rankclock.planning.model import RefClockKind

RACKS = """\
schema: rankclock-cluster/1
name: racks
require: {accuracy: 5us}
SOURCES
nodes:
  - name: time[1-2]
    kind: server
    nics: [{name: eth0, address: "10.0.0.[11-12]/24", segment: spine, stamps: hardware}]
  - name: leaf[1-2]
    kind: switch
    rack: rack[1-2]
    nics:
      - {name: up, address: "10.0.0.[21-22]/24", segment: spine, stamps: hardware}
      - {name: down, address: "10.0.[1-2].1/24", segment: "rack[1-2]", stamps: hardware}
  - name: gpu[01-10]
    rack: rack[1-2]
    nics: [{name: eth0, address: "10.0.[1-2].[11-15]/24", segment: "rack[1-2]", stamps: hardware}]
"""
GPS = "sources: [{name: roof, kind: gps, node: time2}]"
LANTIME = (
    "sources: [{name: lantime, kind: appliance, node: clock1, ptp: {priority1: 128}}]",
    "nodes:\n",
    "nodes:\n  - {name: clock1, kind: source, nics: [{name: lan0, address: 10.0.0.5/24, segment: spine}]}\n",
)


def cluster(sources: str, *changes: tuple[str, str]) -> Cluster:
    text = RACKS.replace("SOURCES", sources)
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return parse_cluster(text, "racks.yaml")


def cloud(provider: str, phc: dict[str, Any] | None = None, more: str = "") -> Plan:
    text = (
        "schema: rankclock-cluster/1\nname: c\nnetwork: {kind: cloud, provider: PROVIDER}\n" + more + "nodes:\n"
        '  - {name: "vm[1-2]", nics: [{name: eth0, address: "10.0.0.[1-2]/24", segment: s}]}\n'
    )
    facts = {}
    for name in ("vm1", "vm2") if phc is not None else ():
        value = {"phc.0": {"value": phc, "why": None, "source": "test"}}
        facts[name] = Facts.from_json(
            {"schema": "rankclock-facts/1", "node": name, "collected_at_ns": 0, "facts": value}
        )
    return make_plan(parse_cluster(text.replace("PROVIDER", provider), "c.yaml"), facts)


def test_a_node_with_a_receiver_leads_and_the_other_follows_it() -> None:
    plan = make_plan(cluster(GPS))
    assert plan.scheme is Scheme.PTP_HARDWARE
    assert plan.roles["time2"].role is Role.GRANDMASTER, "its class is the better one"
    assert [clock.kind for clock in plan.roles["time2"].refclocks] == [RefClockKind.GPS]
    assert plan.roles["time1"].role is Role.BACKUP_GRANDMASTER
    assert [server.name for server in plan.roles["time1"].servers] == ["time2"], "no source of its own near by"
    assert plan.roles["time1"].tier > plan.roles["time2"].tier
    assert plan.usable
    assert not any("no source" in note for note in plan.notes)


def test_under_ntp_too_the_node_with_the_receiver_is_preferred_and_two_of_them_need_no_chain() -> None:
    plan = make_plan(cluster(GPS), protocol="ntp")
    assert plan.roles["gpu01"].servers[0].name == "time2"
    both = GPS.replace("]", ", {name: roof1, kind: gps, node: time1}]")
    plan = make_plan(cluster(both), protocol="ntp")
    assert {name: plan.roles[name].upstream for name in ("time1", "time2")} == {"time1": (), "time2": ()}
    assert [mate.name for mate in plan.roles["time2"].mates] == ["time1"]


def test_an_appliance_is_the_grandmaster_and_a_server_its_backup_at_the_same_priority1() -> None:
    sources, old, new = LANTIME
    plan = make_plan(cluster(sources, (old, new)))
    assert plan.roles["clock1"].role is Role.SOURCE
    assert plan.roles["clock1"].owner is Owner.NOBODY, "it is not configured by us"
    assert plan.roles["leaf1"].upstream == ("clock1", "time1", "time2")
    assert {plan.roles[name].priority1 for name in ("clock1", "time1", "time2")} == {128}
    assert [server.address for server in plan.roles["time1"].servers] == ["10.0.0.5"], "NTP from the appliance"
    assert plan.roles["time1"].role is Role.BACKUP_GRANDMASTER
    assert plan.usable


def test_an_appliance_that_no_switch_joins_leads_nobody_and_the_servers_do() -> None:
    sources, old, new = LANTIME
    plan = make_plan(cluster(sources, (old, new.replace("segment: spine", "segment: island"))))
    assert plan.roles["time1"].role is Role.GRANDMASTER
    assert "clock1" not in plan.roles


def test_transparent_switches_are_no_steps_and_every_node_below_follows_the_grandmaster_itself() -> None:
    plan = make_plan(cluster(GPS, ("kind: switch\n", "kind: switch\n    ptp_clock: transparent\n")))
    role = plan.roles["leaf1"]
    assert role.role is Role.TRANSPARENT_CLOCK
    assert role.owner is Owner.CHRONYD, "a transparent clock keeps no time: chronyd does, by NTP"
    assert plan.roles["gpu01"].upstream[0] == "time2"
    assert plan.roles["gpu01"].steps == 1
    hops = [hop.what for hop in plan.roles["gpu01"].budget.hops]
    assert any(what.startswith("passed on by leaf1") for what in hops), "what the switch adds is in the budget"


def test_ptp_with_ntp_behind_it_gives_the_nodes_to_chronyd_and_leaves_switches_to_phc2sys() -> None:
    plan = make_plan(cluster(GPS), protocol="hybrid")
    role = plan.roles["gpu01"]
    assert plan.ntp_backup
    assert (role.role, role.owner) == (Role.ORDINARY_CLOCK, Owner.CHRONYD)
    assert [clock.kind for clock in role.refclocks] == [RefClockKind.PTP]
    assert [server.name for server in role.servers] == ["time2", "time1"]
    assert not any(server.prefer for server in role.servers), "PTP comes first"
    assert plan.roles["leaf1"].owner is Owner.PHC2SYS
    assert plan.roles["time2"].clients, "somebody must answer by NTP"


def test_ptp_with_ntp_behind_it_needs_hardware_stamps() -> None:
    plan = make_plan(cluster(GPS, ("stamps: hardware", "stamps: software")), protocol="hybrid")
    assert plan.scheme is None
    assert "needs hardware stamps" in plan.decision.reason


def test_unicast_clients_list_the_addresses_of_the_clocks_above() -> None:
    plan = make_plan(cluster(GPS, ("nodes:\n", "ptp: {messages: unicast}\nnodes:\n")))
    assert plan.roles["leaf1"].ports[0].asks == ("10.0.0.12", "10.0.0.11")
    assert plan.roles["gpu01"].ports[0].asks == ("10.0.1.1",)
    assert plan.roles["time2"].ports[0].asks == ()


@pytest.mark.parametrize(
    ("provider", "kind", "device", "server", "watched"),
    [
        ("aws", "ena", "/dev/ptp_ena", "169.254.169.123", True),
        ("gcp", "ptp_kvm", "/dev/ptp_kvm", "metadata.google.internal", False),
        ("azure", "hyperv", "/dev/ptp_hyperv", None, False),
    ],
)
def test_a_clouds_clock_that_the_facts_show_comes_before_its_server(
    provider: str, kind: str, device: str, server: str | None, watched: bool
) -> None:
    plan = cloud(provider, {"kind": kind, "advances": True})
    role = plan.roles["vm1"]
    assert [clock.device for clock in role.refclocks] == [device]
    assert [(item.address, item.watched) for item in role.servers] == ([(server, watched)] if server else [])
    assert plan.reach is Reach.CANNOT_TELL, "nothing was measured on that provider's network"
    still = cloud(provider, {"kind": kind, "advances": False})
    assert not any(role.refclocks for role in still.roles.values()), "a clock that stands still is none"


def test_azure_without_its_clock_is_refused_and_alibaba_is_followed_by_ntp() -> None:
    assert "no NTP server is known" in cloud("azure").refused[0].reason
    assert cloud("alibaba").roles["vm1"].servers[0].address == "ntp7.cloud.aliyuncs.com"


def test_a_clouds_clock_asked_for_outside_a_cloud_is_refused() -> None:
    plan = make_plan(cluster("sources: [{name: ena, kind: cloud-phc}]"))
    assert any("these machines are no cloud's" in item.reason for item in plan.refused)
    asked = cloud("azure", more="sources: [{name: host, kind: cloud-phc, device: /dev/ptp5}]\n")
    assert [clock.device for clock in asked.roles["vm1"].refclocks] == ["/dev/ptp5"]


@pytest.mark.parametrize(
    ("sources", "words"),
    [
        ("sources: [{name: roof, kind: gps}]", "needs the node"),
        ("sources: [{name: roof, kind: gps, node: time1, gps: {pps_into: eth9}}]", "has no NIC 'eth9'"),
        ("sources: [{name: roof, kind: gps, node: time1, gps: {device: /etc/passwd}}]", "found '/etc/passwd'"),
        ("sources: [{name: a, address: 10.0.0.1, nts: true, key: 1}]", "found both"),
        ("sources: [{name: a, kind: appliance, node: time1, ptp: {}}]", "needs kind: source"),
        ("ptp: {profile: g8275.1, transport: UDPv4}", "profile g8275.1 has transport L2"),
        ("ptp: {transport: L2, messages: unicast}", "needs transport UDPv4 or UDPv6"),
        ("ntp: {nts: true, key: 3}", "found both"),
    ],
)
def test_what_makes_no_sense_is_one_line_with_its_place(sources: str, words: str) -> None:
    with pytest.raises(UserError, match=r"^racks.yaml:\d+: ") as caught:
        cluster(sources)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_receiver_at_a_switch_is_refused() -> None:
    plan = make_plan(cluster("sources: [{name: roof, kind: gps, node: leaf1}]"))
    assert "which we do not configure" in plan.refused[0].reason


@pytest.mark.parametrize("protocol", ["ntp", "ptp", "hybrid"])
def test_a_plan_with_every_kind_of_reference_reads_back_from_json(protocol: str) -> None:
    sources, old, new = LANTIME
    both = sources.replace("]", ", {name: roof, kind: gps, node: time2}, {name: far, address: 192.0.2.1, nts: true}]")
    plan = make_plan(cluster(both, (old, new)), protocol=protocol)
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


def test_why_not_names_every_obstacle_and_what_asking_for_it_gives() -> None:
    software = cluster(GPS, ("stamps: hardware", "stamps: software"))
    lines = why_not(software, "ptp")
    assert any("have no PHC" in line and "would change" in line for line in lines)
    assert lines[-1].startswith("asked for all the same: ptp-software")
    assert why_not(cluster(GPS), "ptp") == (), "the questions lead to it"
    assert "nothing is in its way" in why_not(cluster(GPS), "hybrid")[0]
    assert why_not(software, "hybrid")[-1].endswith("it needs hardware stamps at the nodes")
    few = parse_cluster(
        "schema: rankclock-cluster/1\nname: few\nnetwork: {kind: cloud, provider: aws}\n"
        'nodes: [{name: "n[1-3]", nics: [{name: e, address: "10.0.0.[1-3]/24", segment: s}]}]\n',
        "few.yaml",
    )
    assert "cloud provider" in why_not(few, "ptp")[0]


def path(
    local: str, peer: str, *, sent: int = 1_000, answered: int = 1_000, trip_ns: int | None = 40_000
) -> MeasuredPath:
    return MeasuredPath(local=local, peer=peer, sent=sent, answered=answered, round_trip_ns=trip_ns)


def test_measured_loss_weighs_more_than_the_owners_word() -> None:
    good = make_plan(cluster(GPS), paths=(path("gpu01", "gpu02"), path("gpu02", "gpu01", answered=995)))
    assert good.scheme is Scheme.PTP_HARDWARE
    stable = next(item for item in good.decision.questions if item.key == "stable")
    assert any("at most 0.5%" in text for text in stable.evidence)
    lossy = make_plan(cluster(GPS), paths=(path("gpu01", "gpu02"), path("gpu02", "gpu01", answered=900)))
    assert lossy.scheme is Scheme.NTP
    assert lossy.decision.questions[-1].key == "stable"
    dead = make_plan(cluster(GPS), paths=(path("gpu01", "gpu02", answered=0, trip_ns=None),))
    assert dead.scheme is Scheme.NTP


def test_a_measured_path_that_is_no_lan_takes_the_promise_back() -> None:
    plan = make_plan(cluster(GPS), paths=(path("gpu01", "gpu02", trip_ns=3_000_000),))
    assert plan.reach is Reach.CANNOT_TELL
    assert any("no LAN" in note for note in plan.notes)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}", "no paths in it"),
        ("[", "Expecting value"),
        ('{"paths": [3]}', "a path is an object"),
        ('{"paths": [{"local": "a", "peer": "b", "sent": -1, "answered": 0}]}', "whole numbers"),
        ('{"paths": [{"local": "", "peer": "b"}]}', "a local and a peer"),
    ],
)
def test_a_file_of_measured_paths_that_is_none_is_one_line(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "m.json").write_text(text)
    with pytest.raises(UserError) as caught:
        load_measured(tmp_path / "m.json")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    good = path("a", "b")
    (tmp_path / "m.json").write_text(json.dumps({"paths": [good.to_json()]}))
    assert load_measured(tmp_path / "m.json") == (good,)


def test_a_receiver_without_a_pulse_leads_nobody_who_has_one_and_follows_it() -> None:
    both = "sources: [{name: poor, kind: gps, node: time1, gps: {pps: null}}, {name: good, kind: gps, node: time2}]"
    plan = make_plan(cluster(both))
    assert plan.roles["time2"].role is Role.GRANDMASTER
    assert [server.name for server in plan.roles["time1"].servers] == ["time2"]
    ntp = make_plan(cluster(both), protocol="ntp")
    assert ntp.roles["gpu01"].servers[0].name == "time2"
    assert ntp.roles["time1"].upstream == ("time2",)
