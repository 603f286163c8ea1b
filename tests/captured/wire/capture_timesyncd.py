"""Records the D-Bus reply of a real systemd-timesyncd with its properties, and what busctl prints of the same.

python tests/captured/wire/capture_timesyncd.py  writes timesyncd.json beside it; needs the lab, dbus-daemon, busctl.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from rankclock.cluster.model import Cluster
from rankclock.lab import Lab, Scenario
from rankclock.lab.daemons import find_daemon

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "system"))

IN_NODE = """
import json, socket
from rankclock.node import timesyncd
log = []
class Spy(socket.socket):
    def recv(self, size):
        data = super().recv(size); log.append(data.hex()); return data
timesyncd.socket.socket = Spy
timesyncd.read_timesyncd(timeout_s=3)
print(json.dumps(log))
"""
PROPERTIES = ("NTPMessage", "ServerAddress", "ServerName", "PollIntervalUSec", "RootDistanceMaxUSec")


def main() -> None:
    import test_timesyncd_states as states

    nodes = [
        {"name": f"n{i}", "nics": [{"name": "eth0", "address": f"10.77.0.{i}/24", "segment": "lan"}]} for i in (1, 2)
    ]
    cluster = Cluster.model_validate({"schema": "rankclock-cluster/1", "name": "capture", "nodes": nodes})
    with Lab.up(Scenario.of(cluster, clocks={"n2": {"offset_ns": -3_000_000}})) as lab:
        lab.install("n1", {"/etc/chrony/chrony.conf": states.CHRONY})
        lab.start_service("n1", states.CHRONYD)
        states.start_timesyncd(lab, "n2", find_daemon("systemd-timesyncd"), "10.77.0.1", bus=True)
        time.sleep(6)
        replies = json.loads(lab.run("n2", [sys.executable, "-c", IN_NODE], timeout_s=20).stdout)
        where = ["org.freedesktop.timesync1", "/org/freedesktop/timesync1", "org.freedesktop.timesync1.Manager"]
        shown = {
            name: json.loads(
                lab.run("n2", ["busctl", "--json=short", "get-property", *where, name], timeout_s=10).stdout
            )
            for name in PROPERTIES
        }
    version = subprocess.run(["busctl", "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
    value = {
        "provenance": {"busctl": version, "package": "Debian 12, systemd-timesyncd 252.39-1~deb12u2"},
        "command": "python tests/captured/wire/capture_timesyncd.py",
        "received": replies,
        "busctl": shown,
    }
    (HERE / "timesyncd.json").write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
