"""What Prometheus is told: one table of metrics, and the text of a story's present state.

Units are seconds and ratios, counters end in `_total`, words stand in `_info` and one-hot states. An offset is three
series: estimate, lower and upper bound; an unknown one has none of them (absence is what Prometheus calls unknown) and
`..._known` is 0. Offsets carry no reference or method label: a change of source must not look like a new clock; who is
meant stands in `..._info`. Bounds speak of the instant of their reading, `..._timestamp_seconds`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

from rankclock import __version__
from rankclock.agent.samples import Sample, samples_of
from rankclock.agent.story import Story

__all__ = ["METRICS", "MetricSpec", "encode", "families", "reference_page"]


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric: its name without `rankclock_`, kind, labels besides `node`, and the help text."""

    name: str
    kind: Literal["gauge", "counter"]
    labels: tuple[str, ...]
    help: str


METRICS: tuple[MetricSpec, ...] = (
    MetricSpec("agent_info", "gauge", ("version", "class"), "Always 1: the agent's version, and the class of clock."),
    MetricSpec("agent_start_timestamp_seconds", "gauge", (), "When the agent started (Unix time)."),
    MetricSpec("maintenance", "gauge", (), "1 while somebody works on this node: every alert respects it."),
    MetricSpec("clock_state", "gauge", ("state",), "1 for the state of CLOCK_REALTIME, 0 for the others."),
    MetricSpec("clock_info", "gauge", ("owner", "source"), "Always 1: who steers the clock, and whom that follows."),
    MetricSpec(
        "clock_steps_total",
        "counter",
        (),
        "Times that CLOCK_REALTIME certainly was set: by more than 10 ms, always seen. Absent without a prober.",
    ),
    MetricSpec("clock_source_changes_total", "counter", (), "Times that the clock went over to another source."),
    MetricSpec("claimed_offset_known", "gauge", (), "1 where the daemon's claim means something, else 0."),
    MetricSpec(
        "claimed_offset_seconds",
        "gauge",
        (),
        "Local minus the root of its source, as the daemon says; UTC only as far as that root is.",
    ),
    MetricSpec("claimed_offset_lower_seconds", "gauge", (), "The offset is not below this, if the claim holds."),
    MetricSpec("claimed_offset_upper_seconds", "gauge", (), "The offset is not above this, if the claim holds."),
    MetricSpec("claimed_offset_info", "gauge", ("reference", "method"), "Always 1: what the claimed offset refers to."),
    MetricSpec(
        "claimed_update_age_seconds", "gauge", (), "How old the daemon's own last measurement was when it was read."
    ),
    MetricSpec("mesh_offset_known", "gauge", ("peer",), "1 where the offset to the peer was measured, 0 where not."),
    MetricSpec("mesh_offset_seconds", "gauge", ("peer",), "Local minus peer, measured by probes."),
    MetricSpec("mesh_offset_lower_seconds", "gauge", ("peer",), "Hard bound: the offset is not below this."),
    MetricSpec("mesh_offset_upper_seconds", "gauge", ("peer",), "Hard bound: the offset is not above this."),
    MetricSpec("mesh_round_trip_seconds", "gauge", ("peer",), "The least round trip of the last minute."),
    MetricSpec("mesh_probes_total", "counter", ("peer",), "Probes sent."),
    MetricSpec("mesh_answers_total", "counter", ("peer",), "Probes answered."),
    MetricSpec(
        "mesh_disagrees",
        "gauge",
        (),
        "1 where what is measured contradicts the claim. Absent unprobed.",
    ),
    MetricSpec("mesh_peers_against", "gauge", (), "Peers whose measured offset contradicts the claim."),
    MetricSpec(
        "offset_limit_seconds",
        "gauge",
        ("scope",),
        "How far the clock may be off: inside the cluster (against each peer), and against UTC (the claim).",
    ),
    MetricSpec("sources", "gauge", ("state",), "Sources by the state that the daemon gives them."),
    MetricSpec("sources_usable", "gauge", (), "Sources that agree enough to be followed."),
    MetricSpec("sources_wanted", "gauge", (), "How many there should be: a majority takes three."),
    MetricSpec("source_offset_seconds", "gauge", ("source",), "Local minus source at its last sample (first 16)."),
    MetricSpec("source_bound_seconds", "gauge", ("source",), "How far that may be off, as the daemon says."),
    MetricSpec("source_sample_age_seconds", "gauge", ("source",), "How old that sample was when it was read."),
    MetricSpec("source_reach_ratio", "gauge", ("source",), "Share of the last eight polls that were answered."),
    MetricSpec("source_authenticated", "gauge", ("source",), "1 where chronyd authenticates it (NTS or a key)."),
    MetricSpec("source_nts_cookies", "gauge", ("source",), "Cookies left; at 0 a new key exchange is due."),
    MetricSpec(
        "source_stamps_info", "gauge", ("source", "transmit", "receive"), "Always 1: daemon, kernel or hardware stamps."
    ),
    MetricSpec("server_requests_total", "counter", ("kind",), "Requests that chronyd took here: ntp, nts_keys."),
    MetricSpec("server_drops_total", "counter", ("kind",), "Requests that chronyd dropped here."),
    MetricSpec("gps_fix", "gauge", ("device",), "1 where gpsd's receiver has a fix, else 0."),
    MetricSpec("gps_satellites_used", "gauge", ("device",), "Satellites used in the fix."),
    MetricSpec("gps_satellites_seen", "gauge", ("device",), "Satellites in view."),
    MetricSpec("ptp_info", "gauge", ("domain", "identity", "grandmaster"), "Always 1, for each ptp4l here."),
    MetricSpec("ptp_is_grandmaster", "gauge", ("domain",), "1 where this node serves the domain as its grandmaster."),
    MetricSpec("ptp_clock_class", "gauge", ("domain",), "clockClass that the grandmaster announces (6: locked)."),
    MetricSpec("ptp_steps_removed", "gauge", ("domain",), "Hops to the grandmaster."),
    MetricSpec("ptp_path_delay_seconds", "gauge", ("domain",), "Mean path delay to the parent. Absent where none is."),
    MetricSpec("ptp_utc_offset_seconds", "gauge", ("domain",), "TAI - UTC as announced."),
    MetricSpec("ptp_utc_offset_valid", "gauge", ("domain",), "1 where the grandmaster vouches for it."),
    MetricSpec("ptp_time_traceable", "gauge", ("domain",), "1 where the grandmaster says it is traceable."),
    MetricSpec("ptp_port_state", "gauge", ("domain", "port", "state"), "1 for the state of each port."),
    MetricSpec(
        "ptp_port_waits_total",
        "counter",
        ("domain", "port", "kind"),
        "Times that a port waited in vain, or got a pair that does not match (linuxptp 4.0 on).",
    ),
    MetricSpec("ptp_unicast_masters", "gauge", ("domain", "state"), "Unicast masters by what is had of them."),
    MetricSpec("nic_stamps_stamped_total", "counter", ("interface",), "Packets sent with a hardware stamp."),
    MetricSpec("nic_stamps_lost_total", "counter", ("interface",), "Packets sent whose hardware stamp never came."),
    MetricSpec("nic_stamps_errors_total", "counter", ("interface",), "Hardware stamps that went wrong."),
    MetricSpec("ptp_grandmaster_changes_total", "counter", (), "Times that a domain's grandmaster became another."),
    MetricSpec("kernel_synchronised", "gauge", (), "The kernel's flag, as somebody once set it."),
    MetricSpec("kernel_frequency_ratio", "gauge", (), "How fast the clock is made to run, minus 1."),
    MetricSpec("kernel_tai_offset_seconds", "gauge", (), "TAI - UTC in the kernel; 0 where nobody set it."),
    MetricSpec("kernel_maximum_error_seconds", "gauge", (), "As somebody wrote it. No bound under PTP or timesyncd."),
    MetricSpec("holdover_seconds", "gauge", (), "For how long the clock has been in holdover, 0 where it is not."),
    MetricSpec("holdover_budget_seconds", "gauge", (), "For how long it may be."),
    MetricSpec("reader_up", "gauge", ("reader",), "1 where what was read is of now, else 0."),
    MetricSpec("reader_last_success_timestamp_seconds", "gauge", ("reader",), "When it succeeded last (Unix time)."),
    MetricSpec("reader_duration_seconds", "gauge", ("reader",), "How long it took."),
    MetricSpec("reader_failures_total", "counter", ("reader",), "Times that it did not succeed."),
    MetricSpec("reader_period_seconds", "gauge", (), "How often is read."),
)
_SPECS = {spec.name: spec for spec in METRICS}


