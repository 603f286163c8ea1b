"""A plan as files and services of each node. Pure and deterministic: the same plan gives the same bytes.

Every line knows its reason and the releases that take it. Refuses what a node's daemons would reject.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rankclock.cluster.facts import Facts
from rankclock.cluster.model import Cluster, PtpManager
from rankclock.configs.chrony import CHRONY_CONF, chrony_lines
from rankclock.configs.firewall import firewall_files
from rankclock.configs.linuxptp import (
    CLOCK_CLASS_SERVICE,
    PTP4L_CONF,
    phc2sys_arguments,
    ptp4l_lines,
    pulse_into_nic,
)
from rankclock.configs.ntpsec import NTPSEC_CONF, ntpsec_lines
from rankclock.configs.options import ConfigLine
from rankclock.configs.refclocks import GPSD_DEFAULTS, TS2PHC_CONF, UDEV_RULES, gpsd_lines, ts2phc_lines, udev_lines
from rankclock.configs.target import Target, target_of
from rankclock.configs.timemaster import TIMEMASTER_CONF, timemaster_lines
from rankclock.configs.units import (
    CHRONY_DROP_IN,
    CHRONY_UNIT,
    GPSD_DROP_IN,
    GPSD_UNIT,
    NTPSEC_DROP_IN,
    NTPSEC_UNIT,
    PHC2SYS_UNIT,
    PTP4L_UNIT,
    TIMEMASTER_UNIT,
    TS2PHC_UNIT,
    UNITS,
    clock_class_unit,
    gpsd_drop_in,
    masked_services,
    ntp_drop_in,
    phc2sys_unit,
    ptp4l_unit,
    ts2phc_unit,
)
from rankclock.planning.model import NodeRole, Owner, Plan, RefClockKind, Role, Scheme
from rankclock.planning.topology import Topology

__all__ = ["RenderedNode", "Service", "explain", "render"]

CHRONYD = "/usr/sbin/chronyd"
PTP4L = "/usr/sbin/ptp4l"
PHC2SYS = "/usr/sbin/phc2sys"
TS2PHC = "/usr/sbin/ts2phc"
GPSD = "/usr/sbin/gpsd"
TIMEMASTER = "/usr/sbin/timemaster"
NTPD = "/usr/sbin/ntpd"
RANKCLOCK = "/usr/bin/rankclock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One daemon of a node: its command in the foreground, when it starts (0 first), and its systemd unit.

    directories: what must exist before it starts, beside its files.
    """

    name: str
    argv: tuple[str, ...]
    tier: int
    unit: str | None
    directories: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedNode:
    """Everything of one node. files: absolute path to text. masks: services that must not run. lines: for `explain`."""

    node: str
    role: Role
    files: Mapping[str, str]
    services: tuple[Service, ...]
    masks: tuple[str, ...]
    target: Target
    lines: Mapping[str, tuple[ConfigLine, ...]]


def render(plan: Plan, cluster: Cluster, facts: Mapping[str, Facts] | None = None) -> dict[str, RenderedNode]:
    """Files and services of every node that has a role. Raises UserError for what a node's daemons would reject."""
    topology = Topology(cluster)
    references = [server for role in plan.roles.values() for server in role.servers if server.reference]
    near = {server.address: topology.on_lan(server.address) for server in references}
    return {
        name: _node(
            role,
            cluster,
            target_of(
                name,
                (facts or {}).get(name),
                receiver=any(clock.kind is RefClockKind.GPS for clock in role.refclocks),
            ),
            near=near,
        )
        for name, role in plan.roles.items()
        if role.owner is not Owner.NOBODY
    }


def explain(node: RenderedNode) -> str:
    """Every line of a node's files with its reason and the releases that take it."""
    out = []
    for path, lines in node.lines.items():
        out.append(f"{node.node}: {path}")
        for line in lines:
            if line.text:
                out.append(f"  {line.text}")
                out += [f"      why: {line.why}"] if line.why else []
                out += [f"      releases: {line.versions}"] if line.versions else []
    return "\n".join(out) + "\n"


def _node(role: NodeRole, cluster: Cluster, target: Target, *, near: Mapping[str, bool]) -> RenderedNode:
    lines: dict[str, tuple[ConfigLine, ...]] = {}
    services: list[Service] = []
    if by_timemaster(role, cluster):
        return _started_by_timemaster(role, cluster, target)
    on_lan = all(near[server.address] for server in role.servers if server.reference)
    if role.owner is Owner.CHRONYD:
        lines[CHRONY_CONF] = chrony_lines(
            role, cluster, target.chrony_version, target.gpsd_version, sources_on_lan=on_lan
        )
        lines[CHRONY_DROP_IN] = ntp_drop_in(role)
        services.append(_chronyd(role.tier))
    if role.owner is Owner.NTPD:
        lines[NTPSEC_CONF] = ntpsec_lines(role, cluster)
        lines[NTPSEC_DROP_IN] = ntp_drop_in(role)
        services.append(_ntpd(role.tier))
    if role.stamps is not None:
        _add_ptp(role, cluster, target, lines, services)
    _add_reference_clocks(role, target, lines, services)
    lines |= firewall_files(role, cluster)
    return RenderedNode(
        node=role.node,
        role=role.role,
        files=_texts(role.node, lines),
        services=tuple(services),
        masks=masked_services(role),
        target=target,
        lines=lines,
    )


