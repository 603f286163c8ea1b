"""The node probe as one file: a Python script that needs python3 and nothing else, piped over ssh to `python3 -`.

It carries the sources of node, wire, timebase and errors in a zip, imports them from memory (no file is written on the
node) and runs `rankclock.node`. Older Pythons than MIN_PYTHON get one clear line and exit code 3.
"""

from __future__ import annotations

import base64
import io
import textwrap
import zipfile
from functools import lru_cache
from pathlib import Path

import rankclock

__all__ = ["MIN_PYTHON", "PACKED", "probe_script"]

MIN_PYTHON = (3, 11)
"""StrEnum, Self: checked by running the script there; nothing older has been tried."""

PACKED = ("__init__.py", "errors.py", "timebase", "wire", "node")
"""What is packed, in the folder of the package: standard library only, as the import contract checks."""

_EPOCH_OF_ZIP = (1980, 1, 1, 0, 0, 0)

# Plain enough for every python3, so that an old one reaches the line that tells it.
_SCRIPT = '''#!/usr/bin/env python3
# rankclock {version}: prints this machine's clocks as JSON; changes nothing. Needs python3 >= {major}.{minor}.
# Use: ssh NODE python3 - facts < this_file      (or: python3 this_file status)
import sys
if sys.version_info < ({major}, {minor}):
    sys.stderr.write("rankclock: python3 >= {major}.{minor} is needed here, found %d.%d\\n" % sys.version_info[:2])
    sys.exit(3)
import base64, os
ZIP = """
{payload}
"""
memory = os.memfd_create("rankclock")
os.write(memory, base64.b64decode(ZIP))
sys.path.insert(0, "/proc/self/fd/%d" % memory)
from rankclock.node.__main__ import main
sys.exit(main(sys.argv[1:]))
'''


@lru_cache(maxsize=1)
def probe_script() -> str:
    """The script; the same text for the same sources."""
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, source in _sources():
            entry = zipfile.ZipInfo(name, _EPOCH_OF_ZIP)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, source)
    payload = "\n".join(textwrap.wrap(base64.b64encode(memory.getvalue()).decode("ascii"), 120))
    major, minor = MIN_PYTHON
    return _SCRIPT.format(version=rankclock.__version__, major=major, minor=minor, payload=payload)


def _sources() -> list[tuple[str, bytes]]:
    package = Path(rankclock.__file__).parent
    files: list[Path] = []
    for name in PACKED:
        path = package / name
        files += [path] if path.is_file() else sorted(path.rglob("*.py"))
    return [(str(file.relative_to(package.parent)), file.read_bytes()) for file in files]
