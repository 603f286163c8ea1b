"""Every threshold of the decision and the plan, named, in one place."""

from __future__ import annotations

from dataclasses import dataclass

from rankclock.timebase import NS_PER_MS

__all__ = ["DEFAULT_SETTINGS", "Settings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the questions hang on.

    small_cluster_nodes: below it a cluster is small (NTP with a local server does).
    ntp_suffices_ns: a need of this or more is met by tuned NTP on any LAN.
    min_sources: so many independent sources outvote a wrong one.
    local_stratum: what the first server serves at when it has lost every source, behind any real source; the next
        servers two behind each other, so that they follow it.
    most_loss: a path that loses a larger share of the probes is not stable.
    lan_round_trip_ns: above it a path is no LAN, and the figures of LANs say nothing of it.
    clocks_are_virtual: the nodes are a lab's, whose clocks are set without the kernel's permission.
    """

    small_cluster_nodes: int = 8
    ntp_suffices_ns: int = NS_PER_MS
    min_sources: int = 3
    local_stratum: int = 10
    gm_priority1: int = 100
    boundary_priority1: int = 200
    clocks_are_virtual: bool = False
    most_loss: float = 0.01
    lan_round_trip_ns: int = NS_PER_MS


DEFAULT_SETTINGS = Settings()
