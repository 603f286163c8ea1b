"""Where the real time daemons are. Decides which copy is run; refuses when there is none."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from rankclock.errors import HostError

__all__ = ["find_daemon"]

_PACKAGES = {
    "chronyd": "chrony",
    "chronyc": "chrony",
    "ptp4l": "linuxptp",
    "phc2sys": "linuxptp",
    "pmc": "linuxptp",
    "ts2phc": "linuxptp",
    "ntpd": "ntpsec",
    "dbus-daemon": "dbus-daemon",
}
_REPOSITORY = Path(__file__).resolve().parents[3]


def find_daemon(name: str) -> Path:
    """The program of that name: in $RANKCLOCK_DAEMONS, in ./.daemons (as `make setup` unpacks them), on PATH, in sbin.

    Raises HostError.
    """
    folders = []
    if os.environ.get("RANKCLOCK_DAEMONS"):
        folders.append(Path(os.environ["RANKCLOCK_DAEMONS"]))
    for root in (Path.cwd(), _REPOSITORY):
        folders += [root / ".daemons" / folder for folder in ("usr/sbin", "usr/bin", "lib/systemd", "usr/lib/systemd")]
    for folder in folders:
        if os.access(folder / name, os.X_OK):
            return (folder / name).absolute()
    found = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin", "/lib/systemd"]))
    if found:
        return Path(found).absolute()
    package = _PACKAGES.get(name, name)
    raise HostError(
        f"{name} not found in $RANKCLOCK_DAEMONS, .daemons, PATH or /usr/sbin: run `make setup`, or install {package}"
    )
