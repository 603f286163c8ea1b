"""Timestamps themselves.

Values that are artefacts, files from the future, logs of ranks that do not fit, logs that go back.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from rankclock.diagnosis.arithmetic import nearest_wrap
from rankclock.diagnosis.evidence import Evidence, Item, median
from rankclock.diagnosis.finding import Draft, Rule, Severity, draft
from rankclock.diagnosis.notes import Measured, Metric
from rankclock.wire.text.event import Event
from rankclock.wire.text.number import as_float
from rankclock.wire.text.training import RankStep

__all__ = ["RULES"]

ARTEFACT_NS = 2_000
"""A metric within 2 µs of a power of two of nanoseconds is a counter's edge, not an offset."""

COMMON_STEPS = 3
TELLING_S = 1.0


def _artefact(evidence: Evidence) -> Iterator[Draft]:
    for item in evidence.all(Metric):
        metric = item.value
        if "offset" not in metric.name and "skew" not in metric.name and "drift" not in metric.name:
            continue
        scale = 1 if metric.name.endswith("_ns") else 1_000_000_000
        wrap = nearest_wrap(round(metric.value * scale), ARTEFACT_NS)
        if wrap is None:
            continue
        yield draft(
            Severity.EXPLAINED,
            0.9,
            f"{metric.name} is 2^{wrap.power} ns{f' * {wrap.times}' if wrap.times > 1 else ''} within "
            f"{abs(wrap.residual_ns)} ns: an artefact of how the value was read (adjtimex returns it for one poll "
            "while the clock is being adjusted), not an offset of that size. Drop the sample; the next one is right.",
            [item],
            values={"power_of_two_ns": wrap.power, "value": metric.value},
            next=(
                "chronyc tracking on that node at the same time",
                "alert with 'for: 10m', or on the median of some minutes",
            ),
            confirm="the value is back to microseconds at the next scrape",
        )
        return


SENTINELS = {999_999.0: "ptp4l's", 99_999_999.0: "GNSS", 9_999_999_999_999.0: "linuxptp's"}
"""Offsets that an exporter writes for 'no data' (linuxptp-daemon)."""


def _no_data(evidence: Evidence) -> Iterator[Draft]:
    """Metrics that look like offsets and are none: sentinels, and the kernel's offset, which chronyd never writes."""
    for item in evidence.all(Metric):
        metric = item.value
        offset = "offset" in metric.name
        if offset and metric.name.startswith("openshift_ptp") and abs(metric.value) in SENTINELS:
            yield draft(
                Severity.UNKNOWN,
                0.8,
                f"{metric.name} {metric.value:g} is the exporter's sign for 'no data', no offset: the daemon gave "
                "none (not running, no lock, no log line yet).",
                [item],
                values={"offset": None, "sentinel": metric.value},
                next=("the state: openshift_ptp_clock_state, openshift_ptp_process_status; the daemon's log",),
            )
            return
        if metric.name == "node_timex_offset_seconds" and metric.value == 0:
            yield draft(
                Severity.EXPLAINED,
                0.6,
                "node_timex_offset_seconds is always exactly 0 where chronyd steers the clock (by frequency and "
                "tick, not by the kernel's loop): it proves nothing, neither health nor fault, and "
                "NodeClockSkewDetected cannot fire there.",
                [item],
                values={"node_timex_offset_seconds": 0.0},
                next=("chronyc tracking, or the metrics of rankclock agent or chrony_exporter",),
            )
            return


def _future_files(evidence: Evidence) -> Iterator[Draft]:
    future = evidence.events("file-future", "apt-not-valid", "fs-future")
    older = evidence.events("ninja-older")
    dirty = evidence.events("ninja-dirty", "build-skew")
    if not (future or older or dirty):
        return
    skews = [s for e in future if (s := e.value.number("skew_s")) is not None]
    for one in older:
        output, source = (as_float(one.value.text(n)) for n in ("output_at", "input_at"))
        if output is not None and source is not None:
            skews.append(source - output)
    least = max(skews) if skews else None
    values: dict[str, object] = {}
    if least is not None:
        values["skew_s"] = int(least) if least == int(least) else round(least, 6)
    old = least is not None and least > 30 * 86_400
    yield draft(
        Severity.FAULT if skews else Severity.UNKNOWN,
        0.8 if skews else 0.5,
        (
            f"a file is dated {values.get('skew_s')} s later than this clock (or than what was built from it): this "
            "host's clock is at least that far behind the clock that wrote the file, or the file was unpacked or "
            "copied with a time of its own."
            if skews
            else "the build tool finds times of files that do not fit this clock; by how much, it does not say."
        )
        + (" By so much that this clock was most likely never set (boot without RTC)." if old else "")
        + " Deleting the build alone brings it back as long as the clocks differ. On a shared file system the "
        "server's clock writes the times, or the other client's.",
        [*future[:3], *older[:2], *dirty[:2]],
        values=values,
        next=(
            "date -u here and on the host that wrote the file (or the NFS server): touch X; stat -c %y X; date",
            "chronyc tracking on both; then touch the files that are dated in the future",
        ),
        confirm="touch X on the share, stat it: within a second of date",
    )


