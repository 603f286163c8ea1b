"""What each hop adds to a clock's error, where that figure comes from, and what the hops of a node add up to.

Figures are errors of the real daemons against a known truth, on a LAN, after settling; what is measured in the cluster
replaces them. Where nothing was measured there is no figure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from rankclock.cluster.model import Pace
from rankclock.planning.model import ErrorBudget, Hop, Reach, Scheme

__all__ = ["FIGURES", "Figure", "add_up", "chrony_hop", "phc2sys_hop", "ptp_hop", "reach_of", "unknown_hop"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """What one hop and two hops reach: RMS errors, the bound of a single hop, and how both were got. All in ns."""

    first_ns: int
    second_ns: int
    hop_bound_ns: int
    source: str

    def adds_ns(self, step: int) -> int:
        """What hop number `step` (1 first) adds to the RMS: later hops never less than the first, on the safe side."""
        return self.first_ns if step <= 1 else max(self.first_ns, self.second_ns - self.first_ns)


_LAN = "in virtual time, path of 25 µs + exponential 15 µs each way, RMS after settling"
_LAB = "largest of 49 chronyd in namespaces with kernel stamps, settled"

FIGURES = {
    ("chrony", Pace.NORMAL): Figure(
        first_ns=3_600,
        second_ns=8_000,
        hop_bound_ns=17_000,
        source=f"RMS: chrony 4.3 minpoll 2 xleave {_LAN}; bound: {_LAB}",
    ),
    ("chrony", Pace.FAST): Figure(
        first_ns=2_700,
        second_ns=3_000,
        hop_bound_ns=17_000,
        source=f"RMS: chrony 4.3 minpoll 0 {_LAN}; bound: {_LAB}",
    ),
    "ptp-software": Figure(
        first_ns=1_700,
        second_ns=2_200,
        hop_bound_ns=20_000,
        source=f"RMS: ptp4l 3.1.1, 8 Hz, average of 100, {_LAN}; bound: largest of ptp4l in namespaces, settled",
    ),
    "ptp-hardware": Figure(
        first_ns=20,
        second_ns=30,
        hop_bound_ns=90,
        source="RMS: ptp4l 3.1.1 in virtual time, path of 1 µs + exponential 20 ns; bound: three times two hops",
    ),
    "ptp-emulated": Figure(
        first_ns=3_400,
        second_ns=5_000,
        hop_bound_ns=12_000,
        source="ptp4l and phc2sys 3.1.1 in the lab, stamps made by the kernel on two busy cores: RMS, and the largest",
    ),
}
"""RMS errors without asymmetry come from virtual time; bounds are the largest errors seen where packets really ran:
a sleeping processor makes the way out slower than the way back, which no daemon can see.
"""

PHC2SYS_BOUND_NS = 1_000
"""Real phc2sys on emulated PHCs kept the system clock within about 1 µs of the PHC."""

PHC2SYS_TYPICAL_NS = PHC2SYS_BOUND_NS // 3


def chrony_hop(what: str, *, step: int, pace: Pace, common: bool) -> Hop:
    """One hop over a LAN by chrony."""
    figure = FIGURES["chrony", pace]
    return _hop(what, figure, step, common=common)


def ptp_hop(what: str, *, step: int, scheme: Scheme, emulated: bool) -> Hop:
    """One hop from a PTP clock to the next, PHC to PHC (with software stamps: system clock to system clock)."""
    figure = FIGURES["ptp-emulated" if emulated and scheme is Scheme.PTP_HARDWARE else scheme.value]
    return _hop(what, figure, step, common=False)


def phc2sys_hop(what: str, *, common: bool) -> Hop:
    """From a PHC to the system clock of the same machine, or back."""
    source = "real phc2sys 3.1.1 on emulated PHCs: within about 1 µs"
    return Hop(what=what, typical_ns=PHC2SYS_TYPICAL_NS, bound_ns=PHC2SYS_BOUND_NS, common=common, source=source)


def unknown_hop(what: str, *, common: bool, why: str) -> Hop:
    """A hop of which no figure is known."""
    return Hop(what=what, typical_ns=None, bound_ns=None, common=common, source=why)


def _hop(what: str, figure: Figure, step: int, *, common: bool) -> Hop:
    return Hop(
        what=what,
        typical_ns=figure.adds_ns(step),
        bound_ns=figure.hop_bound_ns,
        common=common,
        source=figure.source,
    )


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
