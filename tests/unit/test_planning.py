"""The decision and the plan: each question, each refusal, and that unknown is never a yes."""

from __future__ import annotations

from typing import Any

import pytest

from rankclock.cluster import Cluster, Facts, parse_cluster
from rankclock.planning import (
    Answer,
    Owner,
    Plan,
    PortSide,
    Reach,
    Role,
    Scheme,
    Settings,
    decision_text,
    make_plan,
    plan_text,
)

HARDWARE = {
    "tx_hardware": True, "rx_hardware": True, "raw_hardware": True, "tx_software": True, "rx_software": True,
    "phc_index": 0, "link_type": "ethernet", "driver": "ice", "virtual": False,
}  # fmt: skip
SOFTWARE = HARDWARE | {"tx_hardware": False, "rx_hardware": False, "raw_hardware": False, "phc_index": -1}
UNSEEN = dict.fromkeys(HARDWARE)

FLAT = """\
schema: rankclock-cluster/1
name: flat
require: {accuracy: 50us}
sources:
  - {name: up, address: 10.0.0.1}
nodes:
  - {name: "time[1-2]", kind: server, nics: [{name: eth0, address: "10.0.0.[11-12]/24", segment: lan}]}
  - {name: "gpu[01-10]", nics: [{name: eth0, address: "10.0.0.[21-30]/24", segment: lan}]}
"""

RACKS = """\
schema: rankclock-cluster/1
name: racks
require: {accuracy: 5us}
sources:
  - {name: up, address: 10.0.0.1}
nodes:
  - {name: "time[1-2]", kind: server, nics: [{name: eth0, address: "10.0.0.[11-12]/24", segment: spine}]}
  - name: leaf[1-2]
    kind: switch
    rack: rack[1-2]
    nics:
      - {name: up, address: "10.0.0.[21-22]/24", segment: spine}
      - {name: down, address: "10.0.[1-2].1/24", segment: "rack[1-2]"}
  - name: gpu[01-10]
    rack: rack[1-2]
    nics: [{name: eth0, address: "10.0.[1-2].[11-15]/24", segment: "rack[1-2]"}]
"""


def cluster(text: str, *changes: tuple[str, str]) -> Cluster:
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return parse_cluster(text, "c.yaml")


def facts(nodes: Cluster, nic: dict[str, Any], **of_some: dict[str, Any]) -> dict[str, Facts]:
    """The same NIC everywhere; `of_some` gives single nodes further facts, over the common ones."""
    found = {}
    for node in nodes.nodes:
        values: dict[str, Any] = {f"nic.{item.name}": nic for item in node.nics}
        values["virtualisation"] = {"kind": "none", "container": "none", "cloud": "none"}
        values |= of_some.get(node.name, {})
        wrapped = {key: {"value": value, "why": None, "source": "test"} for key, value in values.items()}
        found[node.name] = Facts.from_json(
            {"schema": "rankclock-facts/1", "node": node.name, "collected_at_ns": 0, "facts": wrapped}
        )
    return found


def last(plan: Plan) -> tuple[str, Answer]:
    question = plan.decision.questions[-1]
    return question.key, question.answer


def refusals(plan: Plan) -> str:
    return "\n".join(f"{item.subject}: {item.reason}" for item in plan.refused)


# ---- the decision ----


def test_a_small_cluster_uses_ntp_with_a_local_server() -> None:
    small = cluster(FLAT, ("gpu[01-10]", "gpu[01-07]"), ("[21-30]", "[21-27]"))
    plan = make_plan(small, facts(small, HARDWARE))
    assert plan.scheme is Scheme.NTP
    assert last(plan) == ("small", Answer.YES)
    assert plan.decision.questions[-1].threshold == "small_cluster_nodes = 8"


def test_a_small_cluster_that_needs_more_than_ntp_gives_goes_on_to_ptp() -> None:
    small = cluster(FLAT, ("gpu[01-10]", "gpu[01-07]"), ("[21-30]", "[21-27]"), ("50us", "5us"))
    plan = make_plan(small, facts(small, HARDWARE))
    assert plan.scheme is Scheme.PTP_HARDWARE


def test_an_unstable_network_keeps_ntp() -> None:
    shaky = cluster(FLAT, ("sources:", "network: {stable: false}\nsources:"))
    plan = make_plan(shaky, facts(shaky, HARDWARE))
    assert (plan.scheme, last(plan)) == (Scheme.NTP, ("stable", Answer.NO))


