"""Builds the lab's two C programs at first use, and keeps them in the user's cache by the hash of their sources.

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

__all__ = ["cable_path", "library_path"]

HERE = Path(__file__).parent
FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra")
LIBRARIES = ("-ldl", "-lm", "-lpthread")


def library_path() -> Path:
    """The preloaded clock library, built now if this version of it was not yet. Raises HostError."""
    return _built("libvclock", ("vstate.c", "vclock.c", "vphc.c"), headers=("vclock.h",), flags=("-shared", "-fPIC"))


def cable_path() -> Path:
    """The user-space cable, built likewise."""
    return _built("cable", ("cable.c",))


def _built(name: str, sources: tuple[str, ...], headers: tuple[str, ...] = (), flags: tuple[str, ...] = ()) -> Path:
    digest = hashlib.sha256(" ".join((*FLAGS, *flags)).encode())
    for file in (*headers, *sources):
        digest.update((HERE / file).read_bytes())
    target = _cache_folder() / f"{name}-{digest.hexdigest()[:16]}"
    if not target.exists():
        _compile(sources, flags, target)
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
        raise HostError(f"no folder to keep the lab's compiled programs in: {folder}: {error.strerror}") from error
    if folder.stat().st_uid != os.getuid():
        raise HostError(f"{folder} belongs to someone else; set XDG_CACHE_HOME to a folder of yours")
    return folder


def _compile(sources: tuple[str, ...], flags: tuple[str, ...], target: Path) -> None:
    compiler = os.environ.get("CC") or next(filter(shutil.which, ("gcc", "cc", "clang")), None)
    if compiler is None:
        raise HostError(
            "the lab needs a C compiler for its virtual clocks and cables: none of gcc, cc, clang found; install gcc"
        )
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    argv = [compiler, *FLAGS, *flags, "-o", str(part), *(str(HERE / name) for name in sources), *LIBRARIES]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode:
            first = next(iter(done.stderr.strip().splitlines()), "no message")
            raise HostError(f"{compiler} could not build the lab's {target.name}: {first} (libc6-dev installed?)")
        part.rename(target)  # atomic: two labs that start at once both find a whole library
    except OSError as error:
        raise HostError(f"{compiler} could not build the lab's {target.name}: {error}") from error
    finally:
        part.unlink(missing_ok=True)
