"""A prober in a process of its own, and the handle that a rank holds: the GIL of a training process never disturbs it.

    with Prober.start(node="rank0", bind="0.0.0.0:0") as prober:
        mine = {"node": "rank0", "port": prober.port, "clock_id": prober.clock_id}   # exchange with the other ranks
        prober.connect(peers={"rank1": ("10.80.1.12", 40000)}, key=key)
        report = prober.measure(for_s=2.0)            # NodeReport, .to_json() for gathering

The child answers its peers' probes from `connect` until `close`; it dies with its parent.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from rankclock.mesh.report import NodeReport

__all__ = ["Prober"]


class Prober:
    """A running prober process. `start` returns when its UDP port is open (under 150 ms)."""

    node: str
    host: str
    port: int
    clock_id: str
    """Identity of this node's clock; ranks that share it need one prober among them."""
    stamps: str
    """'kernel' or 'user': who stamps the datagrams here."""

    @classmethod
    def start(cls, *, node: str, bind: str = "0.0.0.0:0", log: Path | None = None) -> Self:
        """Start the process and open its port. `bind` is HOST:PORT ([::]:0 for IPv6), port 0 for any.

        Raises HostError where the port cannot be opened or the process cannot be started, UserError for a bad `bind`.
        """
        raise NotImplementedError

    def connect(self, *, peers: Mapping[str, tuple[str, int]], key: bytes) -> None:
        """Begin to answer and to probe. `peers`: node name to (numeric address, port); may be empty (answer only).

        Names must be those that the peers were started with: they are part of what is authenticated. The key has 16
        bytes or more. May be called again: peers are replaced. Raises UserError, HostError.
        """
        raise NotImplementedError

    def measure(self, *, for_s: float) -> NodeReport:
        """Let it run for `for_s` seconds, then say what is known. Raises HostError where the process died."""
        raise NotImplementedError

    def report(self) -> NodeReport:
        """What is known now."""
        raise NotImplementedError

    def close(self) -> None:
        """End the process; safe to call twice."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
