"""Breaks real daemons in the lab, one way after another, and keeps what they and their tools print.

Writes real.case and healthy-real.case beside itself: `python tests/captured/doctor/capture.py [NAME...]`. What was
broken is known, so the right answer stands here and comes from no diagnosis. Every process runs without CAP_SYS_TIME.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rankclock.cluster.model import Cluster
from rankclock.lab import Lab, Scenario
from rankclock.lab.daemons import find_daemon

HERE = Path(__file__).parent
S = 10**9
CHRONY = "driftfile /var/lib/chrony/chrony.drift\npidfile /run/chrony/chronyd.pid\nallow\n"
FAST = "iburst minpoll -1 maxpoll 1"
PTP = (
    "[global]\ntime_stamping hardware\nuse_syslog 0\nverbose 1\ntx_timestamp_timeout 50\nfault_reset_interval 0\n"
    "logAnnounceInterval -2\nlogSyncInterval -3\nlogMinDelayReqInterval -3\nsummary_interval -1\n"
)
N1, N2, N3 = "10.77.0.1", "10.77.0.2", "10.77.0.3"


@dataclass(frozen=True)
class Capture:
    text: str
    answer: str
    findings: tuple[str, ...] = ()
    commands: str = ""


Break = Callable[["Bench"], Capture]
BREAKS: list[Break] = []


def broken(function: Break) -> Break:
    BREAKS.append(function)
    return function


class Bench:
    """A lab of four nodes on one segment and the few things that breaking it needs."""

    def __init__(self, **clocks: dict[str, object]) -> None:
        nodes = [
            {"name": f"n{i}", "nics": [{"name": "eth0", "address": f"10.77.0.{i}/16", "segment": "lan"}]}
            for i in range(1, 5)
        ]
        cluster = Cluster.model_validate({"schema": "rankclock-cluster/1", "name": "bench", "nodes": nodes})
        self.lab = Lab.up(Scenario.of(cluster, clocks=clocks))

    def chronyd(self, node: str, own: str, *more: str, clock: bool = True) -> object:
        self.lab.install(node, {"/etc/chrony/chrony.conf": (CHRONY + own).encode()})
        argv = [str(find_daemon("chronyd")), "-d", "-u", "root", "-f", "/etc/chrony/chrony.conf", *more]
        self.lab.run(node, ["mkdir", "-p", "/run/chrony", "/var/lib/chrony"], timeout_s=5)
        return self.lab.spawn(node, argv, clock=clock)

    def ptp4l(self, node: str, own: str = "", *more: str, common: str = PTP, clock: bool = True) -> object:
        self.lab.install(node, {"/etc/linuxptp/ptp4l.conf": (common + own).encode()})
        return self.lab.spawn(
            node, [str(find_daemon("ptp4l")), "-f", "/etc/linuxptp/ptp4l.conf", "-i", "eth0", *more], clock=clock
        )

    def phc2sys(self, node: str, *argv: str) -> object:
        return self.lab.spawn(node, [str(find_daemon("phc2sys")), "-m", "-q", *argv])

    def say(self, node: str, *argv: str, clock: bool = True) -> str:
        """A command and what it printed, as it stands in a terminal."""
        name = argv[0]
        path = str(find_daemon(name)) if name in ("chronyc", "pmc", "chronyd", "ptp4l", "phc2sys") else name
        done = self.lab.run(node, [path, *argv[1:]], timeout_s=20, clock=clock)
        quoted = " ".join(f"'{word}'" if " " in word else word for word in argv)
        return f"[root@{node} ~]# {quoted}\n{done.stdout}{done.stderr}"


def tail(process: object, lines: int = 40) -> str:
    text: str = process.log_text()  # type: ignore[attr-defined]
    return "\n".join(text.splitlines()[-lines:]) + "\n"


def head(process: object, lines: int = 30) -> str:
    text: str = process.log_text()  # type: ignore[attr-defined]
    return "\n".join(text.splitlines()[:lines]) + "\n"


# ---- NTP ----


@broken
def servers_do_not_run(bench: Bench) -> Capture:
    bench.chronyd("n3", f"server {N1} {FAST}\nserver {N2} {FAST}\n")
    time.sleep(8)
    text = bench.say("n3", "chronyc", "-n", "tracking") + bench.say("n3", "chronyc", "-n", "sources")
    return Capture(text, "fault", ("NEVER_REACHED", "UNSYNCHRONISED"))


@broken
def servers_do_not_run_csv(bench: Bench) -> Capture:
    bench.chronyd("n3", f"server {N1} {FAST}\nserver {N2} {FAST}\n")
    time.sleep(8)
    text = bench.say("n3", "chronyc", "-c", "tracking") + bench.say("n3", "chronyc", "-c", "sources")
    return Capture(text, "fault", ("NEVER_REACHED", "UNSYNCHRONISED"))


@broken
def healthy_client(bench: Bench) -> Capture:
    bench.chronyd("n1", "local stratum 1\n")
    bench.chronyd("n3", f"server {N1} {FAST} xleave\nmakestep 0.1 3\n")
    time.sleep(12)
    said = ("tracking", "sources", "sourcestats", "activity")
    return Capture("".join(bench.say("n3", "chronyc", "-n", word) for word in said), "healthy")


@broken
def healthy_client_csv(bench: Bench) -> Capture:
    bench.chronyd("n1", "local stratum 1\n")
    bench.chronyd("n3", f"server {N1} {FAST} xleave\nmakestep 0.1 3\n")
    time.sleep(12)
    return Capture("".join(bench.say("n3", "chronyc", "-c", word) for word in ("tracking", "sources")), "healthy")


@broken
def clock_fast_signs(bench: Bench) -> Capture:
    """No fault of a daemon: the clock is put 0.4 s ahead, and -c must say the same as the text."""
    bench.chronyd("n1", "local stratum 1\n")
    bench.chronyd("n3", f"server {N1} {FAST} xleave\n")
    time.sleep(6)
    bench.lab.clock("n3").step_ns(400_000_000)
    time.sleep(4)
    return Capture(
        "".join(bench.say("n3", "chronyc", *words) for words in (("tracking",), ("-c", "tracking"))),
        "degraded fault",
        ("CORRECTION_PENDING",),
    )


@broken
def server_in_local_mode(bench: Bench) -> Capture:
    bench.chronyd("n1", "local stratum 10\n")
    time.sleep(4)
    return Capture(
        bench.say("n1", "chronyc", "tracking") + bench.say("n1", "chronyc", "sources"), "fault", ("LOCAL_ISLAND",)
    )


@broken
def two_servers_half_an_hour_apart(bench: Bench) -> Capture:
    bench.lab.clock("n2").step_ns(-1947 * S)
    bench.chronyd("n1", "local stratum 1\n")
    bench.chronyd("n2", "local stratum 1\n")
    daemon = bench.chronyd("n3", f"server {N1} {FAST}\nserver {N2} {FAST}\n")
    time.sleep(12)
    return Capture(tail(daemon) + bench.say("n3", "chronyc", "-n", "sources"), "fault", ("NO_MAJORITY",))


@broken
def one_server_of_three_is_wrong(bench: Bench) -> Capture:
    bench.lab.clock("n2").step_ns(3 * S)
    for node in ("n1", "n2", "n4"):
        bench.chronyd(node, "local stratum 1\n")
    bench.chronyd("n3", f"server {N1} {FAST}\nserver {N2} {FAST}\nserver 10.77.0.4 {FAST}\n")
    time.sleep(14)
    return Capture(bench.say("n3", "chronyc", "-n", "sources"), "risk", ("FALSETICKERS",))


@broken
def clock_far_off_and_no_makestep(bench: Bench) -> Capture:
    bench.lab.clock("n3").step_ns(-500 * S)
    bench.chronyd("n1", "local stratum 1\n")
    bench.chronyd("n3", f"server {N1} {FAST}\n")
    time.sleep(10)
    return Capture(bench.say("n3", "chronyc", "-n", "tracking"), "fault", ("CORRECTION_PENDING",))


@broken
def correction_beyond_maxchange(bench: Bench) -> Capture:
    bench.lab.clock("n3").step_ns(-5000 * S)
    bench.chronyd("n1", "local stratum 1\n")
    daemon = bench.chronyd("n3", f"server {N1} {FAST}\nmaxchange 1000 0 0\n")
    time.sleep(8)
    return Capture(tail(daemon), "fault", ("STEP_REFUSED",))


@broken
def no_cap_sys_time(bench: Bench) -> Capture:
    daemon = bench.chronyd("n3", f"server {N1} {FAST}\n", clock=False)
    time.sleep(2)
    return Capture(tail(daemon), "risk", ("NO_CAP_SYS_TIME",))


@broken
def reference_clock_missing(bench: Bench) -> Capture:
    daemon = bench.chronyd("n3", "refclock PHC /dev/ptp9 poll 0\n")
    time.sleep(2)
    return Capture(tail(daemon), "fault", ("PHC_DEVICE_MISSING",))


@broken
def directive_unknown(bench: Bench) -> Capture:
    daemon = bench.chronyd("n3", "server 10.77.0.1 iburst\nleapseclist /usr/share/zoneinfo/leap-seconds.list\n")
    time.sleep(2)
    return Capture(tail(daemon), "fault", ("CHRONYD_FATAL",))


@broken
def daemon_not_started(bench: Bench) -> Capture:
    return Capture(bench.say("n3", "chronyc", "tracking"), "fault", ("DAEMON_NOT_RUNNING",))


@broken
def ntpd_syntax_for_the_local_clock(bench: Bench) -> Capture:
    bench.chronyd("n3", "server 127.127.1.1 iburst\n")
    time.sleep(6)
    conf = "server 127.127.1.1 iburst\n"
    return Capture(conf + bench.say("n3", "chronyc", "-n", "tracking"), "fault", ("UNSYNCHRONISED",))


@broken
def oscillator_two_thousand_ppm_fast(bench: Bench) -> Capture:
    bench.lab.clock("n3").set_drift_ppb(2_000_000)
    bench.chronyd("n1", "local stratum 1\n")
    bench.chronyd("n3", f"server {N1} {FAST}\nmakestep 0.1 3\n")
    time.sleep(15)
    return Capture(bench.say("n3", "chronyc", "-n", "tracking"), "fault", ("FREQ_IMPLAUSIBLE",))


@broken
def server_dies(bench: Bench) -> Capture:
    server = bench.chronyd("n1", "local stratum 1\n")
    bench.chronyd("n3", f"server {N1} {FAST} xleave\nmakestep 0.1 3\n")
    time.sleep(8)
    server.stop()  # type: ignore[attr-defined]
    time.sleep(12)
    return Capture(bench.say("n3", "chronyc", "-n", "sources"), "fault", ("NEVER_REACHED",))


@broken
def captured_ntp_one_way(bench: Bench) -> Capture:
    bench.chronyd("n3", f"server {N1} iburst minpoll -1 maxpoll -1\n")
    text = bench.say("n3", "timeout", "6", "tcpdump", "-n", "-i", "eth0", "udp", "port", "123", clock=False)
    return Capture(text, "fault", ("ONE_WAY",))


# ---- PTP ----


@broken
def healthy_ptp(bench: Bench) -> Capture:
    bench.ptp4l("n1", "priority1 10\n")
    client = bench.ptp4l("n3", "slaveOnly 1\n")
    time.sleep(14)
    feeder = bench.phc2sys("n3", "-s", "eth0", "-c", "CLOCK_REALTIME", "-w", "-R", "4")
    time.sleep(10)
    said = [bench.say("n3", "pmc", "-u", "-b", "0", f"GET {name}") for name in ("PORT_DATA_SET", "TIME_STATUS_NP")]
    return Capture(tail(client, 8) + tail(feeder, 8) + "".join(said), "healthy")


@broken
def grandmaster_dies(bench: Bench) -> Capture:
    master = bench.ptp4l("n1", "priority1 10\n")
    client = bench.ptp4l("n3", "slaveOnly 1\n")
    time.sleep(12)
    master.kill()  # type: ignore[attr-defined]
    time.sleep(6)
    return Capture(tail(client, 12), "fault", ("MASTER_LOST",))


@broken
def grandmaster_dies_by_pmc(bench: Bench) -> Capture:
    master = bench.ptp4l("n1", "priority1 10\n")
    bench.ptp4l("n3", "slaveOnly 1\n")
    time.sleep(12)
    master.kill()  # type: ignore[attr-defined]
    time.sleep(6)
    said = [bench.say("n3", "pmc", "-u", "-b", "0", f"GET {name}") for name in ("PORT_DATA_SET", "TIME_STATUS_NP")]
    return Capture("".join(said), "fault", ("PTP_VALUES_FROZEN",))


@broken
def delay_mechanisms_differ(bench: Bench) -> Capture:
    bench.ptp4l("n1", "priority1 10\n")
    bench.ptp4l("n3", "slaveOnly 1\ndelay_mechanism P2P\n")
    time.sleep(10)
    said = [bench.say("n3", "pmc", "-u", "-b", "0", f"GET {name}") for name in ("PORT_DATA_SET", "CURRENT_DATA_SET")]
    return Capture("".join(said), "fault", ("DELAY_NEVER_MEASURED",))


@broken
def delay_mechanisms_differ_log(bench: Bench) -> Capture:
    master = bench.ptp4l("n1", "priority1 10\n")
    bench.ptp4l("n3", "slaveOnly 1\ndelay_mechanism P2P\n")
    time.sleep(8)
    return Capture(tail(master, 12), "fault", ("DELAY_NEVER_MEASURED",))


@broken
def grandmaster_at_1970(bench: Bench) -> Capture:
    bench.lab.phc("n1").set_real_ns(3600 * S)
    bench.ptp4l("n1", "priority1 10\n")
    client = bench.ptp4l("n3", "slaveOnly 1\nfirst_step_threshold 0\nsummary_interval -3\n")
    time.sleep(10)
    return Capture(tail(client, 12), "fault", ("GM_EPOCH",))


@broken
def grandmaster_stepped_under_a_locked_client(bench: Bench) -> Capture:
    bench.ptp4l("n1", "priority1 10\n")
    client = bench.ptp4l("n3", "slaveOnly 1\nsummary_interval -3\n")
    time.sleep(12)
    bench.lab.phc("n1").step_ns(3 * S)
    time.sleep(2)
    return Capture(tail(client, 24), "fault", ("MASTER_STEPPED",))


@broken
def transmit_stamps_lost(bench: Bench) -> Capture:
    bench.ptp4l("n1", "priority1 10\n")
    client = bench.ptp4l("n3", "slaveOnly 1\n")
    time.sleep(8)
    bench.lab.phc("n3").set_lost_tx(True)
    time.sleep(3)
    return Capture(tail(client, 10), "fault", ("TX_TIMESTAMP_MISSING",))


@broken
def hardware_clock_frozen(bench: Bench) -> Capture:
    feeder = bench.phc2sys(
        "n3", "-s", "eth0", "-c", "CLOCK_REALTIME", "-O", "0", "-R", "4", "-S", "0", "-F", "0", "-L", "0"
    )
    time.sleep(3)
    bench.lab.phc("n3").set_frozen(True)
    time.sleep(5)
    return Capture(tail(feeder, 14), "fault", ("OFFSET_RAMP",))


@broken
def two_servos_on_one_clock(bench: Bench) -> Capture:
    bench.chronyd("n1", "local stratum 1\n")
    chronyd = bench.chronyd("n3", f"server {N1} iburst minpoll -2 maxpoll -2\nmakestep 0.0001 -1\n")
    bench.lab.phc("n3").step_ns(S // 20)
    feeder = bench.phc2sys("n3", "-s", "eth0", "-c", "CLOCK_REALTIME", "-O", "0", "-R", "4", "-S", "0.0001")
    time.sleep(10)
    stamped = "\n".join(f"n3 | {line}" for line in tail(chronyd, 12).splitlines())
    units = bench.say("n3", "ps", "ax")
    rows = [line for line in units.splitlines() if "chronyd" in line or "phc2sys" in line or "ps ax" in line]
    return Capture(
        "\n".join(rows) + "\n" + tail(feeder, 10) + stamped + "\n",
        "fault",
        ("TWO_CONTROLLERS", "CLOCK_JUMPED", "NO_SOURCE"),
    )


@broken
def phc2sys_not_told_the_offset(bench: Bench) -> Capture:
    text = bench.say("n3", "phc2sys", "-s", "eth0", "-c", "CLOCK_REALTIME", "-m", "-q")
    return Capture(text, "fault", ("PHC2SYS_NO_OFFSET",))


@broken
def phc2sys_waits_for_ptp4l(bench: Bench) -> Capture:
    feeder = bench.phc2sys("n3", "-s", "eth0", "-c", "CLOCK_REALTIME", "-w")
    time.sleep(5)
    return Capture(tail(feeder), "fault", ("PHC2SYS_WAITS",))


@broken
def phc2sys_asks_another_domain(bench: Bench) -> Capture:
    bench.ptp4l("n3", "domainNumber 24\n")
    feeder = bench.phc2sys("n3", "-s", "eth0", "-c", "CLOCK_REALTIME", "-w", "-n", "0")
    time.sleep(5)
    conf = "[global]\ndomainNumber 24\n"
    return Capture(
        conf + "[root@n3 ~]# phc2sys -s eth0 -c CLOCK_REALTIME -w -n 0 -m -q\n" + tail(feeder),
        "fault",
        ("DOMAINS_DIFFER",),
    )


@broken
def pmc_asks_another_domain(bench: Bench) -> Capture:
    bench.ptp4l("n3", "domainNumber 24\n")
    time.sleep(2)
    return Capture(bench.say("n3", "pmc", "-u", "-b", "0", "GET TIME_STATUS_NP"), "cannot-tell", ("PMC_NO_REPLY",))


@broken
def option_of_a_newer_version(bench: Bench) -> Capture:
    daemon = bench.ptp4l("n3", "clientOnly 1\n")
    time.sleep(2)
    return Capture(tail(daemon), "fault", ("LINUXPTP_OPTION",))


@broken
def comment_behind_a_value(bench: Bench) -> Capture:
    daemon = bench.ptp4l("n3", "priority2 5 # the backup\n")
    time.sleep(2)
    return Capture(tail(daemon), "fault", ("LINUXPTP_OPTION",))


@broken
def interface_without_hardware_stamps(bench: Bench) -> Capture:
    daemon = bench.ptp4l("n3", clock=False)
    time.sleep(2)
    return Capture(tail(daemon), "fault", ("NIC_NO_TS",))


@broken
def veth_by_ethtool(bench: Bench) -> Capture:
    return Capture(bench.say("n3", "ethtool", "-T", "eth0", clock=False), "not-a-clock-fault", ("NIC_CAPABILITY",))


@broken
def utc_offset_not_valid(bench: Bench) -> Capture:
    bench.ptp4l("n1", "priority1 10\n")
    time.sleep(6)
    return Capture(
        bench.say("n1", "pmc", "-u", "-b", "0", "GET TIME_PROPERTIES_DATA_SET"), "risk", ("UTC_OFFSET_NOT_VALID",)
    )


@broken
def grandmaster_claims_what_it_is_not(bench: Bench) -> Capture:
    bench.ptp4l("n1", "priority1 10\n")
    time.sleep(5)
    claim = (
        "SET GRANDMASTER_SETTINGS_NP clockClass 6 clockAccuracy 0x21 offsetScaledLogVariance 0x4e5d currentUtcOffset "
        "37 "
        "leap61 0 leap59 0 currentUtcOffsetValid 1 ptpTimescale 1 timeTraceable 1 frequencyTraceable 1 timeSource 0xa0"
    )
    bench.say("n1", "pmc", "-u", "-b", "0", claim)
    text = bench.say("n1", "pmc", "-u", "-b", "0", "GET GRANDMASTER_SETTINGS_NP")
    return Capture(text, "risk", ("GM_CLAIM_CONTRADICTS",))


@broken
def software_master_claims_the_ptp_timescale(bench: Bench) -> Capture:
    common = PTP.replace("time_stamping hardware", "time_stamping software")
    bench.ptp4l("n1", "priority1 10\n", common=common)
    time.sleep(3)
    claim = (
        "SET GRANDMASTER_SETTINGS_NP clockClass 248 clockAccuracy 0xfe offsetScaledLogVariance 0xffff "
        "currentUtcOffset 37 "
        "leap61 0 leap59 0 currentUtcOffsetValid 1 ptpTimescale 1 timeTraceable 0 frequencyTraceable 0 timeSource 0xa0"
    )
    bench.say("n1", "pmc", "-u", "-b", "0", claim)
    client = bench.ptp4l("n3", "slaveOnly 1\nfree_running 1\nsummary_interval -3\n", common=common)
    time.sleep(9)
    return Capture(tail(client, 12), "fault", ("TAI_UTC_OFFSET",))


@broken
def jbod_with_software_stamps(bench: Bench) -> Capture:
    common = PTP.replace("time_stamping hardware", "time_stamping software")
    bench.ptp4l("n1", "priority1 10\n", common=common)
    client = bench.ptp4l("n3", "slaveOnly 1\nboundary_clock_jbod 1\n", common=common)
    time.sleep(8)
    return Capture(tail(client), "fault", ("SWITCH_PHC_FAILED",))


@broken
def announce_comes_and_goes(bench: Bench) -> Capture:
    bench.ptp4l("n1", "priority1 10\n")
    client = bench.ptp4l("n3", "priority1 200\n")
    time.sleep(5)
    for _ in range(3):
        bench.lab.link("n1").plug(False)
        time.sleep(3)
        bench.lab.link("n1").plug(True)
        time.sleep(5)
    return Capture(tail(client, 60), "fault", ("MASTERS_FLAP", "MASTER_LOST"))


@broken
def free_running_is_set(bench: Bench) -> Capture:
    bench.lab.phc("n3").set_drift_ppb(40_000)
    bench.ptp4l("n1", "priority1 10\n")
    client = bench.ptp4l("n3", "slaveOnly 1\nfree_running 1\nsummary_interval -2\n")
    time.sleep(14)
    return Capture(tail(client, 40), "fault risk cannot-tell")


@broken
def two_masters_on_the_wire(bench: Bench) -> Capture:
    bench.ptp4l("n1", "masterOnly 1\n")
    bench.ptp4l("n2", "masterOnly 1\n")
    time.sleep(4)
    text = bench.say("n3", "timeout", "4", "tcpdump", "-n", "-i", "eth0", "udp", "port", "320", clock=False)
    return Capture(text, "fault", ("TWO_GRANDMASTERS",))


def versions() -> str:
    said = []
    for argv in (["chronyd", "-v"], ["ptp4l", "-v"], ["ethtool", "--version"], ["tcpdump", "--version"]):
        path = str(find_daemon(argv[0])) if argv[0] in ("chronyd", "ptp4l") else argv[0]
        done = subprocess.run([path, *argv[1:]], capture_output=True, text=True, timeout=10, check=False)
        said.append(f"{argv[0]} {re.findall(r'[0-9]+[.][0-9.]+', done.stdout + done.stderr)[0]}")
    return ", ".join(said)


def entries(names: list[str]) -> Iterator[tuple[str, Capture, str]]:
    for function in BREAKS:
        name = function.__name__
        if names and name not in names:
            continue
        bench = Bench(n3={"drift_ppb": 12_000, "phc": {"offset_ns": 21 * S, "drift_ppb": -9_000}})
        try:
            capture = function(bench)
        finally:
            bench.lab.down()
        sys.stderr.write(f"{name}\n")
        yield name, capture, f"lab; {VERSIONS}; capture.py {name}"


def block(name: str, capture: Capture, provenance: str) -> str:
    rows = [f"== {name.replace('_', '-')}", f"provenance: {provenance}", f"answer: {capture.answer}"]
    rows += [f"finding: {finding}" for finding in capture.findings]
    return "\n".join([*rows, "--", capture.text.rstrip("\n"), "", ""])


VERSIONS = ""


def main(names: list[str]) -> None:
    """Capture all, or only the named ones: then their blocks are replaced in the files, the others stay."""
    global VERSIONS  # noqa: PLW0603  (asked once; the daemons are the same for all)
    VERSIONS = versions()
    order = [function.__name__.replace("_", "-") for function in BREAKS]
    for stem in ("real", "healthy-real"):
        blocks = kept(HERE / f"{stem}.case") if names else {}
        KEPT[stem] = {name: text for name, text in blocks.items() if name in order}
    for name, capture, provenance in entries(names):
        stem = "healthy-real" if capture.answer == "healthy" else "real"
        KEPT[stem][name.replace("_", "-")] = block(name, capture, provenance)
    for stem, blocks in KEPT.items():
        text = "\n".join(blocks[name].rstrip("\n") + "\n" for name in order if name in blocks)
        (HERE / f"{stem}.case").write_text(text, encoding="utf-8")


def kept(path: Path) -> dict[str, str]:
    blocks = re.split(r"^(?=== )", path.read_text(encoding="utf-8"), flags=re.MULTILINE) if path.exists() else []
    return {one.split("\n")[0][3:]: one for one in blocks if one.startswith("== ")}


KEPT: dict[str, dict[str, str]] = {}

if __name__ == "__main__":
    main(sys.argv[1:])
