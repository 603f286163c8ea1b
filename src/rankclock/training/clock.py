"""The cluster clock of one rank: what time it is for all ranks, how sure that is, and what past stamps mean.

    with RankClock.start(directory=output_dir) as clock:      # returns at once, measures in the background
        ...
        clock.now_ns()            # cluster time, best guess; None while unknown
        clock.window()            # (earliest, latest), None while unknown
        clock.offset()            # local CLOCK_REALTIME - cluster time: bound, method, age, reference
        clock.to_cluster_ns(t)    # what a past reading t of time.time_ns() was in cluster time

Cluster time is the reference's CLOCK_MONOTONIC_RAW, tied to its CLOCK_REALTIME and its rate once: no step or slew of
any clock moves it afterwards. When the reference is lost, a successor carries its estimate on, and the history says so.

Promises to the training: no call raises or waits (but `wait`), nothing is sent over the job's own groups, whatever
goes wrong makes the answers unknown and is said once in the log. RANKCLOCK_DISABLE=1 makes all of it a no-op.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import CLOCK_MONOTONIC_RAW, clock_gettime_ns, monotonic_ns
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rankclock.clockmath.history import ClockHistory, offset_at
from rankclock.clockmath.realtime import KERNEL_RATE_LIMIT_PPB, Reading
from rankclock.errors import RankclockError
from rankclock.mesh.clocks import read_clocks
from rankclock.timebase import NS_PER_S, Offset
from rankclock.timebase.clock_record import ClockEvent, ClockHeader, ClockLine
from rankclock.training.clock_file import ClockFile
from rankclock.wire.clock_record import encode_object

if TYPE_CHECKING:
    from rankclock.mesh.actions import Published
    from rankclock.training.clock_crew import Membership

__all__ = ["DISABLE_VARIABLE", "METHOD", "STALE_NS", "RankClock"]

DISABLE_VARIABLE = "RANKCLOCK_DISABLE"
"""Set to 1 it turns everything inside a training job into a no-op."""

METHOD = "rank clock"
ASSUMPTIONS = (
    "no departure stamp is late and no arrival stamp early",
    "rates of two oscillators change by less than 30 ppb per second",
)

STALE_NS = 60 * NS_PER_S
"""After a minute without a word from the reference the bound would still hold its stated drift, but not much else: the
answer becomes unknown."""

REFRESH_S = 0.5
PATIENCE_NS = 10 * NS_PER_S
"""An offset is known within a second; after ten it is said that it is not, and why."""

MOST_SAID = 20
SILENT_NS = 5 * NS_PER_S
"""The prober publishes every second: after five it is dead or starved, and that is said."""

KEEP_NS = 4 * 3600 * NS_PER_S
"""How much history is kept in memory (14,400 lines, 5 MB); the file has all of it."""

GROWTH_PPB = 1_000

LOG = logging.getLogger("rankclock")

_SAID: dict[ClockEvent | None, str] = {
    ClockEvent.STEP: "CLOCK_REALTIME of this host was set during the run; cluster time does not follow it",
    ClockEvent.REFERENCE: "the reference was lost: cluster time runs on the clock of {detail} from now on",
    ClockEvent.GAP: "this process read its clock's records too late: stamps of that time are unknown",
}


class RankClock:
    """One rank's clock. `start` gives one; all methods may be called from any thread at any time.

    rank, world_size: of the job, None until all ranks have met. node: the name of this rank's clock, '' until then.
    """

    def __init__(
        self,
        join: Callable[[], Membership] | None,
        *,
        directory: str | os.PathLike[str] | None = None,
        on_event: Callable[[ClockLine], None] | None = None,
        stale_ns: int = STALE_NS,
    ) -> None:
        """`join` meets the other ranks and starts what measures (None: disabled). Use `start`."""
        self.rank: int | None = None
        self.world_size: int | None = None
        self.node = ""
        self._why = "the ranks have not met yet" if join else f"{DISABLE_VARIABLE}=1"
        self._join, self._on_event, self._stale_ns = join, on_event, stale_ns
        self._file = None if directory is None else ClockFile(Path(directory))
        self._history = ClockHistory(_header(None))
        self._member: Membership | None = None
        self._newest: Published | None = None
        self._line: tuple[int, int] | None = None
        self._said: set[str] = set()
        self._lost = False
        self._stop, self._known = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._thread: threading.Thread | None = None
        if join is not None:
            _reset_after_fork(weakref.ref(self))
            self._thread = threading.Thread(target=self._run, name="rankclock", daemon=True)
            self._thread.start()

    @classmethod
    def start(
        cls,
        *,
        process_group: Any = None,
        hosts: str | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        rendezvous: str | None = None,
        job: str | None = None,
        directory: str | os.PathLike[str] | None = None,
        timeout_s: float = 60.0,
        period_s: float = 5.0,
        on_event: Callable[[ClockLine], None] | None = None,
    ) -> RankClock:
        """Begin to measure, in the background; all ranks of the job call it.

        Where the ranks meet: over the store of an initialised torch.distributed (any backend; nothing is sent over its
        groups), else by the variables of torchrun, Slurm or MPI, else by `hosts` (a host list, the same on every host)
        or `rank`, `world_size` and `rendezvous` (HOST:PORT of rank 0), as `rankclock verify` has them. process_group:
        its ranks take part, all ranks without it.
        directory: where the history is kept as rankclock-clock.rank<R>.jsonl, nowhere without.
        timeout_s: how long the other ranks are waited for. period_s: from one burst of probes to the next.
        on_event: called from a thread of ours with every line of the history that has an event. Never raises: what went
        wrong is `offset().unknown_why`.
        """
        if os.environ.get(DISABLE_VARIABLE) == "1":
            return cls(None)

        def join() -> Membership:
            # All of it in the thread: what is imported here takes a quarter of a second.
            from rankclock.training.clock_crew import join_job
            from rankclock.training.clock_meeting import open_meeting
            from rankclock.training.job import JobOptions

            options = JobOptions(
                hosts=hosts, rank=rank, world_size=world_size, rendezvous=rendezvous, job=job, timeout_s=timeout_s
            )
            with open_meeting(options, os.environ, purpose="clock", process_group=process_group) as meeting:
                return join_job(meeting, timeout_s=timeout_s, period_s=period_s)

        return cls(join, directory=directory, on_event=on_event)

    # ---- answers ----

    def now_ns(self) -> int | None:
        """Cluster time now, the best guess, in ns since 1970; None while unknown. `window` has its doubt."""
        line = self._line
        if line is None:
            return self._slow_now()
        raw_ns = clock_gettime_ns(CLOCK_MONOTONIC_RAW)
        return raw_ns - line[0] - (raw_ns * line[1] >> 32)

    def window(self) -> tuple[int, int] | None:
        """(earliest, latest): cluster time now lies between them; None while unknown."""
        at = self.at_raw(clock_gettime_ns(CLOCK_MONOTONIC_RAW))
        return None if at is None else (at[0], at[2])

    def at_raw(self, raw_ns: int) -> tuple[int, int, int] | None:
        """(earliest, likely, latest) cluster time when the local CLOCK_MONOTONIC_RAW read this, lately or just now."""
        newest = self._usable()
        if newest is None or newest.relation is None:
            return None
        lo_ns, hi_ns = newest.relation.bounds_at(raw_ns)
        return raw_ns - hi_ns, raw_ns - newest.relation.estimate_at(raw_ns), raw_ns - lo_ns

    def offset(self) -> Offset:
        """Local CLOCK_REALTIME - cluster time now. age_ns: since the reference was last heard of."""
        return self._measured(read_clocks())

    def offset_at(self, local_realtime_ns: int) -> Offset:
        """Local CLOCK_REALTIME - cluster time when `time.time_ns()` gave this: from the history."""
        reading = read_clocks()
        live = self._measured(reading)
        with self._lock:
            line = ClockLine(
                real_ns=reading.real_ns,
                raw_ns=_middle(reading),
                lo_ns=live.lo_ns,
                hi_ns=live.hi_ns,
                est_ns=live.estimate_ns,
            )
            return offset_at(self._history, line, local_realtime_ns)

    def to_cluster_ns(self, local_realtime_ns: int) -> int | None:
        """Cluster time, best guess, when `time.time_ns()` gave this; None where unknown. `offset_at` has its doubt."""
        offset = self.offset_at(local_realtime_ns)
        return None if offset.estimate_ns is None else local_realtime_ns - offset.estimate_ns

    def utc(self) -> Offset:
        """Cluster time - UTC now, as this host's time daemon claims to know UTC: another thing than `offset`."""
        from rankclock.node.kernel import read_adjtimex

        local, method = self.offset(), "adjtimex maxerror, claimed by this host's time daemon"
        if local.lo_ns is None or local.hi_ns is None or local.estimate_ns is None:
            return Offset.unknown(local.unknown_why or "unknown", reference="UTC", method=method)
        try:
            kernel = read_adjtimex()
        except OSError as error:
            return Offset.unknown(f"adjtimex: {error.strerror}", reference="UTC", method=method)
        if not kernel.synchronised or kernel.maxerror_us <= 0:
            why = "nobody on this host claims to know UTC" if not kernel.synchronised else "its daemon states no error"
            return Offset.unknown(why, reference="UTC", method=method)
        claimed_ns = kernel.maxerror_us * 1_000
        return Offset(
            lo_ns=-claimed_ns - local.hi_ns,
            hi_ns=claimed_ns - local.lo_ns,
            estimate_ns=-local.estimate_ns,
            reference="UTC",
            method=method,
            assumptions=("the daemon that wrote maxerror tells the truth", *local.assumptions),
            at_raw_ns=local.at_raw_ns,
        )

    @property
    def reference(self) -> str:
        """The clock that cluster time runs on now; '' while unknown."""
        return self._newest.reference if self._newest is not None else ""

    @property
    def drift_ppb(self) -> tuple[float, float, float] | None:
        """(least, likely, most): how fast the local CLOCK_MONOTONIC_RAW gains on cluster time; None while unknown."""
        newest = self._usable()
        if newest is None or newest.relation is None:
            return None
        way = newest.relation
        return way.slowest_ppb, way.rate_ppb, way.fastest_ppb

    @property
    def why_unknown(self) -> str | None:
        """Why the answers are unknown, in one clause; None while they are known."""
        return None if self._usable() is not None else self._why

    def record(self) -> dict[str, Any]:
        """The history as one JSON object, for a trace's metadata (`rankclock.wire.clock_record.METADATA_KEY`)."""
        with self._lock:
            return encode_object(self._history.record())

    def history(self) -> ClockHistory:
        """A copy of the history in memory, the last four hours."""
        with self._lock:
            return ClockHistory.of(self._history.record())

    def _measured(self, reading: Reading) -> Offset:
        """The offset at the instant of a reading taken just now."""
        newest = self._usable()
        if newest is None or newest.relation is None:
            return Offset.unknown(self.why_unknown or "not measured yet", reference=self.reference, method=METHOD)
        raw_ns = _middle(reading)
        lo_ns, hi_ns = newest.relation.bounds_at(raw_ns)
        # CLOCK_REALTIME was read at some instant of the reading; up to the middle a slew may have moved it.
        slewed_ns = reading.width_ns * KERNEL_RATE_LIMIT_PPB // (2 * NS_PER_S) + 1
        lo_ns, hi_ns = reading.lead_lo_ns + lo_ns - slewed_ns, reading.lead_hi_ns + hi_ns + slewed_ns
        estimate_ns = reading.real_ns - raw_ns + newest.relation.estimate_at(raw_ns)
        return Offset(
            lo_ns=lo_ns,
            hi_ns=hi_ns,
            estimate_ns=min(max(estimate_ns, lo_ns), hi_ns),
            reference=newest.reference,
            method=_method(newest),
            assumptions=ASSUMPTIONS if newest.hops else (),
            at_raw_ns=raw_ns,
            age_ns=max(raw_ns - newest.confirmed_raw_ns, 0),
        )

    # ---- life ----

    def wait(self, timeout_s: float) -> bool:
        """Wait until the offset is known, at most this long; whether it is."""
        return self._thread is not None and self._known.wait(timeout_s) and self._usable() is not None

    def close(self) -> None:
        """End the measuring and the history; safe to call twice. Answers are unknown from now on."""
        if os.getpid() != self._pid or self._stop.is_set():
            return
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=5.0)
        self._line = self._newest = None
        self._why = "the clock was closed"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- the thread ----

    def _run(self) -> None:
        """Meet, then follow what the prober publishes. Nothing that happens here reaches the training."""
        assert self._join is not None
        try:
            member = self._join()
        except RankclockError as error:
            self._lose(str(error))
            return
        except Exception as error:
            self._lose(f"starting failed: {type(error).__name__}: {error}")
            return
        try:
            self._begin(member)
            began_ns = monotonic_ns()
            while not self._stop.wait(REFRESH_S if self._known.is_set() else REFRESH_S / 10):
                self._watch(member)
                if not self._known.is_set() and monotonic_ns() - began_ns > PATIENCE_NS:
                    self._lose(f"{self._why} ({PATIENCE_NS // NS_PER_S} s after all ranks had met)")
                    self._known.set()  # nobody shall wait any longer
            member.close()
            self._refresh()
        except Exception as error:
            self._lose(f"measuring ended: {type(error).__name__}: {error}")
        finally:
            member.close()
            member.share.close()
            if self._file is not None:
                self._file.close(self._history.last)

    def _begin(self, member: Membership) -> None:
        with self._lock:
            self._history = ClockHistory(_header(member))
        self.rank, self.world_size, self.node = member.rank, member.world_size, member.node
        self._why = "nothing has been measured yet"
        self._member = member

    def _watch(self, member: Membership) -> None:
        """One turn of the thread: take in what is new, look after the prober, say what is lost."""
        self._refresh()
        for note in member.look_after():
            self._say(note)
        newest = self._newest
        if newest is None:
            return
        raw_ns = clock_gettime_ns(CLOCK_MONOTONIC_RAW)
        if raw_ns - newest.at_raw_ns > SILENT_NS:
            silent = "the prober of this host has not reported for 5 s: bounds grow from now on"
            self._say(f"{silent}, and after {self._stale_ns // NS_PER_S} s the offset is unknown")
        if self._usable() is not None:
            self._lost = False
            self._known.set()
        elif self._known.is_set() and not self._lost:
            self._lose(self._why)

    def _refresh(self) -> None:
        """Take in what the prober published since the last time."""
        member = self._member
        if member is None:
            return
        with self._lock:
            missed, records = member.share.missed, member.share.fresh()
            lines = [record.line for record in records if record.line is not None]
            if member.share.missed > missed and len(self._history) and lines:
                lines[0] = _after_gap(lines[0])
            for line in lines:
                if self._history.last is None or line.raw_ns >= self._history.last.raw_ns:
                    self._history.add(line)
            if lines and len(self._history) > 2 * KEEP_NS // NS_PER_S:
                self._history.forget_before(lines[-1].raw_ns - KEEP_NS)
            if records:
                self._take(records[-1])
        if self._file is not None:
            problem = self._file.append(self._history.header, lines)
            if problem:
                self._say(problem)
        for line in lines:
            if line.event in _SAID:
                self._say(_SAID[line.event].format(detail=line.detail))
            if line.event is not None and self._on_event is not None:
                try:
                    self._on_event(line)
                except Exception as error:  # theirs, and no reason to stop measuring
                    self._say(f"on_event failed: {type(error).__name__}: {error}")

    def _take(self, newest: Published) -> None:
        self._newest = newest
        way = newest.relation
        if way is None:
            self._line = None
            self._why = newest.why or "not measured yet"
        else:
            # RAW - cluster time = first + RAW * second / 2^32: exact at at_ns, with one product less a call.
            rate = round(way.rate_ppb * (1 << 32) / NS_PER_S)
            self._line = way.est_ns - (way.at_ns * rate >> 32), rate

    def _usable(self) -> Published | None:
        """The newest record, where it still says something."""
        newest = self._newest
        if newest is None or newest.relation is None:
            return None
        if clock_gettime_ns(CLOCK_MONOTONIC_RAW) - newest.confirmed_raw_ns > self._stale_ns:
            self._line = None
            self._why = f"nothing was heard of {newest.reference} for {self._stale_ns // NS_PER_S} s"
            return None
        return newest

    def _slow_now(self) -> int | None:
        """`now_ns` where the thread keeps no line: while unknown, and in a process that was forked off."""
        if os.getpid() != self._pid and self._member is not None:
            newest = self._member.share.newest()
            if newest is not None:
                self._newest = newest
                window = self.window()
                return None if window is None else (window[0] + window[1]) // 2
        return None

    def _after_fork(self) -> None:
        self._line = None
        self._thread = None
        self._lock = threading.Lock()

    def _lose(self, why: str) -> None:
        self._why, self._line, self._lost = why, None, True
        self._say(f"offsets of this rank are unknown: {why}")

    def _say(self, what: str) -> None:
        """Once, whatever happens how often, and no more than a few things in all."""
        if what not in self._said and len(self._said) < MOST_SAID:
            self._said.add(what)
            LOG.warning("rankclock: %s", what)


