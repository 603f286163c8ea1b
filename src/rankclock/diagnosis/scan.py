"""From bytes to lines worth reading, at journal size: one pass, memory bounded.

Up to `WHOLE` bytes every line is read. Beyond, a block of lines is first searched for literals one of which every
message that we know contains; lines without any are counted, not kept. Offsets of linuxptp, which can fill a log, are
taken apart by one pattern and go straight into their series. Messages that differ only in numbers are kept a hundred
times, then thinned.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache

import numpy as np
from numpy.typing import NDArray

from rankclock.diagnosis.evidence import Evidence
from rankclock.diagnosis.recognise import Recogniser
from rankclock.wire.text.line import Line, parse_line
from rankclock.wire.text.linuxptp import PtpSample

__all__ = ["read_sources"]

WHOLE = 1 << 20
"""Inputs up to 1 MiB are read line by line: a paste, a configuration, a day of one daemon."""

BLOCK = 1 << 19
LINES_KEPT = 60_000
SAME_KEPT = 100
SIGNATURES = 200_000
TABLE_LINES = 30
"""How many lines behind the head of a table are kept with it."""

TABLES = tuple(
    needle.encode()
    for needle in (
        "Reference ID  ", "Name/IP", "refid  ", "synchronized: ", "Time stamping parameters", "RESPONSE MANAGEMENT",
        "timesync-status", "ntp_gettime()", "maxerror", "packet loss", "System time  ", "Local time: ",
        "Active: active",
    )
)  # fmt: skip
NEEDLES = tuple(
    needle.encode()
    for needle in (
        "ptp4l", "phc2sys", "ts2phc", "chronyd", "ntpd", "timesyncd", "timemaster", "chrony.service",
        "clocksource", "TSC ", "ptp_kvm", "TimeSync IC", "Suspended for", "advancing clock", "PHC ",
        "lock difference", "lock skew", "lock-drift", "time drift", "too skewed", "lock synchronization",
        "in the future",
        "ERR_SKEW", "redential", "ENCODED", "DECODED", "CODE_TIME", "TimeTooSkewed", "request time",
        "Signature expired",
        "Signature not yet", "Request date header", "not yet valid", "not valid yet", "icket expired", "before issued",
        "JWTIssuedAtFuture", "still dirty", "recent input", "has expired", "rendezvous", "Rendezvous", "world_size",
        "checkpoint-", "collective operation timeout", "UNRESPONSIVE", "node_timex_", "NTPv", "PTPv", "DPT=",
        '"class":"', "rankclock-", "rtcsync", "makestep", "refclock", "no server suitable", "t synchronise",
        "RTC wrong",
        "HWTSTAMP", "portState", "master_offset", "time reset", "time server", "LOCAL(", "tx timestamp",
    )
)  # fmt: skip
"""One literal of every message that the readers know; those of time daemons by their program's name."""

_FAST = re.compile(
    rb"^(?:\w{3} [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)? (?P<host>\S+) |\d{4}-\d\d-\d\dT[\d:.,+Z-]+ (?P<host2>\S+) )?"
    rb"(?P<program>ptp4l|phc2sys|ts2phc)(?:\[(?P<a>\d+(?:\.\d+)?)\])?: (?:\[(?P<b>\d+\.\d+)\]:? )?(?:\[[^\]]*\] )?"
    rb"(?:(?P<clock>[A-Za-z_][\w./:-]*) )??(?:(?:master|phc|sys|pps|source) )?"
    rb"(?:offset +(?P<offset>-?\d{1,22}) s(?P<state>\d) freq +(?P<freq>[+-]?\d{1,12})"
    rb"(?: (?:path )?delay +(?P<delay>-?\d{1,20}))?"
    rb"|rms +(?P<rms>\d{1,22}) max +(?P<max>\d{1,22}) freq +(?P<freq2>[+-]?\d{1,12})"
    rb"(?: \+/- +\d+)?(?: delay +(?P<delay2>-?\d{1,20}))?)"
)
_NUMBERS = b"0123456789abcdef.:-+"
_COMMON = frozenset(b" etaoinsrhldcu0123456789-=:/.,")
_SHIFT = np.uint32(12)
_MULTIPLIER = np.uint32(2_654_435_761)


def read_sources(sources: Iterable[tuple[str, Iterable[bytes]]]) -> Evidence:
    """Read (name, chunks of bytes) pairs to their ends. Bytes that are no UTF-8 become replacement characters."""
    recogniser = Recogniser()
    for name, chunks in sources:
        recogniser.start(name)
        _read(recogniser, iter(chunks))
    return recogniser.evidence


def _read(recogniser: Recogniser, chunks: Iterator[bytes]) -> None:
    head = bytearray()
    for chunk in chunks:
        head += chunk
        if len(head) > WHOLE:
            _Scan(recogniser).run(bytes(head), chunks)
            return
    text = _decoded(bytes(head))
    if recogniser.document(text):
        recogniser.evidence.lines += text.count("\n") + 1
        return
    lines = [parse_line(number, one) for number, one in enumerate(text.split("\n"), 1)]
    recogniser.evidence.lines += len(lines)
    recogniser.lines(lines)


def _decoded(data: bytes) -> str:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", errors="replace")
    return data.decode("utf-8", errors="replace").replace("\x00", " ")


