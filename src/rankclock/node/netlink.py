"""The addresses of all interfaces, both families, with prefix lengths: one RTM_GETADDR dump (rtnetlink(7)).

By netlink because SIOCGIFADDR knows one IPv4 address an interface only. What it does not know it skips.
"""

from __future__ import annotations

import socket
import struct
from ipaddress import ip_address

__all__ = ["interface_addresses", "parse_addresses"]

_RTM_NEWADDR, _RTM_GETADDR = 20, 22
_NLM_F_REQUEST, _NLM_F_DUMP = 0x1, 0x300
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_MESSAGE = struct.Struct("=IHHII")
_ADDRESS = struct.Struct("=BBBBI")
_ATTRIBUTE = struct.Struct("=HH")
_TIMEOUT_S = 1.0


def interface_addresses() -> dict[int, list[str]]:
    """Interface index to addresses such as '10.80.1.11/24'. Raises OSError."""
    found: dict[int, list[str]] = {}
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as link:
        link.settimeout(_TIMEOUT_S)
        body = _ADDRESS.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
        header = _MESSAGE.pack(_MESSAGE.size + len(body), _RTM_GETADDR, _NLM_F_REQUEST | _NLM_F_DUMP, 1, 0)
        link.send(header + body)
        while parse_addresses(link.recv(65_536), found):
            pass
    return found


def parse_addresses(data: bytes, found: dict[int, list[str]]) -> bool:
    """Adds the addresses in one netlink datagram; False when the dump has ended (or went wrong)."""
    position = 0
    while position + _MESSAGE.size <= len(data):
        length, kind, _, _, _ = _MESSAGE.unpack_from(data, position)
        if kind in (_NLMSG_DONE, _NLMSG_ERROR) or not _MESSAGE.size <= length <= len(data) - position:
            return False
        if kind == _RTM_NEWADDR and length >= _MESSAGE.size + _ADDRESS.size:
            _, prefix, _, _, index = _ADDRESS.unpack_from(data, position + _MESSAGE.size)
            address = _address(data[position + _MESSAGE.size + _ADDRESS.size : position + length])
            if address:
                found.setdefault(index, []).append(f"{address}/{prefix}")
        position += (length + 3) & ~3
    return position > 0


def _address(attributes: bytes) -> str | None:
    """IFA_LOCAL where there is one (of a point-to-point link IFA_ADDRESS is the other end)."""
    found: dict[int, bytes] = {}
    while len(attributes) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(attributes)
        if not _ATTRIBUTE.size <= length <= len(attributes):
            break
        found[kind] = attributes[_ATTRIBUTE.size : length]
        attributes = attributes[(length + 3) & ~3 :]
    packed = found.get(_IFA_LOCAL, found.get(_IFA_ADDRESS, b""))
    return str(ip_address(packed)) if len(packed) in (4, 16) else None
