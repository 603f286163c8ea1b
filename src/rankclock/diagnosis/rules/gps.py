"""Receivers, pulses and their labels: no fix, wrong second, wrong week, old leap table."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from rankclock.diagnosis.evidence import Evidence, Item
from rankclock.diagnosis.finding import Draft, Rule, Severity, draft
from rankclock.wire.text.chronyc import ChronySource
from rankclock.wire.text.gpsd import GpsReport

__all__ = ["RULES"]

PAIRING_NS = 200_000_000
"""chrony pairs a pulse with a second only if the source that names the second is within 0.2 s of it (maxlockage,
lock).
"""

WEEKS_1024_S = 1024 * 604_800
GPS_MINUS_UTC_S = 18
TAI_MINUS_GPS_S = 19
STEADY = 3
PULSE_OFF_S = 0.001
"""A pulse per second of any receiver is better than a microsecond; a millisecond is no pulse of it."""


def _no_fix(evidence: Evidence) -> Iterator[Draft]:
    fixes = [r for r in evidence.all(GpsReport) if r.value.kind == "TPV" and r.value.mode is not None]
    void = [e for e in evidence.events("nmea") if e.value.text("valid") == "V"]
    valid = [e for e in evidence.events("nmea") if e.value.text("valid") == "A"]
    skies = [r for r in evidence.all(GpsReport) if r.value.kind == "SKY" and r.value.used is not None]
    said = evidence.events("ts2phc-no-fix")
    lost = bool(fixes) and max(r.value.mode or 0 for r in fixes) < 2
    if lost or (void and not valid) or said:
        used = skies[-1].value.used if skies else None
        yield draft(
            Severity.FAULT,
            0.85,
            "the GPS receiver has no fix"
            + (f" ({used} satellites used of {skies[-1].value.seen} seen)" if skies else "")
            + ": its time and pulses are not to be trusted, whatever follows them runs free. Antenna, its cable and "
            "view of the sky first; after a cold start up to 12.5 minutes until leap seconds are known.",
            [*fixes[-2:], *void[:2], *said[:2], *skies[-1:]],
            values={"gps_mode": fixes[-1].value.mode if fixes else None, "satellites_used": used},
            next=(
                "cgps -s or gpsmon; gpspipe -w | grep TPV",
                "a second source (NTP) that takes over; clockClass must not stay 6",
            ),
            confirm="mode 3 and at least four satellites used for minutes",
        )
    elif fixes and (fixes[-1].value.mode or 0) >= 2:
        yield draft(
            Severity.HEALTHY,
            0.4,
            f"the GPS receiver has a {fixes[-1].value.mode}D fix.",
            fixes[-1:],
            values={"gps_mode": fixes[-1].value.mode},
        )
    simulated = [r for r in fixes if r.value.status == 8]
    if simulated:
        yield draft(
            Severity.FAULT,
            0.9,
            "gpsd reports a simulated fix (status 8): this is test data, not the sky.",
            simulated[:1],
            values={"gps_status": 8},
            next=("gpsd without gpsfake; the receiver's own simulation mode off",),
        )


def _refclocks(evidence: Evidence) -> tuple[list[Item[ChronySource]], list[Item[ChronySource]]]:
    """(sources that name the second, pulses) among chrony's reference clocks, by what people call them."""
    rows = [s for s in evidence.all(ChronySource) if s.value.mode == "#"]
    pulses = [s for s in rows if any(word in s.value.name.upper() for word in ("PPS", "PSM", "PST"))]
    return [s for s in rows if s not in pulses and not s.value.name.upper().startswith("PHC")], pulses


