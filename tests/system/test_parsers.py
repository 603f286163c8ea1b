"""The real daemons read what was rendered, and reject what they should: no clock and no network is touched."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from rankclock.cluster import Cluster, Facts, load_cluster
from rankclock.cluster.facts import Fact
from rankclock.cluster.hostlist import expand
from rankclock.configs import render
from rankclock.configs.options import Option, Place, parse_version
from rankclock.configs.options_linuxptp import PHC2SYS, PTP4L
from rankclock.errors import HostError, UserError
from rankclock.node import parsers
from rankclock.node.parsers import ParserVerdict, check_command, check_file
from rankclock.planning import make_plan

ROOT = Path(__file__).parents[2]
CASES = sorted(path.parent for path in (ROOT / "tests/golden").glob("*/case.json"))

Daemon = Callable[[str], Path]


def facts_of(case: Path) -> dict[str, Facts]:
    path = case / "facts.json"
    found = {}
    for group in json.loads(path.read_text()) if path.exists() else []:
        for node in expand(group["nodes"]):
            facts = {key: {"value": value, "why": None, "source": "golden"} for key, value in group["facts"].items()}
            value = {"schema": "rankclock-facts/1", "node": node, "collected_at_ns": 0, "facts": facts}
            found[node] = Facts.from_json(value)
    return found


WITHOUT_PARSER = (".rules", "/applications.d/rankclock", ".xml")
"""udev says nothing before systemd 254; ufw and firewalld take files as they come."""


def with_releases(cluster: Cluster, facts: dict[str, Facts], installed: dict[str, str]) -> dict[str, Facts]:
    """The same facts, but every node has the releases that are tried here (scripts/unpack_release.sh)."""
    found = {}
    for node in cluster.nodes:
        before = facts[node.name].facts if node.name in facts else {}
        versions = {
            f"daemon.{name}": Fact(value={"version": text}, why=None, source="tried")
            for name, text in installed.items()
        }
        found[node.name] = Facts(node=node.name, collected_at_ns=0, facts={**before, **versions})
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.name)
def test_every_file_of_every_golden_case_is_taken_unedited(case: Path, tmp_path: Path, daemon: Daemon) -> None:
    installed = {"chronyd": version_of(daemon("chronyd")), "ptp4l": version_of(daemon("ptp4l"))}
    asked = json.loads((case / "case.json").read_text())
    local = case / asked["cluster"]
    cluster = load_cluster(local if local.exists() else ROOT / asked["cluster"])
    facts = with_releases(cluster, facts_of(case), installed) if os.environ.get("RANKCLOCK_DAEMONS") else facts_of(case)
    plan = make_plan(cluster, facts, asked["protocol"])
    seen: set[tuple[str, str]] = set()
    checked_files = 0
    try:
        rendered = render(plan, cluster, facts)
    except UserError as refusal:
        pytest.skip(f"refused for this release: {refusal}")
    for name, node in rendered.items():
        written_for = {"chrony.conf": (node.target.chrony, "chronyd"), "ptp4l.conf": (node.target.linuxptp, "ptp4l")}
        for path, text in node.files.items():
            version, program = written_for.get(Path(path).name, (None, ""))
            other_version = version is not None and version != installed[program]
            if path.endswith("/rankclock.conf") or (path, text.replace(name, "")) in seen or other_version:
                continue
            seen.add((path, text.replace(name, "")))
            file = tmp_path / f"{name}{path}"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            verdict = check_file(file, finder(daemon))
            may_be_unasked = path.endswith((".service", ".nft")) or any(path.endswith(end) for end in WITHOUT_PARSER)
            assert verdict.accepted is True or (verdict.accepted is None and may_be_unasked), verdict
            checked_files += version is not None
        for service in node.services:
            if service.name == "phc2sys" and node.target.linuxptp == installed["ptp4l"]:
                verdict = check_command(service.argv, finder(daemon))
                assert verdict.accepted is True, verdict
    if plan.usable and not checked_files:
        pytest.skip(f"written for other versions than those installed ({installed})")


def version_of(program: Path) -> str:
    words = subprocess.run([program, "-v"], capture_output=True, text=True, check=True).stdout.split()
    return next(word for word in words if word[0].isdigit())


def finder(daemon: Daemon) -> parsers.Finder:
    return lambda name: daemon(name) if name != "systemd-analyze" else parsers.find_program(name)


def checked(tmp_path: Path, name: str, text: str, daemon: Daemon) -> ParserVerdict:
    path = tmp_path / name
    path.write_text(text)
    return check_file(path, finder(daemon))


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("chrony.conf", "serverr 10.0.0.1\n", "Invalid directive at line 1"),
        ("chrony.conf", "driftfile /x\nserver 10.0.0.1 iburst # near\n", "line 2"),
        ("chrony.conf", "leapseclist /usr/share/zoneinfo/leap-seconds.list\n", "Invalid directive"),
        ("ptp4l.conf", "[global]\nclientOnly 1\n", "unknown option clientOnly at line 2"),
        ("ptp4l.conf", "[global]\ndomainNumber 128\n", "out of range"),
        ("ptp4l.conf", "[global]\nslaveOnly 1 # x\n", "malformed"),
        ("ptp4l.conf", "[global]\n[eth0]\nslaveOnly 1\n", "line 3"),
        ("ptp4l.conf", "priority1 5\n", "line 1"),
    ],
)
def test_what_the_daemon_rejects_is_rejected_with_its_words(
    name: str, text: str, words: str, tmp_path: Path, daemon: Daemon
) -> None:
    if (version_of(daemon("chronyd")), version_of(daemon("ptp4l"))) != ("4.3", "3.1.1"):
        pytest.skip("these words are those of chrony 4.3 and linuxptp 3.1.1")
    verdict = checked(tmp_path, name, text, daemon)
    assert verdict.accepted is False
    assert words in verdict.said


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        ("[Unit]\nDescription=x\n[Service]\nExecStart=/usr/sbin/no-such-daemon\n", True),
        ("[Unit]\nDescription=x\n[Service]\nExecStart=/bin/true\nRestartt=always\n", False),
        ("[Unit]\nDescription=x\n[Service]\nType=simple\n", False),
    ],
)
def test_systemd_says_whether_a_unit_is_one(text: str, accepted: bool, tmp_path: Path) -> None:
    (tmp_path / "rankclock-x.service").write_text(text)
    verdict = check_file(tmp_path / "rankclock-x.service")
    if verdict.accepted is None:
        pytest.skip(verdict.said)
    assert verdict.accepted is accepted, verdict


def test_a_file_that_names_a_real_interface_is_parsed_and_not_carried_out(tmp_path: Path, daemon: Daemon) -> None:
    nics = [path.name for path in Path("/sys/class/net").iterdir()]
    text = "[global]\ntime_stamping software\n" + "".join(f"[{nic}]\n" for nic in nics)
    verdict = checked(tmp_path, "ptp4l.conf", text, daemon)
    assert verdict.accepted is True
    assert verdict.said == ""


def test_a_daemon_that_is_not_there_leaves_the_question_open(tmp_path: Path) -> None:
    def nowhere(name: str) -> Path:
        raise HostError(f"{name} not found")

    (tmp_path / "chrony.conf").write_text("")
    verdict = check_file(tmp_path / "chrony.conf", nowhere)
    assert (verdict.accepted, verdict.said) == (None, "chronyd not found")
    assert check_file(tmp_path / "other.txt").accepted is None


@pytest.mark.parametrize(
    ("argv", "accepted"),
    [
        ("phc2sys -a -r -n 0 -R 8 -P 0.7 -I 0.0153125 -u 128 -m -q", True),
        ("phc2sys -s CLOCK_REALTIME -c eth0 -O 37 -S 0.01 -n 24 -m -q", True),
        ("phc2sys -a -r -n 256", False),
        ("phc2sys -R none", False),
        ("phc2sys --no-such-flag", False),
    ],
)
def test_phc2sys_says_whether_it_takes_its_flags(argv: str, accepted: bool, daemon: Daemon) -> None:
    assert check_command(argv.split(), finder(daemon)).accepted is accepted


def test_the_parsers_run_without_power_over_the_clock() -> None:
    prefix = parsers._isolation()
    assert prefix is not None
    status = subprocess.run([*prefix, "cat", "/proc/self/status"], capture_output=True, text=True, check=True).stdout
    held = {line.split()[0]: int(line.split()[1], 16) for line in status.splitlines() if line.startswith("Cap")}
    sys_time = 1 << 25  # linux/capability.h; asked for, never tried: a try that works would set this machine's clock
    assert not held["CapEff:"] & sys_time
    assert not held["CapPrm:"] & sys_time


# ---- the tables against the daemon that they speak of ----


def of_installed(option: Option, version: tuple[int, ...]) -> bool:
    return option.in_version(version) and not option.name.startswith("ts2phc.")


@pytest.fixture(scope="module")
def ptp4l_version(daemon: Daemon) -> tuple[int, ...]:
    return parse_version(version_of(daemon("ptp4l")))


def test_ptp4l_takes_every_option_of_its_table_at_both_ends_of_its_range(
    ptp4l_version: tuple[int, ...], tmp_path: Path, daemon: Daemon
) -> None:
    for end in ("low", "high"):
        lines = []
        for forms in PTP4L.options.values():
            for option in forms:
                if of_installed(option, ptp4l_version):
                    lines.append(f"{option.name} {value_at(option, end)}")
        assert len(lines) > 90
        verdict = checked(tmp_path, "ptp4l.conf", "[global]\n" + "\n".join(lines) + "\n", daemon)
        assert verdict.accepted is True, verdict


def test_ptp4l_rejects_what_the_table_says_is_out_of_range(
    ptp4l_version: tuple[int, ...], tmp_path: Path, daemon: Daemon
) -> None:
    tried = 0
    for forms in PTP4L.options.values():
        for option in forms:
            if of_installed(option, ptp4l_version) and option.kind == "int" and option.high not in (None, 2**31 - 1):
                text = f"[global]\n{option.name} {int(option.high or 0) + 1}\n"
                assert checked(tmp_path, "ptp4l.conf", text, daemon).accepted is False, option.name
                tried += 1
    assert tried > 50


def test_ptp4l_takes_port_options_in_a_port_section_and_no_others(
    ptp4l_version: tuple[int, ...], tmp_path: Path, daemon: Daemon
) -> None:
    port_lines = []
    for forms in PTP4L.options.values():
        for option in forms:
            if not of_installed(option, ptp4l_version):
                continue
            if option.place is Place.PORT:
                port_lines.append(f"{option.name} {value_at(option, 'low')}")
            elif option.name in ("priority1", "domainNumber", "slaveOnly", "free_running", "time_stamping"):
                text = f"[global]\n[eth0]\n{option.name} {value_at(option, 'low')}\n"
                assert checked(tmp_path, "ptp4l.conf", text, daemon).accepted is False, option.name
    verdict = checked(tmp_path, "ptp4l.conf", "[global]\n[eth0]\n" + "\n".join(port_lines) + "\n", daemon)
    assert verdict.accepted is True, verdict


def test_ptp4l_lacks_what_the_table_says_came_later(
    ptp4l_version: tuple[int, ...], tmp_path: Path, daemon: Daemon
) -> None:
    for name, forms in PTP4L.options.items():
        if not PTP4L.has(name, ptp4l_version):
            text = f"[global]\n{name} {value_at(forms[0], 'low')}\n"
            assert checked(tmp_path, "ptp4l.conf", text, daemon).accepted is False, name


def test_phc2sys_takes_every_flag_of_its_table(ptp4l_version: tuple[int, ...], daemon: Daemon) -> None:
    argv = ["phc2sys"]
    for forms in PHC2SYS.options.values():
        option = next(form for form in forms if form.in_version(ptp4l_version))
        argv += [option.name] if option.kind == "flag" else [option.name, value_at(option, "low")]
    assert check_command(argv, finder(daemon)).accepted is True


def value_at(option: Option, end: str) -> str:
    if option.kind == "str":
        return option.default or "x"
    if option.kind == "enum":
        return option.choices[0 if end == "low" else -1]
    number = option.low if end == "low" else option.high
    if number is None or (option.kind == "real" and number == 0.0 and end == "low"):
        return option.default or "1"
    return str(int(number)) if option.kind == "int" else str(number)