def test_a_millisecond_is_tuned_ntp() -> None:
    slow = cluster(FLAT, ("50us", "1ms"))
    plan = make_plan(slow, facts(slow, HARDWARE))
    assert (plan.scheme, last(plan)) == (Scheme.NTP, ("need", Answer.NO))


def test_hardware_stamps_everywhere_and_a_path_lead_to_ptp() -> None:
    racks = cluster(RACKS)
    plan = make_plan(racks, facts(racks, HARDWARE))
    assert (plan.scheme, plan.decision.chosen_by) == (Scheme.PTP_HARDWARE, "tree")
    assert [question.answer for question in plan.decision.questions[-3:]] == [Answer.YES] * 3
    assert plan.usable


@pytest.mark.parametrize(("nic", "answer"), [(SOFTWARE, Answer.NO), (UNSEEN, Answer.UNKNOWN)])
def test_one_nic_without_hardware_stamps_or_unseen_keeps_chrony_and_says_which(
    nic: dict[str, Any], answer: Answer
) -> None:
    flat = cluster(FLAT)
    plan = make_plan(flat, facts(flat, HARDWARE, gpu04={"nic.eth0": nic | {"link_type": "ethernet"}}))
    assert (plan.scheme, last(plan)) == (Scheme.NTP, ("hardware", answer))
    assert "gpu04" in plan.decision.reason


def test_without_facts_and_declarations_hardware_is_unknown_and_chrony_is_chosen() -> None:
    plan = make_plan(cluster(FLAT))
    assert (plan.scheme, last(plan)) == (Scheme.NTP, ("hardware", Answer.UNKNOWN))


@pytest.mark.parametrize(
    "phc", [{"max_adj_ppb": 0}, {"max_adj_ppb": 100, "advances": False}], ids=["cannot be steered", "stands still"]
)
def test_a_phc_that_cannot_be_steered_or_stands_still_is_none(phc: dict[str, Any]) -> None:
    flat = cluster(FLAT)
    plan = make_plan(flat, facts(flat, HARDWARE, gpu01={"phc.0": phc}))
    assert last(plan) == ("hardware", Answer.NO)


def test_infiniband_alone_carries_no_ptp_and_an_ethernet_port_beside_it_does() -> None:
    flat = cluster(FLAT)
    only_ib = make_plan(flat, facts(flat, HARDWARE | {"link_type": "infiniband"}))
    assert (only_ib.scheme, last(only_ib)) == (Scheme.NTP, ("ethernet", Answer.NO))
    ib0 = '{name: ib0, address: "10.9.0.[21-30]/24", segment: ib}, '
    both = cluster(FLAT, ('gpu[01-10]", nics: [', f'gpu[01-10]", nics: [{ib0}'))
    with_ib = facts(
        both, HARDWARE, **{f"gpu{n:02d}": {"nic.ib0": HARDWARE | {"link_type": "infiniband"}} for n in range(1, 11)}
    )
    plan = make_plan(both, with_ib)
    assert plan.scheme is Scheme.PTP_HARDWARE
    assert plan.roles["gpu01"].ports[0].nic == "eth0"


def test_an_infiniband_fabric_without_facts_is_not_taken_for_ethernet() -> None:
    plan = make_plan(cluster(FLAT, ("sources:", "network: {kind: infiniband}\nsources:")))
    assert last(plan) == ("ethernet", Answer.UNKNOWN)


def test_a_data_nic_never_carries_time_and_a_time_nic_is_preferred() -> None:
    text = FLAT.replace(
        'nics: [{name: eth0, address: "10.0.0.[21-30]/24", segment: lan}]',
        'nics: [{name: eth0, address: "10.0.0.[21-30]/24", segment: lan}, '
        '{name: eth1, address: "10.0.0.[31-40]/24", segment: lan, use: time}, '
        '{name: eth2, address: "10.0.0.[41-50]/24", segment: lan, use: data}]',
    )
    many = cluster(text)
    assert make_plan(many, facts(many, HARDWARE)).roles["gpu01"].ports[0].nic == "eth1"
    only_data = cluster(FLAT, ('[21-30]/24", segment: lan}', '[21-30]/24", segment: lan, use: data}'))
    assert make_plan(only_data, facts(only_data, HARDWARE)).scheme is Scheme.NTP


def test_a_cloud_uses_the_providers_time_whatever_its_nics_say() -> None:
    flat = cluster(FLAT)
    aws = {"virtualisation": {"kind": "kvm", "container": "none", "cloud": "aws"}}
    plan = make_plan(flat, facts(flat, HARDWARE, **{node.name: aws for node in flat.nodes}))
    assert (plan.scheme, last(plan)) == (Scheme.NTP, ("cloud", Answer.YES))
    assert {role.upstream for role in plan.roles.values()} == {("169.254.169.123",)}
    assert plan.reach is Reach.CANNOT_TELL
    assert all(server.smeared for role in plan.roles.values() for server in role.servers)


