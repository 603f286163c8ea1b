"""What the network says: tcpdump lines, ping, port tests, NTP queries, and the state of firewalls."""
# ruff: noqa: E501  (one message a line)

from __future__ import annotations

import re
from dataclasses import dataclass

from rankclock.wire.text.event import EventTable
from rankclock.wire.text.line import Line

__all__ = ["EVENTS", "Packet", "read_packet"]

_ENDS = r"(?:IP6?|UDP)?\s*(?P<src>[\w.:-]+?)\.(?P<sport>\d+|ntp|ptp-event|ptp-general) > (?P<dst>[\w.:-]+?)\.(?P<dport>\d+|ntp|ptp-event|ptp-general): "
_NTP = re.compile(_ENDS + r".*?NTPv(?P<version>\d), (?P<role>Client|Server|symmetric \w+|Broadcast|Reserved)")
_PTP = re.compile(r"PTPv(?P<version>\d)(?:\.\d)?,.*?msg type ?: (?P<kind>[\w ]+?) msg")
_PTP_DOMAIN = re.compile(r"domain(?: number)? ?: (?P<domain>\d+)")
_L2 = re.compile(
    r"(?P<src>[0-9a-f]{2}(?::[0-9a-f]{2}){5}).*?> (?P<dst>[0-9a-f]{2}(?::[0-9a-f]{2}){5}).*?(?:0x88f7|PTP)",
    re.IGNORECASE,
)
_SOURCE = re.compile(_ENDS)
_CLOCK = re.compile(r"clock identity ?: (?P<clock>0x[0-9a-f]+)")
_NAMED = {"ntp": 123, "ptp-event": 319, "ptp-general": 320}


@dataclass(frozen=True, slots=True, kw_only=True)
class Packet:
    """One captured packet. protocol: 'ntp' or 'ptp'. kind: 'client', 'server', 'announce', 'sync', 'delay req', ..."""

    protocol: str
    kind: str
    source: str
    destination: str
    source_port: int | None = None
    domain: int | None = None
    clock: str | None = None


def read_packet(line: Line) -> Packet | None:
    """One line of tcpdump text with an NTP or PTP packet."""
    text = line.text
    if "NTPv" in text and (match := _NTP.search(text)):
        return Packet(
            protocol="ntp",
            kind=match["role"].lower(),
            source=match["src"],
            destination=match["dst"],
            source_port=_port(match["sport"]),
        )
    if "PTPv" in text and (match := _PTP.search(text)):
        ends = _SOURCE.search(text) or _L2.search(text)
        domain, clock = _PTP_DOMAIN.search(text), _CLOCK.search(text)
        return Packet(
            protocol="ptp",
            kind=match["kind"].lower().strip(),
            source=ends["src"] if ends else "",
            destination=ends["dst"] if ends else "",
            domain=int(domain["domain"]) if domain else None,
            clock=clock["clock"] if clock else None,
        )
    return None


def _port(text: str) -> int | None:
    return _NAMED.get(text) or (int(text) if text.isdigit() and len(text) < 6 else None)


_HOST = r"(?P<host>[A-Za-z0-9][\w.:-]*)"

