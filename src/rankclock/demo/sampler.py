"""Runs inside a node: what its daemons claim, read natively, as one JSON object per line on standard output.

`python -m rankclock.demo.sampler NODE PERIOD_S`. Ends with the node.
"""

from __future__ import annotations

import json
import sys
import time

from rankclock.node.state import read_clock_state

__all__ = ["main"]


def main() -> None:
    """Never returns; a reader that is gone ends it."""
    node, period_s = sys.argv[1], float(sys.argv[2])
    while True:
        at_raw_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
        state = read_clock_state(node)
        sys.stdout.write(json.dumps({"at_raw_ns": at_raw_ns, "state": state.to_json()}) + "\n")
        sys.stdout.flush()
        time.sleep(period_s)


if __name__ == "__main__":
    main()
