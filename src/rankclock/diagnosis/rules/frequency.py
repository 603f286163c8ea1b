"""What frequencies show: two controllers on one clock, a servo at its limit, a clock that nobody steers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from rankclock.diagnosis.arithmetic import (
    PLAUSIBLE_PPM,
    Ramp,
    epoch_date,
    fit_ramp,
    is_pinned,
)
from rankclock.diagnosis.evidence import Evidence, Item, Series, median
from rankclock.diagnosis.finding import Draft, Rule, Severity, draft
from rankclock.wire.text.chronyc import Tracking
from rankclock.wire.text.linuxptp import PtpSample

__all__ = ["RULES"]

LOCKED_NS = 1_000_000


def _freqs(series: Series) -> list[int]:
    return [sample.freq_ppb for sample in series.samples if sample.freq_ppb is not None]


def _freq_implausible(evidence: Evidence) -> Iterator[Draft]:
    for series in evidence.series:
        settled = [
            s
            for s in series.samples
            if s.freq_ppb is not None
            and abs(s.offset_ns) < LOCKED_NS
            and s.state != 0
            and abs(s.freq_ppb) > PLAUSIBLE_PPM * 1000
        ]
        first = [s for s in series.samples if s.state == 1 and abs(s.freq_ppb or 0) > PLAUSIBLE_PPM * 1000]
        if len(settled) < 2 and first and not any(epoch_date(s.offset_ns) for s in series.samples):
            yield _rates_differ(series, first)
        if len(settled) < 2:
            continue
        freq = median([s.freq_ppb for s in settled if s.freq_ppb is not None]) or 0
        jumps = [s for s in series.samples if abs(s.offset_ns) >= LOCKED_NS and s.line > settled[0].line]
        values: dict[str, object] = {
            "freq_ppm": round(freq / 1000, 1),
            "plausible_limit_ppm": PLAUSIBLE_PPM,
            "max_abs_offset_ns": max(abs(s.offset_ns) for s in settled),
        }
        if jumps:
            values["jump_ns"] = jumps[0].offset_ns
        sign = _sign_note(evidence)
        yield draft(
            Severity.FAULT,
            0.9,
            f"{series.name} shows offsets of at most {values['max_abs_offset_ns']} ns at a frequency of "
            f"{freq / 1000:.1f} ppm. No oscillator is that far off ({PLAUSIBLE_PPM} ppm is the kernel's own limit): "
            "another program (chronyd, ntpd, a second phc2sys, a hypervisor's tool) changes tick or frequency of "
            f"the same clock, and this servo leans against it.{sign} Small offsets prove nothing here. Stop one of "
            "the two.",
            series.quotes([s.line for s in (*settled[:3], *jumps[:2])]),
            values=values,
            next=(
                "systemctl status chronyd ntpd systemd-timesyncd; ps ax | grep -E "
                "'chronyd|ntpd|phc2sys|ptp4l|vmtoolsd'",
                "adjtimex --print: tick other than 10000 was set by another program",
            ),
            confirm="with one of them stopped the frequency returns below 100 ppm",
            explains=("MASTER_STEPPED", "OFFSET_LARGE", "SERVO_UNSTABLE"),
        )
    for item in evidence.all(Tracking):
        yield from _tracking_frequency(item)


def _rates_differ(series: Series, first: list[PtpSample]) -> Draft:
    """The servo's first estimate (state s1) is the ratio of the two rates, before it has corrected anything."""
    freq = (first[0].freq_ppb or 0) / 1000
    return draft(
        Severity.FAULT,
        0.65,
        f"{series.name} finds the two clocks {freq:+.0f} ppm apart in rate when it starts (s1). Oscillators are "
        "within 100 ppm: one of the two is steered by somebody else at that moment (a second daemon, a slew over a "
        "large offset), or its hardware or driver counts at a wrong rate.",
        series.quotes([s.line for s in first][:2]),
        values={"freq_ppm": round(freq, 1), "plausible_limit_ppm": PLAUSIBLE_PPM},
        next=(
            "which programs steer clocks, on both ends: ps ax | grep -E 'chronyd|ntpd|timesyncd|phc2sys|ptp4l'",
            "phc_ctl DEVICE freq 0; phc_ctl DEVICE cmp twice: the rate of the hardware clock alone",
        ),
        confirm="s1 shows a frequency below 100,000 ppb",
        explains=("OFFSET_LARGE",),
    )


