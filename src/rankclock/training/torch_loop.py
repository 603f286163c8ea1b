"""What a training loop does with a rank clock: one object, one call a step; the framework callbacks are thin around it.

    with TrainingClock(model, directory=out) as clock:       # plain PyTorch, accelerate: all ranks
        for batch in batches:
            ...; loss.backward(); clock.exchanged(); optimizer.step()
            clock.step()

At the start the ranks' clocks are compared (warns; `fail=True` ends the job on all ranks together). During training a
clock that leaves the others is said once, arrivals at the gradient exchange are compared, and checkpoint folders are
kept in the order of their steps. Nothing of it blocks or fails a step; RANKCLOCK_DISABLE=1 makes all of it a no-op.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rankclock.clockmath.arrival_skew import FORWARD, GRADIENTS
from rankclock.timebase import NS_PER_MS, Judgement, format_offset_ns, format_span_ns
from rankclock.training.clock import DISABLE_VARIABLE, RankClock
from rankclock.training.mtime_guard import restamp
from rankclock.training.start_check import ClocksApart, StartVerdict
from rankclock.training.step_exchange import StepExchange
from rankclock.training.torch_arrival import ForwardArrival, GradientArrival

__all__ = ["TrainingClock"]

LOG = logging.getLogger("rankclock")

THRESHOLD_NS = NS_PER_MS
WARN_NS = 10 * NS_PER_MS


class TrainingClock:
    """One rank's. model: whose arrivals are compared, wrapped in DDP or not; none without. wrapper: what wraps it,
    where `model` is not wrapped itself. directory: for the clock's history.

    threshold_ns: at the start no two ranks may be farther apart. warn_ns: during training no rank from cluster time.
    fail: raise ClocksApart on every rank where the start says BEYOND. wait_s: how long the start may wait for the
    clocks, only with `fail`. period_s: how often steps are exchanged. log: gets (metrics, step) at `log_every` steps,
    such as accelerate's `accelerator.log`. guard: the folder of the checkpoints whose mtimes to keep in order.
    """

    def __init__(
        self,
        model: Any = None,
        *,
        wrapper: Any = None,
        clock: RankClock | None = None,
        directory: str | os.PathLike[str] | None = None,
        threshold_ns: int = THRESHOLD_NS,
        warn_ns: int = WARN_NS,
        fail: bool = False,
        wait_s: float = 10.0,
        period_s: float = 5.0,
        guard: str | os.PathLike[str] | None = None,
        log: Callable[[dict[str, float], int], Any] | None = None,
        log_every: int = 50,
    ) -> None:
        self.enabled = os.environ.get(DISABLE_VARIABLE) != "1"
        self.clock = clock or RankClock.start(directory=directory)
        self.steps = 0
        self._own = clock is None
        self._warn_ns, self._fail, self._wait_s = warn_ns, fail, wait_s
        self._guard = None if guard is None else Path(guard)
        self._log, self._log_every = log, log_every
        self._judged: Judgement | None = None
        self._said: set[str] = set()
        self._left_ns: int | None = None
        self._arrivals: dict[str, GradientArrival | ForwardArrival] = {}
        self._exchange: StepExchange | None = None
        if self.enabled:
            self._exchange = StepExchange(
                self.clock, self._meet, threshold_ns=threshold_ns, wait_s=wait_s, period_s=period_s
            )
            if model is not None:
                self._safely(lambda: self._watch(model, model if wrapper is None else wrapper))

    # ---- the loop ----

    def begin(self) -> None:
        """Before the first step. With `fail` waits, and raises ClocksApart on all ranks alike; otherwise neither."""
        if self._exchange is None:
            return
        self.before_save()
        if self._fail:
            self._exchange.checked.wait(2 * self._wait_s)
            verdict = self._exchange.verdict
            if verdict is not None and verdict.judgement is Judgement.BEYOND:
                raise ClocksApart(verdict.line)
            if verdict is None:
                self._say("the clocks could not be compared at the start: it goes on unchecked")

    def exchanged(self) -> None:
        """Right after the backward pass: the gradient exchange is over. Optional."""
        self._left_ns = time.time_ns()

    def step(self) -> None:
        """After each optimizer step."""
        self.steps += 1
        if self._exchange is None:
            return
        for place, arrival in self._arrivals.items():
            arrived_ns = arrival.take()
            if arrived_ns is not None:
                self._exchange.post(place, self.steps, arrived_ns, self._left_ns if place == GRADIENTS else None)
        self._left_ns = None
        if self.steps % self._log_every == 0:
            self.watch()
            if self._log is not None:
                log = self._log
                self._safely(lambda: log(self.metrics(), self.steps))

    def watch(self) -> None:
        """Say when this rank's clock has left the others, and when it has come back: once each."""
        offset = self.clock.offset()
        judged = offset.judge(self._warn_ns)
        if judged is Judgement.BEYOND and self._judged is not Judgement.BEYOND:
            LOG.warning(
                "rankclock: this host's clock is %s ±%s from %s, beyond %s (%s)",
                format_offset_ns(offset.estimate_ns or 0),
                format_span_ns(offset.bound_ns or 0),
                offset.reference,
                format_span_ns(self._warn_ns),
                offset.method,
            )
        elif judged is Judgement.WITHIN and self._judged is Judgement.BEYOND:
            LOG.warning("rankclock: this host's clock is within %s again", format_span_ns(self._warn_ns))
        self._judged = judged

    def before_save(self) -> None:
        """Before a checkpoint is written, and after it: keep a rotation by mtime from deleting the newest."""
        guard = self._guard
        if guard is not None and self.enabled and os.environ.get("LOCAL_RANK", "0") == "0":
            self._safely(lambda: self._tell_restamped(guard))

    def metrics(self) -> dict[str, float]:
        """For a trainer's own logger, in µs; only what is known."""
        offset, found = self.clock.offset(), {}
        if offset.estimate_ns is not None and offset.bound_ns is not None:
            found["rankclock/offset_us"] = offset.estimate_ns / 1e3
            found["rankclock/bound_us"] = offset.bound_ns / 1e3
        for place, summary in (self.skew or {"places": {}})["places"].items():
            if summary["steps"]:
                found[f"rankclock/{place}_skew_us"] = summary["spread_median_ns"] / 1e3
                waited_ns = summary["waited_ns"].get(str(self.clock.rank), 0)
                found[f"rankclock/{place}_waited_us"] = waited_ns / summary["steps"] / 1e3
        return found

    @property
    def verdict(self) -> StartVerdict | None:
        """How far apart the clocks were at the start; None until that is known."""
        return None if self._exchange is None else self._exchange.verdict

    @property
    def skew(self) -> dict[str, Any] | None:
        """The newest summary of all ranks' steps, by place (`SkewSummary.to_json`); None until there is one."""
        return None if self._exchange is None else self._exchange.summary

    def close(self) -> None:
        """Give the last steps, end the clock where it was started here. Waits a few seconds for the other ranks."""
        for arrival in self._arrivals.values():
            arrival.close()
        if self._exchange is not None:
            self._exchange.close()
        if self._own:
            self.clock.close()

    def __enter__(self) -> Self:
        try:
            self.begin()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- inside ----

    @staticmethod
    def _meet() -> Any:
        from rankclock.training.clock_meeting import open_meeting
        from rankclock.training.job import JobOptions

        return open_meeting(JobOptions(), os.environ, purpose="steps")

    def _watch(self, model: Any, wrapper: Any) -> None:
        self._arrivals[GRADIENTS] = GradientArrival(model.parameters())
        if ForwardArrival.meets(wrapper):
            self._arrivals[FORWARD] = ForwardArrival(wrapper)

    def _tell_restamped(self, guard: Path) -> None:
        changed = restamp(guard)
        if changed:
            names = ", ".join(one.path.name for one in changed[:4])
            self._say(
                f"mtimes of {names} were not in the order of their steps: put in order, so that none is rotated away"
            )

    def _safely(self, do: Callable[[], Any]) -> None:
        """Whatever goes wrong in what is ours is said once and stays with us."""
        try:
            do()
        except Exception as error:
            self._say(f"{type(error).__name__}: {error}")

    def _say(self, what: str) -> None:
        if what not in self._said:
            self._said.add(what)
            LOG.warning("rankclock: %s", what)
