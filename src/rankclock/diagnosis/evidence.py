"""What rules reason from: recognised pieces of text with their lines, series of offsets, facts and clock states.

Holds and finds; decides nothing. A piece that nobody recognised is kept as such: the answer says so.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from rankclock.wire.text.config_text import Command, Directive
from rankclock.wire.text.event import Event
from rankclock.wire.text.linuxptp import PtpSample

__all__ = ["Evidence", "Item", "Quote", "Series", "Span"]

T = TypeVar("T")

KEPT = 2_048
"""Samples of one series that are kept with their text; beyond, every second one goes, outliers and both ends stay."""

OUTLIERS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """One line of the evidence, as it was pasted. line: from 1; 0 for evidence that is no text (a file of facts)."""

    source: str
    line: int
    text: str

    def to_json(self) -> dict[str, str | int]:
        """The object that stands in a finding."""
        return {"source": self.source, "line": self.line, "text": self.text}


@dataclass(frozen=True, slots=True, kw_only=True)
class Item(Generic[T]):
    """One recognised piece.

    What it is called, its value, where it stood and on which host ('' where nothing said so).
    """

    kind: str
    value: T
    source: str
    first: int
    last: int
    text: str
    host: str = ""

    @property
    def quote(self) -> Quote:
        """Its first line."""
        return Quote(source=self.source, line=self.first, text=self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Lines that belong together in the answer's lists of what was recognised and what was not."""

    kind: str
    source: str
    first: int
    last: int
    count: int

    def to_json(self) -> dict[str, str | int]:
        """The object in the answer."""
        return {
            "kind": self.kind,
            "source": self.source,
            "first_line": self.first,
            "last_line": self.last,
            "count": self.count,
        }


class Series:
    """Offsets of one steered clock, in the order in which they were printed. Bounded: thinned out, outliers kept."""

    __slots__ = (
        "_kept",
        "_last",
        "_least_outlier",
        "_outliers",
        "_stride",
        "clock",
        "count",
        "host",
        "program",
        "source",
    )

    def __init__(self, *, source: str, host: str, program: str, clock: str) -> None:
        self.source, self.host, self.program, self.clock = source, host, program, clock
        self.count = 0
        self._stride = 1
        self._kept: list[tuple[PtpSample, str]] = []
        self._outliers: list[tuple[PtpSample, str]] = []
        self._least_outlier = -1
        self._last: Callable[[], tuple[PtpSample, str]] | None = None

    def add(self, sample: PtpSample, text: str) -> None:
        """Take the next sample and its line."""
        self.offer(sample.offset_ns, lambda: (sample, text))

    def offer(self, offset_ns: int, build: Callable[[], tuple[PtpSample, str]]) -> None:
        """Take the next sample, which is built only where it is kept: most of a full log are not."""
        size = abs(offset_ns)
        if self.count % self._stride == 0:
            self._kept.append(build())
            if len(self._kept) >= 2 * KEPT:
                self._kept = self._kept[:16] + self._kept[16::2]
                self._stride *= 2
                self._least_outlier = sorted(abs(sample.offset_ns) for sample, _ in self._kept)[-OUTLIERS]
        elif size > self._least_outlier:
            self._outliers.append(build())
            if len(self._outliers) > 4 * OUTLIERS:
                self._outliers.sort(key=lambda kept: abs(kept[0].offset_ns))
                del self._outliers[:-OUTLIERS]
                self._least_outlier = max(self._least_outlier, abs(self._outliers[0][0].offset_ns))
        else:
            self._last = build
        self.count += 1

    def _all(self) -> list[tuple[PtpSample, str]]:
        if self._stride == 1:
            return self._kept
        last = [self._last()] if self._last else []
        by_line = {sample.line: (sample, text) for sample, text in (*self._kept, *self._outliers, *last)}
        return [by_line[line] for line in sorted(by_line)]

    @property
    def samples(self) -> list[PtpSample]:
        """The kept samples in order: all of them where there were few."""
        return [sample for sample, _ in self._all()]

    def quotes(self, lines: Iterable[int]) -> tuple[Quote, ...]:
        """The text of kept samples by line number."""
        wanted = set(lines)
        return tuple(
            Quote(source=self.source, line=sample.line, text=text)
            for sample, text in self._all()
            if sample.line in wanted
        )

    @property
    def name(self) -> str:
        """How a sentence calls it."""
        return f"{self.program or 'linuxptp'}{f' ({self.clock})' if self.clock else ''}"


def median(values: Iterable[float]) -> float | None:
    """The middle value (the lower of two middle ones, so that it is one that was really printed); None of nothing."""
    ordered = sorted(values)
    return statistics.median_low(ordered) if ordered else None


@dataclass(slots=True, kw_only=True)
class Evidence:
    """All that was read. items: in reading order. skipped: lines of large inputs that hold nothing about clocks.

    kept_lines: the text of every line that was looked at, by source and number.
    """

    items: list[Item[object]] = field(default_factory=list)
    series: list[Series] = field(default_factory=list)
    unrecognised: list[Quote] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    lines: int = 0
    skipped: int = 0
    event_counts: dict[str, int] = field(default_factory=dict)
    kept_lines: dict[tuple[str, int], str] = field(default_factory=dict)

    def all(self, kind: type[T]) -> list[Item[T]]:
        """Every piece of one type, in order."""
        return [item for item in self.items if isinstance(item.value, kind)]  # type: ignore[misc]

    def events(self, *kinds: str) -> list[Item[Event]]:
        """Every message of these kinds, in order."""
        return [item for item in self.all(Event) if item.value.kind in kinds]

    def has(self, *kinds: str) -> bool:
        """Whether one message of these kinds is there."""
        return bool(self.events(*kinds))

    def commands(self, *programs: str) -> list[Item[Command]]:
        """Command lines of these programs."""
        return [item for item in self.all(Command) if item.value.program in programs]

    def directives(self, dialect: str, *names: str) -> list[Item[Directive]]:
        """Configuration lines that this dialect understands, of these names (all of them without a name)."""
        return [
            item
            for item in self.all(Directive)
            if dialect in item.value.dialects and (not names or item.value.name in names) and not item.value.commented
        ]

    def where(self, test: Callable[[Item[object]], bool]) -> Iterator[Item[object]]:
        """Pieces that pass a test."""
        return (item for item in self.items if test(item))

    @property
    def empty(self) -> bool:
        """Whether nothing at all was recognised."""
        return not self.items and not self.series
