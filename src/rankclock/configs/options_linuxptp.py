"""What ptp4l accepts, release by release (3.1.1 to 4.4), and the flags of phc2sys.

Ranges and defaults are those of each release's own option table; a test runs ptp4l against them.
"""

from __future__ import annotations

from rankclock.configs.options import Option, Place, Table

__all__ = ["PHC2SYS", "PTP4L"]

PORT = Place.PORT
INT_MIN, INT_MAX = -(2**31), 2**31 - 1
SERVOS = ("pi", "linreg", "ntpshm", "nullf")
SERVOS_4 = (*SERVOS, "refclock_sock")
DELAYS = ("Auto", "E2E", "P2P")
DELAYS_4 = (*DELAYS, "NONE")
DELAYS_43 = (*DELAYS_4, "COMMON_P2P")


def _int(
    name: str,
    default: str,
    low: int,
    high: int,
    place: Place = Place.GLOBAL,
    *,
    since: str | None = None,
    until: str | None = None,
    called: str | None = None,
) -> Option:
    return Option(
        name=name,
        place=place,
        kind="int",
        default=default,
        low=low,
        high=high,
        since=since,
        until=until,
        deprecated_since="4.0" if called else None,
        deprecated_for=called,
    )


def _real(name: str, default: str, low: float | None, high: float | None) -> Option:
    return Option(name=name, kind="real", default=default, low=low, high=high)


def _text(
    name: str, default: str, place: Place = Place.GLOBAL, *, since: str | None = None, until: str | None = None
) -> Option:
    return Option(name=name, place=place, kind="str", default=default, since=since, until=until)


def _word(
    name: str,
    default: str,
    choices: tuple[str, ...],
    place: Place = Place.GLOBAL,
    *,
    since: str | None = None,
    until: str | None = None,
) -> Option:
    return Option(name=name, place=place, kind="enum", default=default, choices=choices, since=since, until=until)


