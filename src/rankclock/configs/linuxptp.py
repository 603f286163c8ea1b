"""ptp4l.conf and the phc2sys command line of a node. Each line with its reason.

Traps that are kept out here, each found with the real daemons: jbod with software stamps or one shared PHC (the port
goes FAULTY for ever), slaveOnly on a boundary clock (its other ports only listen), a second steerer of a grandmaster's
PHC, phc2sys on another domain than ptp4l (it finds nothing and says nothing), -w on a node whose port never becomes
SLAVE, PTP-timescale claims with software stamps (clients 37 s off), comments behind values, port options misplaced.
"""

from __future__ import annotations

from rankclock.cluster.model import Cluster, DelayMechanism, Pace, PtpMessages, PtpProfile
from rankclock.configs.options import ConfigLine, Place, Table, Version
from rankclock.configs.options_linuxptp import PHC2SYS, PTP4L
from rankclock.errors import UserError
from rankclock.planning.model import NodeRole, Owner, PortSide, PtpPort, RefClock, RefClockKind, Role, Scheme
from rankclock.timebase import TAI_MINUS_UTC_2017_S

__all__ = ["CLOCK_CLASS_SERVICE", "PTP4L_CONF", "needs_jbod", "phc2sys_arguments", "ptp4l_lines", "pulse_into_nic"]

PTP4L_CONF = "/etc/linuxptp/ptp4l.conf"
CLOCK_CLASS_SERVICE = "rankclock-clock-class.service"

_INTERVALS = {Pace.NORMAL: (0, -3, -3), Pace.FAST: (-2, -3, -3)}
"""log2 seconds between announces, syncs, delay requests."""

_MASTERS = (Role.GRANDMASTER, Role.BACKUP_GRANDMASTER)

STEP_S = 0.01
"""Above it a PHC is set, below it is steered: nothing on a LAN delays a packet by 10 ms, so it is no bad sample."""

SYSTEM_STEP_S = 1.0
_WHY_SYSTEM_STEP = (
    "later only when it is more than 1 s off, as chrony's makestep: a clock that woke before its grandmaster was on a "
    "free-running PHC, and 37 s by slewing are minutes at a rate that is 10 % wrong"
)

_RATE_HZ = {Pace.NORMAL: 4, Pace.FAST: 8}

_SUMMARY_S = 16


def ptp4l_lines(role: NodeRole, cluster: Cluster, version: Version, *, has_sources: bool) -> tuple[ConfigLine, ...]:
    """The lines of /etc/linuxptp/ptp4l.conf. Raises UserError for what that release lacks."""
    lines = [ConfigLine(text="[global]")]
    lines += _stamps(role, version)
    lines += _network(cluster, version)
    lines += _security(cluster, version)
    lines += _rank(role, cluster, version, has_sources=has_sources)
    lines += _intervals(cluster, version)
    lines += _servo(role, cluster, version)
    lines += _logging(version)
    tables = tuple(dict.fromkeys(port.asks for port in role.ports if port.asks))
    for number, addresses in enumerate(tables, start=1):
        lines += _unicast_table(number, addresses, cluster)
    for port in role.ports:
        lines += [ConfigLine(text=""), ConfigLine(text=f"[{port.nic}]", why=f"segment {port.segment}")]
        lines += _port(role, port, cluster, version, tables)
    return tuple(lines)


def _port(
    role: NodeRole, port: PtpPort, cluster: Cluster, version: Version, tables: tuple[tuple[str, ...], ...]
) -> list[ConfigLine]:
    lines = []
    if port.side is PortSide.DOWN:
        name = "serverOnly" if PTP4L.has("serverOnly", version) else "masterOnly"
        why = "no grandmaster is on this side: the port serves, and never follows a stray clock from the rack"
        lines.append(PTP4L.line(name, 1, version, why=why, place=Place.PORT))
    if cluster.ptp.messages is PtpMessages.UNICAST:
        if port.asks:
            why = f"asks {', '.join(port.asks)} for announces and syncs, each for itself"
            number = tables.index(port.asks) + 1
            lines.append(PTP4L.line("unicast_master_table", number, version, why=why, place=Place.PORT))
        if role.role in _MASTERS or port.side is PortSide.DOWN:
            why = "grants what clients ask for; without it they hear nothing"
            lines.append(PTP4L.line("unicast_listen", 1, version, why=why, place=Place.PORT))
            why = "nobody listens to multicast here"
            lines.append(PTP4L.line("inhibit_multicast_service", 1, version, why=why, place=Place.PORT))
    return lines


