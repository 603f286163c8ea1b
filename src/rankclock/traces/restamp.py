"""Stamps of a stretch of trace text brought into cluster time all at once, where they are written as profilers do.

Works on columns of digits instead of one number after another. Decides whether a stretch is usual: every `"ts"` is a
plain number of microseconds with at most three decimals, ended by a comma or a brace, and lies in the time that the
clock is known for. Gives None for anything else: then the exact way, stamp by stamp, says what it is. Both give the
same bytes.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from rankclock.traces.spans import Ints
from rankclock.traces.timemap import RankMap

__all__ = ["METADATA", "event_around", "restamped"]

_END = re.compile(rb"[ \t\r\n]+[,}]")
METADATA = re.compile(rb'"ph"\s*:\s*"M"')

KEY = b'"ts"'
WIDTH = 24
"""Columns looked at behind a key: 15 digits, a point, three decimals, and what ends them."""

MOST_DIGITS = 15
"""10^15 µs are 31 years: with a base added, nanoseconds stay within an int64."""

_COLON, _SPACE, _POINT, _COMMA, _BRACE, _ZERO, _ESCAPE = b": .,}0\\"
_POWERS = 10 ** np.arange(18, dtype=np.int64)
_FOUR = np.frombuffer(b"".join(b"%04d" % number for number in range(10_000)), dtype=np.uint32)
"""Every four digits as the bytes that they are written with."""

Bytes = npt.NDArray[np.uint8]


def restamped(piece: bytes, rank_map: RankMap, *, own_base_ns: int, base_ns: int) -> bytes | bytearray | None:
    """The piece with its stamps in cluster time; None where something in it is unusual."""
    buffer = np.frombuffer(piece + b" " * (WIDTH + 2), dtype=np.uint8)
    behind = _keys(buffer)
    if behind is None or not behind.size:
        return None if behind is None else piece
    at = behind + 1
    at += buffer[at] == _SPACE
    found = _numbers(piece, sliding_window_view(buffer, WIDTH)[at], at)
    if found is None:
        return None
    times_ns, lengths = found
    timed = times_ns != 0
    mapped = rank_map.to_cluster(times_ns[timed] + own_base_ns)
    if not mapped.known.all():
        unknown = np.flatnonzero(timed)[~mapped.known]
        if not _all_metadata(piece, behind, at, unknown):
            return None
        timed[unknown] = False
    stamps_ns = mapped.cluster_ns[mapped.known] - base_ns
    return _with_stamps(piece, at[timed], lengths[timed], stamps_ns)


def _with_stamps(piece: bytes, at: Ints, lengths: Ints, stamps_ns: Ints) -> bytes | bytearray | None:
    """The piece with other numbers in these places; None where one is negative or very large."""
    if not stamps_ns.size:
        return piece
    if stamps_ns.min() < 0 or stamps_ns.max() >= _POWERS[17]:
        return None
    texts, widths = _written(stamps_ns)
    if np.array_equal(widths, lengths):
        return _in_place(piece, at, texts, widths)
    return _joined(piece, at, lengths, texts, widths)


def _keys(buffer: Bytes) -> Ints | None:
    """The places behind the keys, where their colons stand; None where one is unusual.

    One that is escaped, or more of them than there are events, lie inside of an event's arguments.
    """
    behind = _places(buffer, KEY) + len(KEY)
    keys = buffer[behind] == _COLON
    # White space before the colon is unusual; anything else makes it a text that reads "ts".
    if (buffer[behind[~keys]] <= _SPACE).any() or (buffer[behind - len(KEY) - 1] == _ESCAPE).any():
        return None
    behind = behind[keys]
    return behind if len(behind) <= len(_places(buffer, b'"ph"')) else None


def _places(buffer: Bytes, word: bytes) -> Ints:
    """Where four bytes stand, in order: their first two are compared as one number, from even and from odd places."""
    first_two = np.frombuffer(word[:2], dtype=np.uint16)[0]
    found = []
    for first in range(2):
        pairs = buffer[first : first + (len(buffer) - first) // 2 * 2].view(np.uint16)
        found.append(np.flatnonzero(pairs == first_two) * 2 + first)
    places: Ints = np.concatenate(found)
    places = places[(buffer[places + 2] == word[2]) & (buffer[places + 3] == word[3])]
    places.sort(kind="stable")
    return places


def _all_metadata(piece: bytes, behind: Ints, at: Ints, these: Ints) -> bool:
    """Whether all these stamps are of metadata: names of processes and threads have stamps that mean nothing."""
    for index in these.tolist():
        start = int(at[index - 1]) if index else 0
        stop = int(behind[index + 1]) - len(KEY) if index + 1 < len(behind) else len(piece)
        around = event_around(piece[start : int(behind[index]) - len(KEY)], piece[int(at[index]) : stop])
        if not METADATA.search(around):
            return False
    return True


def event_around(before: bytes, after: bytes) -> bytes:
    """The text of an event, about, without its arguments, of the texts on both sides of its key."""
    return before[before.rfind(b"{") + 1 :] + after.partition(b"{")[0]


def _numbers(piece: bytes, rows: Bytes, at: Ints) -> tuple[Ints, Ints] | None:
    """(ns, how many bytes they are written with) of the numbers that the rows begin with; None where one is unusual.

    rows: what stands in the piece at the places `at`.
    """
    columns = np.ascontiguousarray(rows.T)
    digits = columns - np.uint8(_ZERO)
    plain = digits < 10
    whole = np.argmin(plain, axis=0)
    times_ns, lengths = np.empty(len(rows), dtype=np.int64), np.empty(len(rows), dtype=np.int64)
    counts = np.flatnonzero(np.bincount(whole)).tolist()
    for count in counts:
        if not 0 < count <= MOST_DIGITS:
            return None
        here: Any = slice(None) if len(counts) == 1 else np.flatnonzero(whole == count)
        pointed = columns[count, here] == _POINT
        first, second, third = plain[count + 1, here], plain[count + 2, here], plain[count + 3, here]
        second &= first
        third &= second
        if (pointed & ~first).any():
            return None
        decimals = np.where(pointed, first.astype(np.int64) + second + third, 0)
        ends = count + decimals + pointed
        last = columns[ends, np.arange(len(rows))[here]]
        apart = (last != _COMMA) & (last != _BRACE)
        if apart.any() and not _end_behind_space(piece, (at[here] + ends)[apart]):
            return None
        lengths[here] = ends
        values = _value(digits[:count, here]) * 1000
        for number, has in enumerate((first, second, third)):
            values += (digits[count + 1 + number, here] * (has & pointed)).astype(np.int64) * _POWERS[2 - number]
        times_ns[here] = values
    return times_ns, lengths


def _end_behind_space(piece: bytes, these: Ints) -> bool:
    """Whether white space, and then what ends a value, stands in all these places: after an object's last value."""
    places = these.tolist()
    return all(_END.match(piece, place) for place in places)


