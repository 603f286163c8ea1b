"""Lists of machines as cluster files: what is written loads and plans; bad lists are one line; people's words stay."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlparse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankclock.cluster import Cluster, parse_cluster
from rankclock.cluster.hostlist import fold
from rankclock.cluster.model import NetworkKind, NodeKind, Provider
from rankclock.errors import HostError, PeerError, UserError
from rankclock.fleet.inventory import Inventory, ansible, cluster_text, hosts, kubernetes, launcher, merged, slurm
from rankclock.fleet.inventory.found import Machine, collected
from rankclock.planning import make_plan

CAPTURED = Path(__file__).parents[1] / "captured/inventory"


def written(inventory: Inventory, **options: Any) -> Cluster:
    """The cluster that the written file describes; it can be planned."""
    cluster = parse_cluster(cluster_text(inventory, name="c", **options), "c.yaml")
    assert make_plan(cluster, protocol="ntp").roles
    return cluster


def run(*arguments: str, stdin: str | bytes = "") -> subprocess.CompletedProcess[str]:
    data = stdin.encode() if isinstance(stdin, str) else stdin
    argv = [sys.executable, "-m", "rankclock", "inventory", *arguments]
    done = subprocess.run(argv, input=data, capture_output=True, timeout=60, check=False)
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


# ---- Slurm ----


def from_slurm(**options: Any) -> Inventory:
    racks = slurm.racks_of((CAPTURED / "slurm-22.05-topology.txt").read_text())
    return slurm.inventory_of((CAPTURED / "slurm-22.05-nodes.txt").read_text(), racks=racks, **options)


def test_slurms_nodes_get_their_leaf_switch_as_rack_and_their_addresses() -> None:
    cluster = written(from_slurm(), nic="eth0")
    assert len(cluster.nodes) == 18
    assert cluster.node("gpu009").rack == "leaf2"
    assert str(cluster.node("gpu009").nics[0].address) == "10.20.1.1/24"
    assert cluster.node("gpu009").nics[0].segment != cluster.node("gpu008").nics[0].segment


def test_a_reason_with_equal_signs_is_no_state_and_a_drained_node_is_a_machine() -> None:
    drained = next(machine for machine in from_slurm().machines if machine.name == "gpu003")
    assert drained.note == "Slurm says DRAIN"
    assert "# gpu003: Slurm says DRAIN" in cluster_text(from_slurm(), name="c")


def test_partition_and_features_choose_and_place() -> None:
    found = from_slurm(partition="train", rack_feature=r"rack\d+")
    assert len(found.machines) == 16
    assert {machine.rack for machine in found.machines} == {"rack1", "rack2"}
    assert found.left_out == {"cpu1": "not in partition train", "cpu2": "not in partition train"}


def test_blocks_of_scontrol_are_read_as_its_single_lines() -> None:
    lines = (CAPTURED / "slurm-22.05-nodes.txt").read_text()
    blocks = lines.replace(" CPUAlloc", "\n   CPUAlloc").replace(" State=", "\n   State=").replace("\nNode", "\n\nNode")
    assert [machine.name for machine in slurm.inventory_of(blocks).machines] == [
        machine.name for machine in slurm.inventory_of(lines).machines
    ]


def test_nodes_that_do_not_exist_yet_are_left_out() -> None:
    text = "NodeName=a State=IDLE\nNodeName=b State=IDLE+CLOUD+POWERED_DOWN\nNodeName=c State=FUTURE\n"
    found = slurm.inventory_of(text)
    assert [machine.name for machine in found.machines] == ["a"]
    assert set(found.left_out) == {"b", "c"}


# ---- host lists ----


def test_a_host_list_may_be_ranges_a_hostfile_or_etc_hosts() -> None:
    text = "# all\ngpu[001-003],head1\nn1 slots=8 max_slots=9\nn2:8\n10.0.0.9 time1 time1.local\n127.0.0.1 localhost\n"
    found = hosts.inventory_of(text + "::1 ip6-localhost\nfe80::1%eth0 x1\n")
    names = ["gpu001", "gpu002", "gpu003", "head1", "n1", "n2", "time1", "x1"]
    assert [machine.name for machine in found.machines] == names
    assert found.machines[6].address == "10.0.0.9"
    written(found)


@given(st.lists(st.from_regex(r"[a-z]{1,3}[0-9]{0,3}", fullmatch=True), min_size=1, max_size=60, unique=True))
def test_every_list_of_names_comes_out_of_the_cluster_file_again(names: list[str]) -> None:
    machines = [Machine(name=name, where="x") for name in names]
    cluster = parse_cluster(cluster_text(collected("x", machines), name="c"), "c.yaml")
    assert [node.name for node in cluster.nodes] == names


@given(st.lists(st.integers(1, 60_000), min_size=1, max_size=40, unique=True))
def test_every_list_of_addresses_comes_out_of_the_cluster_file_again(numbers: list[int]) -> None:
    addresses = [f"10.9.{number >> 8}.{number & 255}" for number in numbers]
    machines = [Machine(name=f"n{i:03}", where="x", address=address) for i, address in enumerate(addresses)]
    cluster = parse_cluster(cluster_text(collected("x", machines), name="c", nic="e0", prefix=16), "c.yaml")
    assert [str(node.nics[0].address.ip) for node in cluster.nodes] == addresses


@pytest.mark.parametrize(
    ("text", "where", "words"),
    [
        ("gpu1\nGPU2\n", "h:2", "no host name"),
        ("a\n\na\n", "h:3", "given twice, first at h:1"),
        ("a b[1-\n", "h:1", "brackets"),
        ("$(reboot)\n", "h:1", "no host name"),
        ("a\nb;rm\n", "h:2", "no host name"),
        ("n[1-999999999]\n", "h:1", "more than"),
        ("# nothing\n", "the host list h", "no machine"),
        ("10.0.0.1 a\n10.0.0.1 b\n", "h:2", "has the address 10.0.0.1 of a"),
    ],
)
def test_a_bad_host_list_is_one_line_with_its_place(text: str, where: str, words: str) -> None:
    with pytest.raises(UserError) as caught:
        hosts.inventory_of(text, name="h")
    assert str(caught.value).startswith(f"{where}: ")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


# ---- Kubernetes ----


def node(name: str, address: str, *, gpus: str | None = "8", **more: Any) -> dict[str, Any]:
    """A node object as Kubernetes 1.30 answers it, cut to what is read and some of what is not."""
    ready = {"type": "Ready", "status": more.get("ready", "True")}
    labels = {"topology.kubernetes.io/zone": "Zone A", "kubernetes.io/os": "linux"} | more.get("labels", {})
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {"providerID": more.get("provider", ""), "unschedulable": more.get("cordoned")},
        "status": {
            "capacity": {"cpu": "192", "pods": "110"} | ({"nvidia.com/gpu": gpus} if gpus else {}),
            "addresses": [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}],
            "conditions": [{"type": "MemoryPressure", "status": "False"}, ready],
        },
    }


NODES = [
    node("cp-1", "10.3.0.1", gpus=None),
    node("gpu-1", "10.3.0.11", labels={"topology.kubernetes.io/rack": "R/07"}),
    node("gpu-2", "10.3.0.12", labels={"topology.kubernetes.io/rack": "R/07"}, cordoned=True),
    node("gpu-3", "10.3.0.13", ready="Unknown"),
    node("gpu-4", "10.3.0.14", gpus="0"),
]


def test_nodes_with_gpus_are_the_training_nodes_and_labels_their_racks() -> None:
    found = kubernetes.inventory_of(json.dumps({"kind": "List", "items": NODES}))
    assert [(machine.name, machine.rack) for machine in found.machines] == [
        ("gpu-1", "r-07"), ("gpu-2", "r-07"), ("gpu-3", "zone-a"),
    ]  # fmt: skip
    assert found.machines[1].note == "Kubernetes says cordoned"
    assert found.machines[2].note == "Kubernetes says not ready"
    assert set(found.left_out) == {"cp-1", "gpu-4"}
    assert len(kubernetes.inventory_of(NODES, everything=True).machines) == 5
    written(found, nic="eth0")


def test_a_providers_nodes_make_a_cloud_cluster() -> None:
    found = kubernetes.inventory_of([node("ip-1", "10.0.0.1", provider="aws:///eu-1a/i-1")])
    cluster = parse_cluster(cluster_text(found, name="c"), "c.yaml")
    assert (cluster.network.kind, cluster.network.provider) == (NetworkKind.CLOUD, Provider.AWS)


class _Api(BaseHTTPRequestHandler):
    """Answers as the API server does: pages of two with continue tokens, or an error."""

    answer: int = 200

    def do_GET(self) -> None:
        query = parse_qs(urlparse(self.path).query)
        start = int(query.get("continue", ["0"])[0])
        more = {"continue": str(start + 2)} if start + 2 < len(NODES) else {}
        body = {"kind": "NodeList", "apiVersion": "v1", "metadata": more, "items": NODES[start : start + 2]}
        if self.answer != 200:
            body = {"kind": "Status", "status": "Failure", "message": "nodes is forbidden", "code": self.answer}
        data = json.dumps(body).encode() if self.answer != 299 else b"<html>not the API</html>"
        self.send_response(200 if self.answer == 299 else self.answer)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def api(tmp_path: Path) -> Iterator[tuple[type[_Api], Path]]:
    """A server on loopback and a kubeconfig that leads to it."""
    handler = type("Api", (_Api,), {})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    Thread(target=server.serve_forever, daemon=True).start()
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "lab",
        "clusters": [{"name": "lab", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
        "users": [{"name": "me", "user": {"token": "x"}}],
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "me"}}],
    }  # fmt: skip
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(config))
    yield handler, path
    server.shutdown()
    server.server_close()


def test_the_api_is_read_page_by_page(api: tuple[type[_Api], Path]) -> None:
    assert kubernetes.ask(kubeconfig=str(api[1])) == NODES
    assert kubernetes.ask("lab", str(api[1]), selector="gpu=yes") == NODES


@pytest.mark.parametrize(("answer", "words"), [(401, "401"), (403, "may this user list nodes"), (500, "500")])
def test_an_api_that_refuses_is_one_line(api: tuple[type[_Api], Path], answer: int, words: str) -> None:
    api[0].answer = answer
    with pytest.raises(PeerError, match=words):
        kubernetes.ask(kubeconfig=str(api[1]))


def test_an_api_that_is_none_or_not_there_is_one_line(api: tuple[type[_Api], Path], tmp_path: Path) -> None:
    api[0].answer = 299
    with pytest.raises(UserError, match="not JSON"):
        kubernetes.ask(kubeconfig=str(api[1]))
    with pytest.raises(HostError, match="no configuration"):
        kubernetes.ask(kubeconfig=str(tmp_path / "nothing"))
    gone = tmp_path / "gone"
    gone.write_text(api[1].read_text().replace("127.0.0.1:", "127.0.0.1:1"))
    with pytest.raises((PeerError, HostError)):
        kubernetes.ask(kubeconfig=str(gone))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not JSON"),
        ("[1]", "expected a list of nodes"),
        ('{"kind": "PodList"}', "found an object of kind 'PodList'"),
        ('{"items": [5]}', "item 1: expected an object"),
        ('{"items": [{"metadata": {"labels": 3}}]}', "item 1: expected an object"),
        ('{"items": [{"metadata": {"name": "A;b"}}]}', "no host name"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_what_is_no_list_of_nodes_is_one_line(text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        kubernetes.inventory_of(text)


# ---- Ansible ----

INI = """\
[time]
time[1:2]

