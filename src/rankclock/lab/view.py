"""What one node sees of the file system: its own /etc, /run, /var/lib, /var/log, /dev, /proc, /sys, boot id, name.

A private folder is a folder of links to what the host has there (no overlay: an ordinary user may not write to one
whose lower files belong to root). The host's files are read through it, never written. /tmp, /home and the rest are the
host's: that is how files get in and out. Standard library only; runs once in each node, before anything else.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from rankclock.lab import kernel

__all__ = ["LAB_RUN", "enter", "install", "make_private"]

LAB_RUN = "/run/rankclock-lab"
"""In a node: the preloaded library, the clocks, `host/` (what private folders cover) and `own/` (where they lie)."""

OWN = Path(LAB_RUN) / "own"
HOST = Path(LAB_RUN) / "host"

# Of these the node starts with an empty one: the host's keys, drift files and configurations are not its own.
FRESH = {
    "/etc": ("chrony", "linuxptp", "ntpsec", "rankclock"),
    "/var/lib": ("chrony", "ntpsec", "rankclock"),
    "/var/log": ("chrony", "ntpsec", "rankclock"),
}
OWN_FILES = {"/etc": ("hostname", "hosts", "machine-id", "resolv.conf")}
DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "ptmx")
DEVICE_FOLDERS = ("pts", "net")


def _cover(target: str) -> Path:
    """A private folder of links over `target`; what it covers stays visible under LAB_RUN/host."""
    own, host = OWN / f"private{target}", HOST / target.lstrip("/")
    own.mkdir(parents=True)
    host.mkdir(parents=True)
    kernel.mount(target, str(host), flags=kernel.MS_BIND | kernel.MS_REC)
    _link_all(own, host, {*FRESH.get(target, ()), *OWN_FILES.get(target, ())})
    for name in FRESH.get(target, ()):
        (own / name).mkdir(mode=0o755)
    kernel.mount(str(own), target, flags=kernel.MS_BIND)
    return own


def _link_all(own: Path, host: Path, left_out: set[str]) -> None:
    for entry in os.scandir(host):
        if entry.name not in left_out:
            (own / entry.name).symlink_to(host / entry.name)


def enter(base: Path, node: dict[str, Any]) -> None:
    """Makes this process's new mount namespace the node's view. `base` is the node's folder on the lab's own tmpfs,
    with `run/` prepared by the lab's first process.
    """
    kernel.set_hostname(node["name"])
    (base / "run/rankclock-lab/own").mkdir()
    kernel.mount(str(base), str(base / "run/rankclock-lab/own"), flags=kernel.MS_BIND)
    kernel.mount(str(base / "run"), "/run", flags=kernel.MS_BIND | kernel.MS_REC)
    kernel.mount("proc", "/proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV)
    _own_sys(node)
    _own_dev(node)
    etc = _cover("/etc")
    (etc / "hostname").write_text(node["name"] + "\n")
    (etc / "hosts").write_text(node["hosts"])
    (etc / "machine-id").write_text(node["machine_id"] + "\n")
    (etc / "resolv.conf").write_text("")
    _cover("/var/lib")
    _cover("/var/log")
    boot_id = OWN / "boot_id"
    boot_id.write_text(node["boot_id"] + "\n")
    kernel.mount(str(boot_id), "/proc/sys/kernel/random/boot_id", flags=kernel.MS_BIND)


def _own_dev(node: dict[str, Any]) -> None:
    """A small /dev without the host's PTP, PPS and RTC devices: nobody in a node may read the host's clocks."""
    dev = OWN / "dev"
    dev.mkdir()
    for name in DEVICES:
        if os.path.lexists(f"/dev/{name}"):
            (dev / name).touch()
            kernel.mount(f"/dev/{name}", str(dev / name), flags=kernel.MS_BIND)
    for name in DEVICE_FOLDERS:
        if Path(f"/dev/{name}").is_dir():
            (dev / name).mkdir()
            kernel.mount(f"/dev/{name}", str(dev / name), flags=kernel.MS_BIND | kernel.MS_REC)
    for name, target in (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        (dev / name).symlink_to(f"/proc/self/{target}")
    (dev / "shm").mkdir(mode=0o1777)
    (dev / "shm").chmod(0o1777)
    if node["phc"] is not None:
        os.link(OWN / "run/rankclock-lab/phc", dev / "ptp0")  # by this inode the preloaded library knows it
    kernel.mount(str(dev), "/dev", flags=kernel.MS_BIND | kernel.MS_REC)


def _own_sys(node: dict[str, Any]) -> None:
    """A /sys that shows this node's interfaces. Where the kernel refuses it: none at all, rather than the host's."""
    own = OWN / "sys"
    own.mkdir()
    try:
        kernel.mount("sysfs", "/sys", "sysfs", kernel.MS_NOSUID | kernel.MS_NODEV)
    except PermissionError:
        kernel.mount(str(own), "/sys", flags=kernel.MS_BIND)
        return
    if not Path("/sys/class/ptp").is_dir():
        return
    ptp = OWN / "ptp"
    ptp.mkdir()
    if node["phc"] is not None:
        (ptp / "ptp0").mkdir()
        for name, text in (("clock_name", "rankclock lab PHC"), ("max_adjustment", "62499999")):
            (ptp / "ptp0" / name).write_text(text + "\n")
    kernel.mount(str(ptp), "/sys/class/ptp", flags=kernel.MS_BIND)


def install(path: str, data: bytes, mode: int) -> None:
    """Writes one file of the node, in a private folder that is made on the way. Raises OSError or ValueError."""
    target = Path(path)
    if not target.is_absolute() or ".." in target.parts:
        raise ValueError(f"a file is installed at an absolute path without '..', not at {path!r}")
    if target.parent == Path("/"):
        raise ValueError(f"{path!r}: a file is installed in a folder, not at the root")
    make_private(target.parent)
    if target.is_symlink():
        target.unlink()
    part = target.with_name(target.name + ".part")
    part.write_bytes(data)
    part.chmod(mode)
    part.rename(target)


def make_private(folder: Path) -> None:
    """Sees to it that `folder` exists on the lab's own tmpfs."""
    own_device = OWN.stat().st_dev
    for step in (*reversed(folder.parents), folder):
        if step.is_symlink():
            behind = step.readlink()
            if not behind.is_relative_to(HOST):
                make_private(step.resolve())
                continue
            if behind.is_dir():  # a link of ours to a folder of the host: one level of it becomes private
                step.unlink()
                step.mkdir()
                _link_all(step, behind, set())
        elif not step.exists():
            if step.parent.stat().st_dev != own_device:
                _cover(str(step.parent))
            step.mkdir(mode=0o755)
    if folder.stat().st_dev != own_device:
        _cover(str(folder))
