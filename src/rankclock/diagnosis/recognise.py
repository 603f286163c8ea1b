"""Lines to evidence: which tool printed what, on which host. One pass, each line taken by the first reader that knows
it.

Refuses nothing: a line that no reader knows is kept as unrecognised.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Sequence

from rankclock.cluster.facts import FACTS_SCHEMA, Facts
from rankclock.diagnosis.evidence import Evidence, Item, Quote, Series
from rankclock.diagnosis.notes import Comment, DateReading, Measured, Metric, date_hosts, date_line
from rankclock.errors import DecodeError
from rankclock.timebase import ClockState
from rankclock.wire.clock_record import SCHEMA as CLOCK_SCHEMA
from rankclock.wire.clock_record import decode_file
from rankclock.wire.text import (
    chronyc,
    daemons,
    kernel_clock,
    linuxptp,
    ntpq,
    packets,
    pmc,
    services,
    timedatectl,
    training,
)
from rankclock.wire.text.config_text import read_command, read_directive
from rankclock.wire.text.ethtool import read_timestamping
from rankclock.wire.text.event import EventTable
from rankclock.wire.text.gpsd import read_gps
from rankclock.wire.text.line import Line, prompt_of
from rankclock.wire.text.linuxptp import sample_of

__all__ = ["Recogniser"]

HEADER = 400
"""Characters in which a clock record names its schema."""

Block = Callable[[Sequence[Line], int], tuple[object, int] | None]

_BLOCKS: tuple[tuple[str, Block], ...] = (
    ("chronyc tracking", chronyc.read_tracking),
    ("chronyc activity", chronyc.read_activity),
    ("timedatectl", timedatectl.read_timedatectl),
    ("timedatectl timesync-status", timedatectl.read_timesync),
    ("unit state", timedatectl.read_unit),
    ("ethtool -T", read_timestamping),
    ("ntpq rv", ntpq.read_variables),
    ("kernel clock", kernel_clock.read_kernel_clock),
    ("PTP data set", pmc.read_dataset),
)
_ROWS: tuple[tuple[str, Callable[[Line], object | None]], ...] = (
    ("chronyc sources", chronyc.read_source),
    ("chronyc sourcestats", chronyc.read_sourcestats),
    ("packet capture", packets.read_packet),
    ("gpsd JSON", read_gps),
)
_LINUXPTP = ("linuxptp log", linuxptp.EVENTS)
_DAEMONS = ("time daemon log", daemons.EVENTS)
_KERNEL = ("kernel log", kernel_clock.EVENTS)
_SERVICES = ("service message", services.EVENTS)
_TRAINING = ("training log", training.EVENTS)
_NETWORK = ("network test", packets.EVENTS)
_TABLES = (_SERVICES, _TRAINING, _LINUXPTP, _DAEMONS, _KERNEL, _NETWORK)
_FIRST_FOR = {
    **dict.fromkeys(("ptp4l", "phc2sys", "ts2phc", "timemaster"), _LINUXPTP),
    **dict.fromkeys(("chronyd", "ntpd", "ntpdate", "systemd-timesyncd", "systemd"), _DAEMONS),
    "kernel": _KERNEL,
}
_HEADS = (
    "MS Name/IP",
    "Name/IP Address",
    "210 Number of sources",
    ".-- Source mode",
    "/ .- Source state",
    "| /  ",
    "||  ",
    "====",
    "---",
)
"""Lines of tables and separators that say nothing of their own."""

EVENTS_OF_A_KIND = 2_000
"""More of one message add nothing to a finding: they are counted only."""

PLAIN_DAEMON_ARGUMENTS = {"ptp4l", "phc2sys", "ts2phc", "chronyd", "ntpd", "timemaster", "date"}


class Recogniser:
    """Feeds lines of one or several sources into one Evidence."""

    def __init__(self) -> None:
        self.evidence = Evidence()
        self._series: dict[tuple[str, str, str, str], Series] = {}
        self._source = ""
        self._host = ""
        self._section = ""
        self._dates: deque[str] = deque()

    def start(self, source: str) -> None:
        """A new file begins."""
        self._source, self._host, self._section = source, "", ""
        self._dates.clear()
        self.evidence.sources.append(source)

    def document(self, text: str) -> bool:
        """Take a whole JSON document of our own formats. False: it is none, read it as lines."""
        head = text.lstrip()[:1]
        if head not in ("{", "["):
            return False
        if CLOCK_SCHEMA in text[:HEADER]:
            return self._clock_records(text)
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return False
        whole = Line(number=0, text="", body="")
        found = [self._object(one, whole) for one in (value if isinstance(value, list) else [value])]
        return bool(found) and all(found)

    def _clock_records(self, text: str) -> bool:
        """The history of a rank's clock, a header and its lines."""
        try:
            records = decode_file(text)
        except DecodeError:
            return False
        for record in records:
            self._keep("clock record", record, Line(number=0, text="", body=""), host=record.header.host)
        return True

    def _object(self, value: object, line: Line) -> bool:
        """One object with a schema of ours: facts, a clock state, a measured offset."""
        if not isinstance(value, dict):
            return False
        try:
            match value.get("schema"):
                case schema if schema == FACTS_SCHEMA:
                    facts = Facts.from_json(value)
                    self._keep("facts", facts, line, host=facts.node)
                case "rankclock-status/1":
                    state = ClockState.from_json(value)
                    self._keep("clock state", state, line, host=state.node)
                case "rankclock-measured/1":
                    self._measured(value, line)
                case _:
                    return False
        except (DecodeError, KeyError, ValueError, TypeError):
            return False
        return True

    def _measured(self, value: dict[str, object], line: Line) -> None:
        offset = value["offset"]
        if not isinstance(offset, dict) or not all(
            isinstance(offset.get(k), int) for k in ("lo_ns", "hi_ns", "estimate_ns")
        ):
            raise DecodeError("a measured offset has its bounds")
        at = value.get("at_real_ns")
        measured = Measured(
            node=str(value["node"]),
            peer=str(value["peer"]),
            lo_ns=offset["lo_ns"],
            hi_ns=offset["hi_ns"],
            estimate_ns=offset["estimate_ns"],
            at_real_ns=at if isinstance(at, int) else None,
        )
        self._keep("measured offset", measured, line, host=measured.node)

    def series(self, program: str, host: str, clock: str) -> Series:
        """The series of one clock, begun where it is new."""
        key = (self._source, host, program, clock)
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = Series(source=self._source, host=host, program=program, clock=clock)
            self.evidence.series.append(series)
        return series

    def lines(self, lines: Sequence[Line]) -> None:
        """Take the lines of a source."""
        self.evidence.kept_lines.update({(self._source, line.number): line.text for line in lines})
        at = 0
        while at < len(lines):
            at = self._take(lines, at)

    def _take(self, lines: Sequence[Line], at: int) -> int:
        """Take the line at this place, and those behind it that belong to it; the place behind them."""
        line = lines[at]
        text = line.text.strip()
        if not text or (text[0] == "{" and self._json_line(line)):
            return at + 1
        if (found := sample_of(line)) is not None:
            self.series(line.program, line.host or self._host, found[0]).add(found[1], line.text)
            return at + 1
        if self._command(line):
            # A SET of pmc carries a whole data set, over several lines where backslashes continue it.
            settings = pmc.read_dataset(lines, at) if "SET " in text else None
            if settings is not None:
                self._keep("PTP data set", settings[0], line, last=lines[settings[1] - 1].number)
            return at + 1 if settings is None else settings[1]
        if (behind := self._block(lines, at)) is not None:
            return max(behind, at + 1)
        if not self._one_line(line, text) and not text.startswith(_HEADS):
            self.evidence.unrecognised.append(Quote(source=self._source, line=line.number, text=line.text))
        return at + 1

    def _json_line(self, line: Line) -> bool:
        if '"schema"' not in line.text:
            return False
        try:
            return self._object(json.loads(line.text), line)
        except (ValueError, RecursionError):
            return False

    def _command(self, line: Line) -> bool:
        prompt = prompt_of(line.text)
        comment = line.text.lstrip().startswith("#")
        if prompt and not comment:
            self._host = prompt[0] or self._host
            self._section = ""
            self._dates.clear()
        command = read_command(line)
        if command is not None and comment and command.program in PLAIN_DAEMON_ARGUMENTS:
            first = command.arguments[:1]
            command = command if not first or first[0].startswith(("-", "+")) else None
        if prompt and (command is None or command.program == "date"):
            self._dates = deque(date_hosts(prompt[1], prompt[0] or self._host))
        if command is not None:
            self._keep("command line", command, line, host=command.host)
            self._event(line, only=(_SERVICES,))
            return True
        if prompt and not comment and prompt[1]:
            self._event(line)
            return True
        return bool(prompt) and not comment

    def _block(self, lines: Sequence[Line], at: int) -> int | None:
        for kind, reader in _BLOCKS:
            if self._section and kind == "PTP data set" and not lines[at].text.startswith(("\t", "sending")):
                continue  # in a configuration file the same names are settings
            found = reader(lines, at)
            if found is not None:
                self._keep(kind, found[0], lines[at], last=lines[found[1] - 1].number)
                return found[1]
        peers = ntpq.read_peers(lines, at)
        if peers is not None:
            for peer, row in peers[0]:
                self._keep("ntpq peers", peer, row)
            return peers[1]
        for kind, read in _ROWS:
            value = read(lines[at])
            if value is not None:
                self._keep(kind, value, lines[at])
                return at + 1
        return None

    def _one_line(self, line: Line, text: str) -> bool:
        if self._event(line):
            return True
        kind, value, host = self._reading(line)
        if value is not None:
            self._keep(kind, value, line, host=host)
            return True
        directive, section = read_directive(line, self._section)
        in_new_section = section != self._section
        self._section = section
        step = None if directive is not None else training.read_rank_step(line)
        if directive is not None:
            self._keep("configuration", directive, line)
        elif step is not None:
            self._keep("step of a rank", step, line)
        elif text[0] in "#;!":
            self._keep("comment", Comment(text=text.lstrip("#;! ")), line)
        else:
            return in_new_section
        return True

    def _reading(self, line: Line) -> tuple[str, object | None, str]:
        """A metric, or a reading of `date` and the host that printed it."""
        metric = services.metric_of(line.text)
        if metric is not None:
            return "metric", Metric(name=metric[0], labels=metric[1], value=metric[2]), ""
        moment = date_line(line.body)
        if moment is None:
            return "", None, ""
        host = line.host or (self._dates.popleft() if self._dates else "")
        return "date", DateReading(host=host, moment=moment), host

    def _event(self, line: Line, only: Sequence[tuple[str, EventTable]] = ()) -> bool:
        first = _FIRST_FOR.get(line.program)
        tables = [first, *(table for table in _TABLES if table is not first)] if first else list(_TABLES)
        for table in tables:
            if table is None or (only and table not in only):
                continue
            event = table[1].match(line)
            if event is not None:
                count = self.evidence.event_counts.get(event.kind, 0) + 1
                self.evidence.event_counts[event.kind] = count
                if count <= EVENTS_OF_A_KIND:
                    self._keep(table[0], event, line)
                return True
        return False

    def _keep(self, kind: str, value: object, line: Line, *, last: int | None = None, host: str = "") -> None:
        self.evidence.items.append(
            Item(
                kind=kind,
                value=value,
                source=self._source,
                first=line.number,
                last=line.number if last is None else last,
                text=line.text,
                host=host or line.host or self._host,
            )
        )
