"""Whether a time service runs at all, and what systemd's own words mean."""

from __future__ import annotations

from collections.abc import Iterator

from rankclock.diagnosis.evidence import Evidence
from rankclock.diagnosis.finding import Draft, Rule, Severity, draft
from rankclock.diagnosis.notes import Metric
from rankclock.wire.text.chronyc import ChronySource, Tracking
from rankclock.wire.text.kernel_clock import KernelClock
from rankclock.wire.text.timedatectl import TimeDate, TimesyncStatus, UnitState

__all__ = ["RULES"]

MAXERROR_US = 16_000_000
RTC_APART_NS = 2_000_000_000


def _follows(evidence: Evidence) -> bool:
    """Whether chronyd itself says that it follows a source."""
    return any(t.value.unsynchronised is False and not t.value.local for t in evidence.all(Tracking)) or any(
        s.value.state == "*" and s.value.reach for s in evidence.all(ChronySource)
    )


def _timedatectl(evidence: Evidence) -> Iterator[Draft]:
    for item in evidence.all(TimeDate):
        said = item.value
        values = {"synchronized": said.synchronized, "ntp_service": said.ntp_service}
        idle = said.ntp_service in ("inactive", "no", "n/a")
        if said.synchronized is True and idle:
            yield draft(
                Severity.UNKNOWN,
                0.6,
                f"the kernel says that the clock is synchronised; 'NTP service: {said.ntp_service}' speaks only of "
                "the unit that timedatectl controls (systemd-timesyncd, mostly). Something else may do it: chronyd, "
                "ntpd, ptp4l with phc2sys. Not a reason to call it unsynchronised; how good it is, this does not "
                "tell.",
                [item],
                values=values,
                next=(
                    "chronyc tracking; ntpq -pn; systemctl list-units | grep -E 'chron|ntp|ptp4l|phc2sys|timemaster'",
                ),
                confirm="one of them follows a source",
            )
        elif said.synchronized is True:
            yield draft(
                Severity.HEALTHY,
                0.6,
                "the kernel says that the clock is synchronised (maxerror below 16 s) and a time service is active. "
                "How well, this does not tell: chronyc tracking or timedatectl timesync-status does.",
                [item],
                values=values,
            )
        elif said.synchronized is False and _follows(evidence):
            yield draft(
                Severity.EXPLAINED,
                0.8,
                "chronyd follows a source; timedatectl says 'no' because the kernel's flag is not set, which "
                "chronyd does only with rtcsync.",
                [item],
                values=values | {"missing": "rtcsync"},
                next=("add rtcsync to chrony.conf; judge by chronyc tracking",),
            )
        elif said.synchronized is False:
            yield draft(
                Severity.FAULT,
                0.65,
                "the kernel's clock is not synchronised: no daemon has corrected it yet, or not for hours (maxerror "
                f"reaches 16 s after about nine). NTP service: {said.ntp_service or '?'}."
                + (
                    " No service is active."
                    if idle
                    else " The service runs but has no source, unless it was started a minute ago."
                ),
                [item],
                values=values,
                next=(
                    "chronyc -n sources; ntpq -pn; timedatectl show-timesync (only where timesyncd is the one in use)",
                ),
                confirm="'System clock synchronized: yes' ten minutes later",
                explains=("RTC_APART",),
            )


def _rtc(evidence: Evidence) -> Iterator[Draft]:
    for item in evidence.all(TimeDate):
        said = item.value
        if said.universal_ns is None or said.rtc_ns is None:
            continue
        apart_s = round((said.rtc_ns - said.universal_ns) / 1e9)
        if said.rtc_local or abs(apart_s) * 1_000_000_000 <= RTC_APART_NS:
            continue
        whole = apart_s % 900 == 0
        yield draft(
            Severity.RISK,
            0.7,
            f"the hardware clock (RTC) is {apart_s:+d} s from the system clock"
            + (
                ": whole quarter hours, it keeps local time."
                if whole
                else ": after the next boot the clock starts that far off."
            ),
            [item],
            values={"rtc_minus_system_s": apart_s},
            next=("timedatectl set-local-rtc 0" if whole else "hwclock --systohc; rtcsync in chrony.conf",),
            confirm="RTC time equals Universal time",
        )


