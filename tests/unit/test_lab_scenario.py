"""Scenario files: what they may say, what is refused and where, and the network that follows from them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankclock.cluster.load import load_cluster
from rankclock.errors import UserError
from rankclock.lab.scenario import LinkSettings, Scenario, load_scenario, parse_scenario
from rankclock.lab.topology import ports_of, settings_of, spec_of, ways_of

EXAMPLE = Path(__file__).parents[2] / "examples/lab.yaml"

HEAD = """schema: rankclock-lab/1
cluster:
  schema: rankclock-cluster/1
  name: small
  nodes:
    - {name: a, nics: [{name: eth0, address: 10.0.0.1/24, segment: lan}]}
    - {name: b, nics: [{name: eth0, address: 10.0.0.2/24, segment: lan}]}
"""


def test_example_is_the_cluster_that_the_documentation_describes() -> None:
    scenario = load_scenario(EXAMPLE)
    assert [node.name for node in scenario.cluster.nodes] == [
        "upstream", "time1", "time2", "leaf1", "leaf2", "gpu1", "gpu2", "gpu3", "gpu4", "gpu5", "gpu6",
    ]  # fmt: skip
    assert scenario.clocks["gpu5"].offset_ns == -20_000_000_000
    assert scenario.clocks["gpu2"].drift_ppb == 60_000
    assert load_cluster(EXAMPLE) == scenario.cluster


@pytest.mark.parametrize(
    ("tail", "line", "said"),
    [
        ("clock: {}\n", 8, "unknown key"),
        ("clocks:\n  a: {offset_ns: 1}\n  c: {}\n", 10, "the cluster has no node 'c'"),
        ("clocks:\n  a: {ofset_ns: 1}\n", 9, "unknown key"),
        ("clocks:\n  a: {drift_ppb: 1.0e+9}\n", 9, "less than"),
        ("links:\n  - {node: a}\n  - {node: z}\n", 10, "no node 'z'"),
        ("links:\n  - {node: a, nic: eth5}\n", 9, "no interface 'eth5'"),
        ("links:\n  - {node: a, loss: 1.5}\n", 9, "less than or equal to 1"),
        ("links:\n  - {node: a, asymmetry_ns: 10}\n", 9, "needs a delay_ns of at least 5"),
        ("events:\n  - {at_s: 1, node: a, action: step}\n", 9, "needs 'by_ns'"),
        ("events:\n  - {at_s: 1, node: a, action: explode}\n", 9, "Input should be"),
        ("events:\n  - {at_s: 1, node: a, action: link}\n", 9, "needs 'set' or 'up'"),
        ("events:\n  - {at_s: 1, node: a, action: link, nic: eth3, up: false}\n", 9, "no interface 'eth3'"),
    ],
)
def test_what_is_wrong_is_said_in_one_line_with_file_and_line(tail: str, line: int, said: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_scenario(HEAD + tail, name="x.yaml")
    assert str(caught.value).startswith(f"x.yaml:{line}: "), caught.value
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("schema: rankclock-cluster/1\n", "x.yaml:1: a lab scenario starts with 'schema: rankclock-lab/1'"),
        ("[]", "x.yaml:1: a lab scenario starts with"),
        ("a: [", "x.yaml:1: not YAML"),
        (HEAD.replace("10.0.0.2/24", "10.0.0.2/99"), "x.yaml:7: "),
    ],
)
def test_what_is_no_scenario_is_refused(text: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_scenario(text, name="x.yaml")
    assert str(caught.value).startswith(said)


def test_file_that_is_not_there_is_named() -> None:
    with pytest.raises(UserError, match="/no/such/file"):
        load_scenario("/no/such/file")


@given(
    delay_ns=st.integers(0, 10**9), share=st.floats(-1, 1), jitter_ns=st.integers(0, 10**9), loss=st.integers(0, 10**6)
)
def test_settings_of_a_path_come_back_from_the_cables_two_ways(
    delay_ns: int, share: float, jitter_ns: int, loss: int
) -> None:
    asymmetry_ns = 2 * int(delay_ns * share)  # even: each way is a whole number of ns
    settings = LinkSettings(delay_ns=delay_ns, asymmetry_ns=asymmetry_ns, jitter_ns=jitter_ns, loss=loss / 10**6)
    ways = ways_of(settings)
    assert settings_of(ways) == settings
    assert min(ways) >= 0


def test_every_node_gets_routes_to_every_segment_that_it_is_not_in() -> None:
    spec = spec_of(load_scenario(EXAMPLE), tied=True, die_with_parent=True)
    routes = {node["name"]: [line for line in node["ip"] if line.startswith("route")] for node in spec["nodes"]}
    assert routes["gpu1"] == ["route add 10.80.0.0/24 via 10.80.1.1", "route add 10.80.2.0/24 via 10.80.1.1"]
    assert routes["leaf1"] == ["route add 10.80.2.0/24 via 10.80.0.22"]
    assert routes["time1"] == ["route add 10.80.1.0/24 via 10.80.0.21", "route add 10.80.2.0/24 via 10.80.0.22"]


def test_only_paths_that_are_named_or_changed_go_through_the_cable() -> None:
    event = {"at_s": 1, "node": "b", "action": "link", "set": {"delay_ns": 5}}
    unplug = {"at_s": 1, "node": "a", "action": "link", "up": False}
    cluster = load_scenario(EXAMPLE).cluster.model_dump(mode="json", by_alias=True)
    base = parse_scenario(HEAD, name="x").cluster.model_dump(mode="json", by_alias=True)
    scenario = Scenario.model_validate({"schema": "rankclock-lab/1", "cluster": base, "events": [event, unplug]})
    assert [(port.node, port.cable) for port in ports_of(scenario)] == [("a", False), ("b", True)]
    plain = Scenario.model_validate({"schema": "rankclock-lab/1", "cluster": cluster})
    assert not any(port.cable for port in ports_of(plain))
    names = [name for port in ports_of(plain) for name in (port.port, port.inner, port.outer)]
    assert len(set(names)) == len(names)
    assert max(map(len, names)) <= 15
    assert len({port.mac for port in ports_of(plain)}) == len(ports_of(plain))
