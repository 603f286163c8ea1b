"""What the page's plots draw: compact columns a node, thinned where there are too many samples, nothing made up.

Decides which samples are drawn and on which scale. Refuses to connect over a stretch where nothing was measured: such
stretches are given as spans to be marked as unknown. The drawing itself is templates/report.js.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from rankclock.report.record import RunRecord, Sample, Series
from rankclock.report.summary import main_series, percentile, reach, takeover_window
from rankclock.report.words import method_kind
from rankclock.timebase import Offset

__all__ = ["DRAWN_NODES", "DRAWN_SAMPLES", "compressed_core_ns", "offset_panels", "takeover_panels"]

DRAWN_SAMPLES = 900
"""Samples a panel: about one for each of its pixels; more would only make the file larger."""

DRAWN_IN_ALL = 6_000
"""Samples of all panels of one kind together, about 0.4 MB in the page."""

DRAWN_NODES = 40
"""Nodes that get a panel: a browser draws about twenty of them a second."""


def offset_panels(record: RunRecord) -> list[dict[str, Any]]:
    """One panel a node: its offset from the run's reference over the whole run.

    Where there are more than DRAWN_NODES nodes: those with a bound that missed the truth, and those farthest off.
    """
    chosen = _most_telling(main_series(record))
    return [_panel(series, 0.0, _share(chosen)) for series in chosen]


def takeover_panels(record: RunRecord) -> list[dict[str, Any]]:
    """One panel a node around the kill; times count from it. Empty where nothing was killed."""
    window = takeover_window(record)
    if record.takeover is None or window is None:
        return []
    cuts = []
    for series in record.takeover.paths or main_series(record):
        near = tuple(sample for sample in series.samples if window[0] <= sample.t_s <= window[1])
        if near:
            cuts.append(Series(node=series.node, reference=series.reference, samples=near))
    chosen = _most_telling(cuts)
    return [_panel(series, record.takeover.killed_s, _share(chosen)) for series in chosen]


def _share(chosen: list[Series]) -> int:
    """How many samples each of these may draw."""
    return min(DRAWN_SAMPLES, DRAWN_IN_ALL // max(1, len(chosen)))


def _most_telling(found: list[Series]) -> list[Series]:
    """At most DRAWN_NODES series, in their old order."""
    if len(found) <= DRAWN_NODES:
        return found

    def farthest_first(number: int) -> tuple[int, int]:
        samples = found[number].samples
        reaches_ns = (reach_ns for sample in samples if (reach_ns := reach(sample.measured)) is not None)
        return -sum(map(_missed, samples)), -(percentile(reaches_ns, 90) or 0)

    return [found[number] for number in sorted(sorted(range(len(found)), key=farthest_first)[:DRAWN_NODES])]


def compressed_core_ns(panels: list[dict[str, Any]]) -> int:
    """Up to where the compressed scale is linear: 1, 2 or 5 times a power of ten, at least 100 ns.

    A usual node spends 85 % of the run inside it (bound included), so that its band is seen there.
    """
    usual_ns: list[int] = []
    for panel in panels:
        ends_ns = zip(panel["measured"]["lo"], panel["measured"]["hi"], strict=True)
        usual_ns.append(percentile((max(-lo_ns, hi_ns) for lo_ns, hi_ns in ends_ns if lo_ns is not None), 85) or 0)
    goal_ns, power_ns = percentile(usual_ns, 50) or 0, 100
    while power_ns * 10 < goal_ns:
        power_ns *= 10
    return next((digit * power_ns for digit in (1, 2, 5) if digit * power_ns >= goal_ns), power_ns * 10)


def _panel(series: Series, zero_s: float, most: int) -> dict[str, Any]:
    methods = Counter(method_kind(sample.measured) for sample in series.samples if sample.measured.known)
    method = methods.most_common(1)[0][0] if methods else ""
    # One method a picture (its bands have one width), but a bound that missed the truth is shown whatever its method.
    drawable = [s for s in series.samples if method_kind(s.measured) == method or not s.measured.known or _missed(s)]
    drawn = _thinned(drawable, most)
    return {
        "node": series.node,
        "reference": series.reference,
        "method": method,
        "drawn": len(drawn),
        "samples": len(series.samples),
        "unknown": _unknown_spans(drawable, zero_s),
        "t": [round(sample.t_s - zero_s, 3) for sample in drawn],
        "measured": _columns([sample.measured for sample in drawn]),
        "claimed": _columns([sample.claimed for sample in drawn]),
        "claims_reference": [int(s.claimed is not None and s.claimed.reference == series.reference) for s in drawn],
        "true": [sample.true_ns for sample in drawn],
        "missed": [int(_missed(sample)) for sample in drawn],
    }


def _columns(offsets: list[Offset | None]) -> dict[str, Any]:
    hovers = [_hover(offset) for offset in offsets]
    words = sorted(set(hovers))
    index = {word: number for number, word in enumerate(words)}
    return {
        "estimate": [offset.estimate_ns if offset else None for offset in offsets],
        "lo": [offset.lo_ns if offset else None for offset in offsets],
        "hi": [offset.hi_ns if offset else None for offset in offsets],
        "age": [offset.age_ns if offset else 0 for offset in offsets],
        "words": words,
        "word": [index[hover] for hover in hovers],
    }


def _hover(offset: Offset | None) -> str:
    if offset is None:
        return "not asked for"
    return offset.unknown_why or f"against {offset.reference}, {offset.method}"


def _missed(sample: Sample) -> bool:
    return sample.true_ns is not None and not sample.measured.contains(sample.true_ns)


def _thinned(samples: list[Sample], most: int) -> list[Sample]:
    """At most `most`: of each stretch the sample farthest from zero; and every bound that missed the truth."""
    if len(samples) <= most:
        return samples
    kept: list[Sample] = []
    for number in range(most):
        start, end = (len(samples) * edge // most for edge in (number, number + 1))
        stretch = samples[start:end]
        farthest = max(stretch, key=lambda sample: abs(sample.measured.estimate_ns or 0))
        kept.extend(sample for sample in stretch if sample is farthest or _missed(sample))
    return kept


def _unknown_spans(samples: list[Sample], zero_s: float) -> list[list[float]]:
    """[from, to] of each stretch in which nothing was measured, to the samples on either side of it."""
    spans: list[list[float]] = []
    last_s = samples[0].t_s if samples else 0.0
    inside = False
    for sample in samples:
        if not sample.measured.known:
            if not inside:
                spans.append([round(last_s - zero_s, 3), round(sample.t_s - zero_s, 3)])
            inside = True
        if inside:
            spans[-1][1] = round(sample.t_s - zero_s, 3)
        inside = inside and not sample.measured.known
        last_s = sample.t_s
    return spans