def _header(member: Membership | None) -> ClockHeader:
    if member is None:
        return ClockHeader(job="", rank=None, host="", clock_id="", reference="", growth_ppb=GROWTH_PPB)
    return ClockHeader(
        job=member.job,
        rank=member.rank,
        host=member.host,
        clock_id=member.clock_id,
        reference=member.reference,
        growth_ppb=GROWTH_PPB,
    )


def _after_gap(line: ClockLine) -> ClockLine:
    """Records were overwritten before this rank came to read them: nothing is promised in between."""
    return line if line.event is not None and line.event.parts else replace(line, event=ClockEvent.GAP)


def _method(newest: Published) -> str:
    if not newest.hops:
        return f"{METHOD}: the reference itself"
    stamps = "kernel stamps" if not newest.user_stamped else "user stamps"
    if 0 < newest.user_stamped < newest.exchanges:
        stamps = f"kernel stamps, {newest.user_stamped} with user stamps"
    way = "" if newest.hops == 1 else f", over {newest.hops - 1} other clocks"
    odd = f"; {newest.odd} contradicting ways left out" if newest.odd else ""
    return f"{METHOD}: two-way probes, {stamps}, {newest.exchanges} exchanges{way}{odd}"


def _reset_after_fork(reference: weakref.ref[RankClock]) -> None:
    """A forked process (a data loader's worker) has no thread of ours: it looks into the memory itself."""

    def reset() -> None:
        clock = reference()
        if clock is not None:
            clock._after_fork()

    os.register_at_fork(after_in_child=reset)


def _middle(reading: Reading) -> int:
    return (reading.raw_before_ns + reading.raw_after_ns) // 2
