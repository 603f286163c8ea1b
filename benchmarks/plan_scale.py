"""Plans of very many nodes: time and memory (`python -m benchmarks.plan_scale`).

25 nodes and a boundary clock a rack, two grandmasters. Goals: 10,000 planned and rendered in 10 s and 1 GB, 100,000
planned in 60 s. Each size in a process of its own; limits are printed beside what was needed.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time

from rankclock.cluster import Protocol, parse_cluster
from rankclock.configs import render
from rankclock.planning import make_plan

SIZES = ((10_000, True), (100_000, False))
NODES_A_RACK = 25
LIMITS = {(10_000, True): (10.0, 1024), (100_000, False): (60.0, None)}


def cluster_text(nodes: int) -> str:
    """A cluster file with that many training nodes; segments need no more than 254 racks a second octet."""
    racks = nodes // NODES_A_RACK
    lines = [
        "schema: rankclock-cluster/1",
        f"name: scale-{nodes}",
        "require: {accuracy: 5us}",
        "network: {kind: rocev2}",
        "sources: [{name: up, address: 10.0.0.1}]",
        "nodes:",
        '  - {name: "time[1-2]", kind: server, nics: [{name: e0, address: "10.0.0.[11-12]/16", segment: spine, '
        "stamps: hardware}]}",
    ]
    for rack in range(racks):
        high, low = 1 + rack // 250, 1 + rack % 250
        up = 256 + rack
        lines += [
            f"  - name: leaf{rack}",
            "    kind: switch",
            f"    rack: rack{rack}",
            "    nics:",
            f"      - {{name: up, address: 10.0.{up >> 8}.{up & 255}/16, segment: spine, stamps: hardware}}",
            f"      - {{name: down, address: 10.{high}.{low}.254/24, segment: rack{rack}, stamps: hardware}}",
            f'  - {{name: "r{rack}n[01-{NODES_A_RACK}]", rack: rack{rack}, nics: [{{name: e0, address: '
            f'"10.{high}.{low}.[1-{NODES_A_RACK}]/24", segment: rack{rack}, stamps: hardware}}]}}',
        ]
    return "\n".join(lines) + "\n"


def one(nodes: int, *, rendered: bool) -> None:
    """Plan (and render) once and print what it took."""
    text = cluster_text(nodes)
    start = time.monotonic()
    cluster = parse_cluster(text, "scale.yaml")
    loaded = time.monotonic()
    plan = make_plan(cluster, protocol=Protocol.AUTO)
    planned = time.monotonic()
    assert plan.usable, plan.refused[:1]
    files = sum(len(node.files) for node in render(plan, cluster).values()) if rendered else 0
    end = time.monotonic()
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    seconds, mib = LIMITS[nodes, rendered]
    print(
        f"{nodes} nodes, {plan.scheme}: load {loaded - start:.1f} s, plan {planned - loaded:.1f} s, "
        f"render {end - planned:.1f} s ({files} files); peak {peak_mib} MiB; plan and render {end - loaded:.1f} s "
        f"of {seconds:g} s allowed" + (f", {peak_mib} of {mib} MiB" if mib else "")
    )


def main() -> None:
    """Every size."""
    if len(sys.argv) > 1:
        one(int(sys.argv[1]), rendered=sys.argv[2] == "render")
        return
    for nodes, rendered in SIZES:
        what = "render" if rendered else "plan"
        subprocess.run([sys.executable, "-m", "benchmarks.plan_scale", str(nodes), what], check=True)


if __name__ == "__main__":
    main()
