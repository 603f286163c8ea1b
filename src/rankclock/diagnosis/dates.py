"""Readings of `date` on several hosts, compared. Good to a second and the way between the commands."""

from __future__ import annotations

from rankclock.diagnosis.evidence import Evidence, Item
from rankclock.diagnosis.notes import DateReading

__all__ = ["date_difference", "date_readings"]


def date_readings(evidence: Evidence) -> list[Item[DateReading]]:
    """Readings of `date` whose host is known."""
    return [d for d in evidence.all(DateReading) if d.value.host]


def date_difference(evidence: Evidence) -> tuple[str, str, int] | None:
    """(host behind, host ahead, seconds) of readings of date on two or more hosts."""
    readings = date_readings(evidence)
    hosts: dict[str, Item[DateReading]] = {}
    for one in readings:
        hosts.setdefault(one.value.host, one)
    if len(hosts) < 2:
        return None
    ordered = sorted(hosts.values(), key=lambda item: item.value.moment.unix_ns)
    apart = round((ordered[-1].value.moment.unix_ns - ordered[0].value.moment.unix_ns) / 1e9)
    return ordered[0].value.host, ordered[-1].value.host, apart
