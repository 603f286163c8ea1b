"""What the files of one machine say against each other: phc2sys beside ptp4l, chronyd beside gpsd and phc2sys. Pure.

Only what both sides say in so many words is compared: a command line with a variable in it, several ptp4l.conf on one
machine, and daemons of which no file is there count as silent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rankclock.configs.lint_commands import CommandLine, command_lines
from rankclock.configs.owners import ConfigFile, node_of
from rankclock.wire.text.linuxptp_argv import Ptp4lOptions, global_section, phc2sys_options, ptp4l_settings

__all__ = ["Conflict", "contradictions"]

_REFCLOCK = re.compile(r"\s*refclock\s+(?P<driver>SHM|SOCK|PHC)\s+(?P<what>\S+)", re.IGNORECASE)
_DEVICES = re.compile(r"""^\s*DEVICES=(["']?)(?P<devices>[^"'\n]*)\1""", re.MULTILINE)
_GPSD_SOCKET = re.compile(r"/chrony\.(?:clk\.)?(?P<device>[A-Za-z][A-Za-z0-9]*)\.sock$")
_NEW_GPSD_SOCKET = "/chrony.clk."
_PORTLESS = re.compile(r"^\[(?!global\]|unicast_master_table\])", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """Two files that do not fit. path, line: the one that has to change, as a rule."""

    path: str
    line: int
    what: str
    do: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Machine:
    files: Sequence[ConfigFile]
    calls: Sequence[tuple[ConfigFile, CommandLine]]

    def of(self, dialect: str) -> list[ConfigFile]:
        return [file for file in self.files if file.dialect == dialect]

    def runs(self, program: str) -> list[tuple[ConfigFile, CommandLine]]:
        return [(file, call) for file, call in self.calls if call.program == program and not call.open]


def contradictions(files: Iterable[ConfigFile]) -> list[Conflict]:
    """Everything that does not fit, machine by machine."""
    nodes: dict[str, list[ConfigFile]] = {}
    for file in files:
        nodes.setdefault(node_of(file.path), []).append(file)
    found: list[Conflict] = []
    for group in nodes.values():
        calls = [(file, call) for file in group if file.dialect == "commands" for call in command_lines(file.text)]
        machine = _Machine(files=group, calls=calls)
        for check in (_domain_and_socket, _phc_unused, _shared_memory, _gpsd_sockets):
            found += check(machine)
    return found


def _ptp4l(machine: _Machine) -> tuple[ConfigFile, Ptp4lOptions] | None:
    """The machine's one ptp4l, by its file and the command line that starts it."""
    configs = machine.of("ptp4l")
    if len(configs) != 1:
        return None
    argv = next((call.argv for _, call in machine.runs("ptp4l")), ("ptp4l",))
    return configs[0], ptp4l_settings(argv, global_section(configs[0].text))


def _domain_and_socket(machine: _Machine) -> Iterator[Conflict]:
    found = _ptp4l(machine)
    if found is None:
        return
    config, ptp4l = found
    for file, call in machine.runs("phc2sys"):
        options = phc2sys_options(call.argv)
        asks = options.automatic or "-w" in call.argv
        if asks and options.domain != ptp4l.domain:
            what = (
                f"phc2sys asks ptp4l in domain {options.domain}, and {config.path} has domainNumber {ptp4l.domain}: "
                "it finds nothing, and says nothing"
            )
            yield Conflict(path=file.path, line=call.line, what=what, do=f"-n {ptp4l.domain}")
        if asks and ptp4l.sockets and options.sockets and not set(options.sockets) & set(ptp4l.sockets):
            what = f"phc2sys asks at {options.sockets[0]}, and ptp4l listens at {ptp4l.sockets[-1]} ({config.path})"
            yield Conflict(path=file.path, line=call.line, what=what, do=f"-z {ptp4l.sockets[-1]}")


def _phc_unused(machine: _Machine) -> Iterator[Conflict]:
    """Hardware stamps keep the PHC right; the system clock needs somebody to carry the time over."""
    found = _ptp4l(machine)
    if found is None or not machine.of("commands"):
        return
    config, ptp4l = found
    text = config.text
    serves_only = ptp4l.free_running or ptp4l.server_only or "_TC" in text or not _PORTLESS.search(text)
    reads_phc = any(match["driver"].upper() == "PHC" for _, _, match in _refclocks(machine))
    started = any(call.program == "phc2sys" for _, call in machine.calls)
    if not (ptp4l.software or serves_only or reads_phc or started or machine.of("timemaster")):
        what = "ptp4l keeps the NIC's clock, and nothing here carries its time to the system clock"
        yield Conflict(path=config.path, line=1, what=what, do="run phc2sys -a -r, or let chronyd read the PHC")


def _refclocks(machine: _Machine) -> Iterator[tuple[ConfigFile, int, re.Match[str]]]:
    for file in machine.of("chrony"):
        for number, line in enumerate(file.text.splitlines(), 1):
            match = _REFCLOCK.match(line)
            if match is not None:
                yield file, number, match


def _shared_memory(machine: _Machine) -> Iterator[Conflict]:
    """phc2sys -E ntpshm writes a segment that a refclock SHM line must read."""
    read = {match["what"].partition(":")[0] for _, _, match in _refclocks(machine) if match["driver"].upper() == "SHM"}
    for file, call in machine.runs("phc2sys"):
        if "ntpshm" not in call.argv or not machine.of("chrony"):
            continue
        segment = call.argv[call.argv.index("-M") + 1] if "-M" in call.argv[:-1] else "0"
        if segment not in read:
            what = (
                f"phc2sys hands its time over in segment {segment}, and no refclock SHM {segment} of chronyd reads it"
            )
            yield Conflict(path=file.path, line=call.line, what=what, do=f"refclock SHM {segment} refid PTP")


def _gpsd_sockets(machine: _Machine) -> Iterator[Conflict]:
    """chronyd makes a socket for each of gpsd's devices by its name; gpsd writes into no other."""
    devices: set[str] = set()
    for file in machine.of("gpsd"):
        for match in _DEVICES.finditer(file.text):
            devices |= {device.rpartition("/")[2] for device in match["devices"].split()}
    if not devices:
        return
    for file, number, match in _refclocks(machine):
        socket = _GPSD_SOCKET.search(match["what"]) if match["driver"].upper() == "SOCK" else None
        if socket is not None and socket["device"] not in devices:
            what = f"no device of gpsd is called {socket['device']}: it has {', '.join(sorted(devices))}"
            where = f"{_NEW_GPSD_SOCKET if _NEW_GPSD_SOCKET in match['what'] else '/chrony.'}{min(devices)}.sock"
            yield Conflict(path=file.path, line=number, what=what, do=f"SOCK /run{where}")
