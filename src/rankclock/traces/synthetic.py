"""A training job that never ran: the traces that its ranks would have recorded, and the truth behind them.

For tests and benchmarks, and for trying the trace commands without a cluster. Every rank's file looks like Kineto's
(spans of steps, operators, kernels, communication; three decimals; base time), stamped by a host clock with a known
offset, rate and, where asked for, a step. Stamps are off by less than the slack that readers allow. What holds between
ranks in reality holds here: nobody leaves a symmetric collective before all have entered, and nothing more.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["HostClock", "Job", "Performed", "SyntheticJob", "write_traces"]

START_TRUE_NS = 1_790_000_000_000_000_000
BASE_STEP_NS = 7_889_238_000_000_000
"""Kineto's base: the wall clock floored to this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostClock:
    """CLOCK_REALTIME of a host: true time + offset + rate, and a step from `step_at_ns` (after the start) on."""

    offset_ns: int = 0
    rate_ppb: int = 0
    step_at_ns: int | None = None
    step_ns: int = 0

    def offset_at(self, true_ns: int) -> int:
        """local - true."""
        after_ns = true_ns - START_TRUE_NS
        stepped = self.step_at_ns is not None and after_ns >= self.step_at_ns
        return self.offset_ns + after_ns * self.rate_ppb // 1_000_000_000 + (self.step_ns if stepped else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is to be made up. tensor * pipeline divides ranks; what is left is data parallel.

    compute_ns: a step's computing; jitter: its relative spread per rank. transfer_ns: of a gradient bucket.
    skew_ns: how far apart ends of one collective may lie beside the tree's order. straggler: rank to extra ns a step.
    lost: share of communication events that are missing. missing: ranks without a file. late: ranks whose first step
    was not recorded.
    """

    ranks: int
    steps: int = 10
    ranks_per_host: int = 8
    backend: str = "gloo"
    tensor: int = 1
    pipeline: int = 1
    buckets: int = 3
    compute_ns: int = 40_000_000
    jitter: float = 0.05
    transfer_ns: int = 2_000_000
    skew_ns: int = 20_000
    tree_ns: int = 5_000
    max_offset_ns: int = 50_000_000
    max_rate_ppb: int = 20_000
    one_step_ns: int = 0
    straggler: dict[int, int] = field(default_factory=dict)
    lost: float = 0.0
    missing: tuple[int, ...] = ()
    late: tuple[int, ...] = ()
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Performed:
    """One rank's part in one collective, in true time."""

    rank: int
    name: str
    group: str
    members: tuple[int, ...]
    sequence: int
    elements: int
    start_ns: int
    end_ns: int
    peer: tuple[int, int] | None = None


