"""The part of `rankclock doctor` that packs evidence for somebody else: names and addresses replaced, answer beside."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from rankclock.cli.output import err
from rankclock.errors import UserError

if TYPE_CHECKING:
    from rankclock.diagnosis.evidence import Evidence
    from rankclock.diagnosis.verdict import Answer

__all__ = ["write_bundle"]

README = """Evidence about clocks, packed by rankclock doctor.
evidence/*.txt: what was read, with its line numbers kept; names and addresses are replaced, the same by the same.
answer.json: what the doctor said of it. Read both before you give them away: only known forms of names are replaced.
"""


def write_bundle(path: Path, evidence: Evidence, answer: Answer) -> None:
    """Write the .zip. Raises UserError where it cannot be written."""
    from rankclock.diagnosis.bundle import bundled

    files = bundled(evidence, answer)
    try:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("README.txt", README)
            for name, text in files.texts.items():
                archive.writestr(f"evidence/{name}", text)
            archive.writestr("answer.json", json.dumps(files.answer, indent=2, ensure_ascii=False) + "\n")
    except OSError as error:
        raise UserError(f"cannot write {str(path)!r}: {(error.strerror or str(error)).lower()}") from None
    err().print(f"wrote {path}; read it before you give it away", markup=False)