def _nmea_offset(evidence: Evidence) -> Iterator[Draft]:
    labels, pulses = _refclocks(evidence)
    working = [p for p in pulses if p.value.state in "*+-" and p.value.has_sample]
    idle = [p for p in pulses if p.value.reach == 0]
    servers = [s for s in evidence.all(ChronySource) if s.value.mode == "^" and s.value.state in "*+"]
    for label in labels:
        offset = label.value.offset_ns
        if not label.value.has_sample or offset is None or not 30_000_000 < abs(offset) < 900_000_000:
            continue
        values = {
            "nmea_offset_ms": round(offset / 1e6, 3),
            "pps_in_use": bool([p for p in pulses if p.value.state == "*"]),
        }
        advice = (
            f"set 'offset' of that refclock line to about {offset / 1e9 * -1 if offset < 0 else -offset / 1e9:+.3f} "
            "s (add to what is there; the sentence is late, never early), with delay 0.2 and noselect"
        )
        if working:
            yield draft(
                Severity.EXPLAINED,
                0.75,
                f"{label.value.name} is {offset / 1e6:+.0f} ms off: the latency of the serial sentence, constant "
                f"and harmless. It only names the second; {working[0].value.name} gives the time and is in use or "
                "usable. An x or ? at the label is no fault then.",
                [label, working[0]],
                values=values,
                next=(advice,),
                confirm="chronyc sources: * at the pulse",
            )
        elif idle and abs(offset) > PAIRING_NS:
            yield draft(
                Severity.FAULT,
                0.8,
                f"the pulse {idle[0].value.name} is never used (reach 0) because the source that names the second, "
                f"{label.value.name}, is {offset / 1e6:+.0f} ms off: chrony pairs them only within 200 ms.",
                [label, idle[0]],
                values=values,
                next=(advice,),
                confirm="reach of the pulse counts up",
            )
        elif servers or label.value.state == "x":
            yield draft(
                Severity.RISK,
                0.65,
                f"{label.value.name} is {offset / 1e6:+.0f} ms off and no pulse is in use: a serial sentence alone "
                "is that late and jitters by tens of ms.",
                [label, *servers[:1]],
                values=values,
                next=(advice, "a pulse per second (PPS) for anything below 10 ms"),
            )
        return


def _idle_refclock(evidence: Evidence) -> Iterator[Draft]:
    labels, pulses = _refclocks(evidence)
    dead = [s for s in (*labels, *pulses) if s.value.reach == 0 and not s.value.has_sample]
    if dead and len(dead) == len(labels) + len(pulses):
        used = [s for s in evidence.all(ChronySource) if s.value.mode == "^" and s.value.state == "*"]
        yield draft(
            Severity.DEGRADED if used else Severity.FAULT if labels else Severity.UNKNOWN,
            0.75,
            f"none of the reference clocks gives a sample ({', '.join(s.value.name for s in dead[:4])}, reach 0): "
            "gpsd does not run, was started before chronyd (SOCK, SHM), has no right to the device, or no sentence "
            "and pulse arrive." + (" Servers stand in meanwhile." if used else ""),
            dead[:4],
            values={"reference_clocks_reached": 0},
            next=("systemctl restart gpsd (behind chronyd); gpspipe -w; ppstest /dev/pps0; ntpshmmon", "gpsd with -n"),
            confirm="reach of # sources counts up",
        )


def _leapfile(evidence: Evidence) -> Iterator[Draft]:
    hits = evidence.events("ts2phc-leapfile", "chrony-leapfile")
    if hits:
        yield draft(
            Severity.FAULT,
            0.9,
            "the leap second table has expired: ts2phc then takes no time from the receiver (every stamp is 'not "
            "valid').",
            [*hits[:2], *evidence.events("ts2phc-tai-unset")[:1], *evidence.events("ts2phc-invalid")[:1]],
            values={"leap_table_expired": True},
            next=(
                "a current leap-seconds.list (package tzdata; "
                "https://hpiers.obspm.fr/iers/bul/bulc/ntp/leap-seconds.list), leapfile in [global] of ts2phc's "
                "configuration; ts2phc reads it again by itself",
                "or the kernel's TAI offset set (chronyd with leapsectz, ptp4l), which ts2phc prefers",
            ),
            confirm="offsets are printed, no 'not valid'",
            explains=("TS2PHC_NO_TIME",),
        )


