"""System calls that Python 3.11 lacks: namespaces, mounts, capabilities. Standard library only: the first process of a
lab and of each node import it. Every call raises OSError with what was tried.
"""

from __future__ import annotations

import ctypes
import os

__all__ = [
    "CAP_SYS_TIME",
    "CLONE_NEWIPC",
    "CLONE_NEWNET",
    "CLONE_NEWNS",
    "CLONE_NEWPID",
    "CLONE_NEWUSER",
    "CLONE_NEWUTS",
    "MS_BIND",
    "MS_NODEV",
    "MS_NOSUID",
    "MS_PRIVATE",
    "MS_RDONLY",
    "MS_REC",
    "MS_REMOUNT",
    "die_with_parent",
    "drop_sys_time",
    "has_sys_time",
    "mount",
    "set_hostname",
    "set_timer_slack",
    "unmount",
    "unshare",
]

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18

CAP_SYS_TIME = 25

_PR_SET_PDEATHSIG = 1
_PR_CAPBSET_READ = 23
_PR_CAPBSET_DROP = 24
_PR_SET_TIMERSLACK = 29
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_LOWER = 3
_CAPABILITY_VERSION_3 = 0x20080522
_MNT_DETACH = 2

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")
    return result


def _prctl(*arguments: int) -> int:
    five = [ctypes.c_ulong(a) for a in (*arguments, 0, 0, 0, 0)[:5]]
    return _checked(_libc.prctl(*five), f"prctl {arguments}")


def unshare(flags: int) -> None:
    """New namespaces for this process (for PID: for its children)."""
    _checked(_libc.unshare(flags), f"unshare {flags:#x}")


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """mount(2)."""
    arguments = (source.encode(), target.encode(), kind.encode() or None, ctypes.c_ulong(flags), data.encode() or None)
    _checked(_libc.mount(*arguments), f"mount {kind or 'bind'} {source} on {target}")


def unmount(target: str) -> None:
    """umount2(2), detached: it goes when nobody uses it any more."""
    _checked(_libc.umount2(target.encode(), _MNT_DETACH), f"umount {target}")


def set_hostname(name: str) -> None:
    """sethostname(2)."""
    encoded = name.encode()
    _checked(_libc.sethostname(encoded, len(encoded)), f"sethostname {name}")


def die_with_parent(signal_number: int) -> None:
    """Lets the kernel send a signal to this process when the thread that made it ends."""
    _prctl(_PR_SET_PDEATHSIG, signal_number)


def set_timer_slack(slack_ns: int) -> None:
    """How late the kernel may wake this process (50 µs by default)."""
    _prctl(_PR_SET_TIMERSLACK, slack_ns)


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def drop_sys_time() -> None:
    """Takes CAP_SYS_TIME out of every set of this process for ever: neither it nor a child can set the host's clock."""
    if _prctl(_PR_CAPBSET_READ, CAP_SYS_TIME):
        _prctl(_PR_CAPBSET_DROP, CAP_SYS_TIME)
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_LOWER, CAP_SYS_TIME)
    header, sets = _Header(_CAPABILITY_VERSION_3, 0), (_Sets * 2)()
    _checked(_libc.capget(ctypes.byref(header), sets), "capget")
    keep = ~(1 << CAP_SYS_TIME) & 0xFFFFFFFF
    for name in ("effective", "permitted", "inheritable"):
        setattr(sets[0], name, getattr(sets[0], name) & keep)
    _checked(_libc.capset(ctypes.byref(header), sets), "capset without CAP_SYS_TIME")


def has_sys_time() -> bool:
    """Whether any capability set of this process still holds CAP_SYS_TIME, as the kernel shows it."""
    with open("/proc/self/status", encoding="ascii") as status:  # noqa: PTH123 (runs before anything is set up)
        masks = [line.split(":")[1] for line in status if line.startswith("Cap")]
    return len(masks) != 5 or any(int(mask, 16) >> CAP_SYS_TIME & 1 for mask in masks)
