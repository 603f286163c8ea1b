"""Control messages of a real ntpsec 1.2.2, decoded, against what its own ntpq printed of the same moment."""

from __future__ import annotations

import json
import re
from itertools import permutations
from pathlib import Path

import pytest

from rankclock.wire.ntp_control import (
    Assembly,
    ControlMessage,
    ControlRefused,
    PeerSelection,
    PeerVariables,
    SystemEvent,
    SystemStatus,
    SystemVariables,
    decode_associations,
    decode_variables,
)

CAPTURED = json.loads((Path(__file__).parent / "wire/ntpd.json").read_text(encoding="utf-8"))
NEAR_NS = 1_796_000_000_000_000_000  # 2026-11


def messages(name: str) -> list[ControlMessage]:
    return [ControlMessage.decode(bytes.fromhex(text)) for text in CAPTURED["ntpd"][name]]


def question(message: ControlMessage) -> ControlMessage:
    return ControlMessage(opcode=message.opcode, sequence=message.sequence, association=message.association)


def joined(fragments: list[ControlMessage]) -> bytes:
    answer = Assembly(question=question(fragments[0]))
    whole = [answer.add(fragment) for fragment in fragments]
    assert whole[:-1] == [None] * (len(fragments) - 1)
    assert whole[-1] is not None
    return whole[-1]


def printed(what: str) -> str:
    text: str = CAPTURED["ntpq"][what]
    return text


def row(address: str) -> list[str]:
    (line,) = [line for line in printed("peers").splitlines() if line[1:].startswith(address)]
    return line[1:].split()


def test_what_was_captured_says_where_it_comes_from() -> None:
    assert CAPTURED["provenance"]["ntpd"] == "ntpd ntpsec-1.2.2"


def test_system_variables_are_what_ntpq_prints() -> None:
    found = SystemVariables.of(decode_variables(joined(messages("system"))), near_unix_ns=NEAR_NS)
    text = printed("rv").replace("\n", " ")
    shown = dict(re.findall(r'(\w+)=("[^"]*"|[^, ]+)', text))
    assert (found.leap, found.stratum, found.peer) == (int(shown["leap"]), int(shown["stratum"]), int(shown["peer"]))
    assert (found.refid, found.version) == (shown["refid"], shown["version"].strip('"'))
    assert found.offset_ns == -round(float(shown["offset"]) * 1e6), "the sign is turned: local minus server"
    assert found.offset_ns < 0, "the captured clock was behind"
    assert found.root_delay_ns == round(float(shown["rootdelay"]) * 1e6)
    assert found.root_dispersion_ns == pytest.approx(float(shown["rootdisp"]) * 1e6, abs=50_000)
    assert found.frequency_ppm == float(shown["frequency"])
    assert found.clock_ns is not None
    assert found.reference_time_ns is not None
    assert 0 < found.clock_ns - found.reference_time_ns < 20e9
    assert found.kernel_flags == ("pll",)


def test_the_status_word_is_what_ntpq_prints() -> None:
    (message,) = messages("system")
    status = SystemStatus.of(message.status)
    assert (status.leap, status.source, status.events, status.event) == (0, 0, 1, SystemEvent.CLOCK_SYNC)
    assert "leap_none, sync_unspec, 1 event, clock_sync" in printed("rv")


def test_associations_are_what_ntpq_prints() -> None:
    found = sorted(decode_associations(joined(messages("associations"))), key=lambda one: one[0])  # ntpq sorts
    rows = [line.split() for line in printed("associations").splitlines() if line.split()[:1] in (["1"], ["2"])]
    assert [number for number, _ in found] == [int(one[1]) for one in rows]
    assert [status.reachable for _, status in found] == [one[4] == "yes" for one in rows]
    assert [status.selection for _, status in found] == [PeerSelection.SYSTEM_PEER, PeerSelection.REJECTED]
    assert [one[6] for one in rows] == ["sys.peer", "reject"]


@pytest.mark.parametrize(("index", "address"), [(1, "10.77.0.1"), (0, "10.77.0.200")])
def test_peer_variables_are_what_ntpq_prints(index: int, address: str) -> None:
    found, shown = PeerVariables.of(decode_variables(joined(messages(f"peer{index}")))), row(address)
    assert (found.address, found.stratum) == (address, int(shown[2]))
    assert found.reach == int(shown[6], 8)
    assert found.delay_ns == pytest.approx(float(shown[7]) * 1e6, abs=100)
    assert found.offset_ns == pytest.approx(-float(shown[8]) * 1e6, abs=100)


def test_fragments_are_joined_in_any_order_and_stray_octets_of_ntpsec_spoil_no_other_variable() -> None:
    """ntpsec 1.2.2 sends octets of its memory within filtdelay, filtoffset and filtdisp."""
    fragments = messages("peer0_all")
    assert len(fragments) == 2
    for order in permutations(fragments):
        values = decode_variables(joined(list(order)))
        all_of_them, by_name = PeerVariables.of(values), PeerVariables.of(decode_variables(joined(messages("peer0"))))
        assert (all_of_them.address, all_of_them.offset_ns) == (by_name.address, by_name.offset_ns)
        assert any(ord(letter) > 0x7E for letter in values["filtdelay"]), "the octets are there in what was captured"


@pytest.mark.parametrize(("name", "code"), [("no_such_variable", 5), ("no_such_association", 4), ("bad_operation", 3)])
def test_refusals_carry_their_code(name: str, code: int) -> None:
    (message,) = messages(name)
    with pytest.raises(ControlRefused) as refused:
        Assembly(question=question(message)).add(message)
    assert refused.value.code == code
