"""The measurements of one edge over the last minute, and the bound that they allow.

Decides which bursts count when they contradict one another. The newest one that does not fit puts all in doubt, and no
bound is given until the next: if that sides with the past, the odd burst is left out; if it sides with the odd one, the
rate jumped, and the past is forgotten, even those bursts that a line might still join to it (any two fit some line).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from rankclock.clockmath.hull import HullBound, Infeasible, bound_offset
from rankclock.clockmath.line import Line, fit_line
from rankclock.mesh.burst import Burst, Point, Probe, limit_doubt_ns
from rankclock.mesh.settings import ProbeSettings

__all__ = ["EdgeWindow", "Solution"]

WAITING = "the last measurements contradict those before: the rate jumped, or a stamp is wrong; the next will tell"

LATELY_NS = 10_000_000_000
QUICK_SHARE = 4
"""The quickest quarter serves for the estimate at any rate, however much round trips scatter."""

NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """RAW here - RAW there at bound.at_ns: everything it can be, the best guess, and what it rests on.

    user_stamped: how many of the `exchanges` have a stamp that is not the kernel's.
    """

    bound: HullBound
    estimate_ns: int
    rate_ppb: float
    exchanges: int
    user_stamped: int
    least_rtt_ns: int | None

    def estimate_at(self, at_ns: int) -> int:
        """The best guess when the local clock reads at_ns."""
        return self.estimate_ns + round(self.rate_ppb * (at_ns - self.bound.at_ns) / NS_PER_S)


class EdgeWindow:
    """The bursts of one edge, oldest first."""

    def __init__(self, settings: ProbeSettings) -> None:
        self._settings = settings
        self._bursts: deque[Burst] = deque()
        self._doubted: list[Burst] = []
        self.rate_changes = 0
        self.odd_bursts = 0

    def begin(self, probes: Sequence[Probe], now_ns: int) -> Burst:
        """A new burst, whose probes fill up as stamps and replies come in."""
        while self._bursts and now_ns - self._bursts[0].began_ns > self._settings.window_ns:
            self._bursts.popleft()
        burst = Burst(began_ns=now_ns, probes=list(probes))
        self._bursts.append(burst)
        return burst

    @property
    def refused(self) -> int:
        """Exchanges in the window that contradict causality."""
        return sum(burst.refused for burst in self._bursts)

    def clear(self) -> None:
        """Forget everything: the peer's clock is another one."""
        self._bursts.clear()
        self._doubted.clear()

    def solve(self, at_ns: int) -> Solution | Infeasible:
        """Bound and estimate at a local RAW instant."""
        for burst in self._bursts:
            burst.settle(self._settings)
        bound = self._settled_bound(at_ns)
        if isinstance(bound, Infeasible):
            return bound
        lo_ns, hi_ns = bound.offset_at(at_ns)
        slowest, fastest = bound.rate_ppb()
        line = self._line(at_ns, (slowest + fastest) / 2)
        rate_ppb = line.rate_ppb if line is not None else (slowest + fastest) / 2
        guess_ns = line.offset_at(at_ns) if line is not None else (lo_ns + hi_ns) // 2
        return Solution(
            bound=bound,
            estimate_ns=min(max(guess_ns, lo_ns), hi_ns),
            rate_ppb=min(max(rate_ppb, slowest), fastest),
            exchanges=sum(burst.exchanges for burst in self._bursts),
            user_stamped=sum(burst.user_stamped for burst in self._bursts),
            least_rtt_ns=min((burst.quickest.rtt_ns for burst in self._bursts if burst.quickest), default=None),
        )

    def _bound(self, bursts: Sequence[Burst], at_ns: int) -> HullBound | Infeasible:
        return bound_offset(
            [burst.lower for burst in bursts if burst.lower is not None],
            [burst.upper for burst in bursts if burst.upper is not None],
            at_ns=at_ns,
            wander_ppb_per_s=self._settings.wander_ppb_per_s,
            rate_limit_ppb=self._settings.rate_limit_ppb,
        )

    def _settled_bound(self, at_ns: int) -> HullBound | Infeasible:
        """The bound of the bursts that may be believed by now; moves them between `_bursts` and `_doubted`."""
        bound = self._bound(list(self._bursts), at_ns)
        if self._doubted:
            later = list(self._bursts)[1:]
            if not any(burst.lower for burst in later) or not any(burst.upper for burst in later):
                return Infeasible(why=WAITING)
            without_it = self._bound([*self._doubted, *later], at_ns)
            if isinstance(without_it, HullBound):
                self.odd_bursts += 1
                self._bursts = deque([*self._doubted, *later])
                self._doubted = []
                return without_it
            if isinstance(bound, HullBound):
                self.rate_changes += 1
                self._doubted = []
                return bound
        both_ways = any(burst.lower for burst in self._bursts) and any(burst.upper for burst in self._bursts)
        if isinstance(bound, Infeasible) and both_ways:
            bursts = list(self._bursts)
            newest = max(index for index, burst in enumerate(bursts) if burst.lower or burst.upper)
            self._doubted = self._doubted or bursts[:newest]
            self._bursts = deque(bursts[newest:])
            return Infeasible(why=WAITING)
        return bound

    def _line(self, at_ns: int, rate_ppb: float) -> Line | None:
        """The line through the quick exchanges; `rate_ppb` is what the hull says of the rate."""
        points = [burst.quickest for burst in self._bursts if burst.quickest is not None]
        if not points:
            return None
        # The route may have changed to a longer one: what counts as quick is what was quick lately.
        lately = [point for point in points if points[-1].at_ns - point.at_ns <= LATELY_NS]
        limit_ns = limit_doubt_ns(min(point.doubt_ns for point in lately))
        trips_ns = sorted(_round_trip_ns(point, rate_ppb) for point in lately if point.doubt_ns <= limit_ns)
        slack_ns = max(self._settings.rtt_slack_ns, trips_ns[0] / 8)
        quick_ns = max(trips_ns[0] + slack_ns, trips_ns[len(trips_ns) // QUICK_SHARE])
        quick = [
            (point.at_ns, point.offset_ns)
            for point in points
            if point.doubt_ns <= limit_ns and _round_trip_ns(point, rate_ppb) <= quick_ns
        ]
        return fit_line(
            quick,
            at_ns=at_ns,
            rate_ppb=rate_ppb,
            noise_ns=slack_ns,
            wander_ppb_per_s=self._settings.likely_wander_ppb_per_s,
        )


def _round_trip_ns(point: Point, rate_ppb: float) -> float:
    """The time on the way, free of what the two clocks drifted apart while the peer held the answer back."""
    return point.rtt_ns - rate_ppb * point.took_ns / NS_PER_S
