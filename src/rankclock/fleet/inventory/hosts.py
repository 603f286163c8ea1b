"""Plain lists of hosts: one or more a line, ranges, hostfiles of MPI (`gpu1 slots=8`, `gpu1:8`), lines of /etc/hosts.

Pure. A line is `ADDRESS NAME...` where it begins with an address, else names. Refuses words that are neither.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import ip_address

from rankclock.cluster.hostlist import MAX_HOSTS, expand
from rankclock.errors import DecodeError, UserError
from rankclock.fleet.inventory.found import Inventory, Machine, address_of, collected

__all__ = ["inventory_of"]

_SETTING = re.compile(r"(slots|max[_-]slots)=\d+")
_COUNT = re.compile(r":\d+$")
_EVERYWHERE = ("localhost", "ip6-localhost", "ip6-loopback", "ip6-allnodes", "ip6-allrouters", "broadcasthost")


def inventory_of(text: str, *, name: str = "hosts") -> Inventory:
    """The machines of a host list. Raises UserError."""
    machines = list(_machines(text, name))
    unknown = ["racks"] + ([] if any(machine.address for machine in machines) else ["addresses"])
    return collected(f"the host list {name}", machines, unknown=tuple(unknown))


def _machines(text: str, name: str) -> Iterator[Machine]:
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        where = f"{name}:{number}"
        if _is_address(words[0]) and len(words) > 1:
            if words[1] not in _EVERYWHERE and address_of(words[0]) is not None:
                yield Machine(name=words[1], where=where, address=address_of(words[0]))
            continue
        for word in _lists(words):
            try:
                names = expand(_COUNT.sub("", word), limit=MAX_HOSTS)
            except DecodeError as error:
                raise UserError(f"{where}: {error}") from None
            yield from (Machine(name=one, where=where) for one in names)


def _is_address(word: str) -> bool:
    try:
        ip_address(word.partition("%")[0])
    except ValueError:
        return False
    return True


def _lists(words: list[str]) -> Iterator[str]:
    """Words without settings and commas between lists."""
    for word in words:
        if not _SETTING.fullmatch(word):
            yield word.strip(",")
