"""What each NIC can do for PTP, and which machines are nodes at all: facts first, declarations where there are none.

Yes needs evidence. A NIC of which nothing is known is unknown, and unknown never counts as capable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rankclock.cluster.facts import Facts, NicFacts
from rankclock.cluster.model import Cluster, Nic, NicUse, NodeKind, Stamps
from rankclock.planning.settings import Settings

__all__ = ["LAB_PHC_NAME", "NicCapability", "capabilities", "cloud_of", "excluded_nodes"]

LAB_PHC_NAME = "rankclock lab PHC"
"""How the lab's emulated clocks call themselves: stamps made in software, on a virtual clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NicCapability:
    """What one NIC can do. None: not known. why: the evidence, or what is missing.

    ethernet: whether PTP could travel over it at all. emulated: its "hardware" stamps are made in software.
    missing: the facts say that there is no such interface.
    """

    nic: Nic
    hardware: bool | None
    software: bool | None
    why: str
    ethernet: bool | None = None
    phc_index: int | None = None
    emulated: bool = False
    missing: bool = False


def capabilities(cluster: Cluster, facts: Mapping[str, Facts]) -> dict[str, tuple[NicCapability, ...]]:
    """For each node the NICs that may carry time, those marked for time first."""
    found = {}
    for node in cluster.nodes:
        nics = sorted(
            (nic for nic in node.nics if nic.use is not NicUse.DATA), key=lambda nic: nic.use is not NicUse.TIME
        )
        found[node.name] = tuple(_capability(nic, facts.get(node.name)) for nic in nics)
    return found


def _capability(nic: Nic, facts: Facts | None) -> NicCapability:
    seen = facts.nic(nic.name) if facts else None
    if facts is None or seen is None:
        if facts is not None and facts.nic_names():
            there = ", ".join(facts.nic_names())
            why = f"{nic.name}: no such interface among those that were seen ({there})"
            return NicCapability(nic=nic, hardware=False, software=False, ethernet=False, why=why, missing=True)
        return _declared(nic)
    if seen.link_type == "infiniband":
        return NicCapability(
            nic=nic, hardware=False, software=False, ethernet=False, why=f"{nic.name}: InfiniBand carries no PTP"
        )
    if seen.link_type is not None and seen.link_type != "ethernet":
        return NicCapability(
            nic=nic, hardware=False, software=False, ethernet=False, why=f"{nic.name}: link type {seen.link_type}"
        )
    return _seen(nic, facts, seen)


def _declared(nic: Nic) -> NicCapability:
    if nic.stamps is None:
        why = f"{nic.name}: no facts collected, nothing declared"
        return NicCapability(nic=nic, hardware=None, software=None, why=why)
    why = f"{nic.name}: {nic.stamps} stamps declared in the cluster file, not seen"
    return NicCapability(nic=nic, hardware=nic.stamps is Stamps.HARDWARE, software=True, ethernet=True, why=why)


def _seen(nic: Nic, facts: Facts, seen: NicFacts) -> NicCapability:
    hardware, why = seen.hardware_stamps, ""
    index = seen.phc_index if seen.phc_index is not None and seen.phc_index >= 0 else None
    phc = facts.phc(index) if index is not None else None
    named = f"{nic.name} ({seen.driver or seen.kind or 'driver unknown'})"
    if hardware and phc is not None and phc.max_adj_ppb == 0:
        hardware, why = False, f"{named}: its clock /dev/ptp{index} cannot be steered"
    elif hardware and phc is not None and phc.advances is False:
        hardware, why = False, f"{named}: its clock /dev/ptp{index} stands still"
    elif hardware:
        why = f"{named}: hardware stamps, /dev/ptp{index}"
    elif hardware is None:
        why = f"{named}: whether it stamps in hardware could not be seen"
    else:
        lacking = _lacking(seen)
        why = f"{named}: no {lacking}" + (", a virtual interface" if seen.virtual else "")
    emulated = bool(hardware) and (bool(seen.virtual) or (phc is not None and phc.clock_name == LAB_PHC_NAME))
    return NicCapability(
        nic=nic,
        hardware=hardware,
        software=seen.software_stamps,
        why=why + (", made in software" if emulated else ""),
        ethernet=True if seen.link_type == "ethernet" else None,
        phc_index=index,
        emulated=emulated,
    )


def _lacking(seen: NicFacts) -> str:
    parts = (
        ("hardware-transmit", seen.tx_hardware),
        ("hardware-receive", seen.rx_hardware),
        ("hardware-raw-clock", seen.raw_hardware),
        ("PTP hardware clock", None if seen.phc_index is None else seen.phc_index >= 0),
    )
    return ", ".join(name for name, there in parts if there is False)


def excluded_nodes(cluster: Cluster, facts: Mapping[str, Facts], settings: Settings) -> dict[str, str]:
    """Machines that are no nodes: containers that may not set a clock share their host's. Name to reason."""
    excluded: dict[str, str] = {}
    for node in cluster.nodes:
        of_node = facts.get(node.name)
        if of_node is None or settings.clocks_are_virtual or node.kind is NodeKind.SOURCE:
            continue
        container = of_node.text("virtualisation", "container")
        if container in (None, "none") or of_node.flag("cap_sys_time") is not False:
            continue
        excluded[node.name] = f"a {container} container without CAP_SYS_TIME: its clock is its host's"
    return excluded


def cloud_of(facts: Mapping[str, Facts]) -> tuple[str | None, tuple[str, ...]]:
    """The provider that the facts name, and the nodes that say so; None where no node names one."""
    votes: dict[str, list[str]] = {}
    for name, of_node in facts.items():
        cloud = of_node.text("virtualisation", "cloud")
        if cloud not in (None, "none"):
            votes.setdefault(str(cloud), []).append(name)
    if not votes:
        return None, ()
    cloud = max(sorted(votes), key=lambda key: len(votes[key]))
    return cloud, tuple(votes[cloud])
