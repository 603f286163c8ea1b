"""Records replies of real chronyd and ptp4l as bytes, and beside them what the daemons' own tools print of the same.

python tests/captured/wire/capture.py  writes replies.json beside it; needs the lab. Run again for another release.
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
CHRONY = "driftfile /var/lib/chrony/chrony.drift\npidfile /run/chrony/chronyd.pid\nallow\n"
PTP = "[global]\ntime_stamping software\nlogSyncInterval -3\nlogAnnounceInterval -2\nlogMinDelayReqInterval -3\n"

IN_NODE = """
import json, sys
from rankclock.node import chronyd, ptp4l
from rankclock.wire import chrony
log = []
class Spy:
    def __init__(self, link): self.link = link
    def __getattr__(self, name): return getattr(self.link, name)
    def recv(self, size):
        data = self.link.recv(size); log.append(data.hex()); return data
import contextlib, time
if sys.argv[1] == "chronyd":
    found = {}
    with chronyd.connected(("127.0.0.1", 323)) as link:
        for command, arguments in ((chrony.TRACKING, {}), (chrony.N_SOURCES, {}), (chrony.SOURCE_DATA, {"index": 0}),
                                   (chrony.SOURCESTATS, {"index": 0}), (chrony.ACTIVITY, {})):
            log.clear(); chronyd.ask(Spy(link), command, time.monotonic() + 2, **arguments)
            found[command.name] = log[-1]
    print(json.dumps(found))
else:
    with ptp4l._abstract() as link:
        link.connect("/var/run/ptp4l")
        ptp4l.Conversation(Spy(link), "x", 2).read(0, 0)
    print(json.dumps(log))
"""


def main() -> None:
    nodes = [
        {"name": f"n{i}", "nics": [{"name": "eth0", "address": f"10.77.0.{i}/24", "segment": "lan"}]} for i in (1, 2, 3)
    ]
    cluster = Cluster.model_validate({"schema": "rankclock-cluster/1", "name": "capture", "nodes": nodes})
    with Lab.up(Scenario.of(cluster, clocks={"n2": {"drift_ppb": 20_000, "offset_ns": -300_000}})) as lab:
        for node, text in (("n1", "local stratum 3\n"), ("n2", "server 10.77.0.1 iburst minpoll 0 maxpoll 0 xleave\n")):
            lab.install(node, {"/etc/chrony/chrony.conf": (CHRONY + text).encode()})
            lab.run(node, ["mkdir", "-p", "/run/chrony", "/var/lib/chrony"], timeout_s=5)
            lab.spawn(node, [str(find_daemon("chronyd")), "-d", "-u", "root", "-f", "/etc/chrony/chrony.conf"])
        time.sleep(12)
        replies = json.loads(lab.run("n2", [sys.executable, "-c", IN_NODE, "chronyd"], timeout_s=20).stdout)
        said = {
            what: lab.run("n2", [str(find_daemon("chronyc")), "-n", "-c", what], timeout_s=10).stdout
            for what in ("tracking", "sources", "sourcestats", "activity")
        }
        for node, more in (("n1", "priority1 10\n"), ("n3", "slaveOnly 1\n")):
            lab.install(node, {"/etc/linuxptp/ptp4l.conf": (PTP + more + "[eth0]\n").encode()})
            lab.spawn(node, [str(find_daemon("ptp4l")), "-f", "/etc/linuxptp/ptp4l.conf"])
        time.sleep(8)
        messages = json.loads(lab.run("n3", [sys.executable, "-c", IN_NODE, "ptp4l"], timeout_s=20).stdout)
        sets = ("DEFAULT_DATA_SET", "PARENT_DATA_SET", "TIME_PROPERTIES_DATA_SET", "PORT_DATA_SET", "CURRENT_DATA_SET")
        pmc = {
            what: lab.run("n3", [str(find_daemon("pmc")), "-u", "-b", "0", f"GET {what}"], timeout_s=10).stdout
            for what in (*sets, "TIME_STATUS_NP", "PORT_PROPERTIES_NP")
        }
    versions = {
        name: subprocess.run([str(find_daemon(name)), "-v"], capture_output=True, text=True, check=False)
        for name in ("chronyd", "ptp4l")
    }
    value = {
        "provenance": {name: (done.stdout + done.stderr).strip() for name, done in versions.items()},
        "command": "python tests/captured/wire/capture.py",
        "chronyd": replies,
        "chronyc": said,
        "ptp4l": messages,
        "pmc": pmc,
    }
    (HERE / "replies.json").write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
