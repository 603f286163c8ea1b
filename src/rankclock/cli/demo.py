"""`rankclock demo`: the main job on this machine, from a scenario file to a report."""

from __future__ import annotations

import shutil
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankclock.cli.output import err, out, print_json
from rankclock.errors import ExitCode, UserError

if TYPE_CHECKING:
    from rankclock.report.record import RunRecord

__all__ = ["demo"]


def demo(
    scenario: Annotated[Path | None, typer.Argument(help="Lab scenario; by default the lab of two racks.")] = None,
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the report; replaced.")] = Path("out/demo"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole record as JSON.")] = False,
) -> int:
    """Build a small training cluster on this machine and run the main job on it, from a cluster file to a report.

    Real chronyd and ptp4l discipline clocks of known truth, in namespaces; this machine's own clock is not touched.
    Writes report.html, record.json and the rendered files. Exit 0 only where every check passed, 3 where
    this machine can hold no lab: what can run without one is run, and what was left out is said.

    \b
    Example: rankclock demo examples/lab.yaml -o out/demo
    """
    from rankclock.demo.main import demo_record
    from rankclock.report.html import write_html
    from rankclock.report.record import write_record

    signal.signal(signal.SIGTERM, _interrupt)
    console = err()
    output = output.absolute()
    work = _work_folder(output)
    try:
        record = demo_record(scenario, out=work, say=lambda line: console.print(line, markup=False))
        write_record(work / "record.json", record)
        write_html(work / "report.html", record)
        if output.exists():
            shutil.rmtree(output)
        work.rename(output)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if as_json:
        print_json(record.to_json())
    else:
        _show(record, output)
    if not all(check.passed for check in record.checks):
        return ExitCode.CHECK_FAILED
    return ExitCode.HOST_LACKS if record.left_out else ExitCode.OK


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _work_folder(output: Path) -> Path:
    """Beside the target, so that the result is renamed into place whole. Refuses to replace what is no demo's."""
    if output.exists() and not (output / "record.json").exists() and any(output.iterdir()):
        raise UserError(f"{output} holds other things than a demo's result: choose another folder with -o")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f".{output.name}-", dir=output.parent))
    except OSError as error:
        raise UserError(
            f"{output.parent}: cannot write there: {error.strerror}; choose another folder with -o"
        ) from error


def _show(record: RunRecord, output: Path) -> None:
    from rankclock.report import text

    tables = [text.status_table(plan, reference=record.reference) for plan in record.plans]
    tables += [text.matrix_table(matrix) for matrix in record.matrices]
    tables += [
        text.errors_table(record, title="Errors against the truth"),
        text.checks_table(record),
    ]
    takeover = text.takeover_table(record)
    shown = [*tables, *([takeover] if takeover else []), text.left_out_text(record), text.headline_text(record)]
    for part in shown:
        out().print(part)
    out().print(f"report: {output}/report.html", markup=False)