[rack1]
gpu[01:04]
[rack2]
gpu[05:08]
[gpu:children]
rack1
rack2
[gpu:vars]
unused=1
[time:vars]
also=unused
"""


def test_an_inventory_is_read_by_ansibles_own_parser(tmp_path: Path) -> None:
    path = tmp_path / "hosts.ini"
    path.write_text(INI + "[rack1:vars]\n[all:vars]\n")
    (tmp_path / "host_vars").mkdir()
    (tmp_path / "host_vars/gpu01.yml").write_text("ansible_host: 10.4.0.1\n")
    found = ansible.inventory_of(ansible.ask(path), servers="time", name="hosts.ini")
    cluster = written(found)
    assert [node.name for node in cluster.nodes if node.kind is NodeKind.SERVER] == ["time1", "time2"]
    assert cluster.node("gpu05").rack == "rack2"
    assert next(machine for machine in found.machines if machine.name == "gpu01").address == "10.4.0.1"
    assert len(ansible.inventory_of(ansible.ask(path), group="rack1").machines) == 4


def test_a_circle_of_groups_ends_and_unknown_groups_are_named() -> None:
    listed = json.dumps(
        {"all": {"children": ["a"]}, "a": {"children": ["b"], "hosts": ["x"]}, "b": {"children": ["a"]}}
    )
    assert [machine.name for machine in ansible.inventory_of(listed).machines] == ["x"]
    with pytest.raises(UserError, match="no group 'gpu': expected one of a, all, b"):
        ansible.inventory_of(listed, group="gpu")
    with pytest.raises(UserError, match="no regular expression"):
        ansible.inventory_of(listed, racks="(")
    with pytest.raises(UserError, match="expected groups"):
        ansible.inventory_of('{"a": 3}')


# ---- a job's own variables ----


def test_a_job_under_slurm_tells_all_names_and_torchrun_says_what_it_does_not_tell() -> None:
    found = launcher.inventory_of({"SLURM_JOB_NODELIST": "gpu[1-4]"}, own_name="gpu2")
    assert fold(machine.name for machine in found.machines) == "gpu[1-4]"
    told = launcher.inventory_of({"MASTER_ADDR": "gpu1", "GROUP_WORLD_SIZE": "4"}, own_name="gpu2")
    assert [machine.name for machine in told.machines] == ["gpu1", "gpu2"]
    assert any("4 machines, and not their names" in what for what in told.unknown)
    with pytest.raises(UserError, match="no launcher's variables"):
        launcher.inventory_of({}, own_name="x")


# ---- files ----

PEOPLES = """\
# ours
schema: rankclock-cluster/1
name: mine   # do not rename
nodes:
    # the old ones
    - name: gpu[1-2]     # two
      rack: rack1
    - {name: head1, kind: server}

