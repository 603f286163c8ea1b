"""NTP clients.

Reached or not, agreed or not, synchronised or not; chrony, ntpd, timesyncd and what systemd says of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from rankclock.diagnosis.evidence import Evidence, Item, Quote
from rankclock.diagnosis.finding import Draft, Rule, Severity, draft
from rankclock.wire.text.chronyc import ChronySource, Tracking
from rankclock.wire.text.ntpq import NtpPeer, NtpVariables

__all__ = ["RULES"]

PENDING_S = 0.05

STEP_LIMIT_MS = 128.0
"""ntpd steps offsets larger than this after 15 minutes (tinker step)."""

ISLAND_REFIDS = ("LOCAL(", "127.127.1.", ".LOCL", "7F7F0101", ".ORPH")


def _by_host(items: Sequence[Item[NtpPeer]]) -> dict[tuple[str, str], list[Item[NtpPeer]]]:
    hosts: dict[tuple[str, str], list[Item[NtpPeer]]] = {}
    for item in items:
        hosts.setdefault((item.source, item.host), []).append(item)
    return hosts


def _unsynchronised(evidence: Evidence) -> Iterator[Draft]:
    for item in evidence.all(Tracking):
        track = item.value
        if track.unsynchronised is not True:
            continue
        foreign = [
            d for d in evidence.directives("chrony", "server", "peer") if d.value.arguments[0].startswith("127.127.")
        ]
        why = "no source was accepted yet, none is reachable, or none could be chosen"
        if foreign:
            why = (
                f"'{foreign[0].value.name} {foreign[0].value.arguments[0]}' is ntpd's syntax for a local clock "
                "driver, chrony takes it as a host that never answers. 'local stratum 10' is chrony's directive, and "
                "only for a deliberate island"
            )
        stratum = "?" if track.stratum is None else track.stratum
        leap = f", leap status {track.leap}" if track.leap else ""
        yield draft(
            Severity.FAULT,
            0.95,
            f"chronyd is not synchronised (reference id {track.ref_id or '?'}, stratum {stratum}{leap}): {why}. "
            "The zeros beside it are 'no data', not accuracy.",
            [*foreign[:1], item],
            values={"in_sync": False, "ref_id": track.ref_id, "stratum": track.stratum, "offset": None},
            next=("chronyc -n sources -v; chronyc activity", "journalctl -u chrony -u chronyd | tail -50"),
            confirm="'Leap status: Normal' with a reference id of a real source",
            explains=("LOCAL_DRIVER_IN_CHRONY",),
        )
        return
    for variables in evidence.all(NtpVariables):
        if variables.value.unsynchronised:
            yield draft(
                Severity.FAULT,
                0.9,
                "ntpd is not synchronised (leap alarm or stratum 16).",
                [variables],
                values={"in_sync": False, "stratum": variables.value.number("stratum")},
                next=("ntpq -pn",),
                confirm="leap=00 and a stratum below 16",
            )
            return


def _island(evidence: Evidence) -> Iterator[Draft]:
    for item in evidence.all(Tracking):
        if item.value.local:
            yield draft(
                Severity.FAULT,
                0.85,
                "chronyd is in 'local' mode: it follows nobody but itself and reports a perfect clock (delay 0, "
                "dispersion 0, leap normal). It may be any time away from UTC and from every node that follows "
                "something else.",
                [item],
                values={"ref_id": item.value.ref_id, "stratum": item.value.stratum, "traceable": False},
                next=(
                    "chronyc -n sources: why is no real source chosen",
                    "a real source, 'local stratum 10 orphan' only behind it",
                ),
                confirm="the reference id is that of a real source",
                explains=("TRACKING_WELL",),
            )
            return
    chosen = [p for p in evidence.all(NtpPeer) if p.value.tally in "*o" and p.value.local_clock]
    followers = [
        p for p in evidence.all(NtpPeer) if p.value.refid.upper().startswith(ISLAND_REFIDS) and not p.value.local_clock
    ]
    if not chosen and not [p for p in followers if p.value.tally in "*o"]:
        return
    values: dict[str, object] = {"traceable": False}
    for peer in chosen:
        values[f"{peer.host}_stratum" if peer.host else "stratum"] = peer.value.stratum
    for peer in followers:
        values[f"{peer.host}_refid" if peer.host else "refid"] = peer.value.refid
    who = chosen[0].host or "the server" if chosen else followers[0].value.name
    yield draft(
        Severity.FAULT,
        0.9,
        f"{who} follows its own undisciplined oscillator (LOCAL, stratum {(chosen or followers)[0].value.stratum}): "
        "an island. "
        f"{'Nodes that follow it inherit its time' if followers else 'Whoever follows it inherits its time'}, and "
        "nodes that use other servers are somewhere else (split brain). '*', reach 377, offset 0.000 and jitter "
        "0.000 compare the clock with itself and say nothing about accuracy.",
        [*chosen[:2], *followers[:2]],
        values=values,
        next=(
            f"on {who}: real servers (server ... iburst), drop 'server 127.127.1.0' and 'fudge 127.127.1.0'",
            "where an island is wanted: tos orphan 10, on every server of the island",
        ),
        confirm=f"ntpq -pn on {who} shows * at a real server",
        explains=("NTPQ_WELL",),
    )


def _never_reached(evidence: Evidence) -> Iterator[Draft]:
    for items in _by_host(evidence.all(NtpPeer)).values():
        real = [
            item
            for item in items
            if not item.value.local_clock and item.value.refid.upper() not in (".POOL.", ".BCST.")
        ]
        if (
            real
            and all(item.value.reach == 0 for item in real)
            and not any(i.value.tally in "*o" and not i.value.local_clock for i in items)
        ):
            yield _never_draft(
                [i.quote for i in real], [i.value.name for i in real], [i.value.reach for i in real], "ntpd"
            )
            return
    sources = [s for s in evidence.all(ChronySource) if s.value.mode in "^="]
    others = [s for s in evidence.all(ChronySource) if s.value.mode == "#" and s.value.reach]
    if sources and all(s.value.reach == 0 for s in sources) and not others:
        yield _never_draft(
            [s.quote for s in sources], [s.value.name for s in sources], [s.value.reach for s in sources], "chronyd"
        )


def _never_draft(quotes: list[Quote], names: list[str], reach: list[int], daemon: str) -> Draft:
    return draft(
        Severity.FAULT,
        0.9 if len(names) > 1 else 0.8,
        f"{daemon} has no answer from any of its {len(names)} servers (reach 0): UDP 123 is blocked or not routed "
        "on the way, names do not resolve to what was meant, or no server runs there. The offsets of 0 are 'no "
        "data'.",
        quotes,
        values={"servers": names, "reach": reach, "selected": None, "offset": None},
        next=(
            f"ping {names[0]}; chronyd -Q -t 5 'server {names[0]} iburst' (a free source port) beside ntpdate -q "
            f"{names[0]} (port 123)",
            f"tcpdump -n udp port 123 and host {names[0]}: do requests leave, do answers come",
            "the host's firewall (nft list ruleset, ufw status), then the network's",
        ),
        confirm="reach counts up: 1, 3, 7, 17, 37, 77, 177, 377",
    )


def _no_majority(evidence: Evidence) -> Iterator[Draft]:
    yield from _disagree(evidence)
    said = evidence.events("chrony-no-majority")
    wrong = [e for e in evidence.events("chrony-wrong") if not e.value.text("ignored")]
    chosen = list(dict.fromkeys(e.value.text("source") for e in evidence.events("chrony-selected")))
    rows = [s for s in evidence.all(ChronySource) if s.value.mode in "^=" and s.value.has_sample]
    bad = [s for s in rows if s.value.state == "x"]
    if not said and not (bad and not any(s.value.state in "*+" for s in rows) and len(bad) >= 2):
        return
    values: dict[str, object] = {"sources": len(chosen) or len(rows) or None}
    if len(wrong) >= 2:
        values["disagreement_s"] = round(max(abs(float(e.value.number("wrong_s") or 0)) for e in wrong[1:]), 6)
    elif len(rows) >= 2:
        offsets = [s.value.offset_ns or 0 for s in rows]
        values["disagreement_s"] = round((max(offsets) - min(offsets)) / 1e9, 6)
    apart = f" They are {values['disagreement_s']:.2f} s apart." if values.get("disagreement_s") else ""
    yield draft(
        Severity.FAULT,
        0.9,
        f"chronyd's sources contradict each other and no majority agrees, so it follows none.{apart} With two "
        "sources nobody can tell which one is wrong; three find one liar, four still do when one of them is down. "
        "Do not step to either before it is known which is right.",
        [*said[:1], *wrong[:2], *evidence.events("chrony-selected")[:2], *bad[:4]],
        values=values,
        next=(
            "chronyc -n sources -v; compare each with a third, independent time (another site, a phone)",
            "at least three, better four sources that do not depend on each other",
        ),
        confirm="one * and several + in chronyc sources",
        explains=("FALSETICKERS", "CLOCK_STEPPED", "UNSYNCHRONISED"),
    )


def _disagree(evidence: Evidence) -> Iterator[Draft]:
    """Corrections of alternating sign, each after another source was chosen."""
    order = evidence.events("chrony-selected", "chrony-wrong")
    pairs: list[tuple[str, float, Item[object]]] = []
    source = ""
    for one in order:
        if one.value.kind == "chrony-selected":
            source = one.value.text("source")
        elif not one.value.text("ignored"):
            pairs.append((source, float(one.value.number("wrong_s") or 0.0), one))  # type: ignore[arg-type]
    turned = [
        (a, b) for a, b in pairwise(pairs) if a[0] != b[0] and a[1] * b[1] < 0 and min(abs(a[1]), abs(b[1])) > PENDING_S
    ]
    if turned and not evidence.has("chrony-no-majority"):
        first, second = turned[0]
        yield draft(
            Severity.FAULT,
            0.8,
            f"chronyd corrects by {first[1]:+.3f} s after choosing {first[0]} and by {second[1]:+.3f} s after "
            f"choosing {second[0]}: the two sources disagree by that much, and the clock follows now one, now the "
            "other.",
            [first[2], second[2]],
            values={"disagreement_s": round(abs(second[1]), 6), "sources": len({p[0] for p in pairs})},
            next=("chronyc -n sources -v; take out the wrong one, have at least three",),
            confirm="no further corrections",
            explains=("CLOCK_STEPPED",),
        )


def _falsetickers(evidence: Evidence) -> Iterator[Draft]:
    rows = [s for s in evidence.all(ChronySource) if s.value.has_sample and s.value.mode in "^="]
    used = [s for s in rows if s.value.state in "*+"]
    bad = [s for s in rows if s.value.state == "x"]
    if bad and used:
        offset_s = (bad[0].value.offset_ns or 0) / 1e9
        yield draft(
            Severity.RISK,
            0.8,
            f"{len(bad)} of {len(rows)} sources ({bad[0].value.name}: {offset_s:+.6f} s) disagree with the others "
            f"and are left out. The clock follows {used[0].value.name} meanwhile; with so many left the next "
            "failure may leave no majority.",
            [*bad[:3], *used[:1]],
            values={"falsetickers": [s.value.name for s in bad], "offset_s": offset_s, "selected": used[0].value.name},
            next=("is that source wrong, smeared, or behind an asymmetric path? measure it from a second node",),
            confirm="no x in chronyc sources",
        )
    peers = [p for p in evidence.all(NtpPeer) if p.value.reach]
    liars = [p for p in peers if p.value.tally == "x"]
    if liars and any(p.value.tally in "*o" for p in peers):
        yield draft(
            Severity.RISK,
            0.75,
            f"ntpd holds {', '.join(p.value.name for p in liars[:3])} for wrong (x): it disagrees with the others.",
            liars[:3],
            values={"falsetickers": [p.value.name for p in liars], "offset_ms": liars[0].value.raw_offset_ms},
            next=("compare that server with a third source",),
        )
    elif liars and len(liars) == len(peers) and len(peers) > 1:
        offsets = [p.value.raw_offset_ms or 0.0 for p in liars]
        yield draft(
            Severity.FAULT,
            0.85,
            f"all reachable servers are marked x: they disagree by {(max(offsets) - min(offsets)) / 1000:.3f} s and "
            "ntpd follows none.",
            liars[:4],
            values={
                "sources": len(liars),
                "disagreement_s": round((max(offsets) - min(offsets)) / 1000, 6),
                "selected": None,
            },
            next=("at least three, better four independent servers",),
            confirm="one * in ntpq -pn",
        )


def _tracking_well(evidence: Evidence) -> Iterator[Draft]:
    for item in evidence.all(Tracking):
        track = item.value
        if (
            track.unsynchronised is not False
            or track.local
            or track.bound_s is None
            or (track.leap or "").lower() != "normal"
        ):
            continue
        if abs(track.frequency_ppm or 0.0) > 500 or abs(track.system_time_s or 0.0) >= PENDING_S:
            continue
        yield draft(
            Severity.HEALTHY,
            0.85,
            f"chronyd follows {track.ref_name or track.ref_id} (stratum {track.stratum}): system clock "
            f"{track.system_time_s:+.9f} s from its estimate, true time within ±{track.bound_s:.6f} s of that if "
            "the path to the source is as the protocol assumes. That is the clock against UTC; between nodes it may "
            "be better, measure it.",
            [item],
            values={"error_bound_s": round(track.bound_s, 9), "system_time_s": track.system_time_s, "in_sync": True},
        )
    rows = [s for s in evidence.all(ChronySource) if s.value.state == "*" and s.value.has_sample and s.value.reach]
    if rows and not evidence.all(Tracking):
        best = rows[0].value
        yield draft(
            Severity.HEALTHY,
            0.7,
            f"chronyd follows {best.name}: last sample {(best.offset_ns or 0) / 1e3:+.3f} µs ± "
            f"{(best.error_ns or 0) / 1e3:.3f} µs, reach {best.reach:o}.",
            [rows[0]],
            values={"selected": best.name, "offset_ns": best.offset_ns, "error_bound_ns": best.error_ns},
        )


def _ntpq_well(evidence: Evidence) -> Iterator[Draft]:
    for items in _by_host(evidence.all(NtpPeer)).values():
        selected = [i for i in items if i.value.tally in "*o" and not i.value.local_clock]
        if not selected or selected[0].value.refid.upper().startswith(ISLAND_REFIDS):
            continue
        best = selected[0].value
        has_local = any(i.value.local_clock for i in items)
        local_used = any(i.value.local_clock and i.value.reach for i in items)
        values: dict[str, object] = {
            "selected": best.name,
            "offset_ms": best.raw_offset_ms,
            "local_minus_server_ms": best.offset_ms,
            "jitter_ms": best.jitter_ms,
            "local_in_use": local_used,
        }
        if best.reach == 0:
            yield draft(
                Severity.DEGRADED,
                0.7,
                f"ntpd still names {best.name} as its peer, but its last eight polls had no answer: the clock runs "
                "free since.",
                [selected[0]],
                values=values,
                next=("ntpq -pn in a minute; tcpdump -n udp port 123",),
            )
            continue
        if best.raw_offset_ms is None:
            continue
        size = abs(best.raw_offset_ms)
        spare = "; the LOCAL clock stands by unused" if has_local and not local_used else ""
        spread = size + (best.jitter_ms or 0.0)
        if size >= STEP_LIMIT_MS:
            yield draft(
                Severity.DEGRADED if size < 1000 else Severity.FAULT,
                0.8,
                f"ntpd follows {best.name} and is {size:.1f} ms away from it: beyond 128 ms ntpd waits 15 minutes "
                "and then steps.",
                [selected[0]],
                values=values,
                next=("ntpq -c rv; does the offset shrink? who else steers the clock",),
                confirm="an offset below a few milliseconds",
            )
            continue
        yield draft(
            Severity.HEALTHY,
            0.75,
            f"ntpd follows {best.name}, offset {best.raw_offset_ms:+.3f} ms (server minus local), jitter "
            f"{best.jitter_ms} ms, reach {best.reach:o}{spare}. Good enough for logs; not for anything finer than "
            f"about {max(1.0, 2 * spread):.0f} ms, such as aligning traces.",
            [selected[0]],
            values=values,
        )


def _ntpq_none(evidence: Evidence) -> Iterator[Draft]:
    for items in _by_host(evidence.all(NtpPeer)).values():
        reached = [i for i in items if i.value.reach]
        if reached and not any(i.value.tally in "*ox" for i in items):
            yield draft(
                Severity.UNKNOWN,
                0.5,
                "servers answer, but ntpd has chosen none of them (no *): it takes some minutes after a start; "
                "later it means that they disagree, are unsynchronised themselves (stratum 16), or are too far away "
                "(tos maxdist).",
                reached[:3],
                values={"selected": None, "reach": [i.value.reach for i in items]},
                next=("ntpq -c as; ntpq -c 'rv &1'; again in five minutes",),
            )


def _rate_kod(evidence: Evidence) -> Iterator[Draft]:
    kod = evidence.events("chrony-kod")
    peers = [p for p in evidence.all(NtpPeer) if p.value.refid.upper() in (".RATE.", ".DENY.", ".RSTR.")]
    if kod or peers:
        who = kod[0].value.text("source") if kod else peers[0].value.name
        yield draft(
            Severity.RISK,
            0.8,
            f"{who} answers with a kiss of death (RATE/DENY): it wants fewer requests, or none from here. Whole "
            "clusters behind one NAT address meet this limit.",
            [*kod[:2], *peers[:2]],
            values={"source": who},
            next=("a local server for the cluster; minpoll 6 and iburst only once towards public servers",),
            confirm="no more KoD; reach 377",
        )


def _server_unsynchronised(evidence: Evidence) -> Iterator[Draft]:
    alarms = evidence.events("openntpd-alarm")
    peers = [p for p in evidence.all(NtpPeer) if p.value.reach and p.value.stratum >= 16 and not p.value.local_clock]
    sources = evidence.all(ChronySource)
    rows = [s for s in sources if s.value.mode == "^" and s.value.reach and s.value.stratum in (0, 16)]
    used = any(p.value.tally in "*o" for p in evidence.all(NtpPeer)) or any(s.value.state == "*" for s in sources)
    if not (alarms or peers or rows):
        return
    names = [e.value.text("source") for e in alarms] + [p.value.name for p in peers] + [s.value.name for s in rows]
    yield draft(
        Severity.RISK if used or alarms else Severity.FAULT,
        0.75,
        f"{', '.join(dict.fromkeys(names[:4]))} answers, but is not synchronised itself (stratum 16 or leap alarm): "
        "clients refuse it. Its own sources are the place to look.",
        [*alarms[:2], *peers[:2], *rows[:2]],
        values={"unsynchronised_servers": list(dict.fromkeys(names))},
        next=("on that server: chronyc tracking; chronyc -n sources; ntpq -pn",),
        confirm="its stratum is below 16",
        explains=("NTPQ_NONE_CHOSEN",),
    )


def _nts(evidence: Evidence) -> Iterator[Draft]:
    hits = evidence.events("chrony-nts-failed", "chrony-tls-failed")
    if hits:
        yield draft(
            Severity.FAULT,
            0.8,
            f"the NTS key exchange fails: '{hits[0].value.line.body[:90]}'. Without keys that source gives no time: "
            "TCP 4460 closed, no NTS there, a certificate that does not fit, or one that is not valid at this "
            "clock's (wrong) time.",
            hits[:3],
            values={"source": hits[0].value.text("source"), "port": 4460},
            next=(
                "nc -vz SERVER 4460; openssl s_client -connect SERVER:4460 -alpn ntske/1; date -u",
                "a first source without NTS, or nocerttimecheck 1, where the clock may be far off at boot",
            ),
            confirm="chronyc -N authdata: keys and cookies",
            explains=("NEVER_REACHED",),
        )


RULES = (
    Rule(
        id="SERVER_UNSYNCHRONISED",
        title="A server answers and is not synchronised itself",
        needs="ntpq -p, chronyc sources, or openntpd's log",
        check=_server_unsynchronised,
        arithmetic="stratum 16 (chrony: 0) with a reach above 0",
        reference="RFC 5905 7.3; openntpd-portable/openntpd-portable#25",
    ),
    Rule(
        id="NTS_FAILED",
        title="The NTS key exchange fails",
        needs="chronyd's log",
        check=_nts,
        reference="RFC 8915; chrony.conf(5) nts",
    ),
    Rule(
        id="UNSYNCHRONISED",
        title="The daemon follows nobody",
        needs="chronyc tracking, or ntpq -c rv",
        check=_unsynchronised,
        arithmetic="reference id 0 at stratum 0, leap status 'Not synchronised'; leap 3 or stratum 16 (ntpd)",
        reference="chrony reference.c; cturra/docker-ntp#63, #47",
    ),
    Rule(
        id="LOCAL_ISLAND",
        title="A server follows its own oscillator",
        needs="ntpq -p, or chronyc tracking",
        check=_island,
        reference="clustervision/trinity#487; chrony.conf(5) local",
    ),
    Rule(
        id="NEVER_REACHED",
        title="No server answers",
        needs="ntpq -p or chronyc sources",
        check=_never_reached,
        arithmetic="reach 0 for all",
        reference="netsec-ethz/scionlab#167",
    ),
    Rule(
        id="NO_MAJORITY",
        title="Sources contradict each other",
        needs="chronyd's log or chronyc sources",
        check=_no_majority,
        arithmetic="the correction after a change of source, of opposite sign; or largest minus smallest offset",
        reference="chrony.conf(5) minsources; NethServer/dev#5062",
    ),
    Rule(
        id="FALSETICKERS",
        title="A source disagrees with the others",
        needs="chronyc sources or ntpq -p",
        check=_falsetickers,
        reference="RFC 5905 11.2.1",
    ),
    Rule(
        id="KISS_OF_DEATH",
        title="A server asks for fewer requests",
        needs="chronyd's log or ntpq -p",
        check=_rate_kod,
        reference="RFC 5905 7.4",
    ),
    Rule(
        id="NTPQ_NONE_CHOSEN",
        title="Servers answer, none is chosen",
        needs="ntpq -p",
        check=_ntpq_none,
        reference="ntpq(8)",
    ),
    Rule(
        id="TRACKING_WELL",
        title="chronyd follows a source",
        needs="chronyc tracking or sources",
        check=_tracking_well,
        arithmetic="|system time| + root dispersion + root delay / 2",
        reference="chronyc(1)",
    ),
    Rule(id="NTPQ_WELL", title="ntpd follows a server", needs="ntpq -p", check=_ntpq_well, reference="ntpq(8)"),
)