EVENTS = EventTable(
    (
        ("ping-answers", "bytes from", rf"\d+ bytes from {_HOST}"),
        (
            "ping-loss",
            "packet loss",
            r"(?P<sent_n>\d+) packets transmitted, (?P<received_n>\d+)(?: packets)? received.*?(?P<loss_ms>[\d.]+)% packet loss",
        ),
        ("ping-silent", "Destination Host Unreachable", r"Destination Host Unreachable"),
        (
            "ping-answers",
            "ping",
            rf"(?i)^\W*ping6? +{_HOST}\b.*?(?:->|:|=>|–|-)\s*(?:repl(?:ies|y)|ok\b|works|answers|alive|success|reachable)",
        ),
        (
            "ping-silent",
            "ping",
            rf"(?i)^\W*ping6? +{_HOST}\b.*?(?:->|:|=>)\s*(?:no repl|timeout|timed out|100% loss|unreachable|fails)",
        ),
        (
            "port-source-silent",
            "source port",
            r"(?i)source port (?P<port>\d+|ephemeral|high|random|unprivileged)\b.*(?:no (?:reply|response|answer)|timeout|timed out|silen)",
        ),
        (
            "port-source-answers",
            "source port",
            r"(?i)source port (?P<port>\d+|ephemeral|high|random|unprivileged)\b.*(?:repl(?:y|ies)|response|answer|ok\b)",
        ),
        (
            "port-source-silent",
            "sport",
            r"(?i)(?:--)?s(?:rc)?port[ =]+(?P<port>\d+|ephemeral|high).*(?:no (?:reply|response|answer)|timeout|timed out)",
        ),
        (
            "port-source-answers",
            "sport",
            r"(?i)(?:--)?s(?:rc)?port[ =]+(?P<port>\d+|ephemeral|high).*(?:repl(?:y|ies)|response|answer)",
        ),
        (
            "ntp-silent",
            "NTP",
            rf"(?i)\b(?:s?ntp|ntpdate|chrony\w*) (?:query|test|probe|request) +(?:to )?{_HOST}.*?(?:no (?:reply|response|answer)|timeout|timed out)",
        ),
        (
            "ntp-answers",
            "NTP",
            rf"(?i)\b(?:s?ntp|ntpdate|chrony\w*) (?:query|test|probe|request) +(?:to )?{_HOST}.*?(?:repl(?:y|ies)|response|answer|ok\b|offset)",
        ),
        ("ntp-silent", "sntp", rf"(?i)sntp .*{_HOST}.*(?:no response|timeout)"),
        ("ntp-silent", "123/udp", r"123/udp\s+(?:closed|filtered|open\|filtered)\s*\w*"),
        ("ntp-answers", "123/udp", r"123/udp\s+open\s+ntp"),
        ("ntp-silent", "123", rf"(?i)(?:nc|ncat)\b.*{_HOST} (?:port )?123\b.*(?:refused|timed out)"),
        ("icmp-prohibited", "admin prohibited", r"ICMP (?P<host>\S+) .*admin prohibited"),
        ("icmp-unreachable", "udp port", r"ICMP (?P<host>\S+) udp port (?P<port>\w+) unreachable"),
        ("firewall-off", "ufw", r"(?i)ufw status\W*(?:->|:)?\s*inactive"),
        ("firewall-off", "Status: inactive", r"^Status: inactive"),
        ("firewall-on", "Status: active", r"^Status: active"),
        (
            "firewall-off",
            "iptables",
            r"(?i)iptables (?:policy|rules)?\W*(?:->|:)?\s*(?:all ACCEPT|empty|none|no rules)",
        ),
        (
            "firewall-policy",
            "(policy ",
            r"Chain (?P<chain>INPUT|OUTPUT|FORWARD) \(policy (?P<policy>ACCEPT|DROP|REJECT)",
        ),
        ("firewall-policy", "-P ", r"^-P (?P<chain>INPUT|OUTPUT|FORWARD) (?P<policy>ACCEPT|DROP|REJECT)"),
        ("firewall-off", "firewalld", r"(?i)firewalld?(?:\.service)?\W*(?:->|:|is)?\s*(?:not running|inactive)"),
        ("firewall-off", "not running", r"^not running$"),
        (
            "firewall-drop",
            "DPT=",
            r"(?i)(?P<how>BLOCK|DROP|REJECT|FINAL_REJECT)\S*.*?SRC=(?P<src>\S+).*?DST=(?P<dst>\S+).*?PROTO=UDP.*?SPT=(?P<sport_n>\d+) DPT=(?P<dport_n>\d+)",
        ),
        ("firewall-rule-drop", "dpt:", r"(?P<how>DROP|REJECT)\s+(?:udp|17|all|0)\b.*dpts?:(?P<dport_n>\d+)"),
        (
            "firewall-rule-drop",
            "--dport",
            r"-A (?P<chain>INPUT|OUTPUT|FORWARD)\b.*-p udp\b.*--dport (?P<dport_n>\d+).*-j (?P<how>DROP|REJECT)",
        ),
        ("firewall-rule-drop", "udp dport", r"udp dport \{?\s*(?P<dport_n>\d+).*\b(?P<how>drop|reject)"),
        ("firewall-services", "services:", r"^\s*services: (?P<services>.*)"),
        ("igmp", "igmp", r"(?i)igmp[ _-]snooping\W+(?P<state>on|off|enabled|disabled|1|0)\b"),
    )
)
