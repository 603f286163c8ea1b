"""The kernel's generic netlink family "ethtool", as far as time stamps go: requests to bytes, replies to values.

Facts: linux/ethtool_netlink.h and linux/genetlink.h (TSINFO since Linux 5.7, its statistics since 6.12). Numbers are in
the byte order of the machine. Attributes that it does not know it skips.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from rankclock.errors import DecodeError

__all__ = [
    "STAMP_COUNTERS",
    "StampStatistics",
    "decode_family",
    "decode_statistics",
    "family_request",
    "tsinfo_request",
]

_MESSAGE = struct.Struct("=IHHII")
_GENERIC = struct.Struct("=BBxx")
_ATTRIBUTE = struct.Struct("=HH")
_TYPE_BITS = 0x3FFF
_NESTED = 0x8000

_NLM_F_REQUEST = 1
_NLMSG_ERROR = 2
_CONTROL, _GET_FAMILY, _CONTROL_VERSION = 0x10, 3, 1
_FAMILY_ID, _FAMILY_NAME = 1, 2

_TSINFO_GET, _ETHTOOL_VERSION = 25, 1
_HEADER, _HEADER_NAME, _HEADER_FLAGS = 1, 2, 3
_FLAG_STATISTICS = 4
_STATISTICS = 6
STAMP_COUNTERS = {1: "tx_stamped", 2: "tx_lost", 3: "tx_errors", 4: "tx_onestep_unconfirmed"}


@dataclass(frozen=True, slots=True, kw_only=True)
class StampStatistics:
    """Hardware time stamps of sent packets, counted by the driver. None: it does not count that.

    tx_lost: packets whose stamp never came, the cause of ptp4l's "timed out while polling for tx timestamp".
    """

    tx_stamped: int | None
    tx_lost: int | None
    tx_errors: int | None
    tx_onestep_unconfirmed: int | None


def _attribute(number: int, data: bytes) -> bytes:
    length = _ATTRIBUTE.size + len(data)
    return _ATTRIBUTE.pack(length, number) + data + bytes(-length % 4)


def _request(family: int, command: int, version: int, sequence: int, attributes: bytes) -> bytes:
    body = _GENERIC.pack(command, version) + attributes
    return _MESSAGE.pack(_MESSAGE.size + len(body), family, _NLM_F_REQUEST, sequence, 0) + body


def family_request(name: str, *, sequence: int) -> bytes:
    """Which number a family has here."""
    return _request(_CONTROL, _GET_FAMILY, _CONTROL_VERSION, sequence, _attribute(_FAMILY_NAME, name.encode() + b"\0"))


def tsinfo_request(family: int, interface: str, *, sequence: int) -> bytes:
    """The time stamping of an interface, with its statistics."""
    header = _attribute(_HEADER_NAME, interface.encode() + b"\0")
    header += _attribute(_HEADER_FLAGS, _FLAG_STATISTICS.to_bytes(4, sys.byteorder))
    return _request(family, _TSINFO_GET, _ETHTOOL_VERSION, sequence, _attribute(_HEADER | _NESTED, header))


def _answer(data: bytes, sequence: int) -> bytes:
    """The attributes of the reply. Raises OSError where the kernel refused, DecodeError."""
    if len(data) < _MESSAGE.size:
        raise DecodeError(f"netlink message: expected {_MESSAGE.size} octets, found {len(data)}")
    length, kind, _, answered, _ = _MESSAGE.unpack_from(data)
    if answered != sequence or not _MESSAGE.size <= length <= len(data):
        raise DecodeError(f"netlink message: sequence {answered}, length {length} in {len(data)} octets")
    body = data[_MESSAGE.size : length]
    if kind == _NLMSG_ERROR:
        code = int.from_bytes(body[:4], sys.byteorder, signed=True)
        raise OSError(-code, "the kernel refused the question") if code else DecodeError("netlink message: no answer")
    if len(body) < _GENERIC.size:
        raise DecodeError(f"netlink message: {len(body)} octets are no answer")
    return body[_GENERIC.size :]


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data)
        if not _ATTRIBUTE.size <= length <= len(data):
            raise DecodeError(f"netlink attribute: length {length} in {len(data)} octets")
        yield kind & _TYPE_BITS, data[_ATTRIBUTE.size : length]
        data = data[(length + 3) & ~3 :]


def decode_family(data: bytes, *, sequence: int) -> int:
    """The family's number. Raises OSError where there is no such family, DecodeError."""
    for kind, value in _attributes(_answer(data, sequence)):
        if kind == _FAMILY_ID and len(value) == 2:
            return int.from_bytes(value, sys.byteorder)
    raise DecodeError("netlink message: a family without a number")


def decode_statistics(data: bytes, *, sequence: int) -> StampStatistics | None:
    """What the driver counts, None where it counts nothing. Raises OSError where the kernel refused, DecodeError."""
    for kind, value in _attributes(_answer(data, sequence)):
        if kind == _STATISTICS:
            found = {
                STAMP_COUNTERS[number]: int.from_bytes(count, sys.byteorder)
                for number, count in _attributes(value)
                if number in STAMP_COUNTERS and len(count) in (4, 8)
            }
            return StampStatistics(**{name: found.get(name) for name in STAMP_COUNTERS.values()}) if found else None
    return None
