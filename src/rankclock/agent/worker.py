"""Runs one blocking job at a time away from the event loop: a reading that hangs hangs nobody else.

One thread that is a daemon thread, so that not even the end waits for it. While a job hangs no other is begun: a daemon
that never answers costs one thread, not one a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["Busy", "Worker"]

T = TypeVar("T")


class Busy(Exception):
    """The job before has not ended yet."""


class Worker:
    """One thread. `run` gives it a job and waits for that in the event loop, at most timeout_s."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._pending = False
        threading.Thread(target=self._work, name=name, daemon=True).start()

    @property
    def pending(self) -> bool:
        """Whether a job hangs."""
        return self._pending

    async def run(self, job: Callable[[], T], *, timeout_s: float) -> T:
        """The job's result. Raises what it raises, TimeoutError where it takes longer, Busy where one still runs."""
        if self._pending:
            raise Busy
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def settle(result: Any, error: BaseException | None) -> None:
            self._pending = False
            if not future.done():
                future.set_result(result) if error is None else future.set_exception(error)

        def work() -> None:
            result, error = None, None
            try:
                result = job()
            except BaseException as raised:
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(settle, result, error)

        self._pending = True
        self._jobs.put(work)
        return await asyncio.wait_for(future, timeout_s)

    def close(self) -> None:
        """Ends the thread once its job has ended."""
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
