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
    clocks_are_virtual: the nodes are a lab's, whose clocks are set without the kernel's permission.
    """

    small_cluster_nodes: int = 8
    ntp_suffices_ns: int = NS_PER_MS
    min_sources: int = 3
    local_stratum: int = 10
    gm_priority1: int = 100
    boundary_priority1: int = 200
    clocks_are_virtual: bool = False


DEFAULT_SETTINGS = Settings()
