"""How a prober behaves: every number with its reason, in one place."""

from __future__ import annotations

from dataclasses import dataclass

from rankclock.clockmath.hull import RATE_LIMIT_PPB, WANDER_PPB_PER_S

__all__ = ["ProbeSettings"]

NS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSettings:
    """Settings of one prober; the defaults are what was measured to work.

    pairs: probe pairs of a burst, sent back to back: spaced probes on an idle machine are a hundred times worse.
    collect_ns: how long after a burst one more probe leaves: its reply tells when the burst's replies left.
    period_ns: from burst to burst; jitter_ns: up to how much longer, anew each time: the bursts of a job's hosts, which
    started together, must not meet at their reference.
    start_ns: when the first bursts leave, so that an answer stands after a second.
    reply_wait_ns: how long after a burst its replies are waited for before a sample is made.
    paced_ns: where probes leave one by one, how long an answer is waited for before the next leaves.
    lost_after: bursts without any reply after which a peer counts as lost.
    window_ns: how long half-bounds are kept; wander makes older ones useless at any rate.
    reading_period_ns: how often the clocks are read when nothing happens, so that steps and slews are followed.
    spacing_ns: a pair whose spacing changed by more than this, or by a quarter of the least round trip, met a queue.
    likely_wander_ppb_per_s: how fast rates wander as a rule; weighs old exchanges in the estimate, carries no bound.
    rtt_slack_ns: estimates come from exchanges whose round trip is within this, or an eighth, of the least.
    requests_per_s, request_burst: what one node may ask of this one.
    open_probes, sessions: bounds of what is remembered; the oldest is forgotten.
    """

    pairs: int = 4
    collect_ns: int = 15 * NS_PER_MS
    period_ns: int = 1_000 * NS_PER_MS
    jitter_ns: int = 0
    start_ns: tuple[int, ...] = tuple(at * NS_PER_MS for at in (0, 20, 60, 130, 250, 450, 700))
    reply_wait_ns: int = 200 * NS_PER_MS
    paced_ns: int = 10 * NS_PER_MS
    lost_after: int = 3
    window_ns: int = 64_000 * NS_PER_MS
    reading_period_ns: int = 100 * NS_PER_MS
    spacing_ns: int = 500
    likely_wander_ppb_per_s: int = 5
    rtt_slack_ns: int = 500
    requests_per_s: int = 64
    request_burst: int = 128
    open_probes: int = 64
    sessions: int = 1024
    wander_ppb_per_s: int = WANDER_PPB_PER_S
    rate_limit_ppb: int = RATE_LIMIT_PPB

    @property
    def probes(self) -> int:
        """Datagrams of a burst: its pairs, and the one that collects."""
        return 2 * self.pairs + 1
