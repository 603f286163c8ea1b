"""torch.profiler.profile with the clock record of this rank inside the trace, so that `rankclock trace align` finds it.

from rankclock.training.torch_profiler import ClockedProfile
with ClockedProfile(clock, schedule=..., on_trace_ready=...) as profile: ...
"""

from __future__ import annotations

import json
import logging
from time import CLOCK_MONOTONIC_RAW, clock_gettime_ns
from typing import Any

import torch

from rankclock.timebase import NS_PER_S
from rankclock.training.clock import RankClock
from rankclock.wire.clock_record import METADATA_KEY, encode_object

__all__ = ["ClockedProfile"]

LOG = logging.getLogger("rankclock")

MARGIN_NS = 15 * NS_PER_S
"""Records from before the window that are kept: a line of the clock needs neighbours."""


class ClockedProfile(torch.profiler.profile):  # type: ignore[misc]  # torch is not typed here
    """As torch.profiler.profile. The record is added when a window ends: afterwards torch takes no more metadata."""

    def __init__(self, clock: RankClock, **options: Any) -> None:
        self._clock = clock
        self._began_raw_ns = clock_gettime_ns(CLOCK_MONOTONIC_RAW)
        super().__init__(**options)

    def start_trace(self) -> None:
        """A window begins."""
        self._began_raw_ns = clock_gettime_ns(CLOCK_MONOTONIC_RAW)
        super().start_trace()

    def stop_trace(self) -> None:
        """A window ends: the record of its time goes into it."""
        try:
            history = self._clock.history()
            if not len(history):
                LOG.warning("rankclock: the clock record in this trace is empty: %s", self._clock.why_unknown)
            history.forget_before(self._began_raw_ns - MARGIN_NS)
            self.add_metadata_json(METADATA_KEY, json.dumps(encode_object(history.record())))
        except Exception as error:
            LOG.warning("rankclock: no clock record in this trace: %s: %s", type(error).__name__, error)
        super().stop_trace()
