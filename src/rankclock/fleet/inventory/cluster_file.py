"""A cluster file from an inventory, for people to go on with: ranges, and comments on what the list could not tell.

`merged` puts new machines into a file that people have edited, keeps every word of theirs, and names machines that are
no longer listed; it takes nothing away.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_interface
from itertools import groupby
from typing import Any

from rankclock.cluster import parse_cluster
from rankclock.cluster.expand import expand_nodes
from rankclock.cluster.hostlist import fold
from rankclock.cluster.model import NetworkKind, NodeKind
from rankclock.errors import UserError
from rankclock.fleet.inventory.found import Inventory, Machine

__all__ = ["cluster_text", "merged"]

_FOLDED = 4
"""So few names left out are named one by one."""


def cluster_text(inventory: Inventory, *, name: str, nic: str | None = None, prefix: int | None = None) -> str:
    """The file's text. nic, prefix: the interface that has the listed addresses, and its networks' prefix length.

    Raises UserError where the parts make no cluster file.
    """
    lines = [
        f"# Written from {_one_line(inventory.source)}. Yours to edit: --merge adds machines and keeps your words."
    ]
    lines += [f"# {note}" for note in _notes(inventory, nic=nic)]
    lines += ["schema: rankclock-cluster/1", f"name: {name}", ""]
    if inventory.provider is not None:
        lines += ["network:", f"  kind: {NetworkKind.CLOUD.value}", f"  provider: {inventory.provider.value}", ""]
    else:
        lines += [
            "# Where time comes from; three or more, so that a wrong one is outvoted:",
            "# sources:",
            "#   - {name: ntp1, address: 192.0.2.1}",
            "",
        ]
    lines.append("nodes:")
    for entry in _entries(inventory.machines, nic=nic, prefix=prefix):
        lines += entry
    text = "\n".join(lines) + "\n"
    parse_cluster(text, inventory.source)  # what is written can be read
    return text


def _notes(inventory: Inventory, *, nic: str | None) -> Iterator[str]:
    yield from (f"Not known: {what}" for what in inventory.unknown)
    if nic is None and any(machine.address for machine in inventory.machines):
        yield "Not known: which NIC has the listed addresses (give --nic and --prefix, or write nics:)"
    elif nic is None:
        yield "Not known: NICs and addresses; nodes are reached by their names"
    reasons: dict[str, list[str]] = {}
    for name, why in inventory.left_out.items():
        reasons.setdefault(why, []).append(name)
    for why, left in reasons.items():
        shown = (
            ", ".join(left) if len(left) <= _FOLDED else f"{', '.join(left[:_FOLDED])} and {len(left) - _FOLDED} more"
        )
        yield f"Left out: {_one_line(shown)}: {_one_line(why)}"


def _one_line(text: str) -> str:
    """Text for a comment: nothing in it ends the line."""
    return "".join(mark if mark.isprintable() else "?" for mark in text)[:300]


def _entries(machines: tuple[Machine, ...], *, nic: str | None, prefix: int | None) -> Iterator[list[str]]:
    for (rack, kind), together in groupby(machines, key=lambda machine: (machine.rack, machine.kind)):
        for group in _foldable(list(together), with_address=nic is not None):
            yield _entry(group, rack, kind, nic=nic, prefix=prefix)


def _foldable(machines: list[Machine], *, with_address: bool) -> Iterator[list[Machine]]:
    """Runs of machines that one pattern says: names and, where they are written, addresses too."""
    run: list[Machine] = []
    for machine in machines:
        longer = [*run, machine]
        if run and not (_one_pattern([m.name for m in longer]) and (not with_address or _addresses_fold(longer))):
            yield run
            longer = [machine]
        run = longer
    if run:
        yield run


def _addresses_fold(machines: list[Machine]) -> bool:
    addresses = [machine.address for machine in machines]
    if None in addresses:
        return not any(addresses)
    return _one_pattern([str(address) for address in addresses])


def _one_pattern(texts: list[str]) -> bool:
    """Whether only the last number of the last two differs: looks at the seam alone, runs are built one by one."""
    return fold(texts[-2:]).count("[") == 1 if len(texts) > 1 else True


def _entry(group: list[Machine], rack: str | None, kind: NodeKind, *, nic: str | None, prefix: int | None) -> list[str]:
    notes = [f"  # {machine.name}: {_one_line(machine.note)}" for machine in group if machine.note]
    lines = [*notes, f"  - name: {fold(machine.name for machine in group)}"]
    if kind is not NodeKind.TRAINING:
        lines.append(f"    kind: {kind.value}")
    if rack is not None:
        lines.append(f"    rack: {rack}")
    addresses = [machine.address for machine in group if machine.address is not None]
    if nic is not None and addresses:
        length = prefix if prefix is not None else (24 if "." in addresses[0] else 64)
        networks = sorted({str(ip_interface(f"{address}/{length}").network) for address in addresses})
        if len(networks) > 1:
            names = fold(machine.name for machine in group)
            raise UserError(f"{group[0].where}: {names} are in {len(networks)} networks of /{length}: give --prefix")
        segment = "net-" + networks[0].partition("/")[0].replace(":", "-").strip("-").replace(".", "-")
        lines.append("    nics:")
        lines.append(f'      - {{name: {nic}, address: "{fold(addresses)}/{length}", segment: {segment}}}')
    return lines


def merged(
    existing: str, path: str, inventory: Inventory, *, nic: str | None = None, prefix: int | None = None
) -> tuple[str, list[str], list[str]]:
    """The file's text with the new machines behind its nodes; names that are new; names that are no longer listed.

    Raises UserError where the file is no cluster file.
    """
    from ruamel.yaml import YAML

    parse_cluster(existing, path)
    tree: Any = YAML(typ="rt").load(existing)
    if tree.get("schema") != "rankclock-cluster/1":
        raise UserError(f"{path}: a cluster file is wanted, found {tree.get('schema')}")
    if tree["nodes"].fa.flow_style():
        raise UserError(f"{path}: its nodes stand in one list [...]: write them one below the other to merge")
    known = {str(node["name"]) for _, node in expand_nodes(YAML(typ="safe").load(existing)["nodes"])}
    new = tuple(machine for machine in inventory.machines if machine.name not in known)
    gone = sorted(known - {machine.name for machine in inventory.machines})
    if not new:
        return existing, [], gone
    added = "\n".join(line for entry in _entries(new, nic=nic, prefix=prefix) for line in entry)
    text = _appended(existing, added, tree["nodes"])
    parse_cluster(text, path)
    return text, [machine.name for machine in new], gone


def _appended(existing: str, added: str, nodes: Any) -> str:
    """The entries behind the last line of `nodes:`, in the indentation of that list; nothing else is touched."""
    lines = existing.splitlines()
    first = nodes.lc.data[0][0]
    dash = _indent(lines[first])
    end = first + 1
    for number in range(first + 1, len(lines)):
        line = lines[number]
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if _indent(line) < dash or (_indent(line) == dash and not line.lstrip().startswith("-")):
            break
        end = number + 1
    indented = [" " * dash + line.removeprefix("  ") for line in added.splitlines()]
    line_end = "\r\n" if "\r\n" in existing else "\n"
    return line_end.join([*lines[:end], *indented, *lines[end:]]) + line_end


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
