"""Reads the files that people write about their machines. Every fault is one line that says where and what to do.

The one module of this package that touches files. Takes cluster files, and lab scenarios for the cluster in them;
facts as the node probe writes them, one file or a folder of files.
"""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rankclock.cluster.expand import expand_nodes
from rankclock.cluster.facts import Facts
from rankclock.cluster.measured import MeasuredPath
from rankclock.cluster.model import Cluster
from rankclock.cluster.yaml_tree import MAX_BYTES, Tree, YamlError, parse_yaml
from rankclock.errors import DecodeError, UserError

__all__ = ["load_cluster", "load_facts", "load_measured", "parse_cluster", "read_text_file"]

CLUSTER_SCHEMA = "rankclock-cluster/1"
LAB_SCHEMA = "rankclock-lab/1"

_FACTS_MAX_BYTES = 256 * 1024 * 1024
"""Facts of one node are about 5 KB; a file may hold those of 10,000 nodes."""


def load_cluster(path: Path | str) -> Cluster:
    """Read a cluster file, or the cluster of a lab scenario. Raises UserError."""
    return parse_cluster(read_text_file(Path(path), "cluster file", MAX_BYTES), str(path))


def parse_cluster(text: str, name: str) -> Cluster:
    """The cluster that `text` describes; `name` is the file's name in messages. Raises UserError."""
    try:
        tree = parse_yaml(text)
    except YamlError as error:
        raise UserError(f"{name}:{error.line}: {error}") from None
    if not isinstance(tree.plain, dict):
        raise UserError(f"{name}:{tree.line}: a cluster file is a mapping that starts with 'schema: {CLUSTER_SCHEMA}'")
    schema = tree.plain.get("schema")
    if schema == LAB_SCHEMA:
        if not isinstance(tree.plain.get("cluster"), dict):
            raise UserError(f"{name}:{tree.line}: this lab scenario has no cluster: write one under 'cluster:'")
        tree = tree.parts["cluster"]
    elif schema != CLUSTER_SCHEMA:
        line = tree.line_of(("schema",))
        raise UserError(f"{name}:{line}: expected schema {CLUSTER_SCHEMA} or {LAB_SCHEMA}, found {_short(schema)}")
    try:
        return Cluster.model_validate(tree.plain)
    except ValidationError as error:
        raise UserError(_place(error, tree, name)) from None


def load_facts(path: Path | str) -> dict[str, Facts]:
    """Facts by node: from a file with one object, a list of them or one a line; or a folder of .json files.

    Raises UserError.
    """
    place = Path(path)
    if place.is_dir():
        files = sorted(place.glob("*.json"))
        if not files:
            raise UserError(
                f"{place}: no facts in this folder: expected one .json file a node (rankclock probe writes them)"
            )
    else:
        files = [place]
    found: dict[str, Facts] = {}
    for file in files:
        for facts in _facts_in(file):
            if facts.node in found:
                raise UserError(f"{file}: the facts of node {facts.node!r} are given twice: keep the newer ones")
            found[facts.node] = facts
    return found


def load_measured(path: Path | str) -> tuple[MeasuredPath, ...]:
    """The paths in what `rankclock preflight --json` or `verify --json` wrote. Raises UserError."""
    text = read_text_file(Path(path), "file of measured paths", _FACTS_MAX_BYTES)
    try:
        value = json.loads(text)
        paths = value.get("paths") if isinstance(value, dict) else None
        if not isinstance(paths, list):
            raise DecodeError("no paths in it: expected the output of rankclock preflight --json or verify --json")
        return tuple(MeasuredPath.from_json(one) for one in paths)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: {error}") from None


