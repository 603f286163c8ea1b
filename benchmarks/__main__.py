"""All benchmarks, one after the other (`make bench`), about twenty minutes; one alone: `python -m benchmarks.NAME`."""

from __future__ import annotations

import subprocess
import sys

NAMES = (
    "probe_accuracy",
    "lab_fifty",
    "plan_against_lab",
    "plan_scale",
    "doctor",
    "tolerances",
    "clock_truth",
    "clock_methods",
    "clock_faults",
    "clock_cost",
    "mesh_scale",
    "training_cost",
    "damage",
    "agent_cost",
    "agent_many",
    "agent_states",
)


def main() -> int:
    """The worst exit code."""
    worst = 0
    for name in NAMES:
        print(f"\n== python -m benchmarks.{name}", flush=True)
        worst = max(worst, subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False).returncode)
    return worst


if __name__ == "__main__":
    sys.exit(main())
