"""Files of one machine that do not fit each other, and folders given to lint."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rankclock.configs.across import contradictions
from rankclock.configs.lint import dialect_of
from rankclock.configs.owners import ConfigFile

PTP4L = "/etc/linuxptp/ptp4l.conf"
UNIT = "/etc/systemd/system/phc2sys.service"
CHRONY = "/etc/chrony/chrony.conf"
GPSD = "/etc/default/gpsd"


def found(**texts: str) -> list[tuple[str, int, str]]:
    paths = {"ptp4l": PTP4L, "unit": UNIT, "chrony": CHRONY, "gpsd": GPSD}
    files = [
        ConfigFile(path=paths[name], text=text, dialect=dialect_of(paths[name], text) or "")
        for name, text in texts.items()
    ]
    return [(one.path, one.line, one.what) for one in contradictions(files)]


def unit(command: str) -> str:
    return f"[Service]\nExecStart=/usr/sbin/{command}\n"


HARDWARE = "[global]\ndomainNumber 24\nuds_address /var/run/ptp4l.0\n[eth0]\n"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("phc2sys -a -r -n 24", None),
        ("phc2sys -a -r", "in domain 0, and"),
        ("phc2sys -s eth0 -w", "in domain 0, and"),
        ("phc2sys -s eth0 -O -37", None),
        ("phc2sys -a -r -n $DOMAIN", None),
        ("phc2sys -a -r -n 24 -z /var/run/ptp4l.0", None),
        ("phc2sys -a -r -n 24 -z /var/run/ptp4l", "asks at /var/run/ptp4l, and ptp4l listens at /var/run/ptp4l.0"),
    ],
)
def test_phc2sys_must_ask_the_ptp4l_that_is_there(command: str, words: str | None) -> None:
    said = found(ptp4l=HARDWARE, unit=unit(command))
    assert [(path, line) for path, line, _ in said] == ([(UNIT, 2)] if words else [])
    assert all(str(words) in what for _, _, what in said)


def test_a_phc_whose_time_nobody_carries_over_is_found() -> None:
    (one,) = found(ptp4l=HARDWARE, unit=unit("ptp4l -f /etc/linuxptp/ptp4l.conf"))
    assert one[0] == PTP4L
    assert "nothing here carries its time" in one[2]


@pytest.mark.parametrize(
    "others",
    [
        {"unit": unit("ptp4l -f x"), "chrony": "refclock PHC /dev/ptp0 tai\n"},
        {"unit": unit("phc2sys -a -r -n 24")},
        {"unit": unit("phc2sys -a $OPTIONS")},
        {},
    ],
)
def test_a_phc_that_somebody_reads_or_of_which_nothing_is_known_is_no_fault(others: dict[str, str]) -> None:
    assert found(ptp4l=HARDWARE, **others) == []


@pytest.mark.parametrize(
    "more", ["time_stamping software\n", "free_running 1\n", "masterOnly 1\n", "clock_type E2E_TC\n"]
)
def test_a_ptp4l_that_follows_nothing_by_a_phc_needs_no_phc2sys(more: str) -> None:
    text = HARDWARE.replace("[global]\n", f"[global]\n{more}")
    assert found(ptp4l=text, unit=unit("ptp4l -f x")) == []


def test_a_segment_that_chronyd_does_not_read_is_found() -> None:
    (one,) = found(chrony="refclock SHM 1 refid PTP\n", unit=unit("phc2sys -a -r -E ntpshm -M 0"))
    assert (one[0], one[1]) == (UNIT, 2)
    assert "segment 0" in one[2]
    assert found(chrony="refclock SHM 0:perm=0600 refid PTP\n", unit=unit("phc2sys -a -r -E ntpshm")) == []


def test_a_socket_of_a_device_that_gpsd_does_not_have_is_found() -> None:
    chrony = "server 10.0.0.1\nrefclock SOCK /run/chrony.clk.ttyS0.sock refid GPS\n"
    (one,) = found(chrony=chrony, gpsd='DEVICES="/dev/ttyACM0"\n')
    assert (one[0], one[1]) == (CHRONY, 2)
    assert found(chrony=chrony, gpsd='DEVICES="/dev/ttyS0 /dev/pps0"\n') == []


def test_files_of_two_machines_are_never_put_together() -> None:
    files = [
        ConfigFile(path=f"a{PTP4L}", text=HARDWARE, dialect="ptp4l"),
        ConfigFile(path=f"b{UNIT}", text=unit("phc2sys -a -r -n 0"), dialect="commands"),
    ]
    assert contradictions(files) == []


def lint(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "rankclock", "lint", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)


def test_a_folder_stands_for_what_is_known_below_its_etc(tmp_path: Path) -> None:
    for path, text in (
        (PTP4L, HARDWARE),
        (UNIT, unit("phc2sys -a -r -n 3")),
        ("/etc/systemd/system/web.service", "[Service]\nExecStart=/bin/web\n"),
        ("/etc/hosts", "127.0.0.1 localhost\n"),
    ):
        file = tmp_path / f"node1{path}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    for given in (tmp_path, tmp_path / "node1", tmp_path / "node1/etc"):
        done = lint(str(given), "--json")
        answer = json.loads(done.stdout)
        assert done.returncode == 1
        assert len(answer["kinds"]) == 2
        assert [mark["says"] for mark in answer["marks"]] == ["across files"]
    empty = tmp_path / "empty"
    empty.mkdir()
    done = lint(str(empty))
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
