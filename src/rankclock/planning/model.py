"""What a plan is made of: questions with their answers, roles, error budgets, refusals. Values only.

Everything that a plan says carries its reason; a figure that is not known is None, never zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from rankclock.planning.codec import from_plain, to_plain

__all__ = [
    "PLAN_SCHEMA",
    "Answer",
    "Decision",
    "ErrorBudget",
    "Expectation",
    "Hop",
    "NodeRole",
    "NtpServer",
    "Owner",
    "Plan",
    "PortSide",
    "PtpPort",
    "Question",
    "Reach",
    "RefClock",
    "RefClockKind",
    "Refusal",
    "Role",
    "Scheme",
]

PLAN_SCHEMA = "rankclock-plan/1"


class Scheme(StrEnum):
    """How time is spread in the cluster."""

    NTP = "ntp"
    PTP_HARDWARE = "ptp-hardware"
    PTP_SOFTWARE = "ptp-software"

    @property
    def protocol(self) -> str:
        """`ntp` or `ptp`."""
        return self.value.partition("-")[0]


class Role(StrEnum):
    """What a node does for the cluster's time."""

    SOURCE = "source"
    NTP_SERVER = "ntp-server"
    NTP_CLIENT = "ntp-client"
    GRANDMASTER = "grandmaster"
    BACKUP_GRANDMASTER = "backup-grandmaster"
    BOUNDARY_CLOCK = "boundary-clock"
    TRANSPARENT_CLOCK = "transparent-clock"
    ORDINARY_CLOCK = "ordinary-clock"


class Owner(StrEnum):
    """The one program that steers CLOCK_REALTIME. NOBODY: the node is a reference that we do not configure."""

    CHRONYD = "chronyd"
    NTPD = "ntpd"
    PHC2SYS = "phc2sys"
    PTP4L = "ptp4l"
    NOBODY = "nobody"


class Answer(StrEnum):
    """An answer to a question. UNKNOWN never counts as a yes."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


class Reach(StrEnum):
    """Whether the plan reaches the accuracy asked for. Beyond the expectation: no; within the bound: yes."""

    YES = "yes"
    NO = "no"
    CANNOT_TELL = "cannot be told"


class PortSide(StrEnum):
    """Which way time flows through a port of a PTP clock."""

    UP = "up"  # the port may follow; the best-master algorithm decides
    DOWN = "down"  # the port only ever serves


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One question of the decision. threshold: the named setting that it hangs on, with its value; None without one."""

    key: str
    question: str
    answer: Answer
    evidence: tuple[str, ...]
    threshold: str | None
    would_change: str
    leads_to: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What a scheme is expected to reach here between two nodes: typical (RMS) and bound, and where that comes from."""

    scheme: Scheme
    possible: Answer
    typical_ns: int
    bound_ns: int
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The scheme chosen, and every question on the way. chosen_by: `tree`, or `owner` where the owner asked for it.

    tree_scheme: what the questions alone lead to. excluded: machines that are no nodes of their own (containers).
    """

    scheme: Scheme | None
    chosen_by: str
    tree_scheme: Scheme
    reason: str
    questions: tuple[Question, ...]
    expectations: tuple[Expectation, ...]
    excluded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """One step of the way from the source to a node: what it adds. None: no figure is known.

    common: shared by all nodes, so it shifts them against UTC and not against each other.
    """

    what: str
    typical_ns: int | None
    bound_ns: int | None
    common: bool
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBudget:
    """What all hops add up to, as bounds: against the source (total), and against the cluster's common top."""

    hops: tuple[Hop, ...]
    total_ns: int | None
    in_cluster_ns: int | None
    in_cluster_typical_ns: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NtpServer:
    """A server that is asked. reference: outside the cluster. smeared: None where unknown. nts, key: how it is known.

    watched: asked, and never followed.
    """

    name: str
    address: str
    prefer: bool
    reference: bool
    smeared: bool | None = None
    nts: bool = False
    key: int | None = None
    watched: bool = False


class RefClockKind(StrEnum):
    """Where a reference clock of a node gets its time."""

    GPS = "gps"  # a receiver: sentences through gpsd, its pulse into the kernel
    GPS_NIC = "gps-nic"  # a receiver: sentences to ts2phc, its pulse into a NIC's clock
    PHC = "phc"  # the clock that a cloud provider gives its machines; UTC
    PTP = "ptp"  # the PHC that ptp4l keeps, as long as it follows a grandmaster


@dataclass(frozen=True, slots=True, kw_only=True)
class RefClock:
    """A clock at the node itself. device: serial line, or PHC. pps: the pulse's device. nic, pin: where it comes in.

    delay_s: by how much a sentence comes after its second. bound_ns: how far it may be off; None where unknown.
    """

    name: str
    kind: RefClockKind
    device: str
    pps: str | None = None
    nic: str | None = None
    pin: int = 0
    baud: int = 9600
    delay_s: float | None = None
    bound_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PtpPort:
    """An interface that takes part in PTP. phc_index: None where it is not known (declared, not seen).

    asks: the clocks above by address, where PTP is unicast.
    """

    nic: str
    segment: str
    side: PortSide
    phc_index: int | None
    asks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRole:
    """What one node does, whom it follows (preferred first), who owns its clock, when it starts, what it may be off by.

    tier: start order, 0 first. steps: how many clocks above it (1: directly below the source or grandmaster).
    clients: networks that it serves by NTP; local_stratum: at which it goes on serving without any source.
    mates: servers that it falls back to when its own are gone. priority1, priority2: PTP only. refclocks: clocks at
    the node itself.
    """

    node: str
    role: Role
    upstream: tuple[str, ...]
    owner: Owner
    tier: int
    budget: ErrorBudget
    why: str
    steps: int = 0
    servers: tuple[NtpServer, ...] = ()
    mates: tuple[NtpServer, ...] = ()
    clients: tuple[str, ...] = ()
    local_stratum: int | None = None
    ports: tuple[PtpPort, ...] = ()
    stamps: Scheme | None = None
    priority1: int | None = None
    priority2: int | None = None
    refclocks: tuple[RefClock, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """What cannot be, why, and what to do. subject: a node, `rack NAME`, `source NAME` or `the plan`."""

    subject: str
    reason: str
    do: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Who does what, why, and whether that reaches the goal. ntp_backup: chronyd falls back to NTP under PTP."""

    cluster: str
    scheme: Scheme | None
    decision: Decision
    roles: Mapping[str, NodeRole]
    refused: tuple[Refusal, ...]
    accuracy_ns: int
    worst_pair: tuple[str, str] | None
    worst_pair_ns: int | None
    worst_pair_typical_ns: int | None
    reach: Reach
    notes: tuple[str, ...] = ()
    ntp_backup: bool = False

    @property
    def protocol(self) -> str | None:
        """`ntp`, `ptp`, or None where no plan could be made."""
        return self.scheme.protocol if self.scheme else None

    @property
    def usable(self) -> bool:
        """Whether every node that should have a role has one, and the goal is not out of reach."""
        return self.scheme is not None and not self.refused and self.reach is not Reach.NO

    def to_json(self) -> dict[str, Any]:
        """A JSON object, schema 'rankclock-plan/1'."""
        return {"schema": PLAN_SCHEMA, "protocol": self.protocol, "usable": self.usable, **to_plain(self)}

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """The inverse of `to_json`. Raises DecodeError for anything else."""
        return from_plain(cls, value, schema=PLAN_SCHEMA, derived=("protocol", "usable"))
