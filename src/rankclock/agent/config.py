"""The agent's configuration file: a YAML mapping, schema 'rankclock-agent/1'. Every fault is one line with its place.

Runs in a process of its own (`python -m rankclock.agent.config FILE` prints the settings as JSON): the reader of YAML
and the validator would cost the agent 17 MB for ever. Refuses unknown keys, a listener that others reach without TLS
and users, keys that others may read.
"""

from __future__ import annotations

import json
import os
import re
import socket
import stat
import sys
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from rankclock.agent.settings import DEFAULT_PORT, ClockClass, ProbeSettings, Settings
from rankclock.cluster.duration import parse_duration_ns
from rankclock.cluster.load import read_text_file
from rankclock.cluster.yaml_tree import Tree, YamlError, parse_yaml
from rankclock.errors import DecodeError, ExitCode, RankclockError, UserError
from rankclock.wire.probe import MIN_KEY_BYTES

__all__ = ["MAX_PEERS", "SCHEMA", "load_settings", "main", "parse_settings"]

SCHEMA = "rankclock-agent/1"
MAX_BYTES = 256 * 1024
MAX_PEERS = 64
"""Each peer is a label value of five series: more belong to other agents."""

_LONGER = {"m": 60, "h": 3600, "d": 86_400}
_LONG = re.compile(r"^([0-9]{1,6})\s?([mhd])$")


def _span_ns(value: Any) -> int:
    """A span as people write it; minutes, hours and days too."""
    long = _LONG.match(str(value))
    if long is not None:
        return int(long[1]) * _LONGER[long[2]] * 1_000_000_000
    try:
        return parse_duration_ns(str(value))
    except DecodeError as error:
        raise ValueError(str(error)) from None


def _address(value: Any, *, any_port: bool) -> tuple[str, int]:
    """(numeric address, port) of ADDRESS:PORT or [ADDRESS]:PORT."""
    match = re.fullmatch(r"\[([0-9A-Fa-f:.%a-z]+)\]:(\d{1,5})|([0-9.]+):(\d{1,5})", str(value))
    if match is None:
        raise ValueError(f"expected ADDRESS:PORT with a numeric address, found {str(value)[:60]!r}")
    host, port = match[1] or match[3], int(match[2] or match[4])
    ip_address(host.partition("%")[0])
    if not (0 if any_port else 1) <= port <= 65535:
        raise ValueError(f"a port is {0 if any_port else 1} to 65535, found {port}")
    return host, port


Span = Annotated[int, BeforeValidator(_span_ns)]
Listen = Annotated[tuple[str, int], BeforeValidator(lambda value: _address(value, any_port=True))]
Peer = Annotated[tuple[str, int], BeforeValidator(lambda value: _address(value, any_port=False))]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Tls(_Strict):
    certificate: str
    key: str


class _Probe(_Strict):
    bind: Listen = ("0.0.0.0", 4910)
    key_file: str
    peers: Annotated[dict[Name, Peer], Field(max_length=MAX_PEERS)] = {}
    reference: Name | None = None

    @model_validator(mode="after")
    def _reference_is_a_peer(self) -> _Probe:
        if self.reference is not None and self.reference not in self.peers:
            raise ValueError(f"the reference {self.reference!r} is not among the peers")
        return self


class _Limits(_Strict):
    cluster: Annotated[Span, Field(ge=1, le=10**12)] | None = None
    utc: Annotated[Span, Field(ge=1, le=10**12)] | None = None


class _File(_Strict):
    schema_: Annotated[Literal["rankclock-agent/1"], Field(alias="schema")]
    node: Name | None = None
    listen: Listen = ("127.0.0.1", DEFAULT_PORT)
    tls: _Tls | None = None
    users_file: str | None = None
    read_every: Annotated[Span, Field(ge=10**8, le=3600 * 10**9)] = 10 * 10**9
    clock_class: Annotated[ClockClass, Field(alias="class")] = ClockClass.AUTO
    limits: _Limits = _Limits()
    sources_wanted: Annotated[int, Field(ge=1, le=100)] = 3
    holdover_budget: Annotated[Span, Field(ge=10**9)] = 600 * 10**9
    maintenance_file: str = "/run/rankclock/maintenance"
    probe: _Probe | None = None

    @model_validator(mode="after")
    def _others_come_by_tls_and_password(self) -> _File:
        host = self.listen[0]
        if not ip_address(host.partition("%")[0]).is_loopback and (self.tls is None or self.users_file is None):
            raise ValueError(
                f"listen on {host} is reached from other machines: give tls and users_file, or listen on 127.0.0.1"
            )
        return self


