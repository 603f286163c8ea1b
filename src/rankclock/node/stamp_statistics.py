"""How many hardware time stamps a NIC gave, lost or spoiled, by the kernel's ethtool family; or why that is unknown.

A ptp4l that waits for transmit stamps in vain shows here first. Drivers of many NICs do not count, kernels before 6.12
cannot say: both are said, neither is zero.
"""

from __future__ import annotations

import errno
import os
import socket
from dataclasses import asdict

from rankclock.errors import DecodeError
from rankclock.node.fact import Fact
from rankclock.wire.ethtool_netlink import decode_family, decode_statistics, family_request, tsinfo_request

__all__ = ["stamp_statistics"]

_GENERIC = 16  # NETLINK_GENERIC, which the socket module does not name
_TIMEOUT_S = 1.0
_SOURCE = "ethtool netlink, TSINFO with statistics"


def stamp_statistics(interface: str) -> Fact:
    """The counters of `StampStatistics`, or why there are none."""
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _GENERIC) as link:
            link.settimeout(_TIMEOUT_S)
            link.send(family_request("ethtool", sequence=1))
            family = decode_family(link.recv(65_536), sequence=1)
            link.send(tsinfo_request(family, interface, sequence=2))
            found = decode_statistics(link.recv(65_536), sequence=2)
    except OSError as error:
        return Fact.unknown(_reason(error), _SOURCE)
    except DecodeError as error:
        return Fact.unknown(str(error), _SOURCE)
    if found is None:
        return Fact.unknown("its driver counts no time stamps, or the kernel is older than 6.12", _SOURCE)
    missing = [name for name, count in asdict(found).items() if count is None]
    return Fact.known(
        asdict(found), _SOURCE, why=f"{', '.join(missing)}: not counted by the driver" if missing else None
    )


def _reason(error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return "this kernel has no ethtool netlink family (it came with 5.6)"
    if error.errno == errno.EOPNOTSUPP:
        return "its driver tells nothing of time stamps"
    return os.strerror(error.errno).lower() if error.errno else str(error)
