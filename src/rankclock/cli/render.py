"""`rankclock render`: the plan as configuration files, units and start order of every node."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankclock.cli.output import err, out, print_json
from rankclock.cli.plan_input import ClusterFile, FactsPlace, Json, MeasuredFile, ProtocolAsked, planned
from rankclock.errors import ExitCode, UserError

if TYPE_CHECKING:
    from rankclock.configs import RenderedNode
    from rankclock.node.parsers import ParserVerdict

__all__ = ["render"]

Out = Annotated[
    Path | None, typer.Option("--output", "-o", help="Folder to write; replaced whole if it is one of ours.")
]
Check = Annotated[bool, typer.Option("--check", help="Ask chronyd, ptp4l, phc2sys and systemd-analyze first.")]
Explain = Annotated[
    bool, typer.Option("--explain", help="Print every line with its reason and the releases that take it.")
]


def render(
    cluster_file: ClusterFile,
    *,
    output: Out = None,
    facts: FactsPlace = None,
    protocol: ProtocolAsked = None,
    measured: MeasuredFile = None,
    check: Check = False,
    explain: Explain = False,
    as_json: Json = False,
) -> int:
    """Write the files of every node (OUT/NODE/etc/...) and OUT/MANIFEST.json: all of them, or nothing.

    A plan that leaves nodes out or cannot reach the accuracy is not written (exit 1). With --check nothing is
    written unless every parser that could be asked takes its file.

    \b
    Example: rankclock render examples/qlora-ntp-4.yaml -o out/ --check
    """
    from rankclock.configs import explain as explain_node
    from rankclock.configs import render as render_all
    from rankclock.configs import write_rendered

    if output is None and not (check or explain):
        raise UserError("nothing to do: name a folder with -o, or ask for --check or --explain")
    cluster, known, plan = planned(cluster_file, facts, protocol, measured)
    if not plan.usable:
        for refusal in plan.refused:
            err().print(f"refused: {refusal.subject}: {refusal.reason}; {refusal.do}", markup=False)
        err().print("nothing was written", markup=False)
        return ExitCode.CHECK_FAILED
    nodes = render_all(plan, cluster, known)
    if explain:
        out().print("".join(explain_node(node) for node in nodes.values()), end="", markup=False)
    verdicts = _checked(nodes) if check else []
    bad = [verdict for verdict in verdicts if verdict.accepted is False]
    written = output is not None and not bad
    if output is not None and written:
        write_rendered(output, nodes, plan)
    _report(nodes, verdicts, output if written else None, as_json=as_json, quiet=explain)
    return ExitCode.CHECK_FAILED if bad else _unasked(verdicts)


def _checked(nodes: Mapping[str, RenderedNode]) -> list[ParserVerdict]:
    """Every different file and command once: nodes of one rack have the same bytes but for their name."""
    from rankclock.lab.daemons import find_daemon
    from rankclock.node.parsers import check_command, check_file

    seen: set[object] = set()
    verdicts = []
    with tempfile.TemporaryDirectory(prefix="rankclock-") as folder:
        for name, node in nodes.items():
            for path, text in node.files.items():
                key = (path, text.replace(name, "NODE"))
                if key in seen or path.endswith(".service.d/rankclock.conf"):
                    continue
                seen.add(key)
                copy = Path(folder) / f"{name}{path}"
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_text(text, encoding="utf-8")
                verdicts.append(check_file(copy, find_daemon))
            for service in node.services:
                if service.name == "phc2sys" and service.argv not in seen:
                    seen.add(service.argv)
                    verdicts.append(check_command(service.argv, find_daemon))
    return [_shown(verdict, folder) for verdict in verdicts]


def _shown(verdict: ParserVerdict, folder: str) -> ParserVerdict:
    from dataclasses import replace

    said = verdict.said.replace(f"{folder}/", "")
    return replace(verdict, what=verdict.what.removeprefix(f"{folder}/"), said=said)


def _unasked(verdicts: list[ParserVerdict]) -> ExitCode:
    """3 where a daemon that will read the files could not be asked; systemd-analyze and nft need not be there."""
    optional = ("", "nft", "systemd-analyze")
    missing = [item for item in verdicts if item.accepted is None and item.program not in optional]
    return ExitCode.HOST_LACKS if missing else ExitCode.OK


def _report(
    nodes: Mapping[str, RenderedNode],
    verdicts: list[ParserVerdict],
    written: Path | None,
    *,
    as_json: bool,
    quiet: bool,
) -> None:
    if as_json:
        print_json(_as_json(nodes, verdicts, written))
        return
    words = {True: "accepted", False: "REJECTED", None: "not asked"}
    for verdict in verdicts:
        said = f": {verdict.said}" if verdict.said else ""
        err().print(f"{verdict.program or 'check'}: {words[verdict.accepted]}: {verdict.what}{said}", markup=False)
    for assumed in sorted({item for node in nodes.values() for item in node.target.assumed}):
        err().print(f"{assumed} is assumed where no facts name the version", markup=False)
    if written is not None:
        files = sum(len(node.files) for node in nodes.values())
        out().print(f"{written}: {files} files of {len(nodes)} nodes, MANIFEST.json", markup=False)
    elif not quiet:
        out().print(f"{len(nodes)} nodes rendered, nothing written", markup=False)


def _as_json(nodes: Mapping[str, RenderedNode], verdicts: list[ParserVerdict], written: Path | None) -> dict[str, Any]:
    return {
        "schema": "rankclock-render/1",
        "written": str(written) if written else None,
        "nodes": {
            name: {
                "role": node.role.value,
                "files": {
                    path: [{"text": line.text, "why": line.why, "releases": line.versions} for line in lines]
                    for path, lines in node.lines.items()
                },
                "services": [service.name for service in node.services],
            }
            for name, node in nodes.items()
        },
        "checks": [
            {"what": item.what, "program": item.program, "accepted": item.accepted, "said": item.said}
            for item in verdicts
        ],
    }
