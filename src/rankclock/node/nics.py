"""The network interfaces: what they are, and what they can stamp, from the kernel's own interfaces.

The ethtool ioctl is the authority on timestamping and on the PHC's index: sysfs may not show what it says. The driver's
name comes from the kernel too, so that a bridge is a bridge where /sys is not mounted.
"""

from __future__ import annotations

import ctypes
import fcntl
import socket
import struct
from pathlib import Path
from typing import Any

from rankclock.node.fact import Fact, read_text, why_not
from rankclock.node.netlink import interface_addresses

__all__ = ["nic_facts", "phc_index_of"]

_SIOCGIFFLAGS, _SIOCGIFHWADDR, _SIOCETHTOOL = 0x8913, 0x8927, 0x8946
_ETHTOOL_GDRVINFO, _ETHTOOL_GET_TS_INFO = 0x03, 0x41
_IFREQ_OCTETS = 40
_DRVINFO_OCTETS = 196
_TS_INFO = struct.Struct("=IIiI12xI12x")
_IFF_UP, _IFF_LOOPBACK, _IFF_RUNNING = 0x1, 0x8, 0x40

_LINK_TYPES = {1: "ethernet", 32: "infiniband", 772: "loopback"}

_TX_HARDWARE, _TX_SOFTWARE, _RX_HARDWARE, _RX_SOFTWARE, _RAW_HARDWARE = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 6
_STAMPS = {
    "tx_hardware": _TX_HARDWARE,
    "rx_hardware": _RX_HARDWARE,
    "raw_hardware": _RAW_HARDWARE,
    "tx_software": _TX_SOFTWARE,
    "rx_software": _RX_SOFTWARE,
}
_TX_TYPES = ("off", "on", "onestep-sync", "onestep-p2p")
_RX_FILTERS = (
    "none", "all", "some", "ptpv1-l4-event", "ptpv1-l4-sync", "ptpv1-l4-delay-req", "ptpv2-l4-event", "ptpv2-l4-sync",
    "ptpv2-l4-delay-req", "ptpv2-l2-event", "ptpv2-l2-sync", "ptpv2-l2-delay-req", "ptpv2-event", "ptpv2-sync",
    "ptpv2-delay-req", "ntp-all",
)  # fmt: skip

_KIND_OF_DRIVER = {
    "veth": "veth",
    "bridge": "bridge",
    "bonding": "bond",
    "team": "bond",
    "802.1Q VLAN Support": "vlan",
    "macvlan": "macvlan",
    "ipvlan": "macvlan",
    "tun": "tun",
}


def nic_facts() -> dict[str, Fact]:
    """The facts `nic.<name>` of every interface but the loopback."""
    why_no_addresses, addresses = None, {}
    try:
        addresses = interface_addresses()
    except OSError as error:
        why_no_addresses = f"addresses: netlink: {why_not(error)}"
    facts = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        for index, name in socket.if_nameindex():
            found = None if why_no_addresses else addresses.get(index, [])
            value, why = _nic(handle, name, found)
            if value.pop("loopback"):
                continue
            reasons = [*why, why_no_addresses] if why_no_addresses else why
            source = f"ethtool ioctl, netlink, /sys/class/net/{name}"
            facts[f"nic.{name}"] = Fact.known(value, source, why="; ".join(reasons) or None)
    return facts


