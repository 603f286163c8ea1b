"""Whatever stands in a cluster file: it is refused in one line, or no rendered file, unit or command holds it."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rankclock.cluster import parse_cluster
from rankclock.cluster.yaml_tree import parse_yaml
from rankclock.configs import render
from rankclock.errors import UserError
from rankclock.planning import make_plan

EXAMPLES = Path(__file__).parents[2] / "examples"
MARK = "zqxj"
NASTY = (
    f"a\nserver {MARK}.example",
    f"$({MARK})",
    f"`{MARK}`",
    f"x; {MARK}",
    f"/dev/../../{MARK} #",
    f"[{MARK}]",
    f'{MARK}"\n[Service]\nExecStart=/bin/{MARK}',
    f"\x00{MARK}",
    f"{MARK}\u2028allow all",
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where a cluster file holds text, and the keys themselves."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))
    if isinstance(value, str):
        yield path


def changed(tree: dict[str, Any], path: tuple[Any, ...], text: str) -> dict[str, Any]:
    new = copy.deepcopy(tree)
    here: Any = new
    for step in path[:-1]:
        here = here[step]
    here[path[-1]] = text
    return new


@pytest.mark.parametrize("example", ["airgapped-8", "lantime-128", "aws-16"])
def test_no_text_of_a_cluster_file_gets_into_a_file_or_a_command_by_itself(example: str) -> None:
    tree = parse_yaml((EXAMPLES / f"{example}.yaml").read_text()).plain
    found = list(places(tree))
    assert len(found) > 10
    refused = 0
    for path in found:
        for nasty in NASTY:
            try:
                cluster = parse_cluster(json.dumps(changed(tree, path, nasty)), "c.yaml")
            except UserError as error:
                refused += 1
                assert "\n" not in str(error), (path, nasty)
                assert str(error).startswith("c.yaml:"), (path, nasty)
                continue
            plan = make_plan(cluster)
            nodes = render(plan, cluster) if plan.usable else {}
            for node in nodes.values():
                written = [*node.files.values(), *(word for service in node.services for word in service.argv)]
                assert not any(MARK in text for text in written), (path, nasty)
    assert refused >= len(found) * (len(NASTY) - 1), "nearly everything is refused at the door"
