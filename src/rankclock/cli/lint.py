"""`rankclock lint`: what is wrong with configuration files, with file and line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankclock.cli.output import err, out, print_json
from rankclock.errors import ExitCode, UserError

if TYPE_CHECKING:
    from rankclock.configs.problem import Problem

__all__ = ["lint"]

MAX_BYTES = 4 << 20
MAX_FILES = 20_000
TIME_DAEMONS = re.compile(r"\b(ptp4l|phc2sys|ts2phc|timemaster|chronyd?|gpsd|ntpd)\b")


ABOUT = {"NTP_CONF_WEAK": "ntp", "LOCAL_DRIVER_IN_CHRONY": "chrony", "PTP4L_CONF": "ptp4l"}
"""Rules on one dialect: a pasted line may be of two, a file is of one."""

SAID_WITH_ITS_PLACE = ("DOMAINS_DIFFER",)
"""Rules on pasted text that the comparison of one machine's files knows better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One line of the answer. line: 0 where the whole file is meant. says: who says it: a table, the daemon, a rule."""

    path: str
    line: int
    severity: str
    what: str
    do: str
    says: str

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {
            "file": self.path, "line": self.line, "severity": self.severity, "what": self.what, "do": self.do,
            "says": self.says,
        }  # fmt: skip


