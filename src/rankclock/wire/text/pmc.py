"""PTP data sets in text: the replies of pmc, its SET commands, and the same fields in JSON or in other programs' logs.

Field names lose their spelling: `currentUtcOffset`, `current_utc_offset` and `gm.ClockClass` are one name each.
"""
# ruff: noqa: SIM905  (lists of words read best as words)

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rankclock.wire.text.line import Line
from rankclock.wire.text.number import as_float, as_int

__all__ = ["FIELDS", "PtpDataset", "read_dataset"]

FIELDS = (
    "clockClass clockAccuracy offsetScaledLogVariance currentUtcOffset leap61 leap59 currentUtcOffsetValid "
    "ptpTimescale "
    "timeTraceable frequencyTraceable timeSource master_offset ingress_time cumulativeScaledRateOffset "
    "scaledLastGmPhaseChange gmTimeBaseIndicator lastGmPhaseChange gmPresent gmIdentity stepsRemoved offsetFromMaster "
    "meanPathDelay parentPortIdentity parentStats grandmasterPriority1 grandmasterPriority2 grandmasterIdentity "
    "priority1 priority2 clockIdentity domainNumber twoStepFlag slaveOnly clientOnly numberPorts portIdentity "
    "portState "
    "logMinDelayReqInterval peerMeanPathDelay logAnnounceInterval announceReceiptTimeout logSyncInterval "
    "delayMechanism "
    "logMinPdelayReqInterval versionNumber asCapable neighborPropDelayThresh"
).split()
_BY_KEY = {re.sub(r"[^a-z0-9]", "", name.lower()): name for name in FIELDS}
_BY_KEY["utcoffset"] = "currentUtcOffset"
_BY_KEY["gmclockclass"] = "clockClass"
_BY_KEY["offsetfrommaster"] = "offsetFromMaster"
_BY_KEY["observedparentoffsetscaledlogvariance"] = "observedParentOffsetScaledLogVariance"
_REPLY = re.compile(
    r"\s*(?P<identity>[0-9a-f]{6}\.[0-9a-f]{4}\.[0-9a-f]{6}-\d+) seq \d+ "
    r"(?:RESPONSE|ACKNOWLEDGE) (?P<kind>MANAGEMENT(?:_ERROR_STATUS)?) (?P<name>\w+)"
)
_SENDING = re.compile(r"\s*sending: (?P<action>GET|SET|CMD) (?P<name>\w+)")
_COMMAND = re.compile(r"(?P<action>GET|SET|CMD)\s+(?P<name>[A-Z_]{6,})(?P<rest>.*)")
_ROW = re.compile(r"\s+(?P<key>(?:gm\.)?[A-Za-z_][\w.]*)\s+(?P<value>\S.*?)\s*$")
_PAIR = re.compile(
    r'"?\b(?P<key>[A-Za-z_][\w.]{3,40})"?(?:\s*[:=]\s*|\s+)"?'
    r"(?P<value>0x[0-9a-fA-F]+|-?\d[\w.]*|[Tt]rue|[Ff]alse|[A-Z_]{4,}|[0-9a-f]{6}\.[0-9a-f]{4}\.[0-9a-f]{6}(?:-\d+)?)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PtpDataset:
    """One data set. name: '' where only fields were pasted. command: it was set, not read. error: the node refused.

    asked_only: pmc sent the request and printed no reply.
    """

    name: str
    identity: str
    fields: Mapping[str, str]
    command: bool = False
    error: bool = False
    asked_only: bool = False

    def number(self, field: str) -> float | None:
        """A field as a number (hexadecimal too, true and false as 1 and 0), None where it is not there."""
        value = self.fields.get(field)
        if value is None:
            return None
        if value.lower() in ("true", "false"):
            return float(value.lower() == "true")
        return float(int(value, 16)) if re.fullmatch(r"0[xX][0-9a-fA-F]{1,8}", value) else as_float(value)

    def whole(self, field: str) -> int | None:
        """A field as a whole number, exact also where a float would not be."""
        value = self.fields.get(field, "")
        exact = as_int(value)
        number = self.number(field)
        return exact if exact is not None else None if number is None else int(number)


def field_name(key: str) -> str | None:
    """The standard's name of a field in any spelling, None where it is none."""
    return _BY_KEY.get(re.sub(r"[^a-z0-9]", "", key.lower().removeprefix("gm.")))


def read_dataset(lines: Sequence[Line], at: int) -> tuple[PtpDataset, int] | None:
    """A reply, a request without a reply, a SET command (continued with backslashes) or bare fields that begin here."""
    text = lines[at].text
    if match := _REPLY.match(text):
        return _reply(match["name"], match["identity"], match["kind"].endswith("STATUS"), lines, at + 1)
    if match := _SENDING.match(text):
        follows = at + 1 < len(lines) and _REPLY.match(lines[at + 1].text)
        return PtpDataset(name=match["name"], identity="", fields={}, asked_only=not follows), at + 1
    if (match := _COMMAND.search(text)) and ("pmc" in text or match["action"] == "SET"):
        return _command(match, lines, at)
    fields = _pairs(text)
    if len(fields) >= (1 if '"' in text or _continues(lines, at) else 2) and _PAIR_NEEDLE.search(text):
        end = at + 1
        while end < len(lines) and (more := _pairs(lines[end].text)):
            fields.update(more)
            end += 1
        return PtpDataset(name="", identity="", fields=fields), end
    return None


_PAIR_NEEDLE = re.compile(
    r"utc_?offset|clock_?class|clock_?accuracy|time_?source|traceable|ptp_?timescale|port_?state|"
    r"gm_?(?:present|identity)|master_?offset|offset_?from_?master|mean_?path_?delay",
    re.IGNORECASE,
)


def _continues(lines: Sequence[Line], at: int) -> bool:
    return at + 1 < len(lines) and bool(_pairs(lines[at + 1].text))


def _reply(name: str, identity: str, error: bool, lines: Sequence[Line], at: int) -> tuple[PtpDataset, int]:
    fields: dict[str, str] = {}
    end = at
    while end < len(lines) and (row := _ROW.match(lines[end].text)) and (key := field_name(row["key"])):
        fields[key] = row["value"]
        end += 1
    return PtpDataset(name=name, identity=identity, fields=fields, error=error), end


def _command(match: re.Match[str], lines: Sequence[Line], at: int) -> tuple[PtpDataset, int] | None:
    rest, end = match["rest"], at + 1
    while rest.rstrip().endswith("\\") and end < len(lines):
        rest = rest.rstrip()[:-1] + " " + lines[end].text
        end += 1
    fields = _pairs(rest)
    if match["action"] != "SET":
        return None
    return PtpDataset(name=match["name"], identity="", fields=fields, command=True), end


def _pairs(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in _PAIR.finditer(text):
        if name := field_name(pair["key"]):
            found[name] = pair["value"]
    return found
