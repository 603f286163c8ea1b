"""A Perfetto archive: the traces as they are, and a manifest that says how far their clocks are apart.

One number a file: it holds where the clocks do not part by more than their bound over the traced time; refuses
(UserError) where they do, and traces whose clock is unknown.
Packed traces are unpacked and packed anew by the archive: an entry of the manifest speaks of the member that it names,
and to Perfetto a gzip file is a container with another file in it; zstd it does not know.
Source of the format: Perfetto's reference, "Trace manifest format", version 1.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rankclock.errors import UserError
from rankclock.timebase import format_span_ns
from rankclock.traces.digest import TraceDigest
from rankclock.traces.source import ByteSource
from rankclock.traces.timemap import Alignment

__all__ = ["MANIFEST", "manifest", "write_archive"]

MANIFEST = "perfetto_manifest.json"


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
    out: Path, digests: Mapping[int, TraceDigest], alignment: Alignment, names: Mapping[int, str]
) -> dict[str, Any]:
    """Writes the archive and gives its manifest. Plain files are stored as they are, packed ones stay packed."""
    said = manifest(digests, alignment, names)
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        archive.writestr(MANIFEST, json.dumps(said, indent=1))
        for rank, name in names.items():
            if digests[rank].packing == "plain":
                archive.write(digests[rank].path, name)
                continue
            member = zipfile.ZipInfo(name)
            member.compress_type = zipfile.ZIP_DEFLATED
            member.external_attr = 0o644 << 16
            with archive.open(member, "w", force_zip64=True) as unpacked:
                for piece in ByteSource(digests[rank].path):
                    unpacked.write(piece)
    return said


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
