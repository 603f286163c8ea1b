"""`python -m rankclock.node facts|status [--node NAME]`: one JSON object on stdout; the packed probe enters here."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Collects and prints; 0, or argparse's 2 for wrong use."""
    parser = argparse.ArgumentParser(prog="rankclock-probe", description="The clocks of this machine, as JSON.")
    parser.add_argument("what", choices=("facts", "status"), nargs="?", default="facts")
    parser.add_argument("--node", help="the name to give this machine (default: its host name)")
    chosen = parser.parse_args(arguments)
    if chosen.what == "facts":
        from rankclock.node.facts import collect_facts

        found = collect_facts(chosen.node)
    else:
        from rankclock.node.state import read_clock_state

        found = read_clock_state(chosen.node).to_json()
    sys.stdout.write(json.dumps(found, ensure_ascii=False) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
