"""Spans read as a person would write them."""

from __future__ import annotations

import pytest

from rankclock.timebase import format_offset_ns, format_span_ns


@pytest.mark.parametrize(
    ("span_ns", "text"),
    [
        (0, "0 ns"),
        (7, "7 ns"),
        (999, "999 ns"),
        (1_000, "1.00 µs"),
        (12_345, "12.3 µs"),
        (999_499, "999 µs"),
        (999_999, "1.00 ms"),
        (1_234_567, "1.23 ms"),
        (-20_000_000_000, "-20.0 s"),
    ],
)
def test_a_span_has_three_digits_in_the_unit_that_fits(span_ns: int, text: str) -> None:
    assert format_span_ns(span_ns) == text


def test_an_offset_always_shows_its_sign() -> None:
    assert format_offset_ns(1_500) == "+1.50 µs"
    assert format_offset_ns(-1_500) == "-1.50 µs"
    assert format_offset_ns(0) == "0 ns"
