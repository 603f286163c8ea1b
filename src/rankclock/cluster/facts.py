"""What was found out about one node: each fact is a value, or unknown with the reason.

Parses the objects that the node probe writes (docs/reference/facts.md). An unknown fact never counts as a capable or
a healthy one: the typed views give None for it, and their readers must say what None means to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from rankclock.errors import DecodeError

__all__ = ["FACTS_SCHEMA", "Fact", "Facts", "NicFacts", "PhcFacts"]

FACTS_SCHEMA = "rankclock-facts/1"

_NOT_COLLECTED = "was not collected"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One finding. value: None where unknown, and then `why` says why. source: where it was read."""

    value: Any
    why: str | None
    source: str

    @property
    def known(self) -> bool:
        """Whether there is a value."""
        return self.value is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class NicFacts:
    """One interface as the kernel describes it. None: could not be seen."""

    driver: str | None = None
    kind: str | None = None
    link_type: str | None = None
    operstate: str | None = None
    tx_hardware: bool | None = None
    rx_hardware: bool | None = None
    raw_hardware: bool | None = None
    tx_software: bool | None = None
    rx_software: bool | None = None
    phc_index: int | None = None
    virtual: bool | None = None
    speed_mbps: int | None = None

    @property
    def hardware_stamps(self) -> bool | None:
        """Whether it can stamp PTP messages by a clock of its own. None where that could not be seen.

        All of transmit, receive, raw clock and a clock index are needed: ptp4l asks for all of them.
        """
        has_phc = None if self.phc_index is None else self.phc_index >= 0
        return _all(self.tx_hardware, self.rx_hardware, self.raw_hardware, has_phc)

    @property
    def software_stamps(self) -> bool | None:
        """Whether the kernel can stamp messages in its driver, both ways. None where that could not be seen."""
        return _all(self.tx_software, self.rx_software)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhcFacts:
    """One PTP hardware clock. None: could not be seen."""

    clock_name: str | None = None
    kind: str | None = None
    max_adj_ppb: int | None = None
    advances: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All facts of one node, collected at one instant (Unix time in ns, by the node's own clock)."""

    node: str
    collected_at_ns: int
    facts: Mapping[str, Fact]

    def get(self, key: str) -> Fact:
        """The fact of that key; an unknown one where it was not collected."""
        return self.facts.get(key) or Fact(value=None, why=_NOT_COLLECTED, source="")

    def text(self, key: str, field: str | None = None) -> str | None:
        """A fact (or one field of it) as text, None where it is unknown or is no text."""
        value = self.get(key).value
        if field is not None:
            value = value.get(field) if isinstance(value, Mapping) else None
        return value if isinstance(value, str) else None

    def flag(self, key: str) -> bool | None:
        """A fact that is yes or no; None where it is unknown."""
        value = self.get(key).value
        return value if isinstance(value, bool) else None

    def nic(self, name: str) -> NicFacts | None:
        """What is known of one interface; None where nothing is."""
        value = self.get(f"nic.{name}").value
        return NicFacts(**_typed(value, NicFacts)) if isinstance(value, Mapping) else None

    def phc(self, index: int) -> PhcFacts | None:
        """What is known of `/dev/ptp<index>`; None where nothing is."""
        value = self.get(f"phc.{index}").value
        return PhcFacts(**_typed(value, PhcFacts)) if isinstance(value, Mapping) else None

    def has_phc_of(self, kind: str) -> bool:
        """Whether a PHC of that kind (`ena`, `ptp_kvm`, `hyperv`, ...) was seen, and was not seen to stand still."""
        seen = (self.phc(int(key[4:])) for key in self.facts if key.startswith("phc.") and key[4:].isdigit())
        return any(phc is not None and phc.kind == kind and phc.advances is not False for phc in seen)

    def nic_names(self) -> tuple[str, ...]:
        """The interfaces that were seen."""
        return tuple(
            key[4:] for key, fact in self.facts.items() if key.startswith("nic.") and isinstance(fact.value, Mapping)
        )

    def daemon_version(self, daemon: str) -> str | None:
        """The version of an installed daemon (`chronyd`, `ptp4l`, ...), None where unknown or not installed."""
        version = self.text(f"daemon.{daemon}", "version")
        return None if version == "none" else version

    def to_json(self) -> dict[str, Any]:
        """The object that `from_json` reads."""
        return {
            "schema": FACTS_SCHEMA,
            "node": self.node,
            "collected_at_ns": self.collected_at_ns,
            "facts": {
                key: {"value": fact.value, "why": fact.why, "source": fact.source} for key, fact in self.facts.items()
            },
        }

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Parse one facts object. Raises DecodeError for anything else."""
        if not isinstance(value, Mapping):
            raise DecodeError(f"facts are a JSON object, not {type(value).__name__}")
        if value.get("schema") != FACTS_SCHEMA:
            raise DecodeError(f"expected schema {FACTS_SCHEMA}, found {value.get('schema')!r}")
        node, at_ns, facts = value.get("node"), value.get("collected_at_ns"), value.get("facts")
        if not isinstance(node, str) or not node:
            raise DecodeError(f"facts name their node, found {node!r}")
        if not isinstance(at_ns, int) or isinstance(at_ns, bool):
            raise DecodeError(f"collected_at_ns of node {node!r} is whole nanoseconds, found {at_ns!r}")
        if not isinstance(facts, Mapping):
            raise DecodeError(f"the facts of node {node!r} are an object of key to value, found {facts!r:.80}")
        return cls(node=node, collected_at_ns=at_ns, facts={key: _fact(node, key, item) for key, item in facts.items()})


def _fact(node: str, key: str, item: Any) -> Fact:
    if not isinstance(item, Mapping) or "value" not in item:
        raise DecodeError(f"fact {key!r} of node {node!r} has a value or null, found {item!r:.80}")
    why, source = item.get("why"), item.get("source") or ""
    if not isinstance(source, str) or not (why is None or isinstance(why, str)):
        raise DecodeError(f"fact {key!r} of node {node!r} has a why and a source that are no text: {item!r:.80}")
    if item["value"] is None and not why:
        raise DecodeError(f"fact {key!r} of node {node!r} is unknown and does not say why")
    return Fact(value=item["value"], why=why, source=source)


_TYPES = {"str | None": str, "bool | None": bool, "int | None": int}


def _typed(value: Mapping[str, Any], view: type[NicFacts] | type[PhcFacts]) -> dict[str, Any]:
    """The fields of a view that the object holds with the right type; whatever else it holds is unknown to us."""
    return {
        field.name: value[field.name]
        for field in fields(view)
        if type(value.get(field.name)) is _TYPES[str(field.type)]  # not isinstance: true is no number
    }


def _all(*values: bool | None) -> bool | None:
    """No where one is no; yes where all are yes; otherwise unknown."""
    if any(value is False for value in values):
        return False
    return True if all(values) else None
