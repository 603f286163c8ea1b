"""`rankclock assess`: which way of keeping time suits this cluster, question by question."""

from __future__ import annotations

from rankclock.cli.output import out, print_json
from rankclock.cli.plan_input import ClusterFile, FactsPlace, Json, ProtocolAsked, planned
from rankclock.errors import ExitCode

__all__ = ["assess"]


def assess(
    cluster_file: ClusterFile, facts: FactsPlace = None, protocol: ProtocolAsked = None, as_json: Json = False
) -> int:
    """Choose between NTP and PTP: every question with its answer, the evidence, and what would change it.

    Unknown facts never count as a yes. Exit 0 where a way was found, 1 where what was asked for cannot be.

    \b
    Example: rankclock assess examples/lab.yaml --facts facts/ --protocol ptp
    """
    from rankclock.planning import decision_text
    from rankclock.planning.codec import to_plain

    _, _, plan = planned(cluster_file, facts, protocol)
    decision = plan.decision
    if as_json:
        print_json({"schema": "rankclock-decision/1", "cluster": plan.cluster, **to_plain(decision)})
    else:
        out().print(decision_text(decision), end="", markup=False)
    return ExitCode.OK if decision.scheme is not None else ExitCode.CHECK_FAILED
