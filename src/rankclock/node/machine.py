"""What this machine is: operating system, kernel, virtualisation, container, cloud.

Told from evidence that needs no privilege. Refuses to say "none" of a container where the places that would show one
may not be looked at.
"""

from __future__ import annotations

import os
import platform
import socket
from pathlib import Path
from typing import Any

from rankclock.node.fact import Fact, read_text, why_not
from rankclock.node.kernel import has_private_clock
from rankclock.node.processes import INITIAL_PID_NAMESPACE

__all__ = ["hostname", "kernel_release", "operating_system", "virtualisation"]


def hostname() -> Fact:
    """The name that the kernel has for this machine (of this UTS namespace)."""
    return Fact.known(socket.gethostname(), "uname")


def kernel_release() -> Fact:
    """Release and machine."""
    name = os.uname()
    return Fact.known({"release": name.release, "machine": name.machine}, "uname")


def operating_system() -> Fact:
    """/etc/os-release."""
    path = "/etc/os-release"
    try:
        release = platform.freedesktop_os_release()
    except OSError as error:
        return Fact.unknown(why_not(error), path)
    names = {"id": "ID", "version_id": "VERSION_ID", "name": "PRETTY_NAME"}
    return Fact.known({field: release.get(name, "") for field, name in names.items()}, path)


_DMI = "/sys/class/dmi/id"

_HYPERVISORS = (
    ("amazon ec2", "kvm"), ("google", "kvm"), ("alibaba", "kvm"), ("openstack", "kvm"), ("kvm", "kvm"),
    ("qemu", "qemu"), ("bochs", "qemu"), ("vmware", "vmware"), ("microsoft corporation", "hyperv"), ("xen", "xen"),
)  # fmt: skip
_CLOUDS = (("amazon ec2", "aws"), ("google", "gcp"), ("microsoft corporation", "azure"), ("alibaba", "alibaba"))
_AZURE_CHASSIS = "7783-7084-3265-9085-8269-3286-77"
"""The chassis asset tag of every Azure machine: Hyper-V elsewhere has the same vendor name."""

_CONTAINER_MARKS = (("/run/.containerenv", "podman"), ("/.dockerenv", "docker"))
_CONTAINER_CGROUPS = (("kubepods", "kubernetes"), ("docker", "docker"), ("libpod", "podman"), ("lxc", "lxc"))


def virtualisation() -> Fact:
    """`kind`, `container` and `cloud`; a field is null where nothing could tell."""
    dmi = _dmi()
    container, why_container = _container()
    kind, why_kind = _kind(dmi)
    value: dict[str, Any] = {"kind": kind, "container": container, "cloud": _cloud(dmi, kind)}
    why = [reason for reason in (why_kind, why_container) if reason]
    if value["cloud"] is None:
        why.append(f"cloud: {_DMI} does not name the maker of this virtual machine")
    return Fact.known(value, f"{_DMI}, /proc/cpuinfo, /sys/hypervisor, /proc/1", why="; ".join(why) or None)


def _dmi() -> dict[str, str]:
    found = {}
    for name in ("sys_vendor", "product_name", "bios_vendor", "board_vendor", "chassis_asset_tag"):
        try:
            found[name] = read_text(f"{_DMI}/{name}").lower()
        except OSError:
            continue
    return found


def _kind(dmi: dict[str, str]) -> tuple[str | None, str | None]:
    """On x86 the processor says whether there is a hypervisor; elsewhere only the maker's name can."""
    try:
        cpu = read_text("/proc/cpuinfo")
    except OSError as error:
        return None, f"kind: /proc/cpuinfo: {why_not(error)}"
    if "User Mode Linux" in cpu:
        return "uml", None
    is_x86 = "\nflags" in cpu
    if is_x86 and " hypervisor" not in cpu:
        return ("xen" if _is_xen() else "none"), None
    text = "" if "metal" in dmi.get("product_name", "") else " ".join(dmi.values())
    known = next((kind for mark, kind in _HYPERVISORS if mark in text), None)
    if known is None and is_x86:
        known = "firecracker" if _is_firecracker() else "other"
    if known is None and dmi:
        known = "none"
    return known, None if known else f"kind: neither {_DMI} nor /proc/cpuinfo tells"


def _is_xen() -> bool:
    """A paravirtual guest, whose processor shows no hypervisor."""
    try:
        return "xen" in read_text("/sys/hypervisor/type")
    except OSError:
        return False


def _is_firecracker() -> bool:
    """Firecracker shows no DMI; its kernels are named for it, or get its devices as kernel arguments."""
    try:
        return "-fc" in os.uname().release or "virtio_mmio.device=" in read_text("/proc/cmdline")
    except OSError:
        return False


def _cloud(dmi: dict[str, str], kind: str | None) -> str | None:
    if not dmi:
        return "none" if kind == "none" else None
    text = " ".join(dmi.values())
    for mark, cloud in _CLOUDS:
        if mark in text and (cloud != "azure" or dmi.get("chassis_asset_tag") == _AZURE_CHASSIS):
            return cloud
    return "none"


def _container() -> tuple[str | None, str | None]:
    marked = next((kind for path, kind in _CONTAINER_MARKS if Path(path).exists()), None)
    if marked or os.environ.get("KUBERNETES_SERVICE_HOST"):
        return marked or "kubernetes", None
    path = "/proc/1/cgroup"
    try:
        groups = read_text(path) + read_text("/proc/self/cgroup")
        path = "/proc/1/environ"
        environment = Path(path).read_bytes().split(b"\0")
    except OSError as error:
        return None, f"container: {path}: {why_not(error)}"
    kind = next((kind for mark, kind in _CONTAINER_CGROUPS if mark in groups), None)
    for entry in environment:
        if entry.startswith(b"container="):
            name = entry.partition(b"=")[2].decode("ascii", "replace")
            kind = name if name in ("docker", "podman", "lxc", "systemd-nspawn") else "other"
    if kind is None and not has_private_clock():
        namespace = os.readlink("/proc/self/ns/pid")  # noqa: PTH115
        kind = None if namespace == INITIAL_PID_NAMESPACE else "other"
    return kind or "none", None
