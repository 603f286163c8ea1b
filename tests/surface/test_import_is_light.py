"""`import rankclock` sits in every training process: it must cost nothing."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("numpy", "scipy", "torch", "ansible", "pydantic", "typer", "rich", "plotly", "ruamel", "asyncio")


def test_importing_rankclock_imports_nothing_heavy() -> None:
    code = f"import sys, rankclock; print([name for name in {HEAVY!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.strip() == "[]"
