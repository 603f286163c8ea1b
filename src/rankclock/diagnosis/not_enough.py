"""The answer 'cannot be told from this; run ...': which command would tell, from what was pasted."""

from __future__ import annotations

from rankclock.diagnosis.evidence import Evidence, Quote
from rankclock.diagnosis.finding import Finding, Rule, Severity, draft

__all__ = ["not_enough"]

_PTP = ("linuxptp log", "PTP data set", "ethtool -T", "offsets")
_NTP = ("chronyc", "ntpq", "time daemon log", "timedatectl", "unit state", "kernel clock", "configuration")
_TRAINING = ("training log", "step of a rank")

_RULE = Rule(
    id="NOT_ENOUGH",
    title="This does not tell",
    needs="",
    check=lambda evidence: (),
    reference="docs/reference/doctor.md",
)


def not_enough(evidence: Evidence) -> Finding:
    """A finding that names what was read, why that is not enough, and the commands that would tell."""
    kinds = list(dict.fromkeys(item.kind for item in evidence.items)) + ["offsets" for _ in evidence.series[:1]]
    if not kinds:
        cause = (
            "nothing in this is known: no output, log line, configuration or message about clocks."
            if evidence.unrecognised
            else "there is nothing to read."
        )
    else:
        cause = (
            f"{', '.join(kinds[:6])}: nothing in it is wrong by itself, and nothing in it proves that a clock is well."
        )
    commands = []
    if any(kind.startswith(_PTP) for kind in kinds):
        commands.append(
            "pmc -u -b 0 'GET PORT_DATA_SET' 'GET TIME_STATUS_NP' 'GET PARENT_DATA_SET'; journalctl -u ptp4l -u "
            "phc2sys -n 200"
        )
    if any(kind.startswith(_NTP) for kind in kinds) or not commands:
        commands.append("chronyc tracking; chronyc -n sources; (or ntpq -pn; or timedatectl)")
    if any(kind.startswith(_TRAINING) for kind in kinds):
        commands.append("rankclock verify between the hosts of the job")
    commands.append("rankclock doctor (on the node itself)")
    quotes = [Quote(source=item.source, line=item.first, text=item.text) for item in evidence.items[:2]]
    return Finding(
        rule=_RULE, draft=draft(Severity.UNKNOWN, 0.5, cause, quotes or evidence.unrecognised[:2], next=commands)
    )