def load_settings(path: Path) -> Settings:
    """The settings of a file, and of the files that it names. Raises UserError."""
    return parse_settings(read_text_file(path, "agent configuration", MAX_BYTES), str(path))


def parse_settings(text: str, name: str) -> Settings:
    """The settings that `text` describes; `name` is the file's name in messages. Raises UserError."""
    try:
        tree = parse_yaml(text)
    except YamlError as error:
        raise UserError(f"{name}:{error.line}: {error}") from None
    if not isinstance(tree.plain, dict):
        raise UserError(f"{name}:{tree.line}: an agent configuration is a mapping that starts with 'schema: {SCHEMA}'")
    try:
        file = _File.model_validate(tree.plain)
    except ValidationError as error:
        raise UserError(_place(error, tree, name)) from None
    return Settings(
        node=file.node or socket.gethostname(),
        listen_host=file.listen[0],
        listen_port=file.listen[1],
        tls_certificate=_readable(file.tls.certificate, tree, name, "tls", "certificate") if file.tls else "",
        tls_key=_secret_path(file.tls.key, tree, name, "tls", "key") if file.tls else "",
        users_file=_secret_path(file.users_file, tree, name, "users_file") if file.users_file else "",
        read_every_ns=file.read_every,
        clock_class=file.clock_class,
        cluster_limit_ns=file.limits.cluster,
        utc_limit_ns=file.limits.utc,
        sources_wanted=file.sources_wanted,
        holdover_budget_ns=file.holdover_budget,
        maintenance_file=file.maintenance_file,
        probe=_probe(file.probe, tree, name) if file.probe else None,
    )


def _probe(probe: _Probe, tree: Tree, name: str) -> ProbeSettings:
    path = _secret_path(probe.key_file, tree, name, "probe", "key_file")
    key = Path(path).read_bytes().strip()
    if len(key) < MIN_KEY_BYTES:
        line = tree.line_of(("probe", "key_file"))
        raise UserError(
            f"{name}:{line}: probe.key_file: the key in {path} has {len(key)} bytes, {MIN_KEY_BYTES} or more are needed"
        )
    host, port = probe.bind
    bind = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return ProbeSettings(bind=bind, key_hex=key.hex(), peers=dict(probe.peers), reference=probe.reference or "")


def _readable(path: str, tree: Tree, name: str, *place: str) -> str:
    try:
        with Path(path).open("rb"):
            return path
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UserError(f"{name}:{tree.line_of(place)}: {'.'.join(place)}: cannot read {path}: {reason}") from None


def _secret_path(path: str, tree: Tree, name: str, *place: str) -> str:
    """A file that others may not read."""
    _readable(path, tree, name, *place)
    mode = stat.S_IMODE(os.stat(path).st_mode)  # noqa: PTH116 (a plain path, kept as it was written)
    if mode & 0o007:
        raise UserError(
            f"{name}:{tree.line_of(place)}: {'.'.join(place)}: everybody may use {path} (mode {mode:03o}): chmod 640"
        )
    return path


def _place(error: ValidationError, tree: Tree, name: str) -> str:
    """One line: file, line, key, what is wrong with it."""
    first = error.errors(include_url=False)[0]
    path = tuple(part for part in first["loc"] if not (isinstance(part, str) and part.startswith("function-")))
    where = ".".join(str(part) for part in path)
    if first["type"] == "extra_forbidden":
        known = ", ".join(field.alias or key for key, field in _File.model_fields.items()) if len(path) == 1 else ""
        said = f"unknown key{f'; expected one of {known}' if known else ''}"
    else:
        said = first["msg"].removeprefix("Value error, ")
        if isinstance(first["input"], str | int | float) and repr(first["input"]) not in said:
            said += f", found {str(first['input'])[:60]!r}"
    return f"{name}:{tree.line_of(path)}: {f'{where}: ' if where else ''}{said}"


def main(arguments: list[str] | None = None) -> int:
    """Print the settings of the file as JSON; one line on stderr and exit code 2 where it is wrong."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        if len(given) != 1:
            raise UserError("usage: python -m rankclock.agent.config FILE")
        sys.stdout.write(json.dumps(load_settings(Path(given[0])).to_json()) + "\n")
    except RankclockError as error:
        sys.stderr.write(f"{error}\n")
        return int(error.exit_code)
    return int(ExitCode.OK)


if __name__ == "__main__":
    sys.exit(main())
