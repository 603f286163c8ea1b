"""What a span of communication is: its kind, from the many names that frameworks give it, and what its name tells.

Decides which spans may carry a constraint between ranks. Spans that only enqueue (`c10d::`, `record_param_comms`,
NCCL's own annotations on the CPU) are no collectives here: they end before anything was exchanged.
"""

from __future__ import annotations

import re
from enum import Enum

__all__ = ["GATHERING", "SPREADING", "SYMMETRIC", "Kind", "kind_of_kernel", "kind_of_name", "peers_of_name"]


class Kind(Enum):
    """What a collective does, as far as it matters for who must wait for whom."""

    ALL_REDUCE = "all-reduce"
    BARRIER = "barrier"
    ALL_GATHER = "all-gather"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_TO_ALL = "all-to-all"
    BROADCAST = "broadcast"
    SCATTER = "scatter"
    REDUCE = "reduce"
    GATHER = "gather"
    SEND = "send"
    RECV = "receive"
    OTHER = "other"


SYMMETRIC = frozenset({Kind.ALL_REDUCE, Kind.BARRIER, Kind.ALL_GATHER, Kind.REDUCE_SCATTER})
"""Nobody leaves before all have entered."""

SPREADING = frozenset({Kind.BROADCAST, Kind.SCATTER})
"""Nobody leaves before the root has entered; the others are free (gloo: some leave before a late one enters)."""

GATHERING = frozenset({Kind.REDUCE, Kind.GATHER})
"""The root does not leave before all have entered; the others are free."""

# Longer words first: 'allreduce' ends in 'reduce'.
_WORDS = (
    ("allreduce", Kind.ALL_REDUCE),
    ("allgather", Kind.ALL_GATHER),
    ("reducescatter", Kind.REDUCE_SCATTER),
    ("alltoall", Kind.ALL_TO_ALL),
    ("barrier", Kind.BARRIER),
    ("broadcast", Kind.BROADCAST),
    ("scatter", Kind.SCATTER),
    ("gather", Kind.GATHER),
    ("reduce", Kind.REDUCE),
    ("sendrecv", Kind.OTHER),
    ("send", Kind.SEND),
    ("recv", Kind.RECV),
)
_KERNEL = re.compile(r"nccl(?:Dev)?Kernel(?:_|s?\()([A-Za-z]+?)(?:_|\(|RING|TREE|$)")
_PEERS = re.compile(r"\s(\d+)\s*(->|<-)\s*(\d+)")


def kind_of_name(name: str) -> Kind:
    """The kind of an operation by the name that torch, gloo or NCCL gives it: '_allgather_base', 'gloo:recv'."""
    word = name.rpartition(":")[2].partition(" ")[0].replace("_", "").lower()
    for start, kind in _WORDS:
        if word.startswith(start):
            return kind
    return Kind.OTHER


def kind_of_kernel(name: str) -> Kind | None:
    """The kind of an NCCL or RCCL kernel by its symbol; None where it is no such kernel."""
    match = _KERNEL.match(name)
    return kind_of_name(match.group(1)) if match else None


def peers_of_name(name: str) -> tuple[int, int] | None:
    """(source, destination) of 'nccl:send 0->1' and 'nccl:recv 1<-0'; ranks of the group."""
    match = _PEERS.search(name)
    if match is None:
        return None
    first, arrow, second = int(match.group(1)), match.group(2), int(match.group(3))
    return (first, second) if arrow == "->" else (second, first)
