"""The service of a grandmaster with a receiver: keeps what ptp4l announces true, second by second.

ptp4l knows nothing of the receiver, and forgets what it was told when it restarts: this service looks at chronyd, tells
ptp4l, reads back, and takes the claim back when it ends. A daemon that does not answer is waited for, never for long.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

from rankclock.agent.class_keeper import ClassKeeper, ClassSettings, Verdict
from rankclock.errors import PeerError
from rankclock.node.chronyd import read_chronyd
from rankclock.node.grandmaster import Grandmaster

__all__ = ["keep_clock_class", "look_once"]

PERIOD_S = 1.0

Say = Callable[[str], None]


def keep_clock_class(grandmaster: Grandmaster, settings: ClassSettings, say: Say) -> None:
    """Run until SIGTERM or SIGINT. Says a line for each change and for each daemon that falls silent."""
    ended = threading.Event()

    def end(_number: int, _frame: FrameType | None) -> None:
        ended.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    keeper = ClassKeeper(settings)
    said = ""
    while not ended.is_set():
        line, _ = look_once(keeper, grandmaster)
        if line != said:
            say(line)
            said = line
        ended.wait(PERIOD_S)
    with contextlib.suppress(PeerError):
        verdict = keeper.handle_silence("this service ends", hardware=grandmaster.stamps_in_hardware())
        grandmaster.set(verdict.settings)
        say(f"class {verdict.clock_class}: {verdict.why}")


def look_once(keeper: ClassKeeper, grandmaster: Grandmaster) -> tuple[str, Verdict | None]:
    """Look at chronyd and tell ptp4l. A line that says what holds now; the verdict, None where ptp4l was not told."""
    try:
        hardware = grandmaster.stamps_in_hardware()
    except PeerError as error:
        keeper.handle_silence("ptp4l is gone", hardware=False)
        return f"nothing announced: {error}", None
    try:
        reading = read_chronyd(timeout_s=0.5)
        verdict = keeper.handle_reading(
            reading.tracking, reading.sources or (), hardware=hardware, now_ns=time.monotonic_ns()
        )
    except PeerError as error:
        verdict = keeper.handle_silence(str(error), hardware=hardware)
    try:
        if grandmaster.settings() != verdict.settings:
            grandmaster.set(verdict.settings)
    except PeerError as error:
        return f"nothing announced: {error}", None
    # The reason without its figures: they change every second, the journal gets a line for each change only.
    return f"class {verdict.clock_class}: {verdict.why.partition(' within ')[0].partition('; ')[0]}", verdict
