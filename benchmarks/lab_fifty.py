"""A lab of 50 real chronyds: start time, CPU share once settled, true error (`python -m benchmarks.lab_fifty`).

One server and 49 clients on one segment, oscillators within ±100 ppm, clocks up to 2.3 s wrong at the start.
"""

from __future__ import annotations

import resource
import statistics
import time
from pathlib import Path

from rankclock.lab import Lab, LabProcess, Scenario
from rankclock.lab.daemons import find_daemon
from rankclock.timebase import NS_PER_MS, format_span_ns

NODES = 50
SETTLE_S = 30.0
CPU_WINDOW_S = 10.0
SAMPLES = 40
START_LIMIT_S = 30.0


def scenario() -> Scenario:
    """Fifty nodes whose clocks are wrong in fixed, different ways."""
    nodes = [
        {"name": f"n{i}", "nics": [{"name": "eth0", "address": f"10.77.0.{i}/24", "segment": "lan"}]}
        for i in range(1, NODES + 1)
    ]
    clocks = {
        f"n{i}": {"offset_ns": (i * 7 % 13 - 6) * 370_000_000, "drift_ppb": ((i * 37) % 201 - 100) * 1000, "phc": None}
        for i in range(2, NODES + 1)
    }
    cluster = {"schema": "rankclock-cluster/1", "name": "fifty", "nodes": nodes}
    return Scenario.model_validate({"schema": "rankclock-lab/1", "cluster": cluster, "clocks": clocks})


def chrony_conf(node: str) -> bytes:
    """The server is a reference of its own; the clients poll it every one to four seconds."""
    common = (
        "pidfile /run/chrony/chronyd.pid\ndriftfile /var/lib/chrony/drift\nbindcmdaddress /run/chrony/chronyd.sock\n"
    )
    if node == "n1":
        return (common + "local stratum 1\nallow\n").encode()
    return (common + "server 10.77.0.1 iburst minpoll 0 maxpoll 2 xleave\nmakestep 0.1 3\n").encode()


def cpu_s(processes: list[LabProcess]) -> float:
    """CPU seconds that the processes have used so far."""
    ticks = 0
    for process in processes:
        fields = Path(f"/proc/{process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / 100


def errors_ns(lab: Lab, names: list[str]) -> list[int]:
    """|true offset| of every client from the server, now."""
    return sorted(abs(lab.true_offset_ns(name, "n1")) for name in names)


def main() -> None:
    """Prints the figures."""
    chronyd = str(find_daemon("chronyd"))
    names = [f"n{i}" for i in range(1, NODES + 1)]
    begun = time.monotonic()
    with Lab.up(scenario()) as lab:
        lab_up_s = time.monotonic() - begun
        processes = []
        for name in names:
            lab.install(name, {"/etc/chrony/chrony.conf": chrony_conf(name)})
            processes.append(lab.spawn(name, [chronyd, "-d", "-u", "root", "-f", "/etc/chrony/chrony.conf"]))
        spawned_s = time.monotonic() - begun
        while errors_ns(lab, names[1:])[-1] > NS_PER_MS:
            if time.monotonic() - begun > START_LIMIT_S:
                raise SystemExit(f"not within 1 ms after {START_LIMIT_S} s: {errors_ns(lab, names[1:])[-5:]}")
            time.sleep(0.05)
        within_s = time.monotonic() - begun
        time.sleep(SETTLE_S)
        cpu_before_s, window = cpu_s(processes), time.monotonic()
        seen = []
        for _ in range(SAMPLES):
            seen += errors_ns(lab, names[1:])
            time.sleep(CPU_WINDOW_S / SAMPLES)
        share = (cpu_s(processes) - cpu_before_s) / (time.monotonic() - window)
    seen.sort()
    print(f"lab of {NODES} nodes up:                   {lab_up_s:.2f} s")
    print(f"all {NODES} chronyds spawned:              {spawned_s:.2f} s")
    print(f"all clients within 1 ms of the truth: {within_s:.2f} s")
    print(f"CPU of all chronyds once settled:     {100 * share:.1f} % of one core")
    print(f"true error, median:                   {format_span_ns(int(statistics.median(seen)))}")
    print(f"true error, p99:                      {format_span_ns(seen[len(seen) * 99 // 100])}")
    print(f"peak memory of this process:          {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MB")


if __name__ == "__main__":
    main()