def _unicast_table(number: int, addresses: tuple[str, ...], cluster: Cluster) -> list[ConfigLine]:
    kind = cluster.ptp.transport.value
    return [
        ConfigLine(text=""),
        ConfigLine(text="[unicast_master_table]", why="the clocks above, by address: the best of them is followed"),
        ConfigLine(text=f"table_id {number}"),
        ConfigLine(text="logQueryInterval 0", why="asks again every second while there is no answer"),
        *(ConfigLine(text=f"{kind} {address}") for address in addresses),
    ]


def needs_jbod(role: NodeRole) -> bool:
    """Whether the ports have clocks of their own, as seen on the node."""
    indexes = {port.phc_index for port in role.ports}
    return role.stamps is Scheme.PTP_HARDWARE and len(indexes) > 1 and None not in indexes


def _stamps(role: NodeRole, version: Version) -> list[ConfigLine]:
    if role.stamps is Scheme.PTP_HARDWARE:
        lines = [
            PTP4L.line("time_stamping", "hardware", version, why="the NIC stamps; ptp4l stops where it cannot"),
            PTP4L.line("tx_timestamp_timeout", 50, version, why="some NICs deliver transmit stamps after tens of ms"),
        ]
        if needs_jbod(role):
            why = "the ports have different PHCs; phc2sys keeps those together"
            lines.append(PTP4L.line("boundary_clock_jbod", 1, version, why=why))
        return lines
    why = "no NIC clock here: the kernel stamps, and ptp4l steers the system clock itself"
    return [PTP4L.line("time_stamping", "software", version, why=why)]


def _network(cluster: Cluster, version: Version) -> list[ConfigLine]:
    ptp = cluster.ptp
    lines = [
        PTP4L.line("network_transport", ptp.transport.value, version, why="the same on every node"),
        PTP4L.line(
            "delay_mechanism", ptp.delay_mechanism.value, version, why="the same on a whole path, or it stays at 0"
        ),
        PTP4L.line("domainNumber", ptp.domain, version, why="the same on every node, and for phc2sys"),
    ]
    if ptp.messages is not PtpMessages.MULTICAST:
        why = "a client asks its server alone for the delay: no flood of questions to all"
        lines.append(PTP4L.line("hybrid_e2e", 1, version, why=why))
    if ptp.profile is not PtpProfile.DEFAULT:
        why = f"profile {ptp.profile}: its own order of clocks"
        lines.append(PTP4L.line("dataset_comparison", "G.8275.x", version, why=why))
    if ptp.profile is PtpProfile.G8275_1:
        why = "the profile's address that no switch passes on: every hop is a clock"
        lines.append(PTP4L.line("ptp_dst_mac", "01:80:C2:00:00:0E", version, why=why))
    return lines


def _security(cluster: Cluster, version: Version) -> list[ConfigLine]:
    security = cluster.ptp.security
    if security is None:
        return []
    return [
        PTP4L.line("sa_file", security.sa_file, version, why="the keys are secrets and not in the plan"),
        PTP4L.line("spp", security.spp, version, why="the association of that file; the same on every node"),
        PTP4L.line("active_key_id", security.key, version, why="its key; change it on every node together"),
        PTP4L.line("allow_unauth", 0, version, why="a message without a right signature is not followed"),
    ]


def _rank(role: NodeRole, cluster: Cluster, version: Version, *, has_sources: bool) -> list[ConfigLine]:
    if role.role is Role.TRANSPARENT_CLOCK:
        kind = "P2P_TC" if cluster.ptp.delay_mechanism is DelayMechanism.P2P else "E2E_TC"
        why = "messages go through with the time that they spent here; it is no clock in the chain"
        lines = [PTP4L.line("clock_type", kind, version, why=why)]
        if role.stamps is Scheme.PTP_SOFTWARE:
            why = "chronyd owns the system clock: ptp4l only measures with it"
            lines.append(PTP4L.line("free_running", 1, version, why=why))
        return lines
    if role.role is Role.ORDINARY_CLOCK:
        name = "clientOnly" if PTP4L.has("clientOnly", version) else "slaveOnly"
        return [PTP4L.line(name, 1, version, why="never a grandmaster, whatever happens to the others")]
    lines = []
    if role.role in _MASTERS:
        lines += [
            PTP4L.line("priority1", _priority1(role, cluster), version, why=_WHY_PRIORITY1),
            PTP4L.line("priority2", role.priority2, version, why="then this order: the lower leads"),
            PTP4L.line("clockClass", 248, version, why=_why_class(role)),
            PTP4L.line("clockAccuracy", "0xFE", version, why="unknown: nobody measures it against UTC"),
            PTP4L.line(
                "timeSource", "0x50" if has_sources else "0xA0", version,
                why="NTP" if has_sources else "the machine's own crystal",
            ),
            PTP4L.line("free_running", 1, version, why=_why_free_running(role)),
        ]  # fmt: skip
        if role.stamps is Scheme.PTP_HARDWARE:
            why = f"the PHC keeps TAI, {TAI_MINUS_UTC_2017_S} s ahead of UTC since 2017; clients take it off again"
            lines.append(PTP4L.line("utc_offset", TAI_MINUS_UTC_2017_S, version, why=why))
        return lines
    why = "behind the grandmasters: leads its racks together only when all of them are gone"
    return [
        PTP4L.line("priority1", _priority1(role, cluster), version, why=why),
        PTP4L.line("priority2", role.priority2, version, why="the standard's default"),
    ]