def _timesync(evidence: Evidence) -> Iterator[Draft]:
    for item in evidence.all(TimesyncStatus):
        said = item.value
        dead = (said.server or "").startswith("n/a") or said.packet_count == 0
        values = {"server": said.server, "packet_count": said.packet_count, "offset_ns": said.offset_ns}
        if dead:
            yield draft(
                Severity.FAULT,
                0.75,
                "systemd-timesyncd has no server that answered (packet count 0 or server n/a).",
                [item],
                values=values,
                next=("journalctl -u systemd-timesyncd; NTP= in /etc/systemd/timesyncd.conf; tcpdump -n udp port 123",),
                confirm="packet count above 0",
            )
        elif said.offset_ns is not None and said.packet_count:
            size = abs(said.offset_ns)
            yield draft(
                Severity.HEALTHY if size < 100_000_000 else Severity.DEGRADED,
                0.65,
                f"systemd-timesyncd follows {said.server}, offset {said.offset_ns / 1e6:+.3f} ms at its last poll. "
                "It is a single-server client and steps above 0.4 s: enough for logs, not for a cluster's clock.",
                [item],
                values=values,
            )


def _timesyncd_log(evidence: Evidence) -> Iterator[Draft]:
    silent = evidence.events("timesyncd-timeout")
    answered = evidence.events("timesyncd-synchronized", "timesyncd-initial")
    servers = list(dict.fromkeys(e.value.text("source") for e in silent))
    if silent and not [a for a in answered if a.first > silent[-1].first]:
        yield draft(
            Severity.FAULT if len(servers) > 1 else Severity.UNKNOWN,
            0.8 if len(servers) > 1 else 0.5,
            f"systemd-timesyncd gets no answer from {len(servers)} server{'s' if len(servers) > 1 else ''}: NTP "
            "replies do not come back. "
            + (
                "That many servers are not down together: UDP 123 is filtered on the way."
                if len(servers) > 1
                else "One server alone may be down."
            ),
            silent[:4],
            values={"servers": servers[:8], "timeouts": evidence.event_counts.get("timesyncd-timeout", len(silent))},
            next=(
                "chronyd -Q -t 5 'server SERVER iburst' (free source port) beside ntpdate -q SERVER (source port 123)",
                "tcpdump -n udp port 123",
            ),
            confirm="'Contacted time server' or 'Synchronized to time server' in the log",
        )


def _no_server(evidence: Evidence) -> Iterator[Draft]:
    hits = evidence.events("ntpdate-no-server", "ntpd-no-servers", "chrony-no-sources", "chrony-not-enough")
    recovered = evidence.events("chrony-selected", "ntpd-synchronized")
    if hits and not [r for r in recovered if r.first > hits[-1].first] and not evidence.has("chrony-no-majority"):
        yield draft(
            Severity.FAULT,
            0.7,
            f"'{hits[0].value.line.body[:80]}': the daemon has nobody to follow at that point (no answer, "
            "unsynchronised servers, or sources that were rejected).",
            hits[:3],
            next=("chronyc -n sources -v and chronyc selectdata; ntpq -pn", "tcpdump -n udp port 123"),
            confirm="a later 'Selected source' or '*'",
        )


