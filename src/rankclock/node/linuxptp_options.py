"""What a running ptp4l or phc2sys was told to do: its command line and the [global] part of its configuration file.

Reads only what matters for who steers which clock and where the daemon listens. The command line wins over the file, as
in linuxptp. A file that may not be read leaves `unread` set: then what it would have said is unknown, not default.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rankclock.node.fact import read_text, why_not

__all__ = ["Phc2sysOptions", "Ptp4lOptions", "phc2sys_options", "ptp4l_options"]

# Letters that take a value (getopt strings of ptp4l.c and phc2sys.c, 3.1.1 to 4.4).
_PTP4L_VALUED = "fipl"
_PHC2SYS_VALUED = "cdfsEPISFRNOLMiulntz"


_SERVOS_THAT_ONLY_TELL = ("ntpshm", "refclock_sock", "nullf")
"""They hand the offset to chronyd, or hold still: the clock is left alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ptp4lOptions:
    """sdo: transportSpecific. sockets: where it may be asked, read-only one first. unread: why the file is unknown."""

    domain: int = 0
    sdo: int = 0
    sockets: tuple[str, ...] = ()
    software: bool = False
    client_only: bool = False
    server_only: bool = False
    free_running: bool = False
    servo: str = "pi"
    unread: str | None = None

    @property
    def never_steers_realtime(self) -> str | None:
        """Why this ptp4l leaves CLOCK_REALTIME alone whatever it hears, None where it may steer it."""
        if not self.software:
            return "stamps in hardware: it steers the PHC"
        if self.free_running:
            return "free_running"
        if self.servo in _SERVOS_THAT_ONLY_TELL:
            return f"clock_servo {self.servo}"
        return "serves only" if self.server_only else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Phc2sysOptions:
    """automatic: -a, the PHC of ptp4l's client port is the source. source, sink: -s, -c. realtime_sink: it steers
    CLOCK_REALTIME (with `realtime_may_lead`, -rr: only while a port is a client). domain: -n. offset_s: -O, None where
    it follows ptp4l or nothing was said. sockets: -z, where ptp4l is asked; empty for linuxptp's own places.
    """

    automatic: bool
    source: str
    sink: str
    realtime_sink: bool
    realtime_may_lead: bool
    domain: int
    offset_s: int | None
    sockets: tuple[str, ...] = ()


def _parse(argv: Sequence[str], valued: str) -> tuple[dict[str, str], dict[str, int]]:
    """Options as (values by name, counts of flags): short ones by letter, long ones by word."""
    values: dict[str, str] = {}
    flags: dict[str, int] = {}
    rest = list(argv[1:])
    while rest:
        word = rest.pop(0)
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            values[name] = value if equals else rest.pop(0) if rest else ""
        elif word.startswith("-"):
            letters = word[1:]
            while letters:
                letter, letters = letters[0], letters[1:]
                if letter in valued:
                    values[letter] = letters or (rest.pop(0) if rest else "")
                    break
                flags[letter] = flags.get(letter, 0) + 1
    return values, flags


def _global_section(text: str) -> dict[str, str]:
    values, section = {}, "global"
    for line in text.splitlines():
        words = line.strip()
        if words.startswith("["):
            section = words.strip("[]")
        elif words and not words.startswith("#") and section == "global":
            name, _, value = words.partition(" ")
            values[name] = value.strip()
    return values


def _file(path: str | None) -> tuple[dict[str, str], str | None]:
    if path is None:
        return {}, None
    try:
        return _global_section(read_text(path)), None
    except OSError as error:
        return {}, f"{path}: {why_not(error)}"


def _number(text: str, otherwise: int) -> int:
    try:
        return int(text, 0)
    except ValueError:
        return otherwise


def ptp4l_options(argv: Sequence[str]) -> Ptp4lOptions:
    """The options of a running ptp4l."""
    values, flags = _parse(argv, _PTP4L_VALUED)
    settings, unread = _file(values.get("f"))
    settings.update(values)

    def on(*names: str) -> bool:
        return any(_number(settings.get(name, "0"), 0) != 0 for name in names)

    sockets = [settings[name] for name in ("uds_ro_address", "uds_address") if settings.get(name)]
    stamping = settings.get("time_stamping", "hardware")
    if "S" in flags:
        stamping = "software"
    elif "H" in flags or "L" in flags:
        stamping = "hardware"
    return Ptp4lOptions(
        domain=_number(settings.get("domainNumber", "0"), 0),
        sdo=_number(settings.get("transportSpecific", "0"), 0),
        sockets=tuple(sockets),
        software=stamping == "software",
        client_only="s" in flags or on("slaveOnly", "clientOnly"),
        server_only=on("masterOnly", "serverOnly"),
        free_running=on("free_running"),
        servo=settings.get("clock_servo", "pi"),
        unread=unread,
    )


def phc2sys_options(argv: Sequence[str]) -> Phc2sysOptions:
    """The options of a running phc2sys. The sink is CLOCK_REALTIME where none is given (phc2sys.8)."""
    values, flags = _parse(argv, _PHC2SYS_VALUED)
    automatic = "a" in flags
    source, sink = values.get("s", ""), values.get("c", "" if automatic else "CLOCK_REALTIME")
    steers = bool(flags.get("r")) if automatic else sink == "CLOCK_REALTIME" and source != sink
    return Phc2sysOptions(
        automatic=automatic,
        source=source,
        sink=sink,
        realtime_sink=steers and values.get("E", "pi") not in _SERVOS_THAT_ONLY_TELL,
        realtime_may_lead=automatic and flags.get("r", 0) > 1,
        domain=_number(values.get("n", "0"), 0),
        offset_s=_number(values["O"], 0) if "O" in values else None,
        sockets=(values["z"],) if values.get("z") else (),
    )
