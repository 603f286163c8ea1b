"""Events out of trace text that strict parsers refuse: what is whole is read, what is not is counted, with its place.

Works on a stretch of the event list that failed as a whole. Text is decoded as latin-1, so positions are byte offsets.
Decides where the next whole event begins after damage. Refuses to guess a value: a field that is no JSON becomes empty.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

import msgspec

__all__ = ["Event", "Loss", "Salvaged", "salvage"]


class Event(msgspec.Struct, gc=False):
    """One entry of `traceEvents`. Numbers stay as the bytes that the file has: `ts` and `dur` in microseconds."""

    ph: str = ""
    cat: str | None = None
    name: str | None = None
    ts: msgspec.Raw = msgspec.Raw(b"")
    dur: msgspec.Raw = msgspec.Raw(b"")
    pid: msgspec.Raw = msgspec.Raw(b"")
    tid: msgspec.Raw = msgspec.Raw(b"")
    id: msgspec.Raw = msgspec.Raw(b"")
    args: msgspec.Raw = msgspec.Raw(b"")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Something that could not be read: how many events, from which byte on (of the unpacked text), and why."""

    offset: int
    length: int
    events: int
    why: str


@dataclass(slots=True, kw_only=True)
class Salvaged:
    """What came out of one stretch. `spans` are the byte spans of `events`; `used` bytes are done with."""

    events: list[Event] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    odd: dict[str, int] = field(default_factory=dict)
    """Events that were read although a strict parser refuses them: reason to number."""
    used: int = 0
    list_ended: bool = False


_KEYS = "ph|name|cat|pid|tid|ts|args|id|dur|s|bp"
_EVENT_START = re.compile(r'[,\[}]\s*(\{\s*"(?:' + _KEYS + r')"\s*:)')
_PHASE = re.compile(r'"ph"\s*:')
_LIST_END = re.compile(r"\}\s*(?P<end>\])\s*[,}]")
_SEPARATORS = re.compile(r"[\s,]*")
_OPEN_QUOTE = re.compile(r'"name"\s*:\s*"[^"\\\n]*"[^,}\]\s:]')

# A whole string is matched first and kept, so that only what stands outside of strings is changed.
_NOT_JSON = re.compile(
    r'"(?:[^"\\]|\\.)*"'
    r"|(?P<hex>0x[0-9a-fA-F]+)"
    r"|(?P<split>-?[0-9]+\.-[0-9]+)"
    r"|(?P<word>(?<![\w.])-?[A-Za-z_][\w.()]*)"
    r"|(?P<comma>,(?=\s*[}\]]))",
    re.DOTALL,
)
_WORDS_OF_JSON = frozenset({"true", "false", "null"})

_decoder = json.JSONDecoder(strict=False, parse_float=str, parse_int=str, parse_constant=str)
_strict = msgspec.json.Decoder(Event)


def salvage(text: bytes, offset: int, *, final: bool) -> Salvaged:
    """Read the events in `text`, which begins inside an event list, at byte `offset` of the file.

    final: nothing follows `text`. Otherwise an event that may go on behind it is left for later.
    """
    out = Salvaged()
    string = text.decode("latin-1")
    at = 0
    while True:
        at = _after_separators(string, at)
        if at >= len(string):
            break
        if string[at] == "]":
            out.list_ended, at = True, at + 1
            break
        found = _event_at(string, at, out) if string[at] == "{" else None
        if found is None:
            following = _next_event(string, at + 1)
            if following is None and not final:
                break
            at = _give_up(string, at, following, offset, out)
            continue
        end, event = found
        if event is None and not string[at + 1 : end - 1].strip():
            pass  # NCCL's profiler plugin ends its list with {}: nothing is lost with it
        elif event is None:
            out.losses.append(Loss(offset=offset + at, length=end - at, events=1, why="an object without a phase (ph)"))
        else:
            out.events.append(event)
            out.spans.append((offset + at, offset + end))
        at = end
    out.used = at
    return out


def _after_separators(string: str, at: int) -> int:
    match = _SEPARATORS.match(string, at)
    return match.end() if match else at


