"""Records what chronyd tells over its unix socket only, of several releases, and what their chronyc prints of it.

python tests/captured/wire/capture_chrony_releases.py NAME=ROOT ...   writes chrony_releases.json beside it; needs the
lab and openssl. ROOT is a folder with a release unpacked together with its own libc and libraries (Debian's packages by
`dpkg -x`); `-` stands for the one that the lab finds.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rankclock.cluster.model import Cluster
from rankclock.lab import Lab, Scenario
from rankclock.lab.daemons import find_daemon

HERE = Path(__file__).parent
CHRONY = "driftfile /var/lib/chrony/chrony.drift\npidfile /run/chrony/chronyd.pid\nallow\n"
SERVER = "local stratum 3\nntsserverkey /etc/chrony/key.pem\nntsservercert /etc/chrony/cert.pem\n"
CLIENT = """\
server 10.77.0.1 iburst minpoll 0 maxpoll 0 xleave nts
server 10.77.0.3 iburst minpoll 0 maxpoll 0
server 10.77.0.200
ntstrustedcerts /etc/chrony/cert.pem
"""

IN_NODE = """
import contextlib, json, sys, time
from rankclock.node import chronyd
from rankclock.wire import chrony
log = []
class Spy:
    def __init__(self, link): self.link = link
    def __getattr__(self, name): return getattr(self.link, name)
    def recv(self, size):
        data = self.link.recv(size); log.append(data.hex()); return data
with chronyd.connected("/run/chrony/chronyd.sock") as link:
    def asked(command, **arguments):
        log.clear()
        with contextlib.suppress(chrony.CommandRefused, TimeoutError):
            report = chronyd.ask(Spy(link), command, time.monotonic() + 2, **arguments)
        return log[-1]
    found = {one.name: asked(one) for one in (chrony.TRACKING, chrony.ACTIVITY, chrony.SERVER_STATS, chrony.N_SOURCES)}
    for index in range(chronyd.ask(link, chrony.N_SOURCES, time.monotonic() + 2).count):
        source = chronyd.ask(link, chrony.SOURCE_DATA, time.monotonic() + 2, index=index)
        found[f"SELECT_DATA {source.name}"] = asked(chrony.SELECT_DATA, index=index)
        for command in (chrony.NTP_DATA, chrony.AUTH_DATA):
            found[f"{command.name} {source.name}"] = asked(command, address=source.address)
print(json.dumps(found))
"""


def program(root: str, name: str) -> list[str]:
    if root == "-":
        return [str(find_daemon(name))]
    (path,) = [
        Path(root, "usr", folder, name) for folder in ("bin", "sbin") if Path(root, "usr", folder, name).exists()
    ]
    loader = Path(root, "usr/lib64/ld-linux-x86-64.so.2")
    return [str(loader), "--library-path", str(Path(root, "usr/lib/x86_64-linux-gnu")), str(path)]


def captured(lab: Lab, name: str, root: str, cert: bytes, key: bytes) -> dict[str, object]:
    running = []
    may_open = float(name) >= 4.7  # there chronyc gets it over UDP
    more = "opencommands tracking sources activity serverstats ntpdata authdata selectdata\n" if may_open else ""
    for node, text in (("n1", SERVER), ("n2", CLIENT), ("n3", "local stratum 4\n")):
        files = {"/etc/chrony/chrony.conf": (CHRONY + more + text).encode(), "/etc/chrony/cert.pem": cert}
        lab.install(node, {**files, "/etc/chrony/key.pem": key}, mode=0o600)
        lab.run(node, ["mkdir", "-p", "-m", "750", "/run/chrony", "/var/lib/chrony"], timeout_s=5)
        argv = [*program(root, "chronyd"), "-d", "-u", "root", "-f", "/etc/chrony/chrony.conf"]
        running.append(lab.spawn(node, argv))
    time.sleep(12)
    chronyc = [*program(root, "chronyc"), "-n", "-c", "-h", "127.0.0.1" if may_open else "/run/chrony/chronyd.sock"]
    value: dict[str, object] = {}
    for node in ("n1", "n2"):
        done = lab.run(node, [sys.executable, "-c", IN_NODE], timeout_s=20)
        if done.returncode != 0:
            raise RuntimeError(done.stderr + "".join(process.log_text() for process in running))
        value[node] = json.loads(done.stdout)
        for what in ("tracking", "serverstats", "activity", "ntpdata", "authdata", "selectdata"):
            done = lab.run(node, [*chronyc, what], timeout_s=10)
            if done.returncode != 0:
                raise RuntimeError(f"chronyc {what}: {done.stdout}{done.stderr}")
            value[f"{node} {what}"] = done.stdout
    for process in running:
        process.stop()
    return value


def main(releases: list[str]) -> None:
    nodes = [
        {"name": f"n{i}", "nics": [{"name": "eth0", "address": f"10.77.0.{i}/24", "segment": "lan"}]} for i in (1, 2, 3)
    ]
    cluster = Cluster.model_validate({"schema": "rankclock-cluster/1", "name": "capture", "nodes": nodes})
    found: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder:
        cert, key = Path(folder, "cert.pem"), Path(folder, "key.pem")
        command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 -subj /CN=10.77.0.1"
        names = ["-addext", "subjectAltName=IP:10.77.0.1", "-keyout", str(key), "-out", str(cert)]
        subprocess.run([*command.split(), *names], check=True, capture_output=True)
        for release in releases:
            name, _, root = release.partition("=")
            version = subprocess.run([*program(root, "chronyd"), "-v"], capture_output=True, text=True, check=True)
            with Lab.up(Scenario.of(cluster, clocks={"n2": {"drift_ppb": 20_000, "offset_ns": -300_000}})) as lab:
                value = captured(lab, name, root, cert.read_bytes(), key.read_bytes())
            found[name] = {"provenance": version.stdout.strip(), **value}
    value = {"command": "python tests/captured/wire/capture_chrony_releases.py NAME=ROOT ...", "releases": found}
    (HERE / "chrony_releases.json").write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