_WHY_PRIORITY1 = "equal for all grandmasters: quality decides first"


def _priority1(role: NodeRole, cluster: Cluster) -> int | None:
    """The telecom profiles fix it at 128 and do not compare it."""
    return role.priority1 if cluster.ptp.profile is PtpProfile.DEFAULT else 128


def _why_class(role: NodeRole) -> str:
    kinds = {clock.kind for clock in role.refclocks}
    if RefClockKind.GPS in kinds:
        return f"at the start; {CLOCK_CLASS_SERVICE} says 6 while the receiver is followed, and takes it back"
    if RefClockKind.GPS_NIC in kinds:
        return "nothing tells here when the receiver is lost, so 6 is never claimed"
    return "fed by NTP; 6 is for a clock locked to a primary reference"


def _why_free_running(role: NodeRole) -> str:
    if pulse_into_nic(role) is not None:
        return "ts2phc steers this PHC by the receiver's pulse: ptp4l serves it and never steers it, as backup too"
    if role.stamps is Scheme.PTP_HARDWARE:
        return "phc2sys steers this PHC from the system clock: ptp4l serves it and never steers it, as backup too"
    return "chronyd owns the system clock: ptp4l serves it and never steers it, as backup too"


def _intervals_of(cluster: Cluster) -> tuple[int, int, int]:
    asked = (cluster.ptp.log_announce_interval, cluster.ptp.log_sync_interval, cluster.ptp.log_delay_interval)
    announce, sync, delay = (
        own if own is not None else pace for own, pace in zip(asked, _INTERVALS[cluster.pace], strict=True)
    )
    return announce, sync, delay


def _intervals(cluster: Cluster, version: Version) -> list[ConfigLine]:
    announce, sync, delay = _intervals_of(cluster)
    timeout = cluster.ptp.announce_receipt_timeout
    silence_s = timeout * 2.0**announce
    delay_name = "logMinDelayReqInterval" if cluster.ptp.delay_mechanism.value == "E2E" else "logMinPdelayReqInterval"
    return [
        PTP4L.line("logAnnounceInterval", announce, version, why=f"an announce every {2.0**announce:g} s"),
        PTP4L.line("announceReceiptTimeout", timeout, version, why=f"a grandmaster silent for {silence_s:g} s is gone"),
        PTP4L.line("logSyncInterval", sync, version, why=f"{2.0**-sync:g} samples a second for the servo"),
        PTP4L.line(delay_name, delay, version, why=f"the path is measured {2.0**-delay:g} times a second"),
    ]


def _servo(role: NodeRole, cluster: Cluster, version: Version) -> list[ConfigLine]:
    if role.role in (*_MASTERS, Role.TRANSPARENT_CLOCK):
        return []
    _, sync, _ = _intervals_of(cluster)
    hardware = role.stamps is Scheme.PTP_HARDWARE
    kp, ki = _gains(_PHC_RATE if hardware else _SOFTWARE_RATE, 2.0**sync)
    lines = [
        PTP4L.line("pi_proportional_const", kp, version, why="how fast the servo pulls, with this many syncs a second"),
        PTP4L.line("pi_integral_const", ki, version, why="critically damped: a chain of clocks must not ring"),
    ]
    if hardware:
        why = f"a PHC off by more than {STEP_S:g} s is set: its grandmaster was set, no packet is delayed that long"
        return [*lines, PTP4L.line("step_threshold", STEP_S, version, why=why)]
    return [
        *lines,
        PTP4L.line(
            "delay_filter", "moving_average", version, why="kernel stamps scatter: many measurements of the path"
        ),
        PTP4L.line("delay_filter_length", 100, version, why="averaged, 2 µs off instead of 4 (measured at 8 Hz)"),
    ]


_PHC_RATE, _SYSTEM_RATE, _SOFTWARE_RATE = 1.0, 2.0, 0.2
"""Proportional pull per second. Near linuxptp's own 0.7 for one sync a second; from PHC to system clock faster, since
reading scatters by nanoseconds and the chain must not add up delays; by kernel stamps, which scatter most, slower.
"""

_MOST_PULL = 0.7
"""Never more of an offset than this at once, as linuxptp limits itself."""


