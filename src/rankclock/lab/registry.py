"""Labs that outlive the command that started them: where they are kept, found, and cleaned up after.

A folder each (mode 0700) in $XDG_RUNTIME_DIR/rankclock-labs, or /tmp/rankclock-UID/labs: the control socket, the
scenario, logs. The lab's outer process removes it at the end; what a killed one left is removed by the next look.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankclock.errors import HostError, UserError
from rankclock.lab.channel import Channel

__all__ = ["Kept", "connect", "kept_labs", "make_folder", "one_of", "save_state", "tidy"]

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}")
"""Short, because the whole path of a unix socket has at most 107 bytes."""

STATE_SCHEMA = "rankclock-lab-state/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A lab in the background."""

    name: str
    folder: Path
    state: dict[str, Any]


def _root() -> Path:
    base = os.environ.get("XDG_RUNTIME_DIR")
    root = Path(base) / "rankclock-labs" if base else Path(tempfile.gettempdir()) / f"rankclock-{os.getuid()}" / "labs"
    try:
        for folder in (root,) if base else (root.parent, root):
            folder.mkdir(mode=0o700, exist_ok=True)
            info = folder.stat()
            if info.st_uid != os.getuid() or stat.S_IMODE(info.st_mode) & 0o077:
                raise HostError(
                    f"{folder} is not a private folder of yours (mode 0700): remove it, or set XDG_RUNTIME_DIR"
                )
    except OSError as error:
        raise HostError(f"{root}: {error.strerror}: labs in the background need a folder to be found in") from error
    return root


def make_folder(name: str) -> tuple[Path, socket.socket]:
    """The folder of a new lab, and its listening socket. Raises UserError where the name is taken or is none."""
    if not NAME.fullmatch(name):
        raise UserError(f"{name!r} cannot name a lab: expected at most 40 letters, digits, '.', '_' or '-'")
    if any(kept.name == name for kept in kept_labs()):
        raise UserError(f"a lab named {name!r} is up already: end it with `rankclock lab down {name}`, or give --name")
    folder = _root() / name
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        folder.mkdir(mode=0o700)
        (folder / "log").mkdir()
        listener.bind(str(folder / "control.sock"))
        listener.listen(16)
    except OSError as error:
        listener.close()
        raise HostError(f"{folder}: {error.strerror or error}") from error
    return folder, listener


def save_state(folder: Path, state: dict[str, Any]) -> None:
    """Written last: a folder without it is a lab that is still starting."""
    part = folder / "lab.json.part"
    part.write_text(json.dumps({"schema": STATE_SCHEMA, **state}))
    part.rename(folder / "lab.json")


def kept_labs() -> list[Kept]:
    """All labs in the background, by name. What dead ones left is removed."""
    labs = []
    for folder in sorted(_root().iterdir()):
        try:
            connect(folder).close()
        except HostError:
            shutil.rmtree(folder, ignore_errors=True)
            continue
        try:
            state = json.loads((folder / "lab.json").read_text())
        except (OSError, ValueError):
            continue
        if state.get("schema") == STATE_SCHEMA:
            labs.append(Kept(name=folder.name, folder=folder, state=state))
    return labs


def tidy() -> None:
    """Removes the folder that labs are kept in, where none is left in it."""
    root = _root()
    with contextlib.suppress(OSError):  # not empty
        root.rmdir()
        if root.name == "labs":
            root.parent.rmdir()


def connect(folder: Path) -> Channel:
    """A channel to a lab's first process. Raises HostError where it is gone."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.connect(str(folder / "control.sock"))
    except OSError as error:
        sock.close()
        raise HostError(f"no lab answers at {folder}: {error.strerror or error}") from error
    return Channel(sock)


def one_of(name: str | None) -> Kept:
    """The lab of that name, or the only one there is. Raises UserError."""
    labs = kept_labs()
    names = ", ".join(kept.name for kept in labs)
    if name is not None:
        for kept in labs:
            if kept.name == name:
                return kept
        raise UserError(f"no lab named {name!r} is up: {'there is ' + names if names else 'there is none'}")
    if len(labs) == 1:
        return labs[0]
    raise UserError(
        f"several labs are up, say which one: {names}"
        if labs
        else "no lab is up: start one with `rankclock lab up FILE`"
    )