def _identity(item: Item[RankStep]) -> str:
    return f"rank {item.value.rank}" if item.value.rank else item.host or item.source


def _rank_logs(evidence: Evidence) -> Iterator[Draft]:
    logs: dict[str, dict[int, Item[RankStep]]] = {}
    for item in evidence.all(RankStep):
        logs.setdefault(_identity(item), {}).setdefault(item.value.step, item)
    names = [name for name, steps in logs.items() if len(steps) >= COMMON_STEPS]
    if len(names) < 2:
        return
    reference = logs[names[0]]
    offsets: dict[str, tuple[float, float, Item[RankStep]]] = {}
    for name in names[1:]:
        common = sorted(set(reference) & set(logs[name]))
        if len(common) < COMMON_STEPS:
            continue
        apart = [(logs[name][s].value.wall_ns - reference[s].value.wall_ns) / 1e9 for s in common]
        middle = median(apart) or 0.0
        scatter = max(abs(a - middle) for a in apart)
        offsets[name] = (middle, scatter, logs[name][common[0]])
    if not offsets:
        return
    period = _period_s(reference)
    far = {n: v for n, v in offsets.items() if abs(v[0]) > max(TELLING_S, 3 * v[1], period)}
    first = reference[sorted(reference)[0]]
    if far:
        worst = max(far, key=lambda n: abs(far[n][0]))
        offset, scatter, item = far[worst]
        hour = abs(abs(offset) - round(abs(offset) / 3600) * 3600) < 30 and abs(offset) > 1800
        yield draft(
            Severity.FAULT,
            0.75,
            f"{worst} stamps the same steps {offset:+.3f} s ± {scatter:.3f} s from {names[0]}, always by the same "
            f"amount. Steps of synchronous training end together within a step ({period:.1f} s), so this is the "
            f"difference of their clocks{' (whole hours: time zones of the logs)' if hour else ''}, not a "
            "straggler, whose lag would vary.",
            [first, item],
            values={
                "offset_s": round(offset, 6),
                "bound_s": round(max(scatter, period), 6),
                "rank": worst,
                "reference": names[0],
            },
            next=("rankclock verify between these hosts; date -u on both", "align the logs: rankclock logs align"),
            confirm="after the clocks are mended the same steps carry the same times",
        )
    else:
        yield draft(
            Severity.HEALTHY,
            0.4,
            f"the logs of {len(offsets) + 1} ranks stamp the same steps within "
            f"{max(abs(v[0]) + v[1] for v in offsets.values()):.3f} s; clocks may differ by less than a step "
            f"({period:.1f} s), finer this cannot tell.",
            [first],
            values={"bound_s": round(max(period, *(abs(v[0]) + v[1] for v in offsets.values())), 6)},
        )


def _period_s(steps: dict[int, Item[RankStep]]) -> float:
    ordered = sorted(steps)
    gaps = [(steps[b].value.wall_ns - steps[a].value.wall_ns) / 1e9 / (b - a) for a, b in pairwise(ordered)]
    return abs(median([abs(g) for g in gaps]) or 0.0)


def _measured(evidence: Evidence) -> Iterator[Draft]:
    pairs: dict[tuple[str, str], list[Item[Measured]]] = {}
    for item in evidence.all(Measured):
        pairs.setdefault((item.value.node, item.value.peer), []).append(item)
    for (node, peer), items in pairs.items():
        last = items[-1].value
        sure = last.lo_ns > 1_000_000 or last.hi_ns < -1_000_000
        bound = max(last.hi_ns - last.estimate_ns, last.estimate_ns - last.lo_ns)
        values = {"node": node, "peer": peer, "offset_ns": last.estimate_ns, "bound_ns": bound}
        if sure:
            yield draft(
                Severity.FAULT if abs(last.estimate_ns) > 1_000_000_000 else Severity.DEGRADED,
                0.9,
                f"{node} is {last.estimate_ns / 1e6:+.3f} ms ± {bound / 1e6:.3f} ms from {peer}, measured between "
                "them: more than 1 ms for certain.",
                [items[-1]],
                values=values,
                next=(f"chronyc tracking on {node} and {peer}",),
            )
        elif last.lo_ns >= -1_000_000 and last.hi_ns <= 1_000_000:
            yield draft(
                Severity.HEALTHY,
                0.9,
                f"{node} and {peer} are within 1 ms of each other for certain ({last.estimate_ns / 1e3:+.1f} µs ± "
                f"{bound / 1e3:.1f} µs, measured).",
                [items[-1]],
                values=values,
            )