class SyntheticJob:
    """The job, performed. `clocks` by host, `spans` by rank; `steps` by rank: (number, start, end). True ns."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._random = random.Random(job.seed)
        hosts = -(-job.ranks // job.ranks_per_host)
        self.clocks = [self._clock(host, hosts) for host in range(hosts)]
        self.spans: dict[int, list[Performed]] = {rank: [] for rank in range(job.ranks)}
        self.computed: dict[int, list[tuple[int, int]]] = {rank: [] for rank in range(job.ranks)}
        self.steps: dict[int, list[tuple[int, int, int]]] = {rank: [] for rank in range(job.ranks)}
        self._now = [START_TRUE_NS + 1_000_000 + self._random.randrange(3_000_000) for _ in range(job.ranks)]
        self._sequences: dict[str, int] = {}
        for number in range(job.steps):
            self._step(number)

    def host_of(self, rank: int) -> int:
        """Ranks are laid out host by host."""
        return rank // self.job.ranks_per_host

    def clock_of(self, rank: int) -> HostClock:
        """The clock that stamps this rank's trace."""
        return self.clocks[self.host_of(rank)]

    def _clock(self, host: int, hosts: int) -> HostClock:
        job, draw = self.job, self._random
        stepped = job.one_step_ns != 0 and host == hosts - 1
        return HostClock(
            offset_ns=draw.randint(-job.max_offset_ns, job.max_offset_ns),
            rate_ppb=draw.randint(-job.max_rate_ppb, job.max_rate_ppb),
            step_at_ns=int(job.steps * job.compute_ns * 0.55) if stepped else None,
            step_ns=job.one_step_ns,
        )

    def _step(self, number: int) -> None:
        job = self.job
        begun = list(self._now)
        cell = job.tensor * job.pipeline
        replicas = job.ranks // cell
        for replica in range(replicas):
            for stage in range(job.pipeline):
                first = replica * cell + stage * job.tensor
                ranks = range(first, first + job.tensor)
                if stage:
                    for rank in ranks:
                        self._hand_over(rank - job.tensor, rank)
                self._compute(ranks, job.compute_ns // (2 * job.pipeline))
                if job.tensor > 1:
                    self._symmetric(f"tp{replica}.{stage}", ranks, "all_reduce", 65_536, job.transfer_ns // 4)
        for bucket in range(job.buckets):
            for inside in range(cell):
                ranks = range(inside, job.ranks, cell)
                self._compute(ranks, job.compute_ns // (2 * job.buckets), extra=bucket == 0)
                if replicas > 1:
                    name = "0" if cell == 1 else f"dp{inside}"
                    self._symmetric(name, ranks, "all_reduce", 37_376 + bucket, job.transfer_ns)
        if cell == 1:
            self._broadcast(range(job.ranks), 32)
        for rank in range(job.ranks):
            self.steps[rank].append((number, begun[rank], self._now[rank]))
            self._now[rank] += 50_000

    def _compute(self, ranks: Sequence[int], length_ns: int, *, extra: bool = False) -> None:
        for rank in ranks:
            spent = int(length_ns * (1 + self.job.jitter * self._random.random()))
            spent += self.job.straggler.get(rank, 0) if extra else 0
            self.computed[rank].append((self._now[rank], self._now[rank] + spent))
            self._now[rank] += spent + self._random.randrange(2_000, 10_000)

    def _next(self, group: str) -> int:
        self._sequences[group] = self._sequences.get(group, -1) + 1
        return self._sequences[group]

    def _symmetric(self, group: str, ranks: Sequence[int], name: str, elements: int, transfer_ns: int) -> None:
        job, draw = self.job, self._random
        what = {
            "name": name,
            "group": group,
            "members": tuple(ranks),
            "sequence": self._next(group),
            "elements": elements,
        }
        entered = max(self._now[rank] for rank in ranks)
        # A tree's leaves end later than its root, in the same order every time: no estimate can see that.
        for place, rank in enumerate(ranks):
            end = entered + transfer_ns + place.bit_length() * job.tree_ns + int(draw.expovariate(1 / job.skew_ns))
            self._perform(rank, end, **what)

    def _broadcast(self, ranks: Sequence[int], elements: int) -> None:
        what = {
            "name": "broadcast",
            "group": "0",
            "members": tuple(ranks),
            "sequence": self._next("0"),
            "elements": elements,
        }
        root = self._now[ranks[0]]
        for rank in ranks:
            ready = root if rank == ranks[0] else max(self._now[rank], root + 20_000)
            self._perform(rank, ready + self._random.randrange(30_000), **what)

    def _hand_over(self, source: int, target: int) -> None:
        group, pair = f"pp{source}.{target}", (source, target)
        what = {"group": group, "members": pair, "peer": pair, "sequence": self._next(group), "elements": 8192}
        sent = self._now[source]
        self._perform(source, sent + 40_000, name="send", **what)
        arrived = max(self._now[target] + 10_000, sent + 60_000 + self._random.randrange(40_000))
        self._perform(target, arrived, name="recv", **what)

    def _perform(self, rank: int, end_ns: int, **what: Any) -> None:
        self.spans[rank].append(Performed(rank=rank, start_ns=self._now[rank], end_ns=end_ns, **what))
        self._now[rank] = end_ns + self._random.randrange(2_000, 8_000)


def write_traces(performed: SyntheticJob, folder: Path, *, padding: int = 2, packed: bool = False) -> list[Path]:
    """One file per rank that is not missing; `padding` operators in each stretch of computing. Returns the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for rank in range(performed.job.ranks):
        if rank in performed.job.missing:
            continue
        text = "".join(_document(performed, rank, padding)).encode()
        path = folder / (f"rank{rank}.pt.trace.json" + (".gz" if packed else ""))
        path.write_bytes(gzip.compress(text, 1, mtime=0) if packed else text)
        paths.append(path)
    return paths


def _document(performed: SyntheticJob, rank: int, padding: int) -> Iterator[str]:
    job, clock = performed.job, performed.clock_of(rank)
    base_ns = (START_TRUE_NS + clock.offset_ns) // BASE_STEP_NS * BASE_STEP_NS
    stamp = _Stamper(clock, base_ns, random.Random(job.seed * 100_003 + rank), gpu=job.backend == "nccl")
    groups: dict[str, tuple[int, ...]] = {}
    for span in performed.spans[rank]:
        groups.setdefault(span.group, span.members)
    info = {
        "backend": job.backend,
        "rank": rank,
        "world_size": job.ranks,
        "pg_count": len(groups),
        "pg_config": [{"pg_name": name, "pg_size": len(ranks), "ranks": list(ranks)} for name, ranks in groups.items()],
    }
    yield '{\n  "schemaVersion": 1,\n  "deviceProperties": [\n    \n  ],\n'
    yield f'  "distributedInfo": {json.dumps(info)},\n  "host_name": "node{performed.host_of(rank):03d}",\n'
    yield f'  "displayTimeUnit": "ms",\n  "baseTimeNanoseconds": {base_ns},\n  "traceEvents": [\n'
    yield ",\n".join(_events(performed, rank, stamp, padding))
    yield f'\n  ],\n  "traceName": "rank{rank}"\n}}'


class _Stamper:
    """True instants to the text of `ts` and `dur`, with the small errors that real stamps have."""

    def __init__(self, clock: HostClock, base_ns: int, draw: random.Random, *, gpu: bool) -> None:
        self._clock, self._base_ns, self._draw = clock, base_ns, draw
        self.error_ns = 8_000 if gpu else 700

    def text(self, start_ns: int, end_ns: int, *, exact: bool = False) -> str:
        error = 0 if exact else self.error_ns
        local = [
            true_ns + self._clock.offset_at(true_ns) + self._draw.randint(-error, error) - self._base_ns
            for true_ns in (start_ns, end_ns)
        ]
        length = max(local[1] - local[0], 0)
        return f'"ts": {local[0] // 1000}.{local[0] % 1000:03d}, "dur": {length // 1000}.{length % 1000:03d}'


def _event(category: str, name: str, lane: str, times: str, args: str) -> str:
    return (
        f'  {{\n    "ph": "X", "cat": "{category}", "name": "{name}", {lane},\n    {times},\n'
        f'    "args": {{\n      {args}\n    }}\n  }}'
    )


def _events(performed: SyntheticJob, rank: int, stamp: _Stamper, padding: int) -> Iterator[str]:
    """Kineto's layout. Spans of steps and operators are stamped exactly, communication with small errors."""
    job = performed.job
    pid, gpu = 1000 + rank, job.backend == "nccl"
    recorded_ns = performed.steps[rank][0][2] if rank in job.late else 0
    host, device = f'"pid": {pid}, "tid": {pid}', f'"pid": {rank % job.ranks_per_host}, "tid": 7'
    yield (
        f'  {{\n    "name": "process_name", "ph": "M", "ts": 0.000, "pid": {pid}, "tid": 0,\n'
        '    "args": { "name": "python" }\n  }'
    )
    for number, start_ns, end_ns in performed.steps[rank]:
        if start_ns >= recorded_ns:
            times = stamp.text(start_ns, end_ns, exact=True)
            yield _event("user_annotation", f"ProfilerStep#{number}", host, times, '"Record function id": 0')
    category, operator = ("kernel", "void at::native::gemm<4>(float*)") if gpu else ("cpu_op", "aten::mm")
    for start_ns, end_ns in performed.computed[rank]:
        length = (end_ns - start_ns) // max(padding, 1)
        for part in range(padding if start_ns >= recorded_ns else 0):
            begin = start_ns + part * length
            args = f'"External id": {part}, "Input Dims": [[8, 128], [128, 512]], "Ev Idx": {part}'
            times = stamp.text(begin, begin + length * 9 // 10, exact=True)
            yield _event(category, operator, device if gpu else host, times, args)
    yield from _communication(performed, rank, stamp, (host, device), recorded_ns)
    last = performed.steps[rank][-1][2]
    end = stamp.text(last, last, exact=True).split(",")[0]
    yield f'  {{\n    "name": "Record Window End", "ph": "i", "s": "g",\n    "pid": "", "tid": "", {end}\n  }}'


def _communication(
    performed: SyntheticJob, rank: int, stamp: _Stamper, lanes: tuple[str, str], recorded_ns: int
) -> Iterator[str]:
    job = performed.job
    draw = random.Random(job.seed * 7919 + rank)
    host, device = lanes
    for index, span in enumerate(performed.spans[rank]):
        if span.start_ns < recorded_ns or draw.random() < job.lost:
            continue
        before = stamp.text(span.start_ns - 30_000, span.start_ns - 10_000, exact=True)
        times = stamp.text(span.start_ns, span.end_ns)
        if job.backend == "nccl":
            name, args = _nccl(span, index)
            yield _event("cpu_op", "record_param_comms", host, before, args)
            yield _event("kernel", name, device.replace('"tid": 7', '"tid": 20'), times, args)
        else:
            dims = f'"Input Dims": [[{span.elements}]], "Input type": ["float"]'
            yield _event("cpu_op", f"c10d::{span.name}_", host, before, dims)
            yield _event("user_annotation", f"gloo:{span.name}", f'{host.split(",")[0]}, "tid": 77', times, dims)


_TORCH_NAMES = {"all_reduce": "allreduce", "broadcast": "broadcast", "send": "send", "recv": "recv"}
_KERNELS = {"all_reduce": "AllReduce_Sum_f32_RING_LL", "broadcast": "Broadcast_RING_LL"}


def _nccl(span: Performed, index: int) -> tuple[str, str]:
    name = f"ncclDevKernel_{_KERNELS.get(span.name, 'SendRecv')}(ncclDevKernelArgsStorage<4096ul>)"
    args = (
        f'"External id": {index + 1}, "Collective name": "{_TORCH_NAMES[span.name]}", '
        f'"In msg nelems": {span.elements}, '
        f'"Out msg nelems": {span.elements}, "Group size": {len(span.members)}, "dtype": "Float", '
        f'"Process Group Name": "{span.group}", "Process Group Ranks": "{list(span.members)}", "Seq": {span.sequence}'
    )
    if span.peer is not None:
        args += f', "Src Rank": {span.peer[0]}, "Dst Rank": {span.peer[1]}'
    return name, args
