"""Roles in a cloud: each machine follows the provider's own time, which is one hop away and the same for all.

The provider's clock in the machine (a PHC that nobody here steers) comes before its NTP server. A smeared server beside
an unsmeared clock is only watched, never followed. Refuses a cloud of which no time service is known.
"""

from __future__ import annotations

from dataclasses import replace

from rankclock.cluster.model import Node, Provider
from rankclock.planning.budget import add_up, unknown_hop
from rankclock.planning.model import Hop, NtpServer, RefClock, Refusal
from rankclock.planning.ntp_roles import Layout, chrony_owned
from rankclock.planning.references import CLOUD_NTP, cloud_clock, names, smears
from rankclock.planning.survey import Survey

__all__ = ["cloud_layout"]

_SMEARING_CLOCKS = (Provider.GCP,)
"""Whose machines' clock follows a smeared host, as the NTP server there does. Others keep UTC."""


def cloud_layout(survey: Survey) -> Layout:
    """Roles of all planned nodes in a cloud."""
    addresses = CLOUD_NTP.get(Provider(survey.cloud), ()) if survey.cloud in list(Provider) else ()
    servers = tuple(_provided(address) for address in addresses) or tuple(
        replace(source, prefer=True) for source in survey.sources
    )
    clocks = {node.name: _clock(survey, node) for node in survey.planned}
    without = [name for name, clock in clocks.items() if clock is None]
    if without and not servers:
        return Layout(roles={}, refused=(_nothing_known(survey),))
    roles = {}
    for node in survey.planned:
        clock = clocks[node.name]
        asked = servers if clock is None else tuple(_beside(server, survey.cloud) for server in servers)
        role = chrony_owned(survey, node, asked, serves=False, depth=0)
        roles[node.name] = replace(
            role,
            refclocks=(clock,) if clock is not None else (),
            upstream=role.upstream if clock is None else (clock.name, *role.upstream),
            budget=add_up([_hop(survey.cloud, clock)]),
            why="follows the provider's own time" if clock is None else f"follows the provider's clock {clock.device}",
        )
    return Layout(roles=roles, notes=_notes(survey, addresses, clocks))


def _provided(address: str) -> NtpServer:
    return NtpServer(name=address, address=address, prefer=True, reference=True, smeared=smears(address) or None)


def _clock(survey: Survey, node: Node) -> RefClock | None:
    return cloud_clock(survey.cloud, survey.references.cloud, survey.facts.get(node.name))


def _beside(server: NtpServer, provider: str | None) -> NtpServer:
    """A server beside the provider's clock: the second choice; only watched where it smears and the clock does not."""
    apart = server.smeared is True and provider not in _SMEARING_CLOCKS
    return replace(server, prefer=False, watched=apart)


def _hop(provider: str | None, clock: RefClock | None) -> Hop:
    if clock is None:
        what, why = "the provider's server to the node by NTP", "no measured figure for this provider"
    else:
        what = f"{provider or 'the provider'}'s clock {clock.device} to the node"
        why = "no measured figure: the driver's own error bound is read on the node (phc_error_bound)"
    return unknown_hop(what, common=False, why=why)


def _nothing_known(survey: Survey) -> Refusal:
    which = f"for {survey.cloud} no NTP server is known" if survey.cloud else "the provider is not known"
    return Refusal(
        subject="the plan",
        reason=f"the machines are a cloud's and {which}",
        do="collect facts (rankclock probe), say network.provider, or name the provider's server under sources:",
    )


def _notes(survey: Survey, addresses: tuple[str, ...], clocks: dict[str, RefClock | None]) -> tuple[str, ...]:
    notes = []
    mixed = [source.name for source in survey.sources if addresses and source.address not in addresses]
    if mixed:
        notes.append(f"{names(mixed)}: not used, the provider's time is nearer and may be smeared")
    having = [name for name, clock in clocks.items() if clock is not None]
    without = [name for name, clock in clocks.items() if clock is None]
    if having and survey.cloud == Provider.AWS:
        notes.append("the server smears leap seconds and the clock does not: the server is watched, never followed")
    if having and without:
        notes.append(f"{names(without)}: no clock of the provider was seen there, they follow its server by NTP")
    if having and survey.cloud == Provider.AZURE:
        notes.append("a machine that was frozen by its host wakes up behind and is slewed, not stepped, in mid-run")
    return tuple(notes)
