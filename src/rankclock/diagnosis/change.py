"""From findings to exact changes: lines of a configuration file to replace, or a command to run.

Proposes only what a finding makes certain; what needs a person's choice stays a sentence of the finding. Applying is
for others: nothing is written here.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass

from rankclock.diagnosis.evidence import Evidence, Item
from rankclock.diagnosis.finding import Finding
from rankclock.diagnosis.verdict import Answer
from rankclock.wire.text.config_text import Directive
from rankclock.wire.text.number import as_int

__all__ = ["Edit", "Proposal", "edited", "propose", "unified_diff"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """One line of a file; line 0: new text at its end. new: None takes the line out. why: the finding's id."""

    source: str
    line: int
    new: str | None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What would mend the findings: edits of the files that were given, and commands to run by hand."""

    edits: tuple[Edit, ...]
    commands: tuple[tuple[str, str], ...]


def propose(answer: Answer, evidence: Evidence) -> Proposal:
    """Changes for the findings of an answer."""
    edits: dict[tuple[str, int, str | None], Edit] = {}
    commands: dict[str, str] = {}
    for finding in answer.findings:
        for edit in _edits(finding, evidence):
            edits.setdefault((edit.source, edit.line, edit.new if not edit.line else None), edit)
        for command in _commands(finding):
            commands.setdefault(command, finding.id)
    return Proposal(edits=tuple(edits.values()), commands=tuple((why, text) for text, why in commands.items()))


def _line(item: Item[Directive], new: str | None, why: str) -> Edit:
    return Edit(source=item.source, line=item.first, new=new, why=why)


def _edits(finding: Finding, evidence: Evidence) -> Iterator[Edit]:  # noqa: PLR0912  (one branch a finding)
    why = finding.id
    local = [d for d in evidence.directives("ntp", "server", "fudge") if d.value.arguments[0].startswith("127.127.1.")]
    match why:
        case "LEAP_TABLE_WITH_SMEAR":
            for item in evidence.directives("chrony", "leapsectz", "leapseclist"):
                yield _line(item, None, why)
        case "SMEAR_MIX":
            plain = set(finding.draft.values.get("non_smearing", ()))
            for item in evidence.directives("chrony", "server", "pool", "peer"):
                if item.value.arguments[0] in plain:
                    yield _line(item, None, why)
        case "LOCAL_DRIVER_IN_CHRONY" | "NTP_CONF_WEAK":
            for item in local:
                yield _line(item, None, why)
            for item in evidence.directives("ntp", "disable"):
                if why == "NTP_CONF_WEAK" and item.value.arguments == ("auth",):
                    yield _line(item, None, why)
        case "RTCSYNC_MISSING":
            own = [d for d in evidence.directives("chrony") if d.value.dialects == frozenset({"chrony"})]
            if own:
                yield Edit(source=own[0].source, line=0, new="rtcsync", why=why)
        case "PTP4L_CONF":
            yield from _ptp4l(evidence, why)
        case "TX_TIMESTAMP_MISSING":
            yield from _timeout(evidence, why)


def _ptp4l(evidence: Evidence, why: str) -> Iterator[Edit]:
    def last(name: str, value: str) -> Item[Directive] | None:
        found = evidence.directives("ptp", name)
        return found[-1] if found and found[-1].value.arguments[0] == value else None

    masters = [d for d in evidence.directives("ptp", "masterOnly", "serverOnly") if d.value.arguments[0] == "1"]
    if last("time_stamping", "software") and (jbod := last("boundary_clock_jbod", "1")):
        yield _line(jbod, "boundary_clock_jbod 0", why)
    for name in ("slaveOnly", "clientOnly"):
        if masters and (client := last(name, "1")):
            yield _line(client, f"{name} 0", why)
    if free := last("free_running", "1"):
        yield _line(free, "free_running 0", why)
    if claimed := last("clockClass", "6"):
        yield _line(claimed, "clockClass 248", why)


def _timeout(evidence: Evidence, why: str) -> Iterator[Edit]:
    """A short timeout becomes 50 ms; one that was long already gets the older protocol version beside it."""
    for item in evidence.directives("ptp", "tx_timestamp_timeout"):
        value = item.value.arguments[0]
        if (as_int(value) or 50) < 50:
            yield _line(item, "tx_timestamp_timeout 50", why)
        else:
            yield _line(item, f"tx_timestamp_timeout {value}\nptp_minor_version 0", why)
        return


def _commands(finding: Finding) -> Iterator[str]:
    values = finding.draft.values
    active = [str(name) for name in values.get("active", ())]
    if finding.id == "TWO_CONTROLLERS" and "systemd-timesyncd" in active:
        yield "systemctl disable --now systemd-timesyncd && systemctl mask systemd-timesyncd"
    elif finding.id == "TWO_CONTROLLERS" and {"chrony", "phc2sys"} <= set(active):
        yield "systemctl disable --now chronyd chrony   # where phc2sys is to own the system clock"
    elif finding.id == "PHC2SYS_SIGN":
        yield f"phc2sys ... -O {values.get('expected_offset_s')}   # instead of -O {values.get('given_offset_s')}"


def edited(text: str, edits: list[Edit]) -> str:
    """The text of a file after its edits. Lines that are not touched stay as they are, line ends too."""
    lines = text.splitlines(keepends=True)
    end = "\r\n" if lines and lines[0].endswith("\r\n") else "\n"
    for edit in edits:
        if not 0 < edit.line <= len(lines):
            continue
        new = "" if edit.new is None else edit.new.replace("\n", end) + end
        lines[edit.line - 1] = new
    if lines and lines[-1] and not lines[-1].endswith("\n") and any(edit.line == 0 for edit in edits):
        lines[-1] += end
    lines += [f"{edit.new}{end}" for edit in edits if edit.line == 0 and edit.new is not None]
    return "".join(lines)


def unified_diff(name: str, before: str, after: str) -> str:
    """A diff that `patch` takes."""
    rows = difflib.unified_diff(before.splitlines(), after.splitlines(), f"{name}.before", name, lineterm="")
    return "\n".join(rows)
