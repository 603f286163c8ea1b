"""The probe datagram: 416 bytes that one clock sends another, authenticated, the same size both ways.

Decides what a well-formed, authentic datagram is; refuses everything else with `DecodeError`. A reply is never larger
than its request: it amplifies nothing. The key is shared by the job or by the agents; who has it is trusted
not to forge, which is all that a shared key can say.

Layout, network byte order:
    0   magic "rk", version (1), kind (1)
    4   sequence of the request (4)
    8   session: the requester's, drawn at random when it starts (8)
    16  sender, 24 target: tags of node names (8, 8); binds a reply to the node that was asked
    32  clock: tag of the sender's clock (8)
    40  the sender's clocks when it wrote this: RAW (8), REALTIME (8), RAW (8)
    64  number of records (1), reserved zeros (3)
    68  the sender's belief of cluster time (56), all zeros where it has none: 1, hops (1), epoch (2), the reference's
        tag (8), RAW of the sender (8), RAW - cluster time then: most likely (8), how much less (4) and more (4);
        its rate in ppb/1000: most likely (4), how much less (4) and more (4); wander in ppb/s (4); age of the
        reference's word in ms (4)
    124 8 + 1 records of 30: sequence (4), arrival (12), departure (12), flags (2)
    394 reserved zeros (6)
    400 HMAC-SHA256 of all before, its first 16 bytes
A record tells when the responder received a request and when its reply left. Each stamp is the earliest RAW instant
(8), from there to the latest (2), and from there to the most likely one (2), in ns. The departure is known only after
sending, so replies carry those of the last eight (interleaved): at 30 % loss a memory of one completes 24 % of the
exchanges, of eight up to 49 %.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass
from enum import IntEnum

from rankclock.errors import DecodeError

__all__ = [
    "DATAGRAM_BYTES",
    "MAX_RECORDS",
    "MAX_WIDTH_NS",
    "MIN_KEY_BYTES",
    "Datagram",
    "Kind",
    "NotAuthenticError",
    "Record",
    "WireBelief",
    "WireStamp",
    "decode_datagram",
    "encode_datagram",
    "tag_of",
]

VERSION = 1
MAGIC = b"rk"
MAX_RECORDS = 9
MAX_WIDTH_NS = 0xFFFE
"""A stamp less certain than 65 µs is not worth sending."""
MIN_KEY_BYTES = 16
MAC_BYTES = 16
DATAGRAM_BYTES = 416

_HEADER = struct.Struct("!2sBBIQQQQqqqB3x")
_BELIEF = struct.Struct("!BBHQqqIIiIIII")
_NO_BELIEF = bytes(_BELIEF.size)
_RECORDS_AT = _HEADER.size + _BELIEF.size
_RECORD = struct.Struct("!IqHHqHHH")
_BODY_BYTES = DATAGRAM_BYTES - MAC_BYTES
_NO_WIDTH = 0xFFFF
_I64 = 1 << 63
_FLAG_KERNEL_ARRIVAL = 1
_FLAG_KERNEL_DEPARTURE = 2


class NotAuthenticError(DecodeError):
    """It looks like a probe but was not made with our key."""


class Kind(IntEnum):
    """What a datagram asks or answers."""

    REQUEST = 1
    REPLY = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class WireStamp:
    """An instant on the responder's RAW clock: the earliest it can be, how much later the latest and the most likely
    are, and whether the kernel stamped it or the process."""

    earliest_ns: int
    width_ns: int
    estimate_after_ns: int
    kernel: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """When request `sequence` arrived and when its reply left: None where it has not left yet."""

    sequence: int
    arrival: WireStamp
    departure: WireStamp | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WireBelief:
    """What the sender believes of cluster time; fields as in the module's layout, `mppb` is a thousandth of a ppb."""

    epoch: int
    reference: int
    hops: int
    at_raw_ns: int
    estimate_ns: int
    below_ns: int
    above_ns: int
    rate_mppb: int
    slower_mppb: int
    faster_mppb: int
    wander_ppb_per_s: int
    age_ms: int

    @property
    def fits(self) -> bool:
        """Whether every field fits its place."""
        try:
            _encode_belief(self)
        except struct.error:
            return False
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Datagram:
    """One probe or its reply; field meanings in the module's layout."""

    kind: Kind
    session: int
    sequence: int
    sender: int
    target: int
    clock: int
    raw_before_ns: int
    real_ns: int
    raw_after_ns: int
    records: tuple[Record, ...] = ()
    belief: WireBelief | None = None


