"""The control codec takes any octets: a value, or DecodeError; fragments join in any order or not at all."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankclock.errors import DecodeError
from rankclock.wire.ntp_control import (
    Assembly,
    ControlMessage,
    PeerStatus,
    PeerVariables,
    SystemStatus,
    SystemVariables,
    decode_associations,
    decode_variables,
)

U16 = st.integers(0, 0xFFFF)
MESSAGES = st.builds(
    ControlMessage,
    opcode=st.integers(0, 31),
    sequence=U16,
    association=U16,
    status=U16,
    offset=st.integers(0, 0xF000),
    data=st.binary(max_size=480),
    response=st.booleans(),
    error=st.booleans(),
    more=st.booleans(),
    leap=st.integers(0, 3),
    version=st.integers(0, 7),
)


@given(MESSAGES)
@settings(max_examples=100)
def test_a_message_survives_the_wire(message: ControlMessage) -> None:
    data = message.encode()
    assert len(data) % 4 == 0
    assert ControlMessage.decode(data) == message


@given(st.binary(max_size=80) | st.binary(max_size=80).map(lambda data: b"\x26\x82" + data))
@settings(max_examples=300)
def test_any_octets_are_a_message_or_a_decode_error(data: bytes) -> None:
    with suppress(DecodeError):
        message = ControlMessage.decode(data)
        assert ControlMessage.decode(message.encode()) == message
        Assembly(question=message).add(message)
    with suppress(DecodeError):
        decode_associations(data)


@given(st.binary(max_size=400))
@settings(max_examples=200)
def test_any_octets_are_variables_without_crash(data: bytes) -> None:
    values = decode_variables(data)
    SystemVariables.of(values, near_unix_ns=0)
    PeerVariables.of(values)


@given(
    st.dictionaries(
        st.sampled_from(("leap", "stratum", "peer", "offset", "rootdelay", "rootdisp", "reftime", "clock", "kstflags")),
        st.text('0123456789.eExX+-abcf "', max_size=20),
    )
)
@settings(max_examples=200)
def test_any_text_as_a_value_is_a_number_or_unknown(values: dict[str, str]) -> None:
    SystemVariables.of(values, near_unix_ns=0)


@given(U16)
def test_any_word_is_a_status(word: int) -> None:
    system, peer = SystemStatus.of(word), PeerStatus.of(word)
    assert system.leap << 14 | system.source << 8 | system.events << 4 | system.event == word
    bits = (peer.configured, peer.authenticable, peer.authentic, peer.reachable, peer.broadcast)
    head = sum(bit << 15 - place for place, bit in enumerate(bits))
    assert head | peer.selection << 8 | peer.events << 4 | peer.event == word
    assert len(peer.selection.mark) == 1


QUESTION = ControlMessage(opcode=2, sequence=7, association=3)


@given(st.data(), st.binary(min_size=1, max_size=600))
@settings(max_examples=100)
def test_fragments_join_in_any_order_with_repeats_and_strangers_between_them(data: st.DataObject, text: bytes) -> None:
    cuts = sorted({0, len(text), *data.draw(st.lists(st.integers(1, len(text)), max_size=4))})
    fragments = [
        ControlMessage(
            opcode=2, sequence=7, association=3, response=True, offset=start, data=text[start:end], more=end < len(text)
        )
        for start, end in pairwise(cuts)
    ]
    stranger = ControlMessage(opcode=2, sequence=8, association=3, response=True, data=b"not mine")
    sent = data.draw(st.permutations([*fragments, fragments[0], stranger]))
    answer = Assembly(question=QUESTION)
    got = [whole for whole in map(answer.add, sent) if whole is not None]
    assert got
    assert set(got) == {text}


def test_an_answer_that_lacks_a_fragment_never_counts_as_whole() -> None:
    answer = Assembly(question=QUESTION)
    last = ControlMessage(opcode=2, sequence=7, association=3, response=True, offset=10, data=b"end")
    assert answer.add(last) is None


@pytest.mark.parametrize(("offset", "data"), [(0, b"xyz"), (1, b"bcd"), (2, b"c" * 20)])
def test_fragments_that_contradict_each_other_are_refused(offset: int, data: bytes) -> None:
    answer = Assembly(question=QUESTION)
    first = ControlMessage(opcode=2, sequence=7, association=3, response=True, data=b"abcd", more=True)
    assert answer.add(first) is None
    last = ControlMessage(opcode=2, sequence=7, association=3, response=True, offset=4, data=b"efgh")
    with pytest.raises(DecodeError):
        answer.add(
            ControlMessage(opcode=2, sequence=7, association=3, response=True, offset=offset, data=data, more=True)
        )
        answer.add(last)
