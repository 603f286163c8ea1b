"""The kinds of fields of chronyd's command protocol: its Float, its Timespec, its address. Facts: chrony's candm.h."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

from rankclock.errors import DecodeError
from rankclock.wire.layout import Kind

__all__ = ["ADDRESS", "FLOAT", "TIMESPEC", "ChronyAddress", "float_from_wire", "float_to_wire", "refid_text"]

_COEFFICIENT_BITS = 25
_EXPONENT_BITS = 7


_COEFFICIENT = (1 << _COEFFICIENT_BITS) - 1
_NEGATIVE = 1 << _COEFFICIENT_BITS - 1
_SCALES = tuple(
    math.ldexp(1.0, (bits if bits < 1 << _EXPONENT_BITS - 1 else bits - (1 << _EXPONENT_BITS)) - _COEFFICIENT_BITS)
    for bits in range(1 << _EXPONENT_BITS)
)


def float_from_wire(word: int) -> float:
    """candm.h Float: signed 7-bit exponent over signed 25-bit coefficient, value = coefficient * 2^(exponent - 25)."""
    coefficient = word & _COEFFICIENT
    if coefficient & _NEGATIVE:
        coefficient -= 1 << _COEFFICIENT_BITS
    return coefficient * _SCALES[word >> _COEFFICIENT_BITS]


def float_to_wire(value: float) -> int:
    """The nearest Float; too small becomes 0, too large the largest. NaN has no form: ValueError."""
    if math.isnan(value):
        raise ValueError("chrony's Float has no NaN")
    limit, top = (1 << _COEFFICIENT_BITS - 1) - 1, (1 << _EXPONENT_BITS - 1) - 1
    if math.isinf(value) or abs(value) >= math.ldexp(limit, top - _COEFFICIENT_BITS):
        exponent, coefficient = top, int(math.copysign(limit, value))
    else:
        exponent = math.frexp(value)[1] + 1  # |coefficient| stays below 2^24
        exponent = max(exponent, -(1 << _EXPONENT_BITS - 1))
        coefficient = round(math.ldexp(value, _COEFFICIENT_BITS - exponent))
        if abs(coefficient) > limit:
            exponent, coefficient = exponent + 1, coefficient // 2
    return (exponent % (1 << _EXPONENT_BITS)) << _COEFFICIENT_BITS | coefficient % (1 << _COEFFICIENT_BITS)


FLOAT = Kind(code="I", unpack=float_from_wire, pack=float_to_wire)

_NO_HIGH_SECONDS = 0x7FFFFFFF
"""tv_sec_high of a chronyd whose time_t has 32 bits."""


_TIMESPEC_WORDS = struct.Struct(">III")


def _timespec_unpack(data: bytes) -> int:
    high: int
    low: int
    ns: int
    high, low, ns = _TIMESPEC_WORDS.unpack(data)
    if high == _NO_HIGH_SECONDS:
        high = 0
    elif high >= 1 << 31:
        high -= 1 << 32
    if ns >= 1_000_000_000:
        raise DecodeError(f"chrony timespec: {ns} ns are a second or more")
    return ((high << 32) + low) * 1_000_000_000 + ns


def _timespec_pack(unix_ns: int) -> bytes:
    seconds, ns = divmod(unix_ns, 1_000_000_000)
    return (seconds % (1 << 64)).to_bytes(8, "big") + ns.to_bytes(4, "big")


TIMESPEC = Kind(code="12s", unpack=_timespec_unpack, pack=_timespec_pack)

_FAMILY_V4, _FAMILY_V6, _FAMILY_ID = 1, 2, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ChronyAddress:
    """An address as chronyd gives it. `family`: 0 none, 1 IPv4 (of a reference clock: its reference id), 2 IPv6,
    3 the number of a name that is not resolved yet. `packed`: the 16 octets of the union.
    """

    family: int
    packed: bytes

    @property
    def text(self) -> str:
        """As a person writes it; '' where there is none."""
        if self.family == _FAMILY_V4:
            return str(IPv4Address(self.packed[:4]))
        if self.family == _FAMILY_V6:
            return str(IPv6Address(self.packed))
        if self.family == _FAMILY_ID:
            return f"ID#{int.from_bytes(self.packed[:4], 'big'):010d}"
        return ""


def _address_unpack(data: bytes) -> ChronyAddress:
    return ChronyAddress(packed=data[:16], family=data[16] << 8 | data[17])


ADDRESS = Kind(
    code="20s",
    unpack=_address_unpack,
    pack=lambda value: value.packed + value.family.to_bytes(2, "big") + bytes(2),
)


def refid_text(refid: int) -> str:
    """A reference id as letters where it is up to four printable ones (a reference clock), else as hex digits."""
    letters = refid.to_bytes(4, "big").rstrip(b"\0")
    if letters and all(0x20 < octet < 0x7F for octet in letters):
        return letters.decode("ascii")
    return f"{refid:08X}"
