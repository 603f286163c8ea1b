"""Cluster time on one node: who defines it, what this node believes of it, and what it tells others.

Cluster time is the reference's RAW clock less an offset and a rate that are fixed once. Every datagram carries what its
sender believes (own RAW - cluster time, with bounds); a node chains its measured edge to a peer with what the peer
believes, over all its peers, and takes what most of these ways agree on. So hosts that do not probe the reference
themselves learn of it over leaders, in a few rounds and without a coordinator. Bounds stay hard along any way: a belief
that comes back to its author in a loop is true and says nothing new.

When nothing has come from the reference for a while, by no way, the first living successor carries its estimate on: it
defines cluster time from then on, and a higher epoch tells everybody. Where two do so at once, one of them gives way.
Decides whom to believe; refuses (unknown) where ways contradict each other evenly. No I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rankclock.clockmath.relation import Disagreement, Relation, agree
from rankclock.wire.probe import WireBelief, tag_of

__all__ = ["Role", "Timescale", "Way"]

NS_PER_S = 1_000_000_000
SUCCEED_PERIODS = 4
"""So many periods without a word of the reference, by any way, and the first successor takes over; each next one waits
as long again. A peer counts as lost after three."""

MAX_HOPS = 64
MILLI = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """What all nodes of a job agree on at its start, and what this one is told besides.

    successors: who follows when the reference is lost, in this order. The reference's alone, by definition: when its
    RAW read anchor_raw_ns, RAW - cluster time was anchor_ns, and RAW gains anchor_rate_ppb on it. epoch: the first one.
    """

    reference: str
    successors: tuple[str, ...] = ()
    anchor_ns: int | None = None
    anchor_raw_ns: int = 0
    anchor_rate_ppb: float = 0.0
    epoch: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A measured edge to a peer: own RAW - its RAW at the newest sample, and when it last answered."""

    peer: str
    relation: Relation
    heard_raw_ns: int
    exchanges: int
    user_stamped: int


@dataclass(frozen=True, slots=True)
class _Heard:
    """What a peer believes, as of its own RAW clock. age_ns: how long ago the reference had spoken, at `at_raw_ns`."""

    belief: WireBelief
    relation: Relation
    at_raw_ns: int


