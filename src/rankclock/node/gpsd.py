"""Asks a running gpsd what its receiver sees: fix, satellites, pulses. Watches for a moment; changes nothing.

gpsd speaks once a second, so a reading takes up to its timeout. Nothing of it is a bound on any clock: a sentence
(TOFF) comes 10 to 700 ms late over a serial line, a pulse (PPS) is as good as its wiring; whoever uses the receiver
(chronyd, ts2phc) judges that. A time from gpsd may be wrong by seconds until leap seconds are known.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from rankclock.errors import PeerError
from rankclock.node.fact import Fact, why_not
from rankclock.node.processes import ProcessTable
from rankclock.wire.text.gpsd import GpsReport, read_gps
from rankclock.wire.text.line import Line

__all__ = ["GPSD_PORT", "GpsdReading", "GpsdReceiver", "gps_fact", "port_of", "read_gpsd"]

GPSD_PORT = 2947
MAX_LINE = 65_536
"""gpsd's own limit is 10,240 characters; what has no line end for longer is no gpsd."""

MAX_RECEIVERS = 8
_WATCH = b'?WATCH={"enable":true,"json":true,"pps":true};\n'
_NO_FIX = (0, 1)
_ENOUGH = ("TPV", "SKY")
_LINGER_S = 0.2
"""How long a pulse or an offset of the same second may come after its fix."""


@dataclass(slots=True, kw_only=True)
class GpsdReceiver:
    """The last report of each kind of one device: TPV (fix), SKY (satellites), PPS (pulse), TOFF (sentence)."""

    device: str
    reports: dict[str, GpsReport] = field(default_factory=dict)

    @property
    def mode(self) -> int | None:
        """0 or 1 no fix, 2 a fix in two dimensions, 3 in three; None where no report came."""
        report = self.reports.get("TPV")
        return report.mode if report else None

    @property
    def used(self) -> int | None:
        """Satellites used in the fix, None where unsaid. Without a fix gpsd 3.22 goes on with its old count: 0."""
        if self.mode in _NO_FIX:
            return 0
        report = self.reports.get("SKY")
        return report.used if report else None

    @property
    def seen(self) -> int | None:
        """Satellites in view, None where gpsd did not say."""
        report = self.reports.get("SKY")
        return report.seen if report else None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpsdReading:
    """What gpsd said within the time it was given. receivers: those that it knows, with or without reports."""

    release: str
    receivers: tuple[GpsdReceiver, ...]


def port_of(argv: Sequence[str]) -> int:
    """Where a gpsd started with that command line listens."""
    for option, value in pairwise(argv):
        if option == "-S" and value.isdigit():
            return int(value)
    return GPSD_PORT


def gps_fact(table: ProcessTable) -> Fact:
    """The fact `gps`: the receivers of a gpsd that runs here."""
    source = "gpsd's JSON"
    running = table.running("gpsd")
    if not running:
        return Fact.unknown(table.blind_spot, source) if table.blind_spot else Fact.known({"receivers": []}, source)
    try:
        found = read_gpsd(("127.0.0.1", port_of(running[0].argv)))
    except PeerError as error:
        return Fact.unknown(str(error), source)
    names = {"device": "device", "mode": "mode", "satellites_used": "used", "satellites_seen": "seen"}
    receivers = [{name: getattr(one, field_) for name, field_ in names.items()} for one in found.receivers]
    silent = [one.device for one in found.receivers if one.mode is None]
    why = f"receivers: {', '.join(silent)} said nothing in time" if silent else None
    return Fact.known({"receivers": receivers}, source, why=why)


def read_gpsd(address: tuple[str, int] = ("127.0.0.1", GPSD_PORT), *, timeout_s: float = 1.5) -> GpsdReading:
    """One reading. Raises PeerError, one line, where nothing that is gpsd answers."""
    name = f"gpsd at {address[0]} port {address[1]}"
    deadline = time.monotonic() + timeout_s
    release, found = "", dict[str, GpsdReceiver]()
    try:
        with socket.create_connection(address, timeout=timeout_s) as link:
            link.sendall(_WATCH)
            for line in _lines(link, deadline):
                release = _take(line, found) or release
                complete = bool(found) and all(set(_ENOUGH) <= set(one.reports) for one in found.values())
                if complete:
                    deadline = min(deadline, time.monotonic() + _LINGER_S)
                if time.monotonic() >= deadline:
                    break
    except TimeoutError:
        pass
    except OSError as error:
        raise PeerError(f"{name} does not answer: {why_not(error)}") from None
    if not release:
        raise PeerError(f"{name} does not answer: no VERSION within {timeout_s:g} s")
    return GpsdReading(release=release, receivers=tuple(found.values()))


def _lines(link: socket.socket, deadline: float) -> Iterator[str]:
    """Lines until the deadline. Raises TimeoutError or OSError at the end."""
    rest = b""
    while True:
        remaining_s = deadline - time.monotonic()
        if remaining_s <= 0:
            return
        link.settimeout(remaining_s)
        data = link.recv(MAX_LINE)
        if not data:
            return
        *whole, rest = (rest + data).split(b"\n")
        if len(rest) > MAX_LINE:
            return
        for line in whole:
            yield line.decode("utf-8", "replace").strip()


def _take(line: str, found: dict[str, GpsdReceiver]) -> str | None:
    """Keeps what a line tells of a receiver; the release where it is the greeting."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):  # cut off: the next second brings another
        return None
    if not isinstance(value, dict):
        return None
    kind = value.get("class")
    if kind == "VERSION":
        return str(value.get("release", "?"))
    if kind == "DEVICES" and isinstance(value.get("devices"), list):
        for one in value["devices"]:
            if isinstance(one, dict) and isinstance(one.get("path"), str):
                _receiver(one["path"], found)
    report = read_gps(Line(number=1, text=line, body=line)) if kind in ("TPV", "SKY", "PPS", "TOFF") else None
    device = value.get("device")
    receiver = _receiver(device, found) if report and isinstance(device, str) else None
    if report and receiver:
        receiver.reports[report.kind] = _merged(receiver.reports.get(report.kind), report)
    return None


def _receiver(device: str, found: dict[str, GpsdReceiver]) -> GpsdReceiver | None:
    if device not in found and len(found) < MAX_RECEIVERS:
        found[device] = GpsdReceiver(device=device)
    return found.get(device)


def _merged(before: GpsReport | None, report: GpsReport) -> GpsReport:
    """A SKY without satellites (from gpsd 3.25 on there are several a second) does not hide one that has them."""
    return before if before is not None and report.kind == "SKY" and report.used is None else report
