"""Claim and measurement side by side, and what their disagreement does to the state. Pure.

A client of a server that lies cannot know it from its daemon. Its neighbours can: where the measured offsets to at
least half of the answering peers, or to the named reference, certainly contradict a claim to be synchronised, that
claim does not stand. The peers may be wrong as well, so the state is then unknown and not a number. One peer that
stands alone against the others is said, and changes nothing: then it is the odd one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from rankclock.mesh.report import EdgeReport
from rankclock.timebase import ClockState, Offset, SyncState, format_offset_ns, format_span_ns

__all__ = ["Standing", "combine", "contradicts", "stand"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How this node stands to its peers. measured: by peer, the known ones. against: those that contradict the claim.

    shown: the one offset that stands for all: to the reference, else the narrowest of those that outnumber the others
    (one peer whose clock is off must not speak for all).
    """

    measured: dict[str, Offset]
    silent: tuple[str, ...]
    against: tuple[str, ...]
    shown: Offset
    disagrees: bool


def contradicts(claimed: Offset, measured: Offset, limit_ns: int) -> bool:
    """Whether the two cannot both hold where the peer is right within the limit: they are farther apart than that.

    claimed: here - root. measured: here - peer. Their difference is peer - root.
    """
    if claimed.lo_ns is None or claimed.hi_ns is None or measured.lo_ns is None or measured.hi_ns is None:
        return False
    return claimed.lo_ns - measured.hi_ns > limit_ns or measured.lo_ns - claimed.hi_ns > limit_ns


def stand(claimed: Offset, edges: Iterable[EdgeReport], *, reference: str, limit_ns: int) -> Standing:
    """Hold a claim against what was measured."""
    edges = tuple(edges)
    measured = {edge.peer: edge.offset for edge in edges if edge.offset.known}
    against = tuple(peer for peer, offset in measured.items() if contradicts(claimed, offset, limit_ns))
    disagrees = reference in against or 2 * len(against) >= len(measured) > 0
    camp = {peer: offset for peer, offset in measured.items() if (peer in against) == disagrees}
    return Standing(
        measured=measured,
        silent=tuple(edge.peer for edge in edges if not edge.offset.known),
        against=against,
        shown=_shown(camp, edges, reference),
        disagrees=disagrees,
    )


def _shown(measured: Mapping[str, Offset], edges: tuple[EdgeReport, ...], reference: str) -> Offset:
    if reference:
        for edge in edges:
            if edge.peer == reference:
                return edge.offset
        return Offset.unknown("the reference was not probed", reference=reference, method="probes")
    if not measured:
        why = "no peer answers" if edges else "not measured: no peers are configured"
        return Offset.unknown(why, reference="peers", method="probes")
    return min(measured.values(), key=lambda offset: (offset.bound_ns or 0, offset.reference))


def combine(state: ClockState, standing: Standing | None) -> ClockState:
    """The state that both leave."""
    if standing is None:
        return state
    state = replace(state, measured=standing.shown)
    if state.state is not SyncState.SYNCHRONISED or not standing.measured:
        return state
    reasons = tuple(_clause(peer, standing.measured[peer]) for peer in standing.against[:3])
    if not standing.disagrees:
        return replace(state, reasons=(*state.reasons, *reasons))
    count = f"{len(standing.against)} of {len(standing.measured)} peers measured contradict what the daemon claims"
    return replace(state, state=SyncState.UNKNOWN, reasons=(count, *reasons, *state.reasons))


def _clause(peer: str, offset: Offset) -> str:
    assert offset.estimate_ns is not None
    bound = format_span_ns(offset.bound_ns or 0)
    return f"measured {format_offset_ns(offset.estimate_ns)} ± {bound} from {peer}: not what the claim allows"
