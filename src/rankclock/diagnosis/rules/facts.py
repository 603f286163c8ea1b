"""What the facts of a node show: who steers its clock, what the kernel says, whether hardware clocks run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rankclock.cluster.facts import Facts
from rankclock.diagnosis.evidence import Evidence
from rankclock.diagnosis.finding import Draft, Rule, Severity, draft

__all__ = ["RULES"]

MAXERROR_US = 16_000_000


def _object(facts: Facts, key: str) -> Mapping[str, Any]:
    value = facts.get(key).value
    return value if isinstance(value, Mapping) else {}


def _nobody(evidence: Evidence) -> Iterator[Draft]:
    for item in evidence.all(Facts):
        facts = item.value
        owners = _object(facts, "realtime_owner").get("owners")
        container = _object(facts, "virtualisation").get("container")
        if owners == [] and container in (None, "none"):
            yield draft(
                Severity.FAULT,
                0.8,
                f"no process on {facts.node} steers its system clock: it runs free, 5 to 30 µs each second away "
                "from everybody else.",
                [item],
                values={"node": facts.node, "owners": []},
                next=(
                    "systemctl list-units | grep -E 'chron|ntp|timesync|ptp4l|phc2sys'",
                    "rankclock plan cluster.yaml",
                ),
                confirm="rankclock probe shows one owner of CLOCK_REALTIME",
            )
        elif owners == []:
            yield draft(
                Severity.UNKNOWN,
                0.6,
                f"{facts.node} is a container ({container}): it has its host's clock, which is steered out there or "
                "not at all. From in here that cannot be told.",
                [item],
                values={"node": facts.node, "container": container, "cap_sys_time": facts.flag("cap_sys_time")},
                next=("chronyc tracking on the host", "rankclock verify between hosts measures it without rights"),
            )
        elif facts.get("realtime_owner").value is None:
            yield draft(
                Severity.UNKNOWN,
                0.5,
                f"who steers the clock of {facts.node} could not be seen: {facts.get('realtime_owner').why}.",
                [item],
                values={"node": facts.node, "owners": None},
                next=("rankclock doctor as root",),
            )


def _kernel(evidence: Evidence) -> Iterator[Draft]:
    for item in evidence.all(Facts):
        kernel = _object(item.value, "adjtimex")
        flags, error = kernel.get("status_flags"), kernel.get("maxerror_us")
        if not isinstance(flags, list) or not isinstance(error, int):
            continue
        unsync = any("UNSYNC" in str(flag) for flag in flags)
        if unsync and error >= MAXERROR_US and _object(item.value, "virtualisation").get("container") in (None, "none"):
            yield draft(
                Severity.FAULT,
                0.75,
                f"the kernel of {item.value.node} calls its clock unsynchronised (STA_UNSYNC, maxerror at its end "
                "of 16 s): no daemon has corrected it since boot or for about nine hours.",
                [item],
                values={"node": item.value.node, "maxerror_us": error, "tai_s": kernel.get("tai_s")},
                next=("rankclock status; journalctl of the daemon that should",),
                confirm="maxerror of milliseconds",
            )


def _hardware(evidence: Evidence) -> Iterator[Draft]:
    for item in evidence.all(Facts):
        for key in item.value.facts:
            if not key.startswith("phc."):
                continue
            phc = _object(item.value, key)
            if phc.get("advances") is False:
                yield draft(
                    Severity.FAULT,
                    0.9,
                    f"{phc.get('device') or key} of {item.value.node} stands still: two readings were the same. "
                    "Whatever is fed from it runs away by a second each second.",
                    [item],
                    values={"node": item.value.node, "device": phc.get("device"), "frozen": True},
                    next=("reload the driver; ethtool -i IFACE; firmware",),
                    confirm="phc_ctl get twice, a second apart",
                )


RULES = (
    Rule(
        id="NOBODY_STEERS",
        title="Nobody steers the system clock",
        needs="facts of the node (rankclock probe)",
        check=_nobody,
        reference="docs/reference/facts.md",
    ),
    Rule(
        id="KERNEL_UNSYNCHRONISED",
        title="The kernel calls its clock unsynchronised",
        needs="facts of the node",
        check=_kernel,
        arithmetic="STA_UNSYNC and maxerror 16,000,000 µs",
        reference="adjtimex(2)",
    ),
    Rule(
        id="PHC_FROZEN",
        title="A hardware clock stands still",
        needs="facts of the node",
        check=_hardware,
        arithmetic="two readings apart in time are equal",
        reference="docs/reference/facts.md",
    ),
)
