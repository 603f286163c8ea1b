"""Numbers as tools print them: quantities with units, Go durations, decimal commas. All results are exact integers in
ns or plain floats; what is no number is None, never zero.
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

__all__ = ["as_float", "as_int", "duration_ns", "quantity_ns", "seconds_ns"]

_UNIT_NS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "sec": 1_000_000_000,
    "m": 60_000_000_000,
    "min": 60_000_000_000,
    "h": 3_600_000_000_000,
    "d": 86_400_000_000_000,
    "day": 86_400_000_000_000,
    "days": 86_400_000_000_000,
    "y": 31_556_952_000_000_000,
    "w": 604_800_000_000_000,
}
_QUANTITY = re.compile(r"([+-]?\d+(?:[.,]\d+)?(?:[eE][+-]?\d+)?) ?([a-zµμ]+)")
_LONGEST = 40
"""No tool prints a longer number; longer digit strings are noise, and turning them into integers costs time."""


def as_float(text: str) -> float | None:
    """A decimal number, with a point or a comma. None where it is none (`-`, `n/a`, `nan`)."""
    if len(text) > _LONGEST:
        return None
    try:
        value = float(text.replace(",", ".").strip())
    except ValueError:
        return None
    return value if value - value == 0 else None


def as_int(text: str, base: int = 10) -> int | None:
    """A whole number. None where it is none."""
    if len(text) > _LONGEST:
        return None
    try:
        return int(text, base)
    except ValueError:
        return None


def seconds_ns(text: str) -> int | None:
    """Decimal seconds to exact nanoseconds: '31939.769192' -> 31939769192000."""
    if len(text) > _LONGEST:
        return None
    try:
        value = Decimal(text.replace(",", ".").strip())
        return round(value.scaleb(9)) if value.is_finite() and abs(value.adjusted()) < 20 else None
    except InvalidOperation:
        return None


def quantity_ns(text: str) -> int | None:
    """One number with its unit, as chronyc prints it: '+43us' -> 43000, '-8955ns' -> -8955."""
    match = _QUANTITY.fullmatch(text.strip())
    if match is None or (unit_ns := _UNIT_NS.get(match[2])) is None:
        return None
    value = seconds_ns(match[1])
    return None if value is None else round(value * unit_ns / 1_000_000_000) if unit_ns != 1_000_000_000 else value


def duration_ns(text: str) -> int | None:
    """Several numbers with units, as Go and systemd print durations: '1m0.155650202s', '1h59m59s', '34min 8s'."""
    text = text.strip()
    sign = -1 if text.startswith("-") else 1
    text = text[1:] if text[:1] in "+-" else text
    if text[:1] in "+-":
        return None
    total, at = 0, 0
    while at < len(text):
        match = _QUANTITY.match(text, at)
        part = quantity_ns(match[0]) if match else None
        if match is None or part is None:
            return None
        total += part
        at = match.end()
        while at < len(text) and text[at] == " ":
            at += 1
    return sign * total if at else None
