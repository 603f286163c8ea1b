"""Cluster files: what they may say, and the one line that each fault in them gets."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from rankclock.cluster import NodeKind, Stamps, load_cluster, parse_cluster
from rankclock.cluster.schema import cluster_schema
from rankclock.errors import UserError

ROOT = Path(__file__).parents[2]

GOOD = """\
schema: rankclock-cluster/1
name: small
require: {accuracy: 50us}
sources:
  - {name: up, address: 10.80.0.1}
nodes:
  # comments may stand anywhere
  - name: gpu[001-032]
    rack: rack[1-4]
    nics:
      - {name: eth0, address: "10.80.[1-4].[11-18]/24", segment: "rack[1-4]", stamps: hardware}
  - name: time1
    kind: server
    nics:
      - {name: eth0, address: 10.80.0.11/24, segment: spine}
"""


def test_an_entry_with_a_range_becomes_one_node_for_each_name_with_its_own_address_rack_and_segment() -> None:
    cluster = parse_cluster(GOOD, "c.yaml")
    assert len(cluster.nodes) == 33
    tenth = cluster.node("gpu010")
    assert (tenth.rack, str(tenth.nics[0].address), tenth.nics[0].segment) == ("rack2", "10.80.2.12/24", "rack2")
    assert tenth.nics[0].stamps is Stamps.HARDWARE
    assert cluster.node("time1").kind is NodeKind.SERVER


def test_an_accuracy_is_a_duration_or_nanoseconds() -> None:
    assert parse_cluster(GOOD, "c.yaml").require.accuracy_ns == 50_000
    assert parse_cluster(GOOD.replace("accuracy: 50us", "accuracy_ns: 7"), "c.yaml").require.accuracy_ns == 7
    assert parse_cluster(GOOD.replace("50us", "0.5 ms"), "c.yaml").require.accuracy_ns == 500_000


def test_the_example_lab_is_a_cluster() -> None:
    assert len(load_cluster(ROOT / "examples/lab.yaml").nodes) == 11


def test_nodes_need_no_nics() -> None:
    text = "schema: rankclock-cluster/1\nname: bare\nnodes:\n  - name: n[1-3]\n"
    assert [node.name for node in parse_cluster(text, "c.yaml").nodes] == ["n1", "n2", "n3"]


def test_the_cluster_of_a_lab_scenario_is_taken() -> None:
    body = "\n".join("  " + line for line in GOOD.splitlines())
    text = f"schema: rankclock-lab/1\nclocks:\n  gpu001: {{drift_ppb: 5}}\ncluster:\n{body}\n"
    assert parse_cluster(text, "lab.yaml") == parse_cluster(GOOD, "c.yaml")


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("kind: server", "knd: server", 13, ["unknown key 'knd'", "did you mean 'kind'"]),
        ("segment: spine", "segment: spine, zzz: 1", 15, ["unknown key 'zzz'", "expected one of", "address"]),
        ("kind: server", "kind: servant", 13, ["nodes.1.kind", "'training', 'server'", "'servant'"]),
        ("name: time1", "name: gpu007", 12, ["node 'gpu007' is given twice"]),
        ("10.80.0.11/24", "10.80.1.11/24", 15, ["address 10.80.1.11 is given twice"]),
        ("10.80.0.11/24", "10.80.0.11/244", 15, ["nodes.1.nics.0.address", "such as 10.80.1.11/24"]),
        ("spine}", "spine}\n      - {name: eth0, address: 1.2.3.4/8, segment: s}", 16, ["NIC 'eth0'", "twice"]),
        ("up, address: 10.80.0.1", "up, node: tim1", 5, ["source 'up'", "unknown node 'tim1'"]),
        ("up, address: 10.80.0.1", "up, node: time1, address: 10.80.0.1", 5, ["no address 10.80.0.1"]),
        ("up, address: 10.80.0.1", "up", 5, ["needs an address or a node"]),
        ("up, address: 10.80.0.1", "up, address: 'a b'", 5, ["sources.0.address", "an IP address or a host name"]),
        ("up, address: 10.80.0.1", "up, address: \"x\\nserver evil\"", 5, ["sources.0.address"]),
        ("name: small", "name: Small", 2, ["name", "lower-case", "'Small'"]),
        ("name: small", "name: small\nname: big", 3, ["'name' is given twice", "line 2"]),
        ("name: time1", "name: 'time1; rm -rf /'", 12, ["nodes.1.name", "lower-case"]),
        ("50us", "50", 3, ["'50' is no span of time", "50us"]),
        ("50us", "0ns", 3, ["outside 1ns to 1000s"]),
        ("50us", "50us, accuracy_ns: 5", 3, ["given twice"]),
        ("gpu[001-032]", "gpu[032-001]", 8, ["runs backwards"]),
        ("gpu[001-032]", "gpu[001-032", 8, ["brackets"]),
        ("gpu[001-032]", "gpu[000000001-999999999]", 8, ["more than 200000"]),
        ("[11-18]", "[11-17]", 11, ["28 values for 32 nodes"]),
        ("rack: rack[1-4]", "rack: rack[1-3]", 9, ["3 values for 32 nodes", "divides"]),
        ("kind: server", "kind: server\n    upstream: [nobody]", 14, ["unknown upstream 'nobody'"]),
        ("schema: rankclock-cluster/1", "schema: rankclock-cluster/2", 1, ["expected schema rankclock-cluster/1"]),
        ("schema: rankclock-cluster/1\n", "", 1, ["expected schema rankclock-cluster/1", "None"]),
        ("name: small\n", "", 1, ["name is missing"]),
        ("nodes:\n", "nodes: []\nextra:\n", 6, []),
        ("rack: rack[1-4]", "rack: [", 11, ["not YAML"]),
        ("kind: server", "kind: !!python/object:os.system x", 13, ["tag", "not allowed"]),
        ("kind: server", "kind: *nothing", 13, ["alias *nothing"]),
        ("kind: server", "kind: \"server\x01\"", 13, ["\\x01"]),
    ],
)  # fmt: skip
def test_a_fault_is_one_line_with_file_line_and_what_to_do(old: str, new: str, line: int, words: list[str]) -> None:
    assert old in GOOD
    with pytest.raises(UserError) as caught:
        parse_cluster(GOOD.replace(old, new), "c.yaml")
    message = str(caught.value)
    assert message.startswith(f"c.yaml:{line}: "), message
    assert "\n" not in message
    for word in words:
        assert word in message


def test_aliases_that_stand_for_billions_of_values_are_refused_quickly() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    started = time.monotonic()
    with pytest.raises(UserError, match=r"c.yaml:\d+: stands for more than 1000000 values"):
        parse_cluster("schema: rankclock-cluster/1\n" + "\n".join(lines), "c.yaml")
    assert time.monotonic() - started < 2


def test_deep_nesting_is_refused_quickly() -> None:
    with pytest.raises(UserError, match="nested deeper than 16"):
        parse_cluster("schema: rankclock-cluster/1\nnodes: " + "[" * 100_000, "c.yaml")


def test_an_alias_inside_what_it_names_is_refused() -> None:
    with pytest.raises(UserError, match="alias"):
        parse_cluster("schema: rankclock-cluster/1\nnodes: &n [*n]\n", "c.yaml")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "cannot read this cluster file: No such file"),
        (lambda path: path.mkdir(), "is a folder"),
        (lambda path: path.write_bytes(b"\xff\xfe"), "not UTF-8"),
        (lambda path: path.write_text(""), "the file is empty"),
        (lambda path: path.write_text("- 1\n"), "a cluster file is a mapping"),
        (lambda path: path.write_text("a: 1\n---\nb: 2\n"), "second document"),
        (lambda path: path.write_bytes(b"#" * 10_000_000), "larger than 2097152 bytes"),
        (lambda path: path.write_text("schema: rankclock-lab/1\n"), "has no cluster"),
    ],
)
def test_a_file_that_is_no_cluster_file_is_one_line(tmp_path: Path, make: object, words: str) -> None:
    path = tmp_path / "c.yaml"
    make(path)  # type: ignore[operator]
    with pytest.raises(UserError) as caught:
        load_cluster(path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_ten_thousand_nodes_load_in_seconds() -> None:
    text = GOOD.replace("gpu[001-032]", "gpu[00001-10000]").replace("rack[1-4]", "rack[001-400]")
    text = text.replace("10.80.[1-4].[11-18]", "10.[80-119].[1-250].2")
    started = time.monotonic()
    assert len(parse_cluster(text, "c.yaml").nodes) == 10_001
    assert time.monotonic() - started < 5


def test_the_published_schema_is_the_one_that_the_code_makes() -> None:
    made = subprocess.run(
        [sys.executable, "-m", "rankclock.cluster.schema"], capture_output=True, text=True, check=True
    )
    published = ROOT / "docs/reference/cluster.schema.json"
    assert made.stdout == cluster_schema() == published.read_text(encoding="utf-8"), "run the command in its docstring"