def _no_time(evidence: Evidence) -> Iterator[Draft]:
    stale = evidence.events(
        "ts2phc-stale", "ts2phc-nmea-timeout", "ts2phc-nmea-failed", "ts2phc-invalid", "ts2phc-no-table"
    )
    nothing = evidence.events("ts2phc-no-events")
    pin = evidence.events("ts2phc-pin")
    if nothing or pin:
        yield draft(
            Severity.FAULT,
            0.75,
            "ts2phc sees no pulses: the pin is not set to external timestamps, or nothing is connected to it, or "
            "the polarity is wrong.",
            [*nothing[:2], *pin[:1]],
            next=("testptp -l (pins); ts2phc.pin_index, ts2phc.channel, ts2phc.extts_polarity; an oscilloscope",),
            confirm="'extts index' lines once a second",
        )
    elif stale:
        told = [one for one in stale if one.value.kind not in ("ts2phc-invalid", "ts2phc-no-table")]
        yield draft(
            Severity.FAULT if told else Severity.UNKNOWN,
            0.7,
            f"ts2phc has pulses but no second to name them: '{stale[0].value.line.body[:70]}'.",
            stale[:3],
            next=(
                "the serial port and speed (ts2phc.nmea_serialport, nmea_baudrate); RMC sentences on; gpsd holds "
                "the port?",
            ),
            confirm="'nmea delay' lines of some hundred ms",
        )


def _whole_seconds(evidence: Evidence) -> Iterator[Draft]:
    rows = [(s, (s.value.offset_ns or 0) / 1e9) for s in evidence.all(ChronySource) if s.value.has_sample]
    rows_q = [
        (e, float(e.value.number("offset_s") or 0.0)) for e in evidence.events("ntpdate-query", "ntpd-adjust-server")
    ]
    steps = [(e, float(e.value.number("step_s") or 0.0)) for e in evidence.events("ntpd-step-server")]
    others = [abs(o) for _, o in (*rows, *rows_q) if abs(o) < 0.05]
    for item, offset in (*rows, *rows_q, *steps):
        weeks = round(abs(offset) / WEEKS_1024_S)
        if weeks and abs(abs(offset) - weeks * WEEKS_1024_S) < 5:
            yield _second_found(
                item, offset, f"{weeks} * 1024 weeks: the receiver's week number rolled over (old firmware)", 0.9
            )
            return
        if abs(abs(offset) - GPS_MINUS_UTC_S) < 0.1:
            yield _second_found(
                item, offset, "18 s, GPS time minus UTC: leap seconds are not applied (receiver without almanac)", 0.85
            )
            return
        if abs(abs(offset) - TAI_MINUS_GPS_S) < 0.1:
            yield _second_found(item, offset, "19 s, TAI minus GPS time", 0.85)
            return
        if 0.95 < abs(offset) < 1.05 and others:
            yield _second_found(
                item,
                offset,
                "one whole second while the other sources agree: the pulse is labelled with the wrong second",
                0.8,
            )
            return


def _second_found(
    item: Item[ChronySource] | Item[object] | object, offset: float, what: str, confidence: float
) -> Draft:
    assert isinstance(item, Item)
    return draft(
        Severity.FAULT,
        confidence,
        f"an offset of {offset:+.6f} s is {what}. Not drift, not the network.",
        [item],
        values={"offset_s": offset},
        next=("the receiver's firmware and settings; the label's latency (PPS against NMEA); leap table",),
        confirm="the offset becomes milliseconds or less at once",
        explains=("FALSETICKERS", "CLOCK_STEPPED"),
    )


