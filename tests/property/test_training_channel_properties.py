"""The channel between two ranks: what one seals the other opens, and whatever else comes is refused."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankclock.errors import DecodeError
from rankclock.training.channel import MAX_FRAME, NONCE_BYTES, Channel, Role, derive_key

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), 1 << 63) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
MESSAGES = st.lists(st.dictionaries(st.text(max_size=8), JSON, max_size=4), max_size=5)
KEYS = st.none() | st.binary(min_size=16, max_size=32)


def greeted_pair(shared: bytes | None, *, theirs: bytes | str | None = "same") -> tuple[Channel, Channel]:
    other = shared if isinstance(theirs, str) else theirs
    server = Channel(Role.SERVER, nonce=b"s" * NONCE_BYTES, shared=shared)
    client = Channel(Role.CLIENT, nonce=b"c" * NONCE_BYTES, shared=other)
    server.feed(client.greeting())
    client.feed(server.greeting())
    return server, client


@settings(max_examples=60)
@given(messages=MESSAGES, shared=KEYS, cuts=st.lists(st.integers(1, 40), min_size=1, max_size=30))
def test_messages_arrive_whole_and_in_order_however_the_bytes_are_cut(
    messages: list[dict[str, Any]], shared: bytes | None, cuts: list[int]
) -> None:
    server, client = greeted_pair(shared)
    data = b"".join(client.seal(message) for message in messages)
    received: list[dict[str, Any]] = []
    position = 0
    while position < len(data):
        step = cuts[position % len(cuts)]
        received += server.feed(data[position : position + step])
        position += step
    assert received == messages


@settings(max_examples=150)
@given(data=st.binary(max_size=300), greeted=st.booleans(), shared=KEYS)
def test_any_bytes_are_refused_or_waited_for_and_never_crash(data: bytes, greeted: bool, shared: bytes | None) -> None:
    channel = greeted_pair(shared)[0] if greeted else Channel(Role.SERVER, nonce=b"n" * NONCE_BYTES, shared=shared)
    with suppress(DecodeError):
        assert channel.feed(data) == []


@settings(max_examples=150)
@given(body=JSON | st.just({"schema": "rankclock-meeting/1", "nonce": "zz", "keyed": False}))
def test_any_json_as_a_greeting_is_refused_and_never_crashes(body: Any) -> None:
    text = json.dumps(body).encode()
    channel = Channel(Role.SERVER, nonce=b"n" * NONCE_BYTES, shared=None)
    with pytest.raises(DecodeError):
        channel.feed(len(text).to_bytes(4, "big") + text)


@settings(max_examples=60)
@given(position=st.integers(0, 10_000), bit=st.integers(0, 7), shared=KEYS)
def test_a_message_with_one_bit_changed_is_never_delivered(position: int, bit: int, shared: bytes | None) -> None:
    server, client = greeted_pair(shared)
    data = bytearray(client.seal({"type": "value", "value": [1, 2, 3]}))
    data[position % len(data)] ^= 1 << bit
    with suppress(DecodeError):
        assert server.feed(bytes(data)) == []


@pytest.mark.parametrize("shared", [None, b"k" * 16])
def test_a_message_sent_again_is_refused(shared: bytes | None) -> None:
    server, client = greeted_pair(shared)
    data = client.seal({"type": "value"})
    assert server.feed(data) == [{"type": "value"}]
    with pytest.raises(DecodeError):
        server.feed(data)


@pytest.mark.parametrize("shared", [None, b"k" * 16])
def test_a_message_thrown_back_at_its_sender_is_refused(shared: bytes | None) -> None:
    _, client = greeted_pair(shared)
    with pytest.raises(DecodeError):
        client.feed(client.seal({"type": "value"}))


def test_a_message_of_an_earlier_connection_is_refused() -> None:
    shared = b"k" * 16
    _, first = greeted_pair(shared)
    recorded = first.seal({"type": "end"})
    server = Channel(Role.SERVER, nonce=b"t" * NONCE_BYTES, shared=shared)
    server.feed(first.greeting())
    with pytest.raises(DecodeError):
        server.feed(recorded)


def test_another_key_is_named_as_the_reason() -> None:
    server, client = greeted_pair(b"k" * 16, theirs=b"x" * 16)
    with pytest.raises(DecodeError, match="RANKCLOCK_KEY_FILE must hold the same bytes"):
        server.feed(client.seal({"type": "hello"}))


def test_a_key_on_one_side_only_is_named_as_the_reason() -> None:
    with_key = Channel(Role.SERVER, nonce=b"s" * NONCE_BYTES, shared=b"k" * 16)
    without = Channel(Role.CLIENT, nonce=b"c" * NONCE_BYTES, shared=None)
    with pytest.raises(DecodeError, match="the other side has none"):
        with_key.feed(without.greeting())
    with pytest.raises(DecodeError, match="this process has none"):
        without.feed(with_key.greeting())


def test_another_version_is_named_as_the_reason() -> None:
    text = json.dumps({"schema": "rankclock-meeting/9", "nonce": "00" * 16, "keyed": False}).encode()
    channel = Channel(Role.SERVER, nonce=b"n" * NONCE_BYTES, shared=None)
    with pytest.raises(DecodeError, match="versions differ"):
        channel.feed(len(text).to_bytes(4, "big") + text)


def test_a_stranger_cannot_make_us_hold_a_large_frame() -> None:
    server, _ = greeted_pair(None)
    with pytest.raises(DecodeError, match="at most 4096"):
        server.feed((4097).to_bytes(4, "big"))


def test_a_web_client_is_refused_at_its_first_four_bytes() -> None:
    channel = Channel(Role.SERVER, nonce=b"n" * NONCE_BYTES, shared=None)
    with pytest.raises(DecodeError, match="another program"):
        channel.feed(b"GET ")


def test_a_message_beyond_the_limit_is_not_sealed() -> None:
    _, client = greeted_pair(None)
    with pytest.raises(ValueError, match="at most"):
        client.seal({"value": "x" * MAX_FRAME})


@given(first=st.binary(max_size=8), second=st.binary(max_size=8))
def test_derived_keys_do_not_confuse_their_parts(first: bytes, second: bytes) -> None:
    together = derive_key(b"k" * 16, b"p", first + second)
    assert derive_key(b"k" * 16, b"p", first, second) != together
