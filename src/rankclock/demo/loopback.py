"""What a demo can show where no lab can run: rank processes on loopback, measured by kernel stamps, and a report.

All ranks read this machine's one clock under names of their own, so every true offset is zero.
"""

from __future__ import annotations

import datetime
import os
import socket
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from rankclock.demo.hosts import this_host
from rankclock.demo.ranks import JobAnswer, answer_of, matrix_from
from rankclock.demo.timeline import Timeline
from rankclock.errors import ExitCode, HostError
from rankclock.mesh.clocks import CLOCK_ID_VARIABLE
from rankclock.report.record import Check, LeftOut, RunRecord
from rankclock.timebase import NS_PER_MS

__all__ = ["run_loopback"]

RANKS = 6
TIMEOUT_S = 90.0


def run_loopback(timeline: Timeline, *, why: str) -> RunRecord:
    """Six ranks verify each other on loopback. `why`: what keeps the lab from running."""
    with timeline.phase("verify on loopback"):
        answer = _verify()
        timeline.tell(answer.line, event=True)
    matrix = matrix_from(
        answer,
        dict.fromkeys(answer.document["pairwise"]["nodes"], 0),
        timeline,
        title="verify",
        threshold_ns=NS_PER_MS,
    )
    known = [(cell, 0) for row in range(RANKS) for cell in matrix.cells[row][:row] if cell.known]
    right = sum(cell.contains(truth_ns) for cell, truth_ns in known)
    checks = (
        Check(name="verify", passed=answer.exit_code == ExitCode.OK, detail=answer.line),
        Check(
            name="every measured bound contains the truth (zero: one clock)",
            passed=right == len(known) and bool(known),
            detail=f"{right} of {len(known)} bounds",
        ),
    )
    return RunRecord(
        title="rankclock demo: ranks on loopback",
        created_utc=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        command="rankclock demo",
        reference=matrix.names[0],
        host=this_host(),
        phases=timeline.phases(),
        matrices=(matrix,),
        events=timeline.events(),
        checks=checks,
        left_out=(LeftOut(what="the lab: daemons, plans, status, preflight, the takeover", why=why),),
    )


def _verify() -> JobAnswer:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with TemporaryDirectory(prefix="rankclock-") as folder:
        logs = [Path(folder) / str(rank) for rank in range(RANKS)]
        processes = []
        try:
            for rank, log in enumerate(logs):
                argv = [sys.executable, "-m", "rankclock", "verify", "--json", "--rank", str(rank)]
                argv += ["--world-size", str(RANKS), "--rendezvous", f"127.0.0.1:{port}"]
                env = {**os.environ, CLOCK_ID_VARIABLE: f"rank{rank}"}
                with log.open("wb") as file:
                    processes.append(subprocess.Popen(argv, env=env, stdout=file, stderr=subprocess.DEVNULL))
            codes = tuple(process.wait(TIMEOUT_S) for process in processes)
        except subprocess.TimeoutExpired as error:
            raise HostError(f"verify on loopback did not end within {TIMEOUT_S:g} s") from error
        finally:
            for process in processes:
                process.kill()
                process.wait()
        return answer_of("verify", codes, logs[0].read_text(encoding="utf-8"), "")
