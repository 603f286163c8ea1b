"""Plays the events of a lab in the background: `python -m rankclock.lab.player NAME`. Ends when the lab ends."""

from __future__ import annotations

import os
import sys
import threading
import time

from rankclock.lab.events import EventPlayer
from rankclock.lab.lab import Lab

__all__ = ["play"]


def play(name: str) -> None:
    """Never returns."""
    lab = Lab.attach(name)
    threading.Thread(target=_end_with, args=(lab,), daemon=True).start()
    player = EventPlayer(lab, lambda line: print(line, flush=True))
    player.start()
    while not player.wait(3600):
        pass
    os._exit(0)


def _end_with(lab: Lab) -> None:
    """The lab's end shows as the end of its control channel; asking now and then costs nothing."""
    while lab.alive():
        time.sleep(1)
    os._exit(0)


if __name__ == "__main__":
    play(sys.argv[1])
