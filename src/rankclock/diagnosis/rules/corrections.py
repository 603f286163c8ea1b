"""How far off a clock is and what its daemon does about it: slewing, stepping, refusing, wide bounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rankclock.diagnosis.evidence import Evidence, Item
from rankclock.diagnosis.finding import Draft, Rule, Severity, draft
from rankclock.wire.text.chronyc import Tracking
from rankclock.wire.text.event import Event

__all__ = ["RULES"]

WRONG_S = 1.0
"""A clock that is off by a second breaks log order and file times: wrong by any standard of a cluster."""

PENDING_S = 0.05

MAXERROR_S = 16.0
"""Beyond, the kernel itself calls the clock unsynchronised (NTP_PHASE_LIMIT)."""

BOUND_WIDE_S = 0.1


def _pending(evidence: Evidence) -> Iterator[Draft]:
    for item in evidence.all(Tracking):
        system = item.value.system_time_s
        if system is None or abs(system) < PENDING_S or item.value.unsynchronised:
            continue
        way = "ahead" if system > 0 else "behind"
        yield draft(
            Severity.FAULT if abs(system) >= WRONG_S else Severity.DEGRADED,
            0.8,
            f"the system clock is {abs(system):.6f} s {way} of what chronyd holds for true time and is being slewed "
            f"there. 'Leap status {item.value.leap or '?'}' says that a source is followed, not that the clock is "
            "right yet.",
            [item],
            values={
                "system_time_s": system,
                "error_bound_s": None if item.value.bound_s is None else round(item.value.bound_s, 6),
                "in_sync": False,
            },
            next=(
                "outside of training: chronyc makestep",
                "makestep 1 3 in chrony.conf steps at the start instead",
            ),
            confirm="'System time' below a millisecond",
            explains=("TRACKING_WELL",),
        )
        return


def _distance(evidence: Evidence) -> Iterator[Draft]:
    for item in evidence.all(Tracking):
        bound = item.value.bound_s
        if bound is None or item.value.unsynchronised or bound - abs(item.value.system_time_s or 0.0) < BOUND_WIDE_S:
            continue
        yield draft(
            Severity.FAULT if bound >= MAXERROR_S else Severity.DEGRADED,
            0.8,
            f"chronyd's error bound is {bound:.3f} s (|system time| + root dispersion + root delay / 2): "
            + (
                "above 16 s the kernel calls the clock unsynchronised. The source was not heard for long, its own "
                "dispersion is that large, or only one sample was ever taken."
                if bound >= MAXERROR_S
                else "wide for a cluster; the source is far, or was not heard for long."
            ),
            [item],
            values={
                "error_bound_s": round(bound, 6),
                "root_dispersion_s": item.value.root_dispersion_s,
                "skew_ppm": item.value.skew_ppm,
            },
            next=("chronyc -n sources: LastRx, Reach, +/-; a nearer server; shorter maxpoll",),
            confirm="root dispersion of milliseconds or less",
            explains=("TRACKING_WELL",),
        )
        return


def _step_refused(evidence: Evidence) -> Iterator[Draft]:
    panic = evidence.events("ntpd-panic")
    limit = evidence.events("chrony-offset-max")
    hits = panic or limit
    if not hits:
        return
    offset = hits[0].value.number("offset_s") or hits[0].value.number("offset2_s")
    bound = hits[0].value.number("limit_s") or (1000.0 if panic else None)
    yield draft(
        Severity.FAULT,
        0.9,
        f"the daemon refuses a correction of {offset} s: beyond its limit{f' of {bound:g} s' if bound else ''} it "
        "ends rather than follows. Either this clock is that far off (dead RTC battery, a paused VM) or its servers "
        "are.",
        hits[:2],
        values={"offset_s": offset, "limit_s": bound},
        next=(
            "date -u against an independent time first: which of the two is wrong?",
            "if this clock: ntpd -gq (or chronyd -q) once, before the daemon; makestep 1 3",
        ),
        confirm="the daemon stays up and its offset is small",
        explains=("UNIT_FAILED", "CLOCK_STEPPED"),
    )


def _freq_exceeds(evidence: Evidence) -> Iterator[Draft]:
    hits = evidence.events("ntpd-freq-exceeds", "chrony-frequency-max")
    if hits:
        freq = hits[0].value.number("freq_ppm")
        yield draft(
            Severity.FAULT,
            0.85,
            f"the daemon would have to correct {freq:g} ppm, more than its 500 ppm: no oscillator is that far off. "
            "The clock source runs at a wrong rate (unstable TSC, a wrong tick), or another program moves the clock.",
            hits[:2],
            values={"freq_ppm": freq, "plausible_limit_ppm": hits[0].value.number("limit_ppm") or 500},
            next=(
                "cat /sys/devices/system/clocksource/clocksource0/current_clocksource; adjtimex --print (tick 10000?)",
            ),
            confirm="ntpq -c rv frequency below 100",
            explains=("CLOCK_STEPPED", "TIME_ERROR"),
        )


def _steps(evidence: Evidence) -> Iterator[Draft]:
    steps = [
        (e, e.value.number("step_s") or e.value.number("wrong_s") or 0.0)
        for e in evidence.events("ntpd-reset", "chrony-stepped", "chrony-wrong")
        if not e.value.text("ignored")
    ]
    big = [(e, s) for e, s in steps if abs(s) >= PENDING_S]
    if not big:
        return
    resets = [(e, s) for e, s in big if e.value.kind == "ntpd-reset"] or [
        (e, s) for e, s in big if e.value.kind == "chrony-stepped"
    ]
    rate = _reset_rate(resets)
    if len(resets) >= 3 and rate is not None:
        yield draft(
            Severity.FAULT,
            0.8,
            f"the clock was stepped {len(resets)} times, always the same way, together "
            f"{sum(s for _, s in resets):+.3f} s: it runs wrong by about {rate:+.0f} ppm, which the daemon cannot "
            "slew (limit 500 ppm). The clock source is wrong, or another program keeps moving the clock.",
            [e for e, _ in resets[:4]],
            values={
                "steps": len(resets),
                "rate_ppm": round(rate, 1),
                "total_step_s": round(sum(s for _, s in resets), 6),
            },
            next=("current_clocksource; dmesg | grep -i tsc; VM: the host's time sync tools",),
            confirm="a day without a step",
            explains=("TIME_ERROR",),
        )
        return
    yield draft(
        Severity.UNKNOWN,
        0.5,
        f"the daemon found the clock wrong by {big[0][1]:+.6f} s and corrected it. Once, after boot: a wrong RTC. "
        "Later: a paused VM, a source that lied, or another program. These lines do not tell.",
        [e for e, _ in big[:4]],
        values={"step_s": big[0][1], "steps": len(big)},
        next=("what happened at that moment: journalctl --since ... -k; uptime; was the VM suspended or migrated",),
    )


def _reset_rate(resets: Sequence[tuple[Item[Event], float]]) -> float | None:
    """ppm of steps that all go the same way, None where they do not or have no times."""
    times = [event.value.line.wall_ns for event, _ in resets]
    sizes = [size for _, size in resets]
    if len(resets) < 3 or not (all(s > 0 for s in sizes) or all(s < 0 for s in sizes)):
        return None
    first, last = times[0], times[-1]
    if first is None or last is None or last <= first:
        return None
    return sum(sizes[1:]) / ((last - first) / 1e9) * 1e6


def _time_error(evidence: Evidence) -> Iterator[Draft]:
    hits = evidence.events("ntpd-time-error")
    if hits:
        yield draft(
            Severity.UNKNOWN,
            0.5,
            f"'kernel reports TIME_ERROR {hits[0].value.text('status')}' only repeats the kernel's unsynchronised "
            "flag (0x40). In the first minutes after ntpd's start it is always set; if it stays, ntpd has no source.",
            hits[:2],
            values={"kernel_status": hits[0].value.text("status")},
            next=("ntpq -pn ten minutes after the start: is there a *?",),
        )


RULES = (
    Rule(
        id="CORRECTION_PENDING",
        title="The clock is off and being slewed",
        needs="chronyc tracking",
        check=_pending,
        arithmetic="|system time| above 50 ms (degraded) or 1 s (fault)",
        reference="chronyc(1) tracking",
    ),
    Rule(
        id="BOUND_WIDE",
        title="The error bound is wide",
        needs="chronyc tracking",
        check=_distance,
        arithmetic="|system time| + root dispersion + root delay / 2",
        reference="chronyc(1); balena-os/meta-balena#1852",
    ),
    Rule(
        id="STEP_REFUSED",
        title="The daemon refuses so large a correction",
        needs="the log of ntpd or chronyd",
        check=_step_refused,
        arithmetic="offset against panic limit (ntpd 1000 s) or maxchange",
        reference="ntpd(8) -g, chrony.conf(5) maxchange",
    ),
    Rule(
        id="FREQ_BEYOND_TOLERANCE",
        title="The daemon cannot correct so large a frequency",
        needs="the log of ntpd or chronyd",
        check=_freq_exceeds,
        arithmetic="frequency error against 500 ppm",
        reference="rancher/os#1963",
    ),
    Rule(
        id="CLOCK_STEPPED",
        title="The clock was stepped",
        needs="the log of ntpd or chronyd",
        check=_steps,
        arithmetic="sum of steps of one sign over the time between them, in ppm",
        reference="ntpd(8), chrony.conf(5) makestep",
    ),
    Rule(
        id="TIME_ERROR",
        title="ntpd repeats the kernel's unsynchronised flag",
        needs="ntpd's log",
        check=_time_error,
        reference="adjtimex(2); sonic-net/sonic-buildimage#4306",
    ),
)
