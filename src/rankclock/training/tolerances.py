"""What in a training job breaks when a host's clock is off, and at which offset: a table, each row with its source.

Only offsets between hosts are in it; what a step of one clock breaks is another matter. The thresholds are the defaults
of the software; where a setting moves one, the row says which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rankclock.timebase import NS_PER_MS, NS_PER_S, NS_PER_US, Offset

__all__ = ["TOLERANCES", "Broken", "Direction", "Tolerance", "broken_by"]


class Direction(StrEnum):
    """Which clock suffers: one that is behind the others, one that is ahead, or either."""

    AHEAD = "ahead"
    BEHIND = "behind"
    EITHER = "apart"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """One thing that breaks. breaks_at_ns: the smallest |offset| at which it does. setting: what moves that limit."""

    component: str
    breaks_at_ns: int
    direction: Direction
    effect: str
    source: str
    setting: str = ""

    def to_json(self) -> dict[str, Any]:
        """A JSON object with every field."""
        return {
            "component": self.component,
            "breaks_at_ns": self.breaks_at_ns,
            "direction": self.direction.value,
            "effect": self.effect,
            "setting": self.setting,
            "source": self.source,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A tolerance that an offset breaks; not certain where the offset's bound reaches to both sides of the limit."""

    tolerance: Tolerance
    certain: bool


TOLERANCES: tuple[Tolerance, ...] = (
    Tolerance(
        component="torchrun c10d last call",
        breaks_at_ns=30 * NS_PER_S,
        direction=Direction.AHEAD,
        effect="ends the wait for more nodes at once: an elastic job starts with fewer of them",
        setting="--rdzv-conf last_call_timeout",
        source="torch 2.13 distributed/elastic/rendezvous/dynamic_rendezvous.py:744,946",
    ),
    Tolerance(
        component="NVRx in-process restart",
        breaks_at_ns=29 * NS_PER_S,
        direction=Direction.BEHIND,
        effect="its healthy ranks are declared unresponsive and killed",
        setting="soft and hard timeouts of the wrapper",
        source="NVIDIA/nvidia-resiliency-ext d8686d9 inprocess/sibling_monitor.py:116, wrap.py:155",
    ),
    Tolerance(
        component="torchrun exit barrier",
        breaks_at_ns=20 * NS_PER_S,
        direction=Direction.AHEAD,
        effect="agents may disagree on the world's size and hang for 300 s after the training",
        source="measured: 3 hangs in 5 runs at +20 and +40 s, torch 2.13",
    ),
    Tolerance(
        component="torchrun c10d rendezvous",
        breaks_at_ns=15 * NS_PER_S,
        direction=Direction.BEHIND,
        effect="is counted dead: the others start without it, with a smaller WORLD_SIZE and exit code 0",
        setting="--rdzv-conf keep_alive_interval, keep_alive_max_attempt",
        source="torch 2.13 distributed/elastic/rendezvous/dynamic_rendezvous.py:475 (3 x 5 s); measured 8 of 8 runs",
    ),
    Tolerance(
        component="torchrun c10d keep-alive",
        breaks_at_ns=10 * NS_PER_S,
        direction=Direction.BEHIND,
        effect="is counted dead now and then: heartbeats are up to 5 s old when they are read",
        setting="--rdzv-conf keep_alive_interval, keep_alive_max_attempt",
        source="torch 2.13 distributed/elastic/rendezvous/dynamic_rendezvous.py:475,720; measured at -12 and -14 s",
    ),
    Tolerance(
        component="Dynolog start time",
        breaks_at_ns=10 * NS_PER_S,
        direction=Direction.AHEAD,
        effect="refuses a common profile start that is 10 s ahead for the others: it is past here",
        setting="--start-time-delay; profiling by iterations needs no clock",
        source="pytorch/kineto 114171d libkineto/src/Config.cpp:44,291",
    ),
    Tolerance(
        component="TensorBoard",
        breaks_at_ns=NS_PER_S,
        direction=Direction.BEHIND,
        effect="what a writer restarted here writes is never shown: its file sorts before the old one",
        source="tensorboard 2.21 directory_watcher.py:38,199; measured at -5 s",
    ),
    Tolerance(
        component="order of logs and traces",
        breaks_at_ns=10 * NS_PER_MS,
        direction=Direction.EITHER,
        effect="lines and spans of this host stand before their causes or after their effects",
        source="log stamps are each host's own CLOCK_REALTIME; 10 ms is a short training step",
    ),
    Tolerance(
        component="straggler reports from traces",
        breaks_at_ns=100 * NS_PER_US,
        direction=Direction.EITHER,
        effect="the clock's error is taken for a late rank",
        source="HolisticTraceAnalysis f4d0062 analyzers/straggler.py compares absolute times of ranks",
    ),
)
"""Largest first."""


def broken_by(offset: Offset, tolerances: Sequence[Tolerance] = TOLERANCES) -> tuple[Broken, ...]:
    """What an offset (this host - the others) breaks, or may break within its bound. Nothing where it is unknown."""
    if offset.lo_ns is None or offset.hi_ns is None:
        return ()
    broken = []
    for one in tolerances:
        ahead = (offset.lo_ns >= one.breaks_at_ns, offset.hi_ns >= one.breaks_at_ns)
        behind = (offset.hi_ns <= -one.breaks_at_ns, offset.lo_ns <= -one.breaks_at_ns)
        sides = {Direction.AHEAD: [ahead], Direction.BEHIND: [behind], Direction.EITHER: [ahead, behind]}
        certain = any(surely for surely, _ in sides[one.direction])
        if certain or any(maybe for _, maybe in sides[one.direction]):
            broken.append(Broken(tolerance=one, certain=certain))
    return tuple(broken)
