"""The verdict of a run in words and counts: what the top of a report, and the last lines of a demo, say.

Decides the order of bad news: a bound that missed the truth comes before a failed check, that before what could not be
told. Refuses to say that all is well where nothing was checked.
"""

from __future__ import annotations

from dataclasses import dataclass

from rankclock.report.record import RunRecord
from rankclock.report.summary import Coverage, measured_coverage
from rankclock.report.words import count, offset_words, percent, plural, signed_words
from rankclock.timebase import format_span_ns

__all__ = ["Headline", "Tile", "headline", "tiles"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """What a reader must know first. mood: 'good', 'bad' or 'open' (it cannot be told)."""

    mood: str
    sentences: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One counted fact at the top of the page."""

    mood: str
    value: str
    label: str


def headline(record: RunRecord) -> Headline:
    """The run's verdict in a few sentences, the worst first."""
    coverage = measured_coverage(record)
    failed = [check for check in record.checks if check.passed is False]
    open_checks = [check for check in record.checks if check.passed is None]
    bad = [*_miss_sentences(coverage), *(f"Failed: {check.name} ({check.detail})." for check in failed)]
    unclear = [f"Cannot be told: {check.name} ({check.detail})." for check in open_checks]
    fine = _fine_sentences(record, coverage)
    if bad:
        return Headline(mood="bad", sentences=(*bad, *unclear, *fine))
    if unclear or not (coverage.checked or record.checks):
        nothing = [] if coverage.checked or record.checks else ["Nothing was checked in this run."]
        return Headline(mood="open", sentences=(*unclear, *nothing, *fine))
    return Headline(mood="good", sentences=tuple(fine))


def _miss_sentences(coverage: Coverage) -> list[str]:
    if not coverage.misses:
        return []
    worst = max(coverage.misses, key=lambda miss: miss.by_ns)
    missed = plural(len(coverage.misses), "measured bound")
    return [
        f"{missed} of {count(coverage.checked)} did not contain the truth.",
        f"The worst: {worst.node} - {worst.reference} ({worst.where}) was measured as {offset_words(worst.offset)}, "
        f"the truth is {signed_words(worst.true_ns)}, {format_span_ns(worst.by_ns)} outside.",
    ]


def _fine_sentences(record: RunRecord, coverage: Coverage) -> list[str]:
    said = []
    passed = sum(check.passed is True for check in record.checks)
    if passed:
        said.append(f"{count(passed)} of {plural(len(record.checks), 'check')} passed.")
    if coverage.checked and not coverage.misses:
        said.append(
            f"Every measured bound contained the truth ({count(coverage.checked)} of {count(coverage.checked)})."
        )
    if coverage.samples and not coverage.checked:
        said.append("The truth is not known here, so no bound could be checked against it.")
    return said


def tiles(record: RunRecord) -> tuple[Tile, ...]:
    """Counts for the top of the page."""
    coverage = measured_coverage(record)
    return (
        *_check_tile(record),
        *_coverage_tiles(coverage),
        *_takeover_tile(record),
        *(
            [Tile(mood="open", value=count(len(record.left_out)), label="left out (see the end)")]
            if record.left_out
            else []
        ),
    )


def _check_tile(record: RunRecord) -> list[Tile]:
    if not record.checks:
        return []
    passed = sum(check.passed is True for check in record.checks)
    failed = sum(check.passed is False for check in record.checks)
    mood = "bad" if failed else "good" if passed == len(record.checks) else "open"
    label = "checks passed" if not failed else f"checks passed, {count(failed)} failed"
    return [Tile(mood=mood, value=f"{count(passed)} of {count(len(record.checks))}", label=label)]


def _coverage_tiles(coverage: Coverage) -> list[Tile]:
    if not coverage.samples:
        return []
    found = []
    if coverage.checked:
        mood = "bad" if coverage.misses else "good"
        value = f"{count(coverage.contained)} of {count(coverage.checked)}"
        share = percent(coverage.contained, coverage.checked)
        found.append(Tile(mood=mood, value=value, label=f"measured bounds that contain the truth ({share})"))
    mood = "open" if coverage.unknown else "good"
    label = f"of {count(coverage.samples)} measurements unknown"
    return [*found, Tile(mood=mood, value=count(coverage.unknown), label=label)]


def _takeover_tile(record: RunRecord) -> list[Tile]:
    takeover = record.takeover
    if takeover is None:
        return []
    if takeover.taken_over_s is None or takeover.new is None:
        return [Tile(mood="bad", value="never", label=f"nobody took over from {takeover.old} in this run")]
    spent_s = takeover.taken_over_s - takeover.killed_s
    return [
        Tile(
            mood="good", value=f"{spent_s:.2f} s", label=f"from the kill of {takeover.old} until {takeover.new} served"
        )
    ]
