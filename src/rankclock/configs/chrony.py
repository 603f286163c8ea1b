"""chrony.conf of a node whose clock chronyd owns: its servers, whom it serves, how it steps. Each line with its reason.

Never written: `makestep` without a limit (a clock that steps in mid-run), comments behind a directive (a parse error),
a leap second list beside sources that smear.
"""

from __future__ import annotations

from rankclock.cluster.model import Cluster, Pace
from rankclock.configs.options import ConfigLine, Version
from rankclock.configs.options_chrony import directive, source
from rankclock.configs.refclocks import refclock_lines
from rankclock.planning.model import NodeRole, NtpServer
from rankclock.planning.topology import EVERYWHERE

__all__ = ["CHRONY_CONF", "STANDBY_SAMPLES", "chrony_lines", "known_by", "polls"]

CHRONY_CONF = "/etc/chrony/chrony.conf"

_POLLS = {Pace.NORMAL: (2, 4), Pace.FAST: (0, 2)}
_CLOUD_POLL = 4
NTS_FOLDER = "/etc/chrony/nts"
STANDBY_SAMPLES = 8
"""As many polls as a server may miss before it counts as unreachable."""

_LOG_BYTES_A_CLIENT = 256
"""chronyd keeps about 128 bytes a client; twice that leaves room for those of yesterday."""

_LOG_DEFAULT_BYTES = 524_288


def chrony_lines(
    role: NodeRole, cluster: Cluster, version: Version, gpsd: Version, *, sources_on_lan: bool
) -> tuple[ConfigLine, ...]:
    """The lines of /etc/chrony/chrony.conf. Raises UserError for what that release lacks."""
    one_preferred = any(server.prefer for server in role.servers) or bool(role.refclocks)
    lines = list(refclock_lines(role.refclocks, version, gpsd))
    lines += [
        _server_line(
            server,
            cluster,
            version,
            near=sources_on_lan or not server.reference,
            standby=one_preferred and not server.prefer,
        )
        for server in role.servers
    ]
    lines += [_server_line(mate, cluster, version, near=True, standby=True, mate=True) for mate in role.mates]
    lines += _authentication(role, cluster, version)
    lines += _serving_lines(role, cluster, version)
    lines += _clock_lines(version)
    smeared = [server.smeared for server in role.servers if server.reference]
    if smeared and all(value is False for value in smeared):
        why = "leap seconds from the system's list even where a source is silent; no source here smears"
        lines.append(directive("leapsectz", "right/UTC", version, why=why))
    return tuple(lines)


def polls(cluster: Cluster) -> tuple[int, int]:
    """The shortest and the longest poll interval inside the cluster, as powers of two in seconds."""
    low, high = _POLLS[cluster.pace]
    low = cluster.ntp.minpoll if cluster.ntp.minpoll is not None else low
    high = cluster.ntp.maxpoll if cluster.ntp.maxpoll is not None else max(low, high)
    return low, high


def _server_line(
    server: NtpServer, cluster: Cluster, version: Version, *, near: bool, standby: bool = False, mate: bool = False
) -> ConfigLine:
    options: dict[str, object] = {"iburst": True} | known_by(server)
    why = f"{server.name}: four quick requests at the start"
    if near:
        low, high = polls(cluster)
        options |= {"minpoll": low, "maxpoll": high, "xleave": True}
        why += f"; then one every {2.0**low:g} to {2.0**high:g} s, with the kernel's transmit stamps (xleave)"
    elif server.address in ("169.254.169.123", "fd00:ec2::123"):
        options |= {"minpoll": _CLOUD_POLL, "maxpoll": _CLOUD_POLL}
        why += "; the provider's server is on the same host and made for this rate"
    else:
        why += "; then chrony's own rates, a guest's manners on servers of others"
    if server.prefer:
        options["prefer"] = True
        why += (
            "; preferred, so that all clients follow one clock while it is good"
            if not server.reference
            else ("; preferred to the other servers here, which follow it too")
        )
    if server.watched:
        options["noselect"] = True
        why += "; watched only: it spreads leap seconds over hours, and the clock that is followed does not"
    elif standby:
        options["maxsamples"] = STANDBY_SAMPLES
        why += (
            f"; standby, with {STANDBY_SAMPLES} samples only: chronyd goes on with a dead server's past until that is "
            "older than every sample of the others (minutes, with its usual 64)"
        )
    if mate:
        why = f"{server.name}: followed when every source is lost, so that the servers stay together; {why}"
    return source(server.address, options, version, why=why)