def _value(digits: Bytes) -> Ints:
    value: Ints = digits[0].astype(np.int64)
    for column in digits[1:]:
        value *= 10
        value += column
    return value


def _written(stamps_ns: Ints) -> tuple[Bytes, Ints]:
    """Microseconds with three decimals, ending in the last column of each row; and how wide they are."""
    whole, decimals = np.divmod(stamps_ns, 1000)
    texts = np.empty((len(stamps_ns), 5), dtype=np.uint32)
    texts[:, 4] = _FOUR[decimals]
    rest = whole
    for column in (3, 2, 1, 0):
        rest, four = np.divmod(rest, 10_000)
        texts[:, column] = _FOUR[four]
    rows = texts.view(np.uint8)
    rows[:, 16] = _POINT  # in the place of the zero before three decimals
    widths = np.maximum(np.searchsorted(_POWERS, whole, side="right"), 1) + 4
    return rows, widths


def _in_place(piece: bytes, at: Ints, texts: Bytes, widths: Ints) -> bytearray:
    out = bytearray(piece)
    view = np.frombuffer(out, dtype=np.uint8)
    for width in np.unique(widths).tolist():
        here = slice(None) if width == widths.min() == widths.max() else widths == width
        sliding_window_view(view, width, writeable=True)[at[here]] = texts[here, texts.shape[1] - width :]
    return out


def _joined(piece: bytes, at: Ints, lengths: Ints, texts: Bytes, widths: Ints) -> bytes:
    blob, width = texts.tobytes(), texts.shape[1]
    ends = (np.arange(1, len(at) + 1) * width).tolist()
    tokens: list[Any] = [piece[: int(at[0])]] * (2 * len(at) + 1)
    tokens[1::2] = [blob[end - wide : end] for end, wide in zip(ends, widths.tolist(), strict=True)]
    starts, stops = (at + lengths).tolist(), [*at[1:].tolist(), len(piece)]
    tokens[2::2] = [piece[start:stop] for start, stop in zip(starts, stops, strict=True)]
    return b"".join(tokens)
