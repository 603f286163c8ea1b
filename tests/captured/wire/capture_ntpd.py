"""Records control messages of a real ntpsec ntpd as bytes, and beside them what its own ntpq prints of the same.

PYTHONPATH=<python3-ntp unpacked>/usr/lib/python3/dist-packages python tests/captured/wire/capture_ntpd.py
writes ntpd.json beside it; needs the lab, and Debian's python3-ntp for ntpq. Run again for another release.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from rankclock.cluster.model import Cluster
from rankclock.lab import Lab, Scenario
from rankclock.lab.daemons import find_daemon

HERE = Path(__file__).parent
CHRONY = "driftfile /var/lib/chrony/d\npidfile /run/chrony/c.pid\nallow\nlocal stratum 1\n"
NTP = "driftfile /var/lib/ntpsec/ntp.drift\nrestrict default noquery\nrestrict 127.0.0.1\n"
NTP += "server 10.77.0.1 iburst minpoll 0 maxpoll 0\nserver 10.77.0.200 iburst minpoll 0 maxpoll 0\n"

IN_NODE = """
import json, socket, struct
from rankclock.wire.ntp_control import PEER_NAMES, SYSTEM_NAMES, ControlMessage, decode_associations
link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); link.settimeout(2); link.connect(("127.0.0.1", 123))
def ask(opcode, association, names, sequence):
    question = ControlMessage(opcode=opcode, sequence=sequence, association=association, data=",".join(names).encode())
    link.send(question.encode()); got = []
    while not got or bytes.fromhex(got[-1])[1] & 0x20: got.append(link.recv(4096).hex())
    return got
found = {"associations": ask(1, 0, (), 1), "system": ask(2, 0, SYSTEM_NAMES, 2), "system_all": ask(2, 0, (), 3),
         "no_such_variable": ask(2, 0, ("nosuch",), 4), "no_such_association": ask(2, 9999, (), 5),
         "bad_operation": ask(31, 0, (), 6)}
numbers = [n for n, _ in decode_associations(ControlMessage.decode(bytes.fromhex(found["associations"][0])).data)]
for index, number in enumerate(numbers):
    found[f"peer{index}"] = ask(2, number, PEER_NAMES, 10 + index)
    found[f"peer{index}_all"] = ask(2, number, (), 20 + index)
print(json.dumps(found))
"""


def main() -> None:
    nodes = [
        {"name": f"n{i}", "nics": [{"name": "eth0", "address": f"10.77.0.{i}/24", "segment": "lan"}]} for i in (1, 2)
    ]
    cluster = Cluster.model_validate({"schema": "rankclock-cluster/1", "name": "capture", "nodes": nodes})
    with Lab.up(Scenario.of(cluster, clocks={"n2": {"drift_ppb": 20_000, "offset_ns": -3_000_000}})) as lab:
        lab.install("n1", {"/etc/chrony/chrony.conf": CHRONY.encode()})
        lab.run("n1", ["mkdir", "-p", "/run/chrony", "/var/lib/chrony"], timeout_s=5)
        lab.spawn("n1", [str(find_daemon("chronyd")), "-d", "-u", "root", "-f", "/etc/chrony/chrony.conf"])
        lab.install("n2", {"/etc/ntpsec/ntp.conf": NTP.encode(), "/var/lib/ntpsec/ntp.drift": b"-17.000\n"})
        lab.spawn("n2", [str(find_daemon("ntpd")), "-n", "-N", "-g", "-c", "/etc/ntpsec/ntp.conf"])
        time.sleep(20)
        replies = json.loads(lab.run("n2", [sys.executable, "-c", IN_NODE], timeout_s=20).stdout)
        ntpq = {
            what: lab.run("n2", ["/usr/bin/python3", str(find_daemon("ntpq")), "-n", "-c", what], timeout_s=10).stdout
            for what in ("rv", "associations", "peers")
        }
    version = ntpq["rv"].partition('version="')[2].partition('"')[0]
    value = {
        "provenance": {"ntpd": version, "package": "Debian 12, ntpsec 1.2.2+dfsg1-1+deb12u1"},
        "command": "python tests/captured/wire/capture_ntpd.py",
        "ntpd": replies,
        "ntpq": ntpq,
    }
    (HERE / "ntpd.json").write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