def _bad_pulses(evidence: Evidence) -> Iterator[Draft]:
    """Pulses that do not come a whole second after the one before, by the hardware clock's own stamps."""
    pulses = [(e, e.value.number("at_s")) for e in evidence.events("ts2phc-extts")]
    bad = []
    for (_, before), (event, at) in pairwise(pulses):
        if before is None or at is None or not 0 < at - before < 10:
            continue
        rest = abs(at - before - round(at - before))
        if rest > PULSE_OFF_S:
            bad.append((event, rest))
    if bad:
        yield draft(
            Severity.FAULT,
            0.8,
            f"{len(bad)} of {len(pulses)} pulses come {bad[0][1] * 1e3:.1f} ms beside the second: spurious pulses "
            "(noise on the wire, bad reception, a receiver that pulses without a fix). ts2phc follows each of them "
            "with an extreme correction.",
            [event for event, _ in bad[:4]],
            values={"pulse_off_s": round(bad[0][1], 9), "bad_pulses": len(bad)},
            next=(
                "antenna and fix first; pulses only while locked (receiver setting); shielding and level of the PPS "
                "wire",
                "linuxptp 4.4: ts2phc.holdover; a larger time constant does not help",
            ),
            confirm="an hour without such a pulse",
            explains=("OFFSET_OUTLIERS", "FREQ_PINNED"),
        )


def _occasional(evidence: Evidence) -> Iterator[Draft]:
    skips = evidence.events("ts2phc-skip")
    if len(skips) >= STEADY:
        yield draft(
            Severity.EXPLAINED,
            0.5,
            "'SKIP extts' is ts2phc leaving out the other edge of each pulse; with extts_polarity both that is wanted.",
            skips[:2],
            next=("offsets still printed once a second? then all is well",),
        )


RULES = (
    Rule(
        id="BAD_PULSES",
        title="Pulses that are no seconds",
        needs="ts2phc's log with 'extts index' lines",
        check=_bad_pulses,
        arithmetic="stamps of successive pulses are not whole seconds apart (1 ms)",
        reference="jclark/rpi-cm4-ptp-guide#5",
    ),
    Rule(
        id="GPS_NO_FIX",
        title="The receiver has no fix",
        needs="gpsd JSON (TPV, SKY), NMEA sentences, or ts2phc's log",
        check=_no_fix,
        reference="gpsd_json(5)",
        explains=frozenset({"TS2PHC_NO_TIME"}),
    ),
    Rule(
        id="NMEA_OFFSET",
        title="The sentence that names the second is late",
        needs="chronyc sources with a GPS or NMEA reference clock",
        check=_nmea_offset,
        arithmetic="offset of the label between 30 and 900 ms; pairing needs 200 ms",
        reference="chrony.conf(5) lock; beta-tester/RPi-GPS-PPS-StratumOne#7; geerlingguy/time-pi#12",
    ),
    Rule(
        id="REFCLOCK_SILENT",
        title="Reference clocks give no samples",
        needs="chronyc sources",
        check=_idle_refclock,
        arithmetic="reach 0",
    ),
    Rule(
        id="LEAPFILE_EXPIRED",
        title="The leap second table has expired",
        needs="ts2phc's or chronyd's log",
        check=_leapfile,
        reference="jclark/rpi-cm4-ptp-guide#20; jclark/pc-ptp-ntp-guide#1",
    ),
    Rule(
        id="TS2PHC_NO_TIME",
        title="ts2phc gets no pulse or no second",
        needs="ts2phc's log",
        check=_no_time,
        reference="ts2phc(8)",
    ),
    Rule(
        id="GPS_WHOLE_SECONDS",
        title="An offset of whole seconds from a receiver",
        needs="chronyc sources, ntpdate -q",
        check=_whole_seconds,
        arithmetic="1024 weeks = 619,315,200 s; GPS - UTC = 18 s; TAI - GPS = 19 s; 1 s",
        reference="ddrown/teensy-ntp#6; Time-Appliances-Project/Time-Card#97",
    ),
    Rule(
        id="EXTTS_SKIPPED",
        title="ts2phc leaves out edges",
        needs="ts2phc's log",
        check=_occasional,
        reference="ts2phc(8)",
    ),
)
