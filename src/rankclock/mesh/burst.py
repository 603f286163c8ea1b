"""One burst of probes to one peer, and the best that it gave.

Decides which exchanges may be believed. Hard half-bounds are taken from every datagram that was stamped at both ends,
its answer lost or not. Estimates come only from complete exchanges whose pair kept its spacing both ways: a pair that
was pulled apart or pushed together met a queue (coded probes). An exchange against causality is refused whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from rankclock.clockmath.exchange import (
    Exchange,
    HalfBound,
    OffsetInterval,
    Rejected,
    Stamp,
    lower_bound,
    upper_bound,
)
from rankclock.mesh.settings import ProbeSettings

__all__ = ["Burst", "Point", "Probe", "limit_doubt_ns"]

WIDTH_SLACK_NS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One complete exchange as an estimate: local - peer in the middle of it, and its round trip.

    took_ns: from departure to return, which the local clock measured and the peer's waiting time does not share: the
    round trip is off by the rate between the clocks times this. doubt_ns: the widths of its four stamps together.
    """

    at_ns: int
    offset_ns: int
    rtt_ns: int
    took_ns: int
    doubt_ns: int


@dataclass(slots=True, kw_only=True)
class Probe:
    """One request and what became known of it: `departed` and `returned` on the local RAW clock, the others on the
    peer's. `user_stamped`: one of the stamps is a process's, not the kernel's."""

    sequence: int
    departed: Stamp | None = None
    reached: Stamp | None = None
    answered: Stamp | None = None
    returned: Stamp | None = None
    user_stamped: bool = False

    def exchange(self) -> Exchange | None:
        """The complete exchange, if all four stamps are known."""
        if self.departed is None or self.reached is None or self.answered is None or self.returned is None:
            return None
        return Exchange(departed=self.departed, reached=self.reached, answered=self.answered, returned=self.returned)


@dataclass(slots=True, kw_only=True)
class Burst:
    """The probes of one burst, and their sum after `settle`.

    lower, upper: the tightest half-bounds. quickest: the best estimate. exchanges: complete and possible ones.
    refused: how many contradicted causality, and `refused_why` the last of them.
    """

    began_ns: int
    probes: list[Probe] = field(default_factory=list)
    changed: bool = True
    lower: HalfBound | None = None
    upper: HalfBound | None = None
    quickest: Point | None = None
    exchanges: int = 0
    user_stamped: int = 0
    refused: int = 0
    refused_why: str = ""

    def settle(self, settings: ProbeSettings) -> None:
        """Compute the sum anew, where a stamp came in since the last time."""
        if not self.changed:
            return
        self.changed = False
        self.exchanges = self.user_stamped = self.refused = 0
        lowers, uppers, believed = [], [], {}
        for index, probe in enumerate(self.probes):
            exchange = probe.exchange()
            if exchange is not None:
                interval = exchange.interval(rate_limit_ppb=settings.rate_limit_ppb)
                if isinstance(interval, Rejected):
                    self.refused += 1
                    self.refused_why = interval.why
                    continue
                believed[index] = interval
                self.exchanges += 1
                self.user_stamped += probe.user_stamped
            if probe.departed is not None and probe.reached is not None:
                lowers.append(lower_bound(probe.departed, probe.reached))
            if probe.answered is not None and probe.returned is not None:
                uppers.append(upper_bound(probe.answered, probe.returned))
        self.lower = max(lowers, key=lambda bound: bound.offset_ns, default=None)
        self.upper = min(uppers, key=lambda bound: bound.offset_ns, default=None)
        self.quickest = self._quickest(believed, settings)

    def _quickest(self, believed: dict[int, OffsetInterval], settings: ProbeSettings) -> Point | None:
        """The quickest exchange of an unharmed pair; of any, where no pair came through unharmed.

        Only of well-stamped ones: where CLOCK_REALTIME was slewed hard a round trip may look like nothing.
        """
        if not believed:
            return None
        well_stamped = limit_doubt_ns(min(interval.doubt_ns for interval in believed.values()))
        clear = {index: interval for index, interval in believed.items() if interval.doubt_ns <= well_stamped}
        least_ns = min(interval.rtt_ns for interval in clear.values())
        limit_ns = max(settings.spacing_ns, least_ns // 4)
        unharmed = [
            index
            for index in clear
            if (index ^ 1) in believed and self._spacing_kept(index & ~1, (index & ~1) + 1, limit_ns)
        ]
        candidates: Iterable[int] = unharmed or clear
        index = min(candidates, key=lambda index: believed[index].rtt_ns)
        probe, interval = self.probes[index], believed[index]
        assert probe.departed is not None
        assert probe.returned is not None
        middle_ns = (probe.departed.earliest_ns + probe.returned.latest_ns) // 2
        return Point(
            at_ns=middle_ns,
            offset_ns=interval.estimate_ns,
            rtt_ns=interval.rtt_ns,
            took_ns=probe.returned.latest_ns - probe.departed.earliest_ns,
            doubt_ns=interval.doubt_ns,
        )

    def _spacing_kept(self, first: int, second: int, limit_ns: int) -> bool:
        one, two = self.probes[first].exchange(), self.probes[second].exchange()
        if one is None or two is None:
            return False
        spacing = [
            later.estimate_ns - earlier.estimate_ns
            for earlier, later in (
                (one.departed, two.departed),
                (one.reached, two.reached),
                (one.answered, two.answered),
                (one.returned, two.returned),
            )
        ]
        return abs(spacing[1] - spacing[0]) <= limit_ns and abs(spacing[3] - spacing[2]) <= limit_ns


def limit_doubt_ns(least_ns: int) -> int:
    """How wide stamps may be, where the best are `least_ns` wide, and still serve for an estimate."""
    return 2 * least_ns + WIDTH_SLACK_NS
