"""What the agent was told, as plain values. Standard library only: the service keeps these, not what read the file.

Decides the defaults: limits by class of clock, periods, ports. Refuses nothing; `agent.config` does.
"""

from __future__ import annotations

import socket
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Self

from rankclock.timebase import NS_PER_MS, NS_PER_S, NS_PER_US

__all__ = ["DEFAULT_PORT", "ClockClass", "ProbeSettings", "Settings", "default_limit_ns"]

DEFAULT_PORT = 4911
"""Beside the probes' port, 4910."""


class ClockClass(StrEnum):
    """By what means a clock is kept: it decides how far off is too far. AUTO: by who steers the clock."""

    AUTO = "auto"
    NTP = "ntp"
    PTP_HARDWARE = "ptp-hardware"
    PTP_SOFTWARE = "ptp-software"


DETAILS_EVERY_NS = 5 * NS_PER_S

_LIMITS_NS = {
    ClockClass.NTP: NS_PER_MS,
    ClockClass.PTP_HARDWARE: NS_PER_US,
    ClockClass.PTP_SOFTWARE: 100 * NS_PER_US,
}


def default_limit_ns(clock_class: ClockClass) -> int:
    """How far a clock of that class may be off."""
    return _LIMITS_NS[clock_class]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSettings:
    """Whom to measure against. peers: name to (numeric address, port). reference: the peer that counts as the cluster's
    time, '' where none does. key_hex: the key that all agents share.
    """

    bind: str
    key_hex: str
    peers: dict[str, tuple[str, int]]
    reference: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything. cluster_limit_ns, utc_limit_ns: None for what the class says. probe: None where nobody is probed."""

    node: str
    listen_host: str = "127.0.0.1"
    listen_port: int = DEFAULT_PORT
    tls_certificate: str = ""
    tls_key: str = ""
    users_file: str = ""
    read_every_ns: int = 10 * NS_PER_S
    clock_class: ClockClass = ClockClass.AUTO
    cluster_limit_ns: int | None = None
    utc_limit_ns: int | None = None
    sources_wanted: int = 3
    holdover_budget_ns: int = 600 * NS_PER_S
    maintenance_file: str = "/run/rankclock/maintenance"
    probe: ProbeSettings | None = field(default=None)

    @classmethod
    def here(cls) -> Self:
        """Those of a node without a configuration file: loopback, the daemons' claims, nobody probed."""
        return cls(node=socket.gethostname())

    def limits_ns(self, clock_class: ClockClass) -> tuple[int, int]:
        """(inside the cluster, against UTC) for a clock that is seen to be of that class."""
        default = default_limit_ns(clock_class)
        return self.cluster_limit_ns or default, self.utc_limit_ns or default

    @property
    def details_every_ns(self) -> int:
        """How often is read what does not make the state: gpsd alone takes a second or two."""
        return max(self.read_every_ns, DETAILS_EVERY_NS)

    def to_json(self) -> dict[str, Any]:
        """A JSON object with every field."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """The inverse of `to_json`; trusts its input, which `agent.config` made."""
        probe = value["probe"]
        if probe is not None:
            peers = {name: (str(host), int(port)) for name, (host, port) in probe["peers"].items()}
            probe = ProbeSettings(**{**probe, "peers": peers})
        return cls(**{**value, "clock_class": ClockClass(value["clock_class"]), "probe": probe})