def lint(
    files: Annotated[
        list[Path], typer.Argument(help="Configurations, units, scripts, or a folder with an etc/; judged together.")
    ],
    *,
    chrony: Annotated[
        str | None,
        typer.Option("--chrony", help="Release of chronyd that will read them; the installed one, else 4.3."),
    ] = None,
    linuxptp: Annotated[
        str | None, typer.Option("--linuxptp", help="Release of ptp4l; the installed one, else 3.1.1.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Say what is wrong with configuration files: what that release rejects, and what it accepts though it is wrong.

    Reads chrony.conf, ntp.conf, timesyncd.conf, ptp4l.conf, ts2phc.conf, timemaster.conf, gpsd's defaults, and the
    command lines of ptp4l, phc2sys and ts2phc in units and scripts. The daemons that are installed here are asked too,
    where they are of that release. What a chrony.conf includes is read too. Files of one machine (what stands before
    /etc, /usr, /lib or /run in their paths; else one folder) are searched for a second owner of the system clock and
    for daemons that miss each other (domain, socket, segment). A folder stands for all that is known below its etc/.
    Exit 0 where nothing is found, 1 where something is, 4 where a file is of no kind that is known here.

    Example: rankclock lint /etc/chrony/chrony.conf /etc/systemd/system/phc2sys.service --linuxptp 4.2
    """
    releases = _releases(chrony, linuxptp)
    files = [one for given in files for one in _files_of(given)]
    found = list(_with_included(files))
    texts, kinds = {path: text for path, text, _ in found}, {path: kind for path, _, kind in found}
    marks = [mark for path, text in texts.items() for mark in _by_tables(path, text, kinds[path], releases)]
    marks += [mark for path in files for mark in _by_daemon(path, kinds[str(path)], releases)]
    marks += _across_files(texts, kinds)
    marks += [mark for mark in _by_rules(texts) if kinds[mark.path] in (None, ABOUT.get(mark.says, kinds[mark.path]))]
    if any(mark.says == "across files" for mark in marks):
        marks = [mark for mark in marks if mark.says not in SAID_WITH_ITS_PLACE]
    marks = sorted(dict.fromkeys(marks), key=lambda mark: (mark.path, mark.line, mark.says))
    unknown = [path for path, kind in kinds.items() if kind is None]
    if as_json:
        print_json(
            {
                "schema": "rankclock-lint/1",
                "marks": [mark.to_json() for mark in marks],
                "kinds": kinds,
                "unknown": unknown,
            }
        )
    else:
        for mark in marks:
            where = f"{mark.path}:{mark.line}" if mark.line else mark.path
            out().print(f"{where}: {mark.severity}: {mark.what}; {mark.do} [{mark.says}]", markup=False)
        for path in unknown:
            err().print(f"{path}: of no kind that is known here (see rankclock lint --help)", markup=False)
        if not marks and not unknown:
            out().print(f"nothing found in {len(texts)} files", markup=False)
    return ExitCode.CHECK_FAILED if marks else ExitCode.CANNOT_TELL if unknown else ExitCode.OK


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A daemon's release that files are judged by. here: whether that one is installed on this machine."""

    daemon: str
    version: tuple[int, ...]
    here: bool


def _releases(chrony: str | None, linuxptp: str | None) -> dict[str, Release]:
    """By dialect. Raises UserError."""
    from rankclock.configs.options import parse_version
    from rankclock.lab.daemons import find_daemon
    from rankclock.node.parsers import installed_release

    found = {}
    for dialect, daemon, option, given, usual in (
        ("chrony", "chronyd", "--chrony", chrony, "4.3"),
        ("ptp4l", "ptp4l", "--linuxptp", linuxptp, "3.1.1"),
    ):
        installed = installed_release(daemon, find_daemon)
        try:
            version = parse_version(given or installed or usual)
        except ValueError:
            raise UserError(f"{option} {given}: expected a release such as {usual}") from None
        here = installed is not None and parse_version(installed) == version
        found[dialect] = Release(daemon=daemon, version=version, here=here)
    return found


PLACES = (
    "chrony/chrony.conf", "chrony/conf.d/*.conf", "chrony/sources.d/*.sources", "chrony.conf", "ntp.conf",
    "ntpsec/ntp.conf", "linuxptp/*.conf", "ptp4l*.conf", "default/gpsd", "systemd/timesyncd.conf",
    "systemd/timesyncd.conf.d/*.conf", "systemd/system/*.service", "systemd/system/*.service.d/*.conf",
)  # fmt: skip
"""Below an /etc. Of units only those that start a time daemon count."""


def _files_of(given: Path) -> list[Path]:
    """The file itself; of a folder (an /etc, or what has one: a machine's root, a rendered node, many of them) all that
    is known of time. Raises UserError where there is nothing.
    """
    if not given.is_dir():
        return [given]
    trees = [given] if given.name == "etc" else sorted([given / "etc", *given.glob("*/etc")])
    found = [path for tree in trees for place in PLACES for path in sorted(tree.glob(place)) if path.is_file()]
    known = [path for path in found if "systemd/system" not in str(path) or TIME_DAEMONS.search(_text(path))]
    if not known:
        raise UserError(f"{given}: no configuration of a time daemon below its etc/: name an /etc, or files")
    return known


def _with_included(files: list[Path]) -> Iterator[tuple[str, str, str | None]]:
    """(path, text, dialect) of the files, and of what chrony.conf files among them include."""
    from rankclock.configs.lint import dialect_of, included

    waiting: list[tuple[Path, str | None]] = [(path, None) for path in files]
    seen: set[Path] = set()
    while waiting:
        path, within = waiting.pop(0)
        if path in seen:
            continue
        seen.add(path)
        if len(seen) > MAX_FILES:
            raise UserError(f"{path}: more than {MAX_FILES} files are included: is there a circle of includes?")
        text = _text(path)
        dialect = within or dialect_of(str(path), text)
        yield str(path), text, dialect
        if dialect == "chrony":
            for _, how, place in included(text):
                waiting += [(one, "chrony") for one in _found(how, place)]


def _found(how: str, place: str) -> list[Path]:
    if how == "include":
        target = Path(place)
        return sorted(target.parent.glob(target.name)) if target.parent.is_dir() else []
    pattern = "*.conf" if how == "confdir" else "*.sources"
    return sorted(Path(place).glob(pattern)) if Path(place).is_dir() else []


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UserError(f"{path}: {path.stat().st_size} bytes: a configuration has at most {MAX_BYTES}")
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UserError(f"{path}: {(error.strerror or str(error)).lower()}") from None


def _by_tables(path: str, text: str, kind: str | None, releases: dict[str, Release]) -> Iterator[Mark]:
    from rankclock.configs.lint import lint_chrony, lint_ptp4l
    from rankclock.configs.lint_commands import lint_commands
    from rankclock.configs.lint_gpsd import lint_gpsd
    from rankclock.configs.lint_ntp import lint_ntp
    from rankclock.configs.lint_timemaster import lint_timemaster
    from rankclock.configs.lint_timesyncd import lint_timesyncd

    chrony, linuxptp = releases["chrony"].version, releases["ptp4l"].version
    ways: dict[str, Callable[[], list[Problem]]] = {
        "chrony": lambda: lint_chrony(text, chrony),
        "ptp4l": lambda: lint_ptp4l(text, linuxptp),
        "ts2phc": lambda: lint_ptp4l(text, linuxptp),  # linuxptp's programs share one table of settings
        "timemaster": lambda: lint_timemaster(text, linuxptp, chrony),
        "commands": lambda: lint_commands(text, linuxptp),
        "gpsd": lambda: lint_gpsd(text),
        "ntp": lambda: lint_ntp(text),
        "timesyncd": lambda: lint_timesyncd(text),
    }
    for one in ways[kind]() if kind in ways else ():
        severity = "rejected" if one.rejected else "warning"
        yield Mark(path=path, line=one.line, severity=severity, what=one.what, do=one.do, says="options")


def _across_files(texts: dict[str, str], kinds: dict[str, str | None]) -> Iterator[Mark]:
    """Files of one machine that do not fit, and by which more than one program steers the system clock."""
    from rankclock.configs.across import contradictions
    from rankclock.configs.owners import ConfigFile, conflicts

    files = [ConfigFile(path=path, text=text, dialect=kinds[path] or "") for path, text in texts.items()]
    for several in conflicts(files):
        for owner in several:
            others = " and ".join(f"{one.program} ({one.path}:{one.line})" for one in several if one is not owner)
            what = f"{owner.program} steers the system clock ({owner.how}), and so does {others}: both, if both run"
            do = "let exactly one own CLOCK_REALTIME; disable and mask the others"
            yield Mark(path=owner.path, line=owner.line, severity="risk", what=what, do=do, says="owners")
    for one in contradictions(files):
        yield Mark(path=one.path, line=one.line, severity="fault", what=one.what, do=one.do, says="across files")


def _by_daemon(path: Path, kind: str | None, releases: dict[str, Release]) -> Iterator[Mark]:
    """What the installed daemon says: it is the authority on its own release."""
    from rankclock.lab.daemons import find_daemon
    from rankclock.node.parsers import check_file

    release = releases.get("ptp4l" if kind == "timemaster" else kind or "")
    if release is None or not release.here:
        return
    verdict = check_file(path, find_daemon, dialect=kind)
    if verdict.accepted is False:
        found = re.search(r"line (\d+)", verdict.said)
        line = 0 if found is None else int(found[1])
        yield Mark(
            path=str(path),
            line=line,
            severity="rejected",
            what=re.sub(r"^\S+Z Fatal error : ", "", verdict.said),
            do="correct it",
            says=verdict.program,
        )


def _by_rules(texts: dict[str, str]) -> Iterator[Mark]:
    """What daemons accept though it is wrong: the doctor's rules, on all files together."""
    from rankclock.diagnosis.finding import Severity
    from rankclock.diagnosis.scan import read_sources
    from rankclock.diagnosis.verdict import diagnose

    answer = diagnose(read_sources([(path, [text.encode()]) for path, text in texts.items()]))
    for finding in answer.findings:
        if finding.severity not in (Severity.FAULT, Severity.RISK, Severity.DEGRADED):
            continue
        quote = finding.draft.evidence[0] if finding.draft.evidence else None
        yield Mark(
            path=quote.source if quote else next(iter(texts)),
            line=quote.line if quote else 0,
            severity=finding.severity.value,
            what=finding.draft.cause.rstrip("."),
            do=finding.draft.next[0] if finding.draft.next else "see rankclock doctor",
            says=finding.id,
        )