def _gains(rate: float, interval_s: float) -> tuple[str, str]:
    """Constants of a PI servo that is critically damped: integral = proportional² * interval / 4.

    linuxptp scales its defaults in a way that rings (damping 0.64 at 8 Hz), phc2sys does not scale its own at all
    (0.23 at 8 Hz): with a boundary clock between, a step of 10 µs came out as a swing of 35 µs in the lab.
    """
    kp = min(rate, _MOST_PULL / interval_s)
    return _plain(kp), _plain(kp * kp * interval_s / 4)


def _plain(value: float) -> str:
    """A decimal fraction without an exponent."""
    return f"{value:.7f}".rstrip("0").rstrip(".")


def _logging(version: Version) -> list[ConfigLine]:
    return [
        PTP4L.line("use_syslog", 0, version, why="the journal gets standard output"),
        PTP4L.line("verbose", 1, version, why="the journal gets standard output"),
        PTP4L.line("summary_interval", 4, version, why=f"one line every {_SUMMARY_S} s instead of one a sample"),
    ]


def phc2sys_arguments(role: NodeRole, cluster: Cluster, version: Version) -> tuple[ConfigLine, ...]:
    """The flags of phc2sys, one line each. Raises UserError for roles that have no PHC to keep."""
    if role.stamps is not Scheme.PTP_HARDWARE:
        raise UserError(f"{role.node}: with software stamps ptp4l steers the system clock itself: no phc2sys there")
    rate = _RATE_HZ[cluster.pace]
    kp, ki = _gains(_SYSTEM_RATE, 1 / rate)
    flags = [
        *_between(role),
        (
            "-n",
            cluster.ptp.domain,
            "the domainNumber of ptp4l: with another one phc2sys finds nothing and says nothing",
        ),
        ("-R", rate, f"{rate} comparisons a second"),
    ]
    if any(clock.kind in (RefClockKind.PTP, RefClockKind.GPS_NIC) for clock in role.refclocks):
        flags += [
            ("-E", "ntpshm", "steers nothing: chronyd owns the system clock and decides between this and NTP"),
            ("-M", 0, "the segment that chronyd reads"),
        ]
    else:
        flags += [
            ("-P", kp, "how fast it pulls, with this many comparisons a second"),
            ("-I", ki, "critically damped; phc2sys's own constants ring at more than one comparison a second"),
        ]
    flags += [
        ("-u", rate * _SUMMARY_S, f"one line in the journal every {_SUMMARY_S} s instead of one a comparison"),
        ("-m", None, "the journal gets standard output"),
        ("-q", None, "and not the syslog too"),
    ]
    return tuple(_argument(PHC2SYS, version, *flag) for flag in flags)


def pulse_into_nic(role: NodeRole) -> RefClock | None:
    """The receiver whose pulse goes into the NIC that this node serves by; None without one."""
    served = {port.nic for port in role.ports}
    return next((clock for clock in role.refclocks if clock.kind is RefClockKind.GPS_NIC and clock.nic in served), None)


def _between(role: NodeRole) -> list[tuple[str, object, str]]:
    """From which clock to which, and when it is set instead of steered."""
    tai = TAI_MINUS_UTC_2017_S
    pulse = pulse_into_nic(role)
    if pulse is not None:
        return [
            ("-s", pulse.nic, "the PHC that ts2phc keeps by the receiver's pulse"),
            ("-c", "CLOCK_REALTIME", "handed to chronyd, see -E"),
            ("-O", -tai, "sink minus source: the PHC keeps TAI; one more after a leap second"),
        ]
    if role.role in _MASTERS:
        return [
            ("-s", "CLOCK_REALTIME", "chronyd owns the system clock; the PHC follows it"),
            ("-c", role.ports[0].nic, "the PHC that ptp4l serves"),
            ("-O", tai, "sink minus source: the PHC keeps TAI; one more after a leap second. Not -w: a backup's port "
                        "never becomes SLAVE or MASTER, phc2sys would wait for ever"),
            ("-S", STEP_S, f"follows a step of the system clock above {STEP_S:g} s at once"),
        ]  # fmt: skip
    follows: list[tuple[str, object, str]] = [
        ("-a", None, "follows the port that ptp4l says is SLAVE, and stops when there is none"),
        ("-r", None, "the system clock follows; given once, it is never a source"),
    ]
    if role.owner is Owner.CHRONYD:
        return follows
    return [
        *follows,
        ("-F", 0.00002, "sets the clock at the start when it is more than 20 µs off"),
        ("-S", SYSTEM_STEP_S, _WHY_SYSTEM_STEP),
    ]


def _argument(table: Table, version: Version, name: str, value: object, why: str) -> ConfigLine:
    option = table.find(name, version)
    if option.kind == "flag":
        return ConfigLine(text=name, why=why, versions="all")
    line = table.line(name, _plain(value) if isinstance(value, float) else value, version, why=why)
    return ConfigLine(text=line.text, why=why, versions="all")
