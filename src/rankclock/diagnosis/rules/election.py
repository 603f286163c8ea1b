"""Who is grandmaster, what it claims, and whether nodes agree on it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from rankclock.diagnosis.evidence import Evidence, Item
from rankclock.diagnosis.finding import Draft, Rule, Severity, draft
from rankclock.wire.text.event import Event
from rankclock.wire.text.gpsd import GpsReport
from rankclock.wire.text.packets import Packet
from rankclock.wire.text.pmc import PtpDataset

__all__ = ["RULES"]

LOCKED_CLASSES = (6, 7)
"""clockClass of a clock that follows a primary reference, and of one that did so a moment ago (IEEE 1588 table 5)."""

INTERNAL = 0xA0

ACCURACY_UNKNOWN = 0xFE

FREE_CLASSES = (13, 14, 52, 58, 187, 193, 248, 255)

FLAPS = 3


def _datasets(evidence: Evidence, *fields: str) -> list[Item[PtpDataset]]:
    return [one for one in evidence.all(PtpDataset) if any(field in one.value.fields for field in fields)]


def _fields(item: Item[PtpDataset]) -> dict[str, object]:
    """The fields that say what a grandmaster claims, as numbers where they are numbers, as printed otherwise."""
    found: dict[str, object] = {}
    for name in ("clockClass", "currentUtcOffset", "currentUtcOffsetValid", "ptpTimescale", "timeTraceable"):
        if (number := item.value.whole(name)) is not None:
            found[name] = number
    found |= {name: item.value.fields[name] for name in ("timeSource", "clockAccuracy") if name in item.value.fields}
    return found


def _utc_not_valid(evidence: Evidence) -> Iterator[Draft]:
    for item in _datasets(evidence, "currentUtcOffsetValid"):
        data = item.value
        offset, valid, scale = (data.whole(f) for f in ("currentUtcOffset", "currentUtcOffsetValid", "ptpTimescale"))
        if valid != 0 or scale == 0 or not offset:
            continue
        yield draft(
            Severity.RISK,
            0.85 if scale is None else 0.8,
            f"the master announces currentUtcOffset {offset} and currentUtcOffsetValid 0: a receiver must not use "
            f"the {offset}, so those that take UTC from PTP (phc2sys -w and -a, other vendors' devices) stay "
            f"{offset} s away or keep an old value. That the number is right does not help.",
            [item],
            values={**_fields(item), "expected_client_error_s": offset},
            next=(
                "pmc -u -b 0 'SET GRANDMASTER_SETTINGS_NP ... currentUtcOffsetValid 1 ...' with all eleven fields, "
                "again after each restart of ptp4l; or a master that does it",
                "pmc -u -b 0 'GET TIME_PROPERTIES_DATA_SET' on a client",
            ),
            confirm="clients show currentUtcOffsetValid 1 and the kernel's TAI offset is 37 (ntptime, adjtimex)",
        )
        return


def _contradiction(evidence: Evidence) -> Iterator[Draft]:
    fixes = [r for r in evidence.all(GpsReport) if r.value.kind == "TPV" and r.value.mode is not None]
    no_fix = bool(fixes) and all((r.value.mode or 0) < 2 for r in fixes)
    for item in _datasets(evidence, "timeTraceable", "clockClass", "timeSource"):
        data = item.value
        cls, source, accuracy, traceable = (
            data.whole(f) for f in ("clockClass", "timeSource", "clockAccuracy", "timeTraceable")
        )
        against = []
        if traceable == 1 and cls in FREE_CLASSES:
            against.append(f"timeTraceable 1 although clockClass {cls} says that it follows no reference")
        if traceable == 1 and source == INTERNAL:
            against.append("timeTraceable 1 although timeSource 0xa0 is the internal oscillator")
        if cls in LOCKED_CLASSES and source == INTERNAL:
            against.append(
                f"clockClass {cls} (locked to a primary reference) although timeSource is the internal oscillator"
            )
        if cls in LOCKED_CLASSES and accuracy == ACCURACY_UNKNOWN:
            against.append(f"clockClass {cls} with clockAccuracy 0xfe (unknown)")
        if cls == LOCKED_CLASSES[0] and no_fix:
            against.append("clockClass 6 while the GPS receiver has no fix")
        if not against:
            continue
        yield draft(
            Severity.FAULT if no_fix and cls == LOCKED_CLASSES[0] else Severity.RISK,
            0.85,
            f"the grandmaster's settings contradict each other: {'; '.join(against)}. Other nodes choose their "
            "master by these claims; a clock that claims a lock it does not have wins elections that it should lose.",
            [item, *fixes[:1]],
            values=_fields(item),
            next=(
                "claim what holds: 248/0xfe/0xa0/timeTraceable 0 without a reference, 6/0x21/0x20/1 only while locked",
                "let a supervisor set and withdraw the claim with the lock (pmc SET GRANDMASTER_SETTINGS_NP)",
            ),
            confirm="the claims change when the antenna is unplugged",
        )
        return


def _best_masters(evidence: Evidence) -> Iterator[Draft]:
    chosen = evidence.events("ptp-best-master", "ptp-local-best")
    by_host: dict[tuple[str, str], list[Item[Event]]] = {}
    for one in chosen:
        by_host.setdefault((one.source, one.host), []).append(one)
    for items in by_host.values():
        names = [one.value.text("clock") for one in items]
        changes = [(a, b) for a, b in pairwise(items) if a.value.text("clock") != b.value.text("clock")]
        distinct = list(dict.fromkeys(names))
        if len(changes) < FLAPS - 1 or len(distinct) < 2 or names[0] not in names[2:]:
            continue
        own = [n for one, n in zip(items, names, strict=True) if one.value.kind == "ptp-local-best"]
        others = [n for n in distinct if n not in own]
        alone = bool(own) and len(others) == 1
        cause = (
            f"this node changes between grandmaster {others[0]} and itself {len(changes)} times: its Announce "
            "messages come and go (loss, a loaded or blocked path, announceReceiptTimeout too short), and each time "
            "it takes over itself. It should be clientOnly, or the path mended."
            if alone
            else f"the best master changes {len(changes)} times between {', '.join(distinct[:4])}: two clocks claim "
            "to be grandmaster and neither yields for good. Equal or unset priority1, claims that change (clockClass "
            "with a flapping GPS lock), or the two do not hear each other while this node hears both."
        )
        yield draft(
            Severity.FAULT,
            0.8,
            cause,
            items[:6],
            values={"grandmasters": distinct[:8], "changes": len(changes), "local_clock": own[0] if own else None},
            next=(
                "pmc -u -b 0 'GET PARENT_DATA_SET' on several nodes: gm identity, class, priorities",
                "give the wanted grandmaster the lowest priority1 and the backup the next; clientOnly 1 on all others",
                "tcpdump -n -i IFACE 'udp port 320 or ether proto 0x88f7': who sends Announce, in which domain",
            ),
            confirm="one 'selected best master clock' line and no more for an hour",
            explains=("NO_MASTER_HEARD", "SYNC_FLAPPING", "CLOCK_JUMPED"),
        )
        return


def _two_masters(evidence: Evidence) -> Iterator[Draft]:
    announces: dict[int | None, dict[str, Item[Packet]]] = {}
    for one in evidence.all(Packet):
        if one.value.protocol == "ptp" and one.value.kind == "announce":
            announces.setdefault(one.value.domain, {}).setdefault(one.value.clock or one.value.source, one)
    for domain, senders in announces.items():
        if len(senders) > 1:
            yield _two_found(
                list(senders), list(senders.values()), f"{len(senders)} clocks send Announce in domain {domain}", 0.75
            )
            return
    seen: dict[str, Item[PtpDataset]] = {}
    hosts: set[str] = set()
    for parent in _datasets(evidence, "grandmasterIdentity", "gmIdentity"):
        fields = parent.value.fields
        seen.setdefault(fields.get("grandmasterIdentity") or fields.get("gmIdentity") or "", parent)
        hosts.add(parent.host or parent.value.identity.rsplit("-", 1)[0])
    if len(seen) > 1 and len(hosts) > 1:
        yield _two_found(list(seen), list(seen.values()), f"nodes follow {len(seen)} different grandmasters", 0.8)


def _two_found(
    names: list[str], items: list[Item[Packet]] | list[Item[PtpDataset]], what: str, confidence: float
) -> Draft:
    return draft(
        Severity.FAULT,
        confidence,
        f"{what} ({', '.join(names[:4])}). In one domain one clock announces and the rest are silent: here two "
        "parts of the cluster follow two times, or an election goes wrong (the two do not hear each other: VLAN, "
        "IGMP snooping, masterOnly on both, or priorities that are equal).",
        items[:4],
        values={"grandmasters": names[:8]},
        next=(
            "pmc -u -b 0 'GET DEFAULT_DATA_SET' on both: priority1, clockClass, domain",
            "let each hear the other's Announce (UDP 320 / 0x88f7 through the switch), one lower priority1",
        ),
        confirm="all nodes name one grandmasterIdentity",
    )


def _lost(evidence: Evidence) -> Iterator[Draft]:
    states = evidence.events("ptp-state")
    for index, one in enumerate(states):
        old, new, why = (one.value.text(n) for n in ("old", "new", "why"))
        if why != "ANNOUNCE_RECEIPT_TIMEOUT_EXPIRES" or old not in ("SLAVE", "UNCALIBRATED"):
            continue
        later = [s for s in states[index + 1 :] if s.value.text("new") == "SLAVE"]
        back = f" It came back: {len(later)} times SLAVE again." if later else ""
        yield draft(
            Severity.FAULT,
            0.85 if not later else 0.7,
            f"a port that followed a master went from {old} to {new}: no Announce came for announceReceiptTimeout "
            f"intervals. The grandmaster, or the path to it, is gone; the clock runs free since.{back} ptp4l's data "
            "sets keep showing the old grandmaster and offset.",
            [one, *later[:1]],
            values={"old_state": old, "port_state": new, "recovered": bool(later)},
            next=(
                "is ptp4l up on the master; tcpdump -n -i IFACE 'udp port 320 or ether proto 0x88f7' here",
                "a second grandmaster with the next priority1",
            ),
            confirm="the port is SLAVE again and stays so",
            explains=("NO_MASTER_HEARD",),
        )
        return


def _not_heard(evidence: Evidence) -> Iterator[Draft]:
    states = evidence.events("ptp-state")
    for one in states:
        if one.value.text("why") == "ANNOUNCE_RECEIPT_TIMEOUT_EXPIRES" and one.value.text("old") == "LISTENING":
            became = one.value.text("new")
            yield draft(
                Severity.UNKNOWN,
                0.5,
                f"no Announce was heard from any master, and the port went to {became}. Right on the grandmaster "
                "itself; on every other node a fault (other domain, other transport, blocked UDP 319/320 or "
                "multicast, master not running).",
                [one, *evidence.events("ptp-local-best")[:1]],
                values={"port_state": became},
                next=(
                    "should this node be a client? then: tcpdump -n -i IFACE 'udp port 320 or ether proto 0x88f7'",
                    "compare domainNumber, network_transport and delay_mechanism with the master's",
                ),
            )
            return


def _self_master(evidence: Evidence) -> Iterator[Draft]:
    for one in _datasets(evidence, "gmPresent"):
        offset = one.value.whole("master_offset")
        if one.value.whole("gmPresent") == 0 and offset:
            yield draft(
                Severity.FAULT,
                0.7,
                f"gmPresent is false: this node is its own grandmaster, yet master_offset {offset} ns is left from "
                "a master that it followed before. It lost that master and now serves its own free-running time.",
                [one],
                values={"master_offset_ns": offset, "gm_present": False},
                next=("clientOnly 1 on nodes that must never lead", "is the grandmaster up and heard here"),
                confirm="gmPresent true with the wanted gmIdentity",
            )
            return


def _not_ptp_timescale(evidence: Evidence) -> Iterator[Draft]:
    hits = evidence.events("ptp-not-ptp-timescale")
    if hits:
        yield draft(
            Severity.EXPLAINED,
            0.6,
            "'foreign master not using PTP timescale' is normal for a master with software stamps: it serves UTC in "
            "an arbitrary timescale, and no UTC offset is applied.",
            hits[:1],
            values={"ptpTimescale": 0},
            next=("make sure that nobody adds 37 s on the way: phc2sys -O 0 in such a domain",),
        )


RULES = (
    Rule(
        id="UTC_OFFSET_NOT_VALID",
        title="The UTC offset is announced but not valid",
        needs="time properties of the grandmaster (pmc, JSON, a log)",
        check=_utc_not_valid,
        arithmetic="currentUtcOffset s is the error that clients will have",
        reference="IEEE 1588-2019 8.2.4.3; ouster-lidar/ouster-sdk#144",
    ),
    Rule(
        id="GM_CLAIM_CONTRADICTS",
        title="A grandmaster's claims contradict each other",
        needs="clockClass, timeSource, timeTraceable (pmc GET or SET), a GPS report helps",
        check=_contradiction,
        reference="IEEE 1588-2019 tables 4, 5, 6; nxp-archive/openil_linuxptp#51",
    ),
    Rule(
        id="MASTERS_FLAP",
        title="The best master changes again and again",
        needs="ptp4l's log",
        check=_best_masters,
        arithmetic="number of changes of 'selected best master clock'",
        reference="IEEE 1588-2019 9.3 (BMCA)",
    ),
    Rule(
        id="TWO_GRANDMASTERS",
        title="Two grandmasters in one domain",
        needs="a capture with Announce messages, or pmc replies of several nodes",
        check=_two_masters,
        reference="IEEE 1588-2019 9.3 (BMCA)",
    ),
    Rule(
        id="MASTER_LOST",
        title="A port lost the master that it followed",
        needs="ptp4l's log",
        check=_lost,
        reference="IEEE 1588-2019 9.2.6.12",
    ),
    Rule(id="NO_MASTER_HEARD", title="No master is heard", needs="ptp4l's log", check=_not_heard, reference="ptp4l(8)"),
    Rule(
        id="BECAME_OWN_MASTER",
        title="A node leads itself and shows a stale offset",
        needs="pmc TIME_STATUS_NP",
        check=_self_master,
        reference="linuxptp clock.c, clock_update_grandmaster",
    ),
    Rule(
        id="ARBITRARY_TIMESCALE",
        title="A master that does not use the PTP timescale",
        needs="ptp4l's log",
        check=_not_ptp_timescale,
        reference="ptp4l(8)",
    ),
)
