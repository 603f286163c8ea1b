"""Which host of a list this one is: by its name first, by its addresses where no name fits.

Refuses to guess: where two entries fit, or none, it says so and asks for `--rank`.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence

from rankclock.errors import UserError
from rankclock.timebase import NS_PER_S
from rankclock.training.connection import Unreachable, resolve

__all__ = ["is_own_address", "own_index"]

_RESOLVE_NS = 5 * NS_PER_S


def own_index(hosts: Sequence[str], *, own_name: str | None = None) -> int:
    """This host's place in the list. Raises UserError where it is not there once."""
    name = own_name if own_name is not None else socket.gethostname()
    for same in (_equal, _same_first_label):
        found = [index for index, host in enumerate(hosts) if same(host, name)]
        if len(found) == 1:
            return found[0]
    until_ns = time.monotonic_ns() + _RESOLVE_NS
    found = [index for index, host in enumerate(hosts) if is_own_address(host, until_ns=until_ns)]
    if len(found) == 1:
        return found[0]
    which = f"{len(found)} of them are this host" if found else "none of them is this host"
    raise UserError(f"--hosts names {len(hosts)} hosts and {which} ({name}): give --rank")


def is_own_address(host: str, *, until_ns: int | None = None) -> bool:
    """Whether one of the host's addresses is an address of this machine; False where it does not resolve."""
    deadline_ns = until_ns if until_ns is not None else time.monotonic_ns() + _RESOLVE_NS
    try:
        addresses = resolve(host, 9, deadline_ns)
    except Unreachable:
        return False
    return any(_is_own(family, target) for family, _, _, _, target in addresses)


def _is_own(family: int, target: tuple[str, int]) -> bool:
    """To reach itself a machine uses the address itself as source; no packet is sent by connecting a UDP socket."""
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(target)
        except OSError:
            return False
        return bool(probe.getsockname()[0] == target[0])


def _equal(host: str, name: str) -> bool:
    return host.lower() == name.lower()


def _same_first_label(host: str, name: str) -> bool:
    """gpu1 and gpu1.cluster.example are one host; 10.0.0.1 and 10.0.0.2 are not."""
    ours, theirs = host.lower().split("."), name.lower().split(".")
    return ours[0] == theirs[0] and not ours[0].isdigit() and (len(ours) == 1 or len(theirs) == 1)
