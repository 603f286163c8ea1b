"""ntp.conf of a node whose clock ntpsec's ntpd owns, where the cluster file asks for it. Each line with its reason.

Refuses what ntpd cannot do as chronyd does: receivers and clouds' clocks are read by chronyd here.
"""

from __future__ import annotations

from rankclock.cluster.model import Cluster
from rankclock.configs.chrony import polls
from rankclock.configs.options import ConfigLine
from rankclock.errors import UserError
from rankclock.planning.model import NodeRole, NtpServer

__all__ = ["NTPSEC_CONF", "ntpsec_lines"]

NTPSEC_CONF = "/etc/ntpsec/ntp.conf"
NTS_FOLDER = "/etc/ntpsec/nts"

_SHORTEST_POLL = 3
"""ntpd asks at most every 8 s."""


def ntpsec_lines(role: NodeRole, cluster: Cluster) -> tuple[ConfigLine, ...]:
    """The lines of /etc/ntpsec/ntp.conf. Raises UserError for roles that ntpd cannot have here."""
    if role.refclocks:
        clock = role.refclocks[0].name
        raise UserError(f"{role.node}: {clock} is read by chronyd here: leave ntp.daemon out, or name an NTP server")
    lines = [ConfigLine(text="driftfile /var/lib/ntpsec/ntp.drift", why="the crystal's error survives a restart")]
    if all(server.smeared is not True for server in role.servers):
        why = "leap seconds from the system's list even where a source is silent"
        lines.append(ConfigLine(text="leapfile /usr/share/zoneinfo/leap-seconds.list", why=why))
    lines += [_server_line(server, cluster) for server in (*role.servers, *role.mates)]
    lines += _serving_lines(role, cluster)
    why = "one good server is enough to follow: the plan counts them, and says so where they are few"
    lines.append(ConfigLine(text="tos minclock 1 minsane 1", why=why))
    return (*lines, *_restrictions(role))


def _server_line(server: NtpServer, cluster: Cluster) -> ConfigLine:
    words, why = [f"server {server.address} iburst"], f"{server.name}: quick requests at the start"
    if not server.reference:
        low = max(polls(cluster)[0], _SHORTEST_POLL)
        high = max(polls(cluster)[1], low)
        words.append(f"minpoll {low} maxpoll {high}")
        why += f"; then one every {2**low} to {2**high} s"
    if server.prefer:
        words.append("prefer")
        why += "; preferred, so that all follow one clock while it is good"
    if server.watched:
        words.append("noselect")
        why += "; watched only: it spreads leap seconds over hours"
    if server.nts:
        words.append("nts" if server.reference else f"nts ca {NTS_FOLDER}/ca.pem")
        why += "; known by its certificate"
    elif server.key is not None:
        words.append(f"key {server.key}")
        why += "; known by its key"
    return ConfigLine(text=" ".join(words), why=why, versions="ntpsec")


def _serving_lines(role: NodeRole, cluster: Cluster) -> list[ConfigLine]:
    lines = []
    keys = {server.key for server in (*role.servers, *role.mates)} | ({cluster.ntp.key} if role.clients else set())
    known = sorted(key for key in keys if key is not None)
    if known:
        why = "the keys are secrets and not in the plan: put the same lines on both ends"
        lines.append(ConfigLine(text="keys /etc/ntpsec/ntp.keys", why=why))
        lines.append(ConfigLine(text=f"trustedkey {' '.join(map(str, known))}", why="keys that may be believed"))
    if role.clients and cluster.ntp.nts:
        why = "its name and address must be in the certificate; readable for ntpd's user only"
        lines.append(ConfigLine(text="nts enable", why="clients know this server by its certificate"))
        lines.append(ConfigLine(text=f"nts cert {NTS_FOLDER}/server.pem", why=why))
        lines.append(ConfigLine(text=f"nts key {NTS_FOLDER}/server.key", why=why))
    if role.clients and role.local_stratum is not None:
        why = "goes on serving when all sources are lost: behind any real source, the first server before the others"
        lines.append(ConfigLine(text=f"refclock local stratum {role.local_stratum}", why=why))
    return lines


def _restrictions(role: NodeRole) -> list[ConfigLine]:
    serves = "its nodes may ask for time" if role.clients else "nobody is turned away by name; the firewall decides"
    return [
        ConfigLine(
            text="restrict default kod limited nomodify noquery",
            why=f"no stranger changes or reads anything, or asks too often; {serves}",
        ),
        ConfigLine(text="restrict 127.0.0.1", why="rankclock and ntpq on this machine read its state"),
        ConfigLine(text="restrict ::1", why="rankclock and ntpq on this machine read its state"),
    ]
