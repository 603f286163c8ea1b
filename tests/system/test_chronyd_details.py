"""What chronyd tells beside its state, over each of its two ways: real daemons, NTS, and a clock nobody steers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rankclock.lab import Lab, Scenario
from rankclock.timebase import NS_PER_MS

pytestmark = pytest.mark.lab


@dataclass(frozen=True)
class Service:
    name: str
    argv: tuple[str, ...]


CHRONYD = Service("chronyd", ("/usr/sbin/chronyd", "-d", "-u", "root", "-f", "/etc/chrony/chrony.conf"))
CHRONY = "driftfile /var/lib/chrony/chrony.drift\npidfile /run/chrony/chronyd.pid\nallow\n"
SERVER = "local stratum 1\nntsserverkey /etc/chrony/key.pem\nntsservercert /etc/chrony/cert.pem\n"
WATCHER = """\
server 10.77.0.1 iburst minpoll 0 maxpoll 0 nts noselect
server 10.77.0.200
ntstrustedcerts /etc/chrony/cert.pem
"""
ASK = """
import dataclasses, json, sys
from rankclock.node.chronyd_details import read_chronyd_details
endpoints = [("127.0.0.1", 323)] if sys.argv[1] == "udp" else ["/run/chrony/chronyd.sock"]
found = read_chronyd_details(endpoints)
def plain(report):
    if report is None: return None
    return {k: getattr(report, k) for k in dir(report) if isinstance(getattr(report, k), (int, float, str, type(None)))
            and not k.startswith("_")}
print(json.dumps({"activity": plain(found.activity), "server": plain(found.server), "refused": found.refused,
    "sources": {one.name: {k: plain(getattr(one, k)) for k in ("ntp", "auth", "select")} for one in found.sources}}))
"""


@pytest.fixture(scope="module")
def ntp(
    lab_of: Callable[[Scenario], Lab],
    flat: Callable[..., Scenario],
    daemon: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Lab:
    daemon("chronyd")
    folder = tmp_path_factory.mktemp("nts")
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 -subj /CN=10.77.0.1"
    names = ["-addext", "subjectAltName=IP:10.77.0.1", "-keyout", str(folder / "key"), "-out", str(folder / "cert")]
    subprocess.run([*command.split(), *names], check=True, capture_output=True)
    lab = lab_of(flat(2, clocks={"n2": {"offset_ns": -3 * NS_PER_MS}}))
    for node, text in (("n1", SERVER), ("n2", WATCHER)):
        lab.run(node, ["mkdir", "-p", "-m", "750", "/run/chrony"], timeout_s=5)
        lab.install(node, {"/etc/chrony/chrony.conf": (CHRONY + text).encode()})
        lab.install(node, {f"/etc/chrony/{name}.pem": (folder / name).read_bytes() for name in ("key", "cert")})
        lab.start_service(node, CHRONYD)
    return lab


def asked(lab: Lab, node: str, how: str) -> dict[str, Any]:
    done = lab.run(node, [sys.executable, "-c", ASK, how], timeout_s=20)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_over_the_unix_socket_everything_is_told_and_the_sign_is_local_minus_server(
    ntp: Lab, until: Callable[..., None]
) -> None:
    until(lambda: asked(ntp, "n2", "unix")["sources"].get("10.77.0.1", {}).get("ntp"), 15, "a measurement", every_s=0.2)
    found = asked(ntp, "n2", "unix")
    source, silent = found["sources"]["10.77.0.1"], found["sources"]["10.77.0.200"]
    truth_ns = ntp.true_offset_ns("n2", "n1")
    assert truth_ns < -2 * NS_PER_MS, "noselect: nobody steers this clock"
    assert source["ntp"]["offset_ns"] == pytest.approx(truth_ns, abs=NS_PER_MS // 5)
    assert (source["ntp"]["transmit_stamps"], source["ntp"]["receive_stamps"]) == ("kernel", "kernel")
    assert (source["auth"]["mode_name"], source["auth"]["cookies"]) == ("nts", 8)
    assert silent["auth"]["mode_name"] == "none"
    assert silent["ntp"] is None
    assert sum(found["activity"][name] for name in ("online", "burst_online", "offline", "burst_offline")) == 2
    assert found["refused"] == {}
    assert asked(ntp, "n1", "unix")["server"]["ntp_auth_hits"] > 0


def test_over_udp_what_is_not_allowed_is_named_and_is_no_zero(ntp: Lab) -> None:
    found = asked(ntp, "n2", "udp")
    assert sum(found["activity"][name] for name in ("online", "burst_online", "offline", "burst_offline")) == 2
    assert set(found["refused"]) == {"SERVER_STATS", "NTP_DATA", "AUTH_DATA", "SELECT_DATA"}
    assert all("not allowed over UDP" in why for why in found["refused"].values())
    assert found["server"] is None
    assert found["sources"]["10.77.0.1"] == {"ntp": None, "auth": None, "select": None}
