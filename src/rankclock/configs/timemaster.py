"""timemaster.conf of an ordinary clock with NTP behind PTP: one program that starts ptp4l, phc2sys and chronyd.

Refuses nothing by itself: which nodes it is for is the plan's business. Never written: an include of /etc/chrony.conf,
which Debian does not have, and poll options that timemaster writes itself (they would stand twice).
"""

from __future__ import annotations

from rankclock.cluster.model import Cluster
from rankclock.configs.chrony import STANDBY_SAMPLES, known_by, polls
from rankclock.configs.linuxptp import ptp4l_lines
from rankclock.configs.options import ConfigLine, Version
from rankclock.planning.model import NodeRole, NtpServer

__all__ = ["TIMEMASTER_CONF", "timemaster_lines"]

TIMEMASTER_CONF = "/etc/linuxptp/timemaster.conf"
_OWN_OF_TIMEMASTER = ("domainNumber", "slaveOnly", "clientOnly", "time_stamping", "boundary_clock_jbod")
_UNKNOWN_DELAY_S = 1e-4


def timemaster_lines(role: NodeRole, cluster: Cluster, version: Version) -> tuple[ConfigLine, ...]:
    """The lines of /etc/linuxptp/timemaster.conf. Raises UserError for what that release of ptp4l lacks."""
    bound_ns = role.refclocks[0].bound_ns
    delay_s = _UNKNOWN_DELAY_S if bound_ns is None else 2 * bound_ns / 1e9
    lines = [
        ConfigLine(text="[timemaster]"),
        ConfigLine(text="ntp_program chronyd", why="it owns the system clock, and decides between PTP and NTP"),
        ConfigLine(text=""),
        ConfigLine(text=f"[ptp_domain {cluster.ptp.domain}]", why="the same on every node"),
        ConfigLine(
            text=f"interfaces {' '.join(port.nic for port in role.ports)}", why=f"segment {role.ports[0].segment}"
        ),
        ConfigLine(
            text=f"delay {delay_s:.9f}", why="by which chronyd's own bound is widened: what the plan allows the PHC"
        ),
        ConfigLine(text="ntp_poll 0", why="chronyd looks every second"),
        ConfigLine(text="phc2sys_poll -2", why="and takes the best of four comparisons"),
        ConfigLine(text="ntp_options prefer", why="PTP first, as long as ptp4l follows a grandmaster"),
        ConfigLine(text=""),
    ]
    for server in role.servers:
        lines += _server(server, cluster)
    return (*lines, *_chrony_section(), *_programs(), *_ptp4l_section(role, cluster, version))


def _server(server: NtpServer, cluster: Cluster) -> list[ConfigLine]:
    low, high = polls(cluster)
    words = [name if value is True else f"{name} {value}" for name, value in known_by(server).items()]
    options = " ".join(["xleave", f"maxsamples {STANDBY_SAMPLES}", *words])
    return [
        ConfigLine(text=f"[ntp_server {server.address}]", why=f"{server.name}: asked when PTP falls silent"),
        ConfigLine(text=f"minpoll {low}", why=f"every {2.0**low:g} s at most"),
        ConfigLine(text=f"maxpoll {high}", why=f"every {2.0**high:g} s at least"),
        ConfigLine(text="iburst 1", why="four quick requests at the start"),
        ConfigLine(text=f"ntp_options {options}", why="with transmit stamps; few samples: a dead server is left soon"),
        ConfigLine(text=""),
    ]  # fmt: skip


def _chrony_section() -> list[ConfigLine]:
    return [
        ConfigLine(text="[chrony.conf]", why="handed on to chronyd as it is"),
        ConfigLine(text="driftfile /var/lib/chrony/chrony.drift", why="the crystal's error survives a restart"),
        ConfigLine(text="makestep 1 3", why="steps only above 1 s and in the first 3 updates: never in mid-run"),
        ConfigLine(text="rtcsync", why="the kernel writes the hardware clock, for the next boot"),
        ConfigLine(text=""),
    ]


def _programs() -> list[ConfigLine]:
    found = []
    for program in ("chronyd", "phc2sys", "ptp4l"):
        found += [ConfigLine(text=f"[{program}]"), ConfigLine(text=f"path /usr/sbin/{program}"), ConfigLine(text="")]
    return found


def _ptp4l_section(role: NodeRole, cluster: Cluster, version: Version) -> list[ConfigLine]:
    """What goes into [global] of the ptp4l.conf that timemaster writes; it sets domain, stamps and role itself."""
    found = [ConfigLine(text="[ptp4l.conf]", why="handed on to ptp4l as it is")]
    for line in ptp4l_lines(role, cluster, version, has_sources=False)[1:]:
        if not line.text or line.text.startswith("["):
            break
        if line.text.split(" ", 1)[0] not in _OWN_OF_TIMEMASTER:
            found.append(line)
    return found
