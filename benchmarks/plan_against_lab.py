"""Planned error budgets against what the lab reaches: NTP, PTP, PTP with NTP behind it.

`python -m benchmarks.plan_against_lab`.

The cluster of examples/lab.yaml, real daemons with the rendered files unedited, true offsets of every node for a minute
after the last tier has settled. A table for each protocol: planned bound, RMS and largest true offset, times beyond.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from rankclock.cluster import Facts
from rankclock.configs import render
from rankclock.lab import Lab, Scenario, load_scenario
from rankclock.lab.apply import apply
from rankclock.planning import Plan, make_plan
from rankclock.timebase import format_span_ns

EXAMPLE = Path(__file__).parents[1] / "examples/lab.yaml"
SETTLE_S = 5.0
WATCH_S = 60.0
EVERY_S = 0.1


def facts_of(lab: Lab, scenario: Scenario) -> dict[str, Facts]:
    """What each node's own probe finds."""
    found = {}
    for node in scenario.cluster.nodes:
        code = f"import json, rankclock.node.facts as f; print(json.dumps(f.collect_facts({node.name!r})))"
        done = lab.run(node.name, [sys.executable, "-c", code], timeout_s=30)
        found[node.name] = Facts.from_json(json.loads(done.stdout))
    return found


def watched(lab: Lab, plan: Plan, reference: str) -> dict[str, list[int]]:
    """True offsets of every planned node, all at one instant each time."""
    offsets_ns: dict[str, list[int]] = {name: [] for name in plan.roles}
    until = time.monotonic() + WATCH_S
    while time.monotonic() < until:
        for name, seen in offsets_ns.items():
            seen.append(lab.true_offset_ns(name, reference))
        time.sleep(EVERY_S)
    return offsets_ns


def report(plan: Plan, offsets_ns: dict[str, list[int]], training: list[str]) -> None:
    """The table, and the worst pair of training nodes."""
    print(f"\n{plan.scheme}: node, planned bound, RMS, largest, beyond the bound")
    for name, seen in offsets_ns.items():
        bound_ns = plan.roles[name].budget.total_ns
        rms_ns = int((sum(value * value for value in seen) / len(seen)) ** 0.5)
        beyond = sum(bound_ns is not None and abs(value) > bound_ns for value in seen)
        bound = "unknown" if bound_ns is None else format_span_ns(bound_ns)
        largest = format_span_ns(max(abs(value) for value in seen))
        print(f"{name:8} {bound:>9} {format_span_ns(rms_ns):>9} {largest:>9} {beyond:>5} of {len(seen)}")
    apart = [
        max(offsets_ns[name][index] for name in training) - min(offsets_ns[name][index] for name in training)
        for index in range(min(len(offsets_ns[name]) for name in training))
    ]
    planned = "unknown" if plan.worst_pair_ns is None else format_span_ns(plan.worst_pair_ns)
    print(f"two training nodes: planned {planned}, largest {format_span_ns(max(apart))}")


def main() -> None:
    """Run both plans, each in a lab of its own."""
    scenario = load_scenario(EXAMPLE)
    for protocol in ("ntp", "ptp", "hybrid"):
        with Lab.up(scenario) as lab:
            facts = facts_of(lab, scenario)
            plan = make_plan(scenario.cluster, facts, protocol)
            nodes = render(plan, scenario.cluster, facts)
            tiers = apply(lab, nodes, accuracy_ns=plan.accuracy_ns, settle_s=SETTLE_S)
            for tier in tiers:
                state = "settled" if tier.settled else "NOT settled"
                print(f"{protocol} tier {tier.tier}: {state} in {tier.took_s:.1f} s")
            training = [node.name for node in scenario.cluster.nodes if node.kind == "training"]
            report(plan, watched(lab, plan, lab.reference), training)


if __name__ == "__main__":
    main()
