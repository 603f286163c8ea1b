"""Every number that was read, under a name that ends in its unit.

The `values` of the answer before the rules add theirs.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from rankclock.diagnosis.evidence import Evidence, median
from rankclock.diagnosis.notes import Metric
from rankclock.wire.text.chronyc import Activity, ChronySource, SourceStats, Tracking
from rankclock.wire.text.kernel_clock import KernelClock
from rankclock.wire.text.ntpq import NtpPeer, NtpVariables
from rankclock.wire.text.pmc import PtpDataset
from rankclock.wire.text.timedatectl import TimeDate, TimesyncStatus

__all__ = ["read_values"]

LISTED = 16
"""Longer lists of readings are cut: the lines are in the evidence."""


def read_values(evidence: Evidence) -> dict[str, Any]:
    """Numbers of all recognised pieces. Where several pieces have the same number, it becomes a list."""
    values: dict[str, Any] = {}
    for kind in (Tracking, Activity, KernelClock, TimeDate, TimesyncStatus):
        for item in evidence.all(kind):
            for name, value in _plain(item.value).items():
                _put(values, name, value)
    for track in evidence.all(Tracking):
        if track.value.bound_s is not None:
            _put(values, "error_bound_s", round(track.value.bound_s, 9))
        if track.value.unsynchronised is not None:
            _put(values, "in_sync", not track.value.unsynchronised)
    _rows(values, evidence)
    _peers(values, evidence)
    _datasets(values, evidence)
    for metric in evidence.all(Metric):
        _put(values, metric.value.name, metric.value.value)
    for series in evidence.series:
        _series(values, series.name.replace(" ", "_").replace("(", "").replace(")", ""), series.samples)
    return values


def _rows(values: dict[str, Any], evidence: Evidence) -> None:
    """Rows of chronyc sources and sourcestats."""
    for prefix, rows in (("source", evidence.all(ChronySource)), ("stats", evidence.all(SourceStats))):
        for row in rows:
            for name, value in _plain(row.value).items():
                _put(values, f"{prefix}_{name}", value)


def _peers(values: dict[str, Any], evidence: Evidence) -> None:
    """Rows of ntpq."""
    for peer in evidence.all(NtpPeer):
        _put(values, "peers", peer.value.name)
        _put(values, "reach", peer.value.reach)
        if peer.value.reach:
            _put(values, "peer_offset_ms", peer.value.raw_offset_ms)


def _datasets(values: dict[str, Any], evidence: Evidence) -> None:
    """Variables of ntpq and fields of PTP data sets."""
    for variables in evidence.all(NtpVariables):
        for name in ("offset", "rootdelay", "rootdisp", "frequency", "stratum"):
            if (number := variables.value.number(name)) is not None:
                unit = {"frequency": "_ppm", "stratum": ""}.get(name, "_ms")
                _put(values, f"{name}{unit}", number)
    for dataset in evidence.all(PtpDataset):
        for name, text in dataset.value.fields.items():
            number = None if text.lower().startswith("0x") else dataset.value.number(name)
            value = text if number is None else int(number) if number == int(number) else number
            _put(values, name, value)


def _series(values: dict[str, Any], name: str, samples: list[Any]) -> None:
    offsets = [abs(sample.offset_ns) for sample in samples]
    freqs = [sample.freq_ppb for sample in samples if sample.freq_ppb is not None]
    delays = [sample.delay_ns for sample in samples if sample.delay_ns is not None]
    values[f"{name}_max_abs_offset_ns"] = max(offsets)
    values[f"{name}_median_abs_offset_ns"] = median(offsets)
    if freqs:
        values[f"{name}_median_freq_ppb"] = median(freqs)
    if delays:
        values[f"{name}_median_delay_ns"] = median(delays)


def _plain(value: object) -> dict[str, Any]:
    assert is_dataclass(value)
    return {
        field.name: getattr(value, field.name)
        for field in fields(value)
        if field.name != "leap_cut" and getattr(value, field.name) is not None
    }


def _put(values: dict[str, Any], name: str, value: Any) -> None:
    if name not in values:
        values[name] = value
    elif isinstance(values[name], list):
        if len(values[name]) < LISTED:
            values[name].append(value)
    else:
        values[name] = [values[name], value]
