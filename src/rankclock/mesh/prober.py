"""The prober process: `python -m rankclock.mesh.prober`. Small, quick to start, standard library only.

Two ways to run it. With `--out` it appends one measured sample per peer and second to a JSON Lines file until it is
ended. With `--control` it obeys JSON lines on its standard input (`mesh.handle` speaks that) and ends at their end.
It ends with its parent (`--die-with-parent`, always with `--control`): it watches its parent's process id, because the
kernel's parent-death signal fires already when the *thread* that started it ends.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import IO, Any, NoReturn

from rankclock.errors import ExitCode, HostError, RankclockError, UserError
from rankclock.mesh.actions import Address, Measured, Notice
from rankclock.mesh.clocks import clock_identity, read_clocks
from rankclock.mesh.driver import Driver
from rankclock.mesh.follower import Follower
from rankclock.mesh.machine import ProbeMachine
from rankclock.mesh.settings import ProbeSettings
from rankclock.mesh.share import ShareWriter
from rankclock.mesh.stamps import StampedSocket, parse_address
from rankclock.mesh.timescale import Role, Timescale
from rankclock.wire.probe import MIN_KEY_BYTES

__all__ = ["main"]

SCHEMA = "rankclock-measured/1"
MAX_PATHS = 4
"""A burst has four pairs: more ports would never be used."""

START_NS = (*ProbeSettings().start_ns, 1_100_000_000, 1_800_000_000, 2_700_000_000, 3_800_000_000)
"""Where bursts come seconds apart later on, a few more at the start: bounds grow by the doubt of the rate, which is
3 ppm after the first second and 0.5 ppm after the fourth."""

CONTROL_BYTES = 1 << 20
"""The longest control line: 10,000 peers fit."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until ended; the exit code."""
    options = _parse(arguments)
    try:
        if options.control:
            return _obey(options)
        return _append(options)
    except RankclockError as error:
        if options.control:
            _say({"error": str(error), "kind": type(error).__name__})
        sys.stderr.write(f"rankclock prober: {error}\n")
        return int(error.exit_code)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m rankclock.mesh.prober",
        description="Measure this clock against peers, second by second, and answer their probes.",
        epilog="example: python -m rankclock.mesh.prober --node gpu1 --bind 10.80.1.11:4910 "
        "--peer upstream=10.80.0.1:4910 --key-file key --out measured.jsonl",
    )
    parser.add_argument("--node", required=True, help="name of this node; peers know it by that name")
    parser.add_argument("--bind", default="0.0.0.0:0", help="ADDRESS:PORT to answer and ask from")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=ADDRESS:PORT", help="ask this node")
    parser.add_argument("--key-file", type=Path, help=f"shared key, {MIN_KEY_BYTES} bytes or more, any content")
    parser.add_argument("--out", type=Path, help="append samples to this file (JSON Lines)")
    parser.add_argument("--responder-only", action="store_true", help="only answer")
    parser.add_argument("--user-stamps", action="store_true", help="do not ask the kernel for time stamps")
    parser.add_argument("--paths", type=int, default=4, help="source ports to ask from, for networks of many paths")
    parser.add_argument("--die-with-parent", action="store_true", help="end when the process that started this ends")
    parser.add_argument("--control", action="store_true", help="obey JSON lines on standard input")
    return parser.parse_args(arguments)


def _append(options: argparse.Namespace) -> int:
    """The long-running way: samples to a file."""
    if options.key_file is None:
        raise UserError("--key-file is missing: give a file with the key that all nodes share")
    if options.responder_only and options.peer:
        raise UserError("--responder-only asks nobody: leave out --peer, or leave out --responder-only")
    if not options.responder_only and (options.out is None or not options.peer):
        raise UserError("give --peer and --out, or --responder-only")
    peers = dict(_parse_peer(text) for text in options.peer)
    key = _read_key(options.key_file)
    sockets = _open_sockets(options)
    out = _open_out(options.out) if options.out is not None else None

    def write(measured: Measured) -> None:
        if out is not None:
            out.write(json.dumps(_sample(options.node, measured), separators=(",", ":")) + "\n")
            out.flush()

    machine = _machine(options.node, key, sockets[0])
    driver = Driver(machine, sockets, on_measured=write, on_notice=_tell)
    driver.perform(machine.handle_peers(peers, read_clocks().raw_after_ns))
    _end_on_signals()
    parent = os.getppid()
    while not options.die_with_parent or os.getppid() == parent:
        driver.turn()
    return int(ExitCode.OK)


def _obey(options: argparse.Namespace) -> int:
    """The way of `mesh.handle`: commands on standard input, answers on standard output."""
    sockets = _open_sockets(options)
    host, port = sockets[0].address
    stamps = "kernel" if sockets[0].kernel else "user"
    _say({"node": options.node, "host": host, "port": port, "clock_id": clock_identity(), "stamps": stamps})
    _end_on_signals()
    commands = _Lines(sys.stdin.fileno())
    parent = os.getppid()
    machine, driver, key = None, None, ""
    while os.getppid() == parent:
        if driver is not None and commands.fd not in driver.turn():
            continue
        for line in commands.read():
            command = json.loads(line)
            if "peers" in command:
                if machine is None or driver is None or command["key"] != key:
                    key = command["key"]
                    machine, driver = _begin(options.node, command, sockets)
                    driver.watch(commands.fd)
                peers = {name: (host, port) for name, (host, port) in command["peers"].items()}
                driver.perform(machine.handle_peers(peers, read_clocks().raw_after_ns))
                _say({"connected": len(peers)})
            elif machine is not None:
                _say(machine.report(read_clocks().raw_after_ns, stamps=stamps).to_json())
            else:
                _say({"error": "connect comes before report", "kind": "UserError"})
        if commands.ended:
            break
    if machine is not None and driver is not None:
        driver.perform(machine.handle_end(read_clocks().raw_after_ns))
    return int(ExitCode.OK)


