"""Records what newer ptp4ls tell, with emulated hardware stamps and unicast masters, and what their pmc prints of it.

python tests/captured/wire/capture_ptp4l_releases.py NAME=ROOT ... writes ptp4l_releases.json beside it (in the lab).
ROOT is a folder with a release unpacked together with its own libc (Debian's packages by `dpkg -x`).
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from rankclock.cluster.model import Cluster
from rankclock.lab import Lab, Scenario

HERE = Path(__file__).parent
SERVER = "[global]\npriority1 10\nunicast_listen 1\nlogAnnounceInterval -2\n[eth0]\n"
CLIENT = """\
[global]
clientOnly 1
logAnnounceInterval -2
[unicast_master_table]
table_id 1
logQueryInterval 0
UDPv4 10.77.0.1
UDPv4 10.77.0.200
[eth0]
unicast_master_table 1
"""
SETS = ("PORT_STATS_NP", "PORT_SERVICE_STATS_NP", "UNICAST_MASTER_TABLE_NP", "PORT_HWCLOCK_NP", "PORT_PROPERTIES_NP")

IN_NODE = """
import json, sys
from rankclock.node import ptp4l, ptp4l_details
from rankclock.wire.ptp_data_sets import PortProperties
log = []
class Spy:
    def __init__(self, link): self.link = link
    def __getattr__(self, name): return getattr(self.link, name)
    def recv(self, size):
        data = self.link.recv(size); log.append(data.hex()); return data
def hold(talk):
    talk.link = Spy(talk.link)
    talk.ask_all(0, 0, (), (*ptp4l_details._PER_PORT, PortProperties))
ptp4l.with_ptp4l([sys.argv[1]], hold, timeout_s=2)
print(json.dumps(log))
"""


def program(root: str, name: str) -> list[str]:
    loader = Path(root, "usr/lib64/ld-linux-x86-64.so.2")
    return [
        str(loader),
        "--library-path",
        str(Path(root, "usr/lib/x86_64-linux-gnu")),
        str(Path(root, "usr/sbin", name)),
    ]


def captured(lab: Lab, root: str) -> dict[str, object]:
    for node, text in (("n1", SERVER), ("n2", CLIENT)):
        lab.install(node, {"/etc/linuxptp/ptp4l.conf": text.encode()})
        lab.spawn(node, [*program(root, "ptp4l"), "-f", "/etc/linuxptp/ptp4l.conf"])
    time.sleep(10)
    value: dict[str, object] = {}
    for name, node, path in (
        ("rw", "n2", "/var/run/ptp4l"),
        ("ro", "n2", "/var/run/ptp4lro"),
        ("gm", "n1", "/var/run/ptp4l"),
    ):
        value[name] = json.loads(lab.run(node, [sys.executable, "-c", IN_NODE, path], timeout_s=20).stdout)
    pmc = [*program(root, "pmc"), "-u", "-b", "0"]
    value["pmc"] = {what: lab.run("n2", [*pmc, f"GET {what}"], timeout_s=20).stdout for what in SETS}
    return value


def main(releases: list[str]) -> None:
    nodes = [
        {"name": f"n{i}", "nics": [{"name": "eth0", "address": f"10.77.0.{i}/24", "segment": "lan"}]} for i in (1, 2)
    ]
    cluster = Cluster.model_validate({"schema": "rankclock-cluster/1", "name": "capture", "nodes": nodes})
    found: dict[str, object] = {}
    for release in releases:
        name, _, root = release.partition("=")
        version = subprocess.run([*program(root, "ptp4l"), "-v"], capture_output=True, text=True, check=True)
        with Lab.up(Scenario.of(cluster, clocks={"n1": {"phc": {}}, "n2": {"phc": {"drift_ppb": 1000}}})) as lab:
            found[name] = {"provenance": version.stdout.strip(), **captured(lab, root)}
    value = {"command": "python tests/captured/wire/capture_ptp4l_releases.py NAME=ROOT ...", "releases": found}
    (HERE / "ptp4l_releases.json").write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
