"""The harness's side of a virtual clock: what it reads at any host instant, past ones too, to the last nanosecond.

Reading is done here, from the mapped state, with the same integer arithmetic as the preloaded library (vclock.h);
changing is done by the library itself, so that there is one writer. A host instant is the host's CLOCK_MONOTONIC in ns.
Refuses instants that lie before the history that the clock keeps (32,000 changes of rate or steps).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rankclock.errors import HostError, InternalError, UserError

__all__ = ["ClockReading", "NtpState", "Segment", "VirtualClock", "drift_q48", "load_library"]

Q48 = 48
ONE_Q48 = 1 << Q48

_MAGIC = 0x314B4352
_HEAD = struct.Struct("<IIQ")  # magic, ring, published
_NTP = struct.Struct("<qqqqqqqqqqqqqqqq")  # status ... hw_rx_filter, at offset 16
_SEGMENT = struct.Struct("<qqqqqqqqqqqq")
_SEGMENT_SIZE = 128
_RING_OFFSET = 4096
_SPARE = 512  # VC_SPARE: the oldest segments, which a writer may be at


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """How a node's clocks run from `host0_ns` on. Rates are (rate - 1) * 2^48; vclock.h explains the fields."""

    host0_ns: int
    raw0_ns: int
    raw_frac: int
    mono0_ns: int
    mono_frac: int
    wall_ns: int
    osc_q48: int
    mono_q48: int
    freq: int
    tick: int
    slew_q48: int
    left_q16: int

    def raw_ns(self, host_ns: int) -> int:
        """CLOCK_MONOTONIC_RAW of the node at a host instant."""
        return _line(self.raw0_ns, self.raw_frac, self.osc_q48, host_ns - self.host0_ns)

    def mono_ns(self, host_ns: int) -> int:
        """CLOCK_MONOTONIC of the node at a host instant."""
        return _line(self.mono0_ns, self.mono_frac, self.mono_q48, host_ns - self.host0_ns)

    def real_ns(self, host_ns: int) -> int:
        """CLOCK_REALTIME of the node (or the time of the PHC) at a host instant."""
        return self.mono_ns(host_ns) + self.wall_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockReading:
    """What the clocks of one node read at one host instant."""

    host_ns: int
    real_ns: int
    mono_ns: int
    raw_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NtpState:
    """What adjtimex would say, and what the lab counts. `freq` is ppm * 65536, `tick` in µs."""

    status: int
    freq: int
    tick: int
    maxerror_us: int
    tai_s: int
    frozen: bool
    steps: int
    adjustments: int
    late: int


def _line(value0: int, frac: int, rate_q48: int, elapsed_ns: int) -> int:
    return value0 + elapsed_ns + ((elapsed_ns * rate_q48 + frac) >> Q48)


def _host_at_raw(segment: Segment, raw_ns: int) -> int:
    """To within 1 ns."""
    return segment.host0_ns + ((raw_ns - segment.raw0_ns) << Q48) // (ONE_Q48 + segment.osc_q48)


def drift_q48(drift_ppb: float) -> int:
    """(rate - 1) * 2^48 of an oscillator that is `drift_ppb` fast."""
    return round(drift_ppb * ONE_Q48 / 1e9)


@cache
def load_library(path: Path) -> ctypes.CDLL:
    """The compiled clock library, for the calls that change a clock. It does not touch this process's own time."""
    library = ctypes.CDLL(str(path))
    state, i64 = ctypes.c_void_p, ctypes.c_int64
    for name, arguments in {
        "vc_step": [state, i64],
        "vc_set_real": [state, i64],
        "vc_set_oscillator": [state, i64],
        "vc_set_frozen": [state, ctypes.c_int],
        "vc_create": [ctypes.c_char_p, i64, i64, i64, i64, i64, ctypes.c_int],
    }.items():
        function = getattr(library, name)
        function.argtypes = arguments
        function.restype = ctypes.c_int if name == "vc_create" else None
    return library


