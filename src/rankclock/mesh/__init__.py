"""Probing between hosts: a state machine without I/O, its UDP driver, and the process that runs it.

Light to import: no numpy (`rankclock.mesh.matrix` needs it, and is imported where reports are combined), and what the
prober process does not need is loaded only when it is asked for: that process must be up in a tenth of a second.
"""

from typing import TYPE_CHECKING, Any

from rankclock.mesh.report import EdgeReport, NodeReport

if TYPE_CHECKING:
    from rankclock.mesh.handle import Prober

__all__ = ["EdgeReport", "NodeReport", "Prober"]


def __getattr__(name: str) -> Any:
    if name == "Prober":
        from rankclock.mesh.handle import Prober

        return Prober
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
