"""systemd units that work on Debian 12, and which services must not run beside them.

Debian 12's phc2sys@.service requires a ptp4l.service that does not exist, and its ptp4l@.service takes one interface:
so ours stand beside under names of their own. Exactly one program owns CLOCK_REALTIME: every other is masked.
"""

from __future__ import annotations

from rankclock.configs.options import ConfigLine
from rankclock.planning.model import NodeRole, Owner, Role, Scheme
from rankclock.timebase import TAI_MINUS_UTC_2017_S

__all__ = [
    "CHRONY_DROP_IN",
    "GPSD_DROP_IN",
    "GPSD_UNIT",
    "NTPSEC_DROP_IN",
    "NTPSEC_UNIT",
    "PHC2SYS_UNIT",
    "PTP4L_UNIT",
    "TIMEMASTER_UNIT",
    "TS2PHC_UNIT",
    "clock_class_unit",
    "gpsd_drop_in",
    "masked_services",
    "ntp_drop_in",
    "phc2sys_unit",
    "ptp4l_unit",
    "ts2phc_unit",
]

UNITS = "/etc/systemd/system"
CHRONY_UNIT = "chrony.service"
PTP4L_UNIT = "rankclock-ptp4l.service"
PHC2SYS_UNIT = "rankclock-phc2sys.service"
CHRONY_DROP_IN = f"{UNITS}/{CHRONY_UNIT}.d/rankclock.conf"

NTPSEC_UNIT = "ntpsec.service"
TIMEMASTER_UNIT = "timemaster.service"
TS2PHC_UNIT = "rankclock-ts2phc.service"
GPSD_UNIT = "gpsd.service"
NTPSEC_DROP_IN = f"{UNITS}/{NTPSEC_UNIT}.d/rankclock.conf"
GPSD_DROP_IN = f"{UNITS}/{GPSD_UNIT}.d/rankclock.conf"

_OTHER_OWNERS = ("systemd-timesyncd.service", "ntp.service", NTPSEC_UNIT, "openntpd.service", TIMEMASTER_UNIT)
_MASTERS = (Role.GRANDMASTER, Role.BACKUP_GRANDMASTER)


def masked_services(role: NodeRole, *, timemaster: bool = False) -> tuple[str, ...]:
    """Services that a deployment masks on the node: they would steer the same clock, or take the same ports.

    timemaster: it starts chronyd itself, so the distribution's own unit of chronyd must not run.
    """
    packaged = [f"{daemon}@{_instance(port.nic)}.service" for port in role.ports for daemon in ("ptp4l", "phc2sys")]
    chrony = () if role.owner is Owner.CHRONYD and not timemaster else (CHRONY_UNIT,)
    others = (unit for unit in _others_than(role) if not (timemaster and unit == TIMEMASTER_UNIT))
    return (*others, *chrony, *packaged)


def _others_than(role: NodeRole) -> tuple[str, ...]:
    own = NTPSEC_UNIT if role.owner is Owner.NTPD else None
    return tuple(unit for unit in _OTHER_OWNERS if unit != own)


def _instance(nic: str) -> str:
    """The name of a NIC as an instance of a unit: systemd turns a plain '-' back into '/'."""
    return nic.replace("-", "\\x2d")


def ntp_drop_in(role: NodeRole) -> tuple[ConfigLine, ...]:
    """Beside the distribution's unit of chronyd or ntpd: nothing else steers the clock while it runs; it comes back."""
    others = " ".join((*_others_than(role), *((CHRONY_UNIT,) if role.owner is Owner.NTPD else ())))
    return (
        ConfigLine(text="[Unit]"),
        ConfigLine(text=f"Conflicts={others}", why="one owner of CLOCK_REALTIME: these stop when this one starts"),
        ConfigLine(text=""),
        ConfigLine(text="[Service]"),
        ConfigLine(text="Restart=on-failure", why="a clock without its daemon drifts unseen"),
        ConfigLine(text="RestartSec=2", why="no busy loop while something lasting is wrong"),
    )


def gpsd_drop_in() -> tuple[ConfigLine, ...]:
    """Beside the distribution's gpsd.service."""
    return (
        ConfigLine(text="[Unit]"),
        ConfigLine(text=f"After={CHRONY_UNIT}", why="chronyd makes what gpsd writes into"),
        ConfigLine(text=f"Wants={CHRONY_UNIT}"),
        ConfigLine(text=""),
        ConfigLine(text="[Service]"),
        ConfigLine(text="Restart=on-failure", why="without its sentences the pulses have no number"),
        ConfigLine(text="RestartSec=2", why="no busy loop while something lasting is wrong"),
        ConfigLine(text=""),
        ConfigLine(text="[Install]"),
        ConfigLine(text="WantedBy=multi-user.target", why="at boot, not when somebody asks"),
    )


