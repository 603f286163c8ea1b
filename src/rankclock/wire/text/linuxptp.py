"""The logs of ptp4l, phc2sys, ts2phc and timemaster: offsets (single and summarised) and events.

linuxptp's offsets already have our sign (the steered clock minus its source). Wordings of 3.x and 4.x and of vendors'
forks.
"""
# ruff: noqa: E501  (one message a line)

from __future__ import annotations

import re
from dataclasses import dataclass

from rankclock.wire.text.event import EventTable
from rankclock.wire.text.line import Line

__all__ = ["EVENTS", "PtpSample", "sample_of"]

_SAMPLE = re.compile(
    r"(?:(?P<clock>[A-Za-z_][\w./:-]*) )?(?P<of>master|phc|sys|pps|source|path)? ?offset\s+(?P<offset>[+-]?\d{1,22})"
    r"(?:\s+s(?P<state>\d))?(?:\s+freq\s+(?P<freq>[+-]?\d{1,12})(?!\d))?(?:\s+(?:path )?delay\s+(?P<delay>-?\d{1,20}))?"
)
_SUMMARY = re.compile(
    r"(?:(?P<clock>[A-Za-z_][\w./:-]*) )?rms\s+(?P<rms>\d{1,22})(?:\s+max\s+(?P<max>\d{1,22}))?"
    r"(?:\s+freq\s+(?P<freq>[+-]?\d{1,12}))?(?:\s+\+/-\s+(?P<dev>\d{1,12}))?(?:\s+delay\s+(?P<delay>-?\d{1,20}))?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PtpSample:
    """One printed offset. offset_ns: a single one, or the largest of a summary (then without sign) with rms_ns set.

    t_ns: the monotonic stamp of the line, otherwise its wall clock, None where it had neither.
    """

    line: int
    t_ns: int | None
    offset_ns: int
    rms_ns: int | None = None
    state: int | None = None
    freq_ppb: int | None = None
    delay_ns: int | None = None


def sample_of(line: Line) -> tuple[str, PtpSample] | None:
    """(clock that is steered, '' where not named; sample) of a line that prints an offset. None: it prints none."""
    body = line.body
    if "offset" in body and (match := _SAMPLE.search(body)):
        if match["state"] is None and not (line.program and match["of"] in ("master", "phc", "sys", "pps")):
            return None
        return _clock(match, line), PtpSample(
            line=line.number,
            t_ns=line.mono_ns if line.mono_ns is not None else line.wall_ns,
            offset_ns=int(match["offset"]),
            state=int(match["state"]) if match["state"] else None,
            freq_ppb=int(match["freq"]) if match["freq"] else None,
            delay_ns=int(match["delay"]) if match["delay"] else None,
        )
    if "rms" in body and (match := _SUMMARY.search(body)) and match["max"]:
        return _clock(match, line), PtpSample(
            line=line.number,
            t_ns=line.mono_ns if line.mono_ns is not None else line.wall_ns,
            offset_ns=int(match["max"]),
            rms_ns=int(match["rms"]),
            freq_ppb=int(match["freq"]) if match["freq"] else None,
            delay_ns=int(match["delay"]) if match["delay"] else None,
        )
    return None


def _clock(match: re.Match[str], line: Line) -> str:
    name: str | None = match["clock"]
    return "" if name is None or name == line.program else name


_PORT = r"port (?P<port_n>\d+)(?: \((?P<iface>[^)]*)\))?: "

EVENTS = EventTable(
    (
        ("ptp-state", " to ", _PORT + r"(?P<old>[A-Z_]{5,}) to (?P<new>[A-Z_]{5,})(?: on (?P<why>[A-Z_]+))?(?: \((?P<ft>\w+)\))?"),
        ("ptp-tx-timeout", "timed out while polling for tx timestamp", r"timed out while polling"),
        ("ptp-tx-timeout", "missing timestamp on transmitted", r"missing timestamp on transmitted (?P<message>[\w ]+)"),
        ("ptp-tx-hint", "increasing tx_timestamp_timeout", r"increasing tx_timestamp_timeout"),
        ("ptp-tx-error", "poll for tx timestamp", r"poll for tx timestamp (?P<why>failed.*|woke up.*)"),
        ("ptp-send-failed", "send ", _PORT + r"send (?P<message>[\w ]+?) failed"),
        ("ptp-rx-no-stamp", "without timestamp", r"received (?P<message>[A-Za-z_]+) without timestamp"),
        ("ptp-clockcheck", "clockcheck:", r"clock jumped (?P<way>backward|forward)"),
        ("ptp-clockcheck", "clockcheck:", r"clock frequency changed unexpectedly(?P<way>)"),
        ("ptp-phc-mismatch", "PHC device mismatch", _PORT + r"PHC device mismatch"),
        ("ptp-phc-requested", " requested, ptp", r"(?:port (?P<port_n>\d+)(?: \((?P<iface>[^)]*)\))?: )?/dev/ptp(?P<requested_n>\d+) requested, ptp(?P<attached_n>\d+) attached"),
        ("ptp-selected-phc", " as PTP clock", r"selected (?P<device>\S+) as PTP clock"),
        ("ptp-no-stamping", "does not support requested timestamping mode", r"interface '(?P<iface>[^']*)'"),
        ("ptp-open-failed", "failed to open port", r"failed to open port (?P<iface>\S+)"),
        ("ptp-no-clock", "failed to create a clock", r"failed to create a clock"),
        ("ptp-best-master", "selected best master clock", r"selected best master clock (?P<clock>[0-9a-fA-F.:-]+)"),
        ("ptp-local-best", "selected local clock", r"selected local clock (?P<clock>[0-9a-fA-F.:-]+) as best master"),
        ("ptp-grandmaster-role", "assuming the grand master role", r"(?:port (?P<port_n>\d+))?.*assuming"),
        ("ptp-foreign-master", "new foreign master", _PORT + r"new foreign master (?P<clock>[0-9a-fA-F.]+)"),
        ("ptp-not-ptp-timescale", "foreign master not using PTP timescale", r"foreign master"),
        ("ptp-master-in-slave-only", "master state recommended in slave only mode", _PORT),
        ("ptp-priority-hint", "defaultDS.priority1 probably misconfigured", _PORT),
        ("ptp-hwtstamp", "driver changed our HWTSTAMP options", r"driver changed"),
        ("ptp-tx-type", "tx_type ", r"tx_type +(?P<granted_n>\d+) not (?P<asked_n>\d+)"),
        ("ptp-rx-filter", "rx_filter ", r"rx_filter +(?P<granted_n>\d+) not (?P<asked_n>\d+)(?: or (?P<other_n>\d+))?"),
        ("ptp-filter-rejected", "driver rejected most general HWTSTAMP filter", r"driver rejected"),
        ("ptp-filter-wrong", "current filter does not match", r"filter does not match"),
        ("ptp-hwtstamp-failed", "SIOCSHWTSTAMP", r"SIOCSHWTSTAMP(?: failed)?:? ?(?P<why>.*)"),
        ("ptp-switch-phc", "Switching PHC, ", r"Switching PHC, (?P<why>.*)"),
        ("ptp-as-capable", "setting asCapable", r"port (?P<port_n>\d+)"),
        ("ptp-not-as-capable", "resetting asCapable", _PORT + r"(?P<why>.*), resetting asCapable"),
        ("ptp-not-as-capable", "not AsCapable", r"Link delay (?P<delay_ns>-?\d+) beyond (?P<why>neighborPropDelayThresh)"),
        ("ptp-no-pdelay", "PDelay Response Receipt Timeout", r"PDelay Response"),
        ("ptp-rogue-peer", "rogue peer delay response", _PORT),
        ("ptp-multiple-peers", "multiple peer responses", _PORT),
        ("ptp-multiple-peers", "multiple sequential peer delay resp", _PORT),
        ("ptp-delay-mismatch", "pdelay_req on E2E port", _PORT),
        ("ptp-delay-mismatch", "delay request on P2P port", _PORT),
        ("ptp-bad-message", "bad message", _PORT + r"bad message"),
        ("ptp-delay-timeout", "delay timeout", _PORT + r"delay timeout"),
        ("ptp-announce-timeout", "announce timeout", _PORT + r"announce timeout"),
        ("ptp-rx-timeout", "sync timeout", _PORT + r"(?P<which>rx sync|sync|master sync) timeout"),
        ("ptp-link", "link ", _PORT + r"link (?P<state>up|down)"),
        ("ptp-negative-delay", "negative delay", r"negative (?:path )?delay +(?P<delay_ns>-?\d+)"),
        ("ptp-utc-updated", "updating UTC offset to", r"updating UTC offset to (?P<utc_n>\d+)"),
        ("ptp-vortex", "running in a temporal vortex", r"temporal vortex"),
        ("ptp-jbod", "just a bunch of devices", r"port (?P<port_n>\d+)"),
        ("ptp-port-count", "BC needs at least two interfaces", r"(?P<kind>BC)"),
        ("ptp-no-interface", "no interface specified", r"no interface"),
        ("ptp-unknown-option", "unknown option", r"unknown option (?P<option>\S+)(?: at line (?P<at_n>\d+))?(?: in (?P<section>\S+) section)?"),
        ("ptp-bad-value", "value for option", r"(?P<value>\S+) is an? (?P<why>bad|malformed|out of range) value for option (?P<option>\S+)(?: at line (?P<at_n>\d+))?"),
        ("ptp-deprecated", "is deprecated, please use", r"option (?P<option>\S+) is deprecated, please use (?P<better>\S+)"),
        ("ptp-not-adjustable", "clock is not adjustable", r"clock is not adjustable"),
        ("ptp-adjust-failed", "failed to ", r"failed to (?P<what>adjust the clock|step clock|set the clock offset|set TAI offset|set clock status[\w ]*|set the clock status|read out the clock [\w ]+): (?P<why>.*)"),
        ("ptp-bind-failed", "bind failed", r"(?P<what>[\w ]*)bind failed: (?P<why>.*)"),
        ("ptp-mcast-failed", "mcast_join failed", r"mcast_join failed"),
        ("ptp-sendto-failed", "sendto failed", r"(?P<uds>uds: )?sendto failed: (?P<why>.*)"),
        ("phc2sys-no-offset", "time offset must be specified", r"time offset must be specified"),
        ("phc2sys-waiting", "Waiting for ptp4l", r"Waiting for ptp4l"),
        ("phc2sys-nothing", "nothing to synchronize", r"nothing to synchronize"),
        ("phc2sys-not-ready", "master clock not ready", r"clock not ready"),
        ("phc2sys-many", "multiple master clocks available", r"multiple master clocks"),
        ("phc2sys-no-utc", "failed to get UTC offset", r"failed to get UTC offset"),
        ("phc2sys-selecting", " for synchronization", r"selecting (?P<clock>\S+) (?:for synchronization|as .*clock)"),
        ("phc2sys-selecting", "as the master clock", r"selecting (?P<clock>\S+)"),
        ("phc2sys-reconfiguring", "reconfiguring after port state change", r"reconfiguring"),
        ("phc2sys-pps", "PPS is not in sync with PHC", r"not in sync with PHC \((?P<fraction_s>[\d.]+)\)"),
        ("ts2phc-leapfile", "past leap second table expiry", r"leap second table"),
        ("ts2phc-no-table", "unable to find utc time in leap second table", r"unable to find"),
        ("ts2phc-tai-unset", "UTC-TAI offset not set in system", r"not set in system"),
        ("ts2phc-invalid", "ts not valid", r"(?P<which>source|master) ts not valid"),
        ("ts2phc-invalid", "invalid master time stamp", r"ignoring invalid (?P<which>master)"),
        ("ts2phc-nmea-delay", "nmea delay:", r"nmea delay: (?P<delay_ns>-?\d{1,20}) ns"),
        ("ts2phc-no-fix", "no valid rmc fix", r"no valid rmc fix"),
        ("ts2phc-stale", "rmc time stamp stale", r"stale"),
        ("ts2phc-nmea-timeout", "nmea source timed out", r"timed out"),
        ("ts2phc-nmea-failed", "failed to open nmea source", r"failed to open nmea source (?P<source>\S+)"),
        ("ts2phc-no-events", "poll returns zero, no events", r"no events"),
        ("ts2phc-skip", "SKIP extts", r"(?P<clock>\S+) SKIP extts"),
        ("ts2phc-extts", "extts index", r"(?P<clock>\S+) extts index \d+ at (?P<at_s>\d+\.\d+) corr -?\d+ src (?P<src_s>\d+\.\d+) diff (?P<diff_ns>-?\d+)"),
        ("ts2phc-pin", "PTP_PIN_SETFUNC request failed", r"PTP_PIN_SETFUNC"),
        ("ts2phc-nmea", "nmea sentence:", r"nmea sentence: (?P<sentence>\S+)"),
        ("ptp-clear-fault", "clearing fault on port", r"clearing fault on port (?P<port_n>\d+)"),
        ("ptp-fault-wait", "seconds to clear fault", r"clear fault on port (?P<port_n>\d+)"),
        ("ptp-peer-set", "peer port id set to", _PORT + r"peer port id set to (?P<clock>\S+)"),
        ("ptp-config-item", "config item", r"config item (?P<item>\S+) is (?P<value>.*)"),
    )
)  # fmt: skip
"""In the order of trust: a row with its own wording before rows that share a word."""
