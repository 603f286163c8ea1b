"""Scenario files (`schema: rankclock-lab/1`): a cluster, its oscillators, its paths, and what happens to it over time.

Refuses unknown keys, nodes, interfaces and impossible figures, with file and line.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from rankclock.cluster.load import parse_cluster, read_text_file
from rankclock.cluster.model import Cluster
from rankclock.cluster.yaml_tree import MAX_BYTES, YamlError, parse_yaml
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

SCHEMA = "rankclock-lab/1"

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
        for name in self.clocks:
            if name not in nics:
                raise _misplaced(f"the cluster has no node {name!r}", "clocks", name)
        for i, link in enumerate(self.links):
            _check_interface(nics, link.node, link.nic, ("links", i))
        for i, event in enumerate(self.events):
            # Only a link event looks at the interface; the others keep the default of a node that may have none.
            _check_interface(nics, event.node, event.nic if event.action == "link" else None, ("events", i))
        return self

    @classmethod
    def of(cls, cluster: Cluster, **more: Any) -> Scenario:
        """A scenario around a cluster: all clocks right unless `clocks` says otherwise."""
        return cls.model_validate({"schema": "rankclock-lab/1", "cluster": cluster, **more})

    def clocks_of(self, node: str) -> NodeClocks:
        """A node's clocks; right and with a right PHC where the file says nothing."""
        return self.clocks.get(node, NodeClocks())


def _misplaced(message: str, *place: str | int) -> PydanticCustomError:
    """An error of the whole scenario that knows its place in it."""
    return PydanticCustomError("rankclock", message.replace("{", "{{").replace("}", "}}"), {"place": place})


def _check_interface(nics: dict[str, set[str]], node: str, nic: str | None, place: tuple[str | int, ...]) -> None:
    if node not in nics:
        raise _misplaced(f"the cluster has no node {node!r}", *place, "node")
    if nic is not None and nic not in nics[node]:
        raise _misplaced(f"node {node!r} has no interface {nic!r}", *place)


def load_scenario(path: Path | str) -> Scenario:
    """Reads a scenario file. Raises UserError with file and line."""
    return parse_scenario(read_text_file(Path(path), "lab scenario", MAX_BYTES), name=str(path))


def parse_scenario(text: str, *, name: str) -> Scenario:
    """A scenario from YAML text; `name` stands for it in messages. Raises UserError."""
    try:
        tree = parse_yaml(text)
    except YamlError as error:
        raise UserError(f"{name}:{error.line}: {error}") from None
    schema = tree.plain.get("schema") if isinstance(tree.plain, dict) else None
    if schema != SCHEMA:
        line = tree.line_of(("schema",)) if isinstance(tree.plain, dict) else tree.line
        raise UserError(f"{name}:{line}: a lab scenario starts with 'schema: {SCHEMA}', found {str(schema)[:60]!r}")
    cluster = parse_cluster(text, name)  # says what is wrong with a cluster better than a model inside a model
    try:
        return Scenario.model_validate({**tree.plain, "cluster": cluster})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = (*first["loc"], *(first.get("ctx") or {}).get("place", ()))
        where = ".".join(str(part) for part in place)
        said = "unknown key" if first["type"] == "extra_forbidden" else first["msg"].removeprefix("Value error, ")
        raise UserError(f"{name}:{tree.line_of(place)}: {where}: {said}") from None
