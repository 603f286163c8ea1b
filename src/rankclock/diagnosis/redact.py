"""Names and addresses out of evidence, so that somebody else may read it; what the rules reason from stays.

One name or address gets one substitute everywhere in a bundle: who is the same as whom can still be seen. Numbers,
stamps, versions, device names and well-known public sources are kept. Refuses to promise more: read a bundle before
giving it away.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

from rankclock.diagnosis.evidence import Evidence
from rankclock.diagnosis.rules.config import smears
from rankclock.wire.text.timedatectl import DAEMONS

__all__ = ["Redactor"]

_V4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.]*\w)")
_V6 = re.compile(
    r"(?<![\w:.])(?:[0-9a-fA-F]{1,4}:){2,7}(?::?[0-9a-fA-F]{1,4})?(?:(?<=:)|(?![\w:]))|(?<![\w:])::1?(?![\w:])"
)
_MAC = re.compile(r"(?<![\w:])(?:[0-9a-f]{2}:){5}[0-9a-f]{2}(?![\w:])", re.IGNORECASE)
_CLOCK = re.compile(r"(?<![\w.])[0-9a-f]{6}\.[0-9a-f]{4}\.[0-9a-f]{6}(?!\w)")
_CLOCK_HEX = re.compile(r"0x[0-9a-f]{12,16}(?!\w)")
_MAIL = re.compile(r"[\w.+-]+@(?!\S+\.(?:service|timer|socket|target)\b)(?=[\w-]+\.[\w.-]+)")
_NAME = re.compile(
    r"(?<![\w./@-])(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?\.)+"
    r"(?:com|net|org|io|edu|gov|mil|int|info|dev|cloud|local|lan|internal|cluster|corp|example|"
    r"ac|ae|at|au|be|bg|br|ca|ch|cl|cn|co|cz|de|dk|ee|es|eu|fi|fr|gr|hk|hr|hu|id|ie|il|in|is|it|jp|kr|lt|lu|lv|mx|my|nl|"
    r"no|nz|ph|pk|pt|ro|ru|se|sg|si|sk|th|tr|tw|ua|uk|us|vn|za)(?![\w-]|\.\w)"
)
_USER = re.compile(r"(?<=\[)[\w-]+(?=@)|(?<=^)[\w-]+(?=@[\w.-]+:)")
_KEPT_NETWORKS = tuple(
    ipaddress.ip_network(text)
    for text in ("127.0.0.0/8", "224.0.0.0/4", "169.254.169.0/24", "0.0.0.0/8", "255.255.255.255/32", "192.0.2.0/24")
)
_KEPT_SUFFIXES = ("pool.ntp.org", "cloudflare.com", "nist.gov", "ptb.de", "cloud.aliyuncs.com", "aliyun.com")
_COMMON_WORDS = {"localhost", "host", "here", "root", "kernel", "node", "master", "server", "client", *DAEMONS}


class Redactor:
    """Substitutes, the same for the same. Names of hosts come from the evidence: prompts, log prefixes, facts."""

    def __init__(self, evidence: Evidence | None = None, *, names: Iterable[str] = ()) -> None:
        self._given: dict[tuple[str, str], str] = {}
        found = set(names)
        if evidence is not None:
            found |= {item.host for item in evidence.items} | {series.host for series in evidence.series}
        hosts = [name for name in found if len(name) > 2 and name.lower() not in _COMMON_WORDS and not _V4.match(name)]
        ordered = sorted(hosts, key=lambda name: (-len(name), name))
        self._hosts = (
            re.compile("|".join(rf"(?<![\w.-]){re.escape(name)}(?![\w-])" for name in ordered)) if ordered else None
        )

    def text(self, text: str) -> str:
        """The text with substitutes."""
        text = _MAIL.sub("user@", text)
        text = _NAME.sub(self._named, text)
        if self._hosts is not None:
            text = self._hosts.sub(lambda match: self._as("host", match[0].lower(), "host-{}"), text)
        text = _MAC.sub(lambda match: self._as("mac", match[0].lower(), "02:00:00:00:00:{:02x}"), text)
        text = _CLOCK.sub(lambda match: self._as("clock", match[0], "0000aa.fffe.{:06x}"), text)
        text = _CLOCK_HEX.sub(lambda match: self._as("hex", match[0], "0xaafffe{:08x}"), text)
        text = _V6.sub(self._six, text)
        text = _V4.sub(self._four, text)
        return _USER.sub("user", text)

    def _as(self, kind: str, name: str, form: str) -> str:
        key = (kind, name)
        if key not in self._given:
            number = sum(1 for given, _ in self._given if given == kind) + 1
            self._given[key] = form.format(number)
        return self._given[key]

    def _named(self, match: re.Match[str]) -> str:
        name = match[0].lower()
        if smears(name) or name.endswith(_KEPT_SUFFIXES) or name.endswith(".example"):
            return match[0]
        return self._as("host", name, "host-{}.example")

    def _four(self, match: re.Match[str]) -> str:
        try:
            address = ipaddress.IPv4Address(match[0])
        except ValueError:
            return match[0]
        if any(address in network for network in _KEPT_NETWORKS):
            return match[0]
        known = self._as("ip", match[0], "{}")
        return f"198.18.{int(known) >> 8}.{int(known) & 255}"

    def _six(self, match: re.Match[str]) -> str:
        try:
            address = ipaddress.IPv6Address(match[0])
        except ValueError:
            return match[0]
        if address.is_loopback or address.is_multicast or address.is_unspecified or match[0].lower() == "fd00:ec2::123":
            return match[0]
        return self._as("ip6", str(address), "2001:db8::{:x}")