class _Scan:
    """One pass over one large source."""

    def __init__(self, recogniser: Recogniser) -> None:
        self.recogniser = recogniser
        self.number = 0
        self.samples = 0
        self.kept: list[Line] = []
        self.seen: dict[bytes, int] = {}
        self.table_until = 0

    def run(self, head: bytes, chunks: Iterator[bytes]) -> None:
        rest = b""
        for data in _blocks(head, chunks):
            block = rest + data
            cut = block.rfind(b"\n") + 1
            if not cut and len(block) < 4 * BLOCK:
                rest = block
                continue
            rest = block[cut:] if cut else b""
            self.block(block[:cut] if cut else block)
        self.block(rest)
        evidence = self.recogniser.evidence
        evidence.lines += self.number
        evidence.skipped += self.number - len(self.kept) - self.samples
        self.recogniser.lines(self.kept)

    def block(self, block: bytes) -> None:
        """Read one block of whole lines."""
        if not block:
            return
        data = np.frombuffer(block, dtype=np.uint8)
        ends = np.flatnonzero(data == 10)
        hits = np.unique(np.searchsorted(ends, _candidates(block)))
        bounds = ends.tolist()
        if not block.endswith(b"\n"):
            bounds.append(len(block))
        done = min(self.table_until - self.number, len(bounds))
        for index in range(done):
            self.keep(block[bounds[index - 1] + 1 if index else 0 : bounds[index]], self.number + index + 1)
        for index in hits.tolist():
            if index < done:
                continue
            start = bounds[index - 1] + 1 if index else 0
            if self.line(block[start : bounds[index]], self.number + index + 1):
                self.table_until = self.number + index + 1 + TABLE_LINES
                done = min(index + 1 + TABLE_LINES, len(bounds))
                for row in range(index + 1, done):
                    self.keep(block[bounds[row - 1] + 1 : bounds[row]], self.number + row + 1)
        self.number += len(bounds)

    def line(self, raw: bytes, number: int) -> bool:
        """Take one line that may be of interest. True: it is the head of a table, the lines behind it belong to it."""
        if (match := _FAST.match(raw)) is not None:
            self.samples += 1
            host = match["host"] or match["host2"] or b""
            series = self.recogniser.series(
                match["program"].decode(), host.decode(errors="replace"), (match["clock"] or b"").decode()
            )
            offset = match["offset"]
            series.offer(int(offset if offset is not None else match["max"]), lambda: _built(match, number, raw))
            return False
        signature = raw.translate(None, _NUMBERS)
        count = self.seen.get(signature, 0) + 1
        if len(self.seen) < SIGNATURES or count > 1:
            self.seen[signature] = count
        if count > SAME_KEPT and count & (count - 1):
            return False
        table = any(needle in raw for needle in TABLES)
        if table or any(needle in raw for needle in NEEDLES):
            self.keep(raw, number)
        return table

    def keep(self, raw: bytes, number: int) -> None:
        """Keep a line for the readers."""
        if len(self.kept) < LINES_KEPT:
            self.kept.append(parse_line(number, raw.decode("utf-8", errors="replace")))


def _blocks(head: bytes, chunks: Iterator[bytes]) -> Iterator[bytes]:
    for start in range(0, len(head), BLOCK):
        yield head[start : start + BLOCK]
    yield from chunks


@cache
def _grams() -> tuple[NDArray[np.bool_], tuple[int, ...]]:
    """Which hashes four bytes of a needle have: of each needle the four that common text holds least."""
    table = np.zeros(1 << 20, dtype=np.bool_)
    words = []
    for needle in (*NEEDLES, *TABLES):
        windows = [needle[at : at + 4] for at in range(len(needle) - 3)]
        words.append(int.from_bytes(min(windows, key=lambda w: sum(byte in _COMMON for byte in w)), "little"))
    table[(np.array(words, dtype=np.uint32) * _MULTIPLIER) >> _SHIFT] = True
    return table, tuple(words)


def _candidates(block: bytes) -> NDArray[np.int64]:
    """Positions at which four bytes may belong to a needle: all of the true ones, and a few others."""
    table, _ = _grams()
    found = []
    for shift in range(4):
        length = (len(block) - shift) // 4
        if length <= 0:
            continue
        words = np.frombuffer(block, dtype="<u4", count=length, offset=shift)
        found.append(np.flatnonzero(table[(words * _MULTIPLIER) >> _SHIFT]) * 4 + shift)
    return np.sort(np.concatenate(found)) if found else np.zeros(0, dtype=np.int64)


def _built(match: re.Match[bytes], number: int, raw: bytes) -> tuple[PtpSample, str]:
    part = match.groupdict()
    stamp = part["b"] or (part["a"] if part["a"] and b"." in part["a"] else None)
    single = part["offset"] is not None
    freq, delay = (part["freq"], part["delay"]) if single else (part["freq2"], part["delay2"])
    sample = PtpSample(
        line=number,
        t_ns=_stamp_ns(stamp) if stamp else None,
        offset_ns=int(part["offset"] if single else part["max"]),
        rms_ns=None if single else int(part["rms"]),
        state=int(part["state"]) if single else None,
        freq_ppb=int(freq) if freq else None,
        delay_ns=int(delay) if delay else None,
    )
    return sample, raw.decode("utf-8", errors="replace")


def _stamp_ns(stamp: bytes) -> int:
    seconds, _, fraction = stamp.partition(b".")
    return int(seconds[:12]) * 1_000_000_000 + int(fraction[:9].ljust(9, b"0"))
