"""`rankclock plan`: who serves time to whom, and how far apart that lets two nodes be."""

from __future__ import annotations

from rankclock.cli.output import out, print_json
from rankclock.cli.plan_input import ClusterFile, FactsPlace, Json, MeasuredFile, ProtocolAsked, exit_code, planned

__all__ = ["plan"]


def plan(
    cluster_file: ClusterFile,
    *,
    facts: FactsPlace = None,
    protocol: ProtocolAsked = None,
    measured: MeasuredFile = None,
    as_json: Json = False,
) -> int:
    """Plan the roles of all nodes as a tree, with the error budget of each, against the accuracy asked for.

    Exit 0 where the accuracy is reached, 1 where it cannot be or a node has no role (each with its reason),
    4 where the budget's bound is too wide to tell before it is measured.

    \b
    Example: rankclock plan examples/lab.yaml --protocol ptp --facts facts/
    """
    from rankclock.planning import plan_text

    _, _, made = planned(cluster_file, facts, protocol, measured)
    if as_json:
        print_json(made.to_json())
    else:
        out().print(plan_text(made), end="", markup=False)
    return exit_code(made)
