"""Timestamps of network interfaces: missing ones, wrapped ones, interfaces that have none."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from rankclock.diagnosis.arithmetic import Wrap, nearest_wrap
from rankclock.diagnosis.evidence import Evidence, Item, Series, median
from rankclock.diagnosis.finding import Draft, Rule, Severity, draft
from rankclock.wire.text.ethtool import Timestamping
from rankclock.wire.text.event import Event
from rankclock.wire.text.linuxptp import PtpSample
from rankclock.wire.text.number import as_float

__all__ = ["RULES"]

LONG_ENOUGH_MS = 20
"""A driver that has delivered no stamp after so long will not deliver it: real ones take below 10 ms."""

_FILTERS = [
    "NONE",
    "ALL",
    "SOME",
    "PTP_V1_L4_EVENT",
    "PTP_V1_L4_SYNC",
    "PTP_V1_L4_DELAY_REQ",
    "PTP_V2_L4_EVENT",
    "PTP_V2_L4_SYNC",
    "PTP_V2_L4_DELAY_REQ",
    "PTP_V2_L2_EVENT",
    "PTP_V2_L2_SYNC",
    "PTP_V2_L2_DELAY_REQ",
    "PTP_V2_EVENT",
    "PTP_V2_SYNC",
    "PTP_V2_DELAY_REQ",
    "NTP_ALL",
]
"""enum hwtstamp_rx_filters of <linux/net_tstamp.h>, in its order."""
_TX_TYPES = ("OFF", "ON", "ONESTEP_SYNC", "ONESTEP_P2P")
_COVERS = {1: set(range(16)), 12: {6, 7, 8, 9, 10, 11, 12, 13, 14}, 6: {6, 7, 8}, 9: {9, 10, 11}, 3: {3, 4, 5}}
"""Which filters a granted filter includes."""


def _tx_timeout_ms(evidence: Evidence) -> float | None:
    """The transmit timeout that was set, on a command line or in a file; None where nothing says so."""
    for command in evidence.commands("ptp4l"):
        value = command.value.option("--tx_timestamp_timeout")
        if value:
            return as_float(value)
    for directive in evidence.directives("ptp", "tx_timestamp_timeout"):
        return as_float(directive.value.arguments[0])
    return None


def _tx_missing(evidence: Evidence) -> Iterator[Draft]:
    missing = evidence.events("ptp-tx-timeout", "ptp-tx-error")
    if not missing:
        return
    timeout_ms = _tx_timeout_ms(evidence)
    states = evidence.events("ptp-state")
    faults = [one for one in states if one.value.text("new") == "FAULTY"]
    hints = evidence.events("ptp-tx-hint", "ptp-send-failed")
    values: dict[str, object] = {"tx_timestamps_missing": len(missing)}
    if timeout_ms is not None:
        values["tx_timestamp_timeout_ms"] = int(timeout_ms) if timeout_ms == int(timeout_ms) else timeout_ms
    if faults:
        values |= {"port_state": "FAULTY", "role_before_fault": faults[0].value.text("old")}
        began = _entered(states, faults[0])
        if began is not None:
            role = str(values["role_before_fault"]).lower()
            values[f"seconds_{role}_before_fault"] = round(began, 3)
    failed = evidence.events("ptp-send-failed")
    if failed:
        values["message"] = failed[0].value.text("message")
    if timeout_ms is not None and timeout_ms >= LONG_ENOUGH_MS:
        what = (
            f"the timeout is already {timeout_ms:g} ms, so a longer one is not the answer: the driver or PHY does "
            "not stamp this frame at all. Suspect hardware that stamps only PTPv2.0 frames while linuxptp 4 sends "
            "minorVersionPTP=1: set ptp_minor_version 0 (linuxptp 4.2 and later), or go back to 3.1.1; otherwise the "
            "driver or firmware"
        )
    else:
        what = (
            "either the stamp comes later than the timeout (1 ms by default up to linuxptp 3, 10 ms from 4.0) or it "
            f"never comes. Try {LONG_ENOUGH_MS * 5 // 2} ms once: if that changes nothing, the driver or PHY does "
            "not stamp this frame, for example because it knows only PTPv2.0 frames while linuxptp 4 sends "
            "minorVersionPTP=1 (ptp_minor_version 0)"
        )
    yield draft(
        Severity.FAULT,
        0.9 if timeout_ms is not None else 0.85,
        f"ptp4l sent a PTP event message and the interface gave no transmit timestamp for it; {what}.",
        [*evidence.commands("ptp4l")[:1], *missing[:2], *hints[:2], *faults[:2]],
        values=values,
        next=(
            "ethtool -T IFACE; ethtool -S IFACE | grep -iE 'ts|ptp|hwtstamp'",
            "ptp4l -v; modinfo -F version DRIVER; ethtool -i IFACE",
            "add 'ptp_minor_version 0' and 'tx_timestamp_timeout 50' to [global] and start again",
        ),
        confirm="the port stays MASTER or SLAVE for minutes and 'timed out while polling for tx timestamp' is gone",
    )


def _entered(states: list[Item[Event]], fault: Item[Event]) -> float | None:
    """Seconds from when a port entered the state that it left by this fault; None without stamps."""
    began = None
    for one in states:
        same_port = one.value.fields.get("port_n") == fault.value.fields.get("port_n")
        if one is fault:
            break
        if same_port and one.value.text("new") == fault.value.text("old"):
            began = one.value.line.mono_ns
    ended = fault.value.line.mono_ns
    return None if began is None or ended is None else (ended - began) / 1e9


def _rx_missing(evidence: Evidence) -> Iterator[Draft]:
    missing = evidence.events("ptp-rx-no-stamp")
    if not missing:
        return
    received = sum(series.count for series in evidence.series if series.program in ("ptp4l", ""))
    stamps = [one.value.line.mono_ns for one in missing if one.value.line.mono_ns is not None]
    gaps = [(later - earlier) / 1e9 for earlier, later in pairwise(stamps) if later > earlier]
    heard = evidence.events("ptp-foreign-master", "ptp-as-capable", "ptp-best-master")
    interval = median(gaps)
    values: dict[str, object] = {
        "rx_timestamps_missing": evidence.event_counts.get("ptp-rx-no-stamp", len(missing)),
        "rx_ts_loss_ratio": round(len(missing) / (len(missing) + received), 3),
        "network_ok": True,
        "message": missing[0].value.text("message"),
    }
    if interval is not None:
        values["sync_interval_s"] = round(interval, 3)
    yield draft(
        Severity.FAULT,
        0.9 if not received else 0.75,
        f"ptp4l receives {values['message']} messages, so the network and the master are fine, but they arrive "
        "without a hardware receive timestamp: the interface, its driver or PHY does not stamp them (receive filter "
        "not set or not supported, stamping switched off by another program, or frames of a version that the PHY "
        "does not know).",
        [*missing[:3], *heard[:2]],
        values=values,
        next=(
            "ethtool -T IFACE: is ptpv2-event, ptpv2-l2-event or all among the receive filters?",
            "check that nothing else sets SIOCSHWTSTAMP (a second ptp4l, hwtimestamp of chronyd, tcpdump -j)",
            "ptp4l -S (software stamps) until the driver is mended, or chrony",
        ),
        confirm="with the mended driver the port reaches SLAVE and offsets are printed",
    )


def _quiet_ns(samples: list[PtpSample]) -> int:
    """The usual size of offsets that are no roll-over."""
    usual = [abs(sample.offset_ns) for sample in samples if abs(sample.offset_ns) < 1 << 28]
    return int(median(usual) or 0)


def _wrapped(evidence: Evidence) -> Iterator[Draft]:
    for series in evidence.series:
        samples = series.samples
        tolerance = min(1_000_000, max(1_000, 20 * _quiet_ns(samples)))
        hits = [(sample, wrap) for sample in samples if (wrap := nearest_wrap(sample.offset_ns, tolerance))]
        if hits and (len(hits) >= 2 or len(hits) < len(samples)):
            yield _wrap_found(evidence, series, hits)
    late = evidence.events("ptp-not-as-capable")
    delays = [(one, one.value.number("delay_ns")) for one in late]
    wide = [(one, wrap) for one, delay in delays if delay and (wrap := nearest_wrap(int(delay), 1_000_000))]
    if wide:
        yield draft(
            Severity.FAULT,
            0.8,
            f"a measured link delay is 2^{wide[0][1].power} ns within {abs(wide[0][1].residual_ns)} ns: the true "
            "delay is that rest, and a counter of the timestamps rolled over between the two readings (a driver "
            "fault, no long cable).",
            [one for one, _ in wide[:4]],
            values={
                "outlier_power_of_two": wide[0][1].power,
                "residuals_ns": [wrap.residual_ns for _, wrap in wide[:16]],
            },
            next=("update the driver; ethtool -i IFACE",),
            confirm="the delay settles at the rest",
            explains=("NOT_AS_CAPABLE",),
        )


def _wrap_found(evidence: Evidence, series: Series, hits: list[tuple[PtpSample, Wrap]]) -> Draft:
    wraps = [wrap for _, wrap in hits]
    first = wraps[0]
    power = f"2^{first.power}" if first.times == 1 else f"{first.times} * 2^{first.power}"
    delays = [sample.delay_ns for sample in series.samples if sample.delay_ns is not None]
    values: dict[str, object] = {
        "outlier_power_of_two": first.power,
        "outlier_s": first.times * (1 << first.power) / 1e9,
        "residuals_ns": [wrap.residual_ns for wrap in wraps[:16]],
        "outliers": len(hits),
    }
    if first.times > 1:
        values["outlier_times"] = first.times
    if (delay := median(delays)) is not None:
        values["path_delay_ns"] = int(delay)
    ratio = [(s.offset_ns / s.rms_ns) ** 2 for s, _ in hits if s.rms_ns]
    one_of = ""
    if ratio:
        values["samples_per_summary"] = round(min(ratio)) if len(ratio) == 1 else round(median(ratio) or 0)
        one_of = (
            f" rms is max/sqrt({values['samples_per_summary']}): one bad sample among "
            f"{values['samples_per_summary']} of a summary."
        )
    return draft(
        Severity.FAULT,
        0.95 if len(hits) > 1 else 0.85,
        f"offsets of {series.name} that are {power} ns = {values['outlier_s']} s within "
        f"{max(abs(w.residual_ns) for w in wraps)} ns: a timestamp whose upper bits were put together wrongly when "
        f"a counter rolled over, in the driver or hardware.{one_of} Frequency and path delay stay as they were, so "
        "neither the network nor the master is the cause.",
        [*series.quotes([sample.line for sample, _ in hits][:5]), *evidence.events("ptp-clockcheck")[:2]],
        values=values,
        next=(
            "update the driver and firmware of the stamping device (NIC, PHY or switch); ethtool -i IFACE",
            "until then: sanity_freq_limit 0 stops the resets, at the price of following such a sample",
        ),
        confirm="an hour without a sample near a power of two",
        explains=("CLOCK_JUMPED", "SYNC_FLAPPING", "MASTER_STEPPED", "OFFSET_LARGE", "SERVO_UNSTABLE"),
    )


def _no_stamping(evidence: Evidence) -> Iterator[Draft]:
    for one in evidence.events("ptp-no-stamping"):
        iface = one.value.text("iface")
        software = any(c.value.has("S") for c in evidence.commands("ptp4l")) or any(
            d.value.arguments[:1] == ("software",) for d in evidence.directives("ptp", "time_stamping")
        )
        yield draft(
            Severity.FAULT,
            0.95,
            f"{iface} does not offer the timestamps that ptp4l asked "
            f"for{' (software ones, -S)' if software else ''}: the driver's get_ts_info does not list them. "
            "Hardware mode needs hardware-transmit, hardware-receive, hardware-raw-clock and a PTP hardware clock; "
            "-S needs software-transmit, software-receive and software-system-clock. Starting it again changes "
            "nothing.",
            [one, *evidence.commands("ptp4l")[:1]],
            values={"iface": iface, "software_asked": software},
            next=(
                f"ethtool -T {iface}",
                "if the hardware ones are missing and the software ones there: ptp4l -S",
                "if both are missing: this node takes NTP (chrony), or a driver that implements get_ts_info",
            ),
            confirm=f"ethtool -T {iface} lists what the chosen mode needs and ptp4l stays up",
        )
        return


def _hwtstamp(evidence: Evidence) -> Iterator[Draft]:
    filters = evidence.events("ptp-rx-filter")
    types = evidence.events("ptp-tx-type")
    if not filters:
        return
    granted, asked = (int(filters[0].value.number(name) or 0) for name in ("granted_n", "asked_n"))
    other = filters[0].value.number("other_n")
    name = {number: f"{text}({number})" for number, text in enumerate(_FILTERS)}
    values = {"rx_requested": name.get(asked, str(asked)), "rx_granted": name.get(granted, str(granted))}
    tx_fine = True
    if types:
        tx_granted, tx_asked = (int(types[0].value.number(key) or 0) for key in ("granted_n", "asked_n"))
        tx_fine = tx_granted == tx_asked or tx_granted > 0
        values["tx_type"] = _TX_TYPES[tx_granted] if tx_granted < len(_TX_TYPES) else str(tx_granted)
    fine = granted in (asked, other) or asked in _COVERS.get(granted, set())
    evidence_lines = [*evidence.events("ptp-hwtstamp")[:1], *types[:1], *filters[:1]]
    if fine and tx_fine:
        yield draft(
            Severity.EXPLAINED,
            0.8,
            f"the driver granted the receive filter {values['rx_granted']} where {values['rx_requested']} was asked "
            "for: that includes what PTP needs, so 'driver changed our HWTSTAMP options' is no fault by itself.",
            evidence_lines,
            values=values,
            next=("if the port does not reach SLAVE, look further: ptp4l -m -l 7; pmc -u -b 0 'GET PORT_DATA_SET'",),
            confirm="the port reaches SLAVE or MASTER",
        )
        return
    yield draft(
        Severity.FAULT,
        0.8,
        f"the driver granted {values['rx_granted']} (transmit {values.get('tx_type', '?')}) where "
        f"{values['rx_requested']} was asked for: frames that PTP needs stay without a timestamp.",
        evidence_lines,
        values=values,
        next=("ethtool -T IFACE; choose a transport (-2 or UDP) that the filter covers, or software stamps",),
        confirm="ptp4l starts without this message",
    )


def _capabilities(evidence: Evidence) -> Iterator[Draft]:
    for item in evidence.all(Timestamping):
        stamping = item.value
        hardware, software = stamping.hardware, stamping.software
        values: dict[str, object] = {"iface": stamping.iface or None}
        if stamping.has_phc is not None:
            values["phc"] = stamping.phc
        if stamping.complete:
            values |= {
                "hw_tx": stamping.can("hardware-transmit"),
                "hw_rx": stamping.can("hardware-receive"),
                "hw_ptp": hardware,
                "sw_ptp": software,
            }
        if stamping.rx_filters is not None:
            values["filter_all"] = "all" in stamping.rx_filters
        if hardware is False or stamping.has_phc is False:
            yield _no_hardware(item, evidence, software, values)
        elif hardware:
            yield draft(
                Severity.HEALTHY,
                0.6,
                f"{stamping.iface or 'the interface'} stamps PTP in hardware, by PTP hardware clock "
                f"{stamping.phc}{_transports(stamping)}.",
                [item],
                values=values,
            )


def _transports(stamping: Timestamping) -> str:
    if not stamping.rx_filters:
        return ""
    over = [name for name, key in (("L2", "l2"), ("UDP", "l4")) if any(key in f for f in stamping.rx_filters)]
    if {"all", "ptpv2-event"} & set(stamping.rx_filters):
        over = ["L2", "UDP"]
    every = "any packet (NTP too)" if "all" in stamping.rx_filters else "PTP frames only, not arbitrary packets"
    return f"; over {' and '.join(over) or 'no known transport'}; {every}"


def _no_hardware(
    item: Item[Timestamping], evidence: Evidence, software: bool | None, values: dict[str, object]
) -> Draft:
    iface = item.value.iface or "the interface"
    ability = "" if software is None else f" and {'can' if software else 'cannot'} do software PTP"
    virtual = "On EC2 the ENA driver gives a PHC only on supported instances and regions with phc_enable=1; "
    return draft(
        Severity.EXPLAINED,
        0.85,
        f"{iface} has no PTP hardware clock{ability}: a limit of the interface, not a fault of a clock. Do not plan "
        f"hardware PTP here. {virtual}otherwise the instance takes 169.254.169.123 by NTP.",
        [item],
        values=values,
        next=(
            "chrony with the site's or the provider's server (169.254.169.123 on AWS, metadata.google.internal on GCP)",
            "where the provider offers a PHC: refclock PHC /dev/ptp_ena, /dev/ptp_kvm or /dev/ptp_hyperv in chrony",
            *(("ptp4l -S where PTP is asked for",) if software else ()),
        ),
        confirm="ls -l /dev/ptp*; cat /sys/class/ptp/*/clock_name",
    )


def _filter_not_offered(evidence: Evidence) -> Iterator[Draft]:
    refused = [
        one
        for one in evidence.events("ptp-hwtstamp-failed")
        if "range" in one.value.text("why").lower() or "not supported" in one.value.text("why").lower()
    ]
    offers = [one for one in evidence.all(Timestamping) if one.value.rx_filters is not None]
    if not refused or not offers or "all" in (offers[0].value.rx_filters or ()):
        return
    ptp = [name for name in offers[0].value.rx_filters or () if name.startswith("ptpv2")]
    yield draft(
        Severity.EXPLAINED if ptp else Severity.RISK,
        0.85,
        "the program asked to stamp every packet (HWTSTAMP_FILTER_ALL), the interface offers "
        f"{', '.join(offers[0].value.rx_filters or ()) or 'no filter'}: errno 34 (ERANGE) says 'this filter is not "
        "offered', not that the card is broken. "
        f"{'PTP in hardware works.' if ptp else 'PTP in hardware does not work either.'}",
        [*refused[:1], *offers[:1]],
        values={"filter_all": False, "hw_ptp": bool(ptp), "errno": "ERANGE"},
        next=("use the program's PTP mode, or ptp4l; NTP in hardware (chrony hwtimestamp) needs the filter 'all'",),
        confirm="ptp4l -i IFACE -m reaches MASTER or SLAVE",
    )


def _hwtstamp_refused(evidence: Evidence) -> Iterator[Draft]:
    for one in evidence.events("ptp-hwtstamp-failed"):
        why = one.value.text("why")
        if "permitted" in why.lower():
            yield draft(
                Severity.FAULT,
                0.85,
                "switching timestamps on was refused for lack of rights (SIOCSHWTSTAMP needs CAP_NET_ADMIN in the "
                "namespace of the interface): an unprivileged user or container.",
                [one],
                values={"errno": "EPERM", "cap": "CAP_NET_ADMIN"},
                next=("run ptp4l on the host, or give the container CAP_NET_ADMIN and the host's network",),
                confirm="hwstamp_ctl -i IFACE -t 1 -r 12 succeeds for the same user",
            )
            return


RULES = (
    Rule(
        id="TX_TIMESTAMP_MISSING",
        title="No transmit timestamp comes back",
        needs="ptp4l's log; the command line or configuration with tx_timestamp_timeout makes it sharper",
        check=_tx_missing,
        arithmetic="seconds from MASTER or SLAVE to FAULTY; the timeout that was already tried",
        reference="linuxptp sk.c; raspberrypi/linux#5947; jclark/rpi-cm4-ptp-guide#33",
        explains=frozenset({"PORT_FAULTY", "NO_MASTER_HEARD", "CLOCK_JUMPED", "SYNC_FLAPPING"}),
    ),
    Rule(
        id="RX_TIMESTAMP_MISSING",
        title="Messages arrive without a receive timestamp",
        needs="ptp4l's log",
        check=_rx_missing,
        arithmetic="share of received messages without a stamp; the interval between them is the Sync interval",
        reference="linuxptp port.c; raspberrypi/linux#5904",
        explains=frozenset({"NO_MASTER_HEARD", "PORT_FAULTY"}),
    ),
    Rule(
        id="TIMESTAMP_WRAP",
        title="Offsets that are a power of two: a timestamp counter rolled over",
        needs="offsets or summaries of ptp4l, phc2sys or ts2phc",
        check=_wrapped,
        arithmetic="|offset| = 2^k ns (k = 30 to 48) or a multiple of 2^32 ns within a few times the usual "
        "noise; (max/rms)^2 is the number of samples of a summary when one of them is bad",
        reference="nxp-archive/openil#48",
    ),
    Rule(
        id="NIC_NO_TS",
        title="The interface does not offer the timestamps asked for",
        needs="ptp4l's log",
        check=_no_stamping,
        reference="linuxptp clock.c, ptp4l(8); OpenIPC/linux#48",
        explains=frozenset({"PTP4L_NOT_STARTED"}),
    ),
    Rule(
        id="HWTSTAMP_CHANGED",
        title="The driver granted another timestamp filter than asked for",
        needs="ptp4l's log with tx_type and rx_filter",
        check=_hwtstamp,
        arithmetic="granted filter includes the asked one (enum hwtstamp_rx_filters)",
        reference="linux/net_tstamp.h",
    ),
    Rule(
        id="NIC_CAPABILITY",
        title="What the interface can stamp",
        needs="ethtool -T, pasted to the line 'PTP Hardware Clock'",
        check=_capabilities,
        reference="ethtool(8); amzn/amzn-drivers#250",
    ),
    Rule(
        id="FILTER_NOT_OFFERED",
        title="A program asked for a timestamp filter that the card does not have",
        needs="the SIOCSHWTSTAMP error and ethtool -T",
        check=_filter_not_offered,
        reference="iij/nanoping#1",
    ),
    Rule(
        id="HWTSTAMP_DENIED",
        title="Timestamping refused for lack of rights",
        needs="the SIOCSHWTSTAMP error",
        check=_hwtstamp_refused,
        reference="kernel Documentation/networking/timestamping.rst",
        explains=frozenset({"PTP4L_NOT_STARTED"}),
    ),
)
