"""`rankclock doctor`.

From pasted output, logs, facts, or this node itself, to the cause, the evidence and the next command.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankclock.cli.output import out, print_json
from rankclock.errors import ExitCode, UserError

if TYPE_CHECKING:
    from rankclock.diagnosis.evidence import Span
    from rankclock.diagnosis.finding import Finding
    from rankclock.diagnosis.verdict import Answer

__all__ = ["doctor"]

CHUNK = 1 << 20
SHOWN = 12
"""Unrecognised lines that the text answer shows; --json has more."""

WORDS = {
    "fault": "fault",
    "risk": "risk: nothing has failed yet",
    "degraded": "degraded",
    "healthy": "healthy, as far as this tells",
    "not-a-clock-fault": "no clock fault here",
    "cannot-tell": "cannot be told from this",
}


def doctor(
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILE|-]...", help="Text to read; - is standard input. None: examine this node."),
    ] = None,
    *,
    cluster: Annotated[
        Path | None,
        typer.Option("--cluster", help="Examine the nodes of this cluster file, by ssh; with FILEs beside."),
    ] = None,
    lab: Annotated[str | None, typer.Option("--lab", help="Examine the nodes of this running lab.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
    rules: Annotated[bool, typer.Option("--rules", help="List the rules and exit.")] = False,
    bundle: Annotated[
        Path | None,
        typer.Option("--bundle", help="Also pack the evidence, names and addresses replaced, into this .zip."),
    ] = None,
    fix: Annotated[bool, typer.Option("--fix", help="Also print the exact change: a diff, or a command.")] = False,
    apply: Annotated[
        bool, typer.Option("--apply", help="With --fix: change the files; the old ones are kept.")
    ] = False,
) -> int:
    """Find what is wrong with clocks in whatever you have: output of chronyc, ntpq, timedatectl, ptp4l, phc2sys, pmc,
    ethtool -T, logs, configurations, error messages, clock records of a job, mixed as they are; in this node, without
    an argument; or in all nodes of a cluster.

    Exit code: 0 healthy or no clock fault, 1 fault, risk or degraded, 4 cannot tell.

    Example: chronyc tracking | rankclock doctor -
    """
    if rules:
        return _print_rules(as_json)
    from rankclock.diagnosis.scan import read_sources
    from rankclock.diagnosis.verdict import diagnose

    if apply and not fix:
        raise UserError("--apply goes with --fix: rankclock doctor FILE --fix prints the change first")
    sources: list[tuple[str, Iterable[bytes]]] = [(name, _chunks(name)) for name in files or []]
    if cluster is not None or lab is not None:
        sources += _nodes(cluster, lab)
    elif not files:
        sources += _this_node()
    evidence = read_sources(sources)
    answer = diagnose(evidence)
    if bundle is not None:
        from rankclock.cli.doctor_bundle import write_bundle

        write_bundle(bundle, evidence, answer)
    if as_json:
        print_json(answer.to_json())
    else:
        _print_answer(answer)
    if fix:
        from rankclock.cli.doctor_fix import fix_files

        fix_files(answer, evidence, apply=apply)
    return int(answer.exit_code)


def _chunks(name: str) -> Iterator[bytes]:
    """The bytes of a file or of standard input. Raises UserError where there are none to be had."""
    if name == "-":
        yield from iter(lambda: sys.stdin.buffer.read(CHUNK), b"")
        return
    try:
        with Path(name).open("rb") as stream:
            yield from iter(lambda: stream.read(CHUNK), b"")
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise UserError(f"cannot read {name!r}: {why}; give text files, or - for standard input") from None


def _this_node() -> list[tuple[str, list[bytes]]]:
    """What this machine shows without root: its facts, the state of its clock, and what its time tools print."""
    from rankclock.node.facts import collect_facts
    from rankclock.node.state import read_clock_state
    from rankclock.node.tool_output import read_tools

    found = [("facts of this node", collect_facts()), ("clock of this node", read_clock_state().to_json())]
    own = [(name, [json.dumps(value).encode()]) for name, value in found]
    return own + [(name, [output]) for name, output in read_tools()]


def _nodes(cluster_file: Path | None, lab_name: str | None) -> list[tuple[str, list[bytes]]]:
    """Facts and clock state of every node. Those of a node out of reach say so themselves."""
    from rankclock.cli.reach import transports_of
    from rankclock.fleet.collect import collect_facts, collect_states

    transports = transports_of(cluster_file, lab_name)
    facts, states = collect_facts(transports), collect_states(transports)
    found = [(f"facts of {node}", json.dumps(value)) for node, value in facts.items()]
    found += [(f"clock of {node}", json.dumps(state.to_json())) for node, state in states.items()]
    return [(name, [text.encode()]) for name, text in found]


def _print_rules(as_json: bool) -> int:
    from rankclock.diagnosis.reference import rules_as_json, rules_as_text

    if as_json:
        print_json(rules_as_json())
    else:
        out().print(rules_as_text(), markup=False)
    return int(ExitCode.OK)


def _print_answer(answer: Answer) -> None:
    console = out()
    console.print(f"{WORDS[answer.verdict.value]}", style="bold", markup=False)
    for finding in answer.findings:
        console.print()
        for line in _finding_lines(finding):
            console.print(line, markup=False)
    console.print()
    console.print("Read:", markup=False)
    for span in answer.recognised:
        console.print(f"  {_where(span)}: {span.kind}" + (f" ({span.count})" if span.count > 1 else ""), markup=False)
    if not answer.recognised:
        console.print("  nothing that is known", markup=False)
    if answer.unrecognised_count:
        console.print(f"Not recognised ({answer.unrecognised_count}):", markup=False)
        for quote in answer.unrecognised[:SHOWN]:
            console.print(f"  {quote.line}: {quote.text[:100]}", markup=False)
    if answer.skipped:
        console.print(f"Passed over: {answer.skipped} lines that say nothing about clocks", markup=False)


def _where(span: Span) -> str:
    """'lines 3 to 9 of FILE'; the name alone for evidence that is no text."""
    lines = f"line {span.first}" if span.first == span.last else f"lines {span.first} to {span.last}"
    if not span.last:
        return span.source
    return lines if span.source == "-" else f"{lines} of {span.source}"


def _finding_lines(finding: Finding) -> Iterator[str]:
    draft = finding.draft
    yield f"{finding.rule.title} [{finding.id}] - {finding.severity.value}, confidence {draft.confidence:.2f}"
    yield f"  {draft.cause}"
    for quote in draft.evidence:
        where = f"{quote.source}:{quote.line}" if quote.source != "-" else f"line {quote.line}"
        yield f"  | {where}: {quote.text.strip()[:160]}" if quote.line else f"  | {quote.source}"
    numbers = [f"{name} = {value}" for name, value in draft.values.items() if value is not None]
    if numbers:
        yield f"  values:  {'; '.join(numbers)}"
    for command in draft.next:
        yield f"  next:    {command}"
    if draft.confirm:
        yield f"  confirm: {draft.confirm}"
    if finding.rule.reference:
        yield f"  see:     {finding.rule.reference}"
