"""ntp.conf as ntpd reads it (ntpsec 1.2; what only the classic ntpd 4.2.8 knows is told apart). Pure.

ntpd never refuses a file: it says "syntax error" in its log, goes on without that line, and runs with what is left. So
nothing here is `rejected`; every problem is a line that does not do what its writer meant.
"""

from __future__ import annotations

from collections.abc import Iterator

from rankclock.configs.problem import Problem

__all__ = ["lint_ntp"]

_KNOWN = {
    "directive": """
        controlkey disable driftfile dscp enable filegen fudge includefile interface keys leapfile leapsmearinterval
        logconfig logfile mru nic nonvolatile nts ntpsigndsocket peer phone pidfile pool refclock requestkey restrict
        rlimit server setvar statistics statsdir tinker tos trustedkey unconfig unpeer unrestrict
    """,
    "classic": """
        automax broadcast broadcastclient broadcastdelay calldelay crypto cryptostats end_user_auth ident keysdir
        manycastclient manycastserver multicastclient reset revoke saveconfigdir simulate ttl
    """,
    "flag": "burst iburst noselect noval nts prefer true",
    "word": "aead ca cert maxtls mintls tlsciphersuites",
    "restrict": """
        flake ignore kod limited mssntp nomodify nomrulist nopeer noquery noserve notrap notrust ntpport version
    """,
    "tos": "ceiling floor maxclock maxdisp maxdist minclock mindist minsane orphan orphanwait",
    "tinker": "allan dispersion freq huffpuff panic step stepback stepfwd stepout tick",
    "switch": "calibrate kernel monitor ntp stats",
}
"""Held to the real ntpd by a test, word by word."""

_WORDS = {kind: frozenset(words.split()) for kind, words in _KNOWN.items()}
_SOURCES = ("server", "pool", "peer")
_NUMBERS = {"key": (1, 65_535), "minpoll": (0, 17), "maxpoll": (0, 17), "version": None, "bias": None, "mode": None}
_CLASSIC_OPTIONS = {"autokey": 0, "dynamic": 0, "preempt": 0, "xleave": 0, "ttl": 1}
_RESTRICT_IGNORED = {"nopeer", "notrap"}
_SHORTEST_POLL = 3


def lint_ntp(text: str) -> list[Problem]:
    """Lines that ntpd passes over, and those that it takes and that mean something else."""
    found: list[Problem] = []
    kod, limited = 0, False
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        found += _directive(number, words)
        if words[0] == "restrict":
            limited = limited or "limited" in words
            kod = kod or (number if "kod" in words and "limited" not in words else 0)
    if kod and not limited:
        what = "kod does nothing without limited: no client is ever told to ask less often"
        found.append(Problem(line=kod, rejected=False, what=what, do="write limited beside it"))
    return sorted(found, key=lambda problem: problem.line)


def _passed_over(line: int, what: str, do: str = "correct it, or take it out") -> Problem:
    return Problem(
        line=line, rejected=False, what=f"{what}: ntpd says so in its log and goes on without the line", do=do
    )


def _directive(number: int, words: list[str]) -> Iterator[Problem]:
    name = words[0]
    if name in _WORDS["classic"]:
        yield _passed_over(
            number, f"{name!r} is of the classic ntpd, ntpsec has none", "take it out, or run classic ntpd"
        )
    elif name not in _WORDS["directive"]:
        yield _passed_over(number, f"ntpd knows no {name!r}")
    elif name in _SOURCES:
        yield from _source(number, words)
    elif name == "restrict":
        yield from _restrict(number, words)
    elif name in ("tos", "tinker"):
        yield from _pairs(number, words, _WORDS[name])
    elif name in ("enable", "disable"):
        unknown = [word for word in words[1:] if word not in _WORDS["switch"]]
        if unknown or len(words) == 1:
            yield _passed_over(number, f"ntpd cannot {name} {' '.join(unknown) or 'nothing'}")


def _source(number: int, words: list[str]) -> Iterator[Problem]:
    name, *rest = words
    rest = [word for word in rest if word not in ("-4", "-6", "ipv4", "ipv6")]
    if not rest:
        yield _passed_over(number, f"{name!r} without an address", f"{name} ADDRESS")
        return
    if name == "peer":
        what = "ntpsec has no symmetric peers: it asks this one as a server, and is not asked back"
        yield Problem(line=number, rejected=False, what=what, do="write server, on both sides")
    polls: dict[str, int] = {}
    index = 1
    while index < len(rest):
        word = rest[index]
        value = rest[index + 1] if index + 1 < len(rest) else None
        if word in _WORDS["flag"]:
            index += 1
        elif word in _CLASSIC_OPTIONS:
            yield _passed_over(number, f"{word!r} is of the classic ntpd, ntpsec has none")
            index += 1 + _CLASSIC_OPTIONS[word]
        elif word in _WORDS["word"] or word in _NUMBERS:
            fault = _value_fault(word, value)
            if fault:
                yield _passed_over(number, fault)
            elif word.endswith("poll") and value is not None:
                polls[word] = int(value)
            index += 2
        else:
            yield _passed_over(number, f"a {name} has no option {word!r}")
            return
    yield from _polls(number, polls)


def _value_fault(word: str, value: str | None) -> str | None:
    if value is None:
        return f"{word} without a value"
    limits = _NUMBERS.get(word)
    if limits is None:
        return None
    if not value.isdigit() or not limits[0] <= int(value) <= limits[1]:
        return f"{word} {value}: expected {limits[0]} to {limits[1]}"
    return None


def _polls(number: int, polls: dict[str, int]) -> Iterator[Problem]:
    low, high = polls.get("minpoll", 6), polls.get("maxpoll", 10)
    if low > high:
        what = f"minpoll {low} is above maxpoll {high}: ntpd takes it, and asks at {2 ** min(low, high)} s"
        yield Problem(line=number, rejected=False, what=what, do="minpoll below maxpoll")
    elif polls.get("minpoll", _SHORTEST_POLL) < _SHORTEST_POLL:
        what = f"minpoll {low}: ntpd never asks more often than every {2**_SHORTEST_POLL} s"
        yield Problem(line=number, rejected=False, what=what, do=f"minpoll {_SHORTEST_POLL}, or chronyd")


def _restrict(number: int, words: list[str]) -> Iterator[Problem]:
    rest = [word for word in words[1:] if word not in ("-4", "-6", "ipv4", "ipv6")]
    if not rest:
        yield _passed_over(number, "'restrict' without an address", "restrict default ...")
        return
    flags = rest[3:] if len(rest) > 2 and rest[1] == "mask" else rest[1:]
    for flag in flags:
        if flag not in _WORDS["restrict"]:
            yield _passed_over(number, f"restrict has no flag {flag!r}")
            return
    ignored = [flag for flag in flags if flag in _RESTRICT_IGNORED]
    if ignored and ignored == flags:
        what = f"{' and '.join(ignored)}: ntpsec ignores it (there is nothing to turn away), so this line does nothing"
        yield Problem(line=number, rejected=False, what=what, do="noquery and nomodify keep strangers out")


def _pairs(number: int, words: list[str], known: frozenset[str]) -> Iterator[Problem]:
    """`name value` pairs; the first that is unknown takes the rest of the line with it."""
    for index in range(1, len(words), 2):
        word, value = words[index], words[index + 1] if index + 1 < len(words) else None
        if word not in known:
            yield _passed_over(number, f"{words[0]} has no {word!r}")
            return
        try:
            float(value or "")
        except ValueError:
            yield _passed_over(number, f"{words[0]} {word}: expected a number, found {value or 'nothing'}")
            return