class VirtualClock:
    """One node's system clock, or its PTP hardware clock."""

    def __init__(self, fd: int, library: Path, *, name: str) -> None:
        """Maps the clock behind `fd` (which stays the caller's)."""
        self.name = name
        self._library = load_library(library)
        self._map = mmap.mmap(fd, os.fstat(fd).st_size)
        magic, ring, _ = _HEAD.unpack_from(self._map, 0)
        if magic != _MAGIC:
            raise InternalError(f"{name}: not a virtual clock (magic {magic:#x})")
        self._ring = ring
        self._published = memoryview(self._map)[8:16].cast("Q")
        self._anchor = ctypes.c_char.from_buffer(self._map)
        self.address = ctypes.addressof(self._anchor)  # of the mapped state, for the library

    # ---- reading ----

    def read(self) -> ClockReading:
        """All clocks of the node, now."""
        return self.at_host(time.monotonic_ns())

    def at_host(self, host_ns: int) -> ClockReading:
        """All clocks of the node at a host instant. Raises HostError where it lies before the kept history."""
        segment = self.segment_at(host_ns)
        return ClockReading(
            host_ns=host_ns,
            real_ns=segment.real_ns(host_ns),
            mono_ns=segment.mono_ns(host_ns),
            raw_ns=segment.raw_ns(host_ns),
        )

    def segment_at(self, host_ns: int) -> Segment:
        """The segment that holds at a host instant."""
        return self._find(
            lambda segment: segment.host0_ns <= host_ns, lambda _: host_ns, f"the host instant {host_ns} ns"
        )

    def host_at_raw(self, raw_ns: int) -> int:
        """The first host instant at which the node's CLOCK_MONOTONIC_RAW reads `raw_ns` or more."""
        segment = self._find(
            lambda segment: segment.raw0_ns <= raw_ns,
            lambda segment: _host_at_raw(segment, raw_ns),
            f"the RAW instant {raw_ns} ns",
        )
        host_ns = _host_at_raw(segment, raw_ns)
        while segment.raw_ns(host_ns - 1) >= raw_ns:
            host_ns -= 1
        while segment.raw_ns(host_ns) < raw_ns:
            host_ns += 1
        return host_ns

    def realtime_at_raw(self, raw_ns: int) -> int:
        """CLOCK_REALTIME at the instant when CLOCK_MONOTONIC_RAW of the same node read `raw_ns`."""
        host_ns = self.host_at_raw(raw_ns)
        return self.segment_at(host_ns).real_ns(host_ns)

    def segments(self) -> Iterator[Segment]:
        """The history, oldest first (planned segments of a kernel slew included)."""
        oldest, count = self._range(self._published[0])
        for index in range(oldest, count):
            yield self._segment(index)

    def ntp(self) -> NtpState:
        """What the daemon has set, and counters."""
        segment = self.segment_at(time.monotonic_ns())
        words = _NTP.unpack_from(self._map, 16)
        return NtpState(
            status=words[0],
            freq=segment.freq,
            tick=segment.tick,
            maxerror_us=words[1],
            tai_s=words[5],
            frozen=bool(words[8]),
            steps=words[10],
            adjustments=words[11],
            late=words[12],
        )

    # ---- changing ----

    def step_ns(self, by_ns: int) -> None:
        """Moves CLOCK_REALTIME (or the PHC) at once; the node's kernel and daemons are not told."""
        self._library.vc_step(self.address, by_ns)

    def set_real_ns(self, real_ns: int) -> None:
        """Sets the clock as `clock_settime` does."""
        self._library.vc_set_real(self.address, real_ns)

    def set_drift_ppb(self, drift_ppb: float) -> None:
        """From now on the oscillator is `drift_ppb` fast (negative: slow) against the host's."""
        if not abs(drift_ppb) < 1e8:
            raise UserError(f"{self.name}: an oscillator error of {drift_ppb} ppb: less than 100,000,000 is possible")
        self._library.vc_set_oscillator(self.address, drift_q48(drift_ppb))

    def set_frozen(self, frozen: bool) -> None:
        """A fault of a PHC: its counter stands still."""
        self._library.vc_set_frozen(self.address, int(frozen))

    def set_lost_tx(self, lost: bool) -> None:
        """A fault of a PHC: hardware transmit stamps never come."""
        struct.pack_into("<q", self._map, 88, int(lost))

    def close(self) -> None:
        """Unmaps the clock; the object is of no use afterwards."""
        self._published.release()
        del self._anchor
        self._map.close()

    # ---- the ring ----

    def _range(self, published: int) -> tuple[int, int]:
        count = published & 0xFFFFFFFF
        return max(0, count - (self._ring - _SPARE)), count

    def _segment(self, index: int) -> Segment:
        offset = _RING_OFFSET + (index & (self._ring - 1)) * _SEGMENT_SIZE
        return Segment(**dict(zip(Segment.__slots__, _SEGMENT.unpack_from(self._map, offset), strict=True)))

    def _find(self, begun: Callable[[Segment], bool], instant: Callable[[Segment], int], what: str) -> Segment:
        """The last segment for which `begun` holds; `instant` gives the host instant that is asked for from it.

        Segments that have begun are never written again (until the ring comes round), and new ones begin later than
        now: so for a past instant the answer stands whatever a writer does meanwhile. Of planned ones only an
        unchanged ring can tell.
        """
        while True:
            now_ns = time.monotonic_ns()
            published = self._published[0]
            oldest, count = self._range(published)
            low, high = oldest, count - 1
            if begun(self._segment(high)):
                low = high
            while low < high:
                middle = (low + high + 1) // 2
                if begun(self._segment(middle)):
                    low = middle
                else:
                    high = middle - 1
            segment = self._segment(low)
            now_published = self._published[0]
            if low < (now_published & 0xFFFFFFFF) - self._ring + _SPARE // 2:
                continue  # the ring came round while we read
            if now_published != published and not segment.host0_ns <= instant(segment) <= now_ns:
                continue
            if oldest > 0 and low == oldest and not begun(segment):
                raise HostError(f"{self.name}: {what} lies before the history that the lab keeps")
            return segment
