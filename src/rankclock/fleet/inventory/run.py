"""Runs another program and takes its output, or says in one line why there is none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rankclock.errors import HostError, PeerError
from rankclock.fleet.inventory.found import MAX_BYTES

__all__ = ["output_of"]

TIMEOUT_S = 60.0


def output_of(argv: Sequence[str], *, package: str) -> str:
    """What it prints. Raises HostError where it is not installed, PeerError where it fails or says too much."""
    beside = Path(sys.executable).parent  # where `pip install` puts programs, whether it is on PATH or not
    program = shutil.which(argv[0], path=os.pathsep.join([os.environ.get("PATH", ""), str(beside)]))
    if program is None:
        raise HostError(f"{argv[0]} is not installed here: install {package}, or give its output with --file")
    what = " ".join(argv[:3])
    try:
        done = subprocess.run(
            [program, *argv[1:]],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise PeerError(f"{what}: no answer within {TIMEOUT_S:g} s") from None
    except OSError as error:
        raise HostError(f"{what}: {error.strerror or error}") from None
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "no word why").splitlines()[0]
        raise PeerError(f"{what}: exit {done.returncode}: {said[:200]}")
    if len(done.stdout) > MAX_BYTES:
        raise PeerError(f"{what}: more than {MAX_BYTES} characters of output")
    return done.stdout
