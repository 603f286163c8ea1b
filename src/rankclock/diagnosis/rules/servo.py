"""What a series of offsets shows by itself.

Dates for offsets, 37 s, steps, ramps, pinned and impossible frequencies.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from rankclock.diagnosis.arithmetic import (
    PLAUSIBLE_PPM,
    YEAR_S,
    epoch_date,
    is_pinned,
    nearest_wrap,
    tai_steps,
)
from rankclock.diagnosis.evidence import Evidence, Quote, Series, median
from rankclock.diagnosis.finding import Draft, Rule, Severity, draft
from rankclock.wire.text.chronyc import ChronySource, Tracking
from rankclock.wire.text.ntpq import NtpPeer

__all__ = ["RULES"]

STEP_NS = 100_000_000
"""A change between two samples that no servo makes: 0.1 s."""

LOCKED_NS = 1_000_000

WELL_NS = 100_000


def _freqs(series: Series) -> list[int]:
    return [sample.freq_ppb for sample in series.samples if sample.freq_ppb is not None]


def _epoch(evidence: Evidence) -> Iterator[Draft]:
    for series in evidence.series:
        dated = [(sample, date) for sample in series.samples if (date := epoch_date(sample.offset_ns))]
        if not dated or nearest_wrap(dated[0][0].offset_ns, 1_000_000):
            continue
        sample, date = dated[0]
        signed = sample.rms_ns is None
        ahead = sample.offset_ns > 0
        values: dict[str, object] = {
            "offset_ns": sample.offset_ns,
            "offset_as_date_utc": date.strftime("%Y-%m-%dT%H:%M:%S"),
            "offset_years": round(abs(sample.offset_ns) / 1e9 / YEAR_S, 2),
        }
        pinned = is_pinned(_freqs(series))
        if pinned is not None:
            values["freq_saturated_ppb"] = abs(pinned)
        who = "the grandmaster" if series.program in ("ptp4l", "") else "the source clock"
        if signed and not ahead:
            cause = (
                f"the offset of {series.name} is minus Unix time ({values['offset_as_date_utc']} UTC): the clock "
                f"that is steered stands near 1970-01-01, {who} is right. Set the steered clock once (phc_ctl "
                "/dev/ptpN set, date -s), then start again."
            )
        else:
            cause = (
                f"the offset of {series.name} is Unix time itself ({values['offset_as_date_utc']} UTC, "
                f"{values['offset_years']} years): {who} stands near 1970-01-01, the local clock is right. Mend "
                f"{who} (set its clock, wait until it follows its own source); do not let this node step back to "
                "1970."
            )
        if pinned is not None:
            cause += f" The frequency is at its limit of {abs(pinned)} ppb because of that."
        yield draft(
            Severity.FAULT,
            0.97,
            cause,
            series.quotes([one.line for one, _ in dated][:3]),
            values=values,
            next=(
                f"on {who.removeprefix('the ')}: date -u; phc_ctl /dev/ptp0 get; timedatectl; chronyc tracking",
                "stop ptp4l and phc2sys here until it is right, and check that no other daemon steers the same clock",
            ),
            confirm="the offset falls to microseconds once the source shows the present date",
            explains=("FREQ_PINNED", "FREQ_IMPLAUSIBLE", "OFFSET_RAMP", "OFFSET_LARGE", "SERVO_UNSTABLE"),
        )
    yield from _nmea_epoch(evidence)


def _nmea_epoch(evidence: Evidence) -> Iterator[Draft]:
    late = [one for one in evidence.events("ts2phc-nmea-delay") if epoch_date(int(one.value.number("delay_ns") or 0))]
    if late:
        date = epoch_date(int(late[0].value.number("delay_ns") or 0))
        yield draft(
            Severity.FAULT,
            0.9,
            "the NMEA delay is Unix time itself: ts2phc took the time of the sentence as zero (1970). linuxptp up "
            "to 3.1.1 does that for sentences without a valid time; the receiver had no time yet, or the sentence "
            "could not be read.",
            late[:2],
            values={
                "nmea_delay_ns": int(late[0].value.number("delay_ns") or 0),
                "offset_as_date_utc": date.strftime("%Y-%m-%dT%H:%M:%S") if date else None,
            },
            next=("look at the sentences: ts2phc -l 7; gpspipe -r", "linuxptp 4.0 or later"),
            confirm="'nmea delay' is some hundred milliseconds",
            explains=("LEAPFILE_EXPIRED", "TS2PHC_NO_TIME"),
        )


def _tai(evidence: Evidence) -> Iterator[Draft]:
    for series in evidence.series:
        hits = [s for s in series.samples if s.rms_ns is None and tai_steps(s.offset_ns / 1e9, 0.05) is not None]
        if hits:
            yield _tai_found(hits[-1].offset_ns / 1e9, series.quotes([s.line for s in hits][:4]), series.name, 0.93)
    for item in evidence.all(ChronySource):
        if item.value.has_sample and item.value.offset_ns is not None:
            offset_s = item.value.offset_ns / 1e9
            if tai_steps(offset_s, 0.6) is not None:
                yield _tai_found(offset_s, [item.quote], f"chrony's source {item.value.name}", 0.9)
    for peer in evidence.all(NtpPeer):
        if (
            peer.value.offset_ms is not None
            and peer.value.reach
            and tai_steps(peer.value.offset_ms / 1e3, 0.1) is not None
        ):
            yield _tai_found(peer.value.offset_ms / 1e3, [peer.quote], f"ntpd's peer {peer.value.name}", 0.9)
    for track in evidence.all(Tracking):
        if track.value.system_time_s is not None and tai_steps(track.value.system_time_s, 0.05) is not None:
            yield _tai_found(track.value.system_time_s, [track.quote], "chronyd", 0.85)
    steps = [
        (one, float(one.value.number("wrong_s") or one.value.number("step_s") or 0))
        for one in evidence.events("chrony-wrong", "chrony-stepped", "ntpd-reset", "ntpd-set", "ntpd-step-server")
    ]
    hit_steps = [(one, step) for one, step in steps if tai_steps(step, 0.1) is not None]
    if hit_steps:
        yield _tai_found(-hit_steps[0][1], [one.quote for one, _ in hit_steps[:3]], "the daemon's correction", 0.85)


def _tai_found(offset_s: float, quotes: list[Quote] | tuple[Quote, ...], name: str, confidence: float) -> Draft:
    times = tai_steps(offset_s, 0.7) or 0
    ahead = (
        "ahead: the local clock runs in TAI where its reference is UTC"
        if offset_s > 0
        else ("behind: the local clock runs in UTC where its reference is TAI")
    )
    twice = " (twice that: the correction was applied with the wrong sign)" if abs(times) == 2 else ""
    return draft(
        Severity.FAULT,
        confidence,
        f"the offset of {name} is {offset_s:+.6f} s, that is {times} * 37 s and "
        f"{(offset_s - 37 * times) * 1e3:+.3f} ms: TAI minus UTC{twice}, not drift. {ahead}. Somewhere a PTP or PHC "
        "time is copied without, or with the wrong, UTC offset: ptpTimescale set on a master that serves UTC, "
        "currentUtcOffsetValid 0, phc2sys with -O of the wrong value or sign, chrony's refclock PHC without 'offset "
        "-37' or 'tai'.",
        list(quotes),
        values={"offset_s": round(offset_s, 9), "tai_utc_s": 37, "tai_utc_times": times},
        next=(
            "pmc -u -b 0 'GET TIME_PROPERTIES_DATA_SET' (currentUtcOffset, currentUtcOffsetValid, ptpTimescale)",
            "adjtimex --print or ntptime: the kernel's TAI offset; ps ax | grep -E 'phc2sys|ptp4l' for -O, -w",
            "system clock from a PHC in TAI: phc2sys -O -37 or -w; PHC from the system clock: -O 37",
        ),
        confirm="the offset falls from 37 s to microseconds at once when the scale is right",
        explains=(
            "OFFSET_LARGE",
            "CORRECTION_PENDING",
            "FALSETICKERS",
            "DATES_DISAGREE",
            "MASTER_STEPPED",
            "CLOCK_STEPPED",
        ),
    )


def _unstable(evidence: Evidence) -> Iterator[Draft]:
    for series in evidence.series:
        samples = [s for s in series.samples if s.rms_ns is None and s.state != 0]
        for start in range(len(samples) - 5):
            window = samples[start : start + 6]
            sizes = [abs(s.offset_ns) for s in window]
            growing = all(b >= 1.4 * a > 0 for a, b in pairwise(sizes))
            turning = all(a.offset_ns * b.offset_ns < 0 for a, b in pairwise(window))
            if growing and sizes[-1] > 1_000:
                factor = (sizes[-1] / sizes[0]) ** 0.2
                how = "swings from side to side" if turning else "runs away on one side"
                yield draft(
                    Severity.FAULT,
                    0.75,
                    f"the offset of {series.name} {how} and grows {factor:.1f}-fold with each sample: the loop is "
                    "unstable. Servo constants too large for the interval, two servos on one clock, or a correction "
                    "that acts twice or with the wrong sign.",
                    series.quotes([s.line for s in window]),
                    values={
                        "growth_factor": round(factor, 2),
                        "offset_ns": window[-1].offset_ns,
                        "alternating": turning,
                    },
                    next=("one owner of the clock? then defaults for pi_proportional_const and pi_integral_const",),
                    confirm="offsets shrink from sample to sample after a restart",
                    explains=("OFFSET_LARGE",),
                )
                break


def _stepped(evidence: Evidence) -> Iterator[Draft]:
    yield from _phc_set(evidence)
    checked = {one.first for one in evidence.events("ptp-clockcheck")}
    for series in evidence.series:
        samples = [s for s in series.samples if s.rms_ns is None]
        for before, first, after in zip(samples, samples[1:], samples[2:], strict=False):
            step = first.offset_ns - before.offset_ns
            stays = abs(after.offset_ns - first.offset_ns) < abs(step) / 4
            locked = before.state in (2, 3) and abs(before.offset_ns) < LOCKED_NS
            own = any(before.line < line <= first.line + 1 for line in checked)
            if abs(step) >= STEP_NS and stays and locked and not own and not _cause_known(step):
                yield draft(
                    Severity.FAULT,
                    0.7,
                    f"{series.name} was locked, then the offset changed by {step / 1e9:+.6f} s from one sample to "
                    "the next and stayed: its source was stepped (somebody set the grandmaster's clock, or another "
                    "grandmaster took over), or this clock was. A locked servo only slews: step_threshold is 0 by "
                    "default, first_step_threshold acts at the start only.",
                    series.quotes([before.line, first.line, after.line]),
                    values={
                        "step_s": round(step / 1e9, 9),
                        "step_threshold_default": 0.0,
                        "first_step_threshold_default": 2e-05,
                    },
                    next=(
                        "journalctl on the grandmaster at that moment",
                        "step_threshold 0.00002, or restart ptp4l here",
                    ),
                    confirm="the offset returns to its old size after a step",
                    explains=("OFFSET_LARGE", "CLOCK_JUMPED"),
                )
                break


def _cause_known(step_ns: int) -> bool:
    return nearest_wrap(step_ns, 1_000_000) is not None or epoch_date(step_ns) is not None


def _phc_set(evidence: Evidence) -> Iterator[Draft]:
    was_set = evidence.events("testptp-set", "phc-ctl-set")
    read = evidence.events("testptp-get", "phc-ctl-get")
    checks = evidence.events("ptp-clockcheck")
    if not was_set or not read or not checks:
        return
    set_s, read_s = was_set[-1].value.number("set_s") or 0.0, read[-1].value.number("phc_s") or 0.0
    step = int(set_s) - int(read_s)
    if abs(step) < 2:
        return
    yield draft(
        Severity.FAULT,
        0.85,
        f"the master's clock was set by hand to {int(set_s)} while this clock stands at {read_s:.0f}: a step of "
        f"{step} s. A locked ptp4l slews only, at its frequency limit: step_threshold is 0.0 by default (never step "
        "once locked), first_step_threshold 0.00002 s acts at the start only. clockcheck reports the slewing.",
        [*was_set[-1:], *read[-1:], *checks[:1]],
        values={"step_s": step, "step_threshold_default": 0.0, "first_step_threshold_default": 2e-05},
        next=(
            "set step_threshold 0.00002 (or restart ptp4l) on the nodes that follow",
            "do not set a master's clock in service",
        ),
        confirm="after a restart the node steps once and locks",
        explains=("CLOCK_JUMPED",),
    )


def _large(evidence: Evidence) -> Iterator[Draft]:
    for series in evidence.series:
        samples = series.samples
        last = samples[-3:]
        if len(last) < 3 or min(abs(s.offset_ns) for s in last) < LOCKED_NS:
            continue
        yield draft(
            Severity.UNKNOWN,
            0.5,
            f"the offset of {series.name} stays at {last[-1].offset_ns / 1e9:+.6f} s; these lines do not tell why.",
            series.quotes([s.line for s in last]),
            values={"offset_ns": last[-1].offset_ns},
            next=(
                "more of the log, from the start of the daemon; pmc -u -b 0 'GET PARENT_DATA_SET' 'GET "
                "TIME_PROPERTIES_DATA_SET'",
                "date -u on this node and on the source",
            ),
        )


def _clockcheck(evidence: Evidence) -> Iterator[Draft]:
    yield from _stepped_behind_the_back(evidence)
    jumps = evidence.events("ptp-clockcheck", "chrony-jump")
    if not jumps:
        return
    ways = [one.value.text("way") for one in jumps]
    pairs = sum(1 for a, b in pairwise(ways) if a != b)
    yield draft(
        Severity.UNKNOWN,
        0.5,
        "the daemon saw its clock move against CLOCK_MONOTONIC. Back and forth within a second: timestamps of "
        "single messages are wrong. Always the same way: another program or person steps or steers this clock, or "
        "the servo slews at its limit towards a master that was stepped. These lines alone do not tell which.",
        jumps[:4],
        values={"clock_jumps": len(jumps), "back_and_forth": pairs},
        next=(
            "the offsets around these lines (ptp4l -m with summary_interval 0)",
            "ps ax | grep -E 'chronyd|ntpd|timesyncd|phc2sys|ptp4l'; journalctl of the grandmaster at that moment",
        ),
    )


def _stepped_behind_the_back(evidence: Evidence) -> Iterator[Draft]:
    """The steered clock itself was stepped, again and again by the same amount: somebody else sets it."""
    steps: list[tuple[float, Quote]] = []
    checked = [one.first for one in evidence.events("ptp-clockcheck")]
    for series in evidence.series:
        samples = [s for s in series.samples if s.rms_ns is None]
        for before, first in pairwise(samples):
            step = first.offset_ns - before.offset_ns
            if abs(step) >= STEP_NS and any(before.line < line <= first.line for line in checked):
                steps += [(step / 1e9, quote) for quote in series.quotes([first.line])]
    jumps = evidence.events("chrony-jump")
    if len(jumps) >= 2:
        wrong = [(one.value.number("wrong_s") or 0.0, one.quote) for one in evidence.events("chrony-wrong")]
        steps += [(size, quote) for size, quote in wrong if abs(size) >= STEP_NS / 1e9]
    sizes = [abs(size) for size, _ in steps]
    alike = [size for size in sizes if abs(size - (median(sizes) or 0.0)) < 0.01 * size]
    if len(alike) < 2 or _cause_known(round(alike[0] * 1e9)):
        return
    yield draft(
        Severity.FAULT,
        0.75,
        f"the steered clock itself was stepped {len(alike)} times by {alike[0]:.3f} s, and not by this daemon: "
        "another program sets the same clock, to another time, as often as this one corrects it.",
        [*evidence.events("ptp-clockcheck", "chrony-jump")[:2], *[quote for _, quote in steps[:3]]],
        values={"step_s": round(steps[0][0], 6), "steps": len(alike)},
        next=(
            "ps ax | grep -E 'chronyd|ntpd|timesyncd|phc2sys|ptp4l'; systemctl list-timers; cron jobs with ntpdate "
            "or hwclock",
            "stop all but one",
        ),
        confirm="no further jump for an hour",
        explains=("CLOCK_STEPPED", "MASTER_STEPPED", "FREQ_IMPLAUSIBLE"),
    )


def _healthy(evidence: Evidence) -> Iterator[Draft]:
    for series in evidence.series:
        last = series.samples[-5:]
        if len(last) < 3:
            continue
        sizes = [abs(s.offset_ns) for s in last]
        locked = all(s.state in (None, 2, 3) for s in last)
        plausible = all(s.freq_ppb is None or abs(s.freq_ppb) <= PLAUSIBLE_PPM * 1000 for s in last)
        if locked and plausible and max(sizes) <= WELL_NS:
            delays = [s.delay_ns for s in last if s.delay_ns is not None]
            yield draft(
                Severity.HEALTHY,
                0.7,
                f"{series.name} is locked: the last offsets are within {max(sizes)} ns at a plausible frequency "
                "(its own claim, one hop; it says nothing of what its source is worth).",
                series.quotes([s.line for s in last]),
                values={
                    "max_abs_offset_ns": max(sizes),
                    **({"median_delay_ns": int(median(delays) or 0)} if delays else {}),
                },
            )


RULES = (
    Rule(
        id="GM_EPOCH",
        title="One of the two clocks stands at 1970",
        needs="offsets of ptp4l, phc2sys or ts2phc",
        check=_epoch,
        arithmetic="|offset| as Unix time is a date (2000 to 2060); positive: the source is at 1970, negative: here",
        reference="nxp-archive/openil_linuxptp#15; jclark/rpi-cm4-ptp-guide#1",
    ),
    Rule(
        id="TAI_UTC_OFFSET",
        title="An offset of 37 s: TAI against UTC",
        needs="any offset: ptp4l, phc2sys, chrony sources, ntpq, corrections in a log",
        check=_tai,
        arithmetic="offset = k * 37 s, k = 1, -1, 2, -2, within 50 ms (0.6 s for chrony's sources)",
        reference="IERS Bulletin C; phc2sys(8) -O, -w; openshift-kni/cnf-features-deploy#1968",
    ),
    Rule(
        id="SERVO_UNSTABLE",
        title="Offsets grow from sample to sample",
        needs="at least six offsets",
        check=_unstable,
        arithmetic="six samples, each at least 1.4 times the one before",
        reference="ptp4l(8), pi_proportional_const",
    ),
    Rule(
        id="MASTER_STEPPED",
        title="The source was stepped under a locked servo",
        needs="offsets around the step, or the command that set the clock and a reading of the other",
        check=_stepped,
        arithmetic="offset after minus offset before; set time minus read time",
        reference="ptp4l(8) step_threshold; nxp-archive/openil_linuxptp#10",
    ),
    Rule(
        id="OFFSET_LARGE",
        title="The offset stays large",
        needs="three offsets",
        check=_large,
        reference="",
    ),
    Rule(
        id="CLOCK_JUMPED",
        title="The clock jumped behind the daemon's back",
        needs="the log of ptp4l, phc2sys or chronyd",
        check=_clockcheck,
        arithmetic="number of jumps, how many turned back; steps at a jump that are alike within 1 %",
        reference="linuxptp clockcheck.c, sanity_freq_limit",
    ),
    Rule(
        id="SERVO_LOCKED",
        title="The servo is locked",
        needs="three offsets",
        check=_healthy,
        reference="",
    ),
)
