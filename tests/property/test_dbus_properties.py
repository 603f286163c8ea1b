"""The D-Bus codec: calls that a real bus takes are in the system tests; here any octets, and values of every type."""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankclock.errors import DecodeError
from rankclock.wire.dbus import DbusMessage, MessageKind, encode_call, message_octets


def reply(signature: str, body: bytes, *, kind: int = MessageKind.RETURN) -> bytes:
    """A reply to call 7, little-endian, as dbus-daemon sends it."""
    fields = b"\x05\x01u\x00" + struct.pack("<I", 7)
    fields += b"\x08\x01g\x00" + bytes((len(signature),)) + signature.encode() + b"\0"
    head = struct.pack("<BBBBIII", ord("l"), kind, 0, 1, len(body), 3, len(fields))
    return head + fields + bytes(-len(fields) % 8) + body


def test_every_type_of_a_property_is_read_with_its_alignment() -> None:
    body = struct.pack("<Bxxxi", 9, -2) + struct.pack("<qI", -5, 1) + struct.pack("<I", 2) + b"hi\0"
    (found,) = [DbusMessage.decode(reply("yixbs", body))]
    assert (found.kind, found.reply_to, found.error, found.body) == (2, 7, "", (9, -2, -5, True, "hi"))


def test_a_dictionary_of_variants_with_a_structure_is_read() -> None:
    inner = struct.pack("<I", 4) + b"Name\0" + b"\x04(ut)\0" + bytes(1)  # key, signature, padding to 8
    entry = inner + struct.pack("<Ixxxxq", 5, 6)
    body = struct.pack("<I", len(entry)) + bytes(4) + entry
    assert DbusMessage.decode(reply("a{sv}", body)).body == ([("Name", (5, 6))],)


@pytest.mark.parametrize("signature", ["a", "(", "()", "{", "z", "(i", "(i}", "a" * 40 + "i", "v" * 3])
def test_a_signature_that_is_none_is_a_decode_error(signature: str) -> None:
    with pytest.raises(DecodeError):
        DbusMessage.decode(reply(signature, bytes(16)))


def test_variants_nested_without_end_are_a_decode_error() -> None:
    with pytest.raises(DecodeError):
        DbusMessage.decode(reply("v", b"\x01v\0" * 200))


@given(st.binary(max_size=120), st.sampled_from(["", "a{sv}", "v", "as", "(uuay)", "aai", "ax", "g"]), st.booleans())
@settings(max_examples=300)
def test_any_octets_are_a_message_or_a_decode_error(data: bytes, signature: str, framed: bool) -> None:
    with suppress(DecodeError):
        DbusMessage.decode(reply(signature, data) if framed else data)
    with suppress(DecodeError):
        DbusMessage.decode(b"l\x02\x00\x01" + data)


@given(st.lists(st.text(max_size=20).filter(lambda text: "\ud800" not in repr(text)), max_size=3))
@settings(max_examples=60)
def test_a_call_carries_its_strings(arguments: list[str]) -> None:
    data = encode_call(9, "org.example", "/org/example", "org.example.I", "Do", *arguments)
    assert message_octets(data) == len(data)
    message = DbusMessage.decode(data)
    assert (message.kind, message.body) == (MessageKind.CALL, tuple(arguments))