def tag_of(name: str) -> int:
    """64 bits that stand for a node's name or a clock's identity on the wire."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")


def encode_datagram(datagram: Datagram, key: bytes) -> bytes:
    """The datagram's bytes. Raises ValueError for a field out of its range or a key that is too short."""
    if len(key) < MIN_KEY_BYTES:
        raise ValueError(f"a key has {MIN_KEY_BYTES} bytes or more, this one has {len(key)}")
    if len(datagram.records) > MAX_RECORDS:
        raise ValueError(f"a datagram carries at most {MAX_RECORDS} records, not {len(datagram.records)}")
    try:
        head = _HEADER.pack(
            MAGIC,
            VERSION,
            datagram.kind,
            datagram.sequence,
            datagram.session,
            datagram.sender,
            datagram.target,
            datagram.clock,
            datagram.raw_before_ns,
            datagram.real_ns,
            datagram.raw_after_ns,
            len(datagram.records),
        )
        head += _NO_BELIEF if datagram.belief is None else _encode_belief(datagram.belief)
        body = head + b"".join(_encode_record(record) for record in datagram.records)
    except struct.error as error:
        raise ValueError(f"a field does not fit its place: {error}: {datagram}") from error
    body = body.ljust(_BODY_BYTES, b"\0")
    return body + hmac.digest(key, body, "sha256")[:MAC_BYTES]


def decode_datagram(data: bytes, key: bytes) -> Datagram:
    """The inverse. Raises NotAuthenticError where it was not made with the key, DecodeError for anything else wrong."""
    if len(data) != DATAGRAM_BYTES:
        raise DecodeError(f"a probe has {DATAGRAM_BYTES} bytes, found {len(data)}")
    if data[:2] != MAGIC or data[2] != VERSION:
        raise DecodeError(f"a probe of version {VERSION} begins {MAGIC!r} {VERSION}, found {data[:3]!r}")
    body, mac = data[:_BODY_BYTES], data[_BODY_BYTES:]
    if not hmac.compare_digest(hmac.digest(key, body, "sha256")[:MAC_BYTES], mac):
        raise NotAuthenticError("the probe was not made with our key")
    _, _, kind, sequence, session, sender, target, clock, before_ns, real_ns, after_ns, count = _HEADER.unpack_from(
        body
    )
    if kind not in (Kind.REQUEST, Kind.REPLY):
        raise DecodeError(f"a probe is a request (1) or a reply (2), found kind {kind}")
    if before_ns > after_ns:
        raise DecodeError(f"the sender's RAW clock ran backwards: {before_ns} then {after_ns}")
    if count > MAX_RECORDS:
        raise DecodeError(f"a probe has at most {MAX_RECORDS} records, found {count}")
    used = _RECORDS_AT + count * _RECORD.size
    if body[used:].strip(b"\0") or body[_HEADER.size - 3 : _HEADER.size].strip(b"\0"):
        raise DecodeError("the reserved bytes are not zero")
    return Datagram(
        kind=Kind(kind),
        session=session,
        sequence=sequence,
        sender=sender,
        target=target,
        clock=clock,
        raw_before_ns=before_ns,
        real_ns=real_ns,
        raw_after_ns=after_ns,
        records=tuple(_decode_record(fields) for fields in _RECORD.iter_unpack(body[_RECORDS_AT:used])),
        belief=_decode_belief(body[_HEADER.size : _RECORDS_AT]),
    )


