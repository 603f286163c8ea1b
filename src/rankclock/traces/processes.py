"""Work on several files at once, in processes of their own where that pays."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

__all__ = ["in_processes"]

SEVERAL_PROCESSES_FROM = 32 << 20
"""Bytes from which starting further processes (0.2 s each) pays."""

Result = TypeVar("Result")


def in_processes(work: Sequence[Callable[[], Result]], *, jobs: int | None, size: int) -> list[Result]:
    """The results in the order of `work`. jobs: processes (default: a core each, if `size` bytes pay for them)."""
    jobs = jobs if jobs is not None else min(len(work), os.cpu_count() or 1)
    if jobs <= 1 or len(work) < 2 or size < SEVERAL_PROCESSES_FROM:
        return [call() for call in work]
    with ProcessPoolExecutor(jobs, mp_context=get_context("forkserver")) as pool:
        return [future.result() for future in [pool.submit(call) for call in work]]
