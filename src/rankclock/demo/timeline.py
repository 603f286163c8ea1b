"""What happened when, on one monotonic clock of the harness: phases, events, and the progress that a person sees."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rankclock.report.record import Event, Phase

__all__ = ["Timeline"]


class Timeline:
    """The run's clock and its diary. `say` gets one line per thing that happens (progress, on stderr)."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._started_ns = time.monotonic_ns()
        self._phases: list[Phase] = []
        self._events: list[Event] = []
        self._open: tuple[str, float] | None = None

    def now_s(self) -> float:
        """Seconds since the run began."""
        return (time.monotonic_ns() - self._started_ns) / 1e9

    def at_s(self, host_ns: int) -> float:
        """Where an instant of the harness's CLOCK_MONOTONIC lies on the run's clock."""
        return (host_ns - self._started_ns) / 1e9

    def phase_at(self, t_s: float) -> str:
        """The phase that went on then, '' between phases."""
        if self._open and t_s >= self._open[1]:
            return self._open[0]
        return next(
            (phase.name for phase in reversed(self._phases) if phase.started_s <= t_s <= (phase.ended_s or t_s)), ""
        )

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A step of the run; told when it begins, kept with its end even where it fails."""
        self._open = (name, self.now_s())
        self._say(f"[{self.now_s():6.1f} s] {name}")
        try:
            yield
        finally:
            self._phases.append(Phase(name=name, started_s=self._open[1], ended_s=self.now_s()))
            self._open = None

    def tell(self, text: str, *, node: str = "", event: bool = False) -> None:
        """One line of progress; kept in the record where it is an event."""
        self._say(f"[{self.now_s():6.1f} s]   {node + ': ' if node else ''}{text}")
        if event:
            self._events.append(Event(t_s=self.now_s(), text=text, node=node))

    def phases(self) -> tuple[Phase, ...]:
        """The phases that have ended, in order."""
        return tuple(self._phases)

    def events(self) -> tuple[Event, ...]:
        """The events, in order."""
        return tuple(self._events)
