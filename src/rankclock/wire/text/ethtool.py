"""`ethtool -T`.

What an interface can stamp. A capability counts as missing only where the list was pasted to its end.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rankclock.wire.text.line import Line

__all__ = ["Timestamping", "read_timestamping"]

_HEAD = re.compile(r"\s*Time ?stamping parameters for (?P<iface>[\w.@-]+):?")
_CAPABILITY = re.compile(
    r"\s*(?P<name>(?:hardware|software)-(?:transmit|receive|raw-clock|system-clock|legacy-clock))\b(?:\s+\(\w+\)?)?"
)
_PHC = re.compile(r"\s*(?:PTP Hardware Clock|Hardware timestamp provider index)\s*: ?(?P<phc>none|\d+)?")
_MODE = re.compile(r"\s+(?P<name>[a-z][\w-]*)(?:\s+\((?P<symbol>HWTSTAMP_\w+)\)?)?\s*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timestamping:
    """One interface. capabilities: the names listed. complete: the list had its end. phc: None with has_phc False:
    none.

    tx_modes, rx_filters: names; () where the section says none; None where it was not pasted.
    """

    iface: str
    capabilities: frozenset[str]
    complete: bool
    has_phc: bool | None
    phc: int | None
    tx_modes: tuple[str, ...] | None
    rx_filters: tuple[str, ...] | None

    def can(self, capability: str) -> bool | None:
        """Whether a capability is there; None where the list was cut before its end."""
        return True if capability in self.capabilities else False if self.complete else None

    @property
    def hardware(self) -> bool | None:
        """Whether ptp4l can use hardware stamps: transmit, receive, raw clock and a PHC."""
        parts = [self.can(f"hardware-{name}") for name in ("transmit", "receive", "raw-clock")] + [self.has_phc]
        return False if False in parts else None if None in parts else True

    @property
    def software(self) -> bool | None:
        """Whether `ptp4l -S` can work: software transmit, receive and system clock."""
        parts = [self.can(f"software-{name}") for name in ("transmit", "receive", "system-clock")]
        return False if False in parts else None if None in parts else True


def read_timestamping(lines: Sequence[Line], at: int) -> tuple[Timestamping, int] | None:
    """A report that begins here, its head cut off or not."""
    head = _HEAD.match(lines[at].text)
    if not head and not _CAPABILITY.match(lines[at].text) and not _PHC.match(lines[at].text):
        return None
    capabilities: set[str] = set()
    complete, has_phc, phc = False, None, None
    modes: dict[str, tuple[str, ...] | None] = {"tx": None, "rx": None}
    section = "capabilities" if not head and _CAPABILITY.match(lines[at].text) else ""
    listed = bool(head) or section == "capabilities"
    end = at + (1 if head else 0)
    while end < len(lines):
        text = lines[end].text
        if match := _CAPABILITY.match(text):
            capabilities.add(match["name"])
        elif match := _PHC.match(text):
            complete = listed
            has_phc = None if match["phc"] is None else match["phc"] != "none"
            phc = int(match["phc"]) if has_phc else None
        elif text.strip().startswith("Capabilities"):
            listed = True
        elif text.strip().startswith("Hardware timestamp provider"):
            pass
        elif text.strip().startswith(("Hardware Transmit Timestamp Modes", "Hardware Receive Filter Modes")):
            section = "tx" if "Transmit" in text else "rx"
            modes[section] = ()
        elif section in modes and (match := _MODE.match(text)):
            modes[section] = (*(modes[section] or ()), match["name"])
        else:
            break
        end += 1
    return (
        Timestamping(
            iface=head["iface"] if head else "",
            capabilities=frozenset(capabilities),
            complete=complete,
            has_phc=has_phc,
            phc=phc,
            tx_modes=modes["tx"],
            rx_filters=modes["rx"],
        ),
        max(end, at + 1),
    )