def ts2phc_unit(role: NodeRole, command: str) -> tuple[ConfigLine, ...]:
    """The unit that runs ts2phc with its rendered file."""
    return _unit(
        description=f"PHC of {role.node} by the receiver's pulse (rankclock)",
        after="network-online.target",
        wants="network-online.target",
        conflicts=["timemaster.service", GPSD_UNIT],
        command=command,
        capabilities="CAP_SYS_TIME",
    )


def clock_class_unit(role: NodeRole, command: str) -> tuple[ConfigLine, ...]:
    """The unit that tells ptp4l, and so every client, how good this grandmaster is right now."""
    return _unit(
        description=f"PTP clock class of {role.node} by its receiver (rankclock)",
        after=PTP4L_UNIT,
        wants=f"{PTP4L_UNIT} {CHRONY_UNIT}",
        conflicts=[],
        command=command,
        capabilities="",
    )


def ptp4l_unit(role: NodeRole, command: str) -> tuple[ConfigLine, ...]:
    """The unit that runs ptp4l with its rendered file."""
    conflicts = ["timemaster.service", *(f"ptp4l@{_instance(port.nic)}.service" for port in role.ports)]
    after = "network-online.target" + (f" {CHRONY_UNIT}" if role.role in _MASTERS else "")
    owns = role.owner is Owner.PTP4L
    if owns:
        conflicts += [CHRONY_UNIT, *_OTHER_OWNERS]
    return _unit(
        before=_phc_from_system_clock(role),
        description=f"PTP {role.role.value.replace('-', ' ')} of {role.node} (rankclock)",
        after=after,
        wants="network-online.target",
        conflicts=conflicts,
        command=command,
        capabilities="CAP_NET_ADMIN CAP_NET_RAW CAP_NET_BIND_SERVICE CAP_SYS_TIME",
    )


def _phc_from_system_clock(role: NodeRole) -> tuple[ConfigLine, ...]:
    """A boundary clock's PHCs get the system clock's time (as TAI) before it starts."""
    if role.role is not Role.BOUNDARY_CLOCK or role.stamps is not Scheme.PTP_HARDWARE:
        return ()
    why = (
        "until it hears a grandmaster this clock leads its rack: by the system clock's time, not by what the NIC woke "
        "up with (all machines may start at once, after a power cut); '-': it starts without, too"
    )
    nics = {port.phc_index if port.phc_index is not None else port.nic: port.nic for port in reversed(role.ports)}
    command = "ExecStartPre=-/usr/sbin/phc_ctl {} set adj {}"
    return tuple(ConfigLine(text=command.format(nic, TAI_MINUS_UTC_2017_S), why=why) for nic in reversed(nics.values()))


def phc2sys_unit(role: NodeRole, command: str) -> tuple[ConfigLine, ...]:
    """The unit that runs phc2sys with its rendered flags."""
    conflicts = ["timemaster.service", *(f"phc2sys@{_instance(port.nic)}.service" for port in role.ports)]
    if role.owner is Owner.PHC2SYS:
        conflicts += [CHRONY_UNIT, *_OTHER_OWNERS]
    return _unit(
        description=f"PHC and system clock of {role.node} (rankclock)",
        after=CHRONY_UNIT if role.role in _MASTERS else PTP4L_UNIT,
        wants=CHRONY_UNIT if role.role in _MASTERS else PTP4L_UNIT,
        conflicts=conflicts,
        command=command,
        capabilities="CAP_SYS_TIME",
    )


def _unit(
    *,
    before: tuple[ConfigLine, ...] = (),
    description: str,
    after: str,
    wants: str,
    conflicts: list[str],
    command: str,
    capabilities: str,
) -> tuple[ConfigLine, ...]:
    text = f"Conflicts={' '.join(dict.fromkeys(conflicts))}"
    why = "would steer the same clock or take the same ports"
    conflicting = (ConfigLine(text=text, why=why),) if conflicts else ()
    return (
        ConfigLine(text="[Unit]"),
        ConfigLine(text=f"Description={description}"),
        ConfigLine(text=f"After={after}", why="what it needs is up first"),
        ConfigLine(text=f"Wants={wants}", why="started along; Requires would take this one down with it"),
        *conflicting,
        ConfigLine(text="StartLimitIntervalSec=0", why="tries for ever: a NIC that comes back is used again"),
        ConfigLine(text=""),
        ConfigLine(text="[Service]"),
        ConfigLine(text="Type=simple"),
        *before,
        ConfigLine(text=f"ExecStart={command}", why="in the foreground, as it was tried"),
        ConfigLine(text="Restart=always", why="a clock without its daemon drifts unseen"),
        ConfigLine(text="RestartSec=1"),
        ConfigLine(text=f"CapabilityBoundingSet={capabilities}", why="what it needs of root, and no more"),
        ConfigLine(text="NoNewPrivileges=yes"),
        ConfigLine(text="ProtectHome=yes"),
        ConfigLine(text="PrivateTmp=yes"),
        ConfigLine(text=""),
        ConfigLine(text="[Install]"),
        ConfigLine(text="WantedBy=multi-user.target"),
    )