def _sign_note(evidence: Evidence) -> str:
    for command in evidence.commands("phc2sys"):
        value = command.value.option("-O")
        target = command.value.option("-c")
        source = command.value.option("-s") or ""
        if value in ("37", "36") and (target in (None, "CLOCK_REALTIME")) and source != "CLOCK_REALTIME":
            return f" Besides, -O {value} has the wrong sign for the system clock fed from a PHC in TAI (-O -{value})."
    return ""


def _tracking_frequency(item: Item[Tracking]) -> Iterator[Draft]:
    track = item.value
    if track.frequency_ppm is None or abs(track.frequency_ppm) <= PLAUSIBLE_PPM:
        return
    values: dict[str, object] = {"frequency_ppm": track.frequency_ppm, "plausible_limit_ppm": PLAUSIBLE_PPM}
    values |= {k: v for k, v in (("system_time_s", track.system_time_s), ("skew_ppm", track.skew_ppm)) if v is not None}
    if track.bound_s is not None:
        values["error_bound_s"] = round(track.bound_s, 6)
    values["in_sync"] = False
    pending = "" if track.system_time_s is None else f", and {abs(track.system_time_s):.6f} s are still to be corrected"
    yield draft(
        Severity.FAULT,
        0.9,
        f"chronyd compensates {abs(track.frequency_ppm):.0f} ppm{pending}. No oscillator is that far off (limit "
        f"{PLAUSIBLE_PPM} ppm): a second controller moves the same clock, in the kernel (RTC to system copy, "
        "dosynctodr), in the hypervisor or its guest tools, or another daemon; or the clock source runs at a wrong "
        f"rate. Leap status '{track.leap or '?'}' says only that chronyd follows somebody.",
        [item],
        values=values,
        next=(
            "cat /sys/devices/system/clocksource/clocksource0/current_clocksource; dmesg | grep -iE 'tsc|clocksource'",
            "systemctl status systemd-timesyncd ntpd vmtoolsd vboxadd-service; VM: switch off the host's time sync",
        ),
        confirm="with the second controller off, 'Frequency' returns below 100 ppm and 'System time' shrinks",
    )


def _pinned(evidence: Evidence) -> Iterator[Draft]:
    for series in evidence.series:
        limit = is_pinned(_freqs(series))
        last = [s for s in series.samples if s.freq_ppb is not None][-3:]
        if limit is None or not last or abs(last[-1].offset_ns) < LOCKED_NS:
            continue
        points = [
            (s.t_ns / 1e9, s.offset_ns / 1e9) for s in series.samples if s.freq_ppb == limit and s.t_ns is not None
        ]
        ramp = fit_ramp(points)
        if ramp is not None and _stands_still(ramp, abs(limit) / 1000):
            continue  # that is OFFSET_RAMP's
        shrinking = ramp is not None and ramp.slope_ppm * last[-1].offset_ns < 0
        left_s = abs(last[-1].offset_ns) / abs(ramp.slope_ppm) / 1e3 if ramp and ramp.slope_ppm else None
        values: dict[str, object] = {"freq_saturated_ppb": abs(limit), "offset_ns": last[-1].offset_ns}
        if ramp:
            values["slope_ppm"] = round(ramp.slope_ppm, 2)
        if shrinking and left_s is not None:
            values["seconds_until_removed"] = round(left_s)
            yield draft(
                Severity.DEGRADED,
                0.8,
                f"{series.name} removes {last[-1].offset_ns / 1e9:+.3f} s by slewing at its limit of {abs(limit)} "
                f"ppb; that takes another {left_s:.0f} s, in which the clock is wrong and runs at a wrong rate. It "
                "may not step: step_threshold is 0 by default once a servo was locked.",
                series.quotes([s.line for s in last]),
                values=values,
                next=("step once, outside of training: restart with first_step_threshold, or step_threshold 1.0",),
                confirm="the offset shrinks by the frequency limit each second",
                explains=("OFFSET_LARGE",),
            )
            continue
        yield draft(
            Severity.FAULT,
            0.8,
            f"the frequency of {series.name} stands at its limit ({limit} ppb) and the offset of "
            f"{last[-1].offset_ns / 1e9:+.6f} s does not shrink: something pulls the clock the other way as fast, "
            "or the clock does not obey (not adjustable, wrong PHC), or its source runs away.",
            series.quotes([s.line for s in last]),
            values=values,
            next=(
                "who else steers this clock: ps ax | grep -E 'chronyd|ntpd|phc2sys|ptp4l|timesyncd'",
                "does it obey: phc_ctl /dev/ptpN freq 50000; phc_ctl /dev/ptpN cmp, twice",
            ),
            confirm="frequency leaves the limit and the offset falls",
            explains=("OFFSET_LARGE", "OFFSET_RAMP"),
        )


