"""The collectives of one rank as columns: what is kept of a trace for matching, recovering and blaming.

Instants are integer ns of the rank's own CLOCK_REALTIME (or of an unknown start, where the trace has no base).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rankclock.traces.kinds import Kind

__all__ = [
    "FLIGHT_SLACK_NS",
    "GPU_SLACK_NS",
    "HOST_SLACK_NS",
    "NO_END",
    "NO_SEQUENCE",
    "UNKNOWN_SIZE",
    "Columns",
    "Ints",
    "Span",
    "Token",
]

Ints = npt.NDArray[np.int64]

HOST_SLACK_NS = 1_000
"""How far a host span's stamps may be off: the profiler's were within 1 µs of the clock in 5,400 of 5,400 checks."""

GPU_SLACK_NS = 10_000
"""The same for GPU spans: device time is mapped to host time, and kernels show up to some µs before their launch."""

FLIGHT_SLACK_NS = 0
"""Flight recorder: [created, found completed] holds the whole span, whatever the watchdog's period."""

NO_END = 2**63 - 1
"""End of a span whose end was not recorded: it carries no constraint."""

NO_SEQUENCE = -1
UNKNOWN_SIZE = -1


class Token(NamedTuple):
    """What two ranks' spans must have in common to be of one collective. group: '' where the trace does not say."""

    kind: Kind
    group: str
    size: int
    source: int = -1
    destination: int = -1


class Span(NamedTuple):
    """One collective of one rank while it is being collected."""

    token: Token
    sequence: int
    start_ns: int
    end_ns: int
    slack_ns: int
    lane: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Collectives in order of their start. `token` indexes `tokens`, `lane` indexes `lanes` (thread or stream)."""

    tokens: tuple[Token, ...]
    lanes: tuple[str, ...]
    token: Ints
    lane: Ints
    sequence: Ints
    start_ns: Ints
    end_ns: Ints
    slack_ns: Ints

    def __len__(self) -> int:
        return len(self.start_ns)

    @classmethod
    def of(cls, spans: Sequence[Span], *, shift_ns: int = 0) -> Columns:
        """The spans, sorted, each instant moved by `shift_ns`."""
        ordered = sorted(spans, key=lambda span: (span.start_ns, span.end_ns))
        tokens = {token: index for index, token in enumerate(dict.fromkeys(span.token for span in ordered))}
        lanes = {lane: index for index, lane in enumerate(dict.fromkeys(span.lane for span in ordered))}

        def column(values: list[int]) -> Ints:
            return np.array(values, dtype=np.int64)

        return cls(
            tokens=tuple(tokens),
            lanes=tuple(lanes),
            token=column([tokens[span.token] for span in ordered]),
            lane=column([lanes[span.lane] for span in ordered]),
            sequence=column([span.sequence for span in ordered]),
            start_ns=column([span.start_ns + shift_ns for span in ordered]),
            end_ns=column([span.end_ns + shift_ns if span.end_ns < NO_END else NO_END for span in ordered]),
            slack_ns=column([span.slack_ns for span in ordered]),
        )
