"""Machines of an Ansible inventory, read by Ansible's own parser (`ansible-inventory --list`): any format, any plugin.

Racks are groups whose names match a pattern; servers are the hosts of a named group. Pure, but for `ask`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rankclock.cluster.model import NodeKind
from rankclock.errors import UserError
from rankclock.fleet.inventory.found import Inventory, Machine, address_of, collected, rack_name
from rankclock.fleet.inventory.run import output_of

__all__ = ["RACK_GROUPS", "ask", "inventory_of"]

RACK_GROUPS = r"rack[-_]?\w+"
"""Which groups are racks where nothing else is said."""


def ask(inventory: Path) -> str:
    """What ansible-inventory makes of a file or folder. Raises HostError, PeerError, UserError."""
    if not inventory.exists():
        raise UserError(f"{inventory}: no such file or folder: expected an Ansible inventory")
    argv = ("ansible-inventory", "--list", "--export", "-i", str(inventory))
    return output_of(argv, package="ansible-core (pip install 'rankclock[ansible]')")


def inventory_of(
    listed: str,
    *,
    group: str = "all",
    racks: str = RACK_GROUPS,
    servers: str | None = None,
    name: str = "ansible-inventory --list",
) -> Inventory:
    """The machines of `ansible-inventory --list`. Raises UserError."""
    tree = _tree(listed, name)
    try:
        pattern = re.compile(racks)
    except re.error as error:
        raise UserError(f"--racks {racks!r:.60}: no regular expression: {error}") from None
    for wanted in filter(None, (group, servers)):
        if wanted not in tree and wanted != "all":
            known = ", ".join(sorted(key for key in tree if key != "_meta")[:8])
            raise UserError(f"{name}: no group {wanted!r:.60}: expected one of {known}")
    serving = set(_hosts(tree, servers)) if servers else set()
    rack_of: dict[str, str] = {}
    for key in tree:
        if pattern.fullmatch(key):
            rack_of |= dict.fromkeys(_hosts(tree, key), rack_name(key))
    variables = tree.get("_meta", {}).get("hostvars", {})
    machines = [
        Machine(
            name=host,
            where=f"{name}: host {host[:60]!r}",
            rack=rack_of.get(host),
            address=address_of(_text(variables, host)) or address_of(host),
            kind=NodeKind.SERVER if host in serving else NodeKind.TRAINING,
        )
        for host in [*(_hosts(tree, servers) if servers else ()), *_hosts(tree, group)]
    ]
    unique = {machine.name: machine for machine in machines}
    unknown = () if rack_of else (f"racks (no group whose name matches {racks})",)
    return collected(f"Ansible ({name})", unique.values(), unknown=unknown)


def _text(variables: Any, host: str) -> str | None:
    of_host = variables.get(host) if isinstance(variables, Mapping) else None
    value = of_host.get("ansible_host") if isinstance(of_host, Mapping) else None
    return value if isinstance(value, str) else None


def _tree(text: str, name: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{name}: not JSON: {str(error)[:120]}; expected `ansible-inventory --list`") from None
    if not isinstance(value, dict) or not all(isinstance(item, dict) for item in value.values()):
        raise UserError(f"{name}: expected groups as `ansible-inventory --list` prints them")
    return value


def _hosts(tree: Mapping[str, Any], group: str) -> list[str]:
    """Every host of a group and of those below it, in order, each once. A circle of groups ends where it began."""
    found: dict[str, None] = {}
    waiting, seen = [group], set()
    while waiting:
        name = waiting.pop(0)
        if name in seen:
            continue
        seen.add(name)
        part = tree.get(name, {})
        found |= dict.fromkeys(host for host in part.get("hosts", ()) if isinstance(host, str))
        waiting += [child for child in part.get("children", ()) if isinstance(child, str)]
    return list(found)
