"""Watches every node of a lab: what its daemons claim and what was measured between nodes, beside the truth.

One prober and one sampler run in each node; this side reads their lines and, because a lab knows the truth, adds it.
"""

from __future__ import annotations

import json
import os
import sys
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rankclock.demo.timeline import Timeline
from rankclock.errors import HostError
from rankclock.lab import Lab, LabProcess
from rankclock.report.record import Sample, Series, Standing
from rankclock.timebase import ClockState, Judgement, Offset, SyncState

__all__ = ["PROBE_PORT", "Watch"]

PROBE_PORT = 4919
SAMPLE_PERIOD_S = 0.5
SETTLED_FOR_S = 5.0
SETTLED_SAMPLES = 4
"""One sample a second: five seconds within the budget hold at least four of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Claim:
    at_raw_ns: int
    state: ClockState


class _Lines:
    """The JSON lines that a process in the lab has written since we last looked."""

    def __init__(self, process: LabProcess) -> None:
        self.process = process
        self._read = 0

    def new(self) -> list[dict[str, Any]]:
        text = self.process.log_text()
        if self.process.poll() is not None:
            raise HostError(f"{self.process.name} on {self.process.node} has ended: {text[-300:].strip()!r}")
        whole = text.rfind("\n") + 1
        fresh, self._read = text[self._read : whole], whole
        return [json.loads(line) for line in fresh.splitlines() if line.startswith("{")]


class Watch:
    """Everything seen of one lab's clocks, in the order seen. `reference`: the node whose clock is the truth's."""

    def __init__(self, lab: Lab, timeline: Timeline, *, reference: str) -> None:
        self.lab = lab
        self.reference = reference
        self._timeline = timeline
        self._claims: dict[str, list[_Claim]] = defaultdict(list)
        self._samples: dict[tuple[str, str], list[Sample]] = defaultdict(list)
        self._probers: dict[str, _Lines] = {}
        self._samplers: dict[str, _Lines] = {}

    def start(self, peers: dict[str, tuple[str, ...]]) -> None:
        """Starts probers and samplers in all nodes. peers: whom each node probes besides the reference."""
        key = os.urandom(32).hex().encode()
        addresses = {node.name: str(node.nics[0].address.ip) for node in self.lab.scenario.cluster.nodes}
        for name, address in addresses.items():
            self.lab.install(name, {"/etc/rankclock/key": key}, mode=0o600)
            argv = [sys.executable, "-m", "rankclock.mesh.prober", "--node", name, "--bind", f"{address}:{PROBE_PORT}"]
            argv += ["--key-file", "/etc/rankclock/key"]
            wanted = dict.fromkeys((self.reference, *peers.get(name, ()))) if name != self.reference else {}
            for peer in wanted:
                argv += ["--peer", f"{peer}={addresses[peer]}:{PROBE_PORT}"]
            argv += ["--out", "/proc/self/fd/1"] if wanted else ["--responder-only"]
            self._probers[name] = _Lines(self.lab.spawn(name, argv))
            for peer in wanted:
                self._begin(name, peer)
            if wanted:
                sampler = [sys.executable, "-m", "rankclock.demo.sampler", name, str(SAMPLE_PERIOD_S)]
                self._samplers[name] = _Lines(self.lab.spawn(name, sampler))

    def _begin(self, name: str, peer: str) -> None:
        """Every series begins unknown: no line joins it to what another lab's clock of that name did."""
        nothing = Offset.unknown("a fresh lab: not measured yet", reference=peer, method="none")
        t_s = self._timeline.now_s()
        self._samples[name, peer].append(Sample(t_s=t_s, phase=self._timeline.phase_at(t_s), measured=nothing))

    def look(self) -> None:
        """Takes in what the nodes have written since the last look."""
        for name, lines in self._samplers.items():
            self._claims[name] += [
                _Claim(at_raw_ns=line["at_raw_ns"], state=ClockState.from_json(line["state"])) for line in lines.new()
            ]
        for name, lines in self._probers.items():
            for line in lines.new():
                self._keep(name, line)

    def claim(self, node: str) -> ClockState | None:
        """What the node's daemons claimed last; None where they have not been read yet."""
        claims = self._claims[node]
        return claims[-1].state if claims else None

    def _keep(self, name: str, line: dict[str, Any]) -> None:
        at_raw_ns, peer = line["at_raw_ns"], line["peer"]
        t_s = self._timeline.at_s(self.lab.clock(name).host_at_raw(at_raw_ns))
        claim = self._claim_before(name, at_raw_ns) if peer == self.reference else None
        self._samples[name, peer].append(
            Sample(
                t_s=t_s,
                phase=self._timeline.phase_at(t_s),
                measured=Offset.from_json(line["offset"]),
                claimed=claim.state.claimed if claim else None,
                true_ns=self.lab.true_offset_ns(name, peer, at_raw_ns),
                claimed_true_ns=self.lab.true_offset_ns(name, self.reference, claim.at_raw_ns) if claim else None,
            )
        )

    def _claim_before(self, name: str, at_raw_ns: int) -> _Claim | None:
        """The newest claim that was read before that instant."""
        place = bisect_right(self._claims[name], at_raw_ns, key=lambda claim: claim.at_raw_ns)
        return self._claims[name][place - 1] if place else None

    # ---- what is asked of it ----

    def settled(self, budgets_ns: Mapping[str, int], *, after_s: float = 0.0) -> bool:
        """Whether every named node's measured offset lay within its budget in each sample of the last five seconds,
        all of them taken after `after_s`.
        """
        since_s = self._timeline.now_s() - SETTLED_FOR_S
        return since_s >= after_s and all(
            self._node_settled(node, budget_ns, since_s) for node, budget_ns in budgets_ns.items()
        )

    def _node_settled(self, node: str, budget_ns: int, since_s: float) -> bool:
        recent = [sample for sample in self._samples[node, self.reference] if sample.t_s >= since_s]
        return len(recent) >= SETTLED_SAMPLES and all(
            sample.measured.judge(budget_ns) is Judgement.WITHIN for sample in recent
        )

    def standings(self, nodes: Iterable[str]) -> tuple[Standing, ...]:
        """How each clock stands now: claim, measurement and truth."""
        return tuple(self._standing(node) for node in nodes)

    def _standing(self, node: str) -> Standing:
        last = self._samples[node, self.reference][-1]
        state = self.claim(node) or ClockState(
            node=node,
            state=SyncState.UNKNOWN,
            owner="?",
            source="",
            claimed=Offset.unknown("nothing was read", reference="", method="none"),
            measured=last.measured,
            reasons=("its daemons have not been read yet",),
        )
        return Standing(state=replace(state, measured=last.measured), true_ns=last.true_ns)

    def series(self) -> tuple[Series, ...]:
        """All samples, a series per node and reference."""
        return tuple(
            Series(node=node, reference=reference, samples=tuple(samples))
            for (node, reference), samples in self._samples.items()
        )
