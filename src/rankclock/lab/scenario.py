"""Scenario files (`schema: rankclock-lab/1`): a cluster, its oscillators, its paths, and what happens to it over time.

Refuses unknown keys, nodes, interfaces and impossible figures, with file and line.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from rankclock.cluster.model import Cluster
from rankclock.errors import UserError

__all__ = [
    "ClockSpec",
    "Event",
    "LinkSettings",
    "LinkSpec",
    "NodeClocks",
    "Scenario",
    "load_scenario",
    "parse_scenario",
]

MAX_BYTES = 4_000_000
"""A scenario of 10,000 nodes is about 2 MB; more is a mistake, and YAML of that size takes minutes to read."""

Ns = Annotated[int, Field(ge=-(10**18), le=10**18)]
DriftPpb = Annotated[float, Field(gt=-1e8, lt=1e8)]
DelayNs = Annotated[int, Field(ge=0, le=10**10)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ClockSpec(_Strict):
    """How a clock starts against the host's: `offset_ns` ahead, `drift_ppb` fast."""

    offset_ns: Ns = 0
    drift_ppb: DriftPpb = 0.0


class NodeClocks(ClockSpec):
    """A node's system clock, and its PTP hardware clock (`phc: null`: its NICs have none)."""

    phc: ClockSpec | None = ClockSpec()


class LinkSettings(_Strict):
    """What a path does to packets. `asymmetry_ns`: how much longer the way out of the node is than the way in;
    `delay_ns` is the mean of both. `jitter_ns`: added to each packet, uniform from 0. `loss`: share of packets dropped.
    """

    delay_ns: DelayNs = 0
    asymmetry_ns: Annotated[int, Field(ge=-(10**10), le=10**10)] = 0
    jitter_ns: DelayNs = 0
    loss: Annotated[float, Field(ge=0, le=1)] = 0.0

    @model_validator(mode="after")
    def _no_way_is_negative(self) -> LinkSettings:
        if abs(self.asymmetry_ns) > 2 * self.delay_ns:
            raise ValueError(
                f"asymmetry_ns {self.asymmetry_ns} needs a delay_ns of at least {abs(self.asymmetry_ns) // 2}: "
                "no way takes less than no time"
            )
        return self


class LinkSpec(LinkSettings):
    """The path between one interface and its segment. Named here, it goes through the user-space cable."""

    node: str
    nic: str = "eth0"


class Event(_Strict):
    """Something that happens `at_s` after the lab is up."""

    at_s: Annotated[float, Field(ge=0, le=1e6)]
    node: str
    action: Literal["step", "drift", "phc-step", "phc-drift", "phc-freeze", "phc-thaw", "stop", "kill", "link"]
    by_ns: Ns | None = None
    drift_ppb: DriftPpb | None = None
    service: str | None = None
    nic: str = "eth0"
    set: LinkSettings | None = None
    up: bool | None = None

    @model_validator(mode="after")
    def _has_what_its_action_needs(self) -> Event:
        needs = {
            "step": "by_ns",
            "phc-step": "by_ns",
            "drift": "drift_ppb",
            "phc-drift": "drift_ppb",
            "stop": "service",
            "kill": "service",
        }.get(self.action)
        if needs and getattr(self, needs) is None:
            raise ValueError(f"action {self.action!r} needs {needs!r}")
        if self.action == "link" and self.set is None and self.up is None:
            raise ValueError("action 'link' needs 'set' or 'up'")
        return self


class Scenario(_Strict):
    """A whole scenario file."""

    schema_: Annotated[Literal["rankclock-lab/1"], Field(alias="schema")]
    cluster: Cluster
    clocks: dict[str, NodeClocks] = {}
    links: tuple[LinkSpec, ...] = ()
    events: tuple[Event, ...] = ()

    @model_validator(mode="after")
    def _names_what_exists(self) -> Scenario:
        nics = {node.name: {nic.name for nic in node.nics} for node in self.cluster.nodes}
        for where, name in (
            *((f"clocks.{name}", name) for name in self.clocks),
            *((f"links[{i}]", link.node) for i, link in enumerate(self.links)),
            *((f"events[{i}]", event.node) for i, event in enumerate(self.events)),
        ):
            if name not in nics:
                raise ValueError(f"{where}: the cluster has no node {name!r}")
        for i, link in enumerate(self.links):
            if link.nic not in nics[link.node]:
                raise ValueError(f"links[{i}]: node {link.node!r} has no interface {link.nic!r}")
        for i, event in enumerate(self.events):
            if event.action == "link" and event.nic not in nics[event.node]:
                raise ValueError(f"events[{i}]: node {event.node!r} has no interface {event.nic!r}")
        return self

    @classmethod
    def of(cls, cluster: Cluster, **more: Any) -> Scenario:
        """A scenario around a cluster: all clocks right unless `clocks` says otherwise."""
        return cls.model_validate({"schema": "rankclock-lab/1", "cluster": cluster, **more})

    def clocks_of(self, node: str) -> NodeClocks:
        """A node's clocks; right and with a right PHC where the file says nothing."""
        return self.clocks.get(node, NodeClocks())


def load_scenario(path: Path | str) -> Scenario:
    """Reads a scenario file. Raises UserError with file and line."""
    path = Path(path)
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise UserError(f"{path}: {size} bytes; a scenario has at most {MAX_BYTES}")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start})") from error
    return parse_scenario(text, name=str(path))


def parse_scenario(text: str, *, name: str) -> Scenario:
    """A scenario from YAML text; `name` stands for it in messages. Raises UserError."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        document = YAML(typ="rt").load(text)
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise UserError(f"{name}:{line}: not YAML: {error.problem or error.context}") from error
    except (YAMLError, RecursionError, ValueError) as error:
        raise UserError(f"{name}: not YAML: {' '.join(str(error).split())[:200]}") from error
    if not isinstance(document, dict):
        raise UserError(f"{name}:1: a scenario is a mapping with `schema: rankclock-lab/1`")
    try:
        return Scenario.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        raise UserError(
            f"{name}:{_line_of(document, first['loc'])}: {where + ': ' if where else ''}{message}"
        ) from error


def _line_of(document: Any, location: tuple[int | str, ...]) -> int:
    """The line at which the deepest part of a location stands, as far as the document has it."""
    line = 1
    value: Any = document
    for part in location:
        try:
            lc = value.lc
            marks = lc.key(part) if hasattr(value, "keys") else lc.item(part)
            line, value = marks[0] + 1, value[part]
        except (AttributeError, KeyError, IndexError, TypeError):
            break
    return line
