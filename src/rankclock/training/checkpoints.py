"""Checkpoints that no clock can confuse: one writer, published whole or not at all, found by step.

A checkpoint is a folder `checkpoint-<step>` with a manifest: step, cluster time with its bound, size and SHA-256 of
every file. It is written under a hidden name, flushed to the disk, and renamed; a process killed at any point leaves
the old checkpoints, or those and the new one. `latest` and `prune` go by step and completeness, never by mtime.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rankclock.errors import HostError, UserError
from rankclock.timebase import Offset

__all__ = ["MANIFEST", "Checkpoint", "Clock", "complete_checkpoints", "latest", "prune", "save"]

SCHEMA = "rankclock-checkpoint/1"
MANIFEST = "rankclock-manifest.json"

_NAME = re.compile(r"checkpoint-(\d+)(\.replaced)?\Z")
_PARTIAL = re.compile(r"\.checkpoint-\d+\.partial\Z")
_BLOCK = 1 << 20


class Clock(Protocol):
    """What dates a checkpoint: a `RankClock`."""

    def now_ns(self) -> int | None: ...

    def offset(self) -> Offset: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A complete one. cluster_time_ns: None where the clock was unknown. files: relative path to (bytes, SHA-256)."""

    path: Path
    step: int
    cluster_time_ns: int | None
    offset: Offset | None
    files: Mapping[str, tuple[int, str]]
    extra: Mapping[str, Any]

    def damage(self) -> str | None:
        """What of its files is not as it was written, in one line; None where all is. Reads every byte."""
        for name, (size, digest) in self.files.items():
            found = _digest(self.path / name)
            if found != (size, digest):
                return f"{self.path / name}: expected {size} bytes of SHA-256 {digest[:12]}…, found {found[0]} bytes"
        return None


def save(
    directory: str | os.PathLike[str],
    step: int,
    write: Callable[[Path], None],
    *,
    rank: int = 0,
    clock: Clock | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Path | None:
    """On rank 0 calls `write(folder)` and publishes what it wrote as `checkpoint-<step>`; elsewhere does nothing.

    A complete checkpoint of the same step is replaced. What `write` raises goes through, and nothing is published.
    Raises HostError where the folder cannot be written, UserError for a negative step or a file named as the manifest.
    """
    if rank != 0:
        return None
    if step < 0:
        raise UserError(f"a checkpoint's step is 0 or more, found {step}")
    parent = Path(directory)
    partial, final = parent / f".checkpoint-{step}.partial", parent / f"checkpoint-{step}"
    try:
        parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        write(partial)
        _seal(partial, step, clock, extra or {})
        _publish(partial, final)
    except OSError as error:
        raise HostError(f"{error.filename or final}: checkpoint {step} not published: {error.strerror}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return final


def complete_checkpoints(directory: str | os.PathLike[str]) -> list[Checkpoint]:
    """Those whose manifest can be read and whose files all have their size, by step, the oldest first."""
    found: dict[int, Checkpoint] = {}
    for entry in sorted(_entries(directory), reverse=True):  # 'checkpoint-7.replaced' before 'checkpoint-7'
        checkpoint = _read(entry)
        if checkpoint is not None:
            found[checkpoint.step] = checkpoint
    return [found[step] for step in sorted(found)]


def latest(directory: str | os.PathLike[str], *, verify: bool = False) -> Checkpoint | None:
    """The complete checkpoint of the highest step; with `verify` the highest whose every byte is as it was written."""
    for checkpoint in reversed(complete_checkpoints(directory)):
        if not verify or checkpoint.damage() is None:
            return checkpoint
    return None


def prune(directory: str | os.PathLike[str], keep: int) -> list[Path]:
    """Removes all but the `keep` complete checkpoints of the highest steps, and remains of broken saves; gives them.

    Incomplete folders of other programs are left alone. Raises UserError for `keep` below 1.
    """
    if keep < 1:
        raise UserError(f"keep at least one checkpoint, found keep={keep}")
    kept = {checkpoint.path for checkpoint in complete_checkpoints(directory)[-keep:]}
    surplus = [entry for entry in _entries(directory) if entry not in kept and (entry / MANIFEST).exists()]
    surplus += [entry for entry in Path(directory).glob(".checkpoint-*") if _PARTIAL.match(entry.name)]
    for entry in surplus:
        (entry / MANIFEST).unlink(
            missing_ok=True
        )  # first what makes it complete: half removed is not half a checkpoint
        shutil.rmtree(entry, ignore_errors=True)
    return surplus


# ---- on the disk ----


def _entries(directory: str | os.PathLike[str]) -> list[Path]:
    parent = Path(directory)
    return [entry for entry in parent.iterdir() if _NAME.match(entry.name)] if parent.is_dir() else []


def _seal(folder: Path, step: int, clock: Clock | None, extra: Mapping[str, Any]) -> None:
    """Flushes every file, then the manifest that vouches for them."""
    if (folder / MANIFEST).exists():
        raise UserError(f"{MANIFEST} is the manifest's name: write() may not use it")
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            files[str(path.relative_to(folder))] = _digest(path, flush=True)
    offset = clock.offset() if clock is not None else None
    manifest = {
        "schema": SCHEMA,
        "step": step,
        "cluster_time_ns": clock.now_ns() if clock is not None else None,
        "offset": offset.to_json() if offset is not None else None,
        "files": {name: {"bytes": size, "sha256": digest} for name, (size, digest) in files.items()},
        "extra": dict(extra),
    }
    with (folder / MANIFEST).open("w", encoding="utf-8") as file:
        json.dump(manifest, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    for inner in [*(path for path in folder.rglob("*") if path.is_dir() and not path.is_symlink()), folder]:
        _flush_folder(inner)


def _publish(partial: Path, final: Path) -> None:
    """A folder cannot be renamed over a full one: the old one steps aside under a name that `latest` knows too."""
    aside = final.with_name(f"{final.name}.replaced")
    if final.exists():
        shutil.rmtree(aside, ignore_errors=True)
        final.rename(aside)
    partial.rename(final)
    _flush_folder(final.parent)
    shutil.rmtree(aside, ignore_errors=True)


def _digest(path: Path, *, flush: bool = False) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    try:
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
                size += len(block)
            if flush:
                os.fsync(file.fileno())
    except FileNotFoundError:
        if flush:
            raise
        return 0, ""
    return size, digest.hexdigest()


def _flush_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _read(folder: Path) -> Checkpoint | None:
    """The checkpoint in a folder; None where it is incomplete or another program's."""
    try:
        value = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        named = _NAME.match(folder.name)
        if value["schema"] != SCHEMA or named is None or value["step"] != int(named[1]):
            return None
        files = {str(name): (int(one["bytes"]), str(one["sha256"])) for name, one in value["files"].items()}
        if any((folder / name).stat().st_size != size for name, (size, _) in files.items()):
            return None
        return Checkpoint(
            path=folder,
            step=value["step"],
            cluster_time_ns=value["cluster_time_ns"],
            offset=Offset.from_json(value["offset"]) if value["offset"] is not None else None,
            files=files,
            extra=dict(value["extra"]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
