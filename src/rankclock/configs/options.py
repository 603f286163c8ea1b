"""Which option a daemon of which version takes, with type, range, default and place. Refuses the rest.

The tables stand in options_linuxptp and options_chrony; this module knows how to read them. An option that a version
lacks is refused with the version that has it, before any file is written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from rankclock.errors import UserError

__all__ = ["ConfigLine", "Option", "Place", "Table", "Version", "parse_version", "version_range"]

Version = tuple[int, ...]


def parse_version(text: str) -> Version:
    """`4.3`, `3.1.1`, `4.4-00012-gabc`: the leading numbers. Raises ValueError where there are none."""
    match = re.match(r"\d+(?:\.\d+)*", text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no version")
    return tuple(int(part) for part in match[0].split("."))


class Place(StrEnum):
    """Where an option may stand. PORT: in [global] as the default for all ports, and in a port's section."""

    GLOBAL = "global"
    PORT = "port"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option of one daemon. low, high: the range; choices: the words, where it takes words.

    since: the first release (of those looked at, the oldest is 3.1 for linuxptp and 4.0 for chrony) that has it, None
    where all have. until: the first release that lacks it or has it in another form. deprecated: what replaces it.
    """

    name: str
    place: Place = Place.GLOBAL
    kind: str = "int"
    default: str | None = None
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    since: str | None = None
    until: str | None = None
    deprecated_since: str | None = None
    deprecated_for: str | None = None

    def in_version(self, version: Version) -> bool:
        """Whether that release has the option in this form."""
        if self.since is not None and version < parse_version(self.since):
            return False
        return self.until is None or version < parse_version(self.until)

    def fault(self, value: str) -> str | None:
        """What is wrong with a value, None where nothing is."""
        if not value.isprintable() or "#" in value:
            return "control characters and '#' cannot stand in a value"
        if self.kind == "str":
            return None if value else "a value is missing"
        if self.kind == "enum":
            return None if value in self.choices else f"expected one of {', '.join(self.choices)}"
        try:
            number = int(value, 0) if self.kind == "int" else float(value)
        except ValueError:
            return "expected a number"
        if (self.low is not None and number < self.low) or (self.high is not None and number > self.high):
            return (
                f"expected {self.low:g} to {self.high:g}"
                if self.high is not None
                else f"expected at least {self.low:g}"
            )
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigLine:
    """One line of a rendered file with its reason and the releases that take it."""

    text: str
    why: str = ""
    versions: str = ""

    def __post_init__(self) -> None:
        # The last guard against names that carry lines of their own: whatever wrote this line, it is one line.
        if not self.text.isprintable():
            raise ValueError(f"a line of a configuration holds control characters: {self.text!r:.80}")


class Table:
    """The options of one daemon."""

    def __init__(self, daemon: str, options: tuple[Option, ...]) -> None:
        self.daemon = daemon
        self._lines: dict[tuple[str, str, Version, str, Place], ConfigLine] = {}
        self.options: Mapping[str, tuple[Option, ...]] = {
            name: tuple(item for item in options if item.name == name)
            for name in dict.fromkeys(o.name for o in options)
        }

    def find(self, name: str, version: Version) -> Option:
        """The option in the form that a release has. Raises UserError with the release that has it."""
        forms = self.options.get(name)
        if not forms:
            raise UserError(f"{self.daemon} has no option {name!r} in any release that is known here")
        for form in forms:
            if form.in_version(version):
                return form
        wanted = " or ".join(version_range(form) for form in forms)
        raise UserError(f"{self.daemon} {'.'.join(map(str, version))} has no option {name!r}: it needs {wanted}")

    def has(self, name: str, version: Version) -> bool:
        """Whether a release has the option at all."""
        return any(form.in_version(version) for form in self.options.get(name, ()))

    def line(self, name: str, value: object, version: Version, *, why: str, place: Place = Place.GLOBAL) -> ConfigLine:
        """A checked line `name value`. Raises UserError for what that release rejects."""
        text = str(value)
        key = (name, text, version, why, place)
        if key not in self._lines:  # ten thousand nodes share a few hundred lines
            self._lines[key] = self._checked(name, text, version, why, place)
        return self._lines[key]

    def _checked(self, name: str, text: str, version: Version, why: str, place: Place) -> ConfigLine:
        option = self.find(name, version)
        if place is Place.PORT and option.place is not Place.PORT:
            raise UserError(f"{self.daemon} takes {name!r} in [global] only, not for a port")
        fault = option.fault(text)
        if fault:
            raise UserError(f"{self.daemon} option {name!r}: {fault}, found {text!r:.60}")
        return ConfigLine(text=f"{name} {text}", why=why, versions=self.releases(name))

    def releases(self, name: str) -> str:
        """The releases that have an option in any form."""
        forms = self.options[name]
        return version_range(replace(forms[-1], since=forms[0].since))


def version_range(option: Option) -> str:
    """The releases that have an option, for people."""
    if option.since and option.until:
        return f"{option.since} to before {option.until}"
    if option.until:
        return f"before {option.until}"
    text = f"{option.since} and newer" if option.since else "all"
    if option.deprecated_for:
        text += f" (from {option.deprecated_since} on called {option.deprecated_for})"
    return text
