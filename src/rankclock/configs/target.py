"""What the files of one node are written for: the versions of its daemons, and where things are there.

Versions come from the node's facts; where they are unknown, those of Debian 12 are taken, and that is said.
"""

from __future__ import annotations

from dataclasses import dataclass

from rankclock.cluster.facts import Facts
from rankclock.configs.options import Version, parse_version
from rankclock.errors import UserError

__all__ = ["DEBIAN_12", "Target", "target_of"]

DEBIAN_12 = {"chronyd": "4.3", "ptp4l": "3.1.1", "gpsd": "3.22"}

_OLDEST = {"chronyd": "4.0", "ptp4l": "3.1", "gpsd": "3.17"}
"""Before these the option tables were not looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One node's daemons. assumed: those whose version no fact names."""

    chrony: str
    linuxptp: str
    gpsd: str = DEBIAN_12["gpsd"]
    assumed: tuple[str, ...] = ()

    @property
    def chrony_version(self) -> Version:
        """For comparing."""
        return parse_version(self.chrony)

    @property
    def linuxptp_version(self) -> Version:
        """For comparing."""
        return parse_version(self.linuxptp)

    @property
    def gpsd_version(self) -> Version:
        """For comparing."""
        return parse_version(self.gpsd)


def target_of(node: str, facts: Facts | None, *, receiver: bool = False) -> Target:
    """The versions to write for; gpsd's counts where the node has a receiver.

    Raises UserError for daemons older than any that is known here.
    """
    found, assumed = {}, []
    for daemon, default in DEBIAN_12.items():
        if daemon == "gpsd" and not receiver:
            continue
        seen = facts.daemon_version(daemon) if facts else None
        try:
            version = parse_version(seen) if seen else None
        except ValueError:
            version = None
        if version is None:
            assumed.append(f"{daemon} {default}")
        elif version < parse_version(_OLDEST[daemon]):
            raise UserError(
                f"{node}: {daemon} {seen} is older than {_OLDEST[daemon]}: update it, no file is written for it"
            )
        found[daemon] = seen if seen and version else default
    return Target(
        chrony=found["chronyd"],
        linuxptp=found["ptp4l"],
        gpsd=found.get("gpsd", DEBIAN_12["gpsd"]),
        assumed=tuple(assumed),
    )