def families(story: Story, *, now_ns: int, now_unix_s: float, started_unix_s: float) -> Iterator[Metric]:
    """The metrics of a story, grouped by name as the text format wants them."""
    by_name: dict[str, list[Sample]] = {}
    for sample in samples_of(
        story, now_ns=now_ns, now_unix_s=now_unix_s, started_unix_s=started_unix_s, version=__version__
    ):
        by_name.setdefault(sample.name, []).append(sample)
    for name, samples in by_name.items():
        spec = _SPECS[name]
        labels = ("node", *spec.labels)
        family = (CounterMetricFamily if spec.kind == "counter" else GaugeMetricFamily)(
            f"rankclock_{name}", spec.help, labels=labels
        )
        for sample in samples:
            family.add_metric((story.settings.node, *sample.labels), sample.value)
        yield family


class _Fixed(Collector):
    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = tuple(metrics)

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def encode(metrics: Iterable[Metric]) -> bytes:
    """The text that Prometheus scrapes (text format 0.0.4)."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Fixed(metrics))
    return generate_latest(registry)


def reference_page() -> str:
    """docs/reference/metrics.md."""
    lines = [
        "# Metrics of the agent",
        "",
        "Made from the agent's own table by `scripts/agent_reference.py`. Do not edit this page by hand.",
        "",
        "All carry the label `node`. Seconds and ratios; `offset = local - reference`, positive: local is ahead.",
        "An offset is an estimate, a lower and an upper bound. One that is unknown has no series, never a zero.",
        "",
        "| Metric | Kind | Labels besides `node` | Meaning |",
        "|---|---|---|---|",
    ]
    for spec in METRICS:
        labels = ", ".join(f"`{label}`" for label in spec.labels) or "-"
        lines.append(f"| `rankclock_{spec.name}` | {spec.kind} | {labels} | {spec.help} |")
    return "\n".join(lines) + "\n"