def _encode_belief(belief: WireBelief) -> bytes:
    return _BELIEF.pack(
        1,
        belief.hops,
        belief.epoch,
        belief.reference,
        *(belief.at_raw_ns, belief.estimate_ns, belief.below_ns, belief.above_ns),
        *(belief.rate_mppb, belief.slower_mppb, belief.faster_mppb, belief.wander_ppb_per_s, belief.age_ms),
    )


def _decode_belief(data: bytes) -> WireBelief | None:
    if data == _NO_BELIEF:
        return None
    present, hops, epoch, reference, at_ns, likely_ns, below_ns, above_ns, *rest = _BELIEF.unpack(data)
    if present != 1 or epoch == 0:
        raise DecodeError("a belief begins with 1 and has an epoch, or all of it is zeros")
    if not -_I64 <= likely_ns - below_ns <= likely_ns + above_ns < _I64:
        raise DecodeError("a belief's bounds do not fit 64 bits")
    rate, slower, faster, wander, age_ms = rest
    return WireBelief(
        epoch=epoch,
        reference=reference,
        hops=hops,
        at_raw_ns=at_ns,
        estimate_ns=likely_ns,
        below_ns=below_ns,
        above_ns=above_ns,
        rate_mppb=rate,
        slower_mppb=slower,
        faster_mppb=faster,
        wander_ppb_per_s=wander,
        age_ms=age_ms,
    )


def _encode_record(record: Record) -> bytes:
    arrival, departure = record.arrival, record.departure
    for stamp in (arrival, departure):
        if stamp is not None and not 0 <= stamp.estimate_after_ns <= stamp.width_ns <= MAX_WIDTH_NS:
            raise ValueError(f"0 <= estimate_after_ns <= width_ns <= {MAX_WIDTH_NS} is expected: {stamp}")
    left = departure is not None and departure.kernel
    return _RECORD.pack(
        record.sequence,
        *(arrival.earliest_ns, arrival.width_ns, arrival.estimate_after_ns),
        *((departure.earliest_ns, departure.width_ns, departure.estimate_after_ns) if departure else (0, _NO_WIDTH, 0)),
        (_FLAG_KERNEL_ARRIVAL if arrival.kernel else 0) | (_FLAG_KERNEL_DEPARTURE if left else 0),
    )


def _decode_record(fields: tuple[int, ...]) -> Record:
    sequence, arrival_ns, arrival_width_ns, arrival_likely_ns, departure_ns, width_ns, likely_ns, flags = fields
    if flags > _FLAG_KERNEL_ARRIVAL | _FLAG_KERNEL_DEPARTURE:
        raise DecodeError(f"a record has no flags beyond 3, found {flags}")
    departure = None
    if width_ns != _NO_WIDTH:
        departure = _decode_stamp(departure_ns, width_ns, likely_ns, kernel=bool(flags & _FLAG_KERNEL_DEPARTURE))
    elif departure_ns or likely_ns or flags & _FLAG_KERNEL_DEPARTURE:
        raise DecodeError("a reply that has not left has no departure")
    kernel = bool(flags & _FLAG_KERNEL_ARRIVAL)
    arrival = _decode_stamp(arrival_ns, arrival_width_ns, arrival_likely_ns, kernel=kernel)
    return Record(sequence=sequence, arrival=arrival, departure=departure)


def _decode_stamp(earliest_ns: int, width_ns: int, estimate_after_ns: int, *, kernel: bool) -> WireStamp:
    if not estimate_after_ns <= width_ns <= MAX_WIDTH_NS:
        raise DecodeError(f"a stamp's likely instant lies within its width, found {estimate_after_ns} of {width_ns}")
    return WireStamp(earliest_ns=earliest_ns, width_ns=width_ns, estimate_after_ns=estimate_after_ns, kernel=kernel)
