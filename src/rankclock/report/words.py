"""How values of a record are written for people: always with the bound, and with words where something is unknown.

Refuses to print an offset without its bound, and an empty string where a value is missing.
"""

from __future__ import annotations

from rankclock.timebase import Offset, format_offset_ns, format_span_ns

__all__ = ["count", "method_kind", "offset_details", "offset_words", "percent", "plural", "signed_words", "span_words"]


def offset_words(offset: Offset) -> str:
    """'+1.20 µs ± 3.40 µs', or 'unknown'."""
    if offset.estimate_ns is None or offset.bound_ns is None:
        return "unknown"
    return f"{format_offset_ns(offset.estimate_ns)} ± {format_span_ns(offset.bound_ns)}"


def offset_details(offset: Offset) -> str:
    """What stands behind an offset: reference, method, age, assumptions; or why it is unknown."""
    if offset.unknown_why is not None:
        return f"{offset.unknown_why} ({offset.method})" if offset.method else offset.unknown_why
    parts = [f"against {offset.reference}", offset.method, f"{format_span_ns(offset.age_ns)} old"]
    if offset.assumptions:
        parts.append(f"assumes {', '.join(offset.assumptions)}")
    return "; ".join(parts)


def span_words(span_ns: int | None) -> str:
    """A span, or 'unknown'."""
    return "unknown" if span_ns is None else format_span_ns(span_ns)


def signed_words(offset_ns: int | None) -> str:
    """An offset that has no doubt (a lab's truth), or 'unknown'."""
    return "unknown" if offset_ns is None else format_offset_ns(offset_ns)


def method_kind(offset: Offset) -> str:
    """The kind of a method, for grouping: its first two parts, as in 'two-way probes, kernel stamps'.

    What follows is figures that change from sample to sample.
    """
    return ", ".join(offset.method.split(", ")[:2]) if offset.known else "unknown"


def count(number: int) -> str:
    """12345 -> '12,345'."""
    return f"{number:,}"


def plural(number: int, thing: str) -> str:
    """(1, 'bound') -> '1 bound', (2, 'bound') -> '2 bounds'."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def percent(part: int, whole: int) -> str:
    """'99.7 %', never rounded up to 100 where one is missing, nor down to 0 where one is there; 'none' of nothing."""
    if whole == 0:
        return "none"
    if part in (0, whole):
        return f"{100 * part // whole} %"
    return f"{min(99.9, max(0.1, 100 * part / whole)):.1f} %"
