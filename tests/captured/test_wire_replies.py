"""Replies of real daemons as bytes, decoded, against what the daemons' own tools printed of the same moment.

The tools' text is an independent reading of the layouts: an error that our encoder and decoder share would show here.
Fields that move between the two readings are compared within the movement of a settled clock.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rankclock.wire import chrony
from rankclock.wire.ptp_data_sets import (
    CurrentDataSet,
    DefaultDataSet,
    ParentDataSet,
    PortDataSet,
    PortProperties,
    TimeProperties,
    TimeStatus,
    clock_text,
)
from rankclock.wire.ptp_management import ManagementMessage

CAPTURED = json.loads((Path(__file__).parent / "wire/replies.json").read_text(encoding="utf-8"))
COMMANDS = {
    one.name: one
    for one in (chrony.TRACKING, chrony.N_SOURCES, chrony.SOURCE_DATA, chrony.SOURCESTATS, chrony.ACTIVITY)
}


def reply(name: str) -> Any:
    data = bytes.fromhex(CAPTURED["chronyd"][name])
    sequence = int.from_bytes(data[16:20], "big")
    return chrony.decode_reply(COMMANDS[name], data, sequence=sequence)


def printed(what: str) -> list[str]:
    text: str = CAPTURED["chronyc"][what]
    return text.strip().split(",")


def data_set(kind: type) -> Any:
    messages = [ManagementMessage.decode(bytes.fromhex(text)) for text in CAPTURED["ptp4l"]]
    (found,) = [message.tlv for message in messages if isinstance(message.tlv, kind)]
    return found


def pmc(name: str) -> dict[str, str]:
    return dict(line.split(None, 1) for line in CAPTURED["pmc"][name].splitlines() if line.startswith("\t\t"))


def test_what_was_captured_says_where_it_comes_from() -> None:
    assert CAPTURED["provenance"]["chronyd"].startswith("chronyd (chrony) version 4.3")
    assert CAPTURED["provenance"]["ptp4l"] == "3.1.1"


def test_tracking_is_what_chronyc_prints() -> None:
    tracking, text = reply("TRACKING"), printed("tracking")
    assert f"{tracking.refid:08X}" == text[0]
    assert tracking.address.text == text[1]
    assert tracking.stratum == int(text[2])
    assert abs(tracking.ref_time_ns - float(text[3]) * 1e9) < 2e9
    names = ("freq_ppm", "resid_freq_ppm", "skew_ppm", "root_delay_s", "root_dispersion_s", "last_update_interval_s")
    for name, shown in zip(names, text[7:13], strict=True):
        assert getattr(tracking, name) == pytest.approx(float(shown), rel=0.5, abs=2e-5), name
    assert tracking.freq_ppm == pytest.approx(float(text[7]), abs=0.05)
    assert abs(tracking.offset_ns) < 20_000
    assert (tracking.leap, text[13]) == (0, "Normal")


def test_sources_and_their_statistics_are_what_chronyc_prints() -> None:
    assert reply("N_SOURCES").count == 1
    source, text = reply("SOURCE_DATA"), printed("sources")
    assert (source.mark, source.name, source.stratum, source.poll) == (text[1], text[2], int(text[3]), int(text[4]))
    assert f"{source.reach:o}" == text[5]
    assert source.has_sample
    assert abs(source.since_sample_s - int(text[6])) <= 2
    assert source.latest_err_s == pytest.approx(float(text[9]), rel=0.9)
    stats, shown = reply("SOURCESTATS"), printed("sourcestats")
    assert stats.address.text == shown[0]
    assert abs(stats.samples - int(shown[1])) <= 1
    assert stats.stddev_s == pytest.approx(float(shown[7]), rel=0.9)
    activity = reply("ACTIVITY")
    counts = [activity.online, activity.offline, activity.burst_online, activity.burst_offline, activity.unresolved]
    assert counts == [int(one) for one in printed("activity")]


def test_the_default_data_set_is_what_pmc_prints() -> None:
    found, text = data_set(DefaultDataSet), pmc("DEFAULT_DATA_SET")
    assert clock_text(found.clock_identity) == text["clockIdentity"]
    assert (found.number_ports, found.priority1, found.priority2, found.domain) == (
        int(text["numberPorts"]), int(text["priority1"]), int(text["priority2"]), int(text["domainNumber"]),
    )  # fmt: skip
    assert found.slave_only == (text["slaveOnly"] == "1")
    assert found.quality.clock_class == int(text["clockClass"])
    assert found.quality.accuracy == int(text["clockAccuracy"], 16)


def test_parent_current_and_time_properties_are_what_pmc_prints() -> None:
    parent, text = data_set(ParentDataSet), pmc("PARENT_DATA_SET")
    assert clock_text(parent.gm_identity) == text["grandmasterIdentity"]
    assert str(parent.parent_port) == text["parentPortIdentity"]
    assert parent.gm_priority1 == int(text["grandmasterPriority1"])
    current = data_set(CurrentDataSet)
    assert current.steps_removed == int(pmc("CURRENT_DATA_SET")["stepsRemoved"])
    assert current.mean_path_delay_ns == pytest.approx(
        float(pmc("CURRENT_DATA_SET")["meanPathDelay"]), rel=0.9, abs=50_000
    )
    properties, shown = data_set(TimeProperties), pmc("TIME_PROPERTIES_DATA_SET")
    assert properties.current_utc_offset_s == int(shown["currentUtcOffset"])
    assert properties.ptp_timescale == (shown["ptpTimescale"] == "1")
    assert properties.utc_offset_valid == (shown["currentUtcOffsetValid"] == "1")
    assert properties.time_source == int(shown["timeSource"], 16)


def test_port_and_time_status_are_what_pmc_prints() -> None:
    port, text = data_set(PortDataSet), pmc("PORT_DATA_SET")
    assert str(port.port_identity) == text["portIdentity"]
    assert (port.log_sync_interval, port.log_announce_interval, port.log_min_delay_req_interval) == (-3, -2, -3)
    assert port.delay_mechanism == int(text["delayMechanism"])
    assert port.announce_receipt_timeout == int(text["announceReceiptTimeout"])
    status, shown = data_set(TimeStatus), pmc("TIME_STATUS_NP")
    assert bool(status.gm_present) == (shown["gmPresent"] == "true")
    assert clock_text(status.gm_identity) == shown["gmIdentity"]
    assert abs(status.ingress_time_ns - int(shown["ingress_time"])) < 5_000_000_000
    properties = data_set(PortProperties)
    assert properties.interface == pmc("PORT_PROPERTIES_NP")["interface"] == "eth0"
