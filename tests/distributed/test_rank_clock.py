"""RankClock in real processes on this machine: all read one CLOCK_MONOTONIC_RAW, so that truth is at hand."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from rankclock.timebase import Offset
from rankclock.timebase.clock_record import ClockEvent
from rankclock.wire.clock_record import decode_file, file_name

WORKER = Path(__file__).with_name("rank_clock_worker.py")
LAUNCHER_WORDS = ("RANK", "SLURM_", "PMI", "OMPI_", "MASTER_", "TORCHELASTIC", "WORLD_SIZE", "RANKCLOCK_", "JOB_COMP")


class Worker:
    """One rank's process."""

    def __init__(self, options: dict[str, Any], env: dict[str, str]) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHER_WORDS)}
        command = [sys.executable, str(WORKER), json.dumps(options)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**clean, **env}
        )
        self.started_s: float | None = None

    def ask(self, what: str) -> Any:
        self.tell(what)
        return self.answer()

    def tell(self, what: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        if self.started_s is None:
            self.started_s = json.loads(self.process.stdout.readline())["started_s"]
        return json.loads(self.process.stdout.readline())

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.communicate("end\n", timeout=20)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


Start = Callable[..., list[Worker]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts the ranks of a job; `clocks` says which clock each reads."""
    with ExitStack() as stack:

        def job(clocks: str, **options: Any) -> list[Worker]:
            port = free_port()
            workers = []
            for rank, clock in enumerate(clocks):
                more = {
                    "rank": rank,
                    "world_size": len(clocks),
                    "rendezvous": f"127.0.0.1:{port}",
                    "directory": str(tmp_path),
                    "period_s": 0.5,
                    **options,
                }
                workers.append(stack.enter_context(Worker(more, {"RANKCLOCK_CLOCK_ID": clock})))
            return workers

        yield job


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def all_known(workers: list[Worker]) -> None:
    for worker in workers:
        worker.tell("wait")
    assert [worker.answer() for worker in workers] == [True] * len(workers)


def cluster_minus_raw(told: dict[str, Any]) -> tuple[int, int]:
    """(least, most) that cluster time - RAW can be, as one rank says."""
    (before_ns, after_ns), (earliest_ns, latest_ns) = told["raw_ns"], told["window"]
    return earliest_ns - after_ns, latest_ns - before_ns


def agree(told: list[dict[str, Any]]) -> None:
    """All ranks read the same RAW: what each says of cluster time against it must have a value in common."""
    spans = [cluster_minus_raw(one) for one in told]
    assert max(span[0] for span in spans) <= min(span[1] for span in spans), spans
    for one, (least_ns, most_ns) in zip(told, spans, strict=True):
        before_ns, after_ns = one["raw_ns"]
        assert before_ns + least_ns <= one["now_ns"] <= after_ns + most_ns


def test_ranks_agree_on_cluster_time_and_ranks_of_one_clock_share_a_prober(start: Start, tmp_path: Path) -> None:
    workers = start("aab")
    all_known(workers)
    time.sleep(1.0)
    told = [worker.ask("snapshot") for worker in workers]
    agree(told)
    assert all(worker.started_s is not None and worker.started_s < 0.5 for worker in workers)
    probers = [worker.ask("prober") for worker in workers]
    assert [pid is not None for pid in probers] == [True, False, True]
    assert len({one["reference"] for one in told}) == 1
    # One machine, one CLOCK_REALTIME: the true offset is what the reference's had moved since it began.
    for one in told:
        offset, at = Offset.from_json(one["offset"]), Offset.from_json(one["stamp"][2])
        assert offset.known
        assert at.known
        assert offset.contains(at.estimate_ns or 0) or at.contains(offset.estimate_ns or 0)
        assert abs(one["stamp"][1] - (one["stamp"][0] - (at.estimate_ns or 0))) < 100_000
    for worker in workers:
        worker.end()
    for rank in range(3):
        (record,) = decode_file((tmp_path / file_name(rank)).read_text())
        assert record.header.rank == rank
        assert record.lines[0].event is ClockEvent.START
        assert record.lines[-1].event is ClockEvent.END


def test_a_prober_that_dies_is_started_again_and_that_is_said_once(start: Start) -> None:
    workers = start("ab")
    all_known(workers)
    for worker in workers:
        os.kill(worker.ask("prober"), signal.SIGKILL)
    time.sleep(2.5)
    agree([worker.ask("snapshot") for worker in workers])
    for worker in workers:
        said = [text for text in worker.ask("said") if "started again" in text]
        assert len(said) == 1
        assert "1 of 3" in said[0]


def test_the_others_go_on_when_the_reference_is_killed(start: Start, tmp_path: Path) -> None:
    workers = start("abc")
    all_known(workers)
    before = [worker.ask("snapshot") for worker in workers]
    prober = workers[0].ask("prober")
    workers[0].process.kill()
    deadline = time.monotonic() + 15
    while True:
        after = [worker.ask("snapshot") for worker in workers[1:]]
        assert all(one["window"] is not None for one in after), "never unknown"
        if all(one["reference"] == before[1]["node"] for one in after):
            break
        assert time.monotonic() < deadline
        time.sleep(0.2)
    agree(after)
    assert not Path(f"/proc/{prober}").exists(), "a prober ends with its parent"
    # The new cluster time goes on where the old one was, within what was known of it.
    old, new = cluster_minus_raw(before[1]), cluster_minus_raw(after[0])
    assert abs((old[0] + old[1]) // 2 - (new[0] + new[1]) // 2) < 1_000_000
    for worker in workers[1:]:
        worker.end()
    (record,) = decode_file((tmp_path / file_name(1)).read_text())
    assert [line.event for line in record.lines if line.event and line.event.parts] == [ClockEvent.REFERENCE]


def test_a_forked_process_reads_on_by_itself(start: Start) -> None:
    (worker,) = start("a")
    all_known([worker])
    told = worker.ask("fork")
    agree([told, worker.ask("snapshot")])


def test_a_job_that_is_started_again_goes_on_in_the_same_file(start: Start, tmp_path: Path) -> None:
    for _ in range(2):
        (worker,) = start("a")
        all_known([worker])
        worker.end()
    assert len(decode_file((tmp_path / file_name(0)).read_text())) == 2


def test_ranks_that_never_come_leave_the_clock_unknown_and_the_job_alone(start: Start) -> None:
    worker = start("ab", timeout_s=1.0)[0]
    other = start("a")[0]
    del other
    assert worker.ask("snapshot")["offset"]["unknown_why"] == "the ranks have not met yet"
    late = Worker({"rank": 1, "world_size": 2, "rendezvous": f"127.0.0.1:{free_port()}", "timeout_s": 1.0}, {})
    with late:
        deadline = time.monotonic() + 15
        while late.ask("why") == "the ranks have not met yet":
            assert time.monotonic() < deadline
            time.sleep(0.1)
        told = late.ask("snapshot")
        assert told["now_ns"] is told["window"] is told["stamp"][1] is None
        assert "could not be reached" in told["offset"]["unknown_why"]
        said = late.ask("said")
        assert len(said) == 1
        assert "offsets of this rank are unknown" in said[0]


def test_a_folder_that_cannot_be_written_costs_the_file_and_not_the_clock(start: Start) -> None:
    (worker,) = start("a", directory="/proc/nowhere")
    all_known([worker])
    time.sleep(2.5)
    assert worker.ask("snapshot")["window"] is not None
    assert ["the clock's history cannot be kept in /proc/nowhere" in text for text in worker.ask("said")] == [True]


def test_disabled_it_does_nothing_at_all() -> None:
    with Worker({"rank": 0, "world_size": 2}, {"RANKCLOCK_DISABLE": "1"}) as worker:
        told = worker.ask("snapshot")
        assert told["now_ns"] is told["window"] is None
        assert told["offset"]["unknown_why"] == "RANKCLOCK_DISABLE=1"
        assert worker.ask("prober") is None
        assert worker.ask("said") == []


def slurm(rank: int, port: int) -> tuple[dict[str, Any], dict[str, str]]:
    told = {"SLURM_PROCID": str(rank), "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "SLURM_STEP_NODELIST": "127.0.0.1"}
    return {}, {**told, "SLURM_JOB_ID": str(port)}


def open_mpi(rank: int, port: int) -> tuple[dict[str, Any], dict[str, str]]:
    told = {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    return {}, {**told, "RANKCLOCK_RENDEZVOUS": f"127.0.0.1:{port}"}


def torchrun(rank: int, port: int) -> tuple[dict[str, Any], dict[str, str]]:
    told = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return {}, {**told, "TORCHELASTIC_RUN_ID": "none"}


def host_list(rank: int, port: int) -> tuple[dict[str, Any], dict[str, str]]:
    return {"hosts": "127.0.0.1,127.0.0.2", "rank": rank, "rendezvous": f"127.0.0.1:{port}"}, {}


@pytest.mark.parametrize("launcher", [slurm, open_mpi, torchrun, host_list])
def test_it_starts_from_what_any_launcher_tells_without_torch(
    launcher: Callable[[int, int], tuple[dict[str, Any], dict[str, str]]],
) -> None:
    port = free_port()
    with ExitStack() as stack:
        workers = []
        for rank in range(2):
            options, env = launcher(rank, port)
            workers.append(stack.enter_context(Worker(options, {**env, "RANKCLOCK_CLOCK_ID": f"clock {rank}"})))
        all_known(workers)
        told = [worker.ask("snapshot") for worker in workers]
        agree(told)
        assert [one["rank"] for one in told] == [0, 1]


@pytest.mark.torch
def test_an_initialised_torch_job_meets_over_its_store() -> None:
    store = f"tcp://127.0.0.1:{free_port()}"
    with ExitStack() as stack:
        workers = [
            stack.enter_context(
                Worker({"rank": rank, "world_size": 2, "torch_store": store}, {"RANKCLOCK_CLOCK_ID": f"clock {rank}"})
            )
            for rank in range(2)
        ]
        all_known(workers)
        told = [worker.ask("snapshot") for worker in workers]
        agree(told)
        assert [one["rank"] for one in told] == [0, 1]
        for worker in workers:
            worker.end()
