"""Spans of time as people write them: `50us`, `1 ms`, `0.5s`. Exact; refuses numbers without a unit."""

from __future__ import annotations

import re
from decimal import Decimal

from rankclock.errors import DecodeError
from rankclock.timebase import NS_PER_MS, NS_PER_S, NS_PER_US

__all__ = ["parse_duration_ns"]

_DURATION = re.compile(r"^([0-9]{1,12}(?:\.[0-9]{1,9})?)\s?(ns|us|µs|μs|ms|s)$")  # both signs for micro are in use
_UNIT_NS = {"ns": 1, "us": NS_PER_US, "µs": NS_PER_US, "μs": NS_PER_US, "ms": NS_PER_MS, "s": NS_PER_S}


def parse_duration_ns(text: str) -> int:
    """Nanoseconds, exact. Raises DecodeError for anything else, and for fractions of a nanosecond."""
    match = _DURATION.match(text.strip())
    if match is None:
        raise DecodeError(f"{text!r} is no span of time: expected a number and ns, us, ms or s, such as 50us")
    span_ns = Decimal(match[1]) * _UNIT_NS[match[2]]
    if span_ns != int(span_ns):
        raise DecodeError(f"{text!r} is not a whole number of nanoseconds")
    return int(span_ns)
