"""The first process of a lab: makes the namespaces that hold everything, the clocks, the network and the nodes.

Started by the harness as `python -I -S -c ... CONTROL_FD [LISTEN_FD STATE_FOLDER]`. Two processes: the outer one waits
outside the PID namespace (and cleans the state folder of a lab that outlives its starter), the inner one is the PID
namespace's first process. When either is killed, the kernel ends every process, namespace and mount of the lab.
Refuses to go on while CAP_SYS_TIME is held. Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rankclock.lab import kernel
from rankclock.lab.channel import Channel, channel_pair
from rankclock.lab.node_agent import run_node

__all__ = ["main"]

BASE = Path("/run/rankclock-lab")
"""On the lab's own tmpfs: gone with the lab's mount namespace."""


WAYS = struct.Struct("=8q")
"""Both directions of a cable (cable.c, struct way)."""


class Refused(Exception):
    """The lab cannot start; the message goes to the harness."""


def main(arguments: list[str]) -> None:
    """Never returns."""
    control = Channel(socket.socket(fileno=int(arguments[0])))
    listener = socket.socket(fileno=int(arguments[1])) if len(arguments) > 1 else None
    try:
        spec, fds = control.receive()
        if spec["die_with_parent"]:
            kernel.die_with_parent(signal.SIGKILL)
        state = Path(arguments[2]) if listener else None
        # The inner process will cover /run: what lies there is reached through a descriptor from before.
        state_at = (os.open(state.parent, os.O_PATH | os.O_CLOEXEC), state.name) if state else None
        os.chdir("/")
        _enter_namespaces()
        _start_first_process(control, listener, spec, fds, state_at)
    except Refused as refusal:
        control.send({"error": str(refusal)})
    except (EOFError, OSError) as error:
        with contextlib.suppress(OSError):
            control.send({"error": f"{type(error).__name__}: {error}"})
    os._exit(1)


def _enter_namespaces() -> None:
    uid, gid = os.getuid(), os.getgid()
    root_outside = uid == 0
    maps = _whole_maps() if root_outside else (f"0 {uid} 1\n", f"0 {gid} 1\n")
    try:
        if root_outside:
            kernel.drop_sys_time()
        _new_user_namespace(maps, deny_setgroups=not root_outside)
    except OSError as error:
        if not root_outside:
            raise Refused(
                f"this machine lets ordinary users make no user namespaces ({error.strerror}): run the lab as root, "
                "or allow them (sysctl user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns)"
            ) from error
    kernel.drop_sys_time()  # a new user namespace has given every capability back
    if kernel.has_sys_time():
        raise Refused("CAP_SYS_TIME could not be given up: a lab that could set this machine's clock does not start")
    flags = kernel.CLONE_NEWNS | kernel.CLONE_NEWPID | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
    try:
        kernel.unshare(flags)
    except OSError as error:
        raise Refused(f"this machine does not let us make namespaces: {error.strerror}") from error


def _whole_maps() -> tuple[str, str]:
    """The ids that this (root's) user namespace has, mapped to themselves."""
    maps = []
    for kind in ("uid", "gid"):
        lines = Path(f"/proc/self/{kind}_map").read_text().splitlines()
        ranges = [(int(first), int(count)) for first, _, count in (line.split() for line in lines)]
        maps.append("".join(f"{first} {first} {count}\n" for first, count in ranges))
    return maps[0], maps[1]


def _new_user_namespace(maps: tuple[str, str], *, deny_setgroups: bool) -> None:
    """Maps are written by a child that stays outside where root maps everything (it needs the outer privileges)."""
    me = os.getpid()
    ready_read, ready_write = os.pipe2(os.O_CLOEXEC)
    pid = 0 if deny_setgroups else os.fork()
    if pid == 0 and not deny_setgroups:
        os.close(ready_write)
        code = 1
        with contextlib.suppress(OSError):
            if os.read(ready_read, 1):
                Path(f"/proc/{me}/uid_map").write_text(maps[0])
                Path(f"/proc/{me}/gid_map").write_text(maps[1])
                code = 0
        os._exit(code)
    try:
        kernel.unshare(kernel.CLONE_NEWUSER)
        if deny_setgroups:
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(maps[0])
            Path("/proc/self/gid_map").write_text(maps[1])
        else:
            os.write(ready_write, b"x")
    finally:
        os.close(ready_read)
        os.close(ready_write)
        failed = pid and os.waitpid(pid, 0)[1]
    if failed:
        raise Refused("the user namespace's id maps could not be written")


def _start_first_process(
    control: Channel,
    listener: socket.socket | None,
    spec: dict[str, Any],
    fds: list[int],
    state_at: tuple[int, str] | None,
) -> None:
    alive_read, alive_write = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        os.close(alive_write)
        kernel.die_with_parent(signal.SIGKILL)
        _FirstProcess(control, listener, spec, fds, alive_read).run()
    control.close()
    if listener:
        listener.close()
    signal.signal(signal.SIGTERM, lambda *_: os.kill(pid, signal.SIGKILL))
    os.waitpid(pid, 0)
    if state_at:
        shutil.rmtree(state_at[1], ignore_errors=True, dir_fd=state_at[0])
    os._exit(0)


class _FirstProcess:
    """PID 1 of the lab."""

    def __init__(
        self, control: Channel, listener: socket.socket | None, spec: dict[str, Any], fds: list[int], alive: int
    ) -> None:
        self.control: Channel | None = control
        self.listener = listener
        self.spec = spec
        self.library_fd, self.cable_fd = fds
        self.alive = alive
        self.nodes: dict[str, Channel] = {}
        self.clients: list[Channel] = []

    def run(self) -> None:
        try:
            signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
            self._make_folders()
            self._make_clocks()
            self._make_nodes()
            self._make_network()
            self._start_cables()
            self._report()
            self._serve()
        except Refused as refusal:
            self._give_up(str(refusal))
        except Exception as error:
            self._give_up(f"{type(error).__name__}: {error}")
        finally:
            os._exit(1)

    def _give_up(self, why: str) -> None:
        if self.control:
            with contextlib.suppress(OSError):
                self.control.send({"error": why})

    def _make_folders(self) -> None:
        kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
        kernel.mount("rankclock-lab", "/run", "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=755")
        try:
            kernel.mount("proc", "/proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV)
        except OSError as error:
            raise Refused(
                f"this machine does not let us mount a /proc of our own ({error.strerror}); in a container it needs "
                "an unmasked /proc (docker: --security-opt systempaths=unconfined)"
            ) from error
        for node in self.spec["nodes"]:
            (BASE / "nodes" / node["name"] / "run" / "rankclock-lab").mkdir(parents=True)
        for fd, name in ((self.library_fd, "libvclock.so"), (self.cable_fd, "cable")):
            with os.fdopen(fd, "rb") as source, (BASE / name).open("wb") as target:
                shutil.copyfileobj(source, target)
            (BASE / name).chmod(0o755)

    def _make_clocks(self) -> None:
        library = ctypes.CDLL(str(BASE / "libvclock.so"))
        i64 = ctypes.c_int64
        library.vc_create.argtypes = [ctypes.c_char_p, i64, i64, i64, i64, i64, ctypes.c_int]
        library.vc_host_realtime_minus_monotonic.restype = i64
        host_ns = time.monotonic_ns()
        real_ns = host_ns + library.vc_host_realtime_minus_monotonic()
        for node in self.spec["nodes"]:
            folder = BASE / "nodes" / node["name"] / "run" / "rankclock-lab"
            os.link(BASE / "libvclock.so", folder / "libvclock.so")
            for name, clock in (("clock", node["clock"]), ("phc", node["phc"])):
                if clock is None:
                    continue
                raw_ns = host_ns + clock["raw_ahead_ns"]
                error = library.vc_create(
                    str(folder / name).encode(), host_ns, real_ns + clock["offset_ns"], host_ns, raw_ns,
                    clock["drift_q48"], name == "phc",
                )  # fmt: skip
                if error:
                    raise OSError(error, f"virtual clock of {node['name']}: {os.strerror(error)}")

    def _make_nodes(self) -> None:
        for node in self.spec["nodes"]:
            ours, theirs = channel_pair()
            self.nodes[node["name"]] = ours
            pid = os.fork()
            if pid == 0:
                kernel.unshare(kernel.CLONE_NEWPID)
                inner = os.fork()
                if inner == 0:
                    self._leave_to(ours, theirs)
                    run_node(theirs, node, BASE / "nodes" / node["name"])
                theirs.send({"pid": inner})
                os._exit(0)
            theirs.close()
            os.waitpid(pid, 0)
        for node in self.spec["nodes"]:
            told: dict[str, Any] = {}
            while not {"pid", "ready"} <= told.keys():  # one comes from the node itself, in either order
                told |= self._from_node(node["name"])
            node["pid"] = told["pid"]

    def _leave_to(self, ours: Channel, theirs: Channel) -> None:
        """In a node's first process: closes what is the lab's."""
        keep = theirs.fileno()
        for channel in self.nodes.values():
            if channel.fileno() != keep:
                channel.close()
        ours.close()
        if self.control:
            self.control.close()
        if self.listener:
            self.listener.close()

    def _from_node(self, name: str) -> dict[str, Any]:
        try:
            answer, _ = self.nodes[name].receive()
        except EOFError:
            raise Refused(f"node {name} ended while it started") from None
        if "error" in answer:
            raise Refused(answer["error"])
        return answer

    def _make_network(self) -> None:
        pids = {node["name"]: node["pid"] for node in self.spec["nodes"]}
        for name in ("iptables", "ip6tables", "arptables"):
            with contextlib.suppress(OSError):  # firewalls do not see frames on the lab's bridges; absent is as good
                Path(f"/proc/sys/net/bridge/bridge-nf-call-{name}").write_text("0")
        _ip([_with_pid(line, pids) for line in self.spec["ip"]])
        for node in self.spec["nodes"]:
            self.nodes[node["name"]].send({"op": "network", "ip": node["ip"], "sysctl": node["sysctl"]})
        for node in self.spec["nodes"]:
            self._from_node(node["name"])

    def _start_cables(self) -> None:
        if not self.spec["cables"]:
            return
        (BASE / "ways").write_bytes(struct.pack(f"={len(self.spec['ways'])}q", *self.spec["ways"]))
        argv = [str(BASE / "cable"), str(BASE / "ways"), *self.spec["cables"]]
        cable = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        assert cable.stdout
        said = cable.stdout.readline().decode().strip()
        if said != "ready":
            raise Refused(said)

    # ---- requests ----

    def _report(self) -> None:
        assert self.control
        self.control.send({"ready": True})

    def _serve(self) -> None:
        while True:
            sources = [c for c in (self.control, self.listener, *self.clients) if c]
            for source in select.select([self.alive, *sources], [], [])[0]:
                if source == self.alive:
                    return  # the outer process is gone
                if isinstance(source, socket.socket):
                    self.clients.append(Channel(source.accept()[0]))
                elif isinstance(source, Channel):
                    self._answer(source)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass

    def _answer(self, channel: Channel) -> None:
        try:
            request, fds = channel.receive()
        except (EOFError, OSError):
            if channel is self.control:
                if self.spec["tied"]:
                    os._exit(0)  # the harness is gone
                self.control = None
            else:
                self.clients.remove(channel)
            channel.close()
            return
        try:
            answer, passed = getattr(self, "_do_" + request["op"])(request)
        except (OSError, EOFError, Refused, KeyError) as error:
            answer, passed = {"error": str(error)}, []
        with contextlib.suppress(OSError):
            channel.send(answer, passed)
        for fd in (*fds, *passed):
            os.close(fd)

    def _do_node(self, request: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
        """A channel to a node's first process, and the node's clocks."""
        name = request["node"]
        ours, theirs = channel_pair()
        answer, _ = self.nodes[name].call({"op": "connect"}, [theirs.fileno()])
        theirs.close()
        if "error" in answer:
            raise Refused(answer["error"])
        fds = [ours.sock.detach()]
        for file in ("clock", "phc"):
            path = BASE / "nodes" / name / "run" / "rankclock-lab" / file
            if path.exists():
                fds.append(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        return {}, fds

    def _do_down(self, _request: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
        os._exit(0)

    def _do_alive(self, _request: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
        return {}, []

    def _do_cable(self, request: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
        """The settings of both directions of one cable: new ones, or what they are."""
        with (BASE / "ways").open("r+b") as file:
            file.seek(request["index"] * WAYS.size)
            if "ways" in request:
                file.write(WAYS.pack(*request["ways"]))
                return {}, []
            return {"ways": WAYS.unpack(file.read(WAYS.size))}, []

    def _do_ip(self, request: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
        """Commands for the network between the nodes."""
        _ip(request["lines"])
        return {}, []


def _with_pid(line: str, pids: dict[str, int]) -> str:
    """`netns @NODE` at the end of a line becomes the process id that `ip` understands."""
    front, mark, name = line.partition(" netns @")
    return f"{front} netns {pids[name]}" if mark else line


def _ip(lines: list[str]) -> None:
    done = subprocess.run(["ip", "-batch", "-"], input="\n".join(lines), text=True, capture_output=True, check=False)
    if done.returncode:
        raise Refused(f"ip: {' '.join(done.stderr.split())}")


if __name__ == "__main__":
    main(sys.argv[1:])