def read_text_file(path: Path, what: str, max_bytes: int) -> str:
    """The text of a file that a person named. Raises UserError with one line for whatever is wrong with it."""
    try:
        if path.is_dir():
            raise UserError(f"{path}: is a folder: expected a {what}")
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
        if len(data) > max_bytes:
            hint = "; write nodes as ranges such as gpu[001-032]" if what == "cluster file" else ""
            raise UserError(f"{path}: larger than {max_bytes} bytes, too large for a {what}{hint}")
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text at byte {error.start}: expected a {what}") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UserError(f"{path}: cannot read this {what}: {reason}") from None


def _facts_in(file: Path) -> list[Facts]:
    text = read_text_file(file, "facts file", _FACTS_MAX_BYTES)
    try:
        try:
            value = json.loads(text)
            values = value if isinstance(value, list) else [value]
        except json.JSONDecodeError as error:
            if not (error.msg == "Extra data" and text.lstrip().startswith("{")):
                raise
            values = [json.loads(line) for line in text.splitlines() if line.strip()]
        return [Facts.from_json(value) for value in values]
    except (json.JSONDecodeError, DecodeError, RecursionError) as error:
        raise UserError(f"{file}: no facts: {error}") from None


def _place(error: ValidationError, tree: Tree, name: str) -> str:
    """The first fault as one line: file:line: what, with the nearest known key where a key is unknown."""
    first = error.errors(include_url=False)[0]
    kind, context = first["type"], first.get("ctx") or {}
    path = (*first["loc"], *context.get("path", ()))
    # A range that cannot be expanded is placed by the file's entries already; all else is placed by the nodes.
    in_file = path if kind == "rankclock_entry" else _in_file(path, tree)
    at = f"{name}:{tree.line_of(in_file)}"
    if kind in ("rankclock", "rankclock_entry"):
        return f"{at}: {first['msg']}"
    if kind == "extra_forbidden":
        known = _keys_at(path[:-1])
        close = difflib.get_close_matches(str(path[-1]), known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"expected one of {', '.join(known)}"
        return f"{at}: unknown key {_short(path[-1])}: {hint}"
    if kind == "missing":
        return f"{at}: {_dotted(in_file)} is missing"
    said = _WORDS.get(kind, first["msg"].removeprefix("Value error, ").removeprefix("Input should be "))
    where, wanted = _dotted(_that_exist(in_file, tree)), said.removeprefix("expected ")
    return f"{at}: {where}: expected {wanted}, found {_short(first['input'])}"


_WORDS = {
    "string_pattern_mismatch": "a name of lower-case letters, digits, '-' and '.' (or a range of such names)",
    "ip_v4_interface": "an address with its prefix length, such as 10.80.1.11/24",
    "ip_v6_interface": "an address with its prefix length, such as 10.80.1.11/24",
}
"""What pydantic says of these would not help."""


def _that_exist(path: tuple[str | int, ...], tree: Tree) -> tuple[str | int, ...]:
    """The part of a path that the file has: pydantic adds steps of its own for alternatives of a type."""
    here, steps = tree, 0
    for step in path:
        if step not in here.parts:
            break
        here, steps = here.parts[step], steps + 1
    return path[:steps]


def _dotted(path: tuple[str | int, ...]) -> str:
    return ".".join(str(step) for step in path) or "the cluster"


def _in_file(path: tuple[str | int, ...], tree: Tree) -> tuple[str | int, ...]:
    """A path by node as a path by entry of the file: an entry with a range is many nodes."""
    if len(path) > 1 and path[0] == "nodes" and isinstance(path[1], int):
        entries = expand_nodes(tree.plain["nodes"])
        if path[1] < len(entries):
            return ("nodes", entries[path[1]][0], *path[2:])
    return path


def _keys_at(path: tuple[str | int, ...]) -> list[str]:
    """The keys that the schema knows at a place."""
    schema = Cluster.model_json_schema(by_alias=True)
    here: dict[str, Any] = schema
    for step in path:
        here = here.get("items", {}) if isinstance(step, int) else here.get("properties", {}).get(step, {})
        while "$ref" in here:
            here = schema["$defs"][here["$ref"].rpartition("/")[2]]
    return sorted(here.get("properties", {}))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