def _started_by_timemaster(role: NodeRole, cluster: Cluster, target: Target) -> RenderedNode:
    lines = {TIMEMASTER_CONF: timemaster_lines(role, cluster, target.linuxptp_version)} | firewall_files(role, cluster)
    argv = (TIMEMASTER, "-f", TIMEMASTER_CONF, "-m", "-q")
    folders = ("/run/chrony", "/run/timemaster", "/var/lib/chrony")
    service = Service(name="timemaster", argv=argv, tier=role.tier, unit=TIMEMASTER_UNIT, directories=folders)
    return RenderedNode(
        node=role.node,
        role=role.role,
        files=_texts(role.node, lines),
        services=(service,),
        masks=masked_services(role, timemaster=True),
        target=target,
        lines=lines,
    )


def by_timemaster(role: NodeRole, cluster: Cluster) -> bool:
    """Whether timemaster starts this node's daemons: where NTP stands behind PTP, and the cluster file says so."""
    follows = any(clock.kind is RefClockKind.PTP for clock in role.refclocks)
    return follows and cluster.ptp.manager is PtpManager.TIMEMASTER


def _chronyd(tier: int) -> Service:
    # -u root: in the foreground here; the distribution's unit drops to its own user. -d logs to standard error.
    argv = (CHRONYD, "-d", "-u", "root", "-f", CHRONY_CONF)
    directories = ("/run/chrony", "/var/lib/chrony")
    return Service(name="chronyd", argv=argv, tier=tier, unit=CHRONY_UNIT, directories=directories)


def _ntpd(tier: int) -> Service:
    argv = (NTPD, "-n", "-c", NTPSEC_CONF)
    return Service(name="ntpd", argv=argv, tier=tier, unit=NTPSEC_UNIT, directories=("/var/lib/ntpsec",))


def _add_ptp(
    role: NodeRole,
    cluster: Cluster,
    target: Target,
    lines: dict[str, tuple[ConfigLine, ...]],
    services: list[Service],
) -> None:
    has_sources = any(server.reference for server in role.servers)
    follows = any(clock.kind is RefClockKind.PTP for clock in role.refclocks)
    tier = role.tier + 1 if role.owner is Owner.CHRONYD and not follows else role.tier
    lines[PTP4L_CONF] = ptp4l_lines(role, cluster, target.linuxptp_version, has_sources=has_sources)
    argv = (PTP4L, "-f", PTP4L_CONF)
    lines[f"{UNITS}/{PTP4L_UNIT}"] = ptp4l_unit(role, " ".join(argv))
    services.append(Service(name="ptp4l", argv=argv, tier=tier, unit=PTP4L_UNIT))
    if role.stamps is Scheme.PTP_HARDWARE and role.role is not Role.TRANSPARENT_CLOCK:
        services.append(_phc2sys(role, cluster, target, lines, tier))
    if role.priority2 is not None and any(clock.kind is RefClockKind.GPS for clock in role.refclocks):
        command = (RANKCLOCK, "agent", "clock-class", "--domain", str(cluster.ptp.domain))
        lines[f"{UNITS}/{CLOCK_CLASS_SERVICE}"] = clock_class_unit(role, " ".join(command))
        services.append(Service(name="clock-class", argv=command, tier=tier, unit=CLOCK_CLASS_SERVICE))


def _add_reference_clocks(
    role: NodeRole, target: Target, lines: dict[str, tuple[ConfigLine, ...]], services: list[Service]
) -> None:
    """What stands between a reference clock and chronyd: gpsd, ts2phc, links."""
    receivers = tuple(clock for clock in role.refclocks if clock.kind is RefClockKind.GPS)
    if receivers:
        lines[GPSD_DEFAULTS] = gpsd_lines(receivers)
        lines[GPSD_DROP_IN] = gpsd_drop_in()
        argv = (GPSD, "-N", "-n", *(clock.device for clock in receivers))
        services.append(Service(name="gpsd", argv=argv, tier=role.tier, unit=GPSD_UNIT))
    pulse = pulse_into_nic(role)
    if pulse is not None:
        lines[TS2PHC_CONF] = ts2phc_lines(pulse, target.linuxptp_version)
        argv = (TS2PHC, "-f", TS2PHC_CONF, "-s", "nmea")
        lines[f"{UNITS}/{TS2PHC_UNIT}"] = ts2phc_unit(role, " ".join(argv))
        services.insert(0, Service(name="ts2phc", argv=argv, tier=role.tier, unit=TS2PHC_UNIT))
    links = udev_lines(role.refclocks)
    if links:
        lines[UDEV_RULES] = links


def _phc2sys(
    role: NodeRole, cluster: Cluster, target: Target, lines: dict[str, tuple[ConfigLine, ...]], tier: int
) -> Service:
    arguments = phc2sys_arguments(role, cluster, target.linuxptp_version)
    argv = (PHC2SYS, *(word for line in arguments for word in line.text.split(" ")))
    lines["phc2sys"] = arguments
    lines[f"{UNITS}/{PHC2SYS_UNIT}"] = phc2sys_unit(role, " ".join(argv))
    return Service(name="phc2sys", argv=argv, tier=tier, unit=PHC2SYS_UNIT)


def _texts(node: str, lines: Mapping[str, tuple[ConfigLine, ...]]) -> dict[str, str]:
    head = f"# {node}: written by rankclock from the cluster's plan; change the cluster file and render again.\n"
    return {
        path: ("" if path.endswith(".xml") else head) + "".join(f"{line.text}\n" for line in body)
        for path, body in lines.items()
        if path.startswith("/")
    }
