"""The meeting of all ranks as every rank but 0 sees it, from its hello on: a state machine without I/O.

Decides whether what rank 0 says fits what was said before; the deadlines are the driver's.
"""

from __future__ import annotations

from typing import Any

from rankclock.errors import DecodeError, ExitCode
from rankclock.training.environment import Place
from rankclock.training.roster import End, integer_field, text_field

__all__ = ["Guest", "hello"]


class Guest:
    """One rank's side. `joined_wait_ms` stands once rank 0 accepted the hello, `rank` once all ranks came."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.joined_wait_ms: int | None = None
        self.rank: int | None = None
        self.salt = b""
        self.ended: End | None = None
        self.refused: End | None = None
        self._round = 0
        self._replies: list[Any] = []

    def handle_message(self, message: dict[str, Any]) -> None:
        """A sealed message of rank 0 came in. Raises DecodeError."""
        match message.get("type"):
            case "joined" if self.joined_wait_ms is None:
                self.joined_wait_ms = integer_field(message, "wait_ms")
            case "welcome" if self.rank is None:
                self._welcome(message)
            case "reply" if self.rank is not None and integer_field(message, "round") == self._round:
                self._round += 1
                self._replies.append(message.get("value"))
            case "refused" | "end" as kind:
                try:
                    end = End(code=ExitCode(integer_field(message, "code")), message=text_field(message, "message"))
                except ValueError:
                    raise DecodeError("an end without an exit code of the table") from None
                if kind == "end":
                    self.ended = end
                else:
                    self.refused = end
            case kind:
                raise DecodeError(f"a {str(kind)[:20]!r} that does not fit here")

    def value_message(self, value: Any) -> dict[str, Any]:
        """The message that gives our value of the next round."""
        return {"type": "value", "round": self._round, "value": value}

    @property
    def has_reply(self) -> bool:
        """Whether the reply to the round came."""
        return bool(self._replies)

    def take_reply(self) -> Any:
        """The reply to the round."""
        return self._replies.pop(0)

    def _welcome(self, message: dict[str, Any]) -> None:
        rank = integer_field(message, "rank")
        if not 0 < rank < self._place.world_size or self._place.rank not in (None, rank):
            raise DecodeError(f"a welcome as rank {rank}, which this process is not")
        try:
            self.salt = bytes.fromhex(text_field(message, "salt"))
        except ValueError:
            raise DecodeError("a welcome whose salt is not hexadecimal") from None
        self.rank = rank


def hello(place: Place, *, host: str, pid: int) -> dict[str, Any]:
    """A guest's first sealed message."""
    return {
        "type": "hello",
        "job": place.job,
        "world_size": place.world_size,
        "rank": place.rank,
        "host": host,
        "pid": pid,
    }
