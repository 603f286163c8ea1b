"""Every path that a rendered chrony.conf names is one that Debian's AppArmor profile lets chronyd open."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rankclock.cluster import load_cluster
from rankclock.configs import render
from rankclock.planning import make_plan

ROOT = Path(__file__).parents[2]
PROFILE = "etc/apparmor.d/usr.sbin.chronyd"
PATH = re.compile(r"(?<![\w.])/(?:etc|var|run|dev|usr)/[^\s:]+")
LINKS = ("/dev/ptp_ena", "/dev/ptp_kvm", "/dev/ptp_hyperv")
"""Links to /dev/ptpN: AppArmor sees the device behind them."""


def allowed() -> list[re.Pattern[str]]:
    """The profile's file rules as expressions. Skipped where no profile is there."""
    places = [folder / PROFILE for folder in (ROOT / ".daemons", Path("/"))]
    profile = next((place for place in places if place.is_file()), None)
    if profile is None:
        pytest.skip("Debian's chrony is not unpacked here (make setup)")
    rules = re.findall(r"^\s*(/\S+|@\{run\}\S+)\s+[rwmk]+,", profile.read_text(), re.MULTILINE)
    return [re.compile(as_expression(rule.replace("@{run}", "/run"))) for rule in rules]


def as_expression(glob: str) -> str:
    """AppArmor's globs: `*` within a name, `**` across folders, `{a,b}` one of them."""
    tokens = {"**": ".*", "*": "[^/]*", "{": "(?:", "}": ")", ",": "|"}
    parts = re.split(r"(\*\*|\*|\{|\}|,|\[0-9\])", glob)
    return "".join(tokens.get(part, part if part == "[0-9]" else re.escape(part)) for part in parts) + r"\Z"


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.stem)
def test_chronyd_may_open_all_that_its_file_names(example: Path) -> None:
    patterns = allowed()
    assert len(patterns) > 10
    cluster = load_cluster(example)
    seen = 0
    for node in render(make_plan(cluster), cluster).values():
        for path in PATH.findall(node.files.get("/etc/chrony/chrony.conf", "").partition("\n")[2]):
            seen += 1
            known = any(pattern.match(form) for pattern in patterns for form in (path, f"{path}/"))  # a folder's rule
            assert known or path in LINKS, (node.node, path)
    assert seen
    assert not any(pattern.match("/etc/ssl/private/server.key") for pattern in patterns)