def phc_index_of(interface: str) -> int | None:
    """The index of the PHC that an interface stamps with, None where it has none. Raises OSError."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        index: int = _stamping(handle, interface)["phc_index"]
        return index if index >= 0 else None


def _ethtool(handle: socket.socket, name: str, data: bytes) -> bytes:
    buffer = ctypes.create_string_buffer(data, len(data))
    request = struct.pack("16sP", name.encode(), ctypes.addressof(buffer)).ljust(_IFREQ_OCTETS, b"\0")
    fcntl.ioctl(handle, _SIOCETHTOOL, request)
    return buffer.raw


def _ifreq(handle: socket.socket, request: int, name: str) -> bytes:
    answer: bytes = fcntl.ioctl(handle, request, struct.pack("16s", name.encode()).ljust(_IFREQ_OCTETS, b"\0"))
    return answer[16:]


def _stamping(handle: socket.socket, name: str) -> dict[str, Any]:
    answer = _ethtool(handle, name, struct.pack("=I", _ETHTOOL_GET_TS_INFO).ljust(_TS_INFO.size, b"\0"))
    _, flags, phc_index, tx_types, rx_filters = _TS_INFO.unpack(answer)
    return {
        **{field: bool(flags & bit) for field, bit in _STAMPS.items()},
        "tx_types": [text for bit, text in enumerate(_TX_TYPES) if tx_types >> bit & 1],
        "rx_filters": [text for bit, text in enumerate(_RX_FILTERS) if rx_filters >> bit & 1],
        "phc_index": phc_index,
    }


def _nic(handle: socket.socket, name: str, addresses: list[str] | None) -> tuple[dict[str, Any], list[str]]:
    """All fields of one interface, and the reasons of those that are unknown."""
    why: list[str] = []
    unknown = dict.fromkeys((*_STAMPS, "tx_types", "rx_filters", "phc_index"))
    value: dict[str, Any] = {"driver": None, "link_type": None, "operstate": None, "mac": None, "addresses": addresses}
    value["loopback"] = False
    try:
        flags = struct.unpack_from("=H", _ifreq(handle, _SIOCGIFFLAGS, name))[0]
        value["loopback"] = bool(flags & _IFF_LOOPBACK)
        value["operstate"] = "up" if flags & _IFF_UP and flags & _IFF_RUNNING else "down"
        kind, mac = struct.unpack_from("=H14s", _ifreq(handle, _SIOCGIFHWADDR, name))
        value["link_type"] = _LINK_TYPES.get(kind, f"other:{kind}")
        value["mac"] = mac[:6].hex(":")
    except OSError as error:
        why.append(f"link_type, mac: {why_not(error)}")
    try:
        info = _ethtool(handle, name, struct.pack("=I", _ETHTOOL_GDRVINFO).ljust(_DRVINFO_OCTETS, b"\0"))
        value["driver"] = info[4:36].split(b"\0")[0].decode("ascii", "replace") or "none"
    except OSError as error:
        value["driver"] = _driver_of_sysfs(name)
        if value["driver"] is None:
            why.append(f"driver: ethtool ioctl: {why_not(error)}")
    try:
        value.update(_stamping(handle, name))
    except OSError as error:
        value.update(unknown)
        why.append(f"stamping, phc_index: ethtool ioctl: {why_not(error)}")
    _add_sysfs(value, name, why)
    return value, why


def _driver_of_sysfs(name: str) -> str | None:
    folder = Path(f"/sys/class/net/{name}")
    if not folder.is_dir():
        return None
    link = folder / "device" / "driver"
    return link.resolve().name if link.exists() else "none"


def _add_sysfs(value: dict[str, Any], name: str, why: list[str]) -> None:
    """kind, virtual, lower, speed_mbps and a finer operstate; without sysfs what the driver's name tells."""
    folder = Path(f"/sys/class/net/{name}")
    kind = _KIND_OF_DRIVER.get(value["driver"] or "")
    value.update(kind=kind, virtual=True if kind else None, lower=None, speed_mbps=None)
    if not folder.is_dir():
        why.append("kind, virtual, lower, speed_mbps: /sys/class/net does not show this interface")
        return
    value["kind"] = kind or ("physical" if (folder / "device").exists() else _kind_of_sysfs(folder))
    value["virtual"] = value["kind"] != "physical"
    value["lower"] = sorted(entry.removeprefix("lower_") for entry in _names(folder) if entry.startswith("lower_"))
    value["lower"] += [port for port in _names(folder / "brif") if port not in value["lower"]]
    try:
        value["operstate"] = read_text(folder / "operstate")
        speed = int(read_text(folder / "speed"))
        value["speed_mbps"] = speed if speed > 0 else None
    except (OSError, ValueError):  # the speed of a link that is down, or of a driver without speeds
        pass
    if value["speed_mbps"] is None:
        why.append("speed_mbps: the driver does not say")


def _kind_of_sysfs(folder: Path) -> str:
    for mark, kind in (("bridge", "bridge"), ("bonding", "bond"), ("tun_flags", "tun")):
        if (folder / mark).exists():
            return kind
    return "virtual"


def _names(folder: Path) -> list[str]:
    try:
        return [entry.name for entry in folder.iterdir()]
    except OSError:
        return []
