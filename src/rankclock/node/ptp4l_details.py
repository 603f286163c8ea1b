"""What ptp4l tells beside its state: messages by type, waits in vain, its unicast masters, each port's PHC. Reads only.

linuxptp before 4.0 has none of it but PORT_STATS_NP, and read-only sockets keep PHCs to themselves: what was refused is
said, and never shown as zero. Counters start again when ptp4l does. Nothing of this enters a bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rankclock.node.ptp4l import Conversation, with_ptp4l
from rankclock.wire.ptp_data_sets import (
    DataSet,
    PortHwclock,
    PortServiceStats,
    PortStats,
    UnicastMaster,
    UnicastMasterTable,
    clock_text,
)
from rankclock.wire.ptp_management import ManagementError

__all__ = ["Ptp4lDetails", "read_ptp4l_details"]

_PER_PORT: tuple[type[DataSet], ...] = (PortStats, PortServiceStats, UnicastMasterTable, PortHwclock)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ptp4lDetails:
    """One ptp4l. identity: of its clock. masters: of all ports. refused: what it would not tell, and why."""

    domain: int
    identity: str
    stats: tuple[PortStats, ...]
    service: tuple[PortServiceStats, ...]
    masters: tuple[UnicastMaster, ...]
    hwclocks: tuple[PortHwclock, ...]
    refused: tuple[str, ...]


def read_ptp4l_details(
    sockets: Sequence[str] = (), *, domain: int = 0, sdo: int = 0, timeout_s: float = 0.5
) -> Ptp4lDetails:
    """From the first socket that answers. Raises PeerError, one line, where none does."""

    def hold(talk: Conversation) -> Ptp4lDetails:
        default, found_domain, _, answers = talk.ask_all(domain, sdo, (), _PER_PORT)
        got = [tlv for tlvs in answers.values() for tlv in tlvs]
        return Ptp4lDetails(
            domain=found_domain,
            identity=clock_text(default.clock_identity),
            stats=tuple(tlv for tlv in got if isinstance(tlv, PortStats)),
            service=tuple(tlv for tlv in got if isinstance(tlv, PortServiceStats)),
            masters=tuple(one for tlv in got if isinstance(tlv, UnicastMasterTable) for one in tlv.masters),
            hwclocks=tuple(tlv for tlv in got if isinstance(tlv, PortHwclock)),
            refused=tuple(dict.fromkeys(str(tlv) for tlv in got if isinstance(tlv, ManagementError))),
        )

    return with_ptp4l(sockets, hold, timeout_s=timeout_s)
