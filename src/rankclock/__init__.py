"""rankclock: every rank on one clock.

This module holds the public API and imports nothing heavy; `import rankclock` costs milliseconds: what training uses is
loaded when it is first named.
"""

from typing import TYPE_CHECKING, Any

from rankclock.errors import ExitCode, HostError, InternalError, PeerError, RankclockError, UserError
from rankclock.timebase import Judgement, Offset

if TYPE_CHECKING:
    from rankclock.training.clock import RankClock

__version__ = "0.1.0.dev0"

__all__ = [
    "ExitCode",
    "HostError",
    "InternalError",
    "Judgement",
    "Offset",
    "PeerError",
    "RankClock",
    "RankclockError",
    "UserError",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name == "RankClock":
        from rankclock.training.clock import RankClock

        return RankClock
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
