"""`rankclock verify` and `preflight` as whole commands, several at once on this machine: exit codes, stdout, stderr."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from typing import Any

RANKCLOCK = (sys.executable, "-m", "rankclock")
LAUNCHER_WORDS = ("RANK", "SLURM_", "PMI", "OMPI_", "MASTER_", "TORCHELASTIC", "WORLD_SIZE", "RANKCLOCK_", "JOB_COMP")


def free_ports(count: int) -> list[int]:
    """Ports below the ephemeral ones that are free now."""
    free: list[int] = []
    for candidate in range(21_004 + os.getpid() % 1000 * 8, 32_000):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", candidate))
            except OSError:
                free.clear()
                continue
        free.append(candidate)
        if len(free) == count:
            return free
    raise AssertionError("no ports are free")


def start(*arguments: str, **env: str) -> subprocess.Popen[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHER_WORDS)}
    return subprocess.Popen(
        [*RANKCLOCK, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**clean, "NO_COLOR": "1", "COLUMNS": "200", **env},
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, out, err


def torchrun_env(rank: int, world_size: int, store_port: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store_port),
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }


def test_ranks_of_torchrun_verify_beside_its_store() -> None:
    """The store listens on MASTER_PORT, and somebody has the port after it: the ranks meet on the next one."""
    store, taken, *_ = free_ports(5)
    with socket.create_server(("127.0.0.1", store)), socket.create_server(("127.0.0.1", taken)):
        ranks = [
            start("verify", "--seconds", "1", RANKCLOCK_CLOCK_ID=f"clock{rank // 2}", **torchrun_env(rank, 4, store))
            for rank in range(4)
        ]
        ends = [finish(rank) for rank in ranks]
    assert [code for code, _, _ in ends] == [0] * 4
    assert ends[0][1].splitlines()[-1].startswith("rankclock verify: within 1 ms: 2 clocks of 4 ranks; worst pair: ")
    assert "0-1" in ends[0][1]
    assert [out for _, out, _ in ends[1:]] == [""] * 3
    assert [err for _, _, err in ends] == [""] * 4


def test_ranks_that_share_one_clock_need_no_probe() -> None:
    store, *_ = free_ports(5)
    ranks = [start("verify", "--json", "--seconds", "600", **torchrun_env(rank, 2, store)) for rank in range(2)]
    ends = [finish(rank) for rank in ranks]
    assert [code for code, _, _ in ends] == [0, 0]
    result: dict[str, Any] = json.loads(ends[0][1])
    assert result["verdict"] == "within"
    assert result["worst"] is None
    assert "is all that all 2 ranks read" in result["line"]


def test_a_rank_that_fails_to_come_leaves_a_verdict_on_stdout() -> None:
    (port,) = free_ports(1)
    ends = [
        finish(rank)
        for rank in [
            start("verify", "--rank", "0", "--world-size", "2", "--rendezvous", f"127.0.0.1:{port}", "--timeout", "1")
        ]
    ]
    code, out, err = ends[0]
    assert code == 4
    assert out == "rankclock verify: CANNOT BE TOLD: only 1 of 2 ranks came within 1 s: missing rank 1\n"
    assert err == "rankclock: only 1 of 2 ranks came within 1 s: missing rank 1\n"


def test_the_same_in_json() -> None:
    (port,) = free_ports(1)
    where = ("--hosts", "2", "--rendezvous", f"127.0.0.1:{port}", "--timeout", "0.5", "--json")
    code, out, _ = finish(start("preflight", *where))
    assert code == 4
    result = json.loads(out)
    assert (result["schema"], result["verdict"], result["exit_code"]) == ("rankclock-preflight/1", "cannot be told", 4)


def test_a_port_in_use_is_one_line_and_exit_3() -> None:
    (port,) = free_ports(1)
    with socket.create_server(("127.0.0.1", port)):
        where = f"127.0.0.1:{port}"
        code, out, err = finish(start("verify", "--world-size", "2", "--rank", "0", "--rendezvous", where))
    assert code == 3
    assert f"rank 0 cannot listen for the other ranks at {where}: port {port}: Address already in use" in err
    assert err.count("\n") == 1
    assert out.startswith("rankclock verify: FAILED: ")
