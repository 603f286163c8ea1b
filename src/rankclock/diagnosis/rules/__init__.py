"""The table of rules, by theme.

A rule is found here, in `rankclock doctor --rules`, and in docs/reference/doctor.md.
"""

from __future__ import annotations

from rankclock.diagnosis.finding import Rule
from rankclock.diagnosis.rules import (
    cloud,
    cluster,
    config,
    corrections,
    election,
    facts,
    frequency,
    gps,
    logs,
    network,
    ntp,
    outliers,
    phc,
    ptp,
    service,
    services,
    servo,
    stamps,
    training,
)

__all__ = ["RULES", "THEMES"]

THEMES: dict[str, tuple[Rule, ...]] = {
    "NTP": ntp.RULES,
    "Corrections and bounds": corrections.RULES,
    "Time services and systemd": service.RULES,
    "PTP: grandmasters": election.RULES,
    "PTP: ports": ptp.RULES,
    "Timestamps of interfaces": stamps.RULES,
    "Offsets and servos": (*servo.RULES, *frequency.RULES, *outliers.RULES),
    "PTP hardware clocks and the system clock": phc.RULES,
    "GPS and pulses": gps.RULES,
    "Virtual machines, containers, clouds": cloud.RULES,
    "Network and firewalls": network.RULES,
    "Configuration": config.RULES,
    "Training stack": training.RULES,
    "Services that compare clocks": services.RULES,
    "Logs, files, metrics": logs.RULES,
    "Facts of a node": facts.RULES,
    "Several nodes and ranks": cluster.RULES,
}

RULES: tuple[Rule, ...] = tuple(rule for rules in THEMES.values() for rule in rules)
