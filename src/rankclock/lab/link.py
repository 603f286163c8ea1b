"""The path between one interface and its segment, changeable while the lab runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import ValidationError

from rankclock.errors import UserError
from rankclock.lab.scenario import LinkSettings
from rankclock.lab.topology import Port, settings_of, ways_of

__all__ = ["Link"]

Request = Callable[[dict[str, Any]], dict[str, Any]]


class Link:
    """Given by `Lab.link`. The lab's first process keeps what it does to packets, so every holder sees the same."""

    def __init__(self, request: Request, port: Port, cable: int | None) -> None:
        self._request = request
        self._port = port
        self._cable = cable

    @property
    def settings(self) -> LinkSettings:
        """What the path does to packets now."""
        if self._cable is None:
            return LinkSettings()
        return settings_of(self._request({"op": "cable", "index": self._cable})["ways"])

    def set(self, **changes: Any) -> None:
        """Changes what is named (delay_ns, asymmetry_ns, jitter_ns, loss); the rest stays. Raises UserError."""
        name = f"the path of {self._port.node} {self._port.nic}"
        if self._cable is None:
            raise UserError(
                f"{name} is a plain one, without a cable that could delay: name it under `links:` in the scenario"
            )
        try:
            settings = LinkSettings(**{**self.settings.model_dump(), **changes})
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise UserError(f"{name}: {where} {first['msg'].removeprefix('Value error, ')}".strip()) from None
        self._request({"op": "cable", "index": self._cable, "ways": ways_of(settings)})

    def plug(self, up: bool) -> None:
        """Plugs the interface in or out; out: the node's interface loses its carrier. Works for plain paths too."""
        end = self._port.inner if self._port.cable else self._port.port
        self._request({"op": "ip", "lines": [f"link set {end} {'up' if up else 'down'}"]})
