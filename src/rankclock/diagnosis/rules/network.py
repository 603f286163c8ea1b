"""The way between client and server: blocked ports, filters on the source port, firewalls, one-way PTP."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rankclock.diagnosis.evidence import Evidence, Item
from rankclock.diagnosis.finding import Draft, Rule, Severity, draft
from rankclock.wire.text.packets import Packet

__all__ = ["RULES"]

CLOCK_PORTS = {123: "NTP", 319: "PTP event", 320: "PTP general", 4460: "NTS key exchange"}
ASKED_OFTEN = 3


def _source_port(evidence: Evidence) -> Iterator[Draft]:
    silent = evidence.events("port-source-silent")
    answered = evidence.events("port-source-answers")
    low = [e for e in silent if e.value.text("port") == "123"]
    high = [e for e in answered if e.value.text("port") != "123"]
    if low and high:
        yield draft(
            Severity.FAULT,
            0.9,
            "requests from a free source port are answered, requests from source port 123 are not: somebody on the "
            "way (provider, NAT, firewall) drops NTP that comes back to port 123. ntpd and ntpsec ask from port "
            "123, chrony does not. The servers are up.",
            [*low[:1], *high[:1]],
            values={"src123": False, "src_ephemeral": True},
            next=(
                "chrony on this node; or let the NAT translate the source port; or ask the provider to stop the filter",
            ),
            confirm="ntpq -pn shows a reach above 0, or chronyc sources does",
            explains=("UDP_123_BLOCKED", "NEVER_REACHED", "TIMESYNCD_NO_REPLY", "NO_SOURCE"),
        )
    elif silent:
        yield draft(
            Severity.UNKNOWN,
            0.5,
            f"no reply to requests from source port {silent[0].value.text('port')}; whether another source port "
            "gets one is not said.",
            silent[:2],
            values={f"src{silent[0].value.text('port')}": False},
            next=(
                "test both: ntpdate -q SERVER (source port 123) and chronyd -Q -t 5 'server SERVER iburst' (free port)",
            ),
        )


def _blocked(evidence: Evidence) -> Iterator[Draft]:
    alive = [e for e in evidence.events("ping-answers") if e.value]
    loss = evidence.events("ping-loss")
    alive += [e for e in loss if (e.value.number("received_n") or 0) > 0]
    silent = evidence.events("ntp-silent", "ntpdate-no-server")
    if not silent or evidence.has("ntp-answers"):
        return
    if not alive:
        yield draft(
            Severity.UNKNOWN,
            0.5,
            "the server does not answer NTP; whether it is reachable at all is not said.",
            silent[:2],
            values={"udp123": False},
            next=("ping SERVER; tcpdump -n udp port 123; a second server",),
        )
        return
    off = evidence.events("firewall-off")
    policies = evidence.events("firewall-policy")
    accept = bool(policies) and all(e.value.text("policy") == "ACCEPT" for e in policies)
    host_firewall = False if off or accept else True if evidence.has("firewall-on") or policies else None
    where = (
        "The host's own firewall is off, so it is blocked upstream: a filter in the network (often after a change of "
        "addresses or a new security group)"
        if host_firewall is False
        else "Blocked in the host's firewall or further up"
    )
    yield draft(
        Severity.FAULT,
        0.85 if host_firewall is False else 0.7,
        f"the server answers ping but not NTP on UDP 123. {where}; a server that runs no NTP looks the same, "
        "another one settles it.",
        [*alive[:1], *silent[:1], *off[:2], *policies[:1]],
        values={"icmp": True, "udp123": False, "host_firewall": host_firewall},
        next=(
            "tcpdump -n udp port 123 here: requests leave, nothing returns? then the network team: UDP 123 to SERVER",
            "meanwhile a way without that port: refclock PHC /dev/ptp_kvm on a KVM guest, the provider's link-local "
            "server, another server",
            "test both source ports (123 and a free one)",
        ),
        confirm="chronyc sources shows reach 377",
        explains=("NEVER_REACHED", "TIMESYNCD_NO_REPLY"),
    )


def _firewall(evidence: Evidence) -> Iterator[Draft]:
    drops = [
        e
        for e in evidence.events("firewall-drop", "firewall-rule-drop")
        if {int(e.value.number(n) or 0) for n in ("sport_n", "dport_n")} & set(CLOCK_PORTS)
    ]
    if drops:
        ports = sorted({int(e.value.number(n) or 0) for e in drops for n in ("sport_n", "dport_n")} & set(CLOCK_PORTS))
        yield draft(
            Severity.FAULT,
            0.9,
            f"the host's firewall drops {', '.join(f'{CLOCK_PORTS[p]} (UDP {p})' for p in ports)}.",
            drops[:4],
            values={"udp_ports_dropped": ports, "host_firewall": True, "dropped": len(drops)},
            next=(
                "NTP server: allow UDP 123 in; PTP: UDP 319 and 320 in and out, multicast 224.0.1.129 and "
                "224.0.0.107; L2 PTP (0x88f7) is not seen by IP firewalls",
            ),
            confirm="no further drops; chronyc sources reach 377, or the PTP port SLAVE",
            explains=("NEVER_REACHED", "NO_MASTER_HEARD", "UDP_123_BLOCKED", "NO_SOURCE"),
        )
    prohibited = evidence.events("icmp-prohibited", "icmp-unreachable")
    if prohibited:
        unreachable = prohibited[0].value.kind == "icmp-unreachable"
        yield draft(
            Severity.FAULT,
            0.8,
            "the way back says no: "
            + (
                "nothing listens on that UDP port of the server."
                if unreachable
                else "a filter prohibits it (ICMP admin prohibited)."
            ),
            prohibited[:2],
            values={"udp123": False},
            next=(
                "start the server there (allow SUBNET in chrony.conf)"
                if unreachable
                else "the firewall that sent the message",
            ),
            confirm="answers in tcpdump",
        )


def _capture(evidence: Evidence) -> Iterator[Draft]:
    packets = evidence.all(Packet)
    ntp = Counter(p.value.kind for p in packets if p.value.protocol == "ntp")
    if ntp["client"] >= ASKED_OFTEN and not ntp["server"]:
        ports = {p.value.source_port for p in packets if p.value.protocol == "ntp"}
        yield draft(
            Severity.FAULT,
            0.8,
            f"{ntp['client']} NTP requests leave and no answer comes back: blocked on the way there or back, or no "
            "server."
            + (" All leave from source port 123; try a free one before blaming the server." if ports == {123} else ""),
            packets[:3],
            values={"ntp_requests": ntp["client"], "ntp_answers": 0, "udp123": False},
            next=("the same capture at the server: do the requests arrive",),
            confirm="'NTPv4, Server' lines in the capture",
        )
    elif ntp["client"] and ntp["server"]:
        yield draft(
            Severity.HEALTHY,
            0.4,
            f"NTP goes both ways ({ntp['client']} requests, {ntp['server']} answers in the capture).",
            packets[:2],
            values={"ntp_requests": ntp["client"], "ntp_answers": ntp["server"], "udp123": True},
        )
    yield from _ptp_capture([p for p in packets if p.value.protocol == "ptp"])


def _ptp_capture(packets: list[Item[Packet]]) -> Iterator[Draft]:
    kinds = Counter(p.value.kind for p in packets)
    domains = sorted({p.value.domain for p in packets if p.value.domain is not None})
    if len(domains) > 1:
        yield draft(
            Severity.RISK,
            0.6,
            f"PTP messages of several domains ({', '.join(map(str, domains))}) on this link: clocks of different "
            "domains do not hear each other. Wanted only where two time scales are.",
            packets[:3],
            values={"domains": domains},
            next=("the same domainNumber in ptp4l, pmc -d and phc2sys -n of one cluster",),
        )
    requests, responses = kinds["delay req"], kinds["delay resp"]
    if requests >= ASKED_OFTEN and not responses:
        yield draft(
            Severity.FAULT,
            0.75,
            f"{requests} Delay_Req messages leave and no Delay_Resp returns: the master does not get them "
            "(multicast filtered one way, IGMP snooping without a querier, UDP 319 blocked) or measures peer to "
            "peer (P2P).",
            [p for p in packets if p.value.kind == "delay req"][:3],
            values={"delay_requests": requests, "delay_responses": 0},
            next=("the same capture at the master; delay_mechanism on both; hybrid_e2e 1 sends them as unicast",),
            confirm="'delay resp' in the capture, meanPathDelay not 0.0",
        )
    elif kinds["follow up"] >= ASKED_OFTEN and not kinds["sync"] and requests:
        yield draft(
            Severity.FAULT,
            0.65,
            "Follow_Up arrives (UDP 320) and its Sync (UDP 319) does not: the event port is filtered on the way.",
            packets[:3],
            values={"follow_ups": kinds["follow up"], "syncs": 0},
            next=("firewalls for UDP 319; ptp4l's log on the master (tx timestamp)",),
            confirm="sync messages in the capture",
        )


RULES = (
    Rule(
        id="SOURCE_PORT_FILTERED",
        title="Only requests from source port 123 are dropped",
        needs="two tests: from source port 123 and from a free port",
        check=_source_port,
        reference="FalconChristmas/fpp#2736; NixOS/nixpkgs#23708",
    ),
    Rule(
        id="UDP_123_BLOCKED",
        title="UDP 123 is blocked on the way",
        needs="ping and an NTP query to the same server; the state of the host's firewall says where",
        check=_blocked,
        reference="rancher/dashboard#18351",
    ),
    Rule(
        id="FIREWALL_DROPS",
        title="A firewall drops time packets",
        needs="kernel log lines of dropped packets, rules, or ICMP messages in a capture",
        check=_firewall,
        reference="IEEE 1588 annex D (ports), RFC 5905",
    ),
    Rule(
        id="ONE_WAY",
        title="Packets go one way only",
        needs="tcpdump text",
        check=_capture,
        arithmetic="requests without answers, at least three",
        reference="tcpdump(8)",
        explains=frozenset({"NEVER_REACHED", "DELAY_NEVER_MEASURED"}),
    ),
)