sources:
  - {name: up, address: 10.0.0.1}   # the roof
"""


def test_merging_adds_new_machines_and_keeps_every_word() -> None:
    text, new, gone = merged(PEOPLES, "c.yaml", hosts.inventory_of("gpu[2-5]"))
    assert (new, gone) == (["gpu3", "gpu4", "gpu5"], ["gpu1", "head1"])
    assert [line for line in text.splitlines() if line not in PEOPLES.splitlines()] == ["    - name: gpu[3-5]"]
    assert all(line in text for line in PEOPLES.splitlines())
    assert merged(text, "c.yaml", hosts.inventory_of("gpu[2-5]"))[:2] == (text, []), "again changes nothing"


@pytest.mark.parametrize("dash", ["", "  ", "      "])
def test_merging_follows_the_files_own_indentation(dash: str) -> None:
    text = f"schema: rankclock-cluster/1\nname: c\nnodes:\n{dash}- name: a\n{dash}  rack: r\n# end\npace: fast\n"
    merged_text, _, _ = merged(text, "c.yaml", hosts.inventory_of("a b1 b2"))
    assert [node.name for node in parse_cluster(merged_text, "c.yaml").nodes] == ["a", "b1", "b2"]
    assert merged_text.endswith("# end\npace: fast\n")


def test_merging_keeps_the_line_ends_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(PEOPLES.replace("\n", "\r\n").encode())
    assert run("hosts", "-", "--merge", str(path), stdin="gpu3\n").returncode == 0
    data = path.read_bytes()
    assert data.count(b"\r\n") == data.count(b"\n")
    assert b"gpu3" in data


def test_a_file_that_is_there_is_never_overwritten_and_a_merge_is_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(PEOPLES)
    done = run("hosts", "-", "-o", str(path), stdin="a\n")
    assert (done.returncode, path.read_text()) == (2, PEOPLES)
    assert "--merge" in done.stderr
    done = run("hosts", "-", "--merge", str(path), "--json", stdin="gpu[1-9]\n")
    assert json.loads(done.stdout)["new"] == [f"gpu{i}" for i in range(3, 10)]
    broken = tmp_path / "broken.yaml"
    broken.write_text("nodes: [")
    done = run("hosts", "-", "--merge", str(broken), stdin="a\n")
    assert (done.returncode, broken.read_text(), len(done.stderr.splitlines())) == (2, "nodes: [", 1)
    assert sorted(item.name for item in tmp_path.iterdir()) == ["broken.yaml", "c.yaml"]


def test_bytes_that_are_no_text_are_one_line_with_their_place() -> None:
    done = run("hosts", "-", stdin=b"a\nb\xff\n")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "-:2: not UTF-8" in done.stderr


def test_one_nic_in_several_networks_is_refused_with_what_to_give() -> None:
    machines = [Machine(name=f"n{i}", where="x", address=f"10.0.0.{i}") for i in range(126, 131)]
    with pytest.raises(UserError, match="in 2 networks of /25: give --prefix"):
        cluster_text(collected("x", machines), name="c", nic="e0", prefix=25)


@pytest.mark.parametrize("source", ["slurm", "kubernetes", "ansible", "hosts"])
def test_ten_thousand_machines_make_a_file_that_loads(source: str) -> None:
    names = [f"n{i:05}" for i in range(10_000)]
    addresses = [f"10.7.{i >> 8}.{i & 255}" for i in range(10_000)]
    if source == "slurm":
        text = "".join(f"NodeName={n} NodeAddr={a} State=IDLE\n" for n, a in zip(names, addresses, strict=True))
        found = slurm.inventory_of(text)
    elif source == "kubernetes":
        found = kubernetes.inventory_of([node(n, a) for n, a in zip(names, addresses, strict=True)])
    elif source == "ansible":
        listed = {
            "all": {"hosts": names},
            "_meta": {"hostvars": {n: {"ansible_host": a} for n, a in zip(names, addresses, strict=True)}},
        }
        found = ansible.inventory_of(json.dumps(listed))
    else:
        found = hosts.inventory_of("\n".join(f"{a} {n}" for n, a in zip(names, addresses, strict=True)))
    assert len(parse_cluster(cluster_text(found, name="c", nic="e0", prefix=16), "c.yaml").nodes) == 10_000