def _ramp(evidence: Evidence) -> Iterator[Draft]:
    for series in evidence.series:
        samples = [s for s in series.samples if s.t_ns is not None and s.rms_ns is None]
        if len(samples) < 5:
            continue
        ramp = fit_ramp([((s.t_ns or 0) / 1e9, s.offset_ns / 1e9) for s in samples])
        limit = is_pinned(_freqs(series))
        if limit is not None and (ramp is None or not _stands_still(ramp, abs(limit) / 1000)):
            continue
        noise = median([abs(b.offset_ns - a.offset_ns) for a, b in pairwise(samples)]) or 0
        freqs = _freqs(series)
        steady = not freqs or max(freqs) - min(freqs) <= 1_000
        if ramp is None or ramp.explained < 0.999 or abs(ramp.change_s) < 1e-4 or not steady or noise == 0:
            continue
        yield _ramp_found(series, samples, ramp)


def _stands_still(ramp: Ramp, steered_ppm: float) -> bool:
    """Whether one clock gains a second each second on the other, less what the servo does about it."""
    return ramp.explained > 0.999 and abs(abs(ramp.slope_ppm) - 1e6) < 5e3 + 1.2 * steered_ppm


def _ramp_found(series: Series, samples: list[PtpSample], ramp: Ramp) -> Draft:
    values = {"slope_ppm": round(ramp.slope_ppm, 3), "offset_ns": samples[-1].offset_ns}
    quotes = series.quotes([samples[0].line, samples[len(samples) // 2].line, samples[-1].line])
    if _stands_still(ramp, max(abs(f) for f in _freqs(series) or [0]) / 1000):
        return draft(
            Severity.FAULT,
            0.9,
            f"the offset of {series.name} grows by one second each second: one of the two clocks stands still (a "
            "PHC whose counter does not run, or a driver that returns the same reading).",
            quotes,
            values={**values, "frozen": True},
            next=("phc_ctl /dev/ptpN get, twice a second apart", "reload the driver; ethtool -i IFACE"),
            confirm="two readings a second apart differ by a second",
            explains=("OFFSET_LARGE",),
        )
    return draft(
        Severity.FAULT,
        0.75,
        f"the offset of {series.name} grows in a straight line, {ramp.slope_ppm:+.3f} ppm, while the frequency is "
        "left alone: the clock is measured but not steered (free_running, -x, a servo that never leaves s0, or no "
        "right to adjust it).",
        quotes,
        values=values,
        next=("grep free_running in the configuration; does the daemon run with CAP_SYS_TIME and without -x?",),
        confirm="with steering on, the frequency moves and the ramp ends",
        explains=("OFFSET_LARGE",),
    )


RULES = (
    Rule(
        id="FREQ_IMPLAUSIBLE",
        title="A frequency that no oscillator has: two controllers on one clock",
        needs="offsets with frequencies, or chronyc tracking",
        check=_freq_implausible,
        arithmetic="|frequency| > 500 ppm while offsets are small (or |system time| stays large)",
        reference="geerlingguy/time-pi#12, #13; omniosorg/omnios-build#2576",
    ),
    Rule(
        id="FREQ_PINNED",
        title="The frequency stands at its limit",
        needs="offsets with frequencies",
        check=_pinned,
        arithmetic="the same frequency three times at the end; time left = |offset| / slope",
        reference="linuxptp clockadj, max_frequency; ptp4l(8) step_threshold",
    ),
    Rule(
        id="OFFSET_RAMP",
        title="The offset grows in a straight line: nobody steers",
        needs="at least five offsets with times",
        check=_ramp,
        arithmetic="least squares; slope in ppm; 1,000,000 ppm is a clock that stands still",
        reference="facts: free running clocks part by 5 to 30 ppm",
    ),
)
