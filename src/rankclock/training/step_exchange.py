"""Carries what ranks say of their steps from rank to rank, in a thread of its own, over connections of its own.

Every few seconds all ranks give what is new and get the summary of all. The training only appends to a list. When the
exchange breaks (a rank is gone, nobody came), that is said once and the steps after it stay unexchanged.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from rankclock.clockmath.arrival_skew import SCHEMA, Arrival, StepBoard
from rankclock.errors import RankclockError
from rankclock.timebase import NS_PER_S, Judgement, Offset
from rankclock.training.clock import RankClock
from rankclock.training.start_check import StartVerdict, compare_at_start

__all__ = ["StepExchange"]

LOG = logging.getLogger("rankclock")

MAX_PENDING = 100_000
TURN_TIMEOUT_S = 300.0
"""How long a turn waits for the slowest rank: evaluation and compilation hold a rank's thread up, not for ever."""

LAST_TURN_S = 10.0
SETTLED_BEHIND_NS = 2 * NS_PER_S
"""Stamps are brought into cluster time when the clock has records on both sides of them."""


class StepExchange:
    """One rank's end. `meet` gives the meeting of all ranks; it is called in the thread."""

    def __init__(
        self, clock: RankClock, meet: Callable[[], Any], *, threshold_ns: int, wait_s: float, period_s: float
    ) -> None:
        self.clock = clock
        self.verdict: StartVerdict | None = None
        self.summary: dict[str, Any] | None = None
        self.checked = threading.Event()
        self._meet, self._threshold_ns, self._wait_s, self._period_s = meet, threshold_ns, wait_s, period_s
        self._pending: list[tuple[str, int, int, int | None]] = []
        self._stop = threading.Event()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="rankclock-steps", daemon=True)
        self._thread.start()

    def post(self, place: str, step: int, arrived_ns: int, left_ns: int | None) -> None:
        """This rank's stamps at one place of a step, by its own CLOCK_REALTIME."""
        if len(self._pending) < MAX_PENDING:
            self._pending.append((place, step, arrived_ns, left_ns))

    def close(self, timeout_s: float = LAST_TURN_S + 2) -> None:
        """Give what is left and wait for the last summary, at most this long."""
        if os.getpid() == self._pid:
            self._stop.set()
            self._thread.join(timeout_s)

    # ---- the thread ----

    def _run(self) -> None:
        try:
            with self._meet() as meeting:
                self._check(meeting)
                self._turns(meeting, {})
        except RankclockError as error:
            LOG.warning("rankclock: steps are no longer compared between ranks: %s", error)
        except Exception as error:
            LOG.warning("rankclock: steps are no longer compared between ranks: %s: %s", type(error).__name__, error)
        finally:
            self.checked.set()

    def _check(self, meeting: Any) -> None:
        """All ranks say where their clocks stand; all get one verdict."""
        self.clock.wait(self._wait_s)

        def decide(values: list[Any]) -> list[Any]:
            offsets = {rank: None if value is None else Offset.from_json(value) for rank, value in enumerate(values)}
            verdict = compare_at_start(offsets, self._threshold_ns)
            return [[verdict.judgement.value, verdict.line]] * len(values)

        offset = self.clock.offset()
        mine = offset.to_json() if offset.known else None
        judgement, line = meeting.exchange(mine, decide, timeout_s=self._wait_s + TURN_TIMEOUT_S)
        self.verdict = StartVerdict(judgement=Judgement(judgement), line=line)
        if meeting.rank == 0:
            LOG.log(
                logging.INFO if self.verdict.judgement is Judgement.WITHIN else logging.WARNING, "rankclock: %s", line
            )
        self.checked.set()

    def _turns(self, meeting: Any, boards: dict[str, StepBoard]) -> None:
        """Exchange until a rank is at its end; then once more, when this rank is at its own."""
        while not self._turn(meeting, boards, everything=self._stop.wait(self._period_s), timeout_s=TURN_TIMEOUT_S):
            pass
        self._stop.wait(TURN_TIMEOUT_S)
        self._turn(meeting, boards, everything=True, timeout_s=LAST_TURN_S)

    def _turn(self, meeting: Any, boards: dict[str, StepBoard], *, everything: bool, timeout_s: float) -> bool:
        """One exchange; whether some rank is at its end."""

        def decide(values: list[Any]) -> list[Any]:
            for rank, value in enumerate(values):
                for place, step, one in value["steps"]:
                    board = boards.setdefault(place, StepBoard(len(values)))
                    board.add(rank, [(step, None if one is None else Arrival.from_json(one))])
            places = {place: board.summary().to_json() for place, board in boards.items()}
            ended = any(value["ending"] for value in values)
            reply = {"summary": {"schema": SCHEMA, "places": places}, "ended": ended}
            return [reply] * len(values)

        mine = {"steps": self._ready(everything=everything), "ending": self._stop.is_set()}
        reply = meeting.exchange(mine, decide, timeout_s=timeout_s)
        self.summary = reply["summary"]
        return bool(reply["ended"])

    def _ready(self, *, everything: bool) -> list[tuple[str, int, list[int | None] | None]]:
        """Stamps that cluster time is known for on both sides, brought into it."""
        limit_ns = time.time_ns() - SETTLED_BEHIND_NS
        count = len(self._pending)
        if not everything:
            count = next((at for at, one in enumerate(self._pending) if one[2] > limit_ns), count)
        taken, self._pending[:count] = self._pending[:count], []
        return [(place, step, self._in_cluster_time(arrived_ns, left_ns)) for place, step, arrived_ns, left_ns in taken]

    def _in_cluster_time(self, arrived_ns: int, left_ns: int | None) -> list[int | None] | None:
        offset = self.clock.offset_at(arrived_ns)
        if offset.lo_ns is None or offset.hi_ns is None or offset.estimate_ns is None:
            return None
        arrival = Arrival(
            lo_ns=arrived_ns - offset.hi_ns,
            est_ns=arrived_ns - offset.estimate_ns,
            hi_ns=arrived_ns - offset.lo_ns,
            left_ns=None if left_ns is None else left_ns - offset.estimate_ns,
        )
        return arrival.to_json()
