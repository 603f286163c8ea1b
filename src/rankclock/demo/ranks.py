"""Rank processes in the lab, one a training node: `preflight` and `verify` as a job would call them.

Gives the exit code that all ranks agreed on, the verdict line, and the pairwise matrix beside the truth.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from rankclock.demo.timeline import Timeline
from rankclock.errors import ExitCode, PeerError
from rankclock.lab import Lab
from rankclock.report.record import Matrix
from rankclock.timebase import Judgement, Offset

__all__ = ["JobAnswer", "answer_of", "ask_ranks", "matrix_from", "matrix_of"]

RENDEZVOUS_PORT = 29400
TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAnswer:
    """What a job's ranks answered. exit_codes: by rank; document: rank 0's JSON."""

    verb: str
    exit_codes: tuple[int, ...]
    document: dict[str, Any]

    @property
    def exit_code(self) -> int:
        """The one exit code. Raises PeerError where the ranks differ."""
        if len(set(self.exit_codes)) != 1:
            raise PeerError(f"the ranks of {self.verb} ended differently: exit codes {list(self.exit_codes)}")
        return self.exit_codes[0]

    @property
    def line(self) -> str:
        """The verdict for people."""
        return str(self.document.get("line", ""))


def ask_ranks(lab: Lab, verb: str, nodes: Sequence[str], *more: str) -> JobAnswer:
    """Runs `rankclock VERB` at once on every node, rank by rank, and gathers the answer."""
    host = str(lab.scenario.cluster.node(nodes[0]).nics[0].address.ip)

    def run(rank: int) -> tuple[int, str, str]:
        argv = [sys.executable, "-m", "rankclock", verb, "--json", "--rank", str(rank), "--world-size", str(len(nodes))]
        argv += ["--rendezvous", f"{host}:{RENDEZVOUS_PORT}", *more]
        done = lab.run(nodes[rank], argv, timeout_s=TIMEOUT_S)
        return done.returncode, done.stdout, done.stderr

    with ThreadPoolExecutor(max_workers=len(nodes)) as pool:
        results = list(pool.map(run, range(len(nodes))))
    return answer_of(verb, tuple(code for code, _, _ in results), results[0][1], results[0][2])


def answer_of(verb: str, exit_codes: tuple[int, ...], stdout: str, stderr: str) -> JobAnswer:
    """The answer that rank 0 printed. Raises PeerError where it printed none."""
    try:
        document, _ = json.JSONDecoder().raw_decode(stdout, stdout.index("{"))
    except ValueError as error:
        said = " ".join((stderr or stdout).split())[-300:]
        raise PeerError(f"rank 0 of {verb} gave no answer (exit code {exit_codes[0]}): {said}") from error
    return JobAnswer(verb=verb, exit_codes=exit_codes, document=document)


def matrix_of(answer: JobAnswer, lab: Lab, timeline: Timeline, *, title: str, threshold_ns: int) -> Matrix:
    """The pairwise matrix of a verify or preflight, with the truth of the instant that it speaks of."""
    pairwise = answer.document["pairwise"]
    host_ns = lab.clock(pairwise["reference"]).host_at_raw(pairwise["raw_ns"][pairwise["reference"]])
    real_ns = {name: lab.clock(name).at_host(host_ns).real_ns for name in pairwise["nodes"]}
    return matrix_from(answer, real_ns, timeline, title=title, threshold_ns=threshold_ns)


def matrix_from(
    answer: JobAnswer, real_ns: Mapping[str, int], timeline: Timeline, *, title: str, threshold_ns: int
) -> Matrix:
    """The pairwise matrix of an answer. real_ns: what each clock truly read at the instant that it speaks of."""
    pairwise = answer.document["pairwise"]
    names = tuple(pairwise["nodes"])
    offsets = {(item["local"], item["reference"]): Offset.from_json(item["offset"]) for item in pairwise["offsets"]}

    def cell(local: str, reference: str) -> Offset:
        if local == reference:
            return Offset.around(0, 0, reference=reference, method="the same clock")
        if (local, reference) in offsets:
            return offsets[local, reference]
        return offsets[reference, local].reversed(reference=reference)

    verdicts = {ExitCode.OK: Judgement.WITHIN, ExitCode.CHECK_FAILED: Judgement.BEYOND}
    return Matrix(
        title=title,
        names=names,
        cells=tuple(tuple(cell(local, reference) for reference in names) for local in names),
        threshold_ns=threshold_ns,
        verdict=verdicts.get(ExitCode(answer.exit_code), Judgement.CANNOT_TELL),
        t_s=timeline.now_s(),
        true_ns=tuple(tuple(real_ns[local] - real_ns[reference] for reference in names) for local in names),
    )
