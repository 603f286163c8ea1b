"""Machines as Slurm knows them: `scontrol show nodes --oneliner`, and racks from its topology or from features.

Machines that are down or drained are machines all the same, and are noted; those that do not exist yet (FUTURE, CLOUD,
powered down) are left out. Pure, but for `ask`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from rankclock.cluster.hostlist import expand
from rankclock.errors import DecodeError, PeerError, UserError
from rankclock.fleet.inventory.found import Inventory, Machine, address_of, collected, rack_name
from rankclock.fleet.inventory.run import output_of

__all__ = ["ask", "inventory_of", "racks_of"]

_NOT_YET = {"FUTURE", "CLOUD", "POWERED_DOWN", "POWERING_DOWN", "DYNAMIC_FUTURE"}
_OUT = {"DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "NOT_RESPONDING", "MAINT", "INVAL"}


def ask() -> tuple[str, str]:
    """What scontrol says of nodes and of the topology (empty where there is none). Raises HostError, PeerError."""
    nodes = output_of(("scontrol", "show", "nodes", "--oneliner"), package="slurm-client")
    try:
        topology = output_of(("scontrol", "show", "topology"), package="slurm-client")
    except PeerError:  # no topology plugin: racks are not known
        topology = ""
    return nodes, topology


def racks_of(topology: str, name: str = "scontrol show topology") -> dict[str, str]:
    """Node to the switch that it is plugged into (level 0). Raises UserError."""
    racks: dict[str, str] = {}
    for number, line in enumerate(topology.splitlines(), 1):
        switch, level, nodes = (_field(line, key) for key in ("SwitchName", "Level", "Nodes"))
        if switch is None or level != "0" or nodes is None:
            continue
        try:
            racks |= dict.fromkeys(expand(nodes), rack_name(switch))
        except DecodeError as error:
            raise UserError(f"{name}:{number}: {error}") from None
    return racks


def inventory_of(
    nodes: str,
    *,
    racks: Mapping[str, str] | None = None,
    partition: str | None = None,
    rack_feature: str | None = None,
    name: str = "scontrol show nodes",
) -> Inventory:
    """The machines of `scontrol show nodes` (one a line, or in blocks). Raises UserError.

    racks: by node. rack_feature: a regular expression; the first feature that it matches whole names the rack.
    """
    pattern = _pattern(rack_feature)
    machines, left_out = [], {}
    for number, record in _records(nodes):
        node = _field(record, "NodeName")
        if node is None:
            raise UserError(f"{name}:{number}: expected NodeName=..., found {record.strip()[:60]!r}")
        states = set((_field(record, "State") or "UNKNOWN").rstrip("*~#!%$@^-").split("+"))
        if partition is not None and partition not in (_field(record, "Partitions") or "").split(","):
            left_out[node] = f"not in partition {partition}"
        elif states & _NOT_YET:
            left_out[node] = f"state {'+'.join(sorted(states & _NOT_YET))}: no machine yet"
        else:
            features = (_field(record, "ActiveFeatures") or _field(record, "AvailableFeatures") or "").split(",")
            by_feature = next((item for item in features if pattern is not None and pattern.fullmatch(item)), None)
            machines.append(
                Machine(
                    name=node,
                    where=f"{name}:{number}",
                    rack=rack_name(by_feature) if by_feature else (racks or {}).get(node),
                    address=address_of(_field(record, "NodeAddr")),
                    note=f"Slurm says {'+'.join(sorted(states & _OUT))}" if states & _OUT else None,
                )
            )
    unknown = () if any(machine.rack for machine in machines) else ("racks (no topology, no --rack-feature)",)
    return collected(f"Slurm ({name})", machines, left_out=left_out, unknown=unknown)


def _pattern(text: str | None) -> re.Pattern[str] | None:
    try:
        return re.compile(text) if text else None
    except re.error as error:
        raise UserError(f"--rack-feature {text!r:.60}: no regular expression: {error}") from None


def _records(text: str) -> Iterator[tuple[int, str]]:
    """Each node's record with its first line's number: one line, or a block whose further lines are indented."""
    first, parts = 0, [""]
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("NodeName=") or (line.strip() and not line[0].isspace()):
            if parts[0]:
                yield first, " ".join(parts)
            first, parts = number, [line]
        elif line.strip():
            parts.append(line.strip())
    if parts[0]:
        yield first, " ".join(parts)


def _field(record: str, key: str) -> str | None:
    """The first value of a key. Free text (Reason, Comment) stands behind all that is asked for here."""
    match = re.search(rf"(?:^|\s){key}=(\S*)", record)
    return match[1] if match and match[1] not in ("", "(null)", "N/A") else None
