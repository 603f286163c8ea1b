"""How cluster time spreads over many hosts: the very state machine of the prober, in virtual time.

    python -m benchmarks.mesh_scale [HOSTS ...] [--json]   # default 64 512 4096: about three minutes

Every host probes as `rankclock.training.peers` chooses; bursts are of one pair here, to spare real time. A round is one
burst of every host. Hosts begin together and know nothing; paths take 3 to 60 µs each way, which is what the error is
made of. Packets: what a host sent up to the instant when the last host knew its offset, its answers included.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import sys
import time
from typing import Any

from rankclock.mesh.settings import ProbeSettings
from rankclock.simulate.cluster_time import Job, build
from rankclock.timebase import format_span_ns
from rankclock.training.peers import choose_peers

MS = 1_000_000
ROUND_MS = 250
SETTINGS = ProbeSettings(
    pairs=1,
    collect_ns=10 * MS,
    reply_wait_ns=100 * MS,
    start_ns=tuple(turn * ROUND_MS * MS for turn in range(12)),
    requests_per_s=256,
    request_burst=512,
)
LIMIT_MS = 12 * ROUND_MS


def known(job: Job) -> int:
    """How many hosts know their offset to cluster time."""
    followers = (host.follower for host in job.simulation.hosts.values())
    return sum(one is not None and one.timescale.relation is not None for one in followers)


def measure(count: int) -> dict[str, Any]:
    """One size."""
    began = time.monotonic()
    job = build(count, count=count, for_s=5, peers=choose_peers, settings=SETTINGS)
    at_ms = 0
    while known(job) < count and at_ms < LIMIT_MS:
        at_ms += 10
        job.simulation.run(at_ms * MS)
        job.simulation.samples.clear()
    sent = [job.simulation.hosts[name].sent for name in job.names]
    leaders = math.isqrt(count) if count > 128 else 0
    errors, held, hops = [], 0, 0
    newest = {told.host: told for told in job.simulation.told if told.record.relation is not None}
    for told in newest.values():
        way = told.record.relation
        truth_ns = job.simulation.true_cluster_offset_ns(told, told.record.at_raw_ns)
        assert way is not None
        assert truth_ns is not None
        lo_ns, hi_ns = way.bounds_at(told.record.at_raw_ns)
        held += lo_ns <= truth_ns <= hi_ns
        errors.append(abs(way.estimate_at(told.record.at_raw_ns) - truth_ns))
        hops = max(hops, told.record.hops)
    return {
        "hosts": count,
        "known": known(job),
        "held": held,
        "converged_ms": at_ms,
        "rounds": -(-at_ms // ROUND_MS),
        "rounds_allowed": math.ceil(math.log2(count)) + 2,
        "hops": hops,
        "packets_reference": sent[0],
        "packets_leader": max(sent[1 : 1 + leaders], default=0),
        "packets_host": sorted(sent[1 + leaders :])[-(count // 100) - 1],
        "worst_error_ns": max(errors),
        "wall_s": round(time.monotonic() - began, 1),
        "memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def main() -> int:
    """Run and print; 1 where a bound did not hold, a host knew nothing, or it took too many rounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("hosts", type=int, nargs="*", default=[64, 512, 4096])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = [measure(count) for count in options.hosts]
    if options.json:
        print(json.dumps(rows))
    else:
        head = ["hosts", "known", "held", "virtual time", "rounds", "allowed", "hops", "packets: reference", "leader"]
        table = [[*head, "host (p99)", "worst error", "wall time", "memory"]]
        for row in rows:
            plain = [row[key] for key in ("hosts", "known", "held")]
            plain += [f"{row['converged_ms']} ms", row["rounds"], row["rounds_allowed"], row["hops"]]
            plain += [row["packets_reference"], row["packets_leader"], row["packets_host"]]
            plain += [format_span_ns(row["worst_error_ns"]), f"{row['wall_s']} s", f"{row['memory_mib']} MiB"]
            table.append([str(item) for item in plain])
        widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
        for line in table:
            print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())
    good = all(row["known"] == row["held"] == row["hosts"] and row["rounds"] <= row["rounds_allowed"] for row in rows)
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
