"""The page in a real browser: every picture is drawn, nothing fails, nothing is fetched."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from rankclock.report.html import write_html
from rankclock.report.record import RunRecord

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--virtual-time-budget=8000",
    "--enable-logging=stderr",
    "--v=0",
)


@pytest.mark.slow
def test_a_browser_draws_every_picture_without_an_error(run: RunRecord, tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium on PATH: apt-get install chromium")
    write_html(tmp_path / "report.html", run)
    done = subprocess.run(
        [browser, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", f"file://{tmp_path}/report.html"],
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    drawn = re.findall(r'<svg class="main-svg"', done.stdout)
    pictures = 2 * len(run.series)  # over the whole run, and around the takeover
    assert done.stdout.count('class="panel"') == pictures
    assert len(drawn) >= pictures
    assert re.findall(r"CONSOLE.*(?:Error|Refused)", done.stderr) == []
