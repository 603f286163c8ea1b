"""The grandmaster is killed: when did every clock follow the backup, and where did they go meanwhile?"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

from rankclock.demo.timeline import Timeline
from rankclock.demo.watch import Watch
from rankclock.lab import Lab
from rankclock.report.record import Takeover

__all__ = ["kill_grandmaster"]

LOOK_EVERY_S = 0.1
FOLLOWED_WITHIN_S = 30.0
SETTLED_WITHIN_S = 45.0


def kill_grandmaster(
    lab: Lab,
    watch: Watch,
    timeline: Timeline,
    *,
    grandmaster: str,
    followers: Sequence[str],
    budgets_ns: Mapping[str, int],
    names: Mapping[str, str],
) -> Takeover:
    """SIGKILL to the grandmaster's ptp4l; waits until all followers name one other source and are within budget.

    names: clock identity to node name.
    """
    before = _sources(watch, followers)
    killed_s = timeline.now_s()
    lab.services[grandmaster, "ptp4l"].kill()
    timeline.tell("its ptp4l is killed (SIGKILL)", node=grandmaster, event=True)
    taken_over_s = _followed(watch, timeline, before)
    new = _one_source(watch, followers, names) if taken_over_s is not None else None
    if taken_over_s is not None:
        timeline.tell(f"all {len(followers)} clocks follow {new} after {taken_over_s - killed_s:.1f} s", event=True)
    deadline_s = timeline.now_s() + SETTLED_WITHIN_S
    while (
        taken_over_s is not None
        and not watch.settled(budgets_ns, after_s=taken_over_s)
        and timeline.now_s() < deadline_s
    ):
        watch.look()
        time.sleep(LOOK_EVERY_S)
    return Takeover(killed_s=killed_s, old=grandmaster, new=new, taken_over_s=taken_over_s)


def _followed(watch: Watch, timeline: Timeline, before: Mapping[str, str]) -> float | None:
    deadline_s = timeline.now_s() + FOLLOWED_WITHIN_S
    while timeline.now_s() < deadline_s:
        watch.look()
        sources = _sources(watch, before)
        if (
            all(sources[node] not in ("", source) for node, source in before.items())
            and len(set(sources.values())) == 1
        ):
            return timeline.now_s()
        time.sleep(LOOK_EVERY_S)
    return None


def _one_source(watch: Watch, followers: Sequence[str], names: Mapping[str, str]) -> str:
    source = _sources(watch, followers)[followers[0]]
    return names.get(source, source)


def _sources(watch: Watch, nodes: Iterable[str]) -> dict[str, str]:
    """Whom each node says it follows; '' where it follows nobody or was not read."""
    claims = {node: watch.claim(node) for node in nodes}
    return {node: claim.source if claim else "" for node, claim in claims.items()}
