"""MANIFEST.json: what a rendered folder holds, file by file with its hash, and what runs in which order.

The folder is OUT/MANIFEST.json and OUT/<node>/<absolute path>; its bytes depend on the rendered nodes alone. The one
module of this package that touches files. All or nothing: everything is written beside the target and renamed into
place; a folder that is there already is replaced only if it is one of ours. Reading back refuses what was changed.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from rankclock.configs.render import RenderedNode, Service
from rankclock.configs.target import Target
from rankclock.errors import DecodeError, UserError
from rankclock.planning.codec import from_plain, to_plain
from rankclock.planning.model import Plan, Role

__all__ = [
    "MANIFEST",
    "MANIFEST_SCHEMA",
    "FileEntry",
    "Manifest",
    "NodeEntry",
    "manifest_of",
    "read_manifest",
    "read_rendered",
    "write_rendered",
]

MANIFEST = "MANIFEST.json"
MANIFEST_SCHEMA = "rankclock-manifest/1"

_MAX_MANIFEST_BYTES = 512 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One file. mode: octal text, as people write it."""

    sha256: str
    size: int
    mode: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEntry:
    """One node: files by absolute path, services in start order, services to mask, and what it was written for."""

    role: Role
    files: Mapping[str, FileEntry]
    services: tuple[Service, ...]
    masks: tuple[str, ...]
    versions: Mapping[str, str]
    assumed: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A whole rendered folder. tiers: how many start steps there are."""

    cluster: str
    scheme: str
    tiers: int
    nodes: Mapping[str, NodeEntry]

    def to_bytes(self) -> bytes:
        """The file's bytes."""
        value = {"schema": MANIFEST_SCHEMA, **to_plain(self)}
        return (json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The inverse of `to_bytes`. Raises DecodeError for anything else."""
        try:
            value: Any = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise DecodeError(f"not JSON: {error}") from None
        manifest = from_plain(cls, value, schema=MANIFEST_SCHEMA)
        for name, entry in manifest.nodes.items():
            for path in (f"/{name}", *entry.files):
                if not path.startswith("/") or ".." in path.split("/") or "/" in name:
                    raise DecodeError(f"{name}: the path {path!r:.80} leads outside the folder")
        return manifest


def manifest_of(nodes: Mapping[str, RenderedNode], plan: Plan) -> Manifest:
    """The manifest of rendered nodes."""
    entries = {name: _entry(node) for name, node in nodes.items()}
    tiers = [service.tier for node in nodes.values() for service in node.services]
    return Manifest(cluster=plan.cluster, scheme=str(plan.scheme), tiers=max(tiers, default=-1) + 1, nodes=entries)


def _entry(node: RenderedNode) -> NodeEntry:
    files = {}
    for path, text in node.files.items():
        data = text.encode()
        files[path] = FileEntry(sha256=hashlib.sha256(data).hexdigest(), size=len(data), mode="0644")
    return NodeEntry(
        role=node.role,
        files=files,
        services=node.services,
        masks=node.masks,
        versions={"chrony": node.target.chrony, "linuxptp": node.target.linuxptp},
        assumed=node.target.assumed,
    )


def write_rendered(out: Path | str, nodes: Mapping[str, RenderedNode], plan: Plan) -> Manifest:
    """Write OUT/MANIFEST.json and OUT/<node>/<path> for every node, all or nothing. Raises UserError."""
    out = Path(out)
    _refuse_foreign(out)
    manifest = manifest_of(nodes, plan)
    try:
        out.absolute().parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".new", dir=out.absolute().parent))
    except OSError as error:
        raise UserError(f"{out}: cannot write there: {error.strerror}: choose another folder with -o") from None
    try:
        _fill(temporary, nodes, manifest)
        _put_in_place(temporary, out)
    except OSError as error:
        raise UserError(f"{out}: nothing was written: {error.strerror}: choose another folder with -o") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return manifest


def read_manifest(out: Path | str) -> Manifest:
    """The manifest of a rendered folder. Raises UserError."""
    path = Path(out) / MANIFEST
    try:
        if path.stat().st_size > _MAX_MANIFEST_BYTES:
            raise UserError(f"{path}: larger than any manifest: expected the output of rankclock render")
        return Manifest.from_bytes(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}: expected the output of rankclock render") from None
    except DecodeError as error:
        raise UserError(f"{path}: {error}: expected the output of rankclock render") from None


def read_rendered(out: Path | str) -> dict[str, RenderedNode]:
    """The nodes of a rendered folder with the texts that lie there, without reasons.

    Raises UserError where a file is missing, changed since it was written, or was never rendered.
    """
    manifest = read_manifest(out)
    nodes, expected = {}, {MANIFEST}
    for name, entry in manifest.nodes.items():
        texts = {path: _read_file(Path(out) / f"{name}{path}", wanted) for path, wanted in entry.files.items()}
        expected |= {f"{name}{path}" for path in texts}
        nodes[name] = RenderedNode(
            node=name,
            role=entry.role,
            files=texts,
            services=entry.services,
            masks=entry.masks,
            target=Target(chrony=entry.versions["chrony"], linuxptp=entry.versions["linuxptp"], assumed=entry.assumed),
            lines={},
        )
    for path in sorted(Path(out).rglob("*")):
        if not path.is_dir() and str(path.relative_to(out)) not in expected:
            raise UserError(f"{path}: not in {MANIFEST}: remove it, or render again")
    return nodes


def _read_file(file: Path, wanted: FileEntry) -> str:
    try:
        data = file.read_bytes()
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}: render again") from None
    if hashlib.sha256(data).hexdigest() != wanted.sha256:
        raise UserError(f"{file}: changed since it was rendered: change the cluster file instead and render again")
    return data.decode()


def _refuse_foreign(out: Path) -> None:
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise UserError(f"{out}: is there and is no folder: choose another one with -o")
    try:
        if out.is_dir() and any(out.iterdir()) and not (out / MANIFEST).is_file():
            raise UserError(f"{out}: holds files that rankclock did not write: choose an empty folder with -o")
    except OSError as error:
        raise UserError(f"{out}: cannot look there: {error.strerror}: choose another folder with -o") from None


def _fill(folder: Path, nodes: Mapping[str, RenderedNode], manifest: Manifest) -> None:
    folder.chmod(0o755)
    for name, node in nodes.items():
        for path, text in node.files.items():
            target = folder / name / path.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(text.encode())
            target.chmod(0o644)
    (folder / MANIFEST).write_bytes(manifest.to_bytes())


def _put_in_place(new: Path, out: Path) -> None:
    if not out.exists():
        new.rename(out)
        return
    # Two renames: between them the name is free for an instant, but never half of anything.
    old = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".old", dir=out.absolute().parent)) / "was"
    out.rename(old)
    try:
        new.rename(out)
    except OSError:
        old.rename(out)
        raise
    finally:
        if out.exists():
            shutil.rmtree(old.parent, ignore_errors=True)
