"""Linting command lines, timemaster.conf, ts2phc.conf and gpsd's defaults; a second owner of the system clock."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rankclock.cluster import load_cluster
from rankclock.configs import render
from rankclock.configs.lint import dialect_of, lint_ptp4l
from rankclock.configs.lint_commands import command_lines, lint_commands
from rankclock.configs.lint_gpsd import lint_gpsd
from rankclock.configs.lint_timemaster import lint_timemaster
from rankclock.configs.owners import ConfigFile, conflicts, node_of, owners
from rankclock.configs.problem import Problem
from rankclock.node import parsers
from rankclock.planning import make_plan

V3, V42, CHRONY = (3, 1, 1), (4, 2), (4, 3)
ROOT = Path(__file__).parents[2]


def lint(*arguments: str) -> tuple[int, dict[str, Any]]:
    argv = [sys.executable, "-m", "rankclock", "lint", "--json", *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def one(found: list[Problem]) -> tuple[int, bool, str]:
    (problem,) = found
    return problem.line, problem.rejected, problem.what


# ---- command lines ----

REFUSES = re.compile(
    r"cannot be mixed|must be (?:selected|specified)|invalid|out of range|requires an argument|unrecognized|"
    r"no interface"
)
REFUSED = [
    ("phc2sys -a -r -s eth0", "phc2sys -a finds its clocks by ptp4l and cannot be combined with -s"),
    ("phc2sys -a -w", "phc2sys -a finds its clocks by ptp4l and cannot be combined with -w"),
    ("phc2sys -a -O -37", "phc2sys -a finds its clocks by ptp4l and cannot be combined with -O"),
    ("phc2sys -r", "phc2sys has neither -a nor a source (-s)"),
    ("phc2sys -s lo", "phc2sys was told no offset between the two time scales: neither -w nor -O"),
    ("phc2sys -C CLOCK_TAI -a", "phc2sys 3.1.1 has no option -C"),
    ("phc2sys -a -n", "phc2sys -n: a value is missing"),
    ("phc2sys -a -n 300", "phc2sys -n 300: expected 0 to 255"),
    ("phc2sys -a -E fast", "phc2sys -E fast: expected one of pi, linreg, ntpshm, nullf"),
    ("phc2sys -a --clientOnly 1", "phc2sys 3.1.1 has no option --clientOnly"),
    ("phc2sys -a --domainNumber=300", "phc2sys --domainNumber 300: expected 0 to 127"),
    ("ptp4l -m", "ptp4l has no interface: neither -i nor a file with ports (-f)"),
    ("ptp4l -i lo --nonsense 1", "ptp4l has no option --nonsense in any release that is known here"),
]


@pytest.mark.parametrize(("command", "what"), REFUSED)
def test_what_a_program_refuses_at_start_is_named_with_its_line(command: str, what: str) -> None:
    unit = f"[Unit]\n# ExecStart=/usr/sbin/phc2sys -x\n[Service]\nExecStart=/usr/sbin/{command}\n"
    assert one(lint_commands(unit, V3)) == (4, True, what)


@pytest.mark.parametrize(("command", "what"), REFUSED)
def test_the_programs_themselves_refuse_it_too(command: str, what: str) -> None:
    prefix = parsers._isolation()  # no interface, no power over the clock
    assert prefix is not None, "neither unshare nor setpriv works here"
    program, *rest = command.split()
    argv = [*prefix, str(parsers.find_program(program)), "-m", *rest]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=10)
    assert done.returncode != 0, what
    assert REFUSES.search(done.stderr + done.stdout), done.stderr + done.stdout


@pytest.mark.parametrize(
    "command",
    [
        "phc2sys -a -r -n 24", "phc2sys -arr -m", "phc2sys -s %I -w", "phc2sys -s eth0 -O -37", "phc2sys -h",
        "phc2sys $OPTIONS", "phc2sys -a -n ${DOMAIN}", "ptp4l -f /etc/linuxptp/ptp4l.conf -i %I -s",
        "ptp4l -i eth0 --priority1 10 --step_threshold=1", "ptp4l -i eth0 --step_t 1",
        "ts2phc -f /etc/linuxptp/ts2phc.conf -s nmea -m",
    ],
)  # fmt: skip
def test_what_is_fine_or_not_to_be_known_is_not_marked(command: str) -> None:
    assert lint_commands(f"[Service]\nExecStart=-/usr/sbin/{command}\n", V3) == []


def test_a_release_that_has_an_option_takes_it() -> None:
    assert lint_commands("ptp4l -i eth0 --clientOnly 1\n", V42) == []
    assert one(lint_commands("ts2phc -a\n", V3))[2] == "ts2phc 3.1.1 has no option -a"
    assert lint_commands("ts2phc -a\n", V42) == []


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("phc2sys -s eth0 -w -r", "-r means nothing without -a: phc2sys ignores it"),
        ("ptp4l -i eth0 -p 10", "-p 10: -p is the clock device, not a priority"),
        ("Requires=ptp4l.service", "it needs ptp4l.service: where there is only ptp4l@.service"),
    ],
)
def test_what_is_taken_though_it_is_wrong_is_a_warning(text: str, what: str) -> None:
    line, rejected, said = one(lint_commands(text + "\n", V3))
    assert (line, rejected) == (1, False)
    assert said.startswith(what)


def test_commands_are_found_over_continued_lines_behind_wrappers_and_in_scripts_and_nowhere_else() -> None:
    text = (
        "[Service]\nExecStart=/usr/sbin/phc2sys \\\n  -a \\\n  -r\nExecStartPost=/bin/sh -c 'phc2sys -z'\n"
        "sudo chrt -f 10 ptp4l -i eth0 -m > /var/log/ptp; sleep 1\n# ptp4l -i eth1\nptp4l says that it runs\n"
    )
    found = [(call.line, call.program, call.argv[1:]) for call in command_lines(text)]
    assert found == [(2, "phc2sys", ("-a", "-r")), (6, "ptp4l", ("-i", "eth0", "-m"))]


# ---- timemaster ----

GOOD = "[ntp_server 10.0.0.1]\niburst 1\nminpoll 2\n[ptp_domain 0]\ninterfaces eth0\ndelay 10e-6\n[timemaster]\n"
TIMEMASTER = [
    ("x 1\n", 1, "a setting before any section"),
    ("[ntp_server]\n", 1, "[ntp_server] without an address"),
    ("[ntp_server a]\nfoo 1\n", 2, "timemaster knows no 'foo' in [ntp_server]"),
    ("[ntp_server a]\nminpoll fast\n", 2, "minpoll fast: expected a whole number"),
    ("[ntp_server a]\niburst yes\n", 2, "iburst yes: expected 0 or 1"),
    ("[ptp_domain a]\ninterfaces eth0\n", 1, "[ptp_domain a]: expected a number"),
    ("[ptp_domain 0]\n", 1, "[ptp_domain] without interfaces"),
    ("[ptp_domain 0]\ninterfaces eth0\ndelay x\n", 3, "delay x: expected a number of seconds"),
    (GOOD + "ntp_program openntpd\n", 8, "ntp_program openntpd: expected chronyd or ntpd"),
    (GOOD + "use_vclocks 1\n", 8, "timemaster 3.1.1 has no 'use_vclocks'"),
    (GOOD + "[chronyd]\nsettings 1\n", 9, "timemaster knows no 'settings' in [chronyd]"),
    (GOOD + "[chrony]\n", 8, "timemaster knows no section [chrony]"),
]


@pytest.mark.parametrize(("text", "line", "what"), TIMEMASTER)
def test_what_timemaster_rejects_is_named_with_its_line(text: str, line: int, what: str) -> None:
    found = [problem for problem in lint_timemaster(text, V3, CHRONY) if problem.rejected]
    assert one(found) == (line, True, what)


@pytest.mark.parametrize("text", [*(text for text, _, _ in TIMEMASTER)])
def test_timemaster_itself_rejects_it_and_takes_the_good_one(text: str, tmp_path: Path) -> None:
    path = tmp_path / "timemaster.conf"
    path.write_text(text, encoding="utf-8")
    assert parsers.check_file(path).accepted is False
    path.write_text(GOOD, encoding="utf-8")
    assert parsers.check_file(path).accepted is True
    assert lint_timemaster(GOOD, V3, CHRONY) == []


@pytest.mark.parametrize(
    ("text", "line", "rejected", "what"),
    [
        ("ptp4l_option clientOnly 1", 4, True, "ptp4l 3.1.1 has no 'clientOnly'"),
        ("ptp4l_option domainNumber 200", 4, True, "domainNumber 200: expected 0 to 127"),
        ("ntp_options poll 2", 4, False, "poll in ntp_options stands twice in what timemaster writes: it adds its own"),
        ("[chrony.conf]\nleapseclist /x", 5, True, "chronyd 4.3 has no 'leapseclist'"),
        ("[chrony.conf]\ninclude /etc/chrony.conf", 5, False, "Debian and Ubuntu have no /etc/chrony.conf"),
        ("[ptp4l.conf]\n>[eth0]\nhwts_filter all", 6, True, "hwts_filter stands in [eth0]"),
        ("[phc2sys]\noptions -C x", 5, True, "phc2sys 3.1.1 has no option -C"),
    ],
)
def test_what_timemaster_hands_on_unseen_is_judged_by_the_daemon_that_gets_it(
    text: str, line: int, rejected: bool, what: str, tmp_path: Path
) -> None:
    whole = f"[ptp_domain 0]\ninterfaces eth0\ndelay 1e-6\n{text}\n"
    found = one(lint_timemaster(whole, V3, CHRONY))
    assert (found[:2], found[2][: len(what)]) == ((line, rejected), what)
    path = tmp_path / "timemaster.conf"
    path.write_text(whole, encoding="utf-8")
    assert parsers.check_file(path).accepted is True  # that is why it is judged here


def test_a_timemaster_without_any_source_is_a_warning_but_not_where_an_included_file_may_have_some() -> None:
    assert one(lint_timemaster("[timemaster]\nntp_program chronyd\n", V3, CHRONY))[1] is False
    assert lint_timemaster("[chrony.conf]\ninclude /etc/chrony/chrony.conf\n", V3, CHRONY) == []


# ---- ts2phc, gpsd ----


def test_ts2phc_settings_are_judged_by_linuxptps_table() -> None:
    text = "[global]\nts2phc.pulsewidth 999000001\nleapfile /x\n[eth0]\nts2phc.extts_polarity both\nts2phc.channel -1\n"
    assert dialect_of("a.conf", text) == dialect_of("/etc/linuxptp/ts2phc.conf", "") == "ts2phc"
    assert [(problem.line, problem.rejected) for problem in lint_ptp4l(text, V3)] == [(2, True), (6, True)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('DEVICES="/dev/ttyS0 /dev/pps0"\nGPSD_OPTIONS="-n"\nUSBAUTO="false"\n', []),
        ('DEVICES="/dev/ttyS0"\nGPSD_OPTIONS="-G -bn"\n', []),
        ('DEVICES="/dev/ttyS0"\nGPSD_OPTIONS=""\n', [(2, "without -n gpsd opens the receiver only")]),
        ('DEVICES=""\nUSBAUTO="false"\nGPSD_OPTIONS="-n"\n', [(1, "no DEVICES, and USBAUTO is false")]),
        ('DEVICE="/dev/ttyS0"\nGPSD_OPTIONS=-n\n', [(1, "gpsd's units read no DEVICE")]),
        ('GPSD_OPTIONS = "-n"\n', [(1, "not NAME=VALUE"), (1, "without -n gpsd opens")]),
    ],
)
def test_gpsd_defaults_by_which_a_clock_gets_nothing_are_marked(text: str, expected: list[tuple[int, str]]) -> None:
    found = lint_gpsd(text)
    assert [problem.line for problem in found] == [line for line, _ in expected]
    assert all(problem.what.startswith(what) for problem, (_, what) in zip(found, expected, strict=True))


# ---- one owner ----

CHRONY_CONF = ConfigFile(
    path="/etc/chrony/chrony.conf", text="driftfile /x\nserver 10.0.0.1 iburst\n", dialect="chrony"
)
PHC2SYS = ConfigFile(
    path="/etc/systemd/system/phc2sys.service", text="[Service]\nExecStart=phc2sys -a -r\n", dialect="commands"
)


def also(path: str, text: str, dialect: str) -> ConfigFile:
    return ConfigFile(path=path, text=text, dialect=dialect)


@pytest.mark.parametrize(
    ("second", "programs"),
    [
        (PHC2SYS, {"chronyd", "phc2sys"}),
        (also("/etc/ntp.conf", "server 10.0.0.2\n", "ntp"), {"chronyd", "ntpd"}),
        (also("/etc/systemd/timesyncd.conf", "[Time]\nNTP=a b\n", "timesyncd"), {"chronyd", "systemd-timesyncd"}),
        (also("/etc/linuxptp/ptp4l.conf", "[global]\ntime_stamping software\n", "ptp4l"), {"chronyd", "ptp4l"}),
        (also("/etc/linuxptp/timemaster.conf", GOOD, "timemaster"), {"chronyd", "timemaster's chronyd"}),
        (also("/lib/systemd/system/p.service", "ExecStart=ptp4l -S -i eth0\n", "commands"), {"chronyd", "ptp4l"}),
    ],
)
def test_two_programs_that_steer_the_system_clock_are_found(second: ConfigFile, programs: set[str]) -> None:
    (found,) = conflicts([CHRONY_CONF, second])
    assert {owner.program for owner in found} == programs


@pytest.mark.parametrize(
    ("path", "text", "dialect"),
    [
        ("/etc/x.service", "ExecStart=phc2sys -s CLOCK_REALTIME -c eth0 -w\n", "commands"),
        ("/etc/x.service", "ExecStart=phc2sys -a\n", "commands"),
        ("/etc/x.service", "ExecStart=phc2sys -a -r -E ntpshm\n", "commands"),
        ("/etc/x.service", "ExecStart=chronyd -x\nExecStart=phc2sys -a -r\n", "commands"),
        ("/etc/ntp.conf", "disable ntp\nserver 10.0.0.1\n", "ntp"),
        ("/etc/ntp.conf", "server 127.127.1.0\n", "ntp"),
        ("/etc/systemd/timesyncd.conf", "[Time]\n#NTP=a\n", "timesyncd"),
        ("/etc/linuxptp/ptp4l.conf", "[global]\ntime_stamping hardware\n", "ptp4l"),
        ("/etc/linuxptp/ptp4l.conf", "[global]\ntime_stamping software\nfree_running 1\n", "ptp4l"),
        ("/etc/linuxptp/ptp4l.conf", "[global]\ntime_stamping software\n[eth0]\nmasterOnly 1\n", "ptp4l"),
        ("/etc/linuxptp/timemaster.conf", GOOD + "[chrony.conf]\ninclude /etc/chrony/chrony.conf\n", "timemaster"),
        ("/srv/other/etc/x.service", "ExecStart=phc2sys -a -r\n", "commands"),
    ],
)
def test_what_leaves_the_clock_alone_or_is_another_machines_is_no_second_owner(
    path: str, text: str, dialect: str
) -> None:
    assert conflicts([CHRONY_CONF, also(path, text, dialect)]) == []


def test_a_unit_and_its_drop_in_are_one_program_and_two_units_are_two() -> None:
    drop_in = also("/etc/systemd/system/phc2sys.service.d/a.conf", "[Service]\nExecStart=phc2sys -a -rr\n", "commands")
    assert len(owners([PHC2SYS, drop_in])) == 1
    assert len(owners([PHC2SYS, also("/etc/b.service", "ExecStart=phc2sys -s eth1 -w\n", "commands")])) == 2


@pytest.mark.parametrize(
    ("path", "node"),
    [
        ("/etc/chrony/chrony.conf", ""),
        ("/usr/lib/systemd/system/a.service", ""),
        ("out/gpu1/etc/chrony/chrony.conf", "out/gpu1"),
        ("/var/tmp/out/gpu1/etc/a", "/var/tmp/out/gpu1"),
        ("a/chrony.conf", "a"),
        ("chrony.conf", ""),
    ],
)
def test_a_files_machine_is_told_by_its_path(path: str, node: str) -> None:
    assert node_of(path) == node


@pytest.mark.parametrize("example", ["qlora-ntp-4", "qlora-ptp-32"])
def test_what_rankclock_renders_has_one_owner_a_node_and_nothing_to_mark(example: str) -> None:
    cluster = load_cluster(ROOT / f"examples/{example}.yaml")
    plan = make_plan(cluster, {}, None)
    for name, node in render(plan, cluster, {}).items():
        files = [also(f"{name}{path}", text, dialect_of(path, text) or "") for path, text in node.files.items()]
        assert conflicts(files) == []
        assert [p for f in files if f.dialect == "commands" for p in lint_commands(f.text, V3)] == []


def test_the_command_marks_every_owner_and_says_of_whom_it_speaks(tmp_path: Path) -> None:
    for name, text in (("chrony.conf", CHRONY_CONF.text), ("phc2sys.service", PHC2SYS.text)):
        (tmp_path / name).write_text(text, encoding="utf-8")
    code, found = lint(str(tmp_path / "chrony.conf"), str(tmp_path / "phc2sys.service"))
    marks = [mark for mark in found["marks"] if mark["says"] == "owners"]
    assert code == 1
    assert [(Path(mark["file"]).name, mark["line"], mark["severity"]) for mark in marks] == [
        ("chrony.conf", 2, "risk"), ("phc2sys.service", 2, "risk"),
    ]  # fmt: skip
    assert "both, if both run" in marks[0]["what"]


def test_the_installed_timemaster_is_asked(tmp_path: Path) -> None:
    path = tmp_path / "timemaster.conf"
    path.write_text("[ntp_server a]\nfoo 1\n", encoding="utf-8")
    code, found = lint(str(path), "--linuxptp", parsers.installed_release("ptp4l") or "3.1.1")
    said = {(mark["says"], mark["what"]) for mark in found["marks"]}
    assert code == 1
    assert ("timemaster", "unknown ntp_server setting foo") in said
