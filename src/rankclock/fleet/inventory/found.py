"""What any list of machines tells: names, racks, addresses, and why a machine was left out. Values only.

Refuses names that no cluster file may hold, each with where it stood: names go into files, paths and shell lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address

from rankclock.cluster.model import NodeKind, Provider
from rankclock.errors import UserError

__all__ = ["MAX_BYTES", "Inventory", "Machine", "address_of", "collected", "rack_name"]

MAX_BYTES = 64 << 20
"""A list of 10,000 machines as Kubernetes tells it is about 50 MB."""

MAX_MACHINES = 200_000

_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One machine. where: its place in the list, for messages. address: numeric, None where the list has none."""

    name: str
    where: str
    rack: str | None = None
    address: str | None = None
    kind: NodeKind = NodeKind.TRAINING
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """All machines of a list. left_out: name to reason. unknown: what the list cannot tell."""

    source: str
    machines: tuple[Machine, ...]
    left_out: dict[str, str]
    unknown: tuple[str, ...] = ()
    provider: Provider | None = None


def collected(
    source: str,
    machines: Iterable[Machine],
    *,
    left_out: dict[str, str] | None = None,
    unknown: tuple[str, ...] = (),
    provider: Provider | None = None,
) -> Inventory:
    """An inventory whose names are sound and stand once. Raises UserError, one line with the place."""
    found: dict[str, Machine] = {}
    for machine in machines:
        if not _NAME.fullmatch(machine.name):
            raise UserError(
                f"{machine.where}: {machine.name!r:.80} is no host name for a cluster file: "
                "expected lower-case letters, digits, '-' and '.'"
            )
        before = found.get(machine.name)
        if before is not None:
            raise UserError(f"{machine.where}: machine {machine.name!r} is given twice, first at {before.where}")
        found[machine.name] = machine
        if len(found) > MAX_MACHINES:
            raise UserError(f"{machine.where}: more than {MAX_MACHINES} machines")
    if not found:
        reasons = "".join(f"; {name}: {why}" for name, why in list((left_out or {}).items())[:2])
        raise UserError(f"{source}: no machine to write down{reasons}")
    _addresses_once(found.values())
    return Inventory(
        source=source, machines=tuple(found.values()), left_out=left_out or {}, unknown=unknown, provider=provider
    )


def _addresses_once(machines: Iterable[Machine]) -> None:
    seen: dict[str, Machine] = {}
    for machine in machines:
        other = seen.setdefault(machine.address, machine) if machine.address is not None else machine
        if other is not machine:
            raise UserError(f"{machine.where}: {machine.name} has the address {machine.address} of {other.name}")


def address_of(text: str | None) -> str | None:
    """A numeric address of another machine than this one; None for names, loopback and nothing."""
    try:
        address = ip_address(text or "")
    except ValueError:
        return None
    return None if address.is_loopback or address.is_unspecified or address.is_multicast else str(address)


def rack_name(text: str) -> str:
    """A rack's name as a cluster file may hold it: lower case, everything else a '-'."""
    return re.sub(r"[^a-z0-9.-]+", "-", text.lower()).strip("-.")[:63] or "rack"