def test_a_cloud_of_an_unknown_provider_is_refused() -> None:
    nowhere = cluster(FLAT, ("sources:\n  - {name: up, address: 10.0.0.1}", "network: {kind: cloud}"))
    plan = make_plan(nowhere)
    assert "the provider is not known" in refusals(plan)
    assert not plan.usable


def test_containers_that_may_not_set_a_clock_are_no_nodes() -> None:
    flat = cluster(FLAT)
    pod = {"virtualisation": {"kind": "none", "container": "kubernetes", "cloud": "none"}, "cap_sys_time": False}
    plan = make_plan(flat, facts(flat, HARDWARE, gpu03=pod))
    assert plan.decision.excluded == ("gpu03",)
    assert "gpu03" not in plan.roles
    assert "gpu03" in decision_text(plan.decision)
    in_lab = make_plan(flat, facts(flat, HARDWARE, gpu03=pod), settings=Settings(clocks_are_virtual=True))
    assert "gpu03" in in_lab.roles


def test_a_probe_without_root_does_not_make_a_machine_a_container() -> None:
    flat = cluster(FLAT)
    unknown = {"virtualisation": {"kind": "none", "container": None, "cloud": None}, "cap_sys_time": False}
    assert "gpu03" in make_plan(flat, facts(flat, HARDWARE, gpu03=unknown)).roles


# ---- what the owner asks for ----


def test_ptp_asked_for_with_software_stamps_gives_software_ptp_and_says_what_the_questions_lead_to() -> None:
    flat = cluster(FLAT)
    plan = make_plan(flat, facts(flat, SOFTWARE), "ptp")
    assert (plan.scheme, plan.decision.tree_scheme) == (Scheme.PTP_SOFTWARE, Scheme.NTP)
    assert "the questions alone lead to ntp" in plan.decision.reason
    assert plan.roles["gpu01"].owner is Owner.PTP4L


def test_ptp_asked_for_without_facts_is_refused_not_guessed() -> None:
    plan = make_plan(cluster(FLAT), protocol="ptp")
    assert plan.scheme is None
    assert not plan.usable
    assert "stamps known to be there" in refusals(plan)


def test_nodes_without_stamps_follow_the_grandmasters_chronyd() -> None:
    racks = cluster(RACKS, ("5us", "100us"))
    plan = make_plan(racks, facts(racks, HARDWARE, gpu10={"nic.eth0": SOFTWARE}), "ptp")
    role = plan.roles["gpu10"]
    assert (role.role, role.owner, role.upstream) == (Role.NTP_CLIENT, Owner.CHRONYD, ("time1", "time2"))
    assert plan.roles["time1"].clients
    assert plan.usable


# ---- roles ----


def test_ptp_roles_follow_the_tree_of_segments() -> None:
    racks = cluster(RACKS)
    plan = make_plan(racks, facts(racks, HARDWARE))
    roles = plan.roles
    assert [roles[name].role for name in ("time1", "time2", "leaf1", "gpu01")] == [
        Role.GRANDMASTER, Role.BACKUP_GRANDMASTER, Role.BOUNDARY_CLOCK, Role.ORDINARY_CLOCK,
    ]  # fmt: skip
    assert roles["time1"].priority1 == roles["time2"].priority1, "quality decides before order"
    assert roles["time1"].priority2 < roles["time2"].priority2  # type: ignore[operator]
    assert (roles["leaf1"].steps, roles["gpu01"].steps) == (1, 2)
    assert roles["gpu01"].upstream == ("leaf1",)
    assert [(port.nic, port.side) for port in roles["leaf1"].ports] == [("up", PortSide.UP), ("down", PortSide.DOWN)]
    assert roles["time1"].tier < roles["leaf1"].tier < roles["gpu01"].tier


def test_a_host_with_ports_in_two_segments_joins_a_rack_that_no_switch_joins() -> None:
    text = RACKS.replace("kind: switch", "kind: training")
    racks = cluster(text)
    plan = make_plan(racks, facts(racks, HARDWARE))
    assert plan.roles["leaf1"].role is Role.BOUNDARY_CLOCK
    assert plan.scheme is Scheme.PTP_HARDWARE


