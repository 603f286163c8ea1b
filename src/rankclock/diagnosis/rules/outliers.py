"""Single bad offsets between good ones, and delays that no path has."""

from __future__ import annotations

from collections.abc import Iterator

from rankclock.diagnosis.arithmetic import epoch_date, nearest_wrap
from rankclock.diagnosis.evidence import Evidence, median
from rankclock.diagnosis.finding import Draft, Rule, Severity, draft
from rankclock.wire.text.linuxptp import PtpSample

__all__ = ["RULES"]

OUTLIER_NS = 1_000_000
TIMES_USUAL = 1_000
RACING_PPB = 1_000_000
NEGATIVE_NS = -1_000
"""Wrong corrections of PHY latencies make a short path slightly negative; a microsecond is no latency."""


def _outliers(evidence: Evidence) -> Iterator[Draft]:
    for series in evidence.series:
        samples = series.samples
        usual = median([abs(s.offset_ns) for s in samples if abs(s.offset_ns) < OUTLIER_NS])
        if usual is None:
            continue
        limit = max(OUTLIER_NS, TIMES_USUAL * usual)
        followed = [*samples[2:], None]
        far = [
            here
            for before, here, after in zip(samples, samples[1:], followed, strict=False)
            if abs(here.offset_ns) > limit and _quiet(before, limit) and _quiet(after, limit) and not _known(here)
        ]
        if len(far) >= 2:
            # Where the daemon saw its own clock jump, the clock did move: somebody's steps, CLOCK_JUMPED's matter.
            jumped = evidence.has("ptp-clockcheck", "chrony-jump")
            yield draft(
                Severity.UNKNOWN if jumped else Severity.FAULT,
                0.6,
                f"offsets of {series.name} are below {limit / 1000:.0f} µs, except {len(far)} single ones of up to "
                f"{max(abs(s.offset_ns) for s in far) / 1e9:.6f} s between good ones: no clock moves there and back "
                "like that. Timestamps of single messages are wrong (driver, PHY, a switch that corrects wrongly), "
                "the clock is stepped there and back by somebody, or messages of a second master are mixed in.",
                series.quotes([s.line for s in far][:4]),
                values={
                    "outliers": len(far),
                    "outlier_s": round(max(abs(s.offset_ns) for s in far) / 1e9, 9),
                    "usual_offset_ns": int(usual),
                },
                next=(
                    "ptp4l -m -l 7 with summary_interval 0: which message; pmc 'GET PARENT_DATA_SET': does the "
                    "parent change",
                    "driver and firmware of NIC and switch; another NIC on the same port",
                ),
                confirm="an hour without an outlier",
                explains=("SYNC_FLAPPING",),
            )


def _quiet(sample: PtpSample | None, limit: float) -> bool:
    """Whether a neighbour is a usual one; the end of the log counts as one."""
    return sample is None or abs(sample.offset_ns) <= limit


def _known(sample: PtpSample) -> bool:
    return nearest_wrap(sample.offset_ns, 1_000_000) is not None or epoch_date(sample.offset_ns) is not None


def _negative(evidence: Evidence) -> Iterator[Draft]:
    for series in evidence.series:
        if series.program not in ("ptp4l", ""):
            continue
        delays = [s for s in series.samples if s.delay_ns is not None]
        below = [s for s in delays if (s.delay_ns or 0) < NEGATIVE_NS]
        if len(below) < 2 and (not below or len(below) < len(delays)):
            continue
        least = min(s.delay_ns or 0 for s in below)
        racing = all(abs(s.freq_ppb or 0) > RACING_PPB for s in below)
        yield draft(
            Severity.UNKNOWN if racing else Severity.FAULT,
            0.8,
            f"a path delay of {least} ns: no message arrives before it was sent. "
            + (
                "The clock is moved at thousands of ppm meanwhile, which alone makes the measured delay wrong."
                if racing
                else "The two clocks run at very different rates meanwhile (one is steered by two programs), or "
                "the timestamps of one direction are wrong."
            ),
            series.quotes([s.line for s in below][:3]),
            values={"min_path_delay_ns": least, "negative_delays": len(below)},
            next=(
                "who else steers either clock (ps ax | grep -E 'chronyd|ntpd|timesyncd|phc2sys'), on both ends",
                "ethtool -T of both; egressLatency and ingressLatency; driver and firmware",
            ),
            confirm="a steady positive delay",
            explains=("OFFSET_LARGE",),
        )
    single = evidence.events("ptp-negative-delay")
    if single:
        yield draft(
            Severity.RISK,
            0.6,
            "ptp4l measured negative delays: latencies corrected too much, or wrong timestamps.",
            single[:3],
            values={"min_path_delay_ns": min(int(e.value.number("delay_ns") or 0) for e in single)},
            next=("egressLatency and ingressLatency; delayAsymmetry",),
        )


RULES = (
    Rule(
        id="OFFSET_OUTLIERS",
        title="Single bad offsets between good ones",
        needs="offsets of ptp4l, phc2sys or ts2phc",
        check=_outliers,
        arithmetic="|offset| above 1 ms and 1000 times the usual one, its neighbours below, at least twice",
        reference="nxp-archive/openil#48",
    ),
    Rule(
        id="PATH_DELAY_NEGATIVE",
        title="A negative path delay",
        needs="ptp4l's offsets with path delay",
        check=_negative,
        arithmetic="path delay below -1 µs",
        reference="raspberrypi/linux#4151",
    ),
)