def known_by(server: NtpServer) -> dict[str, object]:
    """Options by which a server proves who it is."""
    if server.nts:
        return {"nts": True}
    return {"key": server.key} if server.key is not None else {}


def _authentication(role: NodeRole, cluster: Cluster, version: Version) -> list[ConfigLine]:
    """Certificates and keys, in places that the distribution's AppArmor profile lets chronyd read."""
    servers = (*role.servers, *role.mates)
    lines = []
    if any(server.nts for server in servers):
        lines.append(directive("ntsdumpdir", "/var/lib/chrony", version, why="a restart needs no new key exchange"))
    if any(server.nts and not server.reference for server in servers):
        why = "the cluster's own authority, beside the system's; make it and put it there before chronyd starts"
        lines.append(directive("ntstrustedcerts", f"{NTS_FOLDER}/ca.pem", version, why=why))
        why = "a clock that woke up years off takes its first update in spite of the certificates' dates"
        lines.append(directive("nocerttimecheck", "1", version, why=why))
    if cluster.ntp.nts and role.clients:
        why = "its name and address must be in the certificate; readable for chronyd's user only"
        lines.append(directive("ntsservercert", f"{NTS_FOLDER}/server.pem", version, why=why))
        lines.append(directive("ntsserverkey", f"{NTS_FOLDER}/server.key", version, why=why))
    keys = {server.key for server in servers} | ({cluster.ntp.key} if role.clients else set())
    if keys - {None}:
        why = "the keys are secrets and not in the plan: put the same lines on both ends"
        lines.append(directive("keyfile", "/etc/chrony/chrony.keys", version, why=why))
    if servers and all(server.nts or server.key is not None or server.watched for server in servers):
        why = "every server proves who it is: whoever does not is not followed"
        lines.append(directive("authselectmode", "require", version, why=why))
    return lines


def _serving_lines(role: NodeRole, cluster: Cluster, version: Version) -> list[ConfigLine]:
    narrow, wide = "its nodes may ask for time", "the file does not tell the networks: write nics: to narrow it"
    lines = [
        directive("allow", network, version, why=wide if network in EVERYWHERE else narrow) for network in role.clients
    ]
    if not lines:
        return []
    if role.local_stratum is not None:
        why = "goes on serving when all sources are lost: behind any real source, the first server before the others"
        lines.append(directive("local", f"stratum {role.local_stratum}", version, why=why))
    needed = len(cluster.nodes) * _LOG_BYTES_A_CLIENT
    if needed > _LOG_DEFAULT_BYTES:
        size = 1 << (needed - 1).bit_length()
        why = f"interleaved answers need a record of each client: room for {len(cluster.nodes)} nodes"
        lines.append(directive("clientloglimit", str(size), version, why=why))
    interval = polls(cluster)[0] - 1
    why = "a client that polls faster than ours do gets fewer answers"
    lines.append(directive("ratelimit", f"interval {interval} burst 16", version, why=why))
    return lines


def _clock_lines(version: Version) -> list[ConfigLine]:
    return [
        directive("driftfile", "/var/lib/chrony/chrony.drift", version, why="the crystal's error survives a restart"),
        directive("makestep", "1 3", version, why="steps only above 1 s and in the first 3 updates: never in mid-run"),
        directive("rtcsync", "", version, why="the kernel writes the hardware clock, for the next boot"),
    ]