def test_without_servers_two_nodes_of_different_racks_serve() -> None:
    text = FLAT.replace("kind: server, ", "").replace("time[1-2]\"", "time[1-2]\", rack: \"r[1-2]\"")  # fmt: skip
    plan = make_plan(cluster(text))
    servers = [role.node for role in plan.roles.values() if role.role is Role.NTP_SERVER]
    assert servers == ["time1", "time2"]
    assert "no node has kind: server" in plan.roles["time1"].why


def test_all_clients_prefer_the_same_server_and_the_second_falls_back_to_the_first() -> None:
    plan = make_plan(cluster(FLAT))
    clients = [role for role in plan.roles.values() if role.role is Role.NTP_CLIENT]
    assert len(clients) == 10
    assert {tuple((server.name, server.prefer) for server in role.servers) for role in clients} == {
        (("time1", True), ("time2", False))
    }
    assert [mate.name for mate in plan.roles["time1"].mates] == []
    assert [mate.name for mate in plan.roles["time2"].mates] == ["time1"], "one way only: no circle without a source"
    assert (plan.roles["time1"].local_stratum, plan.roles["time2"].local_stratum) == (10, 12)


def test_servers_answer_each_other_even_where_nobody_else_asks() -> None:
    pair = cluster(FLAT, ('gpu[01-10]", nics', 'gpu[01-10]", kind: source, nics'))
    plan = make_plan(pair)
    assert {role.role for role in plan.roles.values()} == {Role.NTP_SERVER}
    assert all(role.clients for role in plan.roles.values())


@pytest.mark.parametrize("sources", ["sources: [{name: up, address: ntp.example.org}]", "sources: []"])
@pytest.mark.parametrize("protocol", ["ntp", "ptp"])
def test_far_from_any_source_the_second_server_follows_the_first(sources: str, protocol: str) -> None:
    far = cluster(FLAT, ("sources:\n  - {name: up, address: 10.0.0.1}", sources))
    plan = make_plan(far, facts(far, HARDWARE), protocol)
    assert plan.roles["time2"].upstream[0] == "time1"
    assert plan.roles["time2"].budget.in_cluster_ns is not None
    assert plan.roles["time1"].budget.total_ns is None, "nobody knows how far it is from UTC"
    assert plan.roles["time1"].clients, "the second asks it"


def test_an_upstream_of_ones_own_makes_a_chain_with_deeper_tiers() -> None:
    chain = cluster(
        FLAT,
        ('- {name: "gpu[01-10]", ', '- {name: relay, upstream: [time1]}\n  - {name: "gpu[01-10]", upstream: [relay], '),
    )
    plan = make_plan(chain, protocol="ntp")
    assert plan.roles["relay"].role is Role.NTP_SERVER
    assert [plan.roles[name].tier for name in ("time1", "relay", "gpu01")] == [0, 1, 2]
    hops = plan.roles["gpu01"].budget.hops
    assert [hop.what for hop in hops] == ["up to time1 by NTP", "time1 to relay by NTP", "relay to gpu01 by NTP"]


def test_two_programs_that_steer_one_clock_today_are_pointed_out() -> None:
    flat = cluster(FLAT)
    two = {"realtime_owner": {"owners": ["chronyd", "systemd-timesyncd"], "evidence": []}}
    plan = make_plan(flat, facts(flat, HARDWARE, gpu02=two, gpu03=two))
    assert "gpu[02-03]: chronyd and systemd-timesyncd steer the clock against each other now" in plan.notes


# ---- budgets ----


def test_a_budget_is_the_sum_of_its_hops_and_the_common_ones_do_not_part_the_nodes() -> None:
    racks = cluster(RACKS)
    plan = make_plan(racks, facts(racks, HARDWARE))
    budget = plan.roles["gpu01"].budget
    assert budget.total_ns == sum(hop.bound_ns or 0 for hop in budget.hops)
    assert budget.in_cluster_ns == sum(hop.bound_ns or 0 for hop in budget.hops if not hop.common)
    assert plan.worst_pair_ns == 2 * budget.in_cluster_ns
    assert all(hop.source for hop in budget.hops)


def test_an_accuracy_between_the_typical_error_and_the_bound_cannot_be_told_beforehand() -> None:
    racks = cluster(RACKS, ("5us", "1us"))
    plan = make_plan(racks, facts(racks, HARDWARE))
    assert plan.worst_pair_typical_ns is not None
    assert plan.worst_pair_ns is not None
    assert plan.worst_pair_typical_ns < 1_000 < plan.worst_pair_ns
    assert plan.reach is Reach.CANNOT_TELL
    assert plan.usable


