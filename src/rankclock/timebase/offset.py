"""An offset with its doubt, and the three-valued judgement on it.

One sign: `offset = local - reference`; positive means that the local clock is ahead.
Refuses to hold an estimate without bounds, method and reference, and refuses to be zero where it is unknown.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Self

__all__ = ["DEFAULT_DRIFT_BOUND_PPB", "Judgement", "Offset"]

DEFAULT_DRIFT_BOUND_PPB = 200_000
"""How fast two free crystals may part when nothing better is known: 200 ppm, the figure of production TrueTime."""


class Judgement(StrEnum):
    """What an interval says about a threshold."""

    WITHIN = "within"
    BEYOND = "beyond"
    CANNOT_TELL = "cannot be told"


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """The local clock minus the reference clock: an interval that holds the truth, and the best guess inside it.

    lo_ns, hi_ns: the bound, in ns; None for both where nothing is known.
    estimate_ns: best guess inside [lo, hi]; None where nothing is known.
    reference: the name of the clock that is subtracted. method: how it was got. assumptions: what the bound rests on.
    at_raw_ns: local CLOCK_MONOTONIC_RAW at the instant that the interval speaks of, None where not taken.
    age_ns: how old that instant was when the value was handed out.
    unknown_why: set exactly where nothing is known.
    """

    lo_ns: int | None
    hi_ns: int | None
    estimate_ns: int | None
    reference: str
    method: str
    assumptions: tuple[str, ...] = ()
    at_raw_ns: int | None = None
    age_ns: int = 0
    unknown_why: str | None = None

    def __post_init__(self) -> None:
        known = (self.lo_ns is not None, self.hi_ns is not None, self.estimate_ns is not None)
        if len(set(known)) != 1:
            raise ValueError(f"an offset has bounds and an estimate, or none of them: {self}")
        if self.lo_ns is not None and self.hi_ns is not None and self.estimate_ns is not None:
            if not self.lo_ns <= self.estimate_ns <= self.hi_ns:
                raise ValueError(f"an estimate lies inside its bounds: {self}")
            if self.unknown_why is not None:
                raise ValueError(f"a known offset has no reason to be unknown: {self}")
        elif not self.unknown_why:
            raise ValueError(f"an unknown offset says why: {self}")
        if self.age_ns < 0:
            raise ValueError(f"an age is not negative: {self}")

    @classmethod
    def unknown(cls, why: str, *, reference: str, method: str) -> Self:
        """The value of a clock that nobody could measure."""
        return cls(lo_ns=None, hi_ns=None, estimate_ns=None, reference=reference, method=method, unknown_why=why)

    @classmethod
    def around(cls, estimate_ns: int, bound_ns: int, *, reference: str, method: str, **more: Any) -> Self:
        """A symmetric interval: estimate ± bound."""
        return cls(
            lo_ns=estimate_ns - bound_ns,
            hi_ns=estimate_ns + bound_ns,
            estimate_ns=estimate_ns,
            reference=reference,
            method=method,
            **more,
        )

    @property
    def known(self) -> bool:
        """Whether there is an interval at all."""
        return self.estimate_ns is not None

    @property
    def bound_ns(self) -> int | None:
        """The largest error that the estimate can have: the farther end of the interval."""
        if self.lo_ns is None or self.hi_ns is None or self.estimate_ns is None:
            return None
        return max(self.hi_ns - self.estimate_ns, self.estimate_ns - self.lo_ns)

    def contains(self, truth_ns: int) -> bool:
        """Whether a true offset lies in the interval. An unknown offset contains every truth."""
        if self.lo_ns is None or self.hi_ns is None:
            return True
        return self.lo_ns <= truth_ns <= self.hi_ns

    def judge(self, threshold_ns: int) -> Judgement:
        """Three-valued: beyond only if all of the interval is beyond ±threshold, within only if all of it is within."""
        if self.lo_ns is None or self.hi_ns is None:
            return Judgement.CANNOT_TELL
        if self.lo_ns >= -threshold_ns and self.hi_ns <= threshold_ns:
            return Judgement.WITHIN
        if self.lo_ns > threshold_ns or self.hi_ns < -threshold_ns:
            return Judgement.BEYOND
        return Judgement.CANNOT_TELL

    def aged(self, by_ns: int, *, drift_bound_ppb: int = DEFAULT_DRIFT_BOUND_PPB) -> Self:
        """The same offset `by_ns` later: the bound has grown on both sides by the drift that may have come in."""
        if by_ns < 0:
            raise ValueError(f"time does not run backwards: by_ns={by_ns}")
        if self.lo_ns is None or self.hi_ns is None:
            return self._replaced(age_ns=self.age_ns + by_ns)
        grown_ns = -(-by_ns * drift_bound_ppb // 1_000_000_000)
        return self._replaced(lo_ns=self.lo_ns - grown_ns, hi_ns=self.hi_ns + grown_ns, age_ns=self.age_ns + by_ns)

    def reversed(self, *, reference: str) -> Self:
        """The reference seen from the local clock: the interval mirrored."""
        if self.lo_ns is None or self.hi_ns is None or self.estimate_ns is None:
            return self._replaced(reference=reference)
        return self._replaced(lo_ns=-self.hi_ns, hi_ns=-self.lo_ns, estimate_ns=-self.estimate_ns, reference=reference)

    def to_json(self) -> dict[str, Any]:
        """A JSON object with every field; tuples become lists."""
        return {**asdict(self), "assumptions": list(self.assumptions)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """The inverse of `to_json`. Raises ValueError or TypeError where the object is not one."""
        return cls(**{**value, "assumptions": tuple(value.get("assumptions", ()))})

    def _replaced(self, **fields: Any) -> Self:
        return type(self)(**{**asdict(self), **fields})
