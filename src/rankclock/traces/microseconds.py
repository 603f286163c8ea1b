"""Microseconds as traces write them <-> integer nanoseconds, exactly, never through a double.

A double of epoch microseconds has steps of 0.25 µs, so `ts` is read from its digits. Refuses, with DecodeError, what is
no finite decimal number and what lies outside ±292 years.
"""

from __future__ import annotations

import re

from rankclock.errors import DecodeError

__all__ = ["MAX_NS", "ns_of_text", "text_of_ns"]

MAX_NS = 2**63 - 1
"""292 years: what an int64 of nanoseconds holds. A larger time in a trace is damage."""

_NUMBER = re.compile(rb'"?\s*(-?)([0-9]+)(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]{1,3}))?\s*"?', re.ASCII)
_MAX_DIGITS = 64


def ns_of_text(text: bytes) -> int:
    """Nanoseconds of a JSON number (or string holding one) of microseconds; digits below 1 ns are rounded, half up.

    Raises DecodeError.
    """
    # Kineto writes exactly three decimals: the digits are the nanoseconds.
    if text[-4:-3] == b"." and len(text) < 24:
        digits = text[:-4] + text[-3:]
        if digits.isdigit():
            return int(digits)
    match = _NUMBER.fullmatch(text)
    if match is None or len(text) > _MAX_DIGITS:
        raise DecodeError(f"a number of microseconds is expected, found {text[:40]!r}")
    sign, whole, fraction, exponent = match.groups()
    fraction = fraction or b""
    # value = whole.fraction * 10^exponent µs = int(whole fraction) * 10^shift ns
    shift = int(exponent or 0) + 3 - len(fraction)
    number = int(whole + fraction)
    if shift >= 0:
        magnitude = number * 10**shift if number and shift < 40 else number and MAX_NS + 1
    else:
        unit = 10**-shift
        magnitude = (2 * number + unit) // (2 * unit)
    if magnitude > MAX_NS:
        raise DecodeError(f"a time within 292 years is expected, found {text[:40]!r} µs")
    return -magnitude if sign else magnitude


def text_of_ns(time_ns: int) -> bytes:
    """Microseconds with three decimals, as Kineto writes them: 1234567 -> b'1234.567'."""
    whole, rest = divmod(abs(time_ns), 1000)
    return b"%s%d.%03d" % (b"-" if time_ns < 0 else b"", whole, rest)
