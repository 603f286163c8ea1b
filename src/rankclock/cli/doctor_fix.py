"""The part of `rankclock doctor` that prints changes, and makes them only where told to: diff first, old file kept."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from rankclock.cli.output import err
from rankclock.errors import UserError

if TYPE_CHECKING:
    from rankclock.diagnosis.evidence import Evidence
    from rankclock.diagnosis.verdict import Answer

__all__ = ["BEFORE", "fix_files"]

BEFORE = ".before-rankclock"


def fix_files(answer: Answer, evidence: Evidence, *, apply: bool) -> None:
    """Print each file's diff and each command to stderr (stdout is the answer's); with `apply`, write the files."""
    from rankclock.diagnosis.change import edited, propose, unified_diff

    console = err()
    proposal = propose(answer, evidence)
    for source in dict.fromkeys(edit.source for edit in proposal.edits):
        edits = [edit for edit in proposal.edits if edit.source == source]
        path = Path(source)
        if source == "-" or not path.is_file():
            for edit in edits:
                what = "take out" if edit.new is None else f"write {edit.new!r} at"
                console.print(f"{edit.why}: {what} line {edit.line or 'the end'} of the file", markup=False)
            continue
        before = _read(path)
        after = edited(before, edits)
        console.print(unified_diff(source, before, after), markup=False)
        if apply:
            _write(path, before, after)
            console.print(f"{source} changed; the way back: mv {source}{BEFORE} {source}", markup=False)
    for why, command in proposal.commands:
        console.print(f"{why}: run by hand: {command}", markup=False)
    if not proposal.edits and not proposal.commands:
        console.print("no change that is certain: see 'next' of the findings", markup=False)


def _read(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            return stream.read()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"cannot change {str(path)!r}: {getattr(error, 'strerror', None) or 'it is no UTF-8 text'}"
        ) from None


def _write(path: Path, before: str, after: str) -> None:
    """Keep the old file under a name of its own (one kept earlier stays), then put the new one in its place at once."""
    kept = path.with_name(path.name + BEFORE)
    try:
        if not kept.exists():
            kept.write_text(before, encoding="utf-8", newline="")
        new = path.with_name(path.name + ".new-rankclock")
        new.write_text(after, encoding="utf-8", newline="")
        new.chmod(path.stat().st_mode & 0o7777)
        os.replace(new, path)  # noqa: PTH105  (one call that either happens or does not)
    except OSError as error:
        raise UserError(
            f"cannot change {str(path)!r}: {(error.strerror or str(error)).lower()}; it is as it was"
        ) from None
