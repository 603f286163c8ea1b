"""Builds the preloaded clock library at first use, and keeps it in the user's cache by the hash of its sources.

Refuses where there is no C compiler or no folder to keep the result in.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from rankclock.errors import HostError

__all__ = ["library_path"]

SOURCES = ("vstate.c", "vclock.c", "vphc.c")
HEADERS = ("vclock.h",)
FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC")
LIBRARIES = ("-ldl", "-lm", "-lpthread")


def library_path() -> Path:
    """The compiled library, built now if this version of it was not yet. Raises HostError."""
    here = Path(__file__).parent
    digest = hashlib.sha256(" ".join(FLAGS).encode())
    for name in (*HEADERS, *SOURCES):
        digest.update((here / name).read_bytes())
    cache = _cache_folder()
    target = cache / f"libvclock-{digest.hexdigest()[:16]}.so"
    if not target.exists():
        _compile(here, target)
    return target


def _cache_folder() -> Path:
    """$XDG_CACHE_HOME or ~/.cache where it can be written, else a private folder in the temporary one."""
    home = os.environ.get("HOME", "")
    wanted = [os.environ.get("XDG_CACHE_HOME", ""), f"{home}/.cache" if home else ""]
    for base in filter(None, wanted):
        folder = Path(base) / "rankclock"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK | os.X_OK):
            return folder
    folder = Path(tempfile.gettempdir()) / f"rankclock-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise HostError(f"no folder to keep the compiled clock library in: {folder}: {error.strerror}") from error
    if folder.stat().st_uid != os.getuid():
        raise HostError(f"{folder} belongs to someone else; set XDG_CACHE_HOME to a folder of yours")
    return folder


def _compile(here: Path, target: Path) -> None:
    compiler = os.environ.get("CC") or next(filter(shutil.which, ("gcc", "cc", "clang")), None)
    if compiler is None:
        raise HostError("the lab needs a C compiler for its virtual clocks: none of gcc, cc, clang found; install gcc")
    part = target.with_suffix(f".{os.getpid()}.part")
    argv = [compiler, *FLAGS, "-o", str(part), *(str(here / name) for name in SOURCES), *LIBRARIES]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode:
            first = next(iter(done.stderr.strip().splitlines()), "no message")
            raise HostError(f"{compiler} could not build the lab's clock library: {first} (libc6-dev installed?)")
        part.rename(target)  # atomic: two labs that start at once both find a whole library
    except OSError as error:
        raise HostError(f"{compiler} could not build the lab's clock library: {error}") from error
    finally:
        part.unlink(missing_ok=True)