class Timescale:
    """One node's view. `hear` takes beliefs in, `update` concludes, `belief` is what goes out.

    why: why the relation is unknown, where something was heard; silent: where nothing was.
    """

    def __init__(self, node: str, role: Role, *, period_ns: int, known: Iterable[str] = ()) -> None:
        self.node = node
        self.role = role
        self.epoch = 0
        self.reference = role.reference
        self.relation: Relation | None = None
        self.why = ""
        self.silent = "nothing has come from the reference yet"
        self.hops = 0
        self.exchanges = self.user_stamped = self.odd = 0
        self.odd_peers: tuple[str, ...] = ()
        self.confirmed_raw_ns: int | None = None
        self._period_ns = period_ns
        self._root: Relation | None = None
        self._heard: dict[str, _Heard] = {}
        self._names = {tag_of(name): name for name in (role.reference, node, *role.successors, *known)}
        self._place = role.successors.index(node) if node in role.successors else None

    def begin(self, now_ns: int) -> None:
        """The reference defines cluster time; for all others nothing is known yet."""
        self.confirmed_raw_ns = now_ns
        role = self.role
        if self.node == role.reference and role.anchor_ns is not None:
            root = Relation.itself(role.anchor_raw_ns, role.anchor_ns, rate_ppb=role.anchor_rate_ppb)
            self._define(root, max(role.epoch, 1), now_ns)

    @property
    def defines(self) -> bool:
        """Whether this node is the one that defines cluster time."""
        return self._root is not None

    def hear(self, peer: str, belief: WireBelief | None, now_ns: int) -> None:
        """A datagram of a peer came in, with what it believes."""
        if belief is None:
            self._heard.pop(peer, None)
            return
        if belief.hops >= MAX_HOPS:
            return
        self._heard[peer] = _Heard(belief, _relation(belief), now_ns)

    def forget(self, peer: str) -> None:
        """Its clock is another one: what it believed is void until it says so again."""
        self._heard.pop(peer, None)

    def update(self, ways: Sequence[Way], now_ns: int, *, doubt: str = "") -> str | None:
        """Conclude anew from all edges. The name of the new reference, where cluster time changed hands.

        doubt: why an edge gives no way although it is measured: its rate may have jumped, and what was known is void.
        """
        changed = self._follow_epochs(now_ns)
        if self._root is None:
            self._combine(ways, now_ns, doubt)
            if self._should_take_over(now_ns):
                assert self.relation is not None
                here = self.relation.at(now_ns)
                self.reference = self.node
                self._define(Relation.itself(now_ns, here.est_ns, rate_ppb=here.rate_ppb), self.epoch + 1, now_ns)
                return self.node
        else:
            self.relation = self._root.at(now_ns)
            self.confirmed_raw_ns = now_ns
        return changed

    def belief(self, now_ns: int) -> WireBelief | None:
        """What to tell others."""
        if self._root is not None:
            self.relation, self.confirmed_raw_ns = self._root.at(now_ns), now_ns
        way = self.relation
        if way is None or self.confirmed_raw_ns is None:
            return None
        return _belief(way, self.epoch, tag_of(self.reference), self.hops, max(now_ns - self.confirmed_raw_ns, 0))

    def _define(self, root: Relation, epoch: int, now_ns: int) -> None:
        self._root, self.relation = root, root.at(now_ns)
        self.epoch, self.hops, self.reference = epoch, 0, self.node
        self.exchanges = self.user_stamped = self.odd = 0
        self.confirmed_raw_ns, self.why = now_ns, ""

    def _follow_epochs(self, now_ns: int) -> str | None:
        """Give way to a higher epoch, and within one to the lower tag: all nodes choose alike."""
        mine = (self.epoch, -tag_of(self.reference)) if self.epoch else (0, 0)
        best = max(self._heard.values(), key=lambda heard: (heard.belief.epoch, -heard.belief.reference), default=None)
        if best is None or (best.belief.epoch, -best.belief.reference) <= mine:
            return None
        first = self.epoch == 0
        self.epoch = best.belief.epoch
        self.reference = self._names.get(best.belief.reference, f"{best.belief.reference:016x}")
        self._root, self.relation = None, None
        self.why = f"cluster time is {self.reference}'s now, and no way to it is measured yet"
        self.confirmed_raw_ns = now_ns
        return None if first else self.reference

    def _combine(self, ways: Sequence[Way], now_ns: int, doubt: str) -> None:
        """Chain each edge with what its peer believes; take what most agree on."""
        mine = self.epoch, tag_of(self.reference)
        found = []
        for way in ways:
            heard = self._heard.get(way.peer)
            if heard is not None and (heard.belief.epoch, heard.belief.reference) == mine:
                found.append((heard, way, way.relation.at(now_ns).then(heard.relation)))
        if not found:
            self._keep(now_ns, doubt)
            return
        found.sort(key=lambda item: (item[0].belief.hops, item[2].width_ns))
        agreed = agree([relation for _, _, relation in found])
        if isinstance(agreed, Disagreement):
            names = " and ".join(way.peer for _, way, _ in found[:4])
            self.relation = None
            self.why = f"what {names} say of cluster time differs by {agreed.by_ns} ns more than their bounds allow"
            return
        self.odd = len(agreed.odd)
        self.odd_peers = tuple(found[index][1].peer for index in agreed.odd)
        inside = [item for index, item in enumerate(found) if index not in agreed.odd]
        self.relation, self.why = agreed.relation, ""
        self.hops = inside[0][0].belief.hops + 1
        self.exchanges = sum(way.exchanges for _, way, _ in inside)
        self.user_stamped = sum(way.user_stamped for _, way, _ in inside)
        self.confirmed_raw_ns = max(self._confirmed(heard, way) for heard, way, _ in inside)

    def _keep(self, now_ns: int, doubt: str) -> None:
        """No way to cluster time is left: what was known ages, unless an edge contradicts itself."""
        if doubt:
            self.relation, self.why = None, doubt
        if self.relation is not None:
            self.relation = self.relation.at(now_ns)

    def _confirmed(self, heard: _Heard, way: Way) -> int:
        """Local RAW when the reference had spoken, as this peer knows; ages only grow on the way, also in loops."""
        return min(heard.at_raw_ns, way.heard_raw_ns) - heard.belief.age_ms * 1_000_000

    def _should_take_over(self, now_ns: int) -> bool:
        if self._place is None or self.relation is None or self.confirmed_raw_ns is None or self.epoch == 0:
            return False
        turn = self._place + 1 - (self.reference in self.role.successors[: self._place])
        return now_ns - self.confirmed_raw_ns > turn * SUCCEED_PERIODS * self._period_ns


def _relation(belief: WireBelief) -> Relation:
    likely = belief.rate_mppb / MILLI
    return Relation(
        at_ns=belief.at_raw_ns,
        lo_ns=belief.estimate_ns - belief.below_ns,
        hi_ns=belief.estimate_ns + belief.above_ns,
        est_ns=belief.estimate_ns,
        slowest_ppb=likely - belief.slower_mppb / MILLI,
        fastest_ppb=likely + belief.faster_mppb / MILLI,
        rate_ppb=likely,
        wander_ppb_per_s=belief.wander_ppb_per_s,
    )


def _belief(way: Relation, epoch: int, reference: int, hops: int, age_ns: int) -> WireBelief | None:
    """None where it does not fit the wire: an offset known to 4 s only is not worth telling."""
    rate = round(way.rate_ppb * MILLI)
    told = WireBelief(
        epoch=epoch,
        reference=reference,
        hops=hops,
        at_raw_ns=way.at_ns,
        estimate_ns=way.est_ns,
        below_ns=way.est_ns - way.lo_ns,
        above_ns=way.hi_ns - way.est_ns,
        rate_mppb=rate,
        slower_mppb=max(int(rate - way.slowest_ppb * MILLI) + 1, 0),
        faster_mppb=max(int(way.fastest_ppb * MILLI - rate) + 1, 0),
        wander_ppb_per_s=way.wander_ppb_per_s,
        age_ms=min(-(-age_ns // 1_000_000), 0xFFFFFFFF),
    )
    return told if told.fits else None