def _not_running(evidence: Evidence) -> Iterator[Draft]:
    refused = evidence.events("chronyc-no-daemon")
    failed = [u for u in evidence.all(UnitState) if u.value.failed or (u.value.running is False and u.value.enabled)]
    died = evidence.events("unit-failed")
    clock = [
        d
        for d in died
        if any(word in d.value.text("unit").lower() for word in ("chron", "ntp", "timesync", "ptp4l", "phc2sys"))
    ]
    active = [u for u in evidence.all(UnitState) if u.value.running]
    if refused and not active:
        yield draft(
            Severity.FAULT,
            0.65,
            "chronyc cannot talk to chronyd: it does not run, most likely (or its command port is closed, cmdport "
            "0, and the socket not accessible to this user). Without it the clock runs free.",
            refused[:2],
            values={"daemon_running": False if failed or clock else None},
            next=("systemctl status chrony chronyd; journalctl -u chrony -u chronyd | tail -50; chronyd -p",),
            confirm="chronyc tracking answers",
        )
    elif (failed or clock) and not active:
        names = [u.value.unit for u in failed] or [d.value.text("unit") for d in clock]
        yield draft(
            Severity.FAULT,
            0.8,
            f"{names[0]} does not run: the clock of this node runs free.",
            [*failed[:2], *clock[:2]],
            values={"daemon_running": False, "units": names[:4]},
            next=(
                f"journalctl -u {names[0]} -b | tail -50",
                "chronyd -p; ptp4l -f FILE -m: does the configuration parse",
            ),
            confirm=f"systemctl is-active {names[0]}",
        )


def _fatal(evidence: Evidence) -> Iterator[Draft]:
    hits = [e for e in evidence.events("chrony-fatal") if "PHC" not in e.value.text("why")]
    another = evidence.events("chrony-another")
    invalid = evidence.events("chrony-directive")
    if another:
        yield draft(
            Severity.UNKNOWN,
            0.6,
            "a second chronyd was started while one runs: the first one goes on; nothing is wrong with the clock by "
            "that.",
            another[:1],
            next=("systemctl status chronyd; remove the second start",),
        )
    elif hits or invalid:
        first = (hits or invalid)[0]
        yield draft(
            Severity.FAULT,
            0.85,
            f"chronyd ended: {first.value.line.body}. Without it the clock runs free.",
            [*hits[:2], *invalid[:2]],
            values={"daemon_running": False, "why": first.value.text("why") or first.value.line.body},
            next=(
                "chronyd -p -f /etc/chrony/chrony.conf names file and line; chronyd -v: does the version know the "
                "directive",
            ),
            confirm="chronyc tracking answers",
        )


def _kernel(evidence: Evidence) -> Iterator[Draft]:
    for item in evidence.all(KernelClock):
        said = item.value
        values = {
            "status": said.status,
            "maxerror_us": said.maxerror_us,
            "freq_ppm": said.freq_ppm,
            "tai_s": said.tai_s,
        }
        if said.unsynchronised and (said.maxerror_us or 0) >= MAXERROR_US:
            yield draft(
                Severity.FAULT,
                0.75,
                "the kernel's clock is unsynchronised: STA_UNSYNC is set and maxerror has reached its end of 16 s. "
                "No daemon has corrected it since boot, or for about nine hours.",
                [item],
                values=values,
                next=("which daemon should: systemctl list-units | grep -E 'chron|ntp|phc2sys|timesync'",),
                confirm="status without 0x40, maxerror of milliseconds",
            )
        elif said.unsynchronised:
            yield draft(
                Severity.UNKNOWN,
                0.6,
                "the kernel's flag STA_UNSYNC is set, but maxerror is below 16 s: somebody does correct the clock. "
                "chronyd without rtcsync looks like this.",
                [item],
                values=values,
                next=("chronyc tracking decides",),
            )
        elif said.unsynchronised is False:
            yield draft(
                Severity.HEALTHY,
                0.5,
                "the kernel's clock is marked synchronised. phc2sys, ptp4l and timesyncd write maxerror 0, so that "
                "value is no bound.",
                [item],
                values=values,
            )


