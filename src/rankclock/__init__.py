"""rankclock: every rank on one clock.

This module holds the public API and imports nothing heavy; `import rankclock` costs milliseconds.
"""

from rankclock.errors import ExitCode, HostError, InternalError, PeerError, RankclockError, UserError
from rankclock.timebase import Judgement, Offset

__version__ = "0.1.0.dev0"

__all__ = [
    "ExitCode",
    "HostError",
    "InternalError",
    "Judgement",
    "Offset",
    "PeerError",
    "RankclockError",
    "UserError",
    "__version__",
]
