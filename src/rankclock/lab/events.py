"""Plays a scenario's events: a thread that waits for each one's time and lets it happen in the lab.

Decides nothing else; an event that cannot happen (its service is not running) is kept in `failed` and said on the way.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from rankclock.errors import RankclockError

if TYPE_CHECKING:
    from rankclock.lab.lab import Lab
    from rankclock.lab.scenario import Event

__all__ = ["EventPlayer", "happen"]


class EventPlayer:
    """`at_s` of the events counts from `start`."""

    def __init__(self, lab: Lab, said: Callable[[str], None] = lambda _: None) -> None:
        self._lab = lab
        self._said = said
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._play, name="lab-events", daemon=True)
        self.happened: list[tuple[int, Event]] = []
        """(host instant, event) of those that have happened."""
        self.failed: list[tuple[Event, str]] = []

    def start(self) -> None:
        """Begins; returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the playing; what has not happened does not happen any more."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def wait(self, timeout_s: float) -> bool:
        """Whether all events have happened (or failed) within the time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _play(self) -> None:
        started_s = time.monotonic()
        for event in sorted(self._lab.scenario.events, key=lambda event: event.at_s):
            if self._ended.wait(max(0.0, started_s + event.at_s - time.monotonic())):
                return
            try:
                self.happened.append((happen(self._lab, event), event))
                self._said(f"{event.at_s:g} s: {event.action} on {event.node}")
            except RankclockError as error:
                self.failed.append((event, str(error)))
                self._said(f"{event.at_s:g} s: {event.action} on {event.node}: {error}")


def happen(lab: Lab, event: Event) -> int:
    """Lets one event happen now; gives the host instant. Raises UserError where it cannot."""
    if event.action == "step":
        lab.clock(event.node).step_ns(event.by_ns or 0)
    elif event.action == "drift":
        lab.clock(event.node).set_drift_ppb(event.drift_ppb or 0.0)
    elif event.action == "phc-step":
        lab.phc(event.node).step_ns(event.by_ns or 0)
    elif event.action == "phc-drift":
        lab.phc(event.node).set_drift_ppb(event.drift_ppb or 0.0)
    elif event.action in ("phc-freeze", "phc-thaw"):
        lab.phc(event.node).set_frozen(event.action == "phc-freeze")
    elif event.action == "link":
        link = lab.link(event.node, event.nic)
        if event.set is not None:
            link.set(**event.set.model_dump())
        if event.up is not None:
            link.plug(event.up)
    else:
        number = signal.SIGTERM if event.action == "stop" else signal.SIGKILL
        lab.signal_service(event.node, event.service or "", number)
    return time.monotonic_ns()
