"""A Perfetto archive: the traces as they are, and a manifest that says how far their clocks are apart.

One number a file: it holds where the clocks do not part by more than their bound over the traced time; refuses
(UserError) where they do, and traces whose clock is unknown.
Packed traces are unpacked and packed anew by the archive: an entry of the manifest speaks of the member that it names,
and to Perfetto a gzip file is a container with another file in it; zstd it does not know.
Source of the format: Perfetto's reference, "Trace manifest format", version 1.
"""

from __future__ import annotations

import json
import os
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from rankclock.errors import UserError
from rankclock.timebase import format_span_ns
from rankclock.traces.digest import TraceDigest
from rankclock.traces.source import ByteSource
from rankclock.traces.timemap import Alignment

__all__ = ["MANIFEST", "manifest", "write_archive"]

MANIFEST = "perfetto_manifest.json"

MOST_ZIPPED = 2_000_000_000
"""Larger ZIPs have headers of another version (ZIP64), which Perfetto's reader refuses."""


def manifest(digests: Mapping[int, TraceDigest], alignment: Alignment, names: Mapping[int, str]) -> dict[str, Any]:
    """The manifest's object. names: rank to the name of its file in the archive."""
    own = {rank: _private_offset_ns(digests[rank], alignment, rank) for rank in digests}
    first = _timeline(digests, own)
    bounds = [_check(digests[rank], alignment, rank) for rank in digests]
    files: list[dict[str, Any]] = []
    for rank, name in names.items():
        entry: dict[str, Any] = {"path": name, "machine": {"name": f"rank {rank}"}}
        if rank != first:
            # Its clock reads T when the first's reads T + offset_ns.
            entry["clocks"] = {"sync_to": {"file": names[first]}, "offset_ns": own[first] - own[rank]}
        files.append(entry)
    attributes = {
        "rankclock.method": alignment.method,
        "rankclock.reference": alignment.reference,
        "rankclock.bound_ns": max(bounds),
    }
    return {"perfetto_manifest": {"version": 1, "files": files, "attributes": attributes}}


def write_archive(
    out: Path, digests: Mapping[int, TraceDigest], alignment: Alignment, names: Mapping[int, str], *, tar: bool = False
) -> dict[str, Any]:
    """Writes the archive and gives its manifest. Plain files are stored as they are.

    tar: instead of a ZIP, which needs a checksum over every byte: the kernel copies plain files.
    """
    said = manifest(digests, alignment, names)
    text = json.dumps(said, indent=1).encode()
    if tar:
        _write_tar(out, digests, names, text)
        return said
    size = sum(digests[rank].size for rank in names)
    if size > MOST_ZIPPED:
        raise UserError(f"{size} bytes of traces: Perfetto reads no ZIP of that size; name the output .tar")
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED, allowZip64=False) as archive:
        archive.writestr(MANIFEST, text)
        for rank, name in names.items():
            member = zipfile.ZipInfo(name)
            member.compress_type = zipfile.ZIP_STORED if digests[rank].packing == "plain" else zipfile.ZIP_DEFLATED
            member.external_attr = 0o644 << 16
            with archive.open(member, "w") as inside:
                for piece in ByteSource(digests[rank].path):
                    inside.write(piece)
    return said


def _write_tar(out: Path, digests: Mapping[int, TraceDigest], names: Mapping[int, str], text: bytes) -> None:
    with out.open("wb") as file:
        _tar_member(file, MANIFEST, len(text))
        file.write(text)
        _tar_filled(file)
        for rank, name in names.items():
            digest = digests[rank]
            if digest.packing == "plain":
                with digest.path.open("rb") as source:
                    size = os.fstat(source.fileno()).st_size
                    _tar_member(file, name, size)
                    file.flush()
                    _kernel_copies(source, file, size, digest.path)
            else:
                _tar_member(file, name, digest.size)
                for piece in ByteSource(digest.path):
                    file.write(piece)
            _tar_filled(file)
        file.write(bytes(2 * tarfile.BLOCKSIZE))


def _tar_member(file: BinaryIO, name: str, size: int) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o644
    file.write(member.tobuf(tarfile.GNU_FORMAT))


def _tar_filled(file: BinaryIO) -> None:
    """Members begin at multiples of a block."""
    file.seek(0, os.SEEK_END)
    file.write(bytes(-file.tell() % tarfile.BLOCKSIZE))


def _kernel_copies(source: BinaryIO, file: BinaryIO, size: int, path: Path) -> None:
    left = size
    while left:
        sent = os.sendfile(file.fileno(), source.fileno(), None, left)
        if not sent:
            raise UserError(f"{path}: became shorter while it was copied: wait until the profiler has written it")
        left -= sent


def _timeline(digests: Mapping[int, TraceDigest], own: Mapping[int, int]) -> int:
    """The rank whose file's time the merged one runs on: the first on which nothing lies before 0.

    Perfetto drops what does. The file that reads most at one instant leaves the most room.
    """
    earliest_ns = min((digest.first_ns or 0) - (digest.base_ns or 0) - own[rank] for rank, digest in digests.items())
    fitting = [rank for rank in sorted(digests) if earliest_ns + own[rank] >= 0]
    if not fitting:
        raise UserError(
            f"{digests[min(digests)].path}: on one timeline there are events before its 0, which Perfetto drops; "
            "use --format rewritten or merged"
        )
    return fitting[0]


def _middle_ns(digest: TraceDigest) -> int:
    assert digest.first_ns is not None
    return (digest.first_ns + (digest.last_ns or digest.first_ns)) // 2


def _private_offset_ns(digest: TraceDigest, alignment: Alignment, rank: int) -> int:
    """What the file's own stamps read more than cluster time, in the middle of the trace."""
    if digest.form != "chrome":
        # Perfetto pins files without clocks only, and knows no flight recorder.
        way_out = "use --format pftrace" if digest.form == "pftrace" else "leave it out"
        raise UserError(f"{digest.path}: an archive takes Chrome traces, this is a {digest.form}: {way_out}")
    if digest.first_ns is None or not alignment.ranks[rank].known:
        why = alignment.ranks[rank].unknown_why or "no event in it has a time"
        raise UserError(f"{digest.path}: rank {rank} has no cluster time: {why}")
    found = alignment.ranks[rank].offset_at(_middle_ns(digest))
    if found is None:
        raise UserError(f"{digest.path}: rank {rank} has no cluster time in the middle of its trace")
    return found[1] - (digest.base_ns or 0)


def _check(digest: TraceDigest, alignment: Alignment, rank: int) -> int:
    """The bound of a stamp under one constant offset. Raises UserError where the drift alone is more than the bound."""
    found = alignment.ranks[rank]
    assert digest.first_ns is not None
    first_ns, last_ns = digest.first_ns, digest.last_ns or digest.first_ns
    bound_ns = found.worst_bound_ns(first_ns, last_ns)
    ends = [found.offset_at(at_ns) for at_ns in (first_ns, _middle_ns(digest), last_ns)]
    if bound_ns is None or ends[0] is None or ends[1] is None or ends[2] is None:
        raise UserError(f"{digest.path}: the clock of rank {rank} is not known for all of its trace")
    drift_ns = max(abs(ends[0][1] - ends[1][1]), abs(ends[2][1] - ends[1][1]))
    if drift_ns > bound_ns:
        raise UserError(
            f"{digest.path}: its clock moves {format_span_ns(drift_ns)} over the trace, more than the bound of "
            f"{format_span_ns(bound_ns)}: an archive has one offset a file; use --format rewritten or merged"
        )
    return bound_ns + drift_ns