def _went_back(evidence: Evidence) -> Iterator[Draft]:
    """A log with two clocks in each line: the wall clock moved against the monotonic one."""
    logs: dict[tuple[str, str, str], list[Item[Event]]] = {}
    for item in evidence.all(Event):
        line = item.value.line
        if line.wall_ns is not None and line.mono_ns is not None:
            logs.setdefault((item.source, item.host, line.program), []).append(item)
    for items in logs.values():
        for before, after in pairwise(items):
            a, b = before.value.line, after.value.line
            if (
                a.mono_ns is None
                or b.mono_ns is None
                or b.mono_ns < a.mono_ns
                or a.wall_ns is None
                or b.wall_ns is None
            ):
                continue
            step = ((b.wall_ns - a.wall_ns) - (b.mono_ns - a.mono_ns)) / 1e9
            if abs(step) < 3 or abs(step) > 180 * 86_400:
                continue
            zone = abs(step) % 900 < 2 or abs(step) % 900 > 898
            yield draft(
                Severity.RISK if zone else Severity.FAULT,
                0.7,
                f"between these two lines the wall clock moved {step:+.1f} s against the monotonic clock: "
                + ("whole quarter hours, daylight saving or a changed time zone." if zone else "it was stepped."),
                [before, after],
                values={"step_s": round(step, 1)},
                next=("journalctl around that moment: who set the clock (chronyd, a person, a resumed VM)",),
                confirm="no further step",
            )
            return


def _float_tensor(evidence: Evidence) -> Iterator[Draft]:
    hits = evidence.events("time-tensor")
    if hits:
        yield draft(
            Severity.FAULT,
            0.85,
            "torch.tensor([time.time()]) is float32: Unix time then has a resolution of 128 s, so differences "
            "between ranks are noise of that size. Besides, gathering time.time() compares arrivals, not clocks.",
            hits[:1],
            values={"resolution_s": 128},
            next=("torch.tensor([time.time_ns()]) (int64), or better rankclock verify, which measures offsets",),
            confirm="the spread is no multiple of 128 s",
        )


RULES = (
    Rule(
        id="VALUE_ARTEFACT",
        title="A metric that is a power of two, not an offset",
        needs="a Prometheus sample",
        check=_artefact,
        arithmetic="|value| = 2^k ns within 2 µs",
        reference="prometheus/node_exporter#3764",
    ),
    Rule(
        id="METRIC_WITHOUT_DATA",
        title="A metric that holds no offset",
        needs="a Prometheus sample",
        check=_no_data,
        arithmetic="exactly 0 for the kernel's offset; 999999, 99999999 for an exporter's 'no data'",
        reference="prometheus/node_exporter#2445; openshift/linuxptp-daemon",
    ),
    Rule(
        id="FILES_FROM_THE_FUTURE",
        title="Files dated later than this clock",
        needs="a message of make, ninja, tar, meson, apt or fsck",
        check=_future_files,
        arithmetic="time of the file minus time of the clock, or of what was built from it",
        reference="Genymobile/scrcpy#550; ninja-build/ninja#1704",
    ),
    Rule(
        id="RANK_LOGS_APART",
        title="The same steps carry different times on different ranks",
        needs="logs of two or more ranks with steps and stamps",
        check=_rank_logs,
        arithmetic="median difference of stamps of common steps against scatter and length of a step",
        reference="steps of synchronous training end together",
    ),
    Rule(
        id="MEASURED_OFFSET",
        title="Offsets measured between nodes",
        needs="rankclock-measured/1 lines",
        check=_measured,
        arithmetic="the whole interval beyond ±1 ms, or within it",
        reference="docs/design.md",
    ),
    Rule(
        id="WALL_CLOCK_MOVED",
        title="The wall clock moved against the monotonic clock",
        needs="a log with both stamps in each line",
        check=_went_back,
        arithmetic="difference of wall stamps minus difference of monotonic stamps",
        reference="linuxptp logs monotonic time",
    ),
    Rule(
        id="TIME_IN_FLOAT32",
        title="Unix time in a float32 tensor",
        needs="the line of code",
        check=_float_tensor,
        arithmetic="ulp of 1.8e9 in float32 = 128 s",
    ),
)
