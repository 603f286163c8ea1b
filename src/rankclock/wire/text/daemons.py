"""Messages of chronyd, ntpd, ntpdate, systemd-timesyncd, gpsd and systemd about them.

Signs as the daemons print them: chronyd's "System clock wrong by X" is what it will add to the clock, so X > 0 means
that the clock was behind; ntpd's "time reset" likewise. Rules turn them.
"""
# ruff: noqa: E501  (one message a line)

from __future__ import annotations

from rankclock.wire.text.event import EventTable

__all__ = ["EVENTS"]

_ADDRESS = r"(?P<source>[\w.:%>-]+)"

EVENTS = EventTable(
    (
        # chronyd
        ("chrony-version", "chronyd version", r"chronyd version (?P<version>\S+) starting"),
        ("chrony-selected", "Selected source", rf"Selected source {_ADDRESS}"),
        (
            "chrony-wrong",
            "System clock wrong by",
            r"System clock wrong by (?P<wrong_s>-?[\d.]+) seconds?(?P<ignored>.*\(ignored\))?",
        ),
        ("chrony-stepped", "System clock was stepped by", r"System clock was stepped by (?P<step_s>-?[\d.]+) seconds?"),
        ("chrony-no-majority", "no majority", r"Can't synchronise: no majority"),
        ("chrony-no-sources", "no selectable sources", r"Can't synchronise: no selectable sources(?P<detail>.*)"),
        ("chrony-not-enough", "not enough selectable sources", r"not enough selectable"),
        ("chrony-no-required", "required", r"Can't synchronise: no (?P<which>required|trusted) source"),
        ("chrony-falseticker", "Detected falseticker", rf"Detected falseticker {_ADDRESS}"),
        ("chrony-adjtimex-denied", "adjtimex(", r"adjtimex\((?P<mode>0x[0-9a-fA-F]+)\)(?: failed ?: (?P<why>.*))?"),
        ("chrony-no-cap", "CAP_SYS_TIME not present", r"CAP_SYS_TIME not present"),
        ("chrony-disabled-control", "Disabled control of system clock", r"Disabled control"),
        ("chrony-open-failed", "Could not open /dev/", r"Could not open (?P<device>/dev/[\w./-]+) ?: (?P<why>.*)"),
        ("chrony-phc-failed", "Could not open PHC", r"Could not open PHC"),
        (
            "chrony-offset-max",
            "exceeds the allowed maximum",
            r"(?:Adjustment|Offset) of (?P<offset_s>-?[\d.]+) seconds exceeds the allowed maximum of (?P<limit_s>[\d.]+)",
        ),
        ("chrony-frequency-max", "exceeds allowed maximum", r"Frequency (?P<freq_ppm>-?[\d.]+) ppm exceeds"),
        (
            "chrony-initial-frequency",
            "Frequency ",
            r"(?:Initial frequency|^Frequency) (?P<freq_ppm>-?[\d.]+) (?:\+/- [\d.]+ )?ppm",
        ),
        ("chrony-jump", "time jump detected", r"(?P<way>Backward|Forward) time jump detected"),
        ("chrony-out-of-order", "Out of order sample detected", r"history for (?P<source>\S+?)\.?$"),
        ("chrony-kod", "KoD RATE", rf"KoD RATE from {_ADDRESS}"),
        ("chrony-another", "Another chronyd may already be running", r"pid=(?P<pid_n>\d+)"),
        ("chrony-bind-failed", "Could not open NTP socket", r"Could not open NTP sockets?(?: on (?P<where>\S+))?"),
        (
            "chrony-directive",
            "Invalid directive",
            r"Invalid directive(?: at line (?P<at_n>\d+))?(?: in file (?P<file>\S+))?",
        ),
        (
            "chrony-directive",
            "Could not parse",
            r"Could not parse (?P<directive>\w+) directive at line (?P<at_n>\d+)(?: in file (?P<file>\S+))?",
        ),
        (
            "chrony-hwts",
            "HW timestamping on",
            r"(?P<how>Enabled|Could not enable) HW timestamping (?:\(.*\) )?on (?P<iface>\S+)",
        ),
        (
            "chrony-nts-failed",
            "NTS-KE",
            r"(?P<why>TLS handshake with|NTS-KE session with|NTS-KE not supported by|Could not connect to) (?P<source>\S+)",
        ),
        ("chrony-tls-failed", "TLS handshake with", r"TLS handshake with (?P<source>\S+) .*failed ?: (?P<why>.*)"),
        (
            "chrony-leap",
            "leap second",
            r"(?P<what>Adjusting system clock for leap second|System clock status .* leap second)",
        ),
        ("chrony-leapfile", "failed leap second check", r"Timezone (?P<zone>\S+) failed"),
        ("chrony-exit", "chronyd exiting", r"chronyd exiting"),
        ("chronyc-no-daemon", "506 Cannot talk to daemon", r"506"),
        ("chronyc-no-daemon", "Could not open connection to daemon", r"connection to daemon"),
        ("chrony-fatal", "Fatal error", r"Fatal error ?: (?P<why>.*)"),
        ("chrony-online", "sources", r"\b(?P<count_n>\d+) OK$"),
        # ntpd and ntpdate
        (
            "ntpd-freq-exceeds",
            "exceeds tolerance",
            r"frequency error (?P<freq_ppm>-?[\d.]+) PPM exceeds tolerance (?P<limit_ppm>[\d.]+)",
        ),
        ("ntpd-time-error", "kernel reports TIME_ERROR", r"TIME_ERROR: (?P<status>0x[0-9a-fA-F]+)"),
        (
            "ntpd-kernel-status",
            "kernel time sync status",
            r"kernel time sync (?:status|disabled|enabled)(?: change)? ?(?P<status>[0-9a-fA-F]+)?",
        ),
        (
            "ntpd-panic",
            "set clock manually",
            r"time (?:correction|offset) of (?P<offset_s>[+-]?[\d.]+) seconds exceeds sanity limit \((?P<limit_s>[\d.]+)\)",
        ),
        (
            "ntpd-panic",
            "Pan",
            r"(?P<offset_s>[+-]?[\d.]+) ?s(?:econds)? ?exceeds .*panic|panic_stop (?P<offset2_s>[+-]?[\d.]+)",
        ),
        ("ntpd-panic", "offset too big", r"Panic: offset too big: (?P<offset_s>[+-]?[\d.]+)"),
        ("ntpd-reset", "time stepped by", r"time stepped by (?P<step_s>[+-]?[\d.]+)"),
        ("ntpd-reset", "time reset", r"time reset (?P<step_s>[+-]?[\d.]+) ?s"),
        ("ntpd-set", "time set", r"time set (?P<step_s>[+-]?[\d.]+) ?s"),
        ("ntpd-slew", "time slew", r"time slew (?P<step_s>[+-]?[\d.]+) ?s"),
        ("ntpd-step-server", "step time server", rf"step time server {_ADDRESS} offset (?P<step_s>[+-]?[\d.]+)"),
        (
            "ntpd-adjust-server",
            "adjust time server",
            rf"adjust time server {_ADDRESS} offset (?P<offset_s>[+-]?[\d.]+)",
        ),
        ("ntpdate-no-server", "no server suitable for synchronization found", r"no server suitable"),
        (
            "ntpdate-query",
            ", stratum ",
            rf"server {_ADDRESS}, stratum (?P<stratum_n>\d+), offset (?P<offset_s>[+-]?[\d.]+), delay (?P<delay_s>[\d.]+)",
        ),
        ("ntpdate-busy", "the NTP socket is in use", r"socket is in use"),
        ("ntpd-denied", "ntp_adjtime", r"ntp_adjtime\(\) failed: (?P<why>.*)"),
        ("ntpd-denied", "step-systime", r"step-systime: (?P<why>.*)"),
        ("ntpd-denied", "settimeofday", r"settimeofday[^:]*: (?P<why>Operation not permitted.*)"),
        (
            "ntpd-denied",
            "Operation not permitted",
            r"(?P<what>adj\w*time|adjtimex|clock_settime|clock_adjtime)[^:]*: (?P<why>Operation not permitted)",
        ),
        ("ntpd-no-sys-peer", "no_sys_peer", r"no_sys_peer"),
        ("ntpd-synchronized", "synchronized to", rf"synchronized to {_ADDRESS}, stratum (?P<stratum_n>\d+)"),
        ("ntpd-no-servers", "no servers reachable", r"no servers reachable"),
        ("ntpd-unable-bind", "unable to bind to", r"unable to bind to (?P<where>.*?) - "),
        ("ntpd-drift-denied", "frequency file", r"frequency file \S+: (?P<why>.*)"),
        ("openntpd-alarm", "not synced (alarm)", rf"reply from {_ADDRESS}: not synced"),
        # systemd-timesyncd
        (
            "timesyncd-timeout",
            "Timed out waiting for reply from",
            r"reply from (?P<source>[\w.:\[\]]+?)(?: \((?P<name>[^)]*)\))?\.?$",
        ),
        (
            "timesyncd-synchronized",
            "Synchronized to time server",
            r"Synchronized to time server (?P<source>[\w.:\[\]]+)",
        ),
        ("timesyncd-synchronized", "Contacted time server", r"Contacted time server (?P<source>[\w.:\[\]]+)"),
        (
            "timesyncd-initial",
            "Initial clock synchronization to",
            r"Initial clock synchronization to (?P<when>.*?)\.?$",
        ),
        (
            "timesyncd-unreachable",
            "Network is unreachable",
            r"(?:Sending NTP request to|connect) (?P<source>\S+).*Network is unreachable",
        ),
        ("timesyncd-distance", "root distance", r"Server has too large root distance"),
        # systemd
        (
            "unit-failed",
            "Control process exited",
            r"(?P<unit>[\w@.-]+)\.service: Control process exited, code=exited,? status=(?P<code>\S+)",
        ),
        (
            "unit-failed",
            "Main process exited",
            r"(?P<unit>[\w@.-]+)\.service: Main process exited, code=exited,? status=(?P<code>\S+)",
        ),
        ("unit-failed", "Failed with result", r"(?P<unit>[\w@.-]+)\.service: Failed with result"),
        ("unit-failed", "Failed to start", r"Failed to start (?P<unit>.*?)\.?$"),
        ("unit-conflict", "Unit systemd-timesyncd.service has a conflicting unit", r"conflict"),
        (
            "unit-started",
            "Started ",
            r"Started (?P<unit>.*?(?:NTP client/server|Network Time S\w+|Precision Time Protocol|system or PTP hardware clock|ptp4l|phc2sys|chrony\w*|ntpd?\b)[^.]*)",
        ),
        (
            "system-advanced",
            "advancing clock",
            r"System (?:clock|time) (?:time unset or jumped backwards|before build time|jumped backwards)",
        ),
    )
)
"""A row with its own wording stands before rows that share a word with it."""