PTP4L = Table("ptp4l", (
    _int("active_key_id", "0", 0, 4294967295, PORT, since="4.3"),
    _int("allow_unauth", "0", 0, 2, PORT, since="4.3"),
    _int("allowedLostResponses", "3", 1, 255, PORT, since="4.2"),
    _int("announceReceiptTimeout", "3", 2, 255, PORT),
    _word("asCapable", "auto", ("true", "auto"), PORT),
    _int("assume_two_step", "0", 0, 1),
    _word("BMCA", "ptp", ("ptp", "noop"), PORT),
    _int("boundary_clock_jbod", "0", 0, 1, PORT),
    _int("check_fup_sync", "0", 0, 1),
    _int("clientOnly", "0", 0, 1, since="4.0"),
    _int("clock_class_threshold", "248", 6, 248, since="4.0"),
    _word("clock_servo", "pi", SERVOS, until="4.0"),
    _word("clock_servo", "pi", SERVOS_4, since="4.0"),
    _word("clock_type", "OC", ("OC", "BC", "P2P_TC", "E2E_TC")),
    _int("clockAccuracy", "0xFE", 0, 255),
    _int("clockClass", "248", 0, 255),
    _text("clockIdentity", "000000.0000.000000"),
    _text("cmlds.client_address", "/var/run/cmlds_client", PORT, since="4.3"),
    _int("cmlds.domainNumber", "0", 0, 255, PORT, since="4.3"),
    _int("cmlds.majorSdoId", "2", 0, 0x0F, PORT, since="4.3"),
    _int("cmlds.port", "0", 0, 65535, PORT, since="4.3"),
    _text("cmlds.server_address", "/var/run/cmlds_server", PORT, since="4.3"),
    _word("dataset_comparison", "ieee1588", ("ieee1588", "G.8275.x")),
    _word("delay_filter", "moving_median", ("moving_average", "moving_median"), PORT),
    _int("delay_filter_length", "10", 1, INT_MAX, PORT),
    _word("delay_mechanism", "E2E", DELAYS, PORT, until="4.0"),
    _word("delay_mechanism", "E2E", DELAYS_4, PORT, since="4.0", until="4.3"),
    _word("delay_mechanism", "E2E", DELAYS_43, PORT, since="4.3"),
    _int("delay_response_timeout", "0", 0, 255, PORT, since="4.0"),
    _int("delayAsymmetry", "0", INT_MIN, INT_MAX, PORT),
    _int("domainNumber", "0", 0, 127, until="4.0"),
    _int("domainNumber", "0", 0, 255, since="4.0"),
    _int("dscp_event", "0", 0, 63),
    _int("dscp_general", "0", 0, 63),
    _int("egressLatency", "0", INT_MIN, INT_MAX, PORT),
    _int("fault_badpeernet_interval", "16", INT_MIN, INT_MAX, PORT),
    _int("fault_reset_interval", "4", -128, 127, PORT),
    _real("first_step_threshold", "0.00002", 0.0, None),
    _int("follow_up_info", "0", 0, 1, PORT),
    _int("free_running", "0", 0, 1),
    _int("freq_est_interval", "1", 0, INT_MAX, PORT, until="4.0"),
    _int("freq_est_interval", "1", INT_MIN, INT_MAX, PORT, since="4.0"),
    _int("G.8275.defaultDS.localPriority", "128", 1, 255),
    _int("G.8275.portDS.localPriority", "128", 1, 255, PORT),
    _int("gmCapable", "1", 0, 1),
    _word("hwts_filter", "normal", ("normal", "check", "full")),
    _int("hybrid_e2e", "0", 0, 1, PORT),
    _int("ignore_source_id", "0", 0, 1, PORT),
    _int("ignore_transport_specific", "0", 0, 1, PORT),
    _int("ingressLatency", "0", INT_MIN, INT_MAX, PORT),
    _int("inhibit_announce", "0", 0, 1, PORT),
    _int("inhibit_delay_req", "0", 0, 1, PORT),
    _int("inhibit_multicast_service", "0", 0, 1, PORT),
    _int("initial_delay", "0", 0, INT_MAX),
    _int("interface_rate_tlv", "0", 0, 1, PORT, since="4.0"),
    _int("kernel_leap", "1", 0, 1),
    _text("leapfile", ""),
    _int("logAnnounceInterval", "1", -128, 127, PORT),
    _int("logging_level", "6", 0, 7),
    _int("logMinDelayReqInterval", "0", -128, 127, PORT),
    _int("logMinPdelayReqInterval", "0", -128, 127, PORT),
    _int("logSyncInterval", "0", -128, 127, PORT),
    _text("manufacturerIdentity", "00:00:00"),
    _int("masterOnly", "0", 0, 1, PORT, called="serverOnly"),
    _int("max_frequency", "900000000", 0, INT_MAX),
    _int("maxStepsRemoved", "255", 2, 255),
    _text("message_tag", ""),
    _int("min_neighbor_prop_delay", "-20000000", INT_MIN, -1, PORT),
    _int("msg_interval_request", "0", 0, 1, PORT),
    _int("neighborPropDelayThresh", "20000000", 0, INT_MAX, PORT),
    _int("net_sync_monitor", "0", 0, 1, PORT),
    _word("network_transport", "UDPv4", ("L2", "UDPv4", "UDPv6"), PORT),
    _int("ntpshm_segment", "0", INT_MIN, INT_MAX),
    _int("offsetScaledLogVariance", "0xFFFF", 0, 65535),
    _int("operLogPdelayReqInterval", "0", -128, 127, PORT),
    _int("operLogSyncInterval", "0", -128, 127, PORT),
    _text("p2p_dst_ipv4", "224.0.0.107", PORT, since="4.3"),
    _text("p2p_dst_ipv6", "FF02:0:0:0:0:0:0:6B", PORT, since="4.3"),
    _text("p2p_dst_mac", "01:80:C2:00:00:0E", PORT),
    _int("path_trace_enabled", "0", 0, 1, PORT),
    _int("phc_index", "-1", -1, INT_MAX, PORT, since="4.0"),
    _real("pi_integral_const", "0.0", 0.0, None),
    _real("pi_integral_exponent", "0.4", None, None),
    _real("pi_integral_norm_max", "0.3", 0.0, 2.0),
    _real("pi_integral_scale", "0.0", 0.0, None),
    _real("pi_proportional_const", "0.0", 0.0, None),
    _real("pi_proportional_exponent", "-0.3", None, None),
    _real("pi_proportional_norm_max", "0.7", 0.0, 1.0),
    _real("pi_proportional_scale", "0.0", 0.0, None),
    _int("power_profile.2011.grandmasterTimeInaccuracy", "0xFFFFFFFF", -1, INT_MAX, PORT, since="4.0"),
    _int("power_profile.2011.networkTimeInaccuracy", "0xFFFFFFFF", -1, INT_MAX, PORT, since="4.0"),
    _int("power_profile.2017.totalTimeInaccuracy", "0xFFFFFFFF", -1, INT_MAX, PORT, since="4.0"),
    _int("power_profile.grandmasterID", "0", 0, 0xFFFF, PORT, since="4.0"),
    _word("power_profile.version", "none", ("none", "2011", "2017"), PORT, since="4.0"),
    _int("priority1", "128", 0, 255),
    _int("priority2", "128", 0, 255),
    _text("productDescription", ";;"),
    _text("ptp_dst_ipv4", "224.0.1.129", PORT, since="4.3"),
    _text("ptp_dst_ipv6", "FF0E:0:0:0:0:0:0:181", PORT, since="4.3"),
    _text("ptp_dst_mac", "01:1B:19:00:00:00", PORT),
    _int("ptp_minor_version", "1", 0, 1, since="4.2"),
    _text("refclock_sock_address", "/var/run/refclock.ptp.sock", since="4.0"),
    _text("revisionData", ";;"),
    _text("sa_file", "", since="4.3"),
    _int("sanity_freq_limit", "200000000", 0, INT_MAX),
    _int("serverOnly", "0", 0, 1, PORT, since="4.0"),
    _int("servo_num_offset_values", "10", 0, INT_MAX),
    _int("servo_offset_threshold", "0", 0, INT_MAX),
    _text("slave_event_monitor", ""),
    _int("slaveOnly", "0", 0, 1, called="clientOnly"),
    _int("socket_priority", "0", 0, 15),
    _int("spp", "-1", -1, 255, PORT, since="4.3"),
    _real("step_threshold", "0.0", 0.0, None),
    _int("step_window", "0", 0, INT_MAX, since="4.0"),
    _int("summary_interval", "0", INT_MIN, INT_MAX),
    _int("syncReceiptTimeout", "0", 0, 255, PORT),
    _int("tc_spanning_tree", "0", 0, 1),
    _word("time_stamping", "hardware", ("hardware", "software", "legacy", "onestep", "p2p1step")),
    _int("timeSource", "0xA0", 0x10, 0xFE),
    _int("transportSpecific", "0", 0, 0x0F, PORT),
    _int("ts2phc.channel", "0", 0, INT_MAX, PORT),
    _int("ts2phc.extts_correction", "0", INT_MIN, INT_MAX, PORT),
    _word("ts2phc.extts_polarity", "rising", ("rising", "falling", "both"), PORT),
    _int("ts2phc.holdover", "0", 0, INT_MAX, PORT, since="4.4"),
    _int("ts2phc.master", "0", 0, 1, PORT),
    _int("ts2phc.nmea_baudrate", "9600", 300, INT_MAX, PORT, since="4.0"),
    _int("ts2phc.nmea_delay", "0", INT_MIN, INT_MAX, PORT, since="4.4"),
    _text("ts2phc.nmea_remote_host", ""),
    _text("ts2phc.nmea_remote_port", ""),
    _text("ts2phc.nmea_serialport", "/dev/ttyS0"),
    _int("ts2phc.perout_phase", "-1", 0, 999999999, PORT, since="4.0"),
    _int("ts2phc.pin_index", "0", 0, INT_MAX, PORT),
    _int("ts2phc.pulsewidth", "500000000", 1000000, 999000000),
    _text("ts2phc.tod_source", "generic", since="4.0"),
    _word("tsproc_mode", "filter", ("filter", "raw", "filter_weight", "raw_weight"), PORT),
    _int("twoStepFlag", "1", 0, 1),
    _int("tx_timestamp_timeout", "1", 1, INT_MAX, until="4.0"),
    _int("tx_timestamp_timeout", "10", 1, INT_MAX, since="4.0"),
    _int("udp6_scope", "0x0E", 0x00, 0x0F, PORT),
    _int("udp_ttl", "1", 1, 255, PORT),
    _text("uds_address", "/var/run/ptp4l"),
    _int("uds_file_mode", "0o660", 0, 0o777, PORT, since="4.0"),
    _text("uds_ro_address", "/var/run/ptp4lro", since="4.0"),
    _int("uds_ro_file_mode", "0o666", 0, 0o777, PORT, since="4.0"),
    _int("unicast_listen", "0", 0, 1, PORT),
    _int("unicast_master_table", "0", 0, INT_MAX, PORT),
    _int("unicast_req_duration", "3600", 10, INT_MAX, PORT),
    _int("use_syslog", "1", 0, 1),
    _text("userDescription", ""),
    _int("utc_offset", "37", 0, INT_MAX),
    _int("verbose", "0", 0, 1),
    _int("write_phase_mode", "0", 0, 1),))  # fmt: skip


def _flag(name: str, *, since: str | None = None) -> Option:
    return Option(name=name, kind="flag", since=since)


PHC2SYS = Table(
    "phc2sys",
    (
        _flag("-a"),
        _flag("-r"),
        _flag("-w"),
        _flag("-m"),
        _flag("-q"),
        _flag("-x"),
        _text("-s", ""),
        _text("-c", ""),
        _text("-z", "/var/run/ptp4l"),
        _int("-n", "0", 0, 255),
        _int("-O", "0", INT_MIN, INT_MAX),
        _int("-N", "5", 1, INT_MAX),
        _int("-l", "6", 0, 7),
        _int("-u", "0", 0, 2**32 - 1),
        _int("-L", "200000000", 0, INT_MAX),
        _real("-R", "1.0", 1e-9, None),
        _real("-S", "0.0", 0.0, None),
        _real("-F", "0.00002", 0.0, None),
        _real("-P", "0.7", 0.0, None),
        _real("-I", "0.3", 0.0, None),
        _int("-M", "0", INT_MIN, INT_MAX),
        _word("-E", "pi", SERVOS, until="4.0"),
        _word("-E", "pi", SERVOS_4, since="4.0"),
    ),
)
