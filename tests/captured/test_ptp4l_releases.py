"""Data sets that linuxptp has since 4.0, as ptp4l 4.2 and 4.4 sent them, against what their own pmc printed of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

import pytest

from rankclock.wire.ptp_data_sets import PortHwclock, PortServiceStats, PortStats, UnicastMasterTable, clock_text
from rankclock.wire.ptp_management import ManagementError, ManagementMessage, UnknownTlv

RELEASES = json.loads((Path(__file__).parent / "wire/ptp4l_releases.json").read_text(encoding="utf-8"))["releases"]
EVERY = pytest.mark.parametrize("release", sorted(RELEASES))
T = TypeVar("T")


def tlvs(release: str, socket: str) -> list[Any]:
    return [ManagementMessage.decode(bytes.fromhex(text)).tlv for text in RELEASES[release][socket]]


def one(release: str, kind: type[T], socket: str = "rw") -> T:
    (found,) = [tlv for tlv in tlvs(release, socket) if isinstance(tlv, kind)]
    return found


def printed(release: str, name: str) -> list[list[str]]:
    return [line.split() for line in RELEASES[release]["pmc"][name].splitlines() if line.startswith("\t\t")]


def test_two_releases_were_captured() -> None:
    assert {name: value["provenance"] for name, value in RELEASES.items()} == {"4.2": "4.2", "4.4": "4.4"}


@EVERY
def test_what_a_port_waited_for_in_vain_is_what_pmc_prints(release: str) -> None:
    found, shown = one(release, PortServiceStats), dict(printed(release, "PORT_SERVICE_STATS_NP"))
    assert str(found.port_identity) == shown.pop("portIdentity")
    assert len(shown) == 10
    for name, text in shown.items():
        assert 0 <= int(text) - getattr(found, name) <= 6, name
    assert found.unicast_request_timeout > 2, "10.77.0.200 does not answer"


@EVERY
def test_the_unicast_masters_are_what_pmc_prints(release: str) -> None:
    found, (size, _, *rows) = one(release, UnicastMasterTable), printed(release, "UNICAST_MASTER_TABLE_NP")
    assert size == ["actual_table_size", str(len(found.masters))]
    assert len(rows) == 2
    for master, row in zip(found.masters, rows, strict=True):
        assert ("yes" if master.selected else "no", str(master.port_identity)) == (row[0], row[1])
        assert (master.address_text, master.state_name) == (row[2], row[3])
        assert (master.quality.clock_class, master.quality.accuracy) == (int(row[4]), int(row[5], 16))
        assert (master.quality.variance, master.priority1, master.priority2) == (
            int(row[6], 16),
            int(row[7]),
            int(row[8]),
        )


@EVERY
def test_a_clock_without_unicast_masters_has_an_empty_table(release: str) -> None:
    assert [tlv for tlv in tlvs(release, "gm") if isinstance(tlv, UnknownTlv)] == []
    assert one(release, UnicastMasterTable, "gm").masters == ()


@EVERY
def test_the_phc_of_a_port_is_what_pmc_prints_and_the_read_only_socket_refuses_it(release: str) -> None:
    found, shown = one(release, PortHwclock), dict(printed(release, "PORT_HWCLOCK_NP"))
    assert (str(found.port_identity), str(found.phc_index)) == (shown["portIdentity"], shown["phcIndex"])
    assert (found.flags, found.virtual_clock) == (int(shown["flags"], 16), False)
    refused = [str(tlv) for tlv in tlvs(release, "ro") if isinstance(tlv, ManagementError)]
    assert refused == ["PortHwclock: not supported (0x0006)", "PortProperties: not supported (0x0006)"]


@EVERY
def test_messages_by_type_are_what_pmc_prints(release: str) -> None:
    found, shown = one(release, PortStats), dict(printed(release, "PORT_STATS_NP"))
    assert str(found.port_identity) == shown["portIdentity"]
    for at, name in enumerate(("Sync", "Delay_Req")):
        assert 0 <= int(shown[f"rx_{name}"]) - found.received[at] <= 20
        assert 0 <= int(shown[f"tx_{name}"]) - found.sent[at] <= 20
    assert found.received[0] > 3


@EVERY
def test_every_captured_message_encodes_to_the_octets_that_came(release: str) -> None:
    for socket in ("rw", "ro", "gm"):
        for text in RELEASES[release][socket]:
            message = ManagementMessage.decode(bytes.fromhex(text))
            if isinstance(message.tlv, ManagementError):
                continue
            again = ManagementMessage.decode(message.encode())
            assert again.tlv == message.tlv
            assert message.encode()[48:] == bytes.fromhex(text)[48:], clock_text(message.source.clock)