def _event_at(string: str, at: int, out: Salvaged) -> tuple[int, Event | None] | None:
    """(end, event) of the object at `at`; (end, None) if it is no event; None if it is not whole."""
    decoded = _decode(string, at)
    why, changed = None, ""
    if decoded is None:
        following = _EVENT_START.search(string, at + 1)
        stretch = string[at : following.start(1) if following else len(string)]
        changed, why = _made_json(stretch)
        decoded = _decode(changed, 0) if why else None
        if decoded is None:
            return None
        decoded = decoded[0], decoded[1] + at
    value, end = decoded
    if not isinstance(value.get("ph"), str):
        return end, None
    text = string[at:end] if why is None else changed[: end - at]
    event, odd = _strictly(text)
    why = why or odd
    if why is not None:
        out.odd[why] = out.odd.get(why, 0) + 1
    return end, event


def _decode(string: str, at: int) -> tuple[dict[str, Any], int] | None:
    try:
        value, end = _decoder.raw_decode(string, at)
    except (ValueError, RecursionError):
        return None
    return (value, end) if isinstance(value, dict) else None


def _next_event(string: str, at: int) -> int | None:
    """Where the next whole event begins."""
    # One byte back: the separator that an event start needs may be the byte that was just given up.
    for match in _EVENT_START.finditer(string, max(at - 1, 0)):
        decoded = _decode(string, match.start(1))
        if decoded is not None and isinstance(decoded[0].get("ph"), str):
            return match.start(1)
    return None


def _give_up(string: str, at: int, following: int | None, offset: int, out: Salvaged) -> int:
    """Count what lies between `at` and the next whole event as lost; returns where to go on."""
    end, cut = following, False
    if end is None:
        ending = _LIST_END.search(string, at)
        end, cut = (ending.start("end"), False) if ending else (len(string), True)
    stretch = string[at:end]
    events = max(len(_PHASE.findall(stretch)), 1 if stretch.startswith("{") else 0)
    if events:
        why = "the file ends inside an event" if cut else _why_broken(stretch)
        out.losses.append(Loss(offset=offset + at, length=end - at, events=events, why=why))
    else:
        why = "bytes between events that are not JSON"
        out.odd[why] = out.odd.get(why, 0) + 1
    return end


def _why_broken(stretch: str) -> str:
    if _OPEN_QUOTE.search(stretch):
        return "a quote inside a name is not escaped (a known defect of profiler traces with Python stacks)"
    return "not a whole JSON object"


def _strictly(string: str) -> tuple[Event, str | None]:
    """The event that a whole object is, and what a strict parser would find wrong with it."""
    text = string.encode("latin-1")
    try:
        return _strict.decode(text), None
    except msgspec.ValidationError:
        why = "a field of an unusual type"
    except msgspec.DecodeError as error:
        control = any(byte < " " and byte not in "\n\r\t" for byte in string)
        why = "control characters that JSON wants escaped" if control else f"not strict JSON ({_without_place(error)})"
    return _event(_decoder.decode(text.decode("utf-8", "replace"))), why


def _without_place(error: Exception) -> str:
    return str(error).split(" (byte")[0]


def _made_json(stretch: str) -> tuple[str, str | None]:
    """The same text, equally long, with what is no JSON value replaced by an empty one; and what that was."""
    why: list[str] = []

    def replaced(match: re.Match[str]) -> str:
        text = match.group()
        if match.lastgroup is None or text in _WORDS_OF_JSON:
            return text
        if match.lastgroup == "hex":
            why.append("hexadecimal numbers")
            return f'"{text[2:]}"'
        if match.lastgroup == "comma":
            why.append("a comma before a closing bracket")
            return " "
        why.append("a number with two signs, as Kineto writes durations over a backward clock step"
                   if match.lastgroup == "split" else "bare words as values")  # fmt: skip
        return '""'.ljust(len(text)) if len(text) > 1 else text

    changed = _NOT_JSON.sub(replaced, stretch)
    return changed, why[0] if why else None


def _event(value: dict[str, Any]) -> Event:
    return Event(
        ph=value["ph"],
        cat=_text(value.get("cat")),
        name=_text(value.get("name")),
        **{key: _raw(value[key]) for key in ("ts", "dur", "pid", "tid", "id", "args") if key in value},
    )


def _text(value: Any) -> str | None:
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else None


def _raw(value: Any) -> msgspec.Raw:
    # Numbers were left as their digits by the decoder; a string is given the same way, `ns_of_text` takes both.
    text = value if isinstance(value, str) else json.dumps(value)
    return msgspec.Raw(text.encode("utf-8", "replace"))
