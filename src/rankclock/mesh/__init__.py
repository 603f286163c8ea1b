"""Probing between hosts: a state machine without I/O, its UDP driver, and the process that runs it.

Light to import: no numpy (`rankclock.mesh.matrix` needs it, and is imported where reports are combined).
"""

from rankclock.mesh.handle import Prober
from rankclock.mesh.report import EdgeReport, NodeReport

__all__ = ["EdgeReport", "NodeReport", "Prober"]
