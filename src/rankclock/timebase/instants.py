"""Units of time and how people read them. Instants and spans are integer nanoseconds everywhere."""

from __future__ import annotations

__all__ = [
    "NS_PER_MS",
    "NS_PER_S",
    "NS_PER_US",
    "TAI_MINUS_UTC_2017_S",
    "format_offset_ns",
    "format_span_ns",
]

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000

TAI_MINUS_UTC_2017_S = 37
"""TAI - UTC since 2017-01-01 (IERS Bulletin C 52)."""

_UNITS = ((NS_PER_S, "s"), (NS_PER_MS, "ms"), (NS_PER_US, "µs"), (1, "ns"))


def format_span_ns(span_ns: int) -> str:
    """A span in the unit a person would choose, three significant digits: 1_234_567 -> '1.23 ms', 0 -> '0 ns'.

    The sign is kept only where it is negative.
    """
    size_ns = abs(span_ns)
    for unit_ns, name in _UNITS:
        # 999.5 of a unit would print as 1000: the next larger unit takes over there.
        if size_ns * 2 >= unit_ns * 1999 // 1000:
            value = span_ns / unit_ns
            if unit_ns == 1:
                return f"{span_ns} ns"
            magnitude = abs(value)
            decimals = 2 if magnitude < 9.995 else 1 if magnitude < 99.95 else 0
            return f"{value:.{decimals}f} {name}"
    return "0 ns"


def format_offset_ns(offset_ns: int) -> str:
    """Like `format_span_ns`, with the sign always shown: an offset without a sign says nothing."""
    text = format_span_ns(offset_ns)
    return text if offset_ns < 0 or text == "0 ns" else f"+{text}"
