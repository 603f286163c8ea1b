"""What each hop adds to a clock's error, where that figure comes from, and what the hops of a node add up to.

Figures are RMS errors of the real daemons against a known truth; a bound is three times that. They hold for a quiet
LAN and settled clocks; what the lab or the cluster measures replaces them. Where nothing was measured there is none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from rankclock.cluster.model import Pace
from rankclock.planning.model import ErrorBudget, Hop, Reach, Scheme
from rankclock.planning.settings import Settings

__all__ = ["FIGURES", "Figure", "add_up", "chrony_hop", "phc2sys_hop", "ptp_hop", "reach_of", "unknown_hop"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """RMS error after the first and after the second hop, in ns, and how it was got."""

    first_ns: int
    second_ns: int
    source: str

    def adds_ns(self, step: int) -> int:
        """What hop number `step` (1 first) adds: later hops never less than the first, which is on the safe side."""
        return self.first_ns if step <= 1 else max(self.first_ns, self.second_ns - self.first_ns)


_SIMULATED = "real {} in virtual time, path of 25 µs + exponential 15 µs each way, RMS over 2,000 s after settling"

FIGURES = {
    ("chrony", Pace.NORMAL): Figure(
        first_ns=3_600, second_ns=8_000, source=_SIMULATED.format("chrony 4.3, minpoll 2, xleave")
    ),
    ("chrony", Pace.FAST): Figure(first_ns=2_700, second_ns=3_000, source=_SIMULATED.format("chrony 4.3, minpoll 0")),
    "ptp-software": Figure(
        first_ns=1_700, second_ns=2_200, source=_SIMULATED.format("ptp4l 3.1.1, software stamps, 8 Hz, average of 100")
    ),
    "ptp-hardware": Figure(
        first_ns=20,
        second_ns=30,
        source="real ptp4l 3.1.1 in virtual time, hardware stamps, path of 1 µs + exponential 20 ns, RMS",
    ),
    "ptp-emulated": Figure(
        first_ns=410,
        second_ns=850,
        source="real ptp4l 3.1.1 on emulated PHCs whose stamps the kernel makes in software",
    ),
}

PHC2SYS_BOUND_NS = 1_000
"""Real phc2sys on emulated PHCs kept the system clock within about 1 µs of the PHC."""


def chrony_hop(what: str, *, step: int, pace: Pace, common: bool, settings: Settings) -> Hop:
    """One hop over a LAN by chrony."""
    figure = FIGURES["chrony", pace]
    return _hop(what, figure.adds_ns(step), figure.source, common=common, settings=settings)


def ptp_hop(what: str, *, step: int, scheme: Scheme, emulated: bool, settings: Settings) -> Hop:
    """One hop from a PTP clock to the next, PHC to PHC (with software stamps: system clock to system clock)."""
    figure = FIGURES["ptp-emulated" if emulated and scheme is Scheme.PTP_HARDWARE else scheme.value]
    return _hop(what, figure.adds_ns(step), figure.source, common=False, settings=settings)


def phc2sys_hop(what: str, *, common: bool, settings: Settings) -> Hop:
    """From a PHC to the system clock of the same machine, or back."""
    source = "real phc2sys 3.1.1 on emulated PHCs: within about 1 µs"
    typical_ns = PHC2SYS_BOUND_NS // settings.rms_to_bound
    return Hop(what=what, typical_ns=typical_ns, bound_ns=PHC2SYS_BOUND_NS, common=common, source=source)


def unknown_hop(what: str, *, common: bool, why: str) -> Hop:
    """A hop of which no figure is known."""
    return Hop(what=what, typical_ns=None, bound_ns=None, common=common, source=why)


def _hop(what: str, typical_ns: int, source: str, *, common: bool, settings: Settings) -> Hop:
    bound_ns = typical_ns * settings.rms_to_bound
    return Hop(what=what, typical_ns=typical_ns, bound_ns=bound_ns, common=common, source=source)


def add_up(hops: Iterable[Hop]) -> ErrorBudget:
    """Bounds add up as they are, typical errors as squares; one unknown makes the sum unknown."""
    listed = tuple(hops)
    own = [hop for hop in listed if not hop.common]
    return ErrorBudget(
        hops=listed,
        total_ns=_sum([hop.bound_ns for hop in listed]),
        in_cluster_ns=_sum([hop.bound_ns for hop in own]),
        in_cluster_typical_ns=_root_of_squares([hop.typical_ns for hop in own]),
    )


def reach_of(bound_ns: int | None, typical_ns: int | None, accuracy_ns: int) -> Reach:
    """Yes where the bound fits, no where even the typical error does not, otherwise it cannot be told beforehand."""
    if bound_ns is not None and bound_ns <= accuracy_ns:
        return Reach.YES
    if typical_ns is not None and typical_ns > accuracy_ns:
        return Reach.NO
    return Reach.CANNOT_TELL


def _sum(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _root_of_squares(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return math.isqrt(sum(value * value for value in known)) if len(known) == len(values) else None