def test_an_accuracy_below_the_typical_error_is_refused() -> None:
    racks = cluster(RACKS, ("5us", "100ns"))
    plan = make_plan(racks, facts(racks, HARDWARE))
    assert plan.reach is Reach.NO
    assert "two nodes within 100 ns are asked for" in refusals(plan)
    assert not plan.usable


# ---- refusals ----


def test_a_rack_without_a_path_is_refused_once_and_a_router_outside_the_file_helps_ntp() -> None:
    cut = cluster(RACKS, ("kind: switch", "kind: training"), ("5us", "1ms"))
    plan = make_plan(cut, protocol="ntp")
    assert [item.subject for item in plan.refused] == ["rack1", "rack2"]
    assert plan.reach is Reach.NO
    routed = cluster(
        RACKS, ("kind: switch", "kind: training"), ("5us", "1ms"), ("sources:", "network: {routed: true}\nsources:")
    )
    assert make_plan(routed, protocol="ntp").usable


def test_upstreams_in_a_circle_are_refused_with_the_circle() -> None:
    circle = cluster(FLAT, ("kind: server,", 'kind: server, upstream: ["gpu01"],'))
    plan = make_plan(circle, protocol="ntp")
    assert "time1 -> gpu01 -> time1" in refusals(plan)
    assert plan.roles == {}


def test_a_source_that_is_a_node_of_the_plan_is_a_circle_too() -> None:
    plan = make_plan(cluster(FLAT, ("address: 10.0.0.1}", "address: 10.0.0.11}")))
    assert "it is node time1 of this plan" in refusals(plan)
    assert not plan.usable


def test_smeared_and_unsmeared_sources_are_never_mixed() -> None:
    mixed = "address: 10.0.0.1, smeared: false}\n  - {name: google, address: time.google.com}"
    plan = make_plan(cluster(FLAT, ("address: 10.0.0.1}", mixed)))
    assert "spread leap seconds" in refusals(plan)
    assert not plan.usable


def test_a_nic_that_the_facts_do_not_show_is_refused_with_those_that_they_show() -> None:
    flat = cluster(FLAT)
    seen = facts(flat, HARDWARE)
    wrong = cluster(FLAT, ('gpu[01-10]", nics: [{name: eth0', 'gpu[01-10]", nics: [{name: eth7'))
    plan = make_plan(wrong, seen)
    assert "eth7: no such interface among those that were seen (eth0)" in refusals(plan)
    assert not plan.usable


def test_a_list_of_containers_only_is_refused() -> None:
    flat = cluster(FLAT)
    pod = {"virtualisation": {"kind": "none", "container": "docker", "cloud": "none"}, "cap_sys_time": False}
    plan = make_plan(flat, facts(flat, HARDWARE, **{node.name: pod for node in flat.nodes}))
    assert "no node is left to plan" in refusals(plan)


def test_one_node_is_a_plan_of_its_own() -> None:
    alone = parse_cluster("schema: rankclock-cluster/1\nname: one\nnodes: [{name: a}]\n", "c.yaml")
    plan = make_plan(alone)
    assert plan.usable
    assert plan.roles["a"].servers == ()
    assert plan_text(plan).startswith("one: ntp")


@pytest.mark.parametrize("protocol", ["ntp", None])
def test_nodes_of_which_only_names_are_known_are_served_by_name_and_get_no_figures(protocol: str | None) -> None:
    text = "schema: rankclock-cluster/1\nname: c\nnodes: [{name: 'gpu[1-9]'}]\n"
    plan = make_plan(parse_cluster(text, "c.yaml"), protocol=protocol)
    server = plan.roles["gpu1"]
    assert server.clients == ("0.0.0.0/0", "::/0"), "a server that lets nobody ask serves nobody"
    assert server.local_stratum is not None
    assert plan.roles["gpu3"].servers[0].address == "gpu1"
    assert plan.reach is Reach.CANNOT_TELL, "nothing is known of the network"
    assert any("no NICs in the file" in note for note in plan.notes)


def test_every_node_that_others_follow_lets_them_ask() -> None:
    for text in (FLAT, RACKS, "schema: rankclock-cluster/1\nname: c\nnodes: [{name: 'gpu[1-9]'}]\n"):
        plan = make_plan(parse_cluster(text, "c.yaml"), protocol="ntp")
        asked = {server.name for role in plan.roles.values() for server in (*role.servers, *role.mates)}
        for name in asked & plan.roles.keys():
            assert plan.roles[name].clients, name
