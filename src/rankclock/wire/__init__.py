"""Bytes and tool output to values and back. Pure, standard library only; a decoder accepts or raises DecodeError."""
