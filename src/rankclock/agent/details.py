"""What daemons and drivers tell beside the clock's state: authentication, who stamps, receivers, waits in vain.

Read less often than the state, by a worker of its own: none of it changes what the clock is called, and gpsd alone
takes a second. What could not be read is absent, never zero. Everything that a neighbour can multiply is bounded.
"""

from __future__ import annotations

import socket
from collections import Counter
from dataclasses import dataclass

from rankclock.agent.look import MAX_PORTS, MAX_PTP_CLOCKS, MAX_SHOWN
from rankclock.errors import PeerError
from rankclock.node.chronyd import endpoints_of
from rankclock.node.chronyd_details import ChronydDetails, read_chronyd_details
from rankclock.node.gpsd import GpsdReceiver, port_of, read_gpsd
from rankclock.node.linuxptp_options import ptp4l_options
from rankclock.node.nics import phc_index_of
from rankclock.node.processes import ProcessTable, read_processes
from rankclock.node.ptp4l_details import Ptp4lDetails, read_ptp4l_details
from rankclock.node.stamp_statistics import stamp_statistics

__all__ = ["Details", "NicStamps", "PortWaits", "SourceExtra", "look_at_details"]

MAX_NICS = 32

WAITS = (
    "announce_timeout",
    "sync_timeout",
    "delay_timeout",
    "unicast_service_timeout",
    "unicast_request_timeout",
    "sync_mismatch",
    "followup_mismatch",
)
"""Of ptp4l's service statistics those that tell of a path that does not work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceExtra:
    """One source of chronyd. None: not told. stamps: who stamped the last (request, reply)."""

    authenticated: bool | None
    nts_cookies: int | None
    stamps: tuple[str, str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PortWaits:
    """One port of a ptp4l: how often it waited in vain, by kind."""

    domain: int
    port: int
    counts: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class NicStamps:
    """Hardware stamps of a NIC's transmissions. None: its driver does not count that."""

    stamped: int | None
    lost: int | None
    errors: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Details:
    """Everything. served, dropped: requests to this node's chronyd by kind. masters: (domain, state) to how many.
    missing: why something is not here, for /status.
    """

    sources: dict[str, SourceExtra]
    served: dict[str, int]
    dropped: dict[str, int]
    receivers: tuple[GpsdReceiver, ...]
    waits: tuple[PortWaits, ...]
    masters: dict[tuple[int, str], int]
    nics: dict[str, NicStamps]
    missing: tuple[str, ...]


def look_at_details(*, timeout_s: float = 1.0) -> Details:
    """Look once. Raises OSError where not even processes can be listed."""
    table = read_processes()
    missing: list[str] = []
    chrony = _chrony(table, timeout_s, missing)
    ptp = _ptp(table, timeout_s, missing)
    served, dropped = _server(chrony)
    return Details(
        sources=_sources(chrony),
        served=served,
        dropped=dropped,
        receivers=_receivers(table, missing),
        waits=tuple(
            PortWaits(
                domain=one.domain, port=port.port_identity.port, counts={name: getattr(port, name) for name in WAITS}
            )
            for one in ptp
            for port in one.service[:MAX_PORTS]
        ),
        masters=dict(Counter((one.domain, master.state_name) for one in ptp for master in one.masters)),
        nics=_nics(),
        missing=tuple(missing),
    )


def _chrony(table: ProcessTable, timeout_s: float, missing: list[str]) -> ChronydDetails | None:
    running = [process for process in table.running("chronyd") if not process.stopped]
    if not running:
        return None
    try:
        found = read_chronyd_details(endpoints_of(running[0].argv), timeout_s=timeout_s)
    except PeerError as error:
        missing.append(str(error))
        return None
    missing += [f"chronyd's {command}: {why}" for command, why in sorted(found.refused.items())]
    return found


def _sources(found: ChronydDetails | None) -> dict[str, SourceExtra]:
    shown: dict[str, SourceExtra] = {}
    for source in found.sources if found else ():
        if len(shown) >= MAX_SHOWN or (source.auth is None and source.ntp is None):
            continue
        nts = source.auth is not None and source.auth.mode_name == "nts"
        stamps = (source.ntp.transmit_stamps, source.ntp.receive_stamps) if source.ntp else (None, None)
        shown[source.name] = SourceExtra(
            authenticated=source.auth.mode_name != "none" if source.auth else None,
            nts_cookies=source.auth.cookies if source.auth and nts else None,
            stamps=(stamps[0], stamps[1]) if stamps[0] and stamps[1] else None,
        )
    return shown


def _server(found: ChronydDetails | None) -> tuple[dict[str, int], dict[str, int]]:
    stats = found.server if found else None
    if stats is None:
        return {}, {}
    kinds = {"ntp": "ntp", "nts_keys": "nke"}
    served = {kind: getattr(stats, f"{name}_hits") for kind, name in kinds.items() if hasattr(stats, f"{name}_hits")}
    dropped = {kind: getattr(stats, f"{name}_drops") for kind, name in kinds.items() if hasattr(stats, f"{name}_drops")}
    return served, dropped


def _receivers(table: ProcessTable, missing: list[str]) -> tuple[GpsdReceiver, ...]:
    running = [process for process in table.running("gpsd") if not process.stopped]
    if not running:
        return ()
    try:
        return read_gpsd(("127.0.0.1", port_of(running[0].argv))).receivers
    except PeerError as error:
        missing.append(str(error))
        return ()


def _ptp(table: ProcessTable, timeout_s: float, missing: list[str]) -> list[Ptp4lDetails]:
    found: dict[int, Ptp4lDetails] = {}
    for process in table.running("ptp4l")[:MAX_PTP_CLOCKS]:
        if process.stopped:
            continue
        options = ptp4l_options(process.argv)
        try:
            one = read_ptp4l_details(options.sockets, domain=options.domain, sdo=options.sdo, timeout_s=timeout_s / 2)
        except PeerError as error:
            missing.append(str(error))
            continue
        found.setdefault(one.domain, one)
        missing += [f"ptp4l's {why}" for why in one.refused]
    return list(found.values())


def _nics() -> dict[str, NicStamps]:
    """Of interfaces that stamp with a PHC and whose driver counts."""
    found: dict[str, NicStamps] = {}
    for _, name in socket.if_nameindex()[:MAX_NICS]:
        try:
            if phc_index_of(name) is None:
                continue
        except OSError:
            continue
        counts = stamp_statistics(name).value
        if counts is not None:
            found[name] = NicStamps(stamped=counts["tx_stamped"], lost=counts["tx_lost"], errors=counts["tx_errors"])
    return found
