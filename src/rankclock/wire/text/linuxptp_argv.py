"""What command lines of ptp4l and phc2sys tell these programs to do, by their own way of reading options (getopt).

Decides which clock a line makes a program steer, as far as the line and given settings say. Reads no file: the settings
of a configuration file are handed in. Letters are those of linuxptp 3.1.1 to 4.4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = [
    "LETTERS",
    "Given",
    "Phc2sysOptions",
    "Ptp4lOptions",
    "global_section",
    "phc2sys_options",
    "ptp4l_settings",
    "read_options",
]

LETTERS = {
    "ptp4l": ("AEP246HSLsmqvh", "fipl"),
    "phc2sys": ("arwxmqvh", "cdfsEPISFRNOLMiulntz"),
    "ts2phc": ("hmqv", "cfils"),
}
"""By program: letters that stand alone, letters that take a value (getopt strings of 3.1.1)."""

_SERVOS_THAT_ONLY_TELL = ("ntpshm", "refclock_sock", "nullf")
"""They hand the offset to chronyd, or hold still: the clock is left alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """One option as it was given. name: `-s` or `--domainNumber`; value: None where none was found."""

    name: str
    value: str | None = None

    @property
    def long(self) -> bool:
        """Whether it is a word, which names a setting of the configuration file."""
        return self.name.startswith("--")


def read_options(words: Sequence[str], valued: str) -> tuple[Given, ...]:
    """The options among `words` (without the program); `valued`: the letters that take a value."""
    found: list[Given] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word.partition("=")
            found.append(Given(name=name, value=value if equals else rest.pop(0) if rest else None))
        elif word.startswith("-") and len(word) > 1:
            letters = word[1:]
            while letters:
                letter, letters = letters[0], letters[1:]
                if letter in valued:
                    found.append(Given(name=f"-{letter}", value=letters or (rest.pop(0) if rest else None)))
                    break
                found.append(Given(name=f"-{letter}"))
    return tuple(found)


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


def global_section(text: str) -> dict[str, str]:
    """The settings of [global] in a ptp4l.conf, the last of each name."""
    values, section = {}, "global"
    for line in text.splitlines():
        words = line.strip()
        if words.startswith("["):
            section = words.strip("[]")
        elif words and not words.startswith("#") and section == "global":
            name, _, value = words.partition(" ")
            values[name] = value.strip()
    return values


def _parse(argv: Sequence[str], program: str) -> tuple[dict[str, str], dict[str, int]]:
    """Options as (values by name, counts of flags): short ones by letter, long ones by word."""
    values: dict[str, str] = {}
    flags: dict[str, int] = {}
    valued = LETTERS[program][1]
    for given in read_options(argv[1:], valued):
        name = given.name.lstrip("-")
        if given.long or name in valued:
            values[name] = given.value or ""
        else:
            flags[name] = flags.get(name, 0) + 1
    return values, flags


def _number(text: str, otherwise: int) -> int:
    try:
        return int(text, 0)
    except ValueError:
        return otherwise


def ptp4l_settings(
    argv: Sequence[str], settings: Mapping[str, str] | None = None, unread: str | None = None
) -> Ptp4lOptions:
    """What a ptp4l was told. `settings`: [global] of its file, over which the command line wins, as in linuxptp."""
    values, flags = _parse(argv, "ptp4l")
    told = {**(settings or {}), **values}

    def on(*names: str) -> bool:
        return any(_number(told.get(name, "0"), 0) != 0 for name in names)

    stamping = told.get("time_stamping", "hardware")
    if "S" in flags:
        stamping = "software"
    elif "H" in flags or "L" in flags:
        stamping = "hardware"
    return Ptp4lOptions(
        domain=_number(told.get("domainNumber", "0"), 0),
        sdo=_number(told.get("transportSpecific", "0"), 0),
        sockets=tuple(told[name] for name in ("uds_ro_address", "uds_address") if told.get(name)),
        software=stamping == "software",
        client_only="s" in flags or on("slaveOnly", "clientOnly"),
        server_only=on("masterOnly", "serverOnly"),
        free_running=on("free_running"),
        servo=told.get("clock_servo", "pi"),
        unread=unread,
    )


def phc2sys_options(argv: Sequence[str]) -> Phc2sysOptions:
    """What a phc2sys was told. The sink is CLOCK_REALTIME where none is given (phc2sys.8)."""
    values, flags = _parse(argv, "phc2sys")
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
