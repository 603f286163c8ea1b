"""Brings a plan's services up in a lab as a person would: sources first, then tier by tier, each once the one above is
right. Right means that the *true* offset has stayed within the accuracy for some seconds: never a port state.

A tier that does not get there in time is a result, not an error. Refuses nodes that the lab does not have.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rankclock.cluster.model import NodeKind
from rankclock.errors import UserError
from rankclock.lab.lab import Lab, ServiceLike

__all__ = ["Tier", "TierService", "apply", "start_sources"]

SOURCE_CONF = """# The lab's own: a source is a reference and not planned. Its clock is the lab's truth.
local stratum 1
allow
pidfile /run/chrony/chronyd.pid
"""


class TierService(ServiceLike, Protocol):
    """A service that knows when it starts."""

    @property
    def tier(self) -> int: ...


class Rendered(Protocol):
    """What is needed of a rendered node."""

    @property
    def files(self) -> Mapping[str, str]: ...
    @property
    def services(self) -> tuple[TierService, ...]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """How one tier went. worst_ns: the largest true offset at the end, None where the tier has no clock to look at."""

    tier: int
    nodes: tuple[str, ...]
    settled: bool
    took_s: float
    worst_ns: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    name: str
    argv: tuple[str, ...]


def start_sources(lab: Lab, *, logs: Path | None = None) -> tuple[str, ...]:
    """Lets nodes of kind `source` serve NTP from their own clock, where nothing runs there yet; gives their names."""
    names = tuple(node.name for node in lab.scenario.cluster.nodes if node.kind is NodeKind.SOURCE)
    conf = "/etc/chrony/chrony.conf"
    for name in names:
        if not any(lab.running_services(name).values()):
            lab.install(name, {conf: SOURCE_CONF.encode()})
            argv = ("/usr/sbin/chronyd", "-d", "-u", "root", "-f", conf)
            lab.start_service(name, _Source(name="chronyd", argv=argv), log=_log(logs, name, "chronyd"))
    return names


def apply(
    lab: Lab,
    nodes: Mapping[str, Rendered],
    *,
    accuracy_ns: int,
    settle_s: float = 5.0,
    timeout_s: float = 90.0,
    leave_stopped: Collection[str] = (),
    logs: Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Tier]:
    """Installs all files, then starts the services tier by tier; those of `leave_stopped` are installed only."""
    known = {node.name for node in lab.scenario.cluster.nodes}
    for name in nodes:
        if name not in known:
            raise UserError(f"the plan has a node {name!r} that the lab does not have: render the lab's own cluster")
    start_sources(lab, logs=logs)
    for name, node in nodes.items():
        for service in node.services:
            lab.stop_service(name, service.name)
        lab.install(name, {path: text.encode() for path, text in node.files.items()})
    results = []
    for tier in sorted({service.tier for node in nodes.values() for service in node.services}):
        started = [name for name in nodes if name not in leave_stopped and _of_tier(nodes[name].services, tier)]
        for name in started:
            for service in _of_tier(nodes[name].services, tier):
                lab.start_service(name, service, log=_log(logs, name, service.name))
        progress(f"tier {tier}: started {', '.join(started) or 'nothing'}")
        results.append(_settled(lab, tier, started, accuracy_ns=accuracy_ns, settle_s=settle_s, timeout_s=timeout_s))
        if not results[-1].settled:
            progress(f"tier {tier}: not within {accuracy_ns} ns after {timeout_s:g} s: the tiers below are not started")
            break
    return results


def _of_tier(services: Iterable[TierService], tier: int) -> list[TierService]:
    return [service for service in services if service.tier == tier]


def _log(logs: Path | None, node: str, service: str) -> Path | None:
    return logs / f"{node}-{service}.log" if logs else None


def _settled(lab: Lab, tier: int, names: list[str], *, accuracy_ns: int, settle_s: float, timeout_s: float) -> Tier:
    started_s = time.monotonic()
    since_s: float | None = None
    while True:
        offsets_ns = [abs(lab.true_offset_ns(name, lab.reference)) for name in names]
        worst_ns = max(offsets_ns, default=None)
        now_s = time.monotonic()
        if worst_ns is not None and worst_ns > accuracy_ns:
            since_s = None
        elif since_s is None:
            since_s = now_s
        settled = worst_ns is None or (since_s is not None and now_s - since_s >= settle_s)
        if settled or now_s - started_s > timeout_s:
            took_s = now_s - started_s
            return Tier(tier=tier, nodes=tuple(names), settled=settled, took_s=took_s, worst_ns=worst_ns)
        time.sleep(0.05)
