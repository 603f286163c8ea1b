"""Collectives out of what NCCL's example profiler plugin prints: begin and end events by category.

A COLL event may end when the host has enqueued the operation; the device is done only when the events inside of it are
(a kernel's channel; a receiving proxy where the algorithm is a ring, whose last step has come past every rank: in a
tree, a rank may receive from its children alone). Decides that a collective was over at the latest of all these ends,
and that one without such an event inside bounds nothing. Its group is the communicator's hash, its place the
communicator's sequence. Ranks in it are ranks of the communicator: they are never taken for the job's.
Source of the format: NVIDIA/nccl, ext-profiler/example/print_event.c.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rankclock.errors import DecodeError
from rankclock.traces.communication import integer_of, lane_of, object_of
from rankclock.traces.kinds import Kind, kind_of_name
from rankclock.traces.microseconds import ns_of_text
from rankclock.traces.salvage import Event
from rankclock.traces.spans import HOST_SLACK_NS, NO_SEQUENCE, UNKNOWN_SIZE, Span, Token

__all__ = ["PluginCollectives"]

_COLLECTIVE = "COLL"
_KERNEL, _RECEIVED, _RING = ("GPU", "KernelCh"), ("PROXY", "Recv"), "RING"


@dataclass(slots=True)
class PluginCollectives:
    """Takes begin and end events in file order, in which what is inside of a collective stands between its two."""

    enqueued_only: int = 0
    """Collectives that show no more than that the host enqueued them."""
    _start: tuple[Event, int] | None = None
    _done_ns: list[int] = field(default_factory=list)
    _ring: bool = False

    def _shows_end(self, event: Event) -> bool:
        what = event.cat, event.name
        return what == _KERNEL or (what == _RECEIVED and self._ring)

    def take(self, event: Event) -> Span | None:
        """The collective that this event ends, if it does and if it bounds anything."""
        if event.cat == _COLLECTIVE and event.ph == "b":
            start_ns = _time(event)
            self._start, self._done_ns = None if start_ns is None else (event, start_ns), []
            self._ring = _algorithm(event) == _RING
        elif event.ph == "e" and self._start is not None and self._shows_end(event):
            done_ns = _time(event)
            self._done_ns += [] if done_ns is None else [done_ns]
        elif event.cat == _COLLECTIVE and event.ph == "e" and self._start is not None:
            (begun, start_ns), self._start = self._start, None
            end_ns = _time(event)
            if not self._done_ns or end_ns is None or bytes(event.id) != bytes(begun.id):
                self.enqueued_only += 1
                return None
            return _span(begun, start_ns, max(end_ns, *self._done_ns))
        return None


def _algorithm(event: Event) -> str:
    return str(object_of(event.args).get("Algorithm", "")).upper()


def _span(event: Event, start_ns: int, end_ns: int) -> Span | None:
    args = object_of(event.args)
    kind, group = kind_of_name(event.name or ""), args.get("CommHash")
    if kind is Kind.OTHER or group is None or end_ns < start_ns:
        return None
    size, sequence = integer_of(args.get("Count")), integer_of(args.get("SeqNum"))
    token = Token(kind=kind, group=str(group), size=UNKNOWN_SIZE if size is None else size)
    place = NO_SEQUENCE if sequence is None else sequence
    return Span(token, place, start_ns, end_ns, HOST_SLACK_NS, lane_of(event))


def _time(event: Event) -> int | None:
    """None where there is none; the plugin prints 0 for what it never saw."""
    try:
        return ns_of_text(bytes(event.ts)) or None
    except DecodeError:
        return None
