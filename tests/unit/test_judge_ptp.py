"""The bound of a clock that ptp4l steers, against a servo played through second by second: late Syncs included."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from rankclock.node.judge_ptp import judge_ptp
from rankclock.node.ptp4l import Ptp4lReading
from rankclock.timebase import NS_PER_S, SyncState
from rankclock.wire.ptp_data_sets import (
    ClockQuality,
    CurrentDataSet,
    DefaultDataSet,
    ParentDataSet,
    PortDataSet,
    PortIdentity,
    PortState,
    TimeStatus,
)

OWN, MASTER = b"\x02\0\0\xff\xfe\0\0\x02", b"\x02\0\0\xff\xfe\0\0\x01"
QUALITY = ClockQuality(clock_class=248, accuracy=0xFE, variance=0xFFFF)
LOG_SYNC, PATH_NS = -3, 18_000
INTERVAL_S = 2.0**LOG_SYNC


def reading(master_offset_ns: int, *, path_ns: int, ingress_ns: int) -> Ptp4lReading:
    """What ptp4l says of a SLAVE port one hop below its grandmaster."""
    default = DefaultDataSet(
        flags=3, reserved=0, number_ports=1, priority1=128, quality=QUALITY, priority2=128, clock_identity=OWN,
        domain=0, reserved2=0,
    )  # fmt: skip
    current = CurrentDataSet(
        steps_removed=1, offset_scaled=master_offset_ns << 16, mean_path_delay_scaled=path_ns << 16
    )
    parent = ParentDataSet(
        parent_port=PortIdentity(clock=MASTER, port=1), parent_stats=0, reserved=0, observed_variance=0xFFFF,
        observed_phase_change_rate=0, gm_priority1=128, gm_quality=QUALITY, gm_priority2=128, gm_identity=MASTER,
    )  # fmt: skip
    status = TimeStatus(
        master_offset_ns=master_offset_ns, ingress_time_ns=ingress_ns, cumulative_scaled_rate_offset=0,
        scaled_last_gm_phase_change=0, gm_time_base_indicator=0, last_gm_phase_change=bytes(12), gm_present=1,
        gm_identity=MASTER,
    )  # fmt: skip
    port = PortDataSet(
        port_identity=PortIdentity(clock=OWN, port=1), port_state=PortState.SLAVE, log_min_delay_req_interval=-3,
        peer_mean_path_delay_scaled=0, log_announce_interval=-2, announce_receipt_timeout=3,
        log_sync_interval=LOG_SYNC, delay_mechanism=1, log_min_pdelay_req_interval=0, version_number=2,
    )  # fmt: skip
    return Ptp4lReading(
        socket="x", domain=0, default=default, current=current, parent=parent, time_properties=None, time_status=status,
        ports=(port,), properties=(), refused=(), complete=True, at_raw_ns=0,
        at_real_ns=0,
    )  # fmt: skip


@settings(max_examples=60)
@given(
    seed=st.randoms(use_true_random=False),
    late_ns=st.integers(0, 3_000_000),
    drift_ppb=st.integers(-9_000, 9_000),
    kp=st.floats(0.05, 0.7 / INTERVAL_S),
    when=st.floats(0.0, 0.99),
)
def test_the_bound_contains_the_truth_between_two_syncs_of_which_one_came_late(
    seed: object, late_ns: int, drift_ppb: int, kp: float, when: float
) -> None:
    truth_ns, pull_ppb = 0.0, 0.0
    for number in range(40):
        truth_ns += (pull_ppb + drift_ppb) * INTERVAL_S
        scatter_ns = seed.uniform(-PATH_NS, PATH_NS) / 2  # type: ignore[attr-defined]
        offset_ns = truth_ns + scatter_ns + (late_ns if number == 20 else 0)
        pull_ppb = -kp * offset_ns
        age_ns = int(when * INTERVAL_S * NS_PER_S)
        claim = judge_ptp(
            reading(round(offset_ns), path_ns=PATH_NS, ingress_ns=10**18),
            clock_now_ns=10**18 + age_ns,
            software=True,
        )
        now_ns = truth_ns + (pull_ppb + drift_ppb) * age_ns / 1e9
        assert claim.state is SyncState.SYNCHRONISED
        assert claim.offset.contains(round(now_ns)), (number, offset_ns, now_ns, claim.offset)
