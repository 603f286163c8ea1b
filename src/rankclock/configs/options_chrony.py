"""What chronyd accepts, release by release (4.0 to 4.8): the directives and the options of its sources.

Names and first releases are those of each release's own parser. Values are checked where `chronyd -p` does not check
them (it takes minpoll > maxpoll, missing key files, unknown interfaces).
"""

from __future__ import annotations

from rankclock.configs.options import ConfigLine, Option, Table, Version, version_range
from rankclock.errors import UserError

__all__ = ["CHRONY", "CHRONY_SOURCE", "directive", "source"]

_ALWAYS_THERE = """
acquisitionport allow authselectmode bindacqaddress bindacqdevice bindaddress bindcmdaddress bindcmddevice binddevice
broadcast clientloglimit clockprecision cmdallow cmddeny cmdport cmdratelimit combinelimit confdir corrtimeratio deny
driftfile dscp dumpdir dumponexit fallbackdrift hwclockfile hwtimestamp include initstepslew keyfile leapsecmode
leapsectz local lock_all log logbanner logchange logdir mailonchange makestep manual maxchange maxclockerror
maxdistance maxdrift maxjitter maxntsconnections maxsamples maxslewrate maxupdateskew minsamples minsources
nocerttimecheck noclientlog nosystemcert ntpsigndsocket ntscachedir ntsdumpdir ntsntpserver ntsport ntsprocesses
ntsratelimit ntsrefresh ntsrotate ntsservercert ntsserverkey ntstrustedcerts peer pidfile pool port ratelimit refclock
reselectdist rtcautotrim rtcdevice rtcfile rtconutc rtcsync sched_priority server smoothtime sourcedir stratumweight
tempcomp user
"""

_LATER = {
    "ptpport": "4.2",
    "hwtstimeout": "4.4",
    "refresh": "4.4",
    "leapseclist": "4.6",
    "ptpdomain": "4.6",
    "ntsaeads": "4.7",
    "opencommands": "4.7",
}

CHRONY = Table(
    "chronyd",
    (
        *(Option(name=name, kind="str") for name in _ALWAYS_THERE.split()),
        *(Option(name=name, kind="str", since=since) for name, since in _LATER.items()),
    ),
)

_FLAGS = ("auto_offline", "burst", "iburst", "noselect", "nts", "offline", "prefer", "require", "trust", "xleave")

CHRONY_SOURCE = Table(
    "chronyd's source options",
    (
        *(Option(name=name, kind="flag") for name in _FLAGS),
        Option(name="minpoll", default="6", low=-6, high=24, until="4.3"),
        Option(name="maxpoll", default="10", low=-6, high=24, until="4.3"),
        Option(name="minpoll", default="6", low=-7, high=24, since="4.3"),
        Option(name="maxpoll", default="10", low=-7, high=24, since="4.3"),
        Option(name="minsamples", low=4, high=64),
        Option(name="maxsamples", low=4, high=64),
        Option(name="maxsources", default="4", low=1, high=16),
        Option(name="minstratum", low=0, high=15),
        Option(name="polltarget", default="8", low=6, high=60),
        Option(name="port", default="123", low=1, high=65535),
        Option(name="key", low=1, high=2**32 - 1),
        Option(name="offset", kind="real"),
        Option(name="asymmetry", kind="real", low=-0.5, high=0.5),
        Option(name="copy", kind="flag", since="4.1"),
        Option(name="certset", low=0, high=2**32 - 1, since="4.1"),
        Option(name="extfield", kind="str", since="4.2"),
        Option(name="maxdelayquant", kind="real", low=0, high=1, since="4.3"),
        Option(name="ipv4", kind="flag", since="4.6"),
        Option(name="ipv6", kind="flag", since="4.6"),
        Option(name="maxunreach", low=0, high=1_000_000, since="4.8"),
    ),
)


def directive(name: str, value: str, version: Version, *, why: str) -> ConfigLine:
    """A line `name value` (or `name` where it takes none). Raises UserError for what that release lacks."""
    option = CHRONY.find(name, version)
    if "#" in value or not value.isprintable():
        raise UserError(f"chronyd directive {name!r}: control characters and '#' cannot stand in {value!r:.60}")
    return ConfigLine(text=f"{name} {value}".rstrip(), why=why, versions=version_range(option))


def source(address: str, options: dict[str, object], version: Version, *, why: str) -> ConfigLine:
    """A `server` line. `options`: name to value, True for options without one. Raises UserError."""
    parts, versions = [address], "all"
    for name, value in options.items():
        option = CHRONY_SOURCE.find(name, version)
        if option.kind == "flag":
            parts.append(name)
        else:
            fault = option.fault(str(value))
            if fault:
                raise UserError(f"chronyd source option {name!r}: {fault}, found {value!r:.60}")
            parts += [name, str(value)]
        releases = CHRONY_SOURCE.releases(name)
        versions = releases if releases != "all" else versions
    low, high = options.get("minpoll", 6), options.get("maxpoll", 10)
    if isinstance(low, int) and isinstance(high, int) and low > high:
        # The parser takes this; chronyd then polls at maxpoll and never at minpoll.
        raise UserError(f"chronyd source {address}: minpoll {low} is above maxpoll {high}")
    return ConfigLine(text=directive("server", " ".join(parts), version, why=why).text, why=why, versions=versions)
