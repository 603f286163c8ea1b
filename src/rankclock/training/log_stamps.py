"""Log records with cluster time, its bound and the rank: lines of all ranks can be put in one order.

    handler.addFilter(ClusterTime(clock)); handler.setFormatter(ClusterFormatter())

Where the clock is unknown the local time stands, marked so.
"""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime
from typing import Protocol

from rankclock.timebase import NS_PER_S, format_span_ns

__all__ = ["FORMAT", "ClusterFormatter", "ClusterTime"]

FORMAT = "%(cluster_time)s %(cluster_bound)s rank%(rank)s %(levelname)s %(name)s: %(message)s"


class _Clock(Protocol):
    rank: int | None

    def window(self) -> tuple[int, int] | None: ...


class ClusterTime(logging.Filter):
    """Adds to each record: cluster_time_ns, cluster_bound_ns (None where unknown), cluster_time and cluster_bound as
    texts, rank. Lets every record through.
    """

    def __init__(self, clock: _Clock) -> None:
        super().__init__()
        self._clock = clock

    def filter(self, record: logging.LogRecord) -> bool:
        """Stamps the record. Never raises: a log line is worth more than its stamp."""
        try:
            window = self._clock.window()
        except Exception:
            window = None
        record.rank = "?" if self._clock.rank is None else self._clock.rank
        if window is None:
            record.cluster_time_ns, record.cluster_bound_ns = None, None
            record.cluster_time, record.cluster_bound = utc_text(time.time_ns()), "local"
        else:
            middle_ns, bound_ns = (window[0] + window[1]) // 2, (window[1] - window[0] + 1) // 2
            record.cluster_time_ns, record.cluster_bound_ns = middle_ns, bound_ns
            record.cluster_time, record.cluster_bound = utc_text(middle_ns), f"±{format_span_ns(bound_ns)}"
        return True


class ClusterFormatter(logging.Formatter):
    """FORMAT, also for records that no `ClusterTime` has seen."""

    def __init__(self, fmt: str = FORMAT) -> None:
        super().__init__(fmt)

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        if not hasattr(record, "cluster_time"):
            record.cluster_time, record.cluster_bound, record.rank = utc_text(int(record.created * 1e9)), "local", "?"
        return super().format(record)


def utc_text(instant_ns: int) -> str:
    """ISO 8601 in UTC with nanoseconds."""
    seconds, rest = divmod(instant_ns, NS_PER_S)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"
