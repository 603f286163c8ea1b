"""When this rank comes to the places of a step where ranks meet: from then on it waits for the others.

The gradient exchange: a hook on a parameter fires when its gradient is computed, before any wrapper (DDP, FSDP with
original parameters) starts to exchange it. The parameter whose gradient comes last marks the arrival; it is learned in
the first passes, and only its hook stays.

The forward pass: DDP broadcasts the model's buffers there, if it has any, and a rank that is late to a step is waited
for at that place already. Its entry is stamped where that is so.

On a GPU the host runs ahead of the device: a stamp is when the host came there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["ForwardArrival", "GradientArrival"]

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


class ForwardArrival:
    """A hook on the wrapper (DDP) whose forward pass meets the other ranks; `meets` says whether it does."""

    def __init__(self, wrapper: Any) -> None:
        self._arrived_ns: int | None = None
        self._handle = wrapper.register_forward_pre_hook(self._stamp)

    @staticmethod
    def meets(wrapper: Any) -> bool:
        """Whether its forward pass broadcasts buffers: DDP with `broadcast_buffers` (the default) and buffers."""
        if not getattr(wrapper, "broadcast_buffers", False) or not hasattr(wrapper, "module"):
            return False
        return next(iter(wrapper.module.buffers()), None) is not None

    def take(self) -> int | None:
        """CLOCK_REALTIME of the last entry since the last call; None where there was none."""
        arrived_ns, self._arrived_ns = self._arrived_ns, None
        return arrived_ns

    def close(self) -> None:
        """Take the hook away."""
        self._handle.remove()

    def _stamp(self, *_: Any) -> None:
        self._arrived_ns = time.time_ns()