class _Lines:
    """Whole lines from a pipe, without blocking once there is something to read."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.ended = False
        self._held = b""

    def read(self) -> list[bytes]:
        """The lines that are complete by now; waits only where nothing is there."""
        data = os.read(self.fd, CONTROL_BYTES)
        self.ended = not data
        *lines, self._held = (self._held + data).split(b"\n")
        if len(self._held) > CONTROL_BYTES:
            raise UserError(f"a control line is longer than {CONTROL_BYTES} bytes")
        return lines


def _open_sockets(options: argparse.Namespace) -> list[StampedSocket]:
    address = parse_address(options.bind, what="--bind")
    if not 1 <= options.paths <= MAX_PATHS:
        raise UserError(f"--paths is 1 to {MAX_PATHS}, found {options.paths}")
    return StampedSocket.open_paths(address, count=options.paths, user_stamps=options.user_stamps)


def _machine(
    node: str,
    key: bytes,
    socket: StampedSocket,
    *,
    settings: ProbeSettings | None = None,
    follower: Follower | None = None,
) -> ProbeMachine:
    return ProbeMachine(
        node=node,
        clock_id=clock_identity(),
        key=key,
        session=int.from_bytes(os.urandom(8), "big"),
        kernel_stamps=socket.kernel,
        settings=settings,
        follower=follower,
    )


def _begin(node: str, command: dict[str, Any], sockets: list[StampedSocket]) -> tuple[ProbeMachine, Driver]:
    """The machine and driver that a command asks for.

    Its `timescale`, where it has one: who the reference and its successors are, the reference's anchor (as in
    `mesh.timescale.Role`), the file that ranks share, period_s from burst to burst, and spread_ms, within which the
    hosts of the job begin.
    """
    key, told = bytes.fromhex(command["key"]), command.get("timescale")
    if told is None:
        machine = _machine(node, key, sockets[0])
        return machine, Driver(machine, sockets, on_measured=lambda _: None, on_notice=_tell)
    period_ns = round(told["period_s"] * 1e9)
    # Hosts of a job start together: each begins somewhere within a millisecond a host that may ask the same one.
    begin_ns = int.from_bytes(os.urandom(4), "big") * told["spread_ms"] * 1_000_000 >> 32
    settings = ProbeSettings(
        period_ns=period_ns,
        jitter_ns=period_ns // 4,
        start_ns=tuple(begin_ns + at_ns for at_ns in START_NS),
    )
    role = Role(reference=told["reference"], successors=tuple(told["successors"]), **told["anchor"])
    timescale = Timescale(node, role, period_ns=settings.period_ns, known=command["peers"])
    machine = _machine(node, key, sockets[0], settings=settings, follower=Follower(timescale))
    share = ShareWriter.open(Path(told["share"]))
    driver = Driver(machine, sockets, on_measured=lambda _: None, on_notice=_tell, on_published=share.publish)
    return machine, driver


def _sample(node: str, measured: Measured) -> dict[str, Any]:
    """One line of the file. Where nothing was measured the line still says when that was so."""
    at_raw_ns, at_real_ns = measured.offset.at_raw_ns, measured.at_real_ns
    if at_raw_ns is None or at_real_ns is None:
        now = read_clocks()
        at_raw_ns, at_real_ns = now.raw_before_ns, now.real_ns
    return {
        "schema": SCHEMA,
        "node": node,
        "peer": measured.peer,
        "at_raw_ns": at_raw_ns,
        "at_real_ns": at_real_ns,
        "offset": measured.offset.to_json(),
    }


def _parse_peer(text: str) -> tuple[str, Address]:
    name, equals, address = text.partition("=")
    if not equals or not name:
        raise UserError(f"--peer is NAME=ADDRESS:PORT, found {text!r}")
    return name, parse_address(address, what=f"--peer {name}")


def _read_key(path: Path) -> bytes:
    try:
        key = path.read_bytes().strip()
    except OSError as error:
        raise UserError(f"the key file {path} cannot be read: {error.strerror}") from error
    if len(key) < MIN_KEY_BYTES:
        raise UserError(f"the key in {path} has {len(key)} bytes, {MIN_KEY_BYTES} or more are needed")
    return key


def _open_out(path: Path) -> IO[str]:
    try:
        return path.open("a", encoding="utf-8")
    except OSError as error:
        raise HostError(f"samples cannot be written to {path}: {error.strerror}") from error


def _tell(notice: Notice) -> None:
    sys.stderr.write(f"rankclock prober: {notice.event.value}: {notice.about}: {notice.detail}\n")
    sys.stderr.flush()


def _say(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value, separators=(",", ":")) + "\n")
    sys.stdout.flush()


def _end_on_signals() -> None:
    def end(_number: int, _frame: FrameType | None) -> NoReturn:
        raise SystemExit(int(ExitCode.OK))

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)


if __name__ == "__main__":
    sys.exit(main())
