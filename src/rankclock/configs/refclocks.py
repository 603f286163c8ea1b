"""Reference clocks of a node: what chronyd reads, what gpsd and ts2phc need, and the links to clocks by their names.

Never written: a PHC by its number (/dev/ptpN changes from boot to boot), a serial line that chronyd follows (it only
numbers the seconds of the pulse), a clock without the error that chronyd must add to its own bound.
"""

from __future__ import annotations

from rankclock.configs.options import ConfigLine, Place, Version
from rankclock.configs.options_chrony import directive
from rankclock.configs.options_linuxptp import PTP4L
from rankclock.planning.model import RefClock, RefClockKind

__all__ = [
    "GPSD_DEFAULTS",
    "PHC_LINKS",
    "TS2PHC_CONF",
    "UDEV_RULES",
    "gpsd_lines",
    "refclock_lines",
    "ts2phc_lines",
    "udev_lines",
]

GPSD_DEFAULTS = "/etc/default/gpsd"
TS2PHC_CONF = "/etc/linuxptp/ts2phc.conf"
UDEV_RULES = "/etc/udev/rules.d/80-rankclock-phc.rules"
LEAP_FILE = "/usr/share/zoneinfo/leap-seconds.list"

PHC_LINKS = {"/dev/ptp_ena": "ena-ptp-*", "/dev/ptp_kvm": "KVM virtual PTP", "/dev/ptp_hyperv": "hyperv"}
"""Links that we make, by the name that the clock's driver gives it."""

_CHRONY_SOCKETS = (3, 25)
"""The first gpsd that hands sentences to chronyd through a socket; before, there is shared memory."""

_SENTENCES_APART_S = 0.2
"""By how much a sentence may come early or late: it must stay below half a second to number the pulses."""


def refclock_lines(clocks: tuple[RefClock, ...], version: Version, gpsd: Version) -> tuple[ConfigLine, ...]:
    """chronyd's lines for a node's reference clocks. Raises UserError for what that release lacks."""
    lines: list[ConfigLine] = []
    for number, clock in enumerate(clocks):
        if clock.kind is RefClockKind.GPS:
            lines += _receiver(clock, number, version, gpsd)
        elif clock.kind is RefClockKind.PHC:
            lines.append(_provided(clock, version))
        else:
            lines.append(_fed_by_phc2sys(clock, version))
    return tuple(lines)


def _receiver(clock: RefClock, number: int, version: Version, gpsd: Version) -> list[ConfigLine]:
    refid = f"NME{number}"
    if gpsd >= _CHRONY_SOCKETS:
        driver = f"SOCK /run/chrony.clk.{clock.device.rpartition('/')[2]}.sock"
    else:
        driver = f"SHM {2 * number}"  # gpsd gives each device two units: sentences, then pulses
    sentences = f"{driver} refid {refid} offset {clock.delay_s:g} delay {_SENTENCES_APART_S:g} poll 3"
    why = f"{clock.name}: sentences come about {clock.delay_s:g} s after their second (measure: chronyc sourcestats)"
    if clock.pps is None:
        why += "; without a pulse it is good to tenths of a second"
        return [directive("refclock", sentences, version, why=why)]
    pulse = f"PPS {clock.pps} refid PPS{number} lock {refid} poll 2 precision 1e-7 prefer"
    why += "; they number the pulses, nobody follows them"
    why_pulse = f"{clock.name}: the pulse marks the second; the kernel stamps it"
    return [
        directive("refclock", f"{sentences} noselect", version, why=why),
        directive("refclock", pulse, version, why=why_pulse),
    ]


def _provided(clock: RefClock, version: Version) -> ConfigLine:
    apart_s = (clock.bound_ns or 1_000_000) / 1e9
    text = f"PHC {clock.device} refid PHC0 poll 2 dpoll -2 delay {2 * apart_s:g} prefer"
    why = (
        f"{clock.name}: in UTC already, so no offset; chronyd takes a PHC to be without error, and `delay` adds the "
        f"{apart_s:g} s by which it may be off to chronyd's own bound"
    )
    return directive("refclock", text, version, why=why)


def _fed_by_phc2sys(clock: RefClock, version: Version) -> ConfigLine:
    delay = f" delay {2 * clock.bound_ns / 1e9:.9f}" if clock.bound_ns is not None else ""
    text = f"SHM 0:perm=0600 refid PTP poll 0 dpoll -2 filter 4{delay} prefer"
    why = "phc2sys hands over the PHC's time here, as long as its reference is there: else this source falls silent"
    if delay:
        why += "; `delay` adds what the plan bounds the PHC's error by"
    return directive("refclock", text, version, why=why)


def gpsd_lines(clocks: tuple[RefClock, ...]) -> tuple[ConfigLine, ...]:
    """/etc/default/gpsd for the receivers that gpsd reads."""
    devices = " ".join(clock.device for clock in clocks if clock.kind is RefClockKind.GPS)
    rows = (
        (f'DEVICES="{devices}"', "the serial lines; chronyd reads the pulses from the kernel itself"),
        ('GPSD_OPTIONS="-n"', "reads from the start: without clients gpsd would leave the line alone"),
        ('USBAUTO="false"', "only these lines: nothing that somebody plugs in becomes a reference"),
        ('START_DAEMON="true"', "at boot, not when somebody asks"),
    )
    return tuple(ConfigLine(text=text, why=why) for text, why in rows)


def ts2phc_lines(clock: RefClock, version: Version) -> tuple[ConfigLine, ...]:
    """/etc/linuxptp/ts2phc.conf for a receiver whose pulse goes into a NIC. Raises UserError."""
    why_serial = f"{clock.name}: the sentences that number the pulses"
    lines = [
        ConfigLine(text="[global]"),
        PTP4L.line("use_syslog", 0, version, why="the journal gets standard output"),
        PTP4L.line("verbose", 1, version, why="the journal gets standard output"),
        PTP4L.line("leapfile", LEAP_FILE, version, why="the receiver says UTC, the PHC keeps TAI"),
        PTP4L.line("ts2phc.nmea_serialport", clock.device, version, why=why_serial),
    ]
    if clock.baud != 9600:
        lines.append(PTP4L.line("ts2phc.nmea_baudrate", clock.baud, version, why="as the receiver is set"))
    return (
        *lines,
        ConfigLine(text=""),
        ConfigLine(text=f"[{clock.nic}]", why="the NIC that the pulse goes into"),
        PTP4L.line("ts2phc.pin_index", clock.pin, version, why="its pin of the pulse", place=Place.PORT),
        PTP4L.line("ts2phc.channel", 0, version, why="its channel of external stamps", place=Place.PORT),
    )


def udev_lines(clocks: tuple[RefClock, ...]) -> tuple[ConfigLine, ...]:
    """A link for each provider's clock, by the name that its driver gives it."""
    return tuple(
        ConfigLine(
            text=f'SUBSYSTEM=="ptp", ATTR{{clock_name}}=="{PHC_LINKS[clock.device]}", '
            f'SYMLINK+="{clock.device.removeprefix("/dev/")}"',
            why="its number changes from boot to boot, its name does not",
        )
        for clock in clocks
        if clock.device in PHC_LINKS
    )
