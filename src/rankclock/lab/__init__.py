"""A cluster on one machine: namespaces, real daemons, a private clock per node whose truth is known.

The first processes of a lab import parts of this package with the standard library only; so the names below are loaded
when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rankclock.lab.clock import ClockReading, VirtualClock
    from rankclock.lab.lab import Lab, ServiceLike
    from rankclock.lab.link import Link
    from rankclock.lab.process import LabProcess
    from rankclock.lab.scenario import Scenario, load_scenario

__all__ = ["ClockReading", "Lab", "LabProcess", "Link", "Scenario", "ServiceLike", "VirtualClock", "load_scenario"]

_HOMES = {
    "ClockReading": "clock",
    "VirtualClock": "clock",
    "Lab": "lab",
    "Link": "link",
    "ServiceLike": "lab",
    "LabProcess": "process",
    "Scenario": "scenario",
    "load_scenario": "scenario",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
