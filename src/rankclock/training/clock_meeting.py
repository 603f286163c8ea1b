"""Where the ranks of a job meet for their clock: over torch's store where there is one, else as `rankclock verify`.

Of an initialised torch.distributed only the default store is used, and only for one small value: rank 0 listens on a
port of its own and leaves its address and a fresh key in the store; everything else goes over our own connections. No
collective, no group, no waiting call on the store, which the job may need at the same time. Works with any backend.
Decides which way is taken; refuses nothing itself. Imports torch only where the process has done so already.
"""

from __future__ import annotations

import json
import secrets
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

from rankclock.errors import PeerError
from rankclock.training.connection import Unreachable, listen, resolve
from rankclock.training.environment import Launcher, MeetingPoint, Place, launched
from rankclock.training.job import JobOptions, find_seat
from rankclock.training.rendezvous import Rendezvous, meet, read_key_file
from rankclock.training.whoami import is_own_address

__all__ = ["Store", "StoreSeat", "meet_over_store", "open_meeting", "store_seat"]

POLL_S = 0.05
KEY_BYTES = 32
NS_PER_S = 1_000_000_000


class Store(Protocol):
    """What is used of a torch.distributed store: no call of these waits for another rank."""

    def set(self, key: str, value: str) -> None:
        """Leave a value."""

    def get(self, key: str) -> bytes:
        """A value that `check` has seen."""

    def check(self, keys: list[str]) -> bool:
        """Whether all of them are there."""

    def add(self, key: str, amount: int) -> int:
        """Count; the new value."""


class StoreSeat:
    """A store, this process's rank in it, and how many ranks there are."""

    def __init__(self, store: Store, *, rank: int, world_size: int) -> None:
        self.store, self.rank, self.world_size = store, rank, world_size


def open_meeting(options: JobOptions, env: Mapping[str, str], *, purpose: str, process_group: Any = None) -> Rendezvous:
    """Meet the other ranks. What the user named goes first, then torch's store, then the launcher's variables;
    where there is none of these, the process is alone.

    Raises UserError, HostError, PeerError as `rankclock.training.rendezvous.meet`.
    """
    named = options.rendezvous or options.hosts or env.get("RANKCLOCK_RENDEZVOUS")
    seat = None if named else store_seat(process_group)
    if seat is not None:
        return meet_over_store(seat, env, purpose=purpose, job=options.job, timeout_s=options.timeout_s)
    told = (options.hosts, options.rank, options.world_size, options.rendezvous, env.get("RANKCLOCK_RENDEZVOUS"))
    if not any(one is not None for one in told) and not launched(env):
        # A plain `python train.py`: a job of one rank, whose clock is the reference.
        options = replace(options, rank=0, world_size=1)
    found = find_seat(options, env, purpose=purpose)
    return meet(found.place, timeout_s=options.timeout_s, shared=read_key_file(env), hosting=found.hosting)


def store_seat(process_group: Any = None) -> StoreSeat | None:
    """The default store of torch.distributed, where this process has initialised it; None otherwise."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    try:
        store = distributed.distributed_c10d._get_default_store()
    except (AttributeError, RuntimeError):
        return None
    prefix = "rankclock"
    if process_group is not None:
        ranks = sorted(distributed.get_process_group_ranks(process_group))
        if distributed.get_rank() not in ranks:
            return None
        prefix = f"rankclock/{ranks[0]}-{ranks[-1]}-{len(ranks)}"
    rank, world_size = distributed.get_rank(process_group), distributed.get_world_size(process_group)
    return StoreSeat(distributed.PrefixStore(prefix, store), rank=rank, world_size=world_size)


def meet_over_store(
    seat: StoreSeat, env: Mapping[str, str], *, purpose: str, job: str | None, timeout_s: float
) -> Rendezvous:
    """All ranks find each other by one value in the store. Raises PeerError where rank 0 leaves none in time."""
    # Every rank meets as often as the others: the n-th meeting of each belongs together, also after a failed one.
    turn = seat.store.add(f"{purpose}/turn/{seat.rank}", 1)
    key = f"{purpose}/meeting/{turn}"
    place = Place(
        launcher=Launcher.OPTIONS,
        job=f"{purpose} {job or env.get('RANKCLOCK_JOB') or 'torch.distributed'} {turn}",
        rank=seat.rank,
        world_size=seat.world_size,
        meeting=MeetingPoint(host=_own_address(env), ports=(0,)),
    )
    shared = read_key_file(env)
    if seat.rank == 0:
        listener = None
        if seat.world_size > 1:
            listener = listen(place.meeting)
            place = replace(place, meeting=MeetingPoint(host=place.meeting.host, ports=(listener.getsockname()[1],)))
        secret = secrets.token_bytes(KEY_BYTES)
        value = {"host": place.meeting.host, "port": place.meeting.ports[0], "key": secret.hex()}
        seat.store.set(key, json.dumps(value))
        return meet(place, timeout_s=timeout_s, shared=_mixed(secret, shared), hosting=True, listener=listener)
    host, port, secret = _read_value(seat, key, timeout_s)
    place = replace(place, meeting=MeetingPoint(host=host, ports=(port,)))
    return meet(place, timeout_s=timeout_s, shared=_mixed(secret, shared), hosting=False)


def _read_value(seat: StoreSeat, key: str, timeout_s: float) -> tuple[str, int, bytes]:
    """What rank 0 left; looked for again and again, because a waiting `get` would hold the store's connection."""
    until_ns = time.monotonic_ns() + round(timeout_s * NS_PER_S)
    while not seat.store.check([key]):
        if time.monotonic_ns() > until_ns:
            raise PeerError(f"rank 0 left no address in the store within {timeout_s:g} s: did it start its clock too?")
        time.sleep(POLL_S)
    try:
        value = json.loads(seat.store.get(key))
        return str(value["host"]), int(value["port"]), bytes.fromhex(value["key"])
    except (KeyError, TypeError, ValueError) as error:
        raise PeerError(f"rank 0 left no address in the store but something else: {error}") from None


def _mixed(secret: bytes, shared: bytes | None) -> bytes:
    """The store hands the secret to whoever reaches it; a key file keeps those out as well."""
    return secret if shared is None else secret + shared


def _own_address(env: Mapping[str, str]) -> str:
    """Where the other ranks reach this one: at MASTER_ADDR where that is this host, else from where it reaches that."""
    interface = (env.get("GLOO_SOCKET_IFNAME") or env.get("NCCL_SOCKET_IFNAME") or "").split(",")[0].lstrip("=^")
    if interface:
        address = _address_of(interface)
        if address is not None:
            return address
    master = env.get("MASTER_ADDR")
    if not master:
        return socket.gethostname()
    if is_own_address(master):
        return master
    try:
        family, _, _, _, target = resolve(master, 9, time.monotonic_ns() + 5 * NS_PER_S)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)  # a UDP socket sends nothing by it
            return str(probe.getsockname()[0])
    except (Unreachable, OSError):
        return socket.gethostname()


def _address_of(interface: str) -> str | None:
    """The IPv4 address of an interface, as the job's own transports are told to use it."""
    import fcntl
    import struct

    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            request = struct.pack("256s", interface.encode()[:15])
            answer = fcntl.ioctl(probe.fileno(), 0x8915, request)  # SIOCGIFADDR
    except OSError:
        return None
    return socket.inet_ntoa(answer[20:24])
