"""When this rank's last gradient of a backward pass is ready: from then on it waits for the other ranks.

A hook on a parameter fires when its gradient is computed, before any wrapper (DDP, FSDP with original parameters)
starts to exchange it. The parameter whose gradient comes last marks the arrival; it is learned in the first passes, and
only its hook stays. On a GPU the host runs ahead of the device: the stamp is when the host came there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["GradientArrival"]

LEARNING_PASSES = 3


class GradientArrival:
    """Hooks on a model's trainable parameters. `take` gives the stamp of the pass that has just ended."""

    def __init__(self, parameters: Iterable[Any]) -> None:
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self._handles: list[Any] = []
        self._arrived_ns: int | None = None
        self._last = -1
        self._seen: list[int] = []
        self._watch(range(len(self._parameters)))

    def take(self) -> int | None:
        """CLOCK_REALTIME when the last gradient since the last call was ready; None where none was."""
        arrived_ns, self._arrived_ns = self._arrived_ns, None
        if arrived_ns is None:
            if len(self._handles) < len(self._parameters):  # the one that was watched is no longer in use
                self._watch(range(len(self._parameters)))
            return None
        if len(self._handles) > 1:
            self._seen.append(self._last)
            if len(self._seen) >= LEARNING_PASSES and len(set(self._seen[-LEARNING_PASSES:])) == 1:
                self._watch([self._last])
        return arrived_ns

    def close(self) -> None:
        """Take all hooks away."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _watch(self, numbers: Iterable[int]) -> None:
        self.close()
        self._seen = []
        self._handles = [self._parameters[number].register_hook(self._stamp(number)) for number in numbers]

    def _stamp(self, number: int) -> Callable[[Any], None]:
        def stamp(_gradient: Any) -> None:
            self._arrived_ns = time.time_ns()
            self._last = number

        return stamp
