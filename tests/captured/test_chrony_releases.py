"""What chronyd 4.3, 4.6 and 4.9 tell over the unix socket, decoded, against what their own chronyc printed of it.

Counters move between the two readings; what does not is compared exactly.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rankclock.wire import chrony
from rankclock.wire.chrony_reports import NtpData, NtpDataWithStamps, ServerStats3, ServerStats4

RELEASES = json.loads((Path(__file__).parent / "wire/chrony_releases.json").read_text(encoding="utf-8"))["releases"]
COMMANDS = {command.name: command for command in chrony.COMMANDS}
SOURCES = ("10.77.0.1", "10.77.0.3", "10.77.0.200")
EVERY = pytest.mark.parametrize("release", sorted(RELEASES))


def reply(release: str, node: str, name: str) -> Any:
    data = bytes.fromhex(RELEASES[release][node][name])
    return chrony.decode_reply(COMMANDS[name.split(maxsplit=1)[0]], data, sequence=int.from_bytes(data[16:20], "big"))


def printed(release: str, what: str) -> list[list[str]]:
    return [line.split(",") for line in RELEASES[release][what].splitlines()]


def test_three_layouts_of_three_releases_were_captured() -> None:
    assert sorted(RELEASES) == ["4.3", "4.6", "4.9"]
    for release, value in RELEASES.items():
        assert f"version {release}" in value["provenance"]


@EVERY
def test_server_counters_are_what_chronyc_prints(release: str) -> None:
    found, (shown,) = reply(release, "n1", "SERVER_STATS"), printed(release, "n1 serverstats")
    assert isinstance(found, ServerStats3 if release == "4.3" else ServerStats4)
    first = ["ntp_hits", "ntp_drops", "cmd_hits", "cmd_drops", "log_drops", "nke_hits", "nke_drops"]
    names = first + [name for name in found.layout().names if name not in (*first, "reserved")]  # as chronyc orders it
    assert len(names) == len(shown)
    for name, text in zip(names, shown, strict=True):
        slack = 60 if name.startswith("cmd_") else 3  # every question of chronyc's is a command; polls go on meanwhile
        assert 0 <= int(text) - getattr(found, name) <= slack, name
    assert found.ntp_auth_hits > 5


@EVERY
@pytest.mark.parametrize("source", SOURCES[:2])
def test_the_last_measurement_is_what_chronyc_prints(release: str, source: str) -> None:
    found = reply(release, "n2", f"NTP_DATA {source}")
    (shown,) = [row for row in printed(release, "n2 ntpdata") if row[0] == source]
    assert isinstance(found, NtpDataWithStamps) == (release != "4.3")
    assert isinstance(found, NtpData)
    assert (found.remote_address.text, found.local_address.text, found.remote_port) == (source, shown[3], int(shown[2]))
    assert [found.version, found.stratum, found.poll, found.precision] == [int(shown[at]) for at in (6, 8, 9, 11)]
    assert found.root_delay_s == float(shown[13])
    assert f"{found.refid:08X}" == shown[15]
    assert found.ref_time_ns == pytest.approx(float(shown[17]) * 1e9, abs=300)
    assert (found.transmit_stamps, found.receive_stamps) == (shown[28].lower(), shown[29].lower())
    assert found.measured
    counts = [found.tx_count, found.rx_count, found.valid_count, found.good_count]
    if isinstance(found, NtpDataWithStamps):
        stamps = [found.kernel_tx_stamps, found.kernel_rx_stamps, found.hardware_tx_stamps, found.hardware_rx_stamps]
        counts += stamps
    for count, text in zip(counts, shown[30:], strict=True):
        assert 0 <= int(text) - count <= 2


@EVERY
def test_a_source_that_never_answered_has_no_measurement(release: str) -> None:
    found = reply(release, "n2", f"NTP_DATA {SOURCES[2]}")
    assert not found.measured
    assert found.transmit_stamps is None


@EVERY
@pytest.mark.parametrize("source", SOURCES)
def test_authentication_is_what_chronyc_prints(release: str, source: str) -> None:
    found = reply(release, "n2", f"AUTH_DATA {source}")
    (shown,) = [row for row in printed(release, "n2 authdata") if row[0] == source]
    assert found.mode_name == ("nts" if shown[1] == "NTS" else "none")
    numbers = [found.key_id, found.key_type, found.key_length_bits]
    assert numbers == [int(text) for text in shown[2:5]]
    assert abs(found.last_key_exchange_age_s - int(shown[5])) <= 2
    rest = [found.key_exchange_attempts, found.nak, found.cookies, found.cookie_length]
    assert rest == [int(text) for text in shown[6:]]


@EVERY
@pytest.mark.parametrize("source", SOURCES)
def test_selection_is_what_chronyc_prints(release: str, source: str) -> None:
    found = reply(release, "n2", f"SELECT_DATA {source}")
    (shown,) = [row for row in printed(release, "n2 selectdata") if row[1] == source]
    assert (found.state, found.authentication) == (shown[0], int(shown[2] == "Y"))
    assert found.score == pytest.approx(float(shown[14]), rel=0.01)
    assert found.lo_limit_s == pytest.approx(float(shown[15]), abs=2e-5)
    assert found.hi_limit_s == pytest.approx(float(shown[16]), abs=2e-5)
    assert abs(found.last_sample_age_s - int(shown[13])) <= 2


@EVERY
def test_tracking_of_each_release_is_what_chronyc_prints(release: str) -> None:
    found, (shown,) = reply(release, "n2", "TRACKING"), printed(release, "n2 tracking")
    assert (f"{found.refid:08X}", found.address.text, found.stratum) == (shown[0], shown[1], int(shown[2]))
    assert found.freq_ppm == pytest.approx(float(shown[7]), abs=0.1)