def _rtcsync(evidence: Evidence) -> Iterator[Draft]:
    zero = [m for m in evidence.all(Metric) if m.value.name == "node_timex_sync_status" and m.value.value == 0]
    alert = [e for e in evidence.events("alert") if e.value.text("alert") == "NodeClockNotSynchronising"]
    if not zero and not alert:
        return
    worst = [m for m in evidence.all(Metric) if m.value.name == "node_timex_maxerror_seconds" and m.value.value >= 16]
    if zero and worst:
        yield draft(
            Severity.FAULT,
            0.8,
            "the kernel's clock is unsynchronised and its maxerror has reached the end of 16 s: nobody has "
            "corrected it since boot, or for about nine hours. A missing rtcsync alone would leave maxerror small.",
            [*zero[:1], *worst[:1]],
            values={"node_timex_sync_status": 0, "maxerror_s": worst[0].value.value},
            next=("systemctl list-units | grep -E 'chron|ntp|timesync|phc2sys'; chronyc tracking",),
            confirm="node_timex_maxerror_seconds below 1",
        )
        return
    said = evidence.events("no-rtcsync")
    config = evidence.directives("chrony")
    own = [d for d in config if d.value.dialects == frozenset({"chrony"})]
    missing = bool(said) or (len(own) >= 2 and not any(d.value.name == "rtcsync" for d in config))
    if missing or _follows(evidence):
        tracked = evidence.all(Tracking)
        yield draft(
            Severity.EXPLAINED,
            0.85 if missing else 0.75,
            "the metric is 0 because chronyd clears the kernel's unsynchronised flag only with the directive "
            "rtcsync, which is missing. That says nothing about the clock: judge it by chronyc tracking.",
            [*zero[:1], *alert[:1], *said[:1], *tracked[:1]],
            values={"missing": "rtcsync", "node_timex_sync_status": 0},
            next=("add rtcsync to chrony.conf and restart chronyd", "chronyc tracking"),
            confirm="node_timex_sync_status 1 while chronyc tracking says Normal",
        )
    else:
        yield draft(
            Severity.UNKNOWN,
            0.5,
            "node_timex_sync_status 0 has two causes: nobody synchronises the clock, or chronyd does, without rtcsync.",
            [*zero[:1], *alert[:1]],
            values={"node_timex_sync_status": 0},
            next=("chronyc tracking; grep rtcsync /etc/chrony/chrony.conf /etc/chrony.conf",),
        )


RULES = (
    Rule(
        id="TIMEDATECTL",
        title="What timedatectl says",
        needs="timedatectl",
        check=_timedatectl,
        arithmetic="synchronized means maxerror below 16 s",
        reference="systemd/systemd#18854, #13245",
    ),
    Rule(
        id="RTC_APART",
        title="The hardware clock differs from the system clock",
        needs="timedatectl",
        check=_rtc,
        arithmetic="RTC time minus Universal time",
    ),
    Rule(id="TIMESYNC_STATUS", title="What timesyncd says", needs="timedatectl timesync-status", check=_timesync),
    Rule(
        id="TIMESYNCD_NO_REPLY",
        title="timesyncd gets no answers",
        needs="its log",
        check=_timesyncd_log,
        arithmetic="distinct servers without an answer",
        reference="coreos/bugs#417; QubesOS/qubes-issues#5646",
    ),
    Rule(
        id="NO_SOURCE",
        title="The daemon has nobody to follow",
        needs="the log of chronyd, ntpd or ntpdate",
        check=_no_server,
    ),
    Rule(
        id="DAEMON_NOT_RUNNING",
        title="The time daemon does not run",
        needs="chronyc's error, systemctl status or the journal",
        check=_not_running,
    ),
    Rule(
        id="CHRONYD_FATAL",
        title="chronyd ended with an error",
        needs="chronyd's log",
        check=_fatal,
        explains=frozenset({"DAEMON_NOT_RUNNING"}),
        reference="chronyd(8)",
    ),
    Rule(
        id="KERNEL_STATE",
        title="What the kernel says of its clock",
        needs="adjtimex --print or ntptime",
        check=_kernel,
        arithmetic="status bit 0x40; maxerror 16,000,000 µs",
        reference="adjtimex(2)",
    ),
    Rule(
        id="RTCSYNC_MISSING",
        title="node_timex_sync_status is 0 for want of rtcsync",
        needs="the metric, and chrony.conf or chronyc tracking",
        check=_rtcsync,
        reference="bottlerocket-os/bottlerocket#1183; prometheus/node_exporter docs/TIME.md",
    ),
)
